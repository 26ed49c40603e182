"""Threshold band: the rows of a semi-join whose values are near the one row's that they are compared with.

``L ⋉ {s}`` under ``x > s``, where s is the one row of an aggregate. If s goes from a to b, the rows of new(L) matter
whose x is between a and b, which are few; but to find them without an index of the user's all of L would be read. So a
refresh hands on to the next one the keys and values of some rows on either side of s:

    N(L) = {(key, x) : rows of L with low < x < high},        N(new(L)) = N(old(L)) + N(ΔL).

If a and b are in the band, so is all that is between them, and new(L) is asked for the rows of these keys alone.
Otherwise L is read, and another band is chosen around b. A band ends before a value, so that of rows with equal values
it has all or none; where there are no more rows, it has no end. NULL is in no band: where s is or was NULL L is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import all_of, derived, quote, select, text, union_all
from sql.base.types import result_type
from sql.canonical.dialect import generate
from sql.operators.aggregates.aggregate import Aggregate
from sql.operators.aggregates.cached_accumulators import KEYS, VALUES, known, remembered_rows, remembering
from sql.operators.filter import Filter
from sql.operators.joins.match import Match
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import NOTHING, Plan
from sql.operators.project import Project
from sql.operators.scan import Scan

MOST = 500
"""So many rows on either side a new band has at most; four times as many later, when rows have come into it."""

X = quote("__pgt_x")
_OPERATORS: Mapping[type[exp.Expr], str] = {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_TEXTS = frozenset({"text", "character varying"})
_NONE = "pg_catalog.jsonb_build_array(FALSE)"


@dataclass(frozen=True, slots=True)
class ThresholdBand:
    """What is handed on under a ``name`` of the ``left`` rows, told apart by ``keys``, whose ``value`` is compared."""

    name: str
    left: Operator
    keys: tuple[Field, ...]
    value: str
    value_type: str
    bound: str
    operator: str
    value_first: bool

    @property
    def columns(self) -> list[str]:
        """The columns of the band's rows."""
        return [*names(self.keys), X]

    def compared(self, value: str, bound: str) -> str:
        """The condition that a value compares well with a bound."""
        sides = (value, bound) if self.value_first else (bound, value)
        return f"(({sides[0]} {self.operator} {sides[1]}) IS TRUE)"

    def kept(self, plan: Plan, left: str | None) -> None:
        """Hand the band on where the one row has not changed; ``left`` are the changes of the left rows."""
        ends = self._ends(plan, None)
        near = self._near(plan, left, ends)
        kept = f"CASE WHEN e.sure THEN {_packed(self, near)} ELSE {_NONE} END"
        plan.statement.memory[self.name] = f"(SELECT {kept} FROM {ends} AS e)"

    def crossed(self, plan: Plan, left: str | None, changes: str, otherwise: str) -> str:
        """The left rows as they are now that compare otherwise with the row now than with the row before.

        ``changes`` are these two rows or none, ``left`` those of the left rows. Where the band does not say it the rows
        are those of the query ``otherwise``. The band is handed on.
        """
        ends = self._ends(plan, changes)
        near = self._near(plan, left, ends)
        differs = f"{self.compared(f'n.{X}', 'e.was')} <> {self.compared(f'n.{X}', 'e.now')}"
        keys = select(
            [f"n.{key}" for key in names(self.keys)],
            f"{near} AS n CROSS JOIN {ends} AS e",
            where=["e.sure", "e.moved", differs],
            distinct=True,
        )
        only = Restriction(plan.cte(plan.fresh("keys"), keys), tuple((key.name, key) for key in self.keys))
        columns = names(self.left.columns)
        nullable = [key.name for key in self.keys if not key.not_null]
        found = plan.target.restricted(self.left.new(plan, only), columns, only, nullable)
        unsure = f"NOT (SELECT e.sure FROM {ends} AS e)"
        if plan.usual:
            plan.statement.violated(unsure)
            other = _NONE
        else:
            plan.statement.violated(f"(SELECT e.banded AND NOT e.sure FROM {ends} AS e)")
            found = union_all([found, select([f"o.{c}" for c in columns], derived(otherwise, "o"), where=[unsure])])
            other = self._chosen(plan, ends)
        kept = f"CASE WHEN e.sure THEN {_packed(self, near)} WHEN e.now IS NOT NULL THEN {other} ELSE {_NONE} END"
        plan.statement.memory[self.name] = f"(SELECT {kept} FROM {ends} AS e)"
        return found

    def _ends(self, plan: Plan, changes: str | None) -> str:
        """A CTE of one row: the band's ends, the bound before and now, whether it ``moved``, and within the band."""
        memory = f"$1->'memory'->{text(self.name)}"
        columns = [f"coalesce(({memory}->>0)::boolean, FALSE) AS banded"]
        columns += [f"({memory}->>{i})::{self.value_type} AS {end}" for i, end in ((1, "low"), (2, "high"))]
        if changes is None:
            return plan.cte(plan.fresh("ends"), select([*columns, f"{known(self.name)} AS sure"]))
        rows = derived(changes, "r")
        columns += [
            f"({select([self.bound], rows, where=[f'r.{W} {sign} 0'])}) AS {name}"
            for sign, name in (("<", "was"), (">", "now"))
        ]
        columns += [f"EXISTS ({select([], rows)}) AS moved"]
        inside = f"{_within('e', 'e.was')} AND {_within('e', 'e.now')}"
        sure = f"{known(self.name)} AND (NOT e.moved OR {inside}) AS sure"
        return plan.cte(plan.fresh("ends"), select(["e.*", sure], derived(select(columns), "e")))

    def _near(self, plan: Plan, left: str | None, ends: str) -> str:
        """A CTE of the band's rows as they are now."""
        described = [*((key.name, key.type) for key in self.keys), (X.strip('"'), self.value_type)]
        before = select(
            [*(f"e.{column}" for column in self.columns), f"1::bigint AS {W}"],
            remembered_rows(self.name, described, first=3),
        )
        pieces = [before]
        if left is not None:
            valued = select([*names(self.keys), f"{self.value} AS {X}", W], derived(left, "l"))
            pieces.append(
                select(
                    [*(f"v.{column}" for column in self.columns), f"v.{W}"],
                    f"{derived(valued, 'v')} CROSS JOIN {ends} AS e",
                    where=[_within("e", f"v.{X}")],
                )
            )
        rows = select(
            self.columns,
            derived(union_all(pieces), "p"),
            group_by=self.columns,
            having=[f"pg_catalog.sum(p.{W}) > 0"],
        )
        return plan.cte(plan.fresh("near"), rows)

    def _chosen(self, plan: Plan, ends: str) -> str:
        """An expression: another band, around what the bound (of ``ends``, alias e) is now."""
        rows = self.left.new(plan)
        if not all(isinstance(below, Scan | Filter | Project) for below in self.left.walk()):
            rows = select(["*"], plan.cte(plan.fresh("every"), rows))
        valued = derived(select([*names(self.keys), f"{self.value} AS {X}"], derived(rows, "l")), "v")
        now = f"(SELECT e.now FROM {ends} AS e)"
        sides = [
            plan.cte(
                plan.fresh(side),
                f"{select(self.columns, valued, where=[f'v.{X} {sign} {now}'])} ORDER BY {X} {order} LIMIT {MOST}",
            )
            for side, sign, order in (("below", "<=", "DESC"), ("above", ">", "ASC"))
        ]
        end = [
            f"(SELECT CASE WHEN pg_catalog.count(*) = {MOST} THEN pg_catalog.{extremum}({X}) END FROM {side})"
            for side, extremum in zip(sides, ("min", "max"), strict=True)
        ]
        chosen = plan.cte(plan.fresh("chosen"), select(["TRUE AS banded", f"{end[0]} AS low", f"{end[1]} AS high"]))
        both = union_all([select(self.columns, side) for side in sides])
        inside = select(
            [f"s.{column}" for column in self.columns],
            f"{derived(both, 's')} CROSS JOIN {chosen} AS e",
            where=[_within("e", f"s.{X}")],
        )
        return f"(SELECT {_packed(self, f'({inside})')} FROM {chosen} AS e)"


def threshold_band(left: Operator, match: Match, name: str) -> ThresholdBand | None:
    """The band for a comparison of the left rows with a relation of one row, None where none can be handed on."""
    if len(match.conditions) != 1:
        return None
    condition = match.conditions[0].unnest()
    if not isinstance(condition, exp.GT | exp.GTE | exp.LT | exp.LTE):
        return None
    for value, bound in ((condition.left, condition.right), (condition.right, condition.left)):
        types = _type(value, match.left), _type(bound, match.right)
        keys = _keys(left)
        if keys and all(types) and not {f.name for f in keys} - {f.name for f in left.columns}:
            return ThresholdBand(
                name,
                left,
                keys,
                generate(value),
                str(types[0]),
                generate(bound),
                _OPERATORS[type(condition)],
                value is condition.left,
            )
    return None


def band_name(left: Operator, match: Match) -> str | None:
    """Under which name the band is handed on, which tells what it is; None if there is none."""
    band = threshold_band(left, match, "")
    if band is None:
        return None
    described = f"band of {', '.join(band.columns)} by {band.value}: {left.new(NOTHING)}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _keys(left: Operator) -> tuple[Field, ...]:
    """The columns that tell the rows apart, if they can be handed on; else none."""
    below = left
    while isinstance(below, Filter):
        below = below.input
    told = below.keys if isinstance(below, Aggregate) and below.grouped else left.telling()
    if not (isinstance(below, Aggregate) or left.told_apart(told)):
        return ()
    return told if all(map(_travels, told)) else ()


def _travels(key: Field) -> bool:
    """Whether a key can be handed on as a text: of texts it matters only which are the same."""
    return key.type in KEYS or (key.base_type in _TEXTS and key.equality_is_identity)


def _type(side: exp.Expr, fields: Sequence[Field]) -> str | None:
    """The type of a side of the comparison, if it is over these columns alone and one that can be handed on."""
    known_fields = {f.name: f for f in fields}
    used = {column.name for column in side.find_all(exp.Column)}
    if not used or not used <= known_fields.keys():
        return None
    plain = side.unnest()
    found = known_fields[plain.name].base_type if isinstance(plain, exp.Column) else result_type(plain, known_fields)
    return found if found in VALUES else None


def _within(ends: str, value: str) -> str:
    """The condition that a value is in a band, whose ends have an alias."""
    low, high = (
        f"({ends}.{end} IS NULL OR {ends}.{end} {sign} {value})" for end, sign in (("low", "<"), ("high", ">"))
    )
    return f"({all_of([f'{ends}.banded', f'{value} IS NOT NULL', low, high])})"


def _packed(band: ThresholdBand, rows: str) -> str:
    """An expression: a band (its ends with alias e) and its rows, to be handed on."""
    return remembering(rows, band.columns, 4 * MOST, ["e.banded", "e.low::text", "e.high::text"], _NONE)
