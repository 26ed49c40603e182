"""Random window function calls, DISTINCT ON and LIMIT clauses, and whether SQL determines their result."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from .harness import StreamTable

COLUMNS = {"item": ["grp", "val", "id"], "tag": ["grp", "rank"]}
PARTITIONS = {"item": ["grp", "val", "label", "free", "(val % 2)"], "tag": ["grp", "rank"]}
POSITIONS = ["row_number()", "ntile(2)", "lag({})", "lead({}, 2)", "lag({}, 1, 7)"]
PEERS = ["rank()", "dense_rank()", "percent_rank()", "cume_dist()"]
SETS = ["count(*)", "sum({})", "min({})", "avg({})", "count({}) FILTER (WHERE {} > 1)", "bool_or({} = 2)"]
ORDERLY = ["first_value({})", "last_value({})", "nth_value({}, 2)", "array_agg({})", "string_agg({}::text, ',')"]
STARTS = ["UNBOUNDED PRECEDING", "1 PRECEDING", "CURRENT ROW"]
ENDS = ["UNBOUNDED FOLLOWING", "1 FOLLOWING", "CURRENT ROW"]
EXCLUSIONS = ["", "", " EXCLUDE CURRENT ROW", " EXCLUDE GROUP", " EXCLUDE TIES", " EXCLUDE NO OTHERS"]


@dataclass(frozen=True)
class Generated:
    """``exact``: SQL leaves nothing open."""

    sql: str
    exact: bool


@st.composite
def orders(draw: st.DrawFn, table: str, at_least: int = 0) -> list[str]:
    """Sort keys: columns with directions."""
    columns = draw(st.lists(st.sampled_from(COLUMNS[table]), min_size=at_least, max_size=2, unique=True))
    direction = st.sampled_from(["", " DESC", " NULLS FIRST", " DESC NULLS LAST"])
    return [column + draw(direction) for column in columns]


def total(order: list[str]) -> bool:
    """Whether an order tells all rows of the table with a key apart."""
    return any(key.split()[0] == "id" for key in order)


@st.composite
def calls(draw: st.DrawFn, table: str) -> Generated:
    """A window function call."""
    partition = draw(st.lists(st.sampled_from(PARTITIONS[table]), max_size=2, unique=True))
    order = draw(orders(table))
    kinds = ["ROWS"] + ["RANGE"] * (len(order) == 1) + ["GROUPS"] * (len(order) > 0)
    kind = draw(st.sampled_from(["", *kinds]))
    frame = ""
    if kind:
        exclusion = draw(st.sampled_from(EXCLUSIONS))
        frame = f" {kind} BETWEEN {draw(st.sampled_from(STARTS))} AND {draw(st.sampled_from(ENDS))}{exclusion}"
    argument = draw(st.sampled_from(COLUMNS[table]))
    family = draw(st.sampled_from([POSITIONS, PEERS, SETS, ORDERLY]))
    # What is sorted by is the same in all peers.
    sorted_by = bool(order) and order[0].split()[0] == argument
    if family is PEERS:
        exact = True
    elif family is POSITIONS or kind == "ROWS":
        exact = total(order)
    else:
        exact = family is SETS or sorted_by or total(order)
    function = draw(st.sampled_from(family)).replace("{}", argument)
    by = f"PARTITION BY {', '.join(partition)} " if partition else ""
    window = by + (f"ORDER BY {', '.join(order)}" if order else "") + frame
    return Generated(f"{function} OVER ({window})", exact)


def rows_of(stream: StreamTable, query: str) -> list[tuple[object, ...]]:
    """The rows of a query as text, in any order that is always the same."""
    names = ", ".join(f'"{column.name}"::text' for column in stream.compiled.output)
    return sorted(stream.connection.execute(f"SELECT {names} FROM {query}").fetchall(), key=repr)


def check(stream: StreamTable, *, exact: bool) -> None:
    """The stream table is what the compiler's own query gives, and the user's where SQL determines it."""
    assert rows_of(stream, stream.storage) == rows_of(stream, f"({stream.compiled.storage_query}) AS q")
    assert not exact or stream.difference() == []
