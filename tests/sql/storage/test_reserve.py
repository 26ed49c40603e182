"""The first rows of a query: those that follow are handed on, and move up where one of the first ones goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from sql.storage import reserve
from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, one
from tests.sql.random_changes import BEFORE, FORGETTING, examples, follow_forgetting

FEW = 2
"""So many rows a reserve has in the random tests: few enough to be used up, and for rows to leave it."""
NARROW = 5
"""So many bytes of text at most: fewer than two rows may have."""

QUERIES = {
    "by a value with NULL": "SELECT id, val FROM item ORDER BY val DESC, id LIMIT 3",
    "NULLs first": "SELECT id, val, wide FROM item ORDER BY val NULLS FIRST, id DESC LIMIT 2",
    "rows that tie in all": "SELECT val, amount FROM item ORDER BY val, amount LIMIT 3",
    "numbers that look different": "SELECT free, val, id FROM item ORDER BY free, id LIMIT 2",
    "not a number first": "SELECT free, amount, id FROM item ORDER BY free DESC, id LIMIT 2",
    "floating point": "SELECT v, at, x, y FROM cell ORDER BY v DESC, x, y LIMIT 2",
    "moments": "SELECT at, at::timestamp AS local, at::date AS day, x + y AS s FROM cell WHERE at < 'infinity'"
    " ORDER BY at DESC NULLS LAST, 4 LIMIT 1",
    "texts": "SELECT label, id FROM item ORDER BY label DESC, id LIMIT 2",
    "texts by another collation": """SELECT label COLLATE "C" AS l, label::varchar(3) AS v, label::char(4) AS c, id
        FROM item ORDER BY 1, id LIMIT 2""",
    "without a key": "SELECT grp, rank FROM tag ORDER BY rank DESC, grp LIMIT 3",
    "the same row many times": "SELECT val FROM item ORDER BY val LIMIT 4",
    "groups": "SELECT grp, sum(val) AS s FROM item GROUP BY grp ORDER BY sum(val) DESC NULLS LAST, grp LIMIT 2",
    "counted groups": "SELECT id / 2 AS h, count(*) AS n FROM item GROUP BY id / 2 ORDER BY count(*) DESC, 1 LIMIT 1",
    "groups of a join": "SELECT i.id, count(*) AS n FROM item i JOIN tag t USING (grp) GROUP BY i.id"
    " ORDER BY count(*) DESC, id LIMIT 2",
    "a join": "SELECT i.id, t.rank, i.label FROM item i JOIN tag t USING (grp) ORDER BY t.rank DESC, i.id LIMIT 3",
    "a union": "SELECT grp, rank FROM tag UNION ALL SELECT id, val FROM item ORDER BY 2, 1 LIMIT 3",
    "smallest of others": "SELECT i.id, i.amount FROM item i WHERE i.amount = (SELECT min(j.amount) FROM item j"
    " WHERE j.grp = i.grp) ORDER BY amount, id LIMIT 1",
    "beside a threshold": "SELECT id, val FROM item WHERE val > (SELECT avg(rank) FROM tag) ORDER BY val, id LIMIT 2",
}
WITHOUT = {
    "with ties": "SELECT id, val FROM item ORDER BY val FETCH FIRST 2 ROWS WITH TIES",
    "a page": "SELECT id, val FROM item ORDER BY val, id LIMIT 2 OFFSET 1",
    "a type that a text does not give back": "SELECT grp, note FROM tag ORDER BY grp, rank LIMIT 2",
    "citext": 'SELECT "from", person FROM "Select" ORDER BY 1 LIMIT 2',
    "very many": "SELECT id, val FROM item ORDER BY val, id LIMIT 1000001",
}


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> Iterator[dict[str, StreamTable]]:
    """A stream table for every query, with small reserves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserve, "MOST", FEW)
        patch.setattr(reserve, "BYTES", NARROW)
        every = QUERIES | WITHOUT
        yield {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(every.items())}


def has_reserve(stream: StreamTable) -> bool:
    """Whether a query's first rows have a reserve."""
    assert stream.compiled.root is not None
    return stream.compiled.root.node in stream.compiled.remembered


def test_which_queries_have_a_reserve(streams: dict[str, StreamTable]) -> None:
    assert [name for name in QUERIES if not has_reserve(streams[name])] == []
    assert [name for name in WITHOUT if has_reserve(streams[name])] == []


@examples(20)
@given(before=BEFORE, batches=FORGETTING)
def test_stream_tables_equal_their_queries_with_and_without_a_reserve(
    shared_workspace: Workspace,
    streams: dict[str, StreamTable],
    before: list[str],
    batches: list[tuple[list[str], bool]],
) -> None:
    follow_forgetting(shared_workspace, streams, before, batches)


def handed_on(stream: StreamTable) -> int:
    """How many rows the last refresh has handed on."""
    (packed,) = stream.memory.values()
    return packed[1].count(",") + 1 if packed[1] else 0


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserves of the usual size."""
    monkeypatch.setattr(reserve, "MOST", 500)
    monkeypatch.setattr(reserve, "BYTES", 100_000)


@pytest.fixture
def thousands(workspace: Workspace, large: None) -> Workspace:
    """A table of 3000 rows, and statistics of it."""
    workspace.execute(
        "INSERT INTO item (id, grp, val, label) SELECT i, i % 700, i, 'l' || i FROM generate_series(1, 3000) i",
        "ANALYZE item",
    )
    return workspace


def refreshed(workspace: Workspace, stream: StreamTable, change: str, source: str = "item") -> int:
    """How many rows of the source a refresh after a change reads."""
    workspace.execute(change)
    read = f"SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = '{source}'"
    with workspace.connection.transaction():
        before = one(workspace.connection, read)
        stream.refresh()
        rows = one(workspace.connection, read) - before
    assert stream.difference() == []
    return int(rows)


def test_rows_move_up_without_being_read(thousands: Workspace) -> None:
    stream = thousands.stream("st", "SELECT id, val, label FROM item ORDER BY val DESC LIMIT 3")
    refreshed(thousands, stream, "DELETE FROM item WHERE id = 3000")  # has no reserve yet
    changes = (
        "DELETE FROM item WHERE id = 2999",
        "DELETE FROM item WHERE val BETWEEN 2990 AND 2998",
        "UPDATE item SET val = -1 WHERE id = 2989",
        "UPDATE item SET label = 'another' WHERE id IN (2988, 2980)",
        "INSERT INTO item (id, val) VALUES (4000, 2980), (4001, 4001)",
        "DELETE FROM item WHERE val BETWEEN 2970 AND 5000",
    )
    for change in changes:
        assert refreshed(thousands, stream, change) == 0
        assert stream.usual


def test_a_reserve_that_is_used_up_is_read_again(thousands: Workspace) -> None:
    stream = thousands.stream("st", "SELECT id, val FROM item ORDER BY val DESC LIMIT 10")
    usual = []
    for low in (3000, 2990, 2600, 2500, 2450):
        refreshed(thousands, stream, f"DELETE FROM item WHERE val BETWEEN {low} AND 3000")
        usual.append((stream.usual, handed_on(stream)))
    assert usual == [(False, 500), (True, 490), (True, 100), (True, 0), (False, 500)]


def test_where_all_rows_are_known_none_are_read(thousands: Workspace) -> None:
    thousands.execute("DELETE FROM item WHERE id > 400")
    stream = thousands.stream("st", "SELECT id, val FROM item ORDER BY val LIMIT 5")
    refreshed(thousands, stream, "DELETE FROM item WHERE id = 1")
    assert handed_on(stream) == 394
    for change in ("DELETE FROM item WHERE id < 398", "INSERT INTO item (id, val) VALUES (1, 900), (2, NULL), (3, 7)"):
        assert refreshed(thousands, stream, change) == 0
    assert handed_on(stream) == 1
    assert refreshed(thousands, stream, "DELETE FROM item") == 0
    assert refreshed(thousands, stream, "INSERT INTO item (id, val) SELECT i, i FROM generate_series(1, 7) i") == 0
    assert handed_on(stream) == 2


def test_as_many_rows_as_fit_are_not_taken_for_all(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "MOST", FEW)
    workspace.execute("INSERT INTO item (id, val) SELECT i, i FROM generate_series(1, 6) i")
    stream = workspace.stream("st", "SELECT id FROM item ORDER BY id LIMIT 3")
    for change in ("DELETE FROM item WHERE id = 1", "DELETE FROM item WHERE id = 2", "DELETE FROM item WHERE id = 3"):
        refreshed(workspace, stream, change)
    refreshed(workspace, stream, "INSERT INTO item (id) VALUES (1), (2), (3), (9)")
    for number in (1, 2, 3, 4, 5, 6):
        refreshed(workspace, stream, f"DELETE FROM item WHERE id = {number}")


def test_counted_groups_of_the_reserve_are_not_counted_again(thousands: Workspace) -> None:
    thousands.execute("INSERT INTO cell (x, y) SELECT i % 300, i FROM generate_series(1, 3000) i", "ANALYZE cell")
    stream = thousands.stream("st", "SELECT x, count(*) AS n FROM cell GROUP BY x ORDER BY count(*) DESC, x LIMIT 3")
    refreshed(thousands, stream, "DELETE FROM cell WHERE y = 300")
    for change in (
        "DELETE FROM cell WHERE y IN (1, 2, 3, 301, 602)",
        "INSERT INTO cell (x, y) VALUES (299, 5001), (299, 5002), (1, 5003)",
        "DELETE FROM cell WHERE x = 299",
        "INSERT INTO cell (x, y) VALUES (299, 1), (4000, 1)",
    ):
        assert refreshed(thousands, stream, change, "cell") <= 1  # where a join looks whether there is any row


def test_a_reserve_holds_only_so_much_text(workspace: Workspace, large: None) -> None:
    workspace.execute(
        "INSERT INTO item (id, label) SELECT i, repeat('x', 1000 * i) FROM generate_series(1, 20) i",
        "INSERT INTO item (id, label) VALUES (21, NULL)",
    )
    stream = workspace.stream("st", "SELECT id, label FROM item ORDER BY id LIMIT 2")
    refreshed(workspace, stream, "DELETE FROM item WHERE id = 2")
    assert handed_on(stream) == 11  # of 4 000 to 14 000 bytes; the third is stored
    for number in range(3, 22):
        refreshed(workspace, stream, f"DELETE FROM item WHERE id = {number}")


def test_equal_values_keep_what_they_look_like(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, free) VALUES (1, 0), (2, 1.0), (3, 1.00), (4, 1), (5, 'NaN'), (6, NULL)")
    stream = workspace.stream("st", "SELECT free, id FROM item ORDER BY free, id LIMIT 1")
    for number in (1, 2, 3, 4, 5, 6):
        refreshed(workspace, stream, f"DELETE FROM item WHERE id = {number}")


def test_a_row_with_a_stable_function_leaves_the_reserve(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val) SELECT i, i FROM generate_series(1, 9) i")
    stream = workspace.stream("st", "SELECT id, now() AS at FROM item ORDER BY id LIMIT 3")
    for number in (1, 5, 2, 3, 9):
        workspace.execute(f"DELETE FROM item WHERE id = {number}")
        stream.refresh()
        rows = workspace.connection.execute("SELECT id FROM st ORDER BY id").fetchall()
        assert rows == workspace.connection.execute("SELECT id FROM item ORDER BY id LIMIT 3").fetchall()
