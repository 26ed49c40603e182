"""Unnesting: a correlated query as a query for all outer rows at once.

A correlated query is a function of the outer columns that it uses, its *parameters*. Let D be the distinct values that
they take. Then

    unnested(Q) = { (d, r) : d ∈ D, r ∈ Q(d) },

and whoever needs ``Q(o)`` joins with it on the parameters (T. Neumann, A. Kemper: *Unnesting Arbitrary Queries*, BTW
2015). D is joined into FROM where a parameter is used, and every construct is told to treat the rows of each d apart:
GROUP BY and DISTINCT have D's columns as further keys, windows are partitioned by them, LIMIT counts within them, set
operations compare them, too. An aggregate without GROUP BY has a row for every d, even if nothing is left to aggregate
(see `outer_domain_union`).

Everything here is syntax: what comes out is an ordinary query that reads D under a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.build.grouping_sets import grouped_by
from sql.build.subqueries.subplan import WITHIN
from sql.canonical.from_items import ValuesQuery
from sql.canonical.local_nodes import local_aliases, output_names, own, own_aggregates
from sql.canonical.nodes import all_of
from sql.canonical.null_safe_equal import NullSafeEqual
from sql.errors import NotDifferentiable

PRESENT = "__pgt_present"
"""The column that tells rows of the body from those that `outer_domain_union` adds."""

Fresh = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class EveryQuery:
    """What an aggregate without GROUP BY reads: the body's rows, and one more for every row of D."""

    name: str
    body: exp.Query
    outer: str


@dataclass(slots=True)
class Unnesting:
    """Unnests one query over D, which is read as the table ``outer`` with the columns ``parameters``.

    `every` collects the relations that the result reads beside D.
    """

    outer: str
    parameters: Sequence[str]
    fresh: Fresh
    special: frozenset[str]
    every: list[EveryQuery]

    def query(self, query: exp.Expr) -> exp.Query:
        """The query for all rows of D: its first columns are D's. Raises NotDifferentiable."""
        query = _plain(query)
        self._inline_common_tables(query)
        if not self._uses(query):
            return self._repeated(query)
        if isinstance(query, exp.SetOperation):
            return self._set_operation(query)
        if isinstance(query, exp.Values | ValuesQuery):
            return self._values(query)
        if isinstance(query, exp.Select):
            return self._select(query)
        raise NotDifferentiable(f"correlated {type(query).__name__.upper()}")

    def _uses(self, node: exp.Expr | None) -> bool:
        return node is not None and any(column.table == self.outer for column in all_of(node, exp.Column))

    def _parameters(self, alias: str) -> list[exp.Expr]:
        return [_column(name, alias) for name in self.parameters]

    def _named(self, alias: str) -> list[exp.Expr]:
        return [exp.alias_(_column(name, alias), name, quoted=True) for name in self.parameters]

    def _table(self, alias: str) -> exp.Table:
        return exp.Table(this=_identifier(self.outer), alias=exp.TableAlias(this=_identifier(alias)))

    def _repeated(self, query: exp.Query) -> exp.Query:
        """The same rows for every d."""
        alias, inner = self.fresh("__pgt_d"), self.fresh("__pgt_q")
        names = output_names(query)
        columns = [f"__pgt_c{i}" for i in range(len(names))]
        table = exp.TableAlias(this=_identifier(inner), columns=[_identifier(c) for c in columns])
        cross = exp.Join(this=exp.Subquery(this=query, alias=table), kind="CROSS")
        return exp.Select(
            expressions=self._named(alias)
            + [exp.alias_(_column(c, inner), n, quoted=True) for c, n in zip(columns, names, strict=True)],
            from_=exp.From(this=self._table(alias)),
            joins=[cross],
        )

    def _set_operation(self, query: exp.SetOperation) -> exp.Query:
        query.set("this", self.query(query.this))
        query.set("expression", self.query(query.expression))
        if query.args.get("limit") or query.args.get("offset"):
            for item in query.args["order"].expressions if query.args.get("order") else ():
                if isinstance(item.this, exp.Literal):
                    item.set("this", exp.Literal.number(int(item.this.name) + len(self.parameters)))
            query.meta[WITHIN] = len(self.parameters)
        else:
            query.set("order", None)
        return query

    def _values(self, query: exp.Expr) -> exp.Query:
        if any(query.args.get(key) for key in ("order", "limit", "offset")):
            raise NotDifferentiable("correlated VALUES with ORDER BY or LIMIT")
        values = query if isinstance(query, exp.Values) else query.args["from_"].this
        branches: list[exp.Query] = []
        for row in values.expressions:
            items = row.expressions if isinstance(row, exp.Tuple) else [row]
            named = [exp.alias_(item.copy(), f"column{i}", quoted=True) for i, item in enumerate(items, 1)]
            branches.append(self._select(exp.Select(expressions=named)))
        result = branches[0]
        for branch in branches[1:]:
            result = exp.Union(this=result, expression=branch, distinct=False)
        return result

    def _select(self, query: exp.Select) -> exp.Query:
        limited = bool(query.args.get("limit") or query.args.get("offset"))
        alias, conditions = self._place(query)
        where = query.args.get("where")
        if conditions:
            query.set("where", exp.Where(this=exp.and_(*([where.this] if where else []), *conditions, wrap=True)))
        self._rename(query, alias)
        for window in [*own(query, exp.Window), *(query.args.get("windows") or ())]:
            if not window.args.get("alias"):
                window.set("partition_by", [*self._parameters(alias), *(window.args.get("partition_by") or ())])
        self._sort_within(query, alias, limited=limited)
        group = query.args.get("group")
        aggregates = list(own_aggregates(query, self.special))
        if group is not None:
            if not all(grouped_by(group).sets):
                raise NotDifferentiable("empty grouping set over an outer column")
            group.set("expressions", [*self._parameters(alias), *group.expressions])
        elif aggregates or query.args.get("having"):
            alias = self._total(query, alias, aggregates)
        query.set("expressions", [*self._named(alias), *query.expressions])
        if limited:
            query.meta[WITHIN] = len(self.parameters)
        return query

    def _sort_within(self, query: exp.Select, alias: str, *, limited: bool) -> None:
        """ORDER BY and DISTINCT ON, which choose among the rows of each d."""
        distinct, order = query.args.get("distinct"), query.args.get("order")
        on = distinct.args.get("on") if distinct is not None else None
        if on:
            on.set("expressions", [*self._parameters(alias), *on.expressions])
        if order is None:
            return
        if not limited and not on:
            query.set("order", None)
            return
        for item in order.expressions:
            if isinstance(item.this, exp.Literal) and not item.this.is_string:
                item.set("this", exp.Literal.number(int(item.this.name) + len(self.parameters)))
        if on:
            order.set("expressions", [exp.Ordered(this=c) for c in self._parameters(alias)] + order.expressions)

    def _total(self, query: exp.Select, alias: str, aggregates: list[exp.Expr]) -> str:
        """An aggregate without GROUP BY: one row for every d. The body becomes a relation of its own."""
        rows = self.fresh("__pgt_rows")
        bound = local_aliases(query)
        columns: dict[str, tuple[str, exp.Expr]] = {}
        kept = [*query.expressions, *(query.args.get(k) for k in ("having", "order", "distinct"))]
        kept += query.args.get("windows") or ()
        for part in [part for part in kept if part is not None]:
            for column in all_of(part, exp.Column):
                inside = column.find_ancestor(exp.Select, exp.SetOperation)
                if column.table == alias:
                    column.set("table", _identifier(rows))
                elif column.table in bound or (not column.table and inside is query):
                    text = column.sql()
                    name, _ = columns.setdefault(text, (f"__pgt_c{len(columns)}", column.copy()))
                    column.replace(_column(name, rows))
        body = exp.Select(
            expressions=[
                *self._named(alias),
                exp.alias_(exp.true(), PRESENT, quoted=True),
                *(exp.alias_(column, name, quoted=True) for name, column in columns.values()),
            ]
        )
        if query.args.get("with_"):
            body.set("with_", query.args["with_"].copy())
        for key in ("from_", "joins", "where"):
            body.set(key, query.args.get(key))
            query.set(key, None)
        name = self.fresh("__pgt_every")
        self.every.append(EveryQuery(name, body, self.outer))
        query.set(
            "from_",
            exp.From(this=exp.Table(this=_identifier(name), alias=exp.TableAlias(this=_identifier(rows)))),
        )
        for call in list(own_aggregates(query, self.special)):
            _filtered(call, _column(PRESENT, rows))
        query.set("group", exp.Group(expressions=self._parameters(rows)))
        return rows

    def _rename(self, query: exp.Expr, alias: str) -> None:
        for column in all_of(query, exp.Column):
            if column.table == self.outer:
                column.set("table", _identifier(alias))

    def _place(self, query: exp.Select) -> tuple[str, list[exp.Expr]]:
        """Put D into FROM. Returns its alias, and conditions for WHERE."""
        clause = query.args.get("from_")
        if clause is None:
            alias = self.fresh("__pgt_d")
            query.set("from_", exp.From(this=self._table(alias)))
            return alias, []
        items = [exp.Join(this=clause.this), *(query.args.get("joins") or ())]
        if any(_explicit(join) for join in items):
            raise NotDifferentiable("join outside parentheses over an outer column")
        users = [item for item in items if self._uses(item.this)]
        if len(users) == 1 and _tree(users[0].this):
            alias = self._place_in_tree(users[0].this)
            query.set("from_", exp.From(this=items[0].this))
            query.set("joins", items[1:])
            return alias, []
        alias = self.fresh("__pgt_d")
        conditions: list[exp.Expr] = []
        for item in items:
            if _tree(item.this) and self._uses(item.this):
                conditions += self._agree(alias, self._place_in_tree(item.this))
            else:
                self._lateral(item)
        items[0].set("kind", "CROSS")
        query.set("from_", exp.From(this=self._table(alias)))
        query.set("joins", items)
        return alias, conditions

    def _agree(self, left: str, right: str) -> list[exp.Expr]:
        return [
            NullSafeEqual(this=a, expression=b)
            for a, b in zip(self._parameters(left), self._parameters(right), strict=True)
        ]

    def _lateral(self, join: exp.Join) -> None:
        """What uses parameters in FROM reads them from D, which stands to its left."""
        item = join.this
        if isinstance(item, exp.Subquery) and self._uses(item):
            alias = item.args.get("alias")
            item.set("alias", None)
            join.set("this", exp.Lateral(this=item, alias=alias))

    def _place_in_tree(self, tree: exp.Subquery) -> str:
        """Put D into a join in parentheses, on the side that keeps its rows. Returns its alias.

        Where D joins in a second time, the two must agree: else there would be rows of one d beside rows of another.
        """
        first = tree.this
        joins = first.args.get("joins") or []
        first.set("joins", None)
        if len(joins) == 1 and joins[0].side == "RIGHT" and not joins[0].args.get("using"):
            first, mirrored = joins[0].this, first
            joins[0].set("this", mirrored)
            joins[0].set("side", "LEFT")
            tree.set("this", first)
        for join in joins:
            _check_keeps_left(join)
        if _tree(first) and self._uses(first):
            alias = self._place_in_tree(first)
            first.set("joins", joins)
        else:
            alias = self.fresh("__pgt_d")
            leaf = exp.Join(this=first, kind="CROSS")
            self._lateral(leaf)
            table = self._table(alias)
            table.set("joins", [leaf, *joins])
            tree.set("this", table)
        for join in joins:
            if _tree(join.this) and self._uses(join.this):
                agree = self._agree(alias, self._place_in_tree(join.this))
                if join.args.get("using"):
                    raise NotDifferentiable("USING over an outer column")
                on = join.args.get("on")
                join.set("on", exp.and_(*([on] if on is not None else []), *agree, wrap=True))
                if join.kind == "CROSS":
                    join.set("kind", "INNER")
            else:
                self._lateral(join)
        self._rename(tree, alias)
        return alias

    def _inline_common_tables(self, query: exp.Query) -> None:
        """WITH queries that use parameters are put in where they are read."""
        clause = query.args.get("with_")
        if clause is None or not self._uses(clause):
            return
        if clause.args.get("recursive"):
            raise NotDifferentiable("correlated WITH RECURSIVE")
        known: dict[str, tuple[exp.Expr, list[exp.Identifier]]] = {}
        query.set("with_", None)
        for common in clause.expressions:
            body = common.this
            _inline(body, known)
            known[common.alias] = (body, list(common.args["alias"].columns))
        _inline(query, known)


def _inline(query: exp.Expr, known: dict[str, tuple[exp.Expr, list[exp.Identifier]]]) -> None:
    for table in all_of(query, exp.Table):
        found = known.get(table.name) if not table.db else None
        if found is None:
            continue
        alias = table.args.get("alias")
        names = [*(alias.columns if alias else ())] or [c.copy() for c in found[1]]
        derived = exp.Subquery(
            this=found[0].copy(),
            alias=exp.TableAlias(this=_identifier(table.alias_or_name), columns=[n.copy() for n in names]),
            joins=table.args.get("joins"),
        )
        table.replace(derived)


def _plain(query: exp.Expr) -> exp.Query:
    query = query.copy()
    while isinstance(query, exp.Subquery) and not query.args.get("with_"):
        query = query.this
    return query  # type: ignore[return-value]


def _identifier(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _column(name: str, table: str) -> exp.Column:
    return exp.Column(this=_identifier(name), table=_identifier(table))


def _explicit(join: exp.Join) -> bool:
    return bool(join.side or join.kind or join.method or join.args.get("on") or join.args.get("using"))


def _tree(item: exp.Expr) -> bool:
    """Whether an item of FROM is a join in parentheses."""
    return isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery)


def _filtered(call: exp.Expr, condition: exp.Expr) -> None:
    """Add a condition to an aggregate call's FILTER."""
    if isinstance(call, exp.Filter):
        where = call.expression
        where.set("this", exp.and_(condition, where.this, wrap=True))
    else:
        call.replace(exp.Filter(this=call.copy(), expression=exp.Where(this=condition)))


def _check_keeps_left(join: exp.Join) -> None:
    """Refuse a join that does not go along with the columns of its left side."""
    if join.side in ("RIGHT", "FULL"):
        raise NotDifferentiable(f"{join.side} JOIN over an outer column")
    if join.method:
        raise NotDifferentiable(f"{join.method} JOIN over an outer column")
