"""The delta of an inner join: for each changed input a chain of joins that begins with its delta; see `join`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import derived, quote, select, union_all
from sql.operators.joins.join_graph import JoinGraph
from sql.operators.operator import Operator, Restriction, W
from sql.operators.plan import Plan
from sql.operators.shared import is_shared, shared_delta

MAX_TOGETHER = 3
"""So many inputs are joined at once, in the order that PostgreSQL likes best. Of more it would try too many orders."""


def delta_by_chains(
    plan: Plan, inputs: Sequence[Operator], conditions: Sequence[exp.Expr], columns: Sequence[Field]
) -> str:
    """A query: the changes of a join in some of its inputs' columns, with weights."""
    graph = JoinGraph(plan, inputs, conditions)
    changed = [i for i, operator in enumerate(inputs) if operator.changed(plan)]
    changed.sort(key=lambda i: len(graph.reached[i]))
    chains = _Chains(plan, graph, [f.name for f in columns], {})
    terms = []
    for place, i in enumerate(changed):
        chains.deltas[i] = _delta(plan, graph, i, shared=place < len(changed) - 1)
        terms.append(chains.term(i, frozenset(changed[:place])))
    return union_all(terms)


def rows_by_chain(
    plan: Plan,
    inputs: Sequence[Operator],
    conditions: Sequence[exp.Expr],
    columns: Sequence[Field],
    only: Restriction | None,
) -> str:
    """A query: the rows of a join as they are now, in an order that PostgreSQL need not look for."""
    graph = JoinGraph(plan, inputs, conditions)
    start = max(range(len(inputs)), key=lambda i: len(graph.reached[i]))
    chains = _Chains(plan, graph, [f.name for f in columns], {})
    states = [operator.new(plan, only and only.to(operator.columns)) for operator in inputs]
    where = [c.sql for c in graph.conditions if c.inputs <= {start}]
    query = select(["*"], derived(states[start], "s"), where=where) if where else states[start]
    rows = _Rows(query, frozenset({start}))
    for j in graph.order(start):
        if len(rows.inside) > 1:
            rows = chains.fenced(rows)
        rows = chains.combined(rows, {j: states[j]}, None)
    return rows.query


def rows_at(
    plan: Plan,
    inputs: Sequence[Operator],
    conditions: Sequence[exp.Expr],
    columns: Sequence[Field],
    only: Restriction,
) -> str | None:
    """A query: the rows of a join as they are now, of inputs that aggregate the groups alone that the others ask for.

    None if the restriction says nothing about the others, or these nothing about the groups.
    """
    graph = JoinGraph(plan, inputs, conditions)
    plain = _first(graph, only)
    inside, given = frozenset(plain), {f.name for f in columns}
    known = [f for i in plain for f in inputs[i].columns if f.name in given]
    below = only.to(known)
    grouped = graph.linked(inside)
    if not plain or below is None or len(inside) + len(grouped) < len(inputs) or not grouped:
        return None
    chains = _Chains(plan, graph, [f.name for f in columns], {})
    found = plan.target.restricted(
        chains.of_inputs(plain, below).query,
        [quote(name) for name in chains.needed(inside)],
        below,
        [f.name for f in known if not f.not_null],
    )
    rows = _repeatable(plan, _Rows(found, inside))
    for j in grouped:
        rows = _repeatable(plan, rows)
        rows = chains.combined(rows, {j: inputs[j].new(plan, chains.restriction(rows, j))}, None)
    return rows.query


def _first(graph: JoinGraph, only: Restriction) -> list[int]:
    """The inputs to be joined first: those that do not aggregate, if equalities lead from one to all of them.

    Else one that the restriction speaks of: better by its key, and one that leads to many others.
    """
    plain = [i for i, operator in enumerate(graph.inputs) if not operator.barrier]
    if plain and set(plain[1:]) <= set(graph.linked(frozenset(plain[:1]), frozenset(plain))):
        return plain
    restricted = {name for name, _ in only.pairs}
    spoken_of = [i for i, operator in enumerate(graph.inputs) if only.to(operator.columns)]
    return sorted(spoken_of, key=lambda i: (not graph.told_by(i, restricted), -len(graph.reached[i])))[:1]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The inputs joined so far: a query with those of their columns that are still wanted, and, of a delta, a weight.

    ``again``: whether it is cheap to repeat.
    """

    query: str
    inside: frozenset[int]
    again: bool = False


def _delta(plan: Plan, graph: JoinGraph, i: int, *, shared: bool) -> _Rows:
    """The changes of one input that satisfy the conditions on it alone."""
    operator, inside = graph.inputs[i], frozenset({i})
    given = operator.node in plan.given
    where = [c.sql for c in graph.conditions if c.inputs <= inside and not (given and c.inputs)]
    again = shared or is_shared(plan, operator) or not operator.inputs
    rows = shared_delta(plan, operator) if again else operator.delta(plan)
    if not where:
        return _Rows(rows, inside, again)
    found = _Rows(select(["*"], derived(rows, "d"), where=where), inside)
    return _repeatable(plan, found) if shared else found


def _repeatable(plan: Plan, rows: _Rows) -> _Rows:
    if rows.again:
        return rows
    return _Rows(select(["*"], plan.cte(plan.fresh("rows"), rows.query)), rows.inside, again=True)


@dataclass(frozen=True, slots=True)
class _Chains:
    """``wanted`` are the columns of the result, ``deltas`` those of the inputs whose chains are made."""

    plan: Plan
    graph: JoinGraph
    wanted: list[str]
    deltas: dict[int, _Rows]

    def term(self, start: int, before: frozenset[int]) -> str:
        """The summand that begins with an input's delta, and looks at other inputs as they were ``before``."""
        rows = self.deltas[start]
        if len(self.graph.inputs) == 1:
            return select([*(quote(name) for name in self.wanted), W], derived(rows.query, "x"))
        waiting: list[int] = []
        for j in self.graph.order(start):
            barrier = self.graph.inputs[j].barrier
            if barrier or j in before:
                rows = _repeatable(self.plan, self._joined(rows, waiting))
                waiting = []
            elif len(waiting) == MAX_TOGETHER:
                rows = self.fenced(self._joined(rows, waiting))
                waiting = []
            if j in before:
                now, changed = self._joined(rows, [j]), self._less(rows, j)
                rows = _Rows(union_all([now.query, changed.query]), now.inside)
            elif barrier:
                rows = self._joined(rows, [j])
            else:
                waiting.append(j)
        return self._joined(rows, waiting).query

    def fenced(self, rows: _Rows) -> _Rows:
        """Rows that are joined before anything else is joined with them."""
        return replace(rows, query=self.plan.target.fence(rows.query), again=False)

    def _joined(self, rows: _Rows, others: Sequence[int]) -> _Rows:
        """Rows joined with the new state of other inputs."""
        if not others:
            return rows
        relations = {j: self.graph.inputs[j].new(self.plan, self.restriction(rows, j)) for j in others}
        return self.combined(rows, relations, f"x.{W}")

    def _less(self, rows: _Rows, j: int) -> _Rows:
        """Rows joined with the changes of another input, to be taken away."""
        return self.combined(rows, {j: self.deltas[j].query}, f"-(x.{W} * j{j}.{W})")

    def combined(self, rows: _Rows, relations: dict[int, str], weight: str | None) -> _Rows:
        """Rows joined with some rows of other inputs."""
        inside = rows.inside | set(relations)
        known, where = rows.inside, list[str]()
        for j in relations:
            where += [link.sql for link in self.graph.links(known, j) if not link.stated]
            known |= {j}
        where += [c.sql for c in self.graph.conditions if c.becomes_due(rows.inside, inside)]
        source = [derived(rows.query, "x"), *(derived(query, f"j{j}") for j, query in relations.items())]
        columns = [quote(name) for name in self.needed(inside)]
        columns += [f"{weight} AS {W}"] if weight else []
        return _Rows(select(columns, " CROSS JOIN ".join(source), where=where), inside)

    def of_inputs(self, numbers: Sequence[int], only: Restriction) -> _Rows:
        """Some inputs joined as they are now, each restricted as far as it can be."""
        inputs = self.graph.inputs
        states = {i: inputs[i].new(self.plan, only.to(inputs[i].columns)) for i in numbers}
        first = states.pop(numbers[0])
        where = [c.sql for c in self.graph.conditions if c.inputs <= {numbers[0]}]
        rows = _Rows(select(["*"], derived(first, "s"), where=where), frozenset(numbers[:1]))
        return self.combined(rows, states, None) if states else rows

    def needed(self, inside: frozenset[int]) -> list[str]:
        """The columns of some inputs that are given out or that something is still to be compared with."""
        graph = self.graph
        others = [j for j in range(len(graph.inputs)) if j not in inside]
        if not others:
            return self.wanted
        needed = {name for c in graph.conditions if not c.inputs <= inside for name in c.columns}
        needed |= {link.theirs.name for j in others for link in graph.links(inside, j)}
        needed.update(self.wanted)
        return [f.name for i in sorted(inside) for f in graph.inputs[i].columns if f.name in needed]

    def restriction(self, rows: _Rows, j: int) -> Restriction | None:
        """For an input that aggregates: only the rows that can join with the rows so far."""
        links = self.graph.links(rows.inside, j) if self.graph.inputs[j].barrier else []
        if not links:
            return None
        equal = dict.fromkeys(link.theirs.name for link in links if not link.agree)
        keys = select(
            [quote(name) for name in dict.fromkeys(link.theirs.name for link in links)],
            derived(rows.query, "d"),
            where=[f"{quote(name)} IS NOT NULL" for name in equal],
            distinct=True,
        )
        pairs = tuple((link.mine.name, link.theirs) for link in links)
        return Restriction(self.plan.cte(self.plan.fresh("keys"), keys), pairs)
