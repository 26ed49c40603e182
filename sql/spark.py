"""A query in Spark's dialect, if Spark's answer is exactly PostgreSQL's.

Names are resolved here, by PostgreSQL's rules, and replaced by generated ones, so that Spark's own rules (names that
differ in case only are one, lateral aliases) never matter. A table becomes the view ``source_<oid>``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from .columns import WEIGHT, Column, Source
from .spark_expressions import Expressions
from .spark_generated import looks_of, repeated_by, simplified
from .spark_numbers import Layers, shown
from .spark_relations import (
    FromClause,
    Relation,
    SelectText,
    SourceColumn,
    cast_columns,
    check_groupable,
    has_joins,
    is_grouped,
    literal_number,
    named,
    reference,
    refuse_parts,
    renamed,
)
from .spark_types import BIGINT, NUMERAL, Display, NotExpressible, Typed, column_type
from .spark_values import as_type, identifier, kept_scale, unify
from .spark_windows import sort_key

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
    total_orders: bool = True,
) -> SparkQuery:
    """Render a canonical query (PostgreSQL dialect, tables qualified) for Spark.

    ``output`` gives the columns' types where they are known, which are then checked against what was inferred.
    ``binary_order``: the database compares text by its bytes (collation C), all columns but
    those in ``collated`` (source oid and name), which have a collation of their own. ``total_orders``: no two rows that
    differ are peers in the ORDER BY of a LIMIT, as in all that the compiler writes. Raises NotExpressible.

    >>> orders = Source(7, "public", "orders", (Column("region", "text"), Column("amount", "integer")))
    >>> spark = render_spark("SELECT o.region, sum(o.amount) AS total FROM public.orders o GROUP BY o.region", [orders])
    >>> print(spark.sql)
    SELECT r0.`region` AS c0, sum(CAST(r0.`amount` AS BIGINT)) AS c1 FROM source_7 AS r0 GROUP BY r0.`region`
    >>> spark.reads, [column.type for column in spark.columns]
    ({7: ('region', 'amount')}, ['text', 'bigint'])
    """
    renderer = Renderer(sources, binary_order, frozenset(collated), total_orders=total_orders)
    relation = renderer.given_out(renderer.query(understood(query), {}))
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
        parsed = sqlglot.parse_one(parsed.transform(_unqualified).sql(dialect="postgres"), read="postgres")
        return simplified(parsed)
    except SqlglotError as error:
        raise NotExpressible("syntax that is not understood") from error


def column_type_name(declared: str) -> str:
    """A declared type as `SparkQuery.columns` names it."""
    try:
        return column_type(declared).declared
    except NotExpressible:
        return declared


_SELECT_PARTS = frozenset(
    (
        "kind",
        "expressions",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "distinct",
        "with_",
        "order",
        "limit",
        "offset",
    )
)
Levels = tuple[Mapping[str, Mapping[str, Any]], ...]
"""The items of FROM clauses by their aliases, that of the query itself first, then those around it."""


class Renderer:
    """Renders queries over the same sources, and over their net changes, ``deltas``, by the names of these."""

    def __init__(
        self,
        sources: Sequence[Source],
        binary_order: bool,
        collated: frozenset[tuple[int, str]],
        deltas: Mapping[str, Source] | None = None,
        total_orders: bool = True,
    ):
        self._total_orders = total_orders
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
        """A SELECT or set operation, in parentheses or not. `scope` has the WITH queries around it."""
        if isinstance(node, exp.Subquery) and not node.args.get("joins"):
            return self.query(node.this, scope)
        if isinstance(node, exp.SetOperation | exp.Select):
            scope = self._common_tables(node, scope)
        if isinstance(node, exp.Union | exp.Except | exp.Intersect):
            return self._set_operation(node, scope)
        if isinstance(node, exp.Select):
            return self._select(node, scope)
        raise NotExpressible(str(node.key).upper())

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
            inner[table.alias] = renamed(relation, names)
        return inner

    def given_out(self, relation: Relation) -> Relation:
        """The rows as PostgreSQL is to get them: numerics that have a display scale each are written as text."""
        if any(type_.display is Display.LOST for _, type_ in relation.columns):
            raise NotExpressible("numeric whose display scale depends on the order of rows")
        if any(type_.name == "character" and not type_.precision for _, type_ in relation.columns):
            raise NotExpressible("values of character with different lengths")
        if not any(type_.display is Display.KEPT for _, type_ in relation.columns):
            return relation
        alias = self._alias()
        items = [
            shown(reference(alias, n, type_)) if type_.display is Display.KEPT else f"{alias}.c{n}"
            for n, (_, type_) in enumerate(relation.columns)
        ]
        columns = tuple((name, NUMERAL if type_.display is Display.KEPT else type_) for name, type_ in relation.columns)
        named = ", ".join(f"{item} AS c{n}" for n, item in enumerate(items))
        return Relation(f"SELECT {named} FROM {relation.item} AS {alias}", columns)

    def _set_operation(self, node: exp.SetOperation, scope: Mapping[str, Relation]) -> Relation:
        refuse_parts(node, frozenset(("this", "expression", "distinct", "with_", "by_name")))
        name = {"union": "UNION", "intersect": "INTERSECT", "except": "EXCEPT"}[node.key]
        distinct = bool(node.args.get("distinct"))
        if name != "UNION" and not distinct:
            # Sail does not count duplicates.
            raise NotExpressible(f"{name} ALL")
        left, right = self.query(node.left, scope), self.query(node.right, scope)
        types = [unify((a, b), name) for (_, a), (_, b) in zip(left.columns, right.columns, strict=True)]
        columns = tuple((name, type_) for (name, _), type_ in zip(left.columns, types, strict=True))
        if distinct:
            for column, type_ in columns:
                check_groupable(column, type_)
        branches = [cast_columns(branch, types, self._alias()) for branch in (left, right)]
        if name != "UNION":
            # INTERSECT binds closer than the others, wherever it stands.
            branches = [f"({branch})" for branch in branches]
        return Relation(f" {name}{'' if distinct else ' ALL'} ".join(branches), columns)

    def _select(self, node: exp.Select, scope: Mapping[str, Relation], outer: Levels = ()) -> Relation:
        """A SELECT; ``outer`` are the items of the FROM clauses around it, innermost first, that it may refer to."""
        refuse_parts(node, _SELECT_PARTS)
        if node.args.get("kind"):
            raise NotExpressible(f"SELECT {node.args['kind']}")
        if (distinct := node.args.get("distinct")) and distinct.args.get("on"):
            return self._first_of_each(node, scope, outer)
        clause = self._from_clause(node, scope)
        levels = (clause.bindings, *outer)
        grouped = is_grouped(node)
        if any(item.find(exp.Window) for item in node.expressions):
            if grouped:
                raise NotExpressible("window function over aggregates")
            if not self._total_orders:
                raise NotExpressible("window function over an order that may leave ties")
        layers = Layers(self._alias()) if grouped else Layers(clause.single) if clause.single else None
        expressions = Expressions(lambda column: self._resolve(column, levels), layers=layers)
        select = SelectText(clause.sql, layers, grouped)
        names, texts = [], []
        for item in self._items(node, clause):
            select.items.append(expressions.render(item.this if isinstance(item, exp.Alias) else item))
            names.append(item.alias if isinstance(item, exp.Alias) else item.name)
            texts.append(item.unalias().unnest().sql("postgres"))
        columns = tuple((name, value.type) for name, value in zip(names, select.items, strict=True))
        if distinct := node.args.get("distinct"):
            for name, type_ in columns:
                check_groupable(name, type_)
            select.distinct = True
        if where := node.args.get("where"):
            conditional = expressions.with_queries(lambda query: self._exists(query, scope, levels))
            select.where = conditional.boolean(where.this)
            select.where_divides = layers is not None and layers.above(select.where) > 0
        if group := node.args.get("group"):
            select.keys = self._group_by(group, expressions)
        if having := node.args.get("having"):
            select.having = Expressions(lambda column: self._resolve(column, levels)).boolean(having.this)
        select.ending = self._ending(
            node,
            expressions,
            dict(zip((*texts, *names), (*range(len(texts)), *range(len(names))), strict=True)),
            select,
        )
        return Relation(select.text(), columns)

    def _first_of_each(self, node: exp.Select, scope: Mapping[str, Relation], outer: Levels) -> Relation:
        """DISTINCT ON: the rows that are the first ones of their groups."""
        if not self._total_orders or node.args.get("limit") or node.args.get("offset") or is_grouped(node):
            raise NotExpressible("DISTINCT ON over an order that may leave ties")
        numbered = node.copy()
        keys = numbered.args["distinct"].args["on"].expressions
        order = numbered.args.get("order") or exp.Order(expressions=[exp.Ordered(this=key.copy()) for key in keys])
        for part in ("distinct", "order"):
            numbered.set(part, None)
        position = exp.Window(this=exp.RowNumber(), partition_by=keys, order=order)
        numbered.append("expressions", exp.alias_(position, "__pgt_first"))
        relation = self._select(numbered, scope, outer)
        alias, columns = self._alias(), relation.columns[:-1]
        items = [named(n, reference(alias, n, type_)) for n, (_, type_) in enumerate(columns)]
        where = f"WHERE {alias}.c{len(columns)} = 1"
        return Relation(f"SELECT {', '.join(items)} FROM ({relation.sql}) AS {alias} {where}", columns)

    def _ending(self, node: exp.Select, expressions: Expressions, given: Mapping[str, int], select: SelectText) -> str:
        """ORDER BY and LIMIT; ``given``: columns by name and by text. Without a limit the order means nothing."""
        limit, offset = (literal_number(node.args.get(part)) for part in ("limit", "offset"))
        if limit is None and offset is None:
            return ""
        if not self._total_orders:
            raise NotExpressible("LIMIT over an order that may leave ties")
        keys = []
        for item in node.args["order"].expressions if node.args.get("order") else ():
            key = item.this.unnest()
            by_name = isinstance(key, exp.Column) and not key.table
            own = given.get(key.name if by_name else key.sql("postgres"))
            if own is None and (select.grouped or select.distinct or select.divides):
                raise NotExpressible("ORDER BY what is not given out")
            value = Typed(f"c{own}", select.items[own].type) if own is not None else expressions.render(key)
            keys.append(sort_key(value, item))
        ending = f" ORDER BY {', '.join(keys)}" if keys else ""
        ending += f" LIMIT {limit}" if limit is not None else ""
        return ending + (f" OFFSET {offset}" if offset is not None else "")

    def _exists(self, node: Any, scope: Mapping[str, Relation], levels: Levels) -> str:
        """The query of an EXISTS, which may refer to the query around it."""
        while isinstance(node, exp.Subquery) and not node.args.get("joins"):
            node = node.this
        if isinstance(node, exp.Select):
            return self._select(node, self._common_tables(node, scope), levels).sql
        return self.query(node, scope).sql

    def _items(self, node: exp.Select, clause: FromClause) -> list[exp.Expr]:
        """The select list, with stars spelled out."""
        items: list[exp.Expr] = []
        for item in node.expressions:
            qualified = isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
            if not qualified and not isinstance(item, exp.Star):
                items.append(item)
                continue
            star = item.this if qualified else item
            if any(star.args.values()) or (qualified and item.table not in clause.bindings):
                raise NotExpressible("*")
            items += [
                exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))
                for alias, columns in clause.bindings.items()
                if not qualified or alias == item.table
                for name in columns
            ]
        return items

    def _group_by(self, group: exp.Group, expressions: Expressions) -> str:
        refuse_parts(group, frozenset(("expressions",)))
        keys: list[str] = []
        values = {node.sql("postgres") for node in group.expressions}
        looks = {looks_of(node) for node in group.expressions}
        for node in group.expressions:
            if (isinstance(node, exp.Tuple) and not node.expressions) or looks_of(node) in values:
                continue
            if isinstance(node, exp.Literal):
                raise NotExpressible("GROUP BY a position")
            key = expressions.render(node)
            keys.append(key.sql)
            if key.type.display is Display.KEPT and node.sql("postgres") in looks:
                keys.append(key.display)
            else:
                check_groupable(node.sql("postgres"), key.type)
        return ", ".join(keys)

    def _from_clause(self, node: exp.Select, scope: Mapping[str, Relation]) -> FromClause:
        clause = FromClause()
        first = node.args.get("from_")
        if first is None:
            if node.args.get("joins"):
                raise NotExpressible("FROM")
            return clause
        clause.sql = self._item(first.this, scope, clause)
        if (
            isinstance(first.this, exp.Table | exp.Subquery)
            and not node.args.get("joins")
            and len(clause.bindings) == 1
        ):
            clause.single = clause.sql.rpartition(" AS ")[2]
        for join in node.args.get("joins") or ():
            clause.sql += self._join(join, scope, clause)
        return clause

    def _item(self, node: Any, scope: Mapping[str, Relation], clause: FromClause) -> str:
        """One item of FROM, with the joins that stand in its parentheses."""
        joins = node.args.get("joins") or ()
        if isinstance(node, exp.Table):
            sql = self._table(node, scope, clause)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery) and not node.alias:
            sql = (
                f"({self._item(node.this, scope, clause)})"
                if has_joins(node.this)
                else self._item(node.this, scope, clause)
            )
        elif isinstance(node, exp.Subquery):
            refuse_parts(node, frozenset(("this", "alias", "joins")))
            names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
            sql = self._derived(renamed(self.query(node.this, scope), names), node.alias, clause)
        elif isinstance(node, exp.Values):
            refuse_parts(node, frozenset(("expressions", "alias", "joins")))
            names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
            sql = self._derived(renamed(self._values(node), names), node.alias, clause)
        else:
            raise NotExpressible(str(node.key).upper())
        return sql + "".join(self._join(join, scope, clause) for join in joins)

    def _values(self, node: exp.Values) -> Relation:
        """VALUES of constants."""
        nothing = Expressions(lambda column: self._resolve(column, ()))
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row.unnest()] for row in node.expressions]
        values = [[nothing.render(value) for value in row] for row in rows]
        types = [unify([value.type for value in column], "VALUES") for column in zip(*values, strict=True)]
        selects = []
        for row in values:
            items = [
                named(n, Typed(as_type(value, type_), type_, kept_scale(value, type_)))
                for n, (value, type_) in enumerate(zip(row, types, strict=True))
            ]
            selects.append(f"SELECT {', '.join(items)}")
        columns = tuple((f"column{n}", type_) for n, type_ in enumerate(types, 1))
        return Relation(" UNION ALL ".join(selects), columns)

    def _table(self, node: exp.Table, scope: Mapping[str, Relation], clause: FromClause) -> str:
        refuse_parts(node, frozenset(("this", "db", "alias", "joins")))
        names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
        if not node.db and node.name in scope:
            return self._derived(renamed(scope[node.name], names), node.alias or node.name, clause)
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
            columns[name] = SourceColumn(alias, column, reads, ordered)
        if delta is not None:
            columns[WEIGHT] = Typed(f"{alias}.{identifier(WEIGHT)}", BIGINT)
        self._bind(clause, node.alias or node.name, columns)
        return f"{view_name(source.oid) if delta is None else delta_view_name(source.oid)} AS {alias}"

    def _derived(self, relation: Relation, name: str, clause: FromClause) -> str:
        alias = self._alias()
        columns = {name: reference(alias, n, type_) for n, (name, type_) in enumerate(relation.columns)}
        if len(columns) < len(relation.columns):
            raise NotExpressible("a derived table with two columns of one name")
        self._bind(clause, name or alias, columns)
        return f"{relation.item} AS {alias}"

    def _bind(self, clause: FromClause, name: str, columns: Mapping[str, Any]) -> None:
        if name in clause.bindings:
            raise NotExpressible(f'two items called "{name}" in FROM')
        clause.bindings[name] = dict(columns)

    def _join(self, join: exp.Join, scope: Mapping[str, Relation], clause: FromClause) -> str:
        refuse_parts(join, frozenset(("this", "on", "side", "kind")))
        side, kind = (join.args.get(part) or "" for part in ("side", "kind"))
        if kind not in ("", "INNER", "CROSS", "OUTER") or side not in ("", "LEFT", "RIGHT", "FULL"):
            raise NotExpressible(f"{side} {kind} JOIN".strip())
        if (copies := repeated_by(join.this)) is not None:
            expressions = Expressions(lambda column: self._resolve(column, (clause.bindings,)))
            number = expressions.render(copies).sql
            return f" LATERAL VIEW explode(array_repeat(0, CAST({number} AS INT))) {self._alias()} AS x"
        item = self._item(join.this, scope, clause)
        if has_joins(join.this):
            item = f"({item})"
        condition = join.args.get("on")
        if condition is None:
            return f" CROSS JOIN {item}"
        expressions = Expressions(lambda column: self._resolve(column, (clause.bindings,)))
        return f" {side or 'INNER'} JOIN {item} ON {expressions.boolean(condition)}"

    def _resolve(self, column: exp.Column, levels: Levels) -> Typed:
        if column.args.get("db") or isinstance(column.this, exp.Star):
            raise NotExpressible("*" if isinstance(column.this, exp.Star) else f"column {column.sql('postgres')}")
        for bindings in levels:
            if column.table and column.table not in bindings:
                continue
            items = [bindings[column.table]] if column.table else bindings.values()
            found = [item[column.name] for item in items if column.name in item]
            if len(found) == 1:
                return found[0].use() if isinstance(found[0], SourceColumn) else found[0]
            if found or column.table:
                break
        raise NotExpressible(f"column {column.sql('postgres')}")
