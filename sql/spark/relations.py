"""Relations in Spark's dialect: the text of a query with its columns, of a FROM clause, of a SELECT in the making."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from sql.base.columns import ENUM, Column
from sql.errors import NotExpressible
from sql.spark.numbers.exact import Layers
from sql.spark.types import UNKNOWN, Display, SparkType, Typed, column_type
from sql.spark.values import as_type, identifier, kept_scale


@dataclass(frozen=True, slots=True)
class Relation:
    """A query's text and its columns, called ``c0``, ``c1`` ... in Spark. ``view`` is that of its rows, if any.

    Beside a numeric ``c0`` whose display scale is kept stands the scale, ``c0s``. Of a WITH query ``inside`` are the
    views that each use of its text reads, as often as it does.
    """

    sql: str
    columns: tuple[tuple[str, SparkType], ...]
    view: str = ""
    inside: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[str, ...]:
        """The views that are read where the relation stands in a FROM clause."""
        return (self.view,) if self.view else self.inside

    @property
    def item(self) -> str:
        """The rows in a FROM clause."""
        return self.view or f"({self.sql})"

    @property
    def declared(self) -> tuple[Column, ...]:
        """The columns with PostgreSQL's types."""
        return tuple(Column(name, type_.declared, carrier=ENUM if type_.enum else "") for name, type_ in self.columns)


@dataclass(slots=True)
class FromClause:
    """The items of a FROM clause: its text, and by alias their columns."""

    sql: str = ""
    bindings: dict[str, dict[str, Any]] = field(default_factory=dict)
    single: str = ""
    """The alias, if there is one item only."""


@dataclass(slots=True)
class SelectText:
    """The parts of a SELECT in the making; ``layers`` are those of divisions in it."""

    rows: str
    layers: Layers | None
    grouped: bool
    items: list[Typed] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    """What is computed before rows are grouped, and the aliases that it has then, as a column called x."""
    distinct: bool = False
    where: str = ""
    where_divides: bool = False
    keys: str = ""
    having: str = ""
    ending: str = ""

    @property
    def divides(self) -> bool:
        return self.layers is not None and bool(self.layers.steps)

    def text(self) -> str:
        """The whole query. Raises NotExpressible."""
        listed = " ".join(value.sql for value in self.items) + self.having
        if "listagg(" in listed and "(DISTINCT " in listed:
            raise NotExpressible("string_agg or array_agg beside count, sum or avg of DISTINCT values")  # Spark fails
        select = "SELECT DISTINCT" if self.distinct else "SELECT"
        where = f" WHERE {self.where}" if self.where else ""
        grouping = (f" GROUP BY {self.keys}" if self.keys else "") + (f" HAVING {self.having}" if self.having else "")
        items = [named(n, value) for n, value in enumerate(self.items)] or ["TRUE AS c0"]
        source = self._source()
        if self.layers is None or not self.layers.steps:
            return f"{select} {', '.join(items)}{source}{where}{grouping}{self.ending}"
        alias = self.layers.alias
        if not self.grouped:
            first, after = ("", where) if self.where_divides else (where, "")
            inner = f"(SELECT {', '.join([f'{alias}.*', *self.layers.steps[0]])}{source}{first}) AS {alias}"
            return f"{select} {', '.join(items)} FROM {self.layers.around(inner)}{after}{self.ending}"
        within, above = self._around_groups(self.layers)
        inner = f"(SELECT {', '.join(within)}{source}{where}{grouping}) AS {alias}"
        return f"{select} {', '.join(above)} FROM {self.layers.around(inner)}{self.ending}"

    def _source(self) -> str:
        before = (f" LATERAL VIEW explode(array({sql})) {alias} AS x" for sql, alias in self.before.items())
        return f" FROM {self.rows}{''.join(before)}" if self.rows else ""

    def _around_groups(self, layers: Layers) -> tuple[list[str], list[str]]:
        """What is computed with the groups, and the items around them: what divides aggregates is among these."""
        above = [named(n, v) for n, v in enumerate(self.items)]
        within = list(layers.steps[0])
        for n, value in enumerate(self.items):
            if f"{layers.alias}." not in value.sql:
                within.append(named(n, value))
                above[n] = named(n, reference(layers.alias, n, value.type))
            elif set(re.findall(r"\b(r\d+)\.", value.sql)) != {layers.alias} or _AGGREGATE.search(value.sql):
                raise NotExpressible("avg or division of aggregates together with others")
        return within, above


_AGGREGATE = re.compile(r"\b(sum|count|min|max|bool_and|bool_or|listagg)\(")


_REFUSED_PARTS = {
    "windows": "WINDOW", "locks": "FOR UPDATE",
    "laterals": "LATERAL", "sample": "TABLESAMPLE", "qualify": "QUALIFY",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a table: its type is looked at, and it is read, only if the query uses it.

    ``known`` is its type, where more is known than PostgreSQL says.
    """

    alias: str
    column: Column
    reads: dict[str, None]
    binary_order: bool
    collation: str
    known: SparkType | None = None

    def use(self) -> Typed:
        try:
            type_ = self.known or column_type(
                self.column.type,
                equality_is_identity=self.column.equality_is_identity,
                binary_order=self.binary_order,
                collation=self.collation,
                carrier=self.column.carrier,
            )
        except NotExpressible as reason:
            raise NotExpressible(f'{reason} of column "{self.column.name}"') from None
        self.reads[self.column.name] = None
        return Typed(f"{self.alias}.{identifier(self.column.name)}", type_)


def has_joins(node: Any) -> bool:
    """Whether joins follow an item of FROM within its parentheses."""
    return bool(node.args.get("joins"))


def renamed(relation: Relation, names: Sequence[str]) -> Relation:
    """The relation with other names for its first columns."""
    kept = relation.columns[len(names) :]
    renamed = tuple((name, type_) for name, (_, type_) in zip(names, relation.columns, strict=False))
    return replace(relation, columns=renamed + kept)


def reference(alias: str, number: int, type_: SparkType) -> Typed:
    """A column of a relation."""
    return Typed(f"{alias}.c{number}", type_, f"{alias}.c{number}s" if type_.display is Display.KEPT else "")


def cast_columns(branch: Relation, types: Sequence[SparkType], alias: str) -> str:
    """A branch of a set operation whose columns have exactly these types."""
    pairs = list(zip((type_ for _, type_ in branch.columns), types, strict=True))
    if all(a.spark == b.spark and a.display is b.display for a, b in pairs if UNKNOWN not in (a, b)) and all(
        a != UNKNOWN for a, _ in pairs
    ):
        return branch.sql
    values = [reference(alias, n, found) for n, (found, _) in enumerate(pairs)]
    items = [
        named(n, Typed(as_type(value, type_), type_, kept_scale(value, type_)))
        for n, (value, type_) in enumerate(zip(values, types, strict=True))
    ]
    return f"SELECT {', '.join(items)} FROM ({branch.sql}) AS {alias}"


def named(number: int, value: Typed) -> str:
    """An item of a select list, with its display scale if it has one."""
    scale = f", {value.display} AS c{number}s" if value.type.display is Display.KEPT else ""
    return f"{value.sql} AS c{number}{scale}"


def check_groupable(name: str, type_: SparkType) -> None:
    """Refuse a key whose equal values can look different."""
    if type_.display is not Display.FIXED:
        raise NotExpressible(f"grouping by {name}, whose equal values can look different")
    if not type_.groupable:
        raise NotExpressible(
            f"grouping by {name} of type {type_.name}"
            + ("" if type_.name != "text" else ", whose collation is not deterministic")
        )


def check_all_groupable(columns: Sequence[tuple[str, SparkType]]) -> None:
    """`check_groupable`, of all columns of rows of which equal ones become one."""
    for name, type_ in columns:
        check_groupable(name, type_)


def literal_number(node: Any) -> int | None:
    """The literal number of a LIMIT or OFFSET."""
    if node is None:
        return None
    value = node.expression.unnest() if isinstance(node, exp.Limit | exp.Offset) and node.expression else node
    while isinstance(value, exp.Cast):
        value = value.this.unnest()
    if not (isinstance(value, exp.Literal) and value.is_int) or int(value.name) >= 1 << 31:
        raise NotExpressible("LIMIT or OFFSET of anything but a number")
    return int(value.name)


def is_grouped(node: exp.Select) -> bool:
    """Whether a SELECT aggregates."""
    if node.args.get("group") or node.args.get("having"):
        return True
    return any(
        isinstance(inner, exp.AggFunc) and not isinstance(inner.parent, exp.Window)
        for item in node.expressions
        for inner in item.walk(prune=lambda n: isinstance(n, exp.Query | exp.Window))
    )


def refuse_parts(node: exp.Expression, known: frozenset[str]) -> None:
    """Refuse a node with a part that nobody looks at."""
    for part, value in node.args.items():
        if value and part not in known:
            raise NotExpressible(
                _REFUSED_PARTS.get(part, f"{str(node.key).upper()} with {part.replace('_', ' ').strip()}")
            )
