"""Recursion: a WITH RECURSIVE query, computed as a whole.

Not linear, and in general not monotone either: ``ΔQ = Q(new) - Q(old)``, both by PostgreSQL's own recursion, so that
whatever PostgreSQL accepts is maintained. ``old`` is the same query over the sources as they were. At the root of the
tree the old rows are in storage and are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from sql.base.columns import Field, Source
from sql.base.consolidate import consolidated, counted_out
from sql.base.text import derived, quote, select, union_all
from sql.canonical.dialect import generate
from sql.operators.captured_changes import delta_name
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.recursion.fixpoint import Fixpoint
from sql.operators.recursion.rounds import with_rounds_counted
from sql.operators.scan import Scan
from sql.operators.versions.version_scan import VersionScan


@dataclass(frozen=True, slots=True)
class Recursion(Operator):
    """``query`` gives ``columns`` by their names and reads ``scans``; ``name`` is what the user calls the WITH query.

    ``reproducible``: the same rows of the sources always give the same result. ``fixpoint``: how its changes follow
    from those of its sources, where the old rows are in storage, that is at the root of a tree.
    """

    name: str
    query: exp.Query
    scans: tuple[Scan, ...]
    columns: tuple[Field, ...]
    reproducible: bool
    fixpoint: Fixpoint | None = None

    @property
    def inputs(self) -> tuple[Operator, ...]:
        if self.fixpoint is None:
            return self.scans
        return (*self.scans, self.fixpoint.base.operator, self.fixpoint.step.operator)

    @property
    def barrier(self) -> bool:
        # It cannot be restricted, so nobody needs to collect keys for it.
        return False

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        query = with_rounds_counted(self.query, plan.fresh("rounds")) if plan.bounded else self.query
        return self._over(query, {scan: now(plan, scan) for scan in self.scans if isinstance(scan, VersionScan)})

    def _before(self, plan: Plan) -> str:
        then = {scan: now(plan, scan) for scan in self.scans if isinstance(scan, VersionScan)}
        return self._over(self.query, then | {scan: before(plan, scan) for scan in self.scans if scan.changed(plan)})

    def _over(self, query: exp.Query, relations: Mapping[Scan, str]) -> str:
        """The query over other relations in the place of its sources."""
        tables = {(scan.source.schema, scan.source.name): name for scan, name in relations.items()}
        query = query.copy() if tables else query
        for node in list(query.find_all(exp.Table)):
            table = tables.get((node.db, node.name)) if node.db else None
            if table is not None:
                if not node.alias:
                    node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
                node.set("this", exp.to_identifier(table, quoted=True))
                node.set("db", None)
        return select(names(self.columns), derived(generate(query), "r"))

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return select([*names(self.columns), f"1::bigint AS {W}"], derived(self._before(plan), "o"))

    def delta(self, plan: Plan) -> str:
        solved = plan.memo(_Memo).solved.get(self.node)
        if solved is not None:
            return solved
        columns = names(self.columns)
        difference = union_all(
            [
                select([*columns, f"1::bigint AS {W}"], derived(self.new(plan), "n")),
                select([*columns, f"-1::bigint AS {W}"], derived(self._before(plan), "o")),
            ]
        )
        return consolidated(difference, self.columns)

    def describe(self) -> str:
        return f"Recursion({self.name})"

    def tree(self, depth: int = 0) -> str:
        if self.fixpoint is None:
            return Operator.tree(self, depth)
        terms = (self.fixpoint.base.operator, self.fixpoint.step.operator)
        return "\n".join(["  " * depth + self.describe(), *(term.tree(depth + 1) for term in terms)])


@dataclass(slots=True)
class _Memo:
    """What a statement holds already."""

    solved: dict[int, str] = field(default_factory=dict)
    """By node, deltas that a storage shape has found in its own way."""
    named: set[str] = field(default_factory=set)
    """The names of common table expressions that are put in where they are first needed."""


def tell_delta(plan: Plan, recursion: Recursion, delta: str) -> None:
    """Tell that a query gives the recursion's delta."""
    plan.memo(_Memo).solved[recursion.node] = delta


def now(plan: Plan, scan: VersionScan) -> str:
    """The name of a CTE with the rows of a source at the timestamp, in the columns that the scan reads."""
    name = f"__pgt_now_{scan.number}"
    if name not in plan.memo(_Memo).named:
        plan.memo(_Memo).named.add(name)
        columns = [f"s.{quote(f.name)} AS {quote(f.origin[1])}" for f in scan.columns if f.origin]
        plan.cte(name, select(columns, derived(scan.new(plan), "s")))
    return name


def before(plan: Plan, scan: Scan) -> str:
    """The name of a CTE with the rows of a source as they were, in the columns that the scan reads."""
    name = f"__pgt_before_{scan.number}"
    if name not in plan.memo(_Memo).named:
        source = scan.source
        table = quote(now(plan, scan)) if isinstance(scan, VersionScan) else quote(source.schema, source.name)
        rows = _rows_before(plan, source, table, [f.origin[1] for f in scan.columns if f.origin])
        plan.memo(_Memo).named.add(name)
        plan.cte(name, rows)
    return name


def _rows_before(plan: Plan, source: Source, relation: str, used: list[str]) -> str:
    columns = [column for column in source.columns if column.name in used]
    quoted = [quote(column.name) for column in columns]
    table, delta = f"{relation} AS t", f"{delta_name(source.oid)} AS d"
    key = [column for column in columns if column.name in source.key]
    if key and all("." not in column.type for column in key):
        same = [f"d.{quote(column.name)} = t.{quote(column.name)}" for column in key]
        come = select([], delta, where=[f"d.{W} > 0", *same])
        gone = [f"d.{W} < 0"]
        return union_all(
            [
                select([f"t.{c}" for c in quoted], table, where=[f"NOT EXISTS ({come})"]),
                select([f"d.{c}" for c in quoted], delta, where=gone),
            ]
        )
    counted = union_all(
        [
            select([*(f"t.{c}" for c in quoted), f"1::bigint AS {W}"], table),
            select([*(f"d.{c}" for c in quoted), f"-d.{W} AS {W}"], delta),
        ]
    )
    return counted_out(counted, columns, plan.target.copies)
