"""Subqueries in expressions: taken out of them where names are resolved, replaced by placeholders.

A subquery is a function of the outer columns that it uses. So it becomes a call ``__pgt_subquery(n, i, arguments …)``
of the query's n-th subplan, of whose result it is the i-th column. Like any call it goes through GROUP BY, windows and
projections, and its arguments are rewritten on the way; where the expression is computed at last, `attaching` joins
the subplan's rows to the operator that has the arguments.

Only two kinds are left then. ``x op ANY (Q)`` is true if Q has a row with ``x op y``, false if all of its rows have
``(x op y) IS FALSE``; ``x op ALL (Q)`` is the dual; ``x IN (Q)`` is ``x = ANY (Q)``. Each is an EXISTS with one more
condition, or two of them where three truth values have to be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from sql.build.aggregation import calls
from sql.build.protocol import Builder, Kind, Subplan
from sql.build.scope import Binding
from sql.build.subqueries.quantifiers import (
    array_query,
    chosen,
    comparison,
    is_quantified,
    row_items,
    truth_test,
    unknown,
)
from sql.build.subqueries.subplan import PLACEHOLDER, has_placeholder
from sql.canonical.dialect import generate
from sql.canonical.from_items import ValuesQuery
from sql.canonical.local_nodes import local_aliases, output_names
from sql.canonical.nodes import all_of, contains
from sql.errors import NotDifferentiable

OUTER = "__pgt_outer_"


class Truth(Enum):
    """Which of a condition's three values matter to who asks for it."""

    IS_TRUE = "true or not"
    IS_FALSE = "false or not"
    VALUE = "all three"


def extract(
    builder: Builder, node: exp.Expr, bindings: Sequence[Binding], *, condition: bool = False, filters: bool = True
) -> exp.Expr:
    """The expression with placeholders for its subqueries. Of a ``condition`` it only matters whether it is true.

    ``filters``: whoever asks drops the rows for which a condition is not true, so NOT IN can become an anti-join.
    """
    if not contains(node, exp.Query, exp.Exists):
        return node
    root = exp.Paren(this=node.copy())
    extraction = _Extraction(builder, bindings)
    if condition and filters:
        extraction.not_in(root.this)
    extraction.visit(root, Truth.IS_TRUE if condition else Truth.VALUE)
    result: exp.Expr = root.this
    return result


@dataclass(slots=True)
class _Parameters:
    """The outer expressions that a subquery uses, and their names in it."""

    outer: str
    found: dict[str, tuple[str, exp.Expr]] = field(default_factory=dict)

    def column(self, node: exp.Expr) -> exp.Column:
        """The parameter that stands for an outer expression."""
        name, _ = self.found.setdefault(generate(node), (f"__pgt_p{len(self.found)}", node.copy()))
        return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(self.outer, quoted=True))


@dataclass(frozen=True, slots=True)
class _Extraction:
    builder: Builder
    bindings: Sequence[Binding]

    def not_in(self, node: exp.Expr) -> None:
        """Take NOT IN out of a conjunction."""
        inner = node.unnest()
        if isinstance(inner, exp.And):
            self.not_in(inner.left)
            self.not_in(inner.right)
            return
        found = None
        if isinstance(inner, exp.NEQ) and isinstance(inner.expression, exp.All) and is_quantified(inner.expression):
            found = inner.this, inner.expression.this
        elif isinstance(inner, exp.Not):
            within = inner.this.unnest()
            if isinstance(within, exp.In) and within.args.get("query"):
                found = within.this, within.args["query"]
        if found is not None:
            parameters = self._parameters()
            operands = self._operands(found[0], parameters)
            inner.replace(self._placeholders(Kind.NOT_IN, found[1].copy(), parameters, operands)[0])

    def visit(self, node: exp.Expr, truth: Truth) -> exp.Expr:
        """The node with its subqueries taken out, put in its place."""
        new = self._rewritten(node, truth)
        if new is not None:
            if node.parent is not None:
                node.replace(new)
            return new
        for child in list(node.iter_expressions()):
            self.visit(child, _wanted(node, child, truth))
        return node

    def _rewritten(self, node: exp.Expr, truth: Truth) -> exp.Expr | None:
        """What a node with a subquery of its own becomes."""
        if isinstance(node, exp.Exists):
            return self._placeholders(Kind.EXISTS, node.this, self._parameters())[0]
        if isinstance(node, exp.In) and node.args.get("query"):
            equal = exp.EQ(this=node.this, expression=exp.Any(this=node.args["query"]))
            return self._quantified(equal, truth)
        if isinstance(node, exp.Binary | exp.Operator) and is_quantified(node.expression):
            return self._quantified(node, truth)
        if isinstance(node, exp.Binary) and isinstance(node.expression, exp.Subquery):
            row = row_items(node.this)
            if row is not None:
                right = self._placeholders(Kind.SCALAR, node.expression, self._parameters())
                for item in row:
                    self.visit(item, Truth.VALUE)
                node.set("expression", exp.Anonymous(this="ROW", expressions=right))
                return node
        if isinstance(node, exp.Query):
            found = self._placeholders(Kind.SCALAR, node, self._parameters())
            if len(found) != 1:
                raise NotDifferentiable("subquery of several columns in an expression")
            return found[0]
        array = array_query(node)
        if array is not None:
            return self._placeholders(Kind.SCALAR, self._array_query(array), self._parameters())[0]
        return None

    def _parameters(self) -> _Parameters:
        return _Parameters(f"{OUTER}{self.builder.depth}")

    def _quantified(self, node: exp.Expr, truth: Truth) -> exp.Expr:
        """``x op ANY (Q)`` and ``x op ALL (Q)``."""
        every = isinstance(node.expression, exp.All)
        query = node.expression.this.copy()
        parameters = self._parameters()
        operands = self._operands(node.this, parameters)
        if every and isinstance(node, exp.NEQ):
            return exp.Not(this=exp.Paren(this=self._any(exp.EQ(), operands, query, parameters, _negated(truth))))
        if every:
            return self._all(node, operands, query, parameters, truth)
        return self._any(node, operands, query, parameters, truth)

    def _operands(self, node: exp.Expr, parameters: _Parameters) -> list[exp.Expr]:
        """The left side of a comparison with a subquery, as parameters of it."""
        row = row_items(node)
        operands: list[exp.Expr] = []
        for item in row if row is not None else [node]:
            wrapped = exp.Paren(this=item.copy())
            self.visit(wrapped.this, Truth.VALUE)
            inner = wrapped.this
            varies = inner.find(exp.Column) is not None or has_placeholder(inner)
            varies = varies or next(calls(inner, self.builder.special), None) is not None
            operands.append(parameters.column(inner) if varies else inner)
        return operands

    def _any(
        self, node: exp.Expr, operands: list[exp.Expr], query: exp.Expr, parameters: _Parameters, truth: Truth
    ) -> exp.Expr:
        if isinstance(node, exp.EQ):
            return self._in(operands, query, parameters, truth)
        compare = comparison(node, operands)
        if truth is Truth.IS_TRUE:
            return self._exists(query, parameters, compare)
        if truth is Truth.IS_FALSE:
            return self._exists(query, parameters, lambda c: truth_test(compare(c), "FALSE", negated=True))
        return chosen(
            (self._exists(query, parameters, compare), exp.true()),
            (
                self._exists(query, parameters, lambda c: exp.Is(this=exp.paren(compare(c)), expression=exp.null())),
                unknown(),
            ),
            exp.false(),
        )

    def _in(self, operands: list[exp.Expr], query: exp.Expr, parameters: _Parameters, truth: Truth) -> exp.Expr:
        equal = comparison(exp.EQ(), operands)
        matched = self._exists(query, parameters, equal)
        if truth is Truth.IS_TRUE:
            return matched
        if len(operands) == 1:
            operand = operands[0]
            maybe = self._exists(query, parameters, lambda c: exp.Is(this=c[0], expression=exp.null()))
            outer = next((o for _, o in parameters.found.values() if parameters.column(o) == operand), operand)
            nothing = exp.Is(this=exp.paren(outer.copy()), expression=exp.null())
            some = self._exists(query, _Parameters(parameters.outer), lambda c: exp.true())
            uncertain: exp.Expr = exp.or_(maybe, exp.and_(nothing, some, wrap=True), wrap=True)
        else:
            uncertain = self._exists(query, parameters, lambda c: truth_test(equal(c), "FALSE", negated=True))
        if truth is Truth.IS_FALSE:
            return exp.paren(exp.or_(matched, uncertain, wrap=True))
        return chosen((matched, exp.true()), (uncertain, unknown()), exp.false())

    def _all(
        self, node: exp.Expr, operands: list[exp.Expr], query: exp.Expr, parameters: _Parameters, truth: Truth
    ) -> exp.Expr:
        compare = comparison(node, operands)
        if truth is Truth.IS_TRUE:
            return exp.Not(this=self._exists(query, parameters, lambda c: truth_test(compare(c), "TRUE", negated=True)))
        fails = self._exists(query, parameters, lambda c: exp.Not(this=exp.paren(compare(c))))
        if truth is Truth.IS_FALSE:
            return exp.Not(this=fails)
        unsure = self._exists(query, parameters, lambda c: exp.Is(this=exp.paren(compare(c)), expression=exp.null()))
        return chosen((fails, exp.false()), (unsure, unknown()), exp.true())

    def _exists(
        self, query: exp.Expr, parameters: _Parameters, condition: Callable[[list[exp.Expr]], exp.Expr]
    ) -> exp.Expr:
        """EXISTS of the subquery's rows that satisfy a condition on its columns."""
        alias = self.builder.fresh("__pgt_q")
        columns = [f"__pgt_c{i}" for i in range(len(output_names(query)))]
        table = exp.TableAlias(
            this=exp.to_identifier(alias, quoted=True), columns=[exp.to_identifier(c, quoted=True) for c in columns]
        )
        inner = query.unnest() if isinstance(query, exp.Subquery) else query
        select = exp.Select(
            expressions=[exp.alias_(exp.true(), "found", quoted=True)],
            from_=exp.From(this=exp.Subquery(this=inner.copy(), alias=table)),
        )
        references: list[exp.Expr] = [
            exp.Column(this=exp.to_identifier(c, quoted=True), table=exp.to_identifier(alias, quoted=True))
            for c in columns
        ]
        select.set("where", exp.Where(this=condition(references)))
        return self._placeholders(Kind.EXISTS, select, _Parameters(parameters.outer, dict(parameters.found)))[0]

    def _array_query(self, query: exp.Expr) -> exp.Expr:
        """``ARRAY(Q)`` as an aggregate over Q, in Q's order."""
        inner = query.unnest() if isinstance(query, exp.Subquery) else query.copy()
        order = inner.args.get("order")
        alias = self.builder.fresh("__pgt_q")
        names = [f"__pgt_c{i}" for i in range(len(output_names(inner)))]
        ordered: list[exp.Expr] = []
        if order is not None:
            for i, item in enumerate(order.expressions):
                position = self._sorted_by(inner, item.this)
                if position is None:
                    if not isinstance(inner, exp.Select) or inner.args.get("distinct"):
                        raise NotDifferentiable("ORDER BY in ARRAY(subquery)")
                    inner.append("expressions", exp.alias_(item.this.copy(), f"__pgt_o{i}", quoted=True))
                    names.append(f"__pgt_o{i}")
                    position = len(names) - 1
                new = item.copy()
                new.set(
                    "this",
                    exp.column(exp.to_identifier(names[position], quoted=True), exp.to_identifier(alias, quoted=True)),
                )
                ordered.append(new)
        table = exp.TableAlias(
            this=exp.to_identifier(alias, quoted=True), columns=[exp.to_identifier(c, quoted=True) for c in names]
        )
        value: exp.Expr = exp.column(exp.to_identifier(names[0], quoted=True), exp.to_identifier(alias, quoted=True))
        if ordered:
            value = exp.Order(this=value, expressions=ordered)
        call = exp.Anonymous(this="array_agg", expressions=[value])
        total = exp.Anonymous(this="COALESCE", expressions=[call, exp.Literal.string("{}")])
        return exp.Select(
            expressions=[exp.alias_(total, "array", quoted=True)],
            from_=exp.From(this=exp.Subquery(this=inner, alias=table)),
        )

    def _sorted_by(self, query: exp.Expr, item: exp.Expr) -> int | None:
        if isinstance(item, exp.Literal) and not item.is_string:
            return int(item.name) - 1
        if isinstance(query, exp.Select):
            texts = [generate(node.unalias()) for node in query.expressions]
            if generate(item) in texts:
                return texts.index(generate(item))
        if isinstance(item, exp.Column) and not item.table and item.name in output_names(query):
            return output_names(query).index(item.name)
        return None

    def _placeholders(
        self, kind: Kind, query: exp.Expr, parameters: _Parameters, operands: Sequence[exp.Expr] = ()
    ) -> list[exp.Expr]:
        """Calls that stand for a subquery's columns."""
        query = query.unnest() if isinstance(query, exp.Subquery) and not query.args.get("with_") else query
        holder = exp.Paren(this=query.copy())
        self._parametrise(holder, parameters)
        builder = self.builder
        names = tuple(name for name, _ in parameters.found.values())
        plan = Subplan(kind, holder.this, parameters.outer, names, tuple(operands), builder.scope)
        key = (kind, generate(holder.this), tuple(generate(o) for o in operands), names, id(builder.scope))
        number, _ = builder.subplans.setdefault(key, (len(builder.subplans), plan))
        arguments = [node for _, node in parameters.found.values()]
        width = len(output_names(query)) if kind is Kind.SCALAR else 1
        return [
            exp.Anonymous(
                this=PLACEHOLDER,
                expressions=[exp.Literal.number(number), exp.Literal.number(i), *(a.copy() for a in arguments)],
            )
            for i in range(width)
        ]

    def _parametrise(self, holder: exp.Expr, parameters: _Parameters) -> None:
        """Replace what belongs to the outer query by parameters: its columns, and aggregates over nothing but them."""
        outer = {binding.alias for binding in self.bindings if binding.alias}
        known: dict[int, set[str]] = {}

        def free(column: exp.Column) -> bool:
            if column.table == parameters.outer:
                return False
            selects = []
            query = column.find_ancestor(exp.Select)
            while query is not None and query is not holder:
                selects.append(query)
                query = query.find_ancestor(exp.Select)
            if column.table:
                for select in selects:
                    if column.table in known.setdefault(id(select), local_aliases(select)):
                        return False
                return column.table in outer
            return not any(self._offers(select, column.name) for select in selects) and any(
                column.name in binding.columns and column.name not in binding.merged for binding in self.bindings
            )

        columns = {id(column): column for column in all_of(holder, exp.Column) if free(column)}
        for node in list(calls(holder, self.builder.special)):
            inside = all_of(node, exp.Column)
            if inside and all(id(column) in columns for column in inside):
                for column in inside:
                    columns.pop(id(column), None)
                node.replace(parameters.column(node))
        for column in columns.values():
            value: exp.Expr = parameters.column(column)
            if isinstance(column.parent, exp.Select) and column.arg_key == "expressions":
                value = exp.alias_(
                    value, exp.to_identifier(column.name, quoted=True)
                )  # it has given the column its name
            column.replace(value)

    def _offers(self, select: exp.Select, name: str) -> bool:
        """Whether a name without a table can be a column of a query's own FROM."""
        parts = [select.args.get("from_"), *(select.args.get("joins") or ())]
        for part in [part for part in parts if part is not None]:
            for node in part.walk(prune=lambda n: isinstance(n, exp.Select | exp.SetOperation | exp.Values)):
                if self._has_column(node, name):
                    return True
        return False

    def _has_column(self, node: exp.Expr, name: str) -> bool:
        """Whether a part of FROM can have a column of this name."""
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            source = self.builder.sources.get((node.db, node.name))
            return source is None or name in {column.name for column in source.columns}
        if isinstance(node, exp.Query | exp.Values | ValuesQuery):
            return name in output_names(node)
        return isinstance(node, exp.TableAlias) and name in {c.name for c in node.columns}


def _wanted(node: exp.Expr, child: exp.Expr, truth: Truth) -> Truth:
    """Which of a child's truth values matter."""
    if isinstance(node, exp.Paren | exp.And | exp.Or):
        return truth
    if isinstance(node, exp.Not) and not isinstance(child, exp.Is):
        return _negated(truth)
    if isinstance(node, exp.If) and child.arg_key == "this" and not (node.parent and node.parent.args.get("this")):
        return Truth.IS_TRUE
    if isinstance(node, exp.Where):
        return Truth.IS_TRUE
    return Truth.VALUE


def _negated(truth: Truth) -> Truth:
    return {Truth.IS_TRUE: Truth.IS_FALSE, Truth.IS_FALSE: Truth.IS_TRUE, Truth.VALUE: Truth.VALUE}[truth]


def lateral_subplan(builder: Builder, query: exp.Expr, bindings: Sequence[Binding]) -> tuple[Subplan, list[exp.Column]]:
    """A LATERAL subquery, and the columns to its left that it uses."""
    extraction = _Extraction(builder, bindings)
    parameters = _Parameters(f"{OUTER}{builder.depth}")
    query = query.unnest() if isinstance(query, exp.Subquery) and not query.args.get("with_") else query
    holder = exp.Paren(this=query.copy())
    extraction._parametrise(holder, parameters)
    names = tuple(name for name, _ in parameters.found.values())
    plan = Subplan(Kind.SCALAR, holder.this, parameters.outer, names, (), builder.scope)
    return plan, [node for _, node in parameters.found.values() if isinstance(node, exp.Column)]
