"""After any changes and a differential refresh every stream table equals its query, down to what values look like."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .conftest import Workspace
from .harness import StreamTable
from .queries import LOOSE, QUERIES


def literal(value: object) -> str:
    """An SQL literal."""
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


SMALL = [None, 0, 1, 2, 3]
VALUES: dict[str, dict[str, list[object]]] = {
    "item": {
        "id": list(range(12)),
        "grp": SMALL,
        "val": SMALL,
        "amount": [None, "0.00", "1.50", "2.25", "NaN", "-1.50"],
        "free": [None, "1", "1.0", "1.00", "2.5", "0", "NaN", "Infinity", "-2.50", "1e-3"],
        "label": [None, "a", "A", "b", ""],
        "wide": [None, 0, 1, 2**62, -(2**62), 2**32],
    },
    "tag": {"grp": SMALL, "note": [None, '{"a": 1}', '{"a":1}', "[]", "[ ]"], "rank": SMALL},
    '"Select"': {'"from"': list(range(5)), '"a ""b"': [None, "a", "b"], "person": [None, "bob", "Bob", "eve"]},
    "cell": {
        "x": list(range(4)),
        "y": list(range(4)),
        "v": [None, 0, "-0", 1.5, 2.5, "NaN", -3],
        "at": [None, "2024-01-01 00:00Z", "2024-02-03 04:05:06.789Z", "infinity"],
    },
}
KEYS = {"id", '"from"', "x", "y"}


@st.composite
def statements(draw: st.DrawFn) -> str:
    """An INSERT, UPDATE or DELETE of one of the sources."""
    table = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[table]
    kind = draw(st.sampled_from(["insert", "insert", "update", "delete"]))
    if kind == "insert":
        row = st.tuples(*(st.sampled_from(column) for column in values.values()))
        rows = draw(st.lists(row, min_size=1, max_size=6))
        tuples = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
        return f"INSERT INTO {table} VALUES {tuples} ON CONFLICT DO NOTHING"
    column = draw(st.sampled_from(sorted(values)))
    value = draw(st.sampled_from(values[column]))
    condition = f"{column} IS NULL" if value is None else f"{column}::text = {literal(value)}::text"
    if kind == "update":
        target = draw(st.sampled_from([name for name in sorted(values) if name not in KEYS]))
        new = literal(draw(st.sampled_from(values[target])))
        everywhere = draw(st.booleans())
        return f"UPDATE {table} SET {target} = {new}" + ("" if everywhere else f" WHERE {condition}")
    return f"DELETE FROM {table} WHERE {condition}"


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    before=st.lists(statements(), min_size=4, max_size=10),
    batches=st.lists(st.lists(statements(), min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_stream_tables_equal_their_queries(
    shared_workspace: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    shared_workspace.execute('TRUNCATE item, tag, "Select", cell', *before)
    for stream in streams.values():
        stream.reset()
    for batch in batches:
        shared_workspace.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference(looks=name not in LOOSE) == [], name
    for name in streams.keys() - LOOSE:
        done = streams[name].full()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0), name


def test_no_changes_change_nothing(shared_workspace: Workspace, streams: dict[str, StreamTable]) -> None:
    for stream in streams.values():
        stream.reset()
        before = stream.tuples()
        done = stream.refresh()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0)
        assert stream.tuples() == before


def test_staged_rows_give_the_same_as_full(shared_workspace: Workspace, streams: dict[str, StreamTable]) -> None:
    shared_workspace.execute(
        "TRUNCATE item, tag",
        "INSERT INTO item SELECT i, nullif(i % 3, 0), i % 5, i, i / 4.0, 'l' || i % 2, i FROM generate_series(1, 20) i",
        "INSERT INTO tag SELECT i % 4, '{}', i % 3 FROM generate_series(1, 10) i",
    )
    for name, stream in streams.items():
        stream.staged()
        assert stream.difference(looks=name not in LOOSE) == [], name
