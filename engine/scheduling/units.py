"""Which stream tables are refreshed together: a unit is what one worker refreshes in one transaction.

Most stream tables are a unit of their own. A circle is one, since none of its members comes before the others. Two
declarations make one of several: that a diamond is atomic, which the stream table says in which its paths meet, and a
refresh group. Declarations and circles with a member in common make one unit, and so does what stands between members
of one: otherwise there would be no order to refresh them in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from catalog.graph import DependencyGraph
from catalog.stream_tables import StreamTable
from catalog.values import Status


@dataclass(frozen=True)
class Unit:
    """Stream tables that are refreshed in one transaction, in that order."""

    members: tuple[StreamTable, ...]
    owner: int
    """The role whose work it is, as OID."""
    slowest: bool = False
    """Whether it is due when all of its members are; otherwise when one is."""
    one_snapshot: bool = False
    """Whether all members must see their sources as of one moment, whatever that costs."""
    blocked: str | None = None
    """Why it must not be refreshed now."""

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of its members."""
        return frozenset(table.pgt_id for table in self.members)

    @property
    def key(self) -> str:
        """What it is called: ``s:42`` if it is a single one, otherwise as ``a:2,9,10``."""
        return f"{'s' if len(self.members) == 1 else 'a'}:{','.join(map(str, sorted(self.ids)))}"

    @property
    def suspended(self) -> bool:
        """Whether all of its members are."""
        return all(table.status == Status.SUSPENDED for table in self.members)

    @property
    def title(self) -> str:
        """The names of its members."""
        return ", ".join(f"{table.schema}.{table.name}" for table in self.members)


@dataclass(frozen=True, slots=True)
class _Declaration:
    """That stream tables are refreshed together, and who has said so."""

    members: frozenset[int]
    owner: int | None
    """The role, as OID; None where it is the operator's will."""
    named: bool
    """Whether somebody has named the members, and had the rights of their owners."""
    slowest: bool = False
    one_snapshot: bool = False


def units(
    tables: Collection[StreamTable],
    graph: DependencyGraph,
    acting: Container[tuple[int, int]] = (),
    refuse: Callable[[str], None] = lambda _: None,
) -> list[Unit]:
    """All stream tables in units, each after those that it reads.

    `acting` are pairs of roles, of which the first may act for the second: nobody can make the stream tables of others
    wait for his own. `refuse` is told what is not heeded therefore.
    """
    declared = _declared(tables, graph)
    while True:
        found = graph.together(each.members for each in declared)
        several = [members for members in found if len(members) > 1]
        refused = {
            each: reason
            for each, members in product(declared, several)
            if not each.members.isdisjoint(table.pgt_id for table in members)
            and (reason := _refusal(each, members, acting)) is not None
        }
        if not refused:
            return [_unit(members, declared) for members in found]
        declared = [each for each in declared if each not in refused]
        for reason in filter(None, refused.values()):
            refuse(reason)


def is_declared(tables: Collection[StreamTable]) -> bool:
    """Whether any of these stream tables may have to be refreshed together with another one."""
    return any(table.atomic or table.group is not None for table in tables)


def _declared(tables: Collection[StreamTable], graph: DependencyGraph) -> list[_Declaration]:
    """What is declared of those that have been populated: until then a stream table is refreshed by itself."""
    known = {table.pgt_id: table for table in tables if table.is_populated}
    found = []
    for table in tables:
        if table.atomic:
            members = graph.diamond(table.pgt_id).intersection(known)
            if table.status == Status.SUSPENDED:  # nobody sees in it what does not fit together
                members -= {table.pgt_id}
            owner = None if table.all_atomic else table.owner
            found.append(_Declaration(members, owner, named=False, slowest=table.slowest, one_snapshot=True))
    grouped: dict[int, list[StreamTable]] = {}
    for table in known.values():
        if table.group is not None:
            grouped.setdefault(table.group, []).append(table)
    return [each for each in (*found, *map(_of_group, grouped.values())) if len(each.members) > 1]


def _of_group(tables: list[StreamTable]) -> _Declaration:
    """That of a refresh group."""
    first, members = tables[0], frozenset(table.pgt_id for table in tables)
    owner = first.owner if first.group_owner is None else first.group_owner
    return _Declaration(members, owner, named=True, one_snapshot=first.one_snapshot)


def _refusal(
    declaration: _Declaration, members: tuple[StreamTable, ...], acting: Container[tuple[int, int]]
) -> str | None:
    """Why a declaration cannot be heeded for a unit of these members; None if it can.

    It would take in a stream table of a role that its maker may not act for, or one that only Spark may compute, which
    reads in transactions of its own. It is empty where a member is only not populated yet.
    """
    if not all(table.is_populated for table in members):
        return ""
    for table in members:
        if table.on_spark:
            return f"{table.schema}.{table.name} is computed on Spark, which does not read in their transaction"
        is_named = declaration.named and table.pgt_id in declaration.members
        if not (is_named or declaration.owner in (None, table.owner) or (declaration.owner, table.owner) in acting):
            return f"{table.schema}.{table.name} belongs to a role that the owner of the others is no member of"
    return None


def _unit(members: tuple[StreamTable, ...], declared: list[_Declaration]) -> Unit:
    (first, *others) = members
    if not others:
        return Unit(members, first.owner, blocked=first.held_back)
    ids = {table.pgt_id for table in members}
    mine = [each for each in declared if not each.members.isdisjoint(ids)]
    owners = [each.owner for each in mine if each.owner is not None]
    return Unit(
        members,
        owners[0] if owners else members[-1].owner,
        slowest=any(each.slowest for each in mine),
        one_snapshot=any(each.one_snapshot for each in mine),
        blocked=_blocked(members),
    )


def _blocked(members: tuple[StreamTable, ...]) -> str | None:
    """Why none of them must be refreshed now: one is held back, or suspended."""
    reasons = {reason for table in members for reason in (table.held_back or "").split("; ") if reason}
    reasons |= {
        f"stream table {table.schema}.{table.name}, which is refreshed together with it, is suspended"
        for table in members
        if table.status == Status.SUSPENDED
    }
    return "; ".join(sorted(reasons)) or None
