"""ORDER BY where it decides which rows there are: with LIMIT, OFFSET, FETCH FIRST or DISTINCT ON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.build.projection import projected, require_groupable
from sql.build.protocol import Builder
from sql.build.scope import Relation
from sql.build.windows import direction, reference, spread
from sql.canonical.dialect import generate
from sql.canonical.from_items import ValuesQuery
from sql.errors import NotDifferentiable
from sql.operators import Operator
from sql.operators.aggregates.distinct_on import DistinctOn
from sql.operators.aggregates.limit import Limit
from sql.operators.ordering import SortKey


@dataclass(frozen=True, slots=True)
class Ordering:
    """What a SELECT sorts by, in its own words; ``on`` is what DISTINCT ON tells apart."""

    order: tuple[exp.Expr, ...]
    directions: tuple[tuple[bool, bool], ...]
    on: tuple[exp.Expr, ...]

    @staticmethod
    def of(query: exp.Select) -> Ordering:
        """The clauses that matter; an ORDER BY alone makes no difference to which rows there are."""
        distinct = query.args.get("distinct")
        on = distinct.args.get("on") if distinct else None
        if not (limited(query) or on):
            return Ordering((), (), ())
        items = query.args["order"].expressions if query.args.get("order") else []
        # A constant tells nothing apart.
        meant = [(_meant(item.this, query), *direction(item)) for item in items]
        varying = [item for item in spread(meant) if not _constant(item[0])]
        told = spread([(_meant(item, query), False, False) for item in (on.expressions if on else ())])
        return Ordering(
            tuple(node for node, _, _ in varying),
            tuple((descending, nulls_first) for _, descending, nulls_first in varying),
            tuple(node for node, _, _ in told if not _constant(node)),
        )

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        """Everything to be computed for it."""
        return self.order + self.on

    def keys(self, fields: Sequence[Field]) -> tuple[tuple[SortKey, ...], tuple[Field, ...]]:
        """The sort keys and the columns of DISTINCT ON, given the columns of `expressions`."""
        order = tuple(
            SortKey(column, descending, nulls_first)
            for column, (descending, nulls_first) in zip(fields, self.directions, strict=False)
        )
        return order, tuple(dict.fromkeys(fields[len(order) :]))


def limited(query: exp.Expr) -> bool:
    """Whether a query gives out some rows only."""
    limit = query.args.get("limit")
    every = isinstance(limit, exp.Limit) and _is_all(limit.expression)
    return bool(limit is not None and not every) or query.args.get("offset") is not None


def _is_all(count: exp.Expr | None) -> bool:
    return isinstance(count, exp.Var) and count.name.upper() == "ALL"


def _constant(node: exp.Expr) -> bool:
    node = node.unnest()
    return isinstance(node, exp.Literal | exp.Null | exp.Boolean) or (
        isinstance(node, exp.Cast) and _constant(node.this)
    )


def _meant(item: exp.Expr, query: exp.Select) -> exp.Expr:
    """What an item of ORDER BY means: a name or number can be an output column's."""
    if isinstance(item, exp.Column) and not item.table:
        named = [node for node in query.expressions if node.alias_or_name == item.name]
        return named[0].unalias() if named else item
    if isinstance(item, exp.Literal) and not item.is_string and item.name.isdigit():
        numbered: exp.Expr = query.expressions[int(item.name) - 1]
        return numbered.unalias()
    return item


def lift(
    builder: Builder, operator: Operator, parts: Sequence[exp.Expr], hidden: Sequence[exp.Expr]
) -> tuple[Operator, list[exp.Expr]]:
    """Columns for the expressions that are sorted by but not given out, computed below the select list."""
    known = {generate(part.unnest()) for part in parts}
    extra = [h for h in hidden if not isinstance(h.unnest(), exp.Column) and generate(h.unnest()) not in known]
    if not extra:
        return operator, list(hidden)
    used = {column.name: column for part in (*parts, *hidden) for column in part.find_all(exp.Column)}
    kept = [("column", column.copy()) for column in used.values()]
    operator, fields = projected(builder, operator, [*kept, *(("order", e) for e in extra)])
    columns = {generate(e): reference(f) for e, f in zip(extra, fields[len(kept) :], strict=True)}
    return operator, [columns.get(generate(h), h) for h in hidden]


def distinct_on(relation: Relation, keys: tuple[Field, ...]) -> Relation:
    """DISTINCT ON: of the rows that agree in the keys the first in the relation's order."""
    require_groupable(keys, "DISTINCT ON")
    return replace(relation, operator=DistinctOn(relation.operator, keys, relation.order))


def limit(query: exp.Expr, relation: Relation, within: tuple[Field, ...] = ()) -> Relation:
    """LIMIT, OFFSET and FETCH FIRST, of all rows or of those of each group of the columns ``within``."""
    order = relation.order
    if isinstance(query, exp.SetOperation | ValuesQuery):
        order = _positions(query, relation)
    clause, offset = query.args.get("limit"), query.args.get("offset")
    ties = False
    count = None
    if isinstance(clause, exp.Fetch):
        options = clause.args.get("limit_options")
        ties = bool(options and options.args.get("with_ties"))
        count = clause.args.get("count") or exp.Literal.number(1)
    elif clause is not None and not _is_all(clause.expression):
        count = clause.expression
    skipped = offset.expression if offset is not None else None
    for number in (count, skipped):
        if number is not None and number.find(exp.Query):
            raise NotDifferentiable("LIMIT with a subquery")
    operator = Limit(
        relation.operator,
        within,
        order,
        generate(count) if count is not None else None,
        generate(skipped) if skipped is not None else None,
        ties,
    )
    return Relation(operator, relation.output)


def _positions(query: exp.Expr, relation: Relation) -> tuple[SortKey, ...]:
    items = query.args["order"].expressions if query.args.get("order") else []
    columns = {name: field for name, field in reversed(relation.output)}
    keys = []
    for item in items:
        name = item.this.name
        column = relation.output[int(name) - 1][1] if isinstance(item.this, exp.Literal) else columns.get(name)
        if column is None:
            raise NotDifferentiable(f"ORDER BY {generate(item.this)} without SELECT")
        keys.append(SortKey(column, bool(item.args.get("desc")), bool(item.args.get("nulls_first"))))
    return tuple(keys)
