"""Random schemas: tables with and without keys, partitioned, with a dropped column, under names that need quotes.

Types are named by what may be done with them: `int`, `text`, `numeric` (of fixed scale: equal values look equal),
`loose` (numeric of any scale, with NaN and infinities: equal values may look different), `float` (multiples of a half:
sums do not depend on the order), `bool`, `date`, `ints` (an array) and `json`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

Columns = tuple[tuple[str, str], ...]

TYPES = {
    "int": "int",
    "text": "text",
    "numeric": "numeric(6,2)",
    "loose": "numeric",
    "float": "float8",
    "bool": "boolean",
    "date": "date",
    "ints": "int[]",
    "json": "jsonb",
}
VALUES = {
    "int": ["0", "1", "2", "3", "-1", "NULL"],
    "text": ["'x'", "'y'", "'xy'", "''", "NULL"],
    "numeric": ["0.50", "1.00", "2.25", "-1.50", "NULL"],
    "loose": ["1.0", "1.00", "2.5", "'NaN'", "'Infinity'", "'-Infinity'", "NULL"],
    "float": ["0.5", "1", "-2.5", "'NaN'", "'Infinity'", "NULL"],
    "bool": ["true", "false", "NULL"],
    "date": ["'2026-01-01'", "'2026-01-02'", "'2026-02-01'", "NULL"],
    "ints": ["'{}'", "'{1,2}'", "'{2,2,NULL}'", "'{3}'", "NULL"],
    "json": ["'[1, \"x\"]'", "'[]'", '\'{"a": 1, "b": [2]}\'', "'7'", "'null'", "NULL"],
}
LITERALS = {
    kind: [f"{value}::{type_}" for value in VALUES[kind]] if kind != "int" else ["0", "1", "2", "3", "-1", "NULL::int"]
    for kind, type_ in TYPES.items()
}
INEXACT = frozenset(["loose", "float"])
"""Types with values that are equal and look different."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Something a query can select from: its text in a FROM clause (without alias) and its typed columns."""

    text: str
    columns: Columns


@dataclass(frozen=True, slots=True)
class Table:
    """A source."""

    name: str
    columns: Columns
    key: tuple[str, ...] = ()
    partitioned: bool = False
    dropped: bool = False
    """Whether there once was another column."""

    @property
    def relation(self) -> Relation:
        return Relation(self.name, self.columns)

    @property
    def values(self) -> dict[str, list[str]]:
        """For each column the values it takes; a key's are not NULL, and many if it has one column."""
        found = {name: VALUES[kind] for name, kind in self.columns}
        for name, kind in self.columns:
            if name in self.key:
                several = len(self.key) > 1 or kind != "int"
                found[name] = VALUES[kind][:-1] if several else [str(n) for n in range(10)]
        return found

    @property
    def ddl(self) -> str:
        parts = [f"{name} {TYPES[kind]}" for name, kind in self.columns]
        parts += [f"PRIMARY KEY ({', '.join(self.key)})"] if self.key else []
        parts += ["gone date"] if self.dropped else []
        # The dropped column leaves its number in the middle.
        parts = parts[-1:] + parts[:-1] if self.dropped else parts
        text = f"CREATE TABLE {self.name} ({', '.join(parts)})"
        if self.dropped:
            text += f"; ALTER TABLE {self.name} DROP COLUMN gone"
        if self.partitioned:
            by = self.columns[0][0]
            low, rest = self.partition("low"), self.partition("rest")
            text += (
                f" PARTITION BY RANGE ({by});"
                f" CREATE TABLE {low} PARTITION OF {self.name} FOR VALUES FROM (MINVALUE) TO (1);"
                f" CREATE TABLE {rest} PARTITION OF {self.name} DEFAULT"
            )
        return text

    def partition(self, which: str) -> str:
        """The name of the partition `low` (below 1) or `rest`."""
        return f"{self.name}_{which}" if not self.name.endswith('"') else f'{self.name[:-1]}_{which}"'


CLASSIC = (
    Table("a", (("id", "int"), ("k", "int"), ("v", "int"), ("s", "text"), ("n", "numeric")), ("id",)),
    Table("b", (("i", "int"), ("j", "int"), ("w", "int"), ("t", "text")), ("i", "j")),
    Table("c", (("k", "int"), ("v", "int"), ("s", "text")), dropped=True),
    Table("d", (("k", "int"), ("f", "float"), ("u", "loose"))),
    Table("e", (("k", "int"), ("v", "int"), ("s", "text")), partitioned=True),
    Table("f", (("id", "int"), ("k", "int"), ("xs", "ints"), ("j", "json"), ("b", "bool"), ("d", "date")), ("id",)),
)

_NAMES = ["k", "v", "s", "w", '"Key"', '"a b"', '"from"', "é", '"say ""hi"""']
_TABLE_NAMES = ["t1", "t2", '"T 3"', '"select"']
_KINDS = ["int", "int", "int", "text", "text", "numeric", "bool", "date", "ints", "json", "loose", "float"]


@st.composite
def schemas(draw: DrawFn) -> tuple[Table, ...]:
    """One to three tables, of the classic ones or new."""
    if draw(st.integers(0, 2)) == 0:
        return tuple(draw(st.lists(st.sampled_from(CLASSIC), min_size=1, max_size=3, unique=True)))
    return tuple(draw(tables(name)) for name in _TABLE_NAMES[: draw(st.integers(1, 3))])


@st.composite
def tables(draw: DrawFn, name: str) -> Table:
    """A table of two to five columns."""
    kinds = draw(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=4))
    names = draw(st.permutations(_NAMES))[: len(kinds)] if draw(st.booleans()) else _NAMES[: len(kinds)]
    columns: Columns = (("id", "int"), *zip(names, kinds, strict=True))
    candidates = [column for column, kind in columns[1:] if kind in ("int", "text", "date", "bool", "numeric")]
    form = draw(st.sampled_from(["keyless", "keyless", "key", "key", "two columns"]))
    key: tuple[str, ...] = ()
    if form == "key":
        key = ("id",)
    elif form == "two columns" and candidates:
        key = ("id", candidates[0])
    special = draw(st.sampled_from(["", "", "", "partitioned", "dropped"]))
    return Table(name, columns, key, special == "partitioned", special == "dropped")
