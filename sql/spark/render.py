"""A query in Spark's dialect, if Spark's answer is exactly PostgreSQL's.

Names are resolved here, by PostgreSQL's rules, and replaced by generated ones, so that Spark's own rules (names that
differ in case only are one, lateral aliases) never matter. A table becomes the view ``source_<oid>``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from sql.base.columns import Column, Source
from sql.canonical.written import read
from sql.errors import NotExpressible
from sql.operators.statement import Types
from sql.spark.expressions import SparkExpressions
from sql.spark.from_clause import FromClauses, Levels, Scope, SourceView, delta_view_name, view_name
from sql.spark.numbers.exact import Layers, shown
from sql.spark.protocol import Environment
from sql.spark.relations import (
    FromClause,
    Relation,
    SelectText,
    cast_columns,
    check_all_groupable,
    check_groupable,
    is_grouped,
    literal_number,
    named,
    reference,
    refuse_parts,
    renamed,
)
from sql.spark.simplify import looks_of, simplified
from sql.spark.statistics import alike, is_written_out
from sql.spark.types import NUMERAL, Display, Typed, column_type
from sql.spark.user_defined.functions import inlined
from sql.spark.user_defined.types import carried, carriers
from sql.spark.values import unify
from sql.spark.windows import sort_key

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


def render_spark(
    query: str,
    sources: Sequence[Source],
    output: Sequence[Column] = (),
    *,
    environment: Environment | None = None,
    total_orders: bool = True,
) -> SparkQuery:
    """Render a canonical query (PostgreSQL dialect, tables qualified) for Spark.

    ``output`` gives the columns' types where they are known, which are then checked against what was inferred.
    ``environment`` is that of the session, of which nothing is known by default. ``total_orders``: no two rows that
    differ are peers in the ORDER BY of a LIMIT, as in all that the compiler writes. Raises NotExpressible.

    >>> orders = Source(7, "public", "orders", (Column("region", "text"), Column("amount", "integer")))
    >>> spark = render_spark("SELECT o.region, sum(o.amount) AS total FROM public.orders o GROUP BY o.region", [orders])
    >>> print(spark.sql)
    SELECT r0.`region` AS c0, sum(CAST(r0.`amount` AS BIGINT)) AS c1 FROM source_7 AS r0 GROUP BY r0.`region`
    >>> spark.reads, [column.type for column in spark.columns]
    ({7: ('region', 'amount')}, ['text', 'bigint'])
    """
    environment = environment or Environment()
    renderer = Renderer(sources, environment, total_orders=total_orders)
    relation = renderer.given_out(renderer.query(understood(read(query), sources, environment), {}))
    columns = relation.declared
    if output:
        check_types(output, columns)
    reads = {oid: tuple(names) for oid, names in renderer.reads.items()}
    return SparkQuery(relation.sql, reads, columns)


def understood(query: exp.Expr, sources: Sequence[Source], environment: Environment) -> exp.Expr:
    """A query over sources as `Renderer.query` wants it. Changes its argument. Raises NotExpressible."""
    return simplified(carried(inlined(query, environment.functions), carriers(sources)))


def typed(query: SparkQuery, types: Types, sources: Iterable[Source]) -> SparkQuery:
    """A query with other names for its columns, which PostgreSQL knows to be of these types ("" for any).

    Raises NotExpressible if one was read as of another type.
    """
    known = carriers(sources)
    for (name, type_), found in zip(types, query.columns, strict=True):
        if type_:
            _check_type(Column(name, type_, carrier=known.get(type_, "")), found)
    columns = tuple(replace(found, name=name) for (name, _), found in zip(types, query.columns, strict=True))
    return replace(query, columns=columns)


def check_types(expected: Sequence[Column], found: Sequence[Column]) -> None:
    """Raises NotExpressible if a column was read as of another type than PostgreSQL knows it to be."""
    if len(expected) != len(found):
        raise NotExpressible("a different number of columns")
    for one, other in zip(expected, found, strict=True):
        _check_type(one, other)


def _check_type(expected: Column, found: Column) -> None:
    if _declared(expected) != found.type:
        raise NotExpressible(f'column "{expected.name}", which is {expected.type} but was read as {found.type}')


def _declared(column: Column) -> str:
    """A column's type as `SparkQuery.columns` names it."""
    try:
        return column_type(column.type, carrier=column.carrier).declared
    except NotExpressible:
        return column.type


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


class Renderer:
    """Renders queries over the same sources, and over their net changes, ``deltas``, by the names of these.

    ``views`` has the sources that Spark has by other names than `view_name`, by oid.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        environment: Environment,
        deltas: Mapping[str, Source] | None = None,
        total_orders: bool = True,
        views: Mapping[int, SourceView] | None = None,
    ):
        self._total_orders = total_orders
        self._from = FromClauses(sources, deltas or {}, environment, self.query, views or {})

    @property
    def reads(self) -> dict[int, dict[str, None]]:
        """The columns read of each source so far."""
        return self._from.reads

    @property
    def uses(self) -> Counter[str]:
        """How often each view of changes, or of a query, is read so far."""
        return self._from.uses

    def query(self, node: Any, scope: Scope) -> Relation:
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

    def _common_tables(self, node: exp.Query, scope: Scope) -> Scope:
        clause = node.args.get("with_")
        if clause is None:
            return scope
        if clause.args.get("recursive"):
            raise NotExpressible("WITH RECURSIVE")
        inner = dict(scope)
        for table in clause.expressions:
            relation = self._written_in_place(table.this, inner)
            names = [column.name for column in table.args["alias"].columns]
            inner[table.alias] = renamed(relation, names)
        return inner

    def _written_in_place(self, node: Any, scope: Scope) -> Relation:
        """A query that has no view: its text, and with it what it reads, stands wherever it is used."""
        uses = self._from.uses
        self._from.uses = Counter()
        relation = self.query(node, scope)
        inside, self._from.uses = self._from.uses, uses
        return replace(relation, inside=tuple(inside.elements()))

    def given_out(self, relation: Relation) -> Relation:
        """The rows as PostgreSQL is to get them: numerics that have a display scale each are written as text."""
        if any(type_.display is Display.LOST for _, type_ in relation.columns):
            raise NotExpressible("numeric whose display scale depends on the order of rows")
        if any(type_.name == "character" and not type_.precision for _, type_ in relation.columns):
            raise NotExpressible("values of character with different lengths")
        if not any(type_.display is Display.KEPT for _, type_ in relation.columns):
            return relation
        alias = self._from.alias()
        items = [
            shown(reference(alias, n, type_)) if type_.display is Display.KEPT else f"{alias}.c{n}"
            for n, (_, type_) in enumerate(relation.columns)
        ]
        columns = tuple((name, NUMERAL if type_.display is Display.KEPT else type_) for name, type_ in relation.columns)
        named = ", ".join(f"{item} AS c{n}" for n, item in enumerate(items))
        return Relation(f"SELECT {named} FROM {relation.item} AS {alias}", columns)

    def _set_operation(self, node: exp.SetOperation, scope: Scope) -> Relation:
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
            check_all_groupable(columns)
        branches = [cast_columns(branch, types, self._from.alias()) for branch in (left, right)]
        if name != "UNION":
            # INTERSECT binds closer than the others, wherever it stands.
            branches = [f"({branch})" for branch in branches]
        return Relation(f" {name}{'' if distinct else ' ALL'} ".join(branches), columns)

    def _select(self, node: exp.Select, scope: Scope, outer: Levels = ()) -> Relation:
        """A SELECT; ``outer`` are the items of the FROM clauses around it, innermost first, that it may refer to."""
        refuse_parts(node, _SELECT_PARTS)
        if node.args.get("kind"):
            raise NotExpressible(f"SELECT {node.args['kind']}")
        if (distinct := node.args.get("distinct")) and distinct.args.get("on"):
            return self._first_of_each(node, scope, outer)
        clause = self._from.clause(node, scope)
        levels = (clause.bindings, *outer)
        grouped = is_grouped(node)
        if any(item.find(exp.Window) for item in node.expressions):
            self._check_windows(grouped=grouped)
        layers = Layers(self._from.alias()) if grouped else Layers(clause.single) if clause.single else None
        expressions = self._from.expressions(levels, layers)
        select = SelectText(clause.sql, layers, grouped)
        if grouped:
            expressions = expressions.over_groups(lambda sql: self._before(select, sql))
        keys = self._group_by(node, expressions, select)
        expressions = expressions.with_keys(keys)
        names, texts = [], []
        for item in self._items(node, clause):
            select.items.append(expressions.render(item.unalias()))
            names.append(item.alias_or_name)
            texts.append(item.unalias().unnest().sql("postgres"))
        columns = tuple((name, value.type) for name, value in zip(names, select.items, strict=True))
        if distinct:
            check_all_groupable(columns)
            select.distinct = True
        if where := node.args.get("where"):
            conditional = expressions.with_queries(lambda query: self._exists(query, scope, levels))
            select.where = conditional.boolean(where.this)
            select.where_divides = layers is not None and layers.above(select.where) > 0
        if having := node.args.get("having"):
            plain = self._from.expressions(levels).with_keys(keys)
            select.having = plain.over_groups(lambda sql: self._before(select, sql)).boolean(having.this)
        select.ending = self._ending(
            node,
            expressions,
            dict(zip((*texts, *names), (*range(len(texts)), *range(len(names))), strict=True)),
            select,
        )
        return Relation(select.text(), columns)

    def _before(self, select: SelectText, sql: str) -> str:
        """A column of what is grouped. Sail does not know a function in Python again."""
        if sql not in select.before:
            select.before[sql] = self._from.alias()
        return f"{select.before[sql]}.x"

    def _check_windows(self, *, grouped: bool) -> None:
        if grouped:
            raise NotExpressible("window function over aggregates")
        if not self._total_orders:
            raise NotExpressible("window function over an order that may leave ties")

    def _first_of_each(self, node: exp.Select, scope: Scope, outer: Levels) -> Relation:
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
        alias, columns = self._from.alias(), relation.columns[:-1]
        items = [named(n, reference(alias, n, type_)) for n, (_, type_) in enumerate(columns)]
        where = f"WHERE {alias}.c{len(columns)} = 1"
        return Relation(f"SELECT {', '.join(items)} FROM ({relation.sql}) AS {alias} {where}", columns)

    def _ending(
        self, node: exp.Select, expressions: SparkExpressions, given: Mapping[str, int], select: SelectText
    ) -> str:
        """ORDER BY and LIMIT; ``given``: columns by name and by text. Without a limit the order means nothing."""
        limit, offset = (literal_number(node.args.get(part)) for part in ("limit", "offset"))
        if limit is None and offset is None:
            return ""
        if not self._total_orders:
            raise NotExpressible("LIMIT over an order that may leave ties")
        environment = expressions.environment
        items = node.args["order"].expressions if node.args.get("order") else ()
        keys = [
            sort_key(_sorted_by(item.this.unnest(), expressions, given, select), item, environment) for item in items
        ]
        ending = f" ORDER BY {', '.join(keys)}" if keys else ""
        ending += f" LIMIT {limit}" if limit is not None else ""
        return ending + (f" OFFSET {offset}" if offset is not None else "")

    def _exists(self, node: Any, scope: Scope, levels: Levels) -> str:
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

    def _group_by(
        self, select: exp.Select, expressions: SparkExpressions, text: SelectText
    ) -> list[tuple[exp.Expr, Typed]]:
        """Write the keys. Returns those that are computed before."""
        group = select.args.get("group")
        if group is None:
            return []
        refuse_parts(group, frozenset(("expressions",)))
        keys: list[str] = []
        before: list[tuple[exp.Expr, Typed]] = []
        values = {node.sql("postgres") for node in group.expressions}
        looks = {looks_of(node) for node in group.expressions}
        for node in group.expressions:
            if (isinstance(node, exp.Tuple) and not node.expressions) or looks_of(node) in values:
                continue
            if isinstance(node, exp.Literal):
                raise NotExpressible("GROUP BY a position")
            key = expressions.render(node)
            shown_apart = node.sql("postgres") in looks
            if (same := alike(key)) and not shown_apart and not _given_as_it_is(node, select):
                keys.append(expressions.once(same))
                continue
            if (known := expressions.once(key.sql)) != key.sql:
                key = replace(key, sql=known)
                before.append((node.unnest(), key))
            keys += _keys_of(node, key, shown_apart=shown_apart)
        text.keys = ", ".join(keys)
        return before


def _keys_of(node: exp.Expr, key: Typed, *, shown_apart: bool) -> list[str]:
    """What rows are grouped by for a key; ``shown_apart``: values that look different are. Raises NotExpressible."""
    if shown_apart and key.type.display is Display.KEPT:
        return [key.sql, key.display]
    if not (shown_apart and is_written_out(key)):
        check_groupable(node.sql("postgres"), key.type)
    return [key.sql]


def _given_as_it_is(key: exp.Expr, select: exp.Select) -> bool:
    """Whether a key is used outside of aggregates: then it would have to be one of a group's equal values."""
    text, having = _bare(key), select.args.get("having")
    for item in (*select.expressions, *([having.this] if having else [])):
        inner = item.walk(prune=lambda node: isinstance(node, exp.AggFunc))
        if any(type(node) is type(key) and _bare(node) == text for node in inner):
            return True
    return False


def _bare(node: exp.Expr) -> str:
    """An expression without the names of tables, which may be left out."""
    bare = node.copy()
    for column in bare.find_all(exp.Column):
        column.set("table", None)
    return str(bare.sql("postgres"))


def _sorted_by(key: exp.Expr, expressions: SparkExpressions, given: Mapping[str, int], select: SelectText) -> Typed:
    """What an ORDER BY sorts by: a column that is given out, or another expression. Raises NotExpressible."""
    by_name = isinstance(key, exp.Column) and not key.table
    own = given.get(key.name if by_name else key.sql("postgres"))
    if own is not None:
        return Typed(f"c{own}", select.items[own].type)
    if select.grouped or select.distinct or select.divides:
        raise NotExpressible("ORDER BY what is not given out")
    return expressions.render(key)
