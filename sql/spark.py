"""A query in Spark's dialect, if Spark's answer is exactly PostgreSQL's.

Names are resolved here, by PostgreSQL's rules, and replaced by generated ones, so that Spark's own rules (names that
differ in case only are one, lateral aliases) never matter. A table becomes the view ``source_<oid>``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from .columns import WEIGHT, Column, Source
from .spark_expressions import Expressions
from .spark_types import BIGINT, NotExpressible, SparkType, column_type
from .spark_values import Typed, identifier, unify

__all__ = ["NotExpressible", "SparkQuery", "delta_view_name", "render_spark", "view_name"]


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A query for Spark.

    ``reads`` gives the columns it reads of each source; () if only the number of rows matters. ``columns`` are its
    output in order, with PostgreSQL types; in Spark they are called ``c0``, ``c1`` ...
    """

    sql: str
    reads: Mapping[int, tuple[str, ...]]
    columns: tuple[Column, ...]


def view_name(oid: int) -> str:
    """The Spark view that stands for a source."""
    return f"source_{oid}"


def delta_view_name(oid: int) -> str:
    """The Spark view that stands for the net changes of a source: its columns and `__pgt_w`."""
    return f"delta_{oid}"


def _unqualified(node: exp.Expr) -> exp.Expr:
    """A function that a plan's core names with its schema, without: sqlglot then knows it."""
    named: exp.Expr = node
    if isinstance(node, exp.Column) and node.table == "pg_catalog" and not isinstance(node.this, exp.Identifier):
        named = node.this
    if isinstance(node, exp.Dot) and node.this.name == "pg_catalog" and isinstance(node.expression, exp.Func):
        named = node.expression
    return named


def render_spark(
    query: str | exp.Expr,
    sources: Sequence[Source],
    output: Sequence[Column] = (),
    *,
    binary_order: bool = False,
    collated: Collection[tuple[int, str]] = (),
) -> SparkQuery:
    """Render a canonical query (PostgreSQL dialect, tables qualified) for Spark.

    ``output`` gives the columns' types where they are known, which are then checked against what was inferred.
    ``binary_order``: the database compares text by its bytes (collation C), all columns but
    those in ``collated`` (source oid and name), which have a collation of their own. Raises NotExpressible.

    >>> orders = Source(7, "public", "orders", (Column("region", "text"), Column("amount", "integer")))
    >>> spark = render_spark("SELECT o.region, sum(o.amount) AS total FROM public.orders o GROUP BY o.region", [orders])
    >>> print(spark.sql)
    SELECT r0.`region` AS c0, sum(CAST(r0.`amount` AS BIGINT)) AS c1 FROM source_7 AS r0 GROUP BY r0.`region`
    >>> spark.reads, [column.type for column in spark.columns]
    ({7: ('region', 'amount')}, ['text', 'bigint'])
    """
    renderer = Renderer(sources, binary_order, frozenset(collated))
    relation = renderer.query(understood(query), {})
    columns = relation.declared
    for expected, found in zip(output, columns, strict=False):
        if column_type_name(expected.type) != found.type:
            raise NotExpressible(f'column "{expected.name}", which is {expected.type} but was read as {found.type}')
    if output and len(output) != len(columns):
        raise NotExpressible("a different number of columns")
    reads = {oid: tuple(names) for oid, names in renderer.reads.items()}
    return SparkQuery(relation.sql, reads, columns)


def understood(query: str | exp.Expr) -> exp.Expr:
    """A query as `Renderer.query` wants it. Raises NotExpressible."""
    try:
        parsed = sqlglot.parse_one(query, read="postgres") if isinstance(query, str) else query
        return sqlglot.parse_one(parsed.transform(_unqualified).sql(dialect="postgres"), read="postgres")
    except SqlglotError as error:
        raise NotExpressible("syntax that is not understood") from error


def column_type_name(declared: str) -> str:
    """A declared type as `SparkQuery.columns` names it."""
    try:
        return _declared(column_type(declared))
    except NotExpressible:
        return declared


def _declared(type_: SparkType) -> str:
    return {"unknown": "text"}.get(type_.name, type_.name)


@dataclass(frozen=True, slots=True)
class Relation:
    """A query's text and its columns, called ``c0``, ``c1`` ... in Spark. ``view`` is that of its rows, if any."""

    sql: str
    columns: tuple[tuple[str, SparkType], ...]
    view: str = ""

    @property
    def declared(self) -> tuple[Column, ...]:
        """The columns with PostgreSQL's types."""
        return tuple(Column(name, _declared(type_)) for name, type_ in self.columns)


@dataclass(slots=True)
class _From:
    """The items of a FROM clause: its text, and by alias their columns."""

    sql: str = ""
    bindings: dict[str, dict[str, Typed]] = field(default_factory=dict)


_SELECT_PARTS = frozenset(("kind", "expressions", "from_", "joins", "where", "group", "having", "distinct", "with_"))
_REFUSED_PARTS = {
    "windows": "WINDOW", "limit": "LIMIT", "offset": "OFFSET", "order": "ORDER BY", "locks": "FOR UPDATE",
    "laterals": "LATERAL", "sample": "TABLESAMPLE", "qualify": "QUALIFY",
}  # fmt: skip


class Renderer:
    """Renders queries over the same sources, and over their net changes, ``deltas``, by the names of these."""

    def __init__(
        self,
        sources: Sequence[Source],
        binary_order: bool,
        collated: frozenset[tuple[int, str]],
        deltas: Mapping[str, Source] | None = None,
    ):
        self._deltas = deltas or {}
        self._sources = {(source.schema, source.name): source for source in sources}
        self._binary_order = binary_order
        self._collated = collated
        self._aliases = 0
        self.reads: dict[int, dict[str, None]] = {}

    def _alias(self) -> str:
        self._aliases += 1
        return f"r{self._aliases - 1}"

    def query(self, node: Any, scope: Mapping[str, Relation]) -> Relation:
        """A SELECT or UNION ALL, in parentheses or not. `scope` has the WITH queries around it."""
        if isinstance(node, exp.Subquery) and not node.args.get("joins"):
            return self.query(node.this, scope)
        if isinstance(node, exp.Union | exp.Select):
            scope = self._common_tables(node, scope)
        if isinstance(node, exp.Union):
            return self._union(node, scope)
        if isinstance(node, exp.Select):
            return self._select(node, scope)
        raise NotExpressible({"except": "EXCEPT", "intersect": "INTERSECT"}.get(node.key, str(node.key).upper()))

    def _common_tables(self, node: exp.Query, scope: Mapping[str, Relation]) -> Mapping[str, Relation]:
        clause = node.args.get("with_")
        if clause is None:
            return scope
        if clause.args.get("recursive"):
            raise NotExpressible("WITH RECURSIVE")
        inner = dict(scope)
        for table in clause.expressions:
            relation = self.query(table.this, inner)
            names = [column.name for column in table.args["alias"].columns]
            inner[table.alias] = _renamed(relation, names)
        return inner

    def _union(self, node: exp.Union, scope: Mapping[str, Relation]) -> Relation:
        _refuse_parts(node, frozenset(("this", "expression", "distinct", "with_", "by_name")))
        if node.args.get("distinct"):
            raise NotExpressible("UNION")
        left, right = self.query(node.left, scope), self.query(node.right, scope)
        types = [unify((a, b), "UNION ALL") for (_, a), (_, b) in zip(left.columns, right.columns, strict=True)]
        columns = tuple((name, type_) for (name, _), type_ in zip(left.columns, types, strict=True))
        branches = (_cast_columns(branch, types, self._alias()) for branch in (left, right))
        return Relation(" UNION ALL ".join(branches), columns)

    def _select(self, node: exp.Select, scope: Mapping[str, Relation]) -> Relation:
        _refuse_parts(node, _SELECT_PARTS)
        if node.args.get("kind"):
            raise NotExpressible(f"SELECT {node.args['kind']}")
        clause = self._from_clause(node, scope)
        expressions = Expressions(lambda column: self._resolve(column, clause.bindings))
        columns: list[tuple[str, SparkType]] = []
        items: list[str] = []
        for item in self._items(node, clause):
            value = expressions.render(item.this if isinstance(item, exp.Alias) else item)
            name = item.alias if isinstance(item, exp.Alias) else item.name
            items.append(f"{value.sql} AS c{len(items)}")
            columns.append((name, value.type))
        distinct = node.args.get("distinct")
        if distinct is not None:
            if distinct.args.get("on"):
                raise NotExpressible("DISTINCT ON")
            for name, type_ in columns:
                _check_groupable(name, type_)
        parts = ["SELECT DISTINCT" if distinct is not None else "SELECT", ", ".join(items) or "TRUE AS c0"]
        if clause.sql:
            parts += ["FROM", clause.sql]
        if where := node.args.get("where"):
            parts += ["WHERE", expressions.boolean(where.this)]
        if group := node.args.get("group"):
            parts += self._group_by(group, expressions)
        if having := node.args.get("having"):
            parts += ["HAVING", expressions.boolean(having.this)]
        return Relation(" ".join(parts), tuple(columns))

    def _items(self, node: exp.Select, clause: _From) -> list[exp.Expr]:
        """The select list, with the star of a plan's filter spelled out."""
        if not any(isinstance(item, exp.Star) for item in node.expressions):
            return list(node.expressions)
        return [
            exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))
            for alias, columns in clause.bindings.items()
            for name in columns
        ]

    def _group_by(self, group: exp.Group, expressions: Expressions) -> list[str]:
        _refuse_parts(group, frozenset(("expressions",)))
        keys = []
        for node in group.expressions:
            if isinstance(node, exp.Tuple) and not node.expressions:
                continue
            if isinstance(node, exp.Literal):
                raise NotExpressible("GROUP BY a position")
            key = expressions.render(node)
            _check_groupable(node.sql("postgres"), key.type)
            keys.append(key.sql)
        return ["GROUP BY", ", ".join(keys)] if keys else []

    def _from_clause(self, node: exp.Select, scope: Mapping[str, Relation]) -> _From:
        clause = _From()
        first = node.args.get("from_")
        if first is None:
            if node.args.get("joins"):
                raise NotExpressible("FROM")
            return clause
        clause.sql = self._item(first.this, scope, clause)
        for join in node.args.get("joins") or ():
            clause.sql += self._join(join, scope, clause)
        return clause

    def _item(self, node: Any, scope: Mapping[str, Relation], clause: _From) -> str:
        """One item of FROM, with the joins that stand in its parentheses."""
        joins = node.args.get("joins") or ()
        if isinstance(node, exp.Table):
            sql = self._table(node, scope, clause)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery) and not node.alias:
            sql = (
                f"({self._item(node.this, scope, clause)})"
                if _has_joins(node.this)
                else self._item(node.this, scope, clause)
            )
        elif isinstance(node, exp.Subquery):
            _refuse_parts(node, frozenset(("this", "alias", "joins")))
            names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
            sql = self._derived(_renamed(self.query(node.this, scope), names), node.alias, clause)
        else:
            raise NotExpressible(str(node.key).upper())
        return sql + "".join(self._join(join, scope, clause) for join in joins)

    def _table(self, node: exp.Table, scope: Mapping[str, Relation], clause: _From) -> str:
        _refuse_parts(node, frozenset(("this", "db", "alias", "joins")))
        names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
        if not node.db and node.name in scope:
            return self._derived(_renamed(scope[node.name], names), node.alias or node.name, clause)
        delta = None if node.db else self._deltas.get(node.name)
        source = delta or self._sources.get((node.db, node.name))
        if source is None or not isinstance(node.this, exp.Identifier):
            raise NotExpressible(f'relation "{node.name or node.key}"')
        alias = self._alias()
        reads = self.reads.setdefault(source.oid, {})
        columns: dict[str, Any] = {}
        for position, column in enumerate(source.columns):
            name = names[position] if position < len(names) else column.name
            ordered = self._binary_order and (source.oid, column.name) not in self._collated
            columns[name] = _SourceColumn(alias, column, reads, ordered)
        if delta is not None:
            columns[WEIGHT] = Typed(f"{alias}.{identifier(WEIGHT)}", BIGINT)
        self._bind(clause, node.alias or node.name, columns)
        return f"{view_name(source.oid) if delta is None else delta_view_name(source.oid)} AS {alias}"

    def _derived(self, relation: Relation, name: str, clause: _From) -> str:
        alias = self._alias()
        columns = {
            column: Typed(f"{alias}.c{position}", type_) for position, (column, type_) in enumerate(relation.columns)
        }
        if len(columns) < len(relation.columns):
            raise NotExpressible("a derived table with two columns of one name")
        self._bind(clause, name or alias, columns)
        return f"{relation.view or f'({relation.sql})'} AS {alias}"

    def _bind(self, clause: _From, name: str, columns: Mapping[str, Any]) -> None:
        if name in clause.bindings:
            raise NotExpressible(f'two items called "{name}" in FROM')
        clause.bindings[name] = dict(columns)

    def _join(self, join: exp.Join, scope: Mapping[str, Relation], clause: _From) -> str:
        _refuse_parts(join, frozenset(("this", "on", "side", "kind")))
        side, kind = (join.args.get(part) or "" for part in ("side", "kind"))
        if kind not in ("", "INNER", "CROSS", "OUTER") or side not in ("", "LEFT", "RIGHT", "FULL"):
            raise NotExpressible(f"{side} {kind} JOIN".strip())
        item = self._item(join.this, scope, clause)
        if _has_joins(join.this):
            item = f"({item})"
        condition = join.args.get("on")
        if condition is None:
            return f" CROSS JOIN {item}"
        expressions = Expressions(lambda column: self._resolve(column, clause.bindings))
        return f" {side or 'INNER'} JOIN {item} ON {expressions.boolean(condition)}"

    def _resolve(self, column: exp.Column, bindings: Mapping[str, Mapping[str, Any]]) -> Typed:
        if column.args.get("db") or isinstance(column.this, exp.Star):
            raise NotExpressible("*" if isinstance(column.this, exp.Star) else f"column {column.sql('postgres')}")
        items = [bindings[column.table]] if column.table in bindings else [] if column.table else bindings.values()
        found = [item[column.name] for item in items if column.name in item]
        if len(found) != 1:
            raise NotExpressible(f"column {column.sql('postgres')}")
        return found[0].use() if isinstance(found[0], _SourceColumn) else found[0]


@dataclass(frozen=True, slots=True)
class _SourceColumn:
    """A column of a table: its type is looked at, and it is read, only if the query uses it."""

    alias: str
    column: Column
    reads: dict[str, None]
    binary_order: bool

    def use(self) -> Typed:
        try:
            type_ = column_type(self.column.type, faithful=self.column.faithful, binary_order=self.binary_order)
        except NotExpressible as reason:
            raise NotExpressible(f'{reason} of column "{self.column.name}"') from None
        self.reads[self.column.name] = None
        return Typed(f"{self.alias}.{identifier(self.column.name)}", type_)


def _has_joins(node: Any) -> bool:
    return bool(node.args.get("joins"))


def _renamed(relation: Relation, names: Sequence[str]) -> Relation:
    kept = relation.columns[len(names) :]
    renamed = tuple((name, type_) for name, (_, type_) in zip(names, relation.columns, strict=False))
    return Relation(relation.sql, renamed + kept, relation.view)


def _cast_columns(branch: Relation, types: Sequence[SparkType], alias: str) -> str:
    """A branch of a UNION ALL whose columns have exactly these types."""
    if all(
        found.spark == wanted.spark
        for (_, found), wanted in zip(branch.columns, types, strict=True)
        if found.name != "unknown"
    ) and all(found.name != "unknown" for _, found in branch.columns):
        return branch.sql
    items = ", ".join(f"CAST({alias}.c{n} AS {type_.spark}) AS c{n}" for n, type_ in enumerate(types))
    return f"SELECT {items} FROM ({branch.sql}) AS {alias}"


def _check_groupable(name: str, type_: SparkType) -> None:
    if not type_.groupable:
        raise NotExpressible(
            f"grouping by {name} of type {type_.name}"
            + ("" if type_.name != "text" else ", whose collation is not deterministic")
        )


def _refuse_parts(node: exp.Expression, known: frozenset[str]) -> None:
    """Refuse a node with a part that nobody looks at."""
    for part, value in node.args.items():
        if value and part not in known:
            raise NotExpressible(
                _REFUSED_PARTS.get(part, f"{str(node.key).upper()} with {part.replace('_', ' ').strip()}")
            )
