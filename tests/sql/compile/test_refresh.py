"""Refreshes of single stream tables: what they touch, and what transactions they see."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from engine.session.snapshots import Frontier
from server.postgres.cluster import EmbeddedPostgres
from sql.operators.captured_changes import PENDING
from tests.sql.conftest import Workspace
from tests.sql.harness import Connection, connect, one


@pytest.fixture
def other(cluster: EmbeddedPostgres, workspace: Workspace) -> Connection:
    """A second connection to the workspace's database."""
    return connect(cluster.dsn(workspace.connection.info.dbname))


def test_update_of_join_key_moves_row_to_new_group(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) VALUES (1, 1, 5), (2, 1, 7)", "INSERT INTO tag VALUES (1), (2)")
    stream = workspace.stream("st", "SELECT t.grp, sum(i.val) AS s FROM item i JOIN tag t USING (grp) GROUP BY t.grp")
    workspace.execute("UPDATE item SET grp = 2 WHERE id = 1", "DELETE FROM tag WHERE grp = 1")
    done = stream.refresh()
    assert workspace.connection.execute("SELECT grp, s FROM st").fetchall() == [(2, 5)]
    assert (done["inserted"], done["updated"], done["deleted"]) == (1, 0, 1)


def test_one_of_two_duplicates_is_deleted(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO tag VALUES (1, '{}', 1), (1, '{}', 1), (1, '{ }', 1)")
    stream = workspace.stream("st", "SELECT * FROM tag")
    workspace.execute("DELETE FROM tag WHERE ctid = (SELECT min(ctid) FROM tag)")
    done = stream.refresh()
    assert (done["inserted"], done["deleted"]) == (0, 1)
    assert stream.difference() == []


def test_group_with_null_key_goes_with_its_last_row(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) VALUES (1, NULL, 5), (2, 1, 7)")
    stream = workspace.stream("st", "SELECT grp, count(*) AS n FROM item GROUP BY grp")
    workspace.execute("DELETE FROM item WHERE id = 1")
    assert stream.refresh()["deleted"] == 1
    assert workspace.connection.execute("SELECT grp, n FROM st").fetchall() == [(1, 1)]


def test_sum_is_null_when_all_inputs_that_are_not_null_go(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) VALUES (1, 1, 5), (2, 1, NULL)")
    stream = workspace.stream("st", "SELECT grp, sum(val) AS s, avg(val) AS a, max(val) AS m FROM item GROUP BY grp")
    workspace.execute("DELETE FROM item WHERE id = 1")
    stream.refresh()
    assert workspace.connection.execute("SELECT grp, s, a, m FROM st").fetchall() == [(1, None, None, None)]


def test_aggregate_without_group_by_keeps_its_row_on_an_empty_table(workspace: Workspace) -> None:
    stream = workspace.stream("st", "SELECT count(*) AS n, sum(val) AS s FROM item")
    rows = "SELECT n, s FROM st"
    assert workspace.connection.execute(rows).fetchall() == [(0, None)]
    workspace.execute("INSERT INTO item (id, val) VALUES (1, 5)")
    stream.refresh()
    assert workspace.connection.execute(rows).fetchall() == [(1, 5)]
    workspace.execute("DELETE FROM item")
    stream.refresh()
    assert workspace.connection.execute(rows).fetchall() == [(0, None)]


def test_values_that_only_look_different_are_updated(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item (id, free) VALUES (1, 1.0)",
        """INSERT INTO "Select" ("from", person) VALUES (1, 'bob')""",
        "INSERT INTO tag VALUES (1, '{}', 1)",
    )
    queries = [
        "SELECT id, free FROM item",
        'SELECT * FROM "Select"',
        "SELECT note FROM tag",
        "SELECT sum(free) FROM item",
    ]
    streams = [workspace.stream(f"st{i}", query) for i, query in enumerate(queries)]
    workspace.execute(
        "UPDATE item SET free = 1.00", """UPDATE "Select" SET person = 'Bob'""", "UPDATE tag SET note = '{ }'"
    )
    for stream in streams:
        done = stream.refresh()
        assert done["updated"] + done["inserted"] == 1
        assert stream.difference() == []


def test_scale_of_a_sum_shrinks_with_its_inputs(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, free) VALUES (1, 1.5), (2, 1.25000)")
    stream = workspace.stream("st", "SELECT sum(free) AS s, avg(free) AS a FROM item")
    workspace.execute("DELETE FROM item WHERE id = 2")
    stream.refresh()
    assert workspace.connection.execute("SELECT s::text FROM st").fetchall() == [("1.5",)]
    assert stream.difference() == []
    assert stream.compiled.strategy["sum(free)"] == "algebraic: sum, count and display scales"


def test_rows_that_stay_are_not_touched(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) SELECT i, i % 5, i FROM generate_series(1, 50) i")
    for i, query in enumerate(
        ["SELECT id, val FROM item", "SELECT val FROM item", "SELECT grp, max(val) FROM item GROUP BY grp"]
    ):
        stream = workspace.stream(f"st{i}", query)
        before = stream.tuples()
        workspace.execute("UPDATE item SET label = 'x'", "UPDATE item SET val = val + 1 WHERE id = 50")
        stream.refresh()
        after = stream.tuples()
        assert len(before.items() - after.items()) == 1
        assert stream.full()["updated"] == 0


def test_changes_of_a_transaction_that_stays_open_are_not_lost(workspace: Workspace, other: Connection) -> None:
    stream = workspace.stream("st", "SELECT grp, count(*) AS n FROM item GROUP BY grp")
    with other.transaction():
        other.execute("INSERT INTO item (id, grp) VALUES (1, 1)")
        workspace.execute("INSERT INTO item (id, grp) VALUES (2, 1)")
        stream.refresh()
        assert stream.difference() == []
        with pytest.raises(psycopg.errors.DivisionByZero), other.transaction():
            other.execute("INSERT INTO item (id, grp) VALUES (3, 1)")
            other.execute("SELECT 1 / 0")
        other.execute("INSERT INTO item (id, grp) VALUES (4, 1)")
        workspace.execute("DELETE FROM item WHERE id = 2")
        stream.refresh()
        assert stream.difference() == []
    stream.refresh()
    assert stream.difference() == []
    assert workspace.connection.execute("SELECT grp, n FROM st").fetchall() == [(1, 2)]


def test_refreshes_inside_a_transaction_count_its_own_changes_once(workspace: Workspace) -> None:
    stream = workspace.stream("st", "SELECT grp, count(*) AS n, sum(val) AS s FROM item GROUP BY grp")
    bag = workspace.stream("bag", "SELECT i.val, t.rank FROM item i JOIN tag t USING (grp)")
    with workspace.connection.transaction():
        workspace.execute("INSERT INTO item (id, grp, val) VALUES (1, 1, 1)", "INSERT INTO tag VALUES (1, NULL, 1)")
        stream.refresh(), bag.refresh()
        workspace.execute("INSERT INTO item (id, grp, val) VALUES (2, 1, 2)")
        stream.refresh(), bag.refresh()
        assert stream.difference() == [] and bag.difference() == []
        workspace.execute("UPDATE item SET val = 5", "INSERT INTO tag VALUES (1, NULL, 2)")
    stream.refresh(), bag.refresh()
    assert stream.difference() == [] and bag.difference() == []
    stream.refresh(), bag.refresh()
    assert stream.difference() == [] and bag.difference() == []


def test_population_sees_the_changes_its_transaction_has_made(workspace: Workspace) -> None:
    stream = workspace.stream("st", "SELECT grp, count(*) AS n FROM item GROUP BY grp")
    with workspace.connection.transaction():
        workspace.execute("INSERT INTO item (id, grp, val) VALUES (1, 1, 1)")
        stream.reset()
        workspace.execute("INSERT INTO item (id, grp, val) VALUES (2, 1, 1)")
    stream.refresh()
    assert workspace.connection.execute("SELECT grp, n FROM st").fetchall() == [(1, 2)]


def test_full_refresh_after_changes_writes_only_differences(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) SELECT i, i % 5, i FROM generate_series(1, 50) i")
    keyed = workspace.stream("keyed", "SELECT id, val FROM item")
    bag = workspace.stream("bag", "SELECT val FROM item")
    workspace.execute("UPDATE item SET val = 0 WHERE id = 1", "DELETE FROM item WHERE id = 2")
    done = keyed.full()
    assert (done["inserted"], done["updated"], done["deleted"]) == (0, 1, 1)
    done = bag.full()
    assert (done["inserted"], done["updated"], done["deleted"]) == (1, 0, 2)
    assert keyed.difference() == bag.difference() == []


def test_storage_that_lost_a_row_is_reported(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val) VALUES (1, 1)", "INSERT INTO tag VALUES (1)")
    streams = [workspace.stream("keyed", "SELECT id, val FROM item"), workspace.stream("bag", "SELECT grp FROM tag")]
    workspace.execute("DELETE FROM keyed", "DELETE FROM bag", "DELETE FROM item", "DELETE FROM tag")
    for stream in streams:
        with pytest.raises(AssertionError):
            stream.refresh()


def test_salts_give_other_row_ids(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp) SELECT i, i % 3 FROM generate_series(1, 9) i")
    for i, query in enumerate(["SELECT id FROM item", "SELECT grp FROM item", "SELECT DISTINCT grp FROM item"]):
        stream = workspace.stream(f"st{i}", query)
        before = stream.tuples().keys()
        stream.frontier["salt"] = 1
        stream.full()
        assert stream.difference() == []
        assert not before & stream.tuples().keys()


def test_large_bigints_and_timestamps_do_not_collide(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item (id, wide) SELECT i, i::bigint << 32 | i FROM generate_series(1, 2000) i",
        "INSERT INTO cell SELECT i, 0, 0, to_timestamp(i * 4294.967296 * 1000) FROM generate_series(1, 1000) i",
    )
    for i, query in enumerate(["SELECT wide FROM item", "SELECT DISTINCT wide FROM item", "SELECT at FROM cell"]):
        assert workspace.stream(f"st{i}", query).difference() == []


def test_what_is_pending_for_a_frontier(workspace: Workspace) -> None:
    """Transactions around the snapshot's bounds and among those it saw running, and the frontier's own."""
    frontiers = [
        {"snapshot": snapshot, "xid": own, "change_id": 5}
        for snapshot in ("100:100:", "100:104:100,102", "100:110:100,101,105")
        for own in (None, "100", "102", "107", "120")
    ]
    for frontier in frontiers:
        rows = workspace.connection.execute(
            'SELECT c."__pgt_xid"::text::bigint, c."__pgt_change_id",'
            f' {PENDING[0]} FROM (SELECT x::text::xid8 AS "__pgt_xid", n::bigint AS "__pgt_change_id"'
            " FROM generate_series(97, 122) AS x, generate_series(4, 6) AS n) AS c",
            [Jsonb(frontier)],
        ).fetchall()
        seen = Frontier.parse(frontier)
        for xid, number, pending in rows:
            known = number <= 5 if xid == seen.xid else seen.snapshot.sees(xid)
            assert pending is not known, (frontier, xid, number)


def test_truncation_is_noticed_when_it_is_pending(workspace: Workspace) -> None:
    item = next(source.oid for source in workspace.sources if source.name == "item")
    stream = workspace.stream("st", "SELECT grp, count(*) AS n FROM item GROUP BY grp")
    truncated = (
        f'INSERT INTO pgtrickle_changes.changes_{item} ("__pgt_change_id", "__pgt_w")'
        " VALUES (nextval('pgtrickle_changes.change_id_seq'), 0)"
    )
    statement = stream.compiled.refresh_sql(stream.storage, frozenset({item}))

    def overlooked() -> bool:
        with workspace.connection.transaction(force_rollback=True):
            return bool(one(workspace.connection, statement, Jsonb(stream.frontier))["overlooked"])

    workspace.execute("INSERT INTO item (id, grp) VALUES (1, 1)")
    assert not overlooked()
    workspace.execute(truncated)
    assert overlooked()
    stream.reset()
    assert not overlooked()
    with workspace.connection.transaction():
        workspace.execute(truncated)
        stream.reset()
        assert not overlooked()
        workspace.execute(truncated)
        assert overlooked()
