"""What every operator over Z-sets answers: its delta, its new state, its old state.

A Z-set is a relation whose rows carry integer weights, as in DBSP (Budiu et al., VLDB 2023). A delta is a Z-set; a
query's result is one whose weights are positive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sql.base.columns import WEIGHT, Field
from sql.base.identity import key_hash, same_key
from sql.base.text import all_of, any_of, derived, quote, select, union_all
from sql.operators.plan import Plan

W = quote(WEIGHT)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A permission to leave out rows: only those whose columns agree with some row of `relation` are looked at.

    ``pairs`` maps an operator's column to the relation's column; no two rows of the relation agree in all of these. An
    operator that a planner can look through (a scan, a join) ignores the restriction, since whoever asks applies it
    again; one that aggregates applies it to its input.
    """

    relation: str
    pairs: tuple[tuple[str, Field], ...]

    def to(self, columns: Sequence[Field]) -> Restriction | None:
        """What remains of the restriction for an input that has only these columns."""
        names = {column.name for column in columns}
        return self.of(tuple(pair for pair in self.pairs if pair[0] in names))

    def of(self, pairs: tuple[tuple[str, Field], ...]) -> Restriction | None:
        """The restriction by these pairs alone. Rows that differ in other columns become one."""
        if not pairs:
            return None
        before, after = ({field.name for _, field in some} for some in (self.pairs, pairs))
        if before == after:
            return Restriction(self.relation, pairs)
        distinct = select([quote(name) for name in sorted(after)], self.relation, distinct=True)
        return Restriction(f"({distinct})", pairs)


_NODES = count(1)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a tree, told apart from others that look the same by its number."""

    node: int = field(init=False, compare=False, repr=False, default_factory=_NODES.__next__)
    """Unlike an `id` it is never another node's, even when this one is gone."""


class Operator(Node, ABC):
    """An operator over Z-sets."""

    columns: tuple[Field, ...]

    @property
    @abstractmethod
    def inputs(self) -> tuple[Operator, ...]:
        """The operators this one reads."""

    @abstractmethod
    def delta(self, plan: Plan) -> str:
        """The Z-set of changes: a query with the operator's columns and a weight. Only asked where `changed`."""

    @abstractmethod
    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        """The rows as they are now: a query with the operator's columns, no weight."""

    @abstractmethod
    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        """The rows as they were at the frontier, as a Z-set: a query with a weight. Only asked where `changed`."""

    @abstractmethod
    def describe(self) -> str:
        """One line of the operator tree."""

    @property
    def sources(self) -> frozenset[int]:
        """The oids of the tables that this operator's rows come from."""
        return frozenset[int]().union(*(operator.sources for operator in self.inputs))

    @property
    def barrier(self) -> bool:
        """Whether PostgreSQL cannot push a join's restriction through the operator by itself."""
        return any(operator.barrier for operator in self.inputs)

    def changed(self, plan: Plan) -> bool:
        """Whether a source below has changes to be applied."""
        return bool(self.sources & plan.changed)

    def row_key(self) -> list[tuple[int, str]] | None:
        """The primary keys of all tables joined here, NULL where padded; None if something there has no key.

        They tell the rows apart. Groups are told apart by their keys as rows of a table are by its key.
        """
        return None

    def told_apart(self, fields: Sequence[Field]) -> bool:
        """Whether no two rows agree in these columns, primary keys being among them."""
        key = self.row_key()
        return key is not None and set(key) <= {field.origin for field in fields}

    def telling(self) -> tuple[Field, ...]:
        """The columns that tell the rows apart: primary keys if they are there, else all columns."""
        key = set(self.row_key() or ())
        columns = {field.origin: field for field in self.columns if field.origin in key}
        return tuple(columns.values()) if key and len(columns) == len(key) else self.columns

    def streamable(self) -> Iterator[int]:
        """The sources, once a scan, whose delta goes through nothing but linear operators, each row of it once."""
        if self.linear:
            for operator in self.inputs:
                yield from operator.streamable()

    @property
    def linear(self) -> bool:
        """Whether the delta is the operator applied to its inputs' deltas, row by row."""
        return False

    def walk(self) -> Iterator[Operator]:
        """The operator and everything below it."""
        yield self
        for operator in self.inputs:
            yield from operator.walk()

    def tree(self, depth: int = 0) -> str:
        """The operators as indented text."""
        lines = ["  " * depth + self.describe()]
        lines += [operator.tree(depth + 1) for operator in self.inputs]
        return "\n".join(lines)


def names(columns: Sequence[Field]) -> list[str]:
    """Quoted column names."""
    return [quote(column.name) for column in columns]


def restricted(
    plan: Plan,
    query: str,
    columns: Sequence[str],
    only: Restriction,
    nullable: Sequence[str] = (),
    *,
    rare: bool = False,
) -> str:
    """The rows of a query (given its output columns, already quoted) whose key is in a restriction.

    PostgreSQL cannot use an index for IS NOT DISTINCT FROM. So rows without a NULL in their key are found by plain
    equality, which reaches the scans; the others by a hash of the key, only if there are any keys with NULLs. What is
    ``rare`` should be quick to plan instead, and a key of computed values has no index: all rows are found by hash.
    """
    pairs = only.pairs
    if plan.statement.remote:
        agree = [f"r.{quote(c)} IS NOT DISTINCT FROM k.{quote(f.name)}" for c, f in pairs]
        source = f"{derived(query, 'r')} JOIN {only.relation} AS k ON {all_of(agree)}"
        return select([f"r.{c}" for c in columns], source)
    computed = any(c in nullable for c, _ in pairs) and not any(f.origin for _, f in pairs)
    if rare or computed:
        return select(
            [f"r.{c}" for c in columns],
            f"{derived(query, 'r')} JOIN {only.relation} AS k ON {_hash_match(list(pairs))}",
        )
    return _by_index(query, columns, only, nullable)


def _by_index(query: str, columns: Sequence[str], only: Restriction, nullable: Sequence[str]) -> str:
    """The rows whose key is in a restriction: those without a NULL in it by equality, the others by a hash."""
    pairs = only.pairs
    plain = [(c, f) for c, f in pairs if f.builtin]
    other = [(c, f) for c, f in pairs if not f.builtin]
    maybe_null = [(c, f) for c, f in plain if c in nullable]
    equal = [f"r.{quote(c)} = k.{quote(f.name)}" for c, f in plain]
    recheck = [_hash_match(other)] if other else []
    output = [f"r.{c}" for c in columns]
    source = f"{derived(query, 'r')} JOIN {only.relation} AS k ON "
    branches = [select(output, source + all_of(equal + recheck))]
    if maybe_null:
        keyed = [f"r.{quote(c)} = k.{quote(f.name)}" for c, f in plain if c not in nullable]
        with_null = any_of([f"k.{quote(f.name)} IS NULL" for _, f in maybe_null])
        exists = select([], f"{only.relation} AS k", where=[with_null])
        branches.append(
            select(
                output,
                source + all_of([*keyed, _hash_match(list(pairs))]),
                where=[with_null, f"EXISTS ({exists})"],
            )
        )
    return union_all(branches)


def _hash_match(pairs: Sequence[tuple[str, Field]]) -> str:
    left = [replace(f, name=c) for c, f in pairs]
    right = [f for _, f in pairs]
    rows = ", ".join(f"r.{quote(f.name)}" for f in left), ", ".join(f"k.{quote(f.name)}" for f in right)
    return (
        f"{key_hash(left, 'r', '0')} = {key_hash(right, 'k', '0')}"
        f" AND pg_catalog.record_eq(ROW({rows[0]}), ROW({rows[1]}))"
    )


__all__ = ["Operator", "Restriction", "W", "names", "restricted", "same_key"]
