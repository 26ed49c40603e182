"""Tables for subqueries: an outer one with a key, one without any and full of NULLs and duplicates, a third."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from server.postgres.cluster import EmbeddedPostgres

from .conftest import Workspace, open_workspace
from .harness import StreamTable

TABLES = """
CREATE TABLE o (id int PRIMARY KEY, k int, v int, n numeric, l text);
CREATE TABLE t (k int, v int, n numeric);
CREATE TABLE u (id int PRIMARY KEY, k int NOT NULL, v int, l text);
"""

_SMALL = ["NULL", "0", "1", "1", "2", "3"]
_COLUMNS = {
    "o": [list(map(str, range(9))), _SMALL, _SMALL, ["NULL", "1", "1.0", "2.50"], ["NULL", "'a'", "'b'"]],
    "t": [_SMALL, _SMALL, ["NULL", "1", "1.00", "2.5"]],
    "u": [list(map(str, range(7))), _SMALL[1:], _SMALL, ["NULL", "'a'"]],
}
START = (
    "TRUNCATE o, t, u",
    "INSERT INTO o VALUES (0, 1, 1, 1, 'a'), (1, 1, 2, 1.0, 'b'), (2, NULL, 3, NULL, 'a'), (3, 2, NULL, 2.50, NULL)",
    "INSERT INTO t VALUES (1, 1, 1), (1, 1, 1), (1, 2, 1.00), (2, NULL, 2.5), (NULL, 2, NULL), (3, 0, 1)",
    "INSERT INTO u VALUES (0, 1, 1, 'a'), (1, 1, NULL, NULL), (2, 2, 3, 'a'), (3, 0, 2, 'a')",
)


def open_outer(cluster: EmbeddedPostgres, kind: str) -> Iterator[Workspace]:
    """A fresh database with the tables."""
    yield from open_workspace(cluster, kind, TABLES, ("o", "t", "u"))


@st.composite
def statements(draw: st.DrawFn) -> str:
    """An INSERT, UPDATE or DELETE."""
    table = draw(st.sampled_from("ootttu"))
    kind = draw(st.sampled_from(["insert", "insert", "update", "delete"]))
    if kind == "insert":
        row = st.tuples(*map(st.sampled_from, _COLUMNS[table]))
        rows = draw(st.lists(row, min_size=1, max_size=3))
        values = ", ".join(f"({', '.join(r)})" for r in rows)
        return f"INSERT INTO {table} VALUES {values} ON CONFLICT DO NOTHING"
    column = draw(st.sampled_from("kv"))
    value = draw(st.sampled_from(_SMALL))
    condition = f"{column} IS NULL" if value == "NULL" else f"{column} = {value}"
    if kind == "delete":
        return f"DELETE FROM {table} WHERE {condition}"
    target = draw(st.sampled_from("kv"))
    new = draw(st.sampled_from(_SMALL[1:] if (table, target) == ("u", "k") else _SMALL))
    return f"UPDATE {table} SET {target} = {new} WHERE {condition}"


BATCHES = (
    (
        "INSERT INTO o VALUES (4, 1, 2, 2.5, 'a'), (5, NULL, 0, NULL, NULL)",
        "INSERT INTO t VALUES (2, 3, 1.0), (1, 0, 1)",
    ),
    ("DELETE FROM t WHERE k = 1 AND v = 1", "UPDATE o SET k = 2 WHERE id = 0", "UPDATE u SET v = 2 WHERE id = 1"),
    ("UPDATE t SET k = NULL WHERE k = 2", "INSERT INTO o VALUES (6, 3, 1, 1, 'b')", "DELETE FROM u WHERE k = 2"),
    ("DELETE FROM t WHERE k IS NULL OR v IS NULL", "UPDATE o SET v = 0 WHERE v = 2"),
    ("DELETE FROM t", "INSERT INTO u VALUES (5, 1, 2, NULL), (6, 2, 0, 'a')"),
    ("INSERT INTO t VALUES (1, 1, 1), (1, 1, 1), (NULL, NULL, NULL)", "DELETE FROM o WHERE id < 2", "DELETE FROM u"),
)
"""Changes on all sides at once: what is equal goes and comes, NULLs come and go, a table becomes empty."""


def follow(workspace: Workspace, streams: dict[str, StreamTable], batches: Sequence[Sequence[str]] = BATCHES) -> None:
    """From the start, apply the changes batch by batch; after each refresh every stream table equals its query."""
    workspace.execute(*START)
    for stream in streams.values():
        stream.reset()
    for batch in batches:
        workspace.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference() == [], (name, batch)
    for name, stream in streams.items():
        done = stream.full()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0), name
