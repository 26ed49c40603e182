"""Join graph: which inputs of a join are linked by which conditions, and in what order to join them from one of them.

PostgreSQL knows how many rows a table has, but little of how many a chain of joins gives that begins with a handful of
changes; and to try all orders of eight tables costs more than the refresh. What the conditions and the primary keys
say is a good order at no cost: first the inputs of which each row meets one row at most, those before all that have a
condition of their own or lead to one that has; then those of which it can meet several; at last what has to be computed
for the rows found so far, and what is not linked at all.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import quote
from sql.canonical.null_safe_equal import NullSafeEqual
from sql.canonical.row_expressions import conjuncts, equated
from sql.operators.filter import Filter
from sql.operators.operator import Operator
from sql.operators.plan import Plan
from sql.operators.project import Project
from sql.operators.scan import Scan


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as SQL, its columns, and the inputs that they belong to; of what it follows from, too."""

    sql: str
    columns: frozenset[str]
    inputs: frozenset[int]
    whole: frozenset[int] = frozenset()

    def becomes_due(self, before: Set[int], inside: Set[int]) -> bool:
        """Whether it can be told of some inputs, but not yet of those before, nor of what it follows from.

        Where a disjunction itself is there PostgreSQL finds out by itself what follows of one relation alone.
        """
        told = bool(self.whole) and self.whole <= inside
        return self.inputs <= inside and not self.inputs <= before and not told


@dataclass(frozen=True, slots=True)
class Link:
    """A column of one input and one of another, of the same type, that are equal in each row; ``agree``: be it in NULL.

    ``stated`` by a condition, or else following from several.
    """

    mine: Field
    theirs: Field
    other: int
    agree: bool
    stated: bool

    @property
    def sql(self) -> str:
        """The equality as a condition."""
        return f"({quote(self.mine.name)} = {quote(self.theirs.name)})"


class JoinGraph:
    """The inputs of a join, whose columns have different names, by number, and what its conditions say of them."""

    def __init__(self, plan: Plan, inputs: Sequence[Operator], conditions: Sequence[exp.Expr]):
        self.inputs = inputs
        self._written = plan.target.condition
        self._owner = {f.name: (i, f) for i, operator in enumerate(inputs) for f in operator.columns}
        self.conditions: list[Condition] = []
        equal: list[tuple[str, str]] = []
        agreeing: list[tuple[str, str]] = []
        for condition in conditions:
            columns = frozenset(column.name for column in condition.find_all(exp.Column))
            owners = frozenset(self._owner[name][0] for name in columns)
            self.conditions.append(Condition(f"({self._written(condition)})", columns, owners))
            self.conditions += self._following(condition, owners) if len(owners) > 1 else []
            if isinstance(condition, NullSafeEqual):
                sides = condition.this.unnest(), condition.expression.unnest()
                if all(isinstance(side, exp.Column) for side in sides):
                    agreeing.append((sides[0].name, sides[1].name))
            elif all(pair := equated(condition)):
                equal.append(pair)
        self._links = self._all_links(self._comparable(equal), self._comparable(agreeing))
        self._keys = [_key(operator) for operator in inputs]

    def _owners(self, condition: exp.Expr) -> set[int]:
        return {self._owner[column.name][0] for column in condition.find_all(exp.Column)}

    def _following(self, condition: exp.Expr, owners: frozenset[int]) -> list[Condition]:
        """What a disjunction over several inputs says of one alone, where each of its alternatives says something."""
        alternatives = [conjuncts(alternative) for alternative in _disjuncts(condition)]
        following = []
        for i in sorted(owners) if len(alternatives) > 1 else []:
            own = [[part for part in parts if self._owners(part) == {i}] for parts in alternatives]
            if all(own):
                sql = " OR ".join(" AND ".join(f"({self._written(part)})" for part in parts) for parts in own)
                columns = {column.name for parts in own for part in parts for column in part.find_all(exp.Column)}
                following.append(Condition(f"({sql})", frozenset(columns), frozenset({i}), owners))
        return following

    def _comparable(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those between columns of the same type of different inputs."""
        owners = [(self._owner[left], self._owner[right], (left, right)) for left, right in pairs]
        return [pair for (i, mine), (j, theirs), pair in owners if i != j and mine.type == theirs.type]

    def _all_links(self, equal: list[tuple[str, str]], agreeing: list[tuple[str, str]]) -> list[list[Link]]:
        """For each input its links: those that conditions state, then those that follow."""
        alike: dict[str, set[str]] = {}
        for left, right in equal:
            together = alike.get(left, {left}) | alike.get(right, {right})
            alike |= dict.fromkeys(together, together)
        links: list[list[Link]] = [[] for _ in self.inputs]
        seen: set[tuple[str, str]] = set()

        def add(mine: str, theirs: str, *, agree: bool, stated: bool) -> None:
            (i, own), (j, other) = self._owner[mine], self._owner[theirs]
            if i != j and (mine, theirs) not in seen:
                seen.add((mine, theirs))
                links[i].append(Link(own, other, j, agree, stated))

        for pairs, agree in ((equal, False), (agreeing, True)):
            for left, right in pairs:
                add(left, right, agree=agree, stated=True)
                add(right, left, agree=agree, stated=True)
        for mine, together in alike.items():
            for theirs in sorted(together):
                add(mine, theirs, agree=False, stated=False)
        return links

    def links(self, inside: Set[int], j: int) -> list[Link]:
        """The equalities between an input and some others; what only follows for columns that nothing is stated of."""
        found = [link for link in self._links[j] if link.other in inside]
        said = {link.mine.name for link in found if link.stated}
        result = [link for link in found if link.stated]
        for link in found:
            if not link.stated and link.mine.name not in said:
                said.add(link.mine.name)
                result.append(link)
        return result

    @cached_property
    def reached(self) -> list[frozenset[int]]:
        """For each input those others of which a row of it meets one row at most."""
        return [self._reached(i) - {i} for i in range(len(self.inputs))]

    def _reached(self, i: int) -> frozenset[int]:
        found = {i}
        while more := {j for j in range(len(self.inputs)) if j not in found and self._determined(found, j)}:
            found |= more
        return frozenset(found)

    def _determined(self, inside: Set[int], j: int) -> bool:
        """Whether a row of some inputs joined meets one row of another at most."""
        key = self._keys[j]
        return key is not None and key <= {link.mine.name for link in self._links[j] if link.other in inside}

    @cached_property
    def _selective(self) -> list[bool]:
        """For each input whether a condition leaves out rows of it by itself."""
        own = {condition.inputs for condition in self.conditions}
        filtered = [any(isinstance(below, Filter) for below in operator.walk()) for operator in self.inputs]
        return [frozenset({i}) in own or has for i, has in enumerate(filtered)]

    def order(self, start: int) -> list[int]:
        """The other inputs in the order in which they are joined with one."""
        return self.order_from({start})

    def order_from(self, some: Set[int]) -> list[int]:
        """The other inputs in the order in which they are joined with some."""
        inside, found = {*some}, list[int]()
        while len(inside) < len(self.inputs):
            rest = [j for j in range(len(self.inputs)) if j not in inside]
            chosen = min(rest, key=lambda j: (*self._rank(inside, j), j))
            inside.add(chosen)
            found.append(chosen)
        return found

    def linked(self, inside: Set[int], among: Set[int] | None = None) -> list[int]:
        """The other inputs to which equalities lead from some of them, one after the other; ``among`` these."""
        found: list[int] = []
        while following := [
            j
            for j in self.order_from(inside | set(found))
            if (among is None or j in among) and self.links(inside | set(found), j)
        ]:
            found.append(following[0])
        return found

    def told_by(self, i: int, columns: Set[str]) -> bool:
        """Whether these columns tell the rows of an input apart."""
        key = self._keys[i]
        return key is not None and key <= columns

    def _rank(self, inside: Set[int], j: int) -> tuple[int, int]:
        if not any(link.other in inside for link in self._links[j]):
            related = any(j in c.inputs and c.inputs & inside and c.inputs <= inside | {j} for c in self.conditions)
            return (5 if related else 6), 0
        if any(o.barrier and not isinstance(o, Scan | Filter | Project) for o in self.inputs[j].walk()):
            return 4, 0
        reached = self.reached[j] - inside
        if self._determined(inside, j):
            # Of two that leave rows out the one that leads to less is the smaller table, as a rule.
            return (0 if any(self._selective[i] for i in (j, *reached)) else 1), len(reached)
        return (2 if self._selective[j] else 3), -len(reached)


def _disjuncts(node: exp.Expr) -> list[exp.Expr]:
    node = node.unnest()
    return _disjuncts(node.left) + _disjuncts(node.right) if isinstance(node, exp.Or) else [node]


def _key(operator: Operator) -> frozenset[str] | None:
    """The columns that tell the rows of an operator apart, by primary keys; None if they are not all given out."""
    origins = operator.row_key()
    by_origin = {f.origin: f.name for f in operator.columns if f.origin}
    if origins is None or not all(origin in by_origin for origin in origins):
        return None
    return frozenset(by_origin[origin] for origin in origins)
