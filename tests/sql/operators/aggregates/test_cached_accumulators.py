"""What aggregates inside a query are made of is handed on: the next refresh adds the changes up, and reads no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sql.operators.aggregates import cached_accumulators
from tests.sql.conftest import Workspace
from tests.sql.harness import Connection, StreamTable, one
from tests.sql.random_changes import FORGETTING, examples, follow_forgetting, statements

AVERAGE = "SELECT id, amount FROM item WHERE amount > (SELECT avg(amount) FROM item)"
BEST = "SELECT grp, s FROM (SELECT grp, sum(amount) AS s FROM item GROUP BY grp) g"
QUERIES = {
    "average": AVERAGE,
    "several": "SELECT t.grp, t.rank, (SELECT count(*) FROM item) AS n, (SELECT sum(free) FROM item) AS s FROM tag t",
    "extremum": "SELECT id FROM item WHERE val >= (SELECT max(val) FROM item WHERE grp > 0)",
    "no rows": "SELECT t.rank, (SELECT sum(val) FROM item WHERE val > 5) AS s FROM tag t",
    "largest sum": f"{BEST} WHERE s = (SELECT max(s) FROM ({BEST}) h)",
    "largest count": "SELECT t.rank, m.n FROM tag t"
    " CROSS JOIN (SELECT max(n) AS n FROM (SELECT grp, val, count(*) AS n FROM item GROUP BY grp, val) g) m",
    "spread": "SELECT t.rank FROM tag t WHERE t.rank > (SELECT stddev(val) FROM item)",
    "over groups": "SELECT grp, sum(amount) AS s FROM item GROUP BY grp"
    " HAVING sum(amount) > (SELECT sum(amount) * 0.3 FROM item)",
    "none": "SELECT t.grp, t.rank FROM tag t WHERE NOT EXISTS (SELECT FROM (SELECT avg(val) AS a, count(*) AS n"
    " FROM item) g WHERE g.a > t.rank OR g.n < t.grp)",
    "some": "SELECT i.id, i.amount FROM item i WHERE EXISTS (SELECT FROM (SELECT max(rank) AS m, sum(grp) AS s"
    " FROM tag) g WHERE g.m IS NULL OR g.m <> i.val AND g.s > i.amount)",
    "of the smaller": "SELECT grp, count(*) AS n FROM item WHERE val < (SELECT avg(rank) FROM tag) GROUP BY grp",
    "of a join": "SELECT t.rank FROM tag t"
    " WHERE t.rank < (SELECT bit_xor(i.val) FROM item i JOIN tag u ON u.grp = i.grp)",
}


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


def test_all_of_them_remember_something(streams: dict[str, StreamTable]) -> None:
    assert [name for name, stream in streams.items() if not stream.compiled.remembered] == []


@examples(15)
@given(
    before=st.lists(statements(), min_size=3, max_size=8),
    batches=FORGETTING,
)
def test_stream_tables_equal_their_queries_with_and_without_memory(
    shared_workspace: Workspace,
    streams: dict[str, StreamTable],
    before: list[str],
    batches: list[tuple[list[str], bool]],
) -> None:
    follow_forgetting(shared_workspace, streams, before, batches)


def reads(connection: Connection, stream: StreamTable, table: str) -> bool:
    """Whether the next refresh scans a table."""
    seen = "SELECT seq_scan + coalesce(idx_scan, 0) FROM pg_stat_xact_user_tables WHERE relname = $1"
    with connection.transaction(force_rollback=True):
        kept = stream.frontier, stream.memory
        scans = one(connection, seen, table)
        stream.refresh()
        stream.frontier, stream.memory = kept
        return bool(one(connection, seen, table) > scans)


def test_the_second_refresh_does_not_read_the_table_again(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item (id, val) SELECT i, i % 7 FROM generate_series(1, 50) i",
        "INSERT INTO tag (rank) VALUES (1), (5)",
    )
    stream = workspace.stream("st", "SELECT t.rank FROM tag t WHERE t.rank > (SELECT avg(val) FROM item)")
    workspace.execute("UPDATE item SET val = 3 WHERE id = 1")
    assert reads(workspace.connection, stream, "item")
    stream.refresh()
    assert not stream.usual
    workspace.execute("UPDATE item SET val = 60 WHERE id < 10")
    assert not reads(workspace.connection, stream, "item")
    stream.refresh()
    assert stream.usual
    assert stream.difference() == []
    total = one(workspace.connection, "SELECT sum(val)::text FROM item")
    assert list(stream.memory.values()) == [["{50}", "{50}", f"{{{total}}}"]]


def test_changes_of_other_tables_leave_the_memory_as_it_is(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val) VALUES (1, 2), (2, 4)", "INSERT INTO tag (rank) VALUES (1), (5)")
    stream = workspace.stream("st", QUERIES["several"].replace("free", "val"))
    workspace.execute("DELETE FROM item WHERE id = 1")
    stream.refresh()
    kept = dict(stream.memory)
    workspace.execute("INSERT INTO tag (rank) VALUES (7)")
    stream.refresh()
    assert stream.usual
    assert stream.memory == kept
    assert stream.difference() == []


def test_a_maximum_that_goes_is_looked_for_again(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) SELECT i, 1, i FROM generate_series(1, 9) i")
    stream = workspace.stream("st", QUERIES["extremum"])
    workspace.execute("DELETE FROM item WHERE id = 9")
    stream.refresh()
    workspace.execute("DELETE FROM item WHERE id = 8")
    stream.refresh()
    assert stream.usual
    assert stream.difference() == []
    assert workspace.connection.execute(f"SELECT id FROM {stream.storage}").fetchall() == [(7,)]


def test_nothing_is_added_to_nan(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, amount) VALUES (1, 1.5), (2, 2.5), (3, 7)")
    stream = workspace.stream("st", AVERAGE)
    for statement, usual in (
        ("UPDATE item SET amount = 3 WHERE id = 1", False),  # nothing is remembered yet
        ("UPDATE item SET amount = 'NaN' WHERE id = 2", False),
        ("UPDATE item SET amount = 4 WHERE id = 2", False),
        ("UPDATE item SET amount = 5 WHERE id = 2", True),
    ):
        workspace.execute(statement)
        stream.refresh()
        assert stream.usual == usual, statement
        assert stream.difference() == []


def test_more_groups_than_are_remembered(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_accumulators, "MOST", 2)
    workspace.execute("INSERT INTO item (id, grp, amount) VALUES (1, 1, 1.5), (2, 2, 2.5), (3, 3, 7)")
    stream = workspace.stream("st", QUERIES["largest sum"])
    for statement in ("UPDATE item SET amount = 8 WHERE id = 1", "DELETE FROM item WHERE id = 1"):
        workspace.execute(statement)
        stream.refresh()
        assert not stream.usual
        assert stream.difference() == []
    workspace.execute("UPDATE item SET amount = 9 WHERE id = 2")
    stream.refresh()
    assert stream.usual
    assert stream.difference() == []


def test_without_nan_a_usual_statement_has_no_rescan(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, amount) VALUES (1, 1, 1.5), (2, 1, 2.5)")
    stream = workspace.stream("st", "SELECT grp, sum(amount) AS s FROM item GROUP BY grp")
    workspace.execute("UPDATE item SET amount = 4 WHERE id = 2")
    assert stream.refresh()["unusual"] is False
    assert stream.usual
    workspace.execute("UPDATE item SET amount = 'NaN' WHERE id = 2")
    assert stream.refresh()["unusual"] is True
    assert not stream.usual
    assert stream.difference() == []
