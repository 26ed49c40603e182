"""Random changes of the tables that the tests share, and stream tables that must follow them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from .conftest import Workspace
from .harness import StreamTable


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


BEFORE = st.lists(statements(), min_size=4, max_size=10)
"""What is in the tables before anything is maintained."""
BATCHES = st.lists(st.lists(statements(), min_size=1, max_size=5), min_size=1, max_size=3)
"""The changes before each refresh."""
FORGETTING = st.lists(st.tuples(st.lists(statements(), min_size=1, max_size=4), st.booleans()), min_size=2, max_size=4)
"""The changes before each refresh, and whether what the last one has handed on is lost."""


def examples(number: int) -> settings:
    """So many examples, which take the time that PostgreSQL takes. What fails is reported as it was found."""
    return settings(
        max_examples=number,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )


def follow(
    workspace: Workspace,
    streams: Mapping[str, StreamTable],
    before: list[str],
    batches: list[list[str]],
    loose: Collection[str] = (),
) -> None:
    """Each of the stream tables equals its query after each batch, down to what values look like unless it is loose."""
    follow_forgetting(workspace, streams, before, [(batch, False) for batch in batches], loose)


def follow_forgetting(
    workspace: Workspace,
    streams: Mapping[str, StreamTable],
    before: list[str],
    batches: list[tuple[list[str], bool]],
    loose: Collection[str] = (),
) -> None:
    """As `follow`, whether a refresh has what the one before has handed on or not."""
    workspace.execute('TRUNCATE item, tag, "Select", cell', *before)
    for stream in streams.values():
        stream.reset()
    for batch, forget in batches:
        workspace.execute(*batch)
        for name, stream in streams.items():
            if forget:
                stream.memory = {}
            stream.refresh()
            assert stream.difference(looks=name not in loose) == [], name
