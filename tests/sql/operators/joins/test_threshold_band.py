"""Comparisons with one row: the rows near it are handed on, and the next refresh looks at these alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from sql.operators.joins import threshold_band
from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, one
from tests.sql.random_changes import BEFORE, FORGETTING, examples, follow_forgetting

FEW = 2
"""So many rows on either side a band has in the random tests: few enough for a value to leave it."""

TWO = "FROM item i JOIN cell c ON c.x = i.grp"
QUERIES = {
    "above": "SELECT id, amount FROM item WHERE amount > (SELECT avg(amount) FROM item)",
    "not below": "SELECT id, val FROM item WHERE val >= (SELECT avg(val) FROM item WHERE grp > 0)",
    "below": "SELECT id, free FROM item WHERE free < (SELECT sum(free) * 0.25 FROM item)",
    "not above": "SELECT id, label FROM item WHERE wide <= (SELECT max(wide) FROM item WHERE val < 3)",
    "the other way round": "SELECT id FROM item WHERE (SELECT min(rank) FROM tag) < val",
    "of another table": "SELECT id, grp FROM item WHERE grp + val > (SELECT count(*) FROM tag)",
    "none is larger": "SELECT id FROM item WHERE NOT EXISTS (SELECT FROM (SELECT avg(rank) AS a FROM tag) g"
    " WHERE g.a > val)",
    "groups": "SELECT grp, val, sum(amount) AS s FROM item GROUP BY grp, val"
    " HAVING sum(amount) > (SELECT avg(amount) FROM item)",
    "groups by key": "SELECT x, y, count(*) AS n FROM cell JOIN tag ON rank > x GROUP BY x, y"
    " HAVING count(*) > (SELECT avg(rank) FROM tag)",
    "of a join": f"SELECT i.id, c.x, c.y {TWO} WHERE i.amount > (SELECT avg(amount) {TWO})",
    "added up": "SELECT label, count(*) AS n, sum(amount) AS s FROM item"
    " WHERE amount < (SELECT avg(free) FROM item) AND NOT EXISTS (SELECT FROM tag t WHERE t.grp = item.grp)"
    " GROUP BY label",
    "with a match": "SELECT id FROM item WHERE val < (SELECT avg(rank) FROM tag)"
    ' AND EXISTS (SELECT FROM tag WHERE tag.grp = item.grp) AND label NOT IN (SELECT person FROM "Select")',
    "between two": "SELECT id FROM item WHERE val < (SELECT avg(rank) FROM tag) AND val > (SELECT min(val) FROM item)",
    "within another": "SELECT t.grp, t.rank FROM tag t WHERE t.rank NOT IN (SELECT val FROM item"
    " WHERE val >= (SELECT avg(val) FROM item))",
    "above a selection": "SELECT id FROM item WHERE val > (SELECT avg(val) FROM item"
    " WHERE val < (SELECT avg(rank) FROM tag))",
    "the first": "SELECT id, val FROM item WHERE val > (SELECT avg(rank) FROM tag) ORDER BY val, id LIMIT 3",
}
WITHOUT = {
    "no key": "SELECT grp, rank FROM tag WHERE rank > (SELECT avg(rank) FROM tag)",
    "on both sides": "SELECT id FROM item WHERE val > (SELECT avg(rank) FROM tag) + grp",
    "not equal": "SELECT id FROM item WHERE val <> (SELECT max(rank) FROM tag)",
    "no exact sum": "SELECT x, y FROM cell WHERE v > (SELECT avg(v) FROM cell)",
    "no key that travels": "SELECT amount, sum(val) AS s FROM item GROUP BY amount"
    " HAVING sum(val) > (SELECT avg(val) FROM item)",
}


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> Iterator[dict[str, StreamTable]]:
    """A stream table for every query, with bands of few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threshold_band, "MOST", FEW)
        every = QUERIES | WITHOUT
        yield {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(every.items())}


def bands(stream: StreamTable) -> list[str]:
    """The comparisons of a query that hand a band on."""
    root, known = stream.compiled.root, stream.compiled.remembered
    assert root is not None
    return [each.describe() for each in root.walk() if each.node in known and each.describe().endswith("-join")]


def test_which_comparisons_hand_a_band_on(streams: dict[str, StreamTable]) -> None:
    assert [name for name in QUERIES if not bands(streams[name])] == []
    assert [name for name in WITHOUT if bands(streams[name])] == []


@examples(12)
@given(
    before=BEFORE,
    batches=FORGETTING,
)
def test_stream_tables_equal_their_queries_with_and_without_a_band(
    shared_workspace: Workspace,
    streams: dict[str, StreamTable],
    before: list[str],
    batches: list[tuple[list[str], bool]],
) -> None:
    follow_forgetting(shared_workspace, streams, before, batches)


@pytest.fixture
def thousands(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A table of 3000 rows, and statistics of it."""
    monkeypatch.setattr(threshold_band, "MOST", 500)
    workspace.execute("INSERT INTO item (id, grp, val) SELECT i, i % 1500, i FROM generate_series(1, 3000) i")
    workspace.execute("ANALYZE item")
    return workspace


def test_rows_far_from_the_average_are_not_read(thousands: Workspace) -> None:
    stream = thousands.stream("st", "SELECT id, val FROM item WHERE val > (SELECT avg(val) FROM item)")
    for change in (
        "UPDATE item SET val = 0 WHERE id = 1",
        "UPDATE item SET val = val - 9000 WHERE id IN (7, 2999)",
    ):
        thousands.execute(change)
        read = "SELECT seq_scan + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'item'"
        with thousands.connection.transaction():
            before = one(thousands.connection, read)
            stream.refresh()
            rows = one(thousands.connection, read) - before
        assert stream.difference() == []
    assert stream.usual
    assert rows < 10


def test_an_average_that_leaves_the_band_has_another_one(thousands: Workspace) -> None:
    stream = thousands.stream("st", "SELECT id, val FROM item WHERE val > (SELECT avg(val) FROM item)")
    usual = []
    for add in (1, 2, 3_000_000, 3, -3_000_000, -2):
        thousands.execute(f"UPDATE item SET val = val + {add} WHERE id = 3000")
        stream.refresh()
        usual.append(stream.usual)
        assert stream.difference() == []
    assert usual == [False, True, False, True, False, True]


def test_groups_are_found_by_their_sums(thousands: Workspace) -> None:
    stream = thousands.stream(
        "st",
        "SELECT i.id, count(*) AS n, sum(j.val) AS s FROM item i JOIN item j ON j.grp = i.grp GROUP BY i.id"
        " HAVING sum(j.val) > (SELECT avg(val) * 2 FROM item)",
    )
    for change in ("val = val + 40 WHERE id < 4", "val = val - 9 WHERE id % 1000 = 5", "val = 3 WHERE id = 2250"):
        thousands.execute(f"UPDATE item SET {change}")
        stream.refresh()
        assert stream.difference() == []
    assert stream.usual


def test_equal_values_at_the_end_of_a_band(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold_band, "MOST", FEW)
    values = "(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3), (9, 3)"
    workspace.execute(f"INSERT INTO item (id, val) VALUES {values}", "INSERT INTO tag (rank) VALUES (2)")
    stream = workspace.stream("st", "SELECT id FROM item WHERE val >= (SELECT max(rank) FROM tag)")
    for rank in (3, 1, 2, 4, 0, 2):
        workspace.execute(f"UPDATE tag SET rank = {rank}")
        stream.refresh()
        assert stream.difference() == []


def test_a_band_that_has_become_too_large_is_given_up(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold_band, "MOST", FEW)
    workspace.execute("INSERT INTO item (id, val) VALUES (1, 10), (2, 90)", "INSERT INTO tag (rank) VALUES (50)")
    stream = workspace.stream("st", "SELECT id FROM item WHERE val > (SELECT sum(rank) FROM tag)")
    usual = []
    for change in (
        "UPDATE tag SET rank = 51",
        "INSERT INTO item (id, val) SELECT i, i FROM generate_series(45, 55) i",
        "UPDATE tag SET rank = 47",
        "UPDATE tag SET rank = 48",
    ):
        workspace.execute(change)
        stream.refresh()
        usual.append(stream.usual)
        assert stream.difference() == []
    assert usual == [False, True, False, True]


def test_no_bound_is_in_no_band(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val) VALUES (1, 10), (2, NULL), (3, 90)", "INSERT INTO tag VALUES (1)")
    stream = workspace.stream("st", "SELECT id FROM item WHERE val > (SELECT sum(rank) FROM tag)")
    for rank in ("50", "NULL", "5", "60", "NULL"):
        workspace.execute(f"UPDATE tag SET rank = {rank}")
        stream.refresh()
        assert stream.difference() == []
    workspace.execute("INSERT INTO item (id, val) VALUES (4, 70)")
    stream.refresh()
    assert stream.usual
    assert stream.difference() == []
