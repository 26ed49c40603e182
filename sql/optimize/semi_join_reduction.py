"""Bounds: which operators of a tree are bounded by the other side of a join, so that their deltas can be reduced.

From the root down every join tells its inputs what the others let through: an input that aggregates is bounded by the
conditions on another one that its columns are equal to. Filters, projections and the like pass bounds on, and so does
an aggregate as far as they speak of its keys. What is read in several places of the tree is left as it is.

Only conditions on a table, in a filter or a join above it, make a bound: they can be looked up along an index, so the
reduction never costs more than the groups that it saves would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.canonical.row_expressions import conjuncts, equated
from sql.operators import AntiJoin, Filter, Join, LeftJoin, Operator, Project, Recursion, Scan, SemiJoin
from sql.operators.aggregates.recompute_groups import RecomputeGroups
from sql.operators.joins.match import Match
from sql.operators.joins.matching import Matching
from sql.operators.pass_through import PassThrough
from sql.operators.semi_join_reduction import SemiJoinReduction
from sql.operators.shared_subplan import SharedSubplan


def bounds(root: Operator) -> Mapping[int, tuple[SemiJoinReduction, ...]]:
    """By the `id` of operators that compute touched groups again, what bounds them."""
    if any(isinstance(operator, Recursion) for operator in root.walk()):
        return {}
    above: dict[int, set[int]] = {}
    for operator in root.walk():
        for below in operator.inputs:
            above.setdefault(below.node, set()).add(operator.node)
    search = _Search(frozenset(known for known, readers in above.items() if len(readers) > 1))
    search.visit(root, ())
    return {known: tuple(found) for known, found in search.found.items()}


@dataclass(frozen=True, slots=True)
class _Search:
    shared: frozenset[int]
    found: dict[int, list[SemiJoinReduction]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def _visit_groups(self, operator: RecomputeGroups, given: Sequence[SemiJoinReduction]) -> None:
        given = _passed(given, {key.name: key.name for key in operator.keys})
        if given:
            self.found.setdefault(operator.node, []).extend(given)
        self.visit(operator.input, given)

    def visit(self, operator: Operator, given: Sequence[SemiJoinReduction]) -> None:
        """Pass bounds of an operator's rows on to everything below it."""
        if operator.node in self.seen or not operator.barrier:
            return
        if operator.node in self.shared:
            self.seen.add(operator.node)
            given = ()
        if isinstance(operator, RecomputeGroups):
            self._visit_groups(operator, given)
        elif isinstance(operator, Join):
            for below in operator.joined:
                mine = _passed(given, _same(below.columns))
                self.visit(below, mine + _beside(operator, below) if below.barrier else mine)
        elif isinstance(operator, Matching | LeftJoin):
            match = operator.match
            left = _passed(given, _same(operator.left.columns))
            if isinstance(operator, SemiJoin):
                left += _between(match, operator.right)
            self.visit(operator.left, left)
            self.visit(operator.right, _between(match.mirrored(), operator.left))
        elif isinstance(operator, Project):
            self.visit(operator.input, _passed(given, _beneath(operator)))
        elif isinstance(operator, Filter) or (
            isinstance(operator, PassThrough) and not isinstance(operator, SharedSubplan)
        ):
            self.visit(operator.input, given)
        else:
            for below in operator.inputs:
                self.visit(below, ())


def _beside(join: Join, bounded: Operator) -> list[SemiJoinReduction]:
    """What the other inputs of a join let through of one."""
    others = [other for other in join.joined if other is not bounded]
    found = []
    for column in bounded.columns:
        equal = _equal_to(join, column.name)
        sides = [(other, f.name) for other in others for f in other.columns if f.name in equal]
        for other, name in sides:
            found += [_for(bound, column.name) for bound in _restricting(other, name, join.conditions)]
    return found


def _between(match: Match, other: Operator) -> list[SemiJoinReduction]:
    """What the right side of a match lets through of the left."""
    return [
        _for(bound, mine.name) for mine, theirs in match.equal_columns for bound in _restricting(other, theirs.name, ())
    ]


def _for(bound: SemiJoinReduction, column: str) -> SemiJoinReduction:
    """A bound of one column as the bound of another one, which is equal."""
    return replace(bound, pairs=tuple((column, theirs) for _, theirs in bound.pairs))


def _restricting_match(operator: SemiJoin, column: str) -> Iterator[SemiJoinReduction]:
    """The same of the rows that a semi-join's must match, where the column is equated with one of theirs."""
    for mine, theirs in operator.match.equal_columns:
        if mine.name == column:
            yield from _restricting(operator.right, theirs.name, ())


def _restricting(operator: Operator, column: str, conditions: Sequence[exp.Expr]) -> Iterator[SemiJoinReduction]:
    """Tables with conditions, outside of which a column of an operator has no value."""
    names = {f.name for f in operator.columns}
    if isinstance(operator, Scan):
        own = [c for c in conditions if (used := _used(c)) and used <= names]
        if own:
            yield SemiJoinReduction(operator, tuple(own), ((column, column),))
    elif isinstance(operator, Filter):
        yield from _restricting(operator.input, column, [*conditions, *conjuncts(operator.condition)])
    elif isinstance(operator, Project):
        beneath = _beneath(operator)
        if column in beneath:
            yield from _restricting(operator.input, beneath[column], _kept_names(conditions, beneath))
    elif isinstance(operator, PassThrough):
        yield from _restricting(operator.input, column, conditions)
    elif isinstance(operator, Join):
        for joined, name in _columns_equal_to(operator, column):
            yield from _restricting(joined, name, [*conditions, *operator.conditions])
    elif isinstance(operator, SemiJoin | AntiJoin):
        yield from _restricting(operator.left, column, conditions)
        if isinstance(operator, SemiJoin):
            yield from _restricting_match(operator, column)


def _kept_names(conditions: Sequence[exp.Expr], beneath: Mapping[str, str]) -> list[exp.Expr]:
    """The conditions that speak of nothing but what a projection passes on under the same name."""
    return [c for c in conditions if all(beneath.get(name) == name for name in _used(c))]


def _columns_equal_to(join: Join, column: str) -> list[tuple[Operator, str]]:
    """The inputs of a join with their columns that are equal to one of them."""
    equal = _equal_to(join, column)
    return [(below, f.name) for below in join.joined for f in below.columns if f.name in equal]


def _equal_to(join: Join, column: str) -> set[str]:
    """The columns of the inputs of a join that are equal to one of them, and of its type."""
    types = {f.name: f.type for below in join.joined for f in below.columns}
    equal, size = {column}, 0
    while len(equal) > size:
        size = len(equal)
        for left, right in map(equated, join.conditions):
            if {left, right} & equal and left in types and types[left] == types.get(right):
                equal |= {left, right}
    return equal


def _used(condition: exp.Expr) -> set[str]:
    return {column.name for column in condition.find_all(exp.Column)}


def _same(columns: Sequence[Field]) -> dict[str, str]:
    return {f.name: f.name for f in columns}


def _beneath(project: Project) -> dict[str, str]:
    """The columns that a projection passes on, and their names below it."""
    return {
        column.name: expression.name
        for expression, column in zip(project.expressions, project.columns, strict=True)
        if isinstance(expression, exp.Column)
    }


def _passed(given: Sequence[SemiJoinReduction], columns: dict[str, str]) -> list[SemiJoinReduction]:
    return [bound for b in given if (bound := b.to(columns)) is not None]
