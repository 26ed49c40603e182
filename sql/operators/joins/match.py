"""Match: the conditions under which a row of one relation goes with a row of another, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import WEIGHT, Field
from sql.base.text import all_of, derived, quote, select
from sql.canonical.dialect import generate
from sql.canonical.null_safe_equal import NullSafeEqual
from sql.operators.operator import Operator, Restriction
from sql.operators.plan import Plan

_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_TEXTS = frozenset({"text", "character varying"})
_CASTS = {
    exp.DataType.Type.TEXT: "text",
    exp.DataType.Type.SMALLINT: "integer",
    exp.DataType.Type.INT: "integer",
    exp.DataType.Type.BIGINT: "integer",
    exp.DataType.Type.DECIMAL: "numeric",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A condition that equates an expression over the left relation with one over the right.

    A value has at most one equal among distinct values of the other side. ``left_field`` and ``right_field`` are given
    where the expression is a mere column.
    """

    left: str
    right: str
    left_field: Field | None
    right_field: Field | None


@dataclass(frozen=True, slots=True)
class Match:
    """``conditions`` are ANDed and speak of both relations' columns, whose names differ from each other."""

    conditions: tuple[exp.Expr, ...]
    left: tuple[Field, ...]
    right: tuple[Field, ...]

    def sql(self, plan: Plan) -> str:
        """The conditions as one."""
        return all_of([f"({plan.target.condition(condition)})" for condition in self.conditions])

    @property
    def left_used(self) -> tuple[Field, ...]:
        """The left columns that decide."""
        return self._used(self.left)

    @property
    def right_used(self) -> tuple[Field, ...]:
        """The right columns that decide."""
        return self._used(self.right)

    def _used(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        mentioned = {column.name for condition in self.conditions for column in condition.find_all(exp.Column)}
        return tuple(f for f in fields if f.name in mentioned)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The equalities between the two sides."""
        left, right = ({f.name: f for f in side} for side in (self.left, self.right))
        found: dict[tuple[str, str], Pair] = {}
        for condition in self.conditions:
            equality = condition.unnest()
            if not isinstance(equality, exp.EQ):
                continue
            sides = [equality.left.unnest(), equality.right.unnest()]
            columns = [_column(side) for side in sides]
            if columns[0] in right and columns[1] in left:
                sides.reverse()
                columns.reverse()
            if columns[0] not in left or columns[1] not in right:
                continue
            mine, theirs = left[columns[0]], right[columns[1]]
            kinds = _kind(sides[0], mine), _kind(sides[1], theirs)
            if not kinds[0] or kinds[0] != kinds[1]:
                continue
            texts = generate(sides[0]), generate(sides[1])
            found[texts] = Pair(
                *texts,
                mine if isinstance(sides[0], exp.Column) else None,
                theirs if isinstance(sides[1], exp.Column) else None,
            )
        return tuple(found.values())

    @property
    def equalities_only(self) -> bool:
        """Whether `pairs` say all that the conditions do."""
        equalities = {generate(condition.unnest()) for condition in self.conditions}
        return len(self.pairs) == len(equalities)

    def mirrored(self) -> Match:
        """The same with left and right exchanged."""
        return Match(self.conditions, self.right, self.left)

    @property
    def agreements(self) -> tuple[tuple[Field, Field], ...]:
        """Columns of the two sides, of the same type, that agree in each match, be it in NULL."""
        left, right = ({f.name: f for f in side} for side in (self.left, self.right))
        found: list[tuple[Field, Field]] = []
        for condition in self.conditions:
            sides = (
                [condition.this.unnest(), condition.expression.unnest()] if isinstance(condition, NullSafeEqual) else []
            )
            names = [side.name for side in sides if isinstance(side, exp.Column)]
            if len(names) == 2:
                mine, theirs = names if names[0] in left else reversed(names)
                if mine in left and theirs in right and left[mine].type == right[theirs].type:
                    found.append((left[mine], right[theirs]))
        return tuple(found)

    @property
    def equal_columns(self) -> tuple[tuple[Field, Field], ...]:
        """Columns of the two sides, of the same type, that are equal in each match."""
        pairs = [(p.left_field, p.right_field) for p in self.pairs if p.left_field and p.right_field]
        return tuple((mine, theirs) for mine, theirs in pairs if mine.type == theirs.type)

    def keys(self, plan: Plan, rows: str) -> Restriction | None:
        """For the left relation: only rows that can match one of these rows of the right. Adds a CTE."""
        equal, agreeing = self.equal_columns, self.agreements
        if not (equal or agreeing):
            return None
        columns = [quote(name) for name in dict.fromkeys(theirs.name for _, theirs in (*equal, *agreeing))]
        where = [f"{quote(name)} IS NOT NULL" for name in dict.fromkeys(theirs.name for _, theirs in equal)]
        keys = select(columns, derived(rows, "d"), where=where, distinct=True)
        pairs = tuple((mine.name, theirs) for mine, theirs in (*equal, *agreeing))
        return Restriction(plan.cte(plan.fresh("keys"), keys), pairs)

    def through(self, only: Restriction | None) -> Restriction | None:
        """A restriction of left rows as one of the right rows that they can match."""
        if only is None:
            return None
        equal = {mine.name: theirs.name for mine, theirs in (*self.agreements, *self.equal_columns)}
        return only.of(tuple((equal[name], key) for name, key in only.pairs if name in equal))

    def restricted(
        self, plan: Plan, left: Operator, right: Operator, only: Restriction | None
    ) -> tuple[str, Restriction | None]:
        """The left rows as they are now, and a restriction of the right ones: to those that the left can match.

        Where the right aggregates, and the restriction speaks of other columns than are compared, the left rows that it
        leaves are looked up first: else all groups of the right would be computed.
        """
        below = only and only.to(left.columns)
        rows, through = left.new(plan, below), self.through(below)
        comparable = self.equal_columns or self.agreements
        if below is None or through is not None or not right.barrier or not comparable:
            return rows, through
        if plan.quick or not plan.target.one_statement:
            return rows, None
        columns = [quote(f.name) for f in left.columns]
        found = plan.target.restricted(rows, columns, below, [f.name for f in left.columns if not f.not_null])
        rows = select(["*"], plan.cte(plan.fresh("rows"), found))
        return rows, self.mirrored().keys(plan, rows)

    def matched(self, plan: Plan, operator: Operator, rows: str, *, single: bool = False) -> str:
        """The left ``operator``'s new rows that match at least one of some rows of the right, each once.

        With equalities it reads along an index, where there is one: the distinct values come first. ``single``: these
        rows are the changes of a relation of one row, and wanted are the rows whose match has changed.
        """
        only = self.keys(plan, rows) if operator.barrier or self.agreements else None
        columns = [f"l.{quote(f.name)}" for f in self.left]
        left = operator.new(plan, only)
        if only and self.agreements:
            possibly = [mine.name for mine, _ in self.agreements if not mine.not_null]
            left = plan.target.restricted(left, [quote(f.name) for f in self.left], only, possibly)
        source = derived(left, "l")
        crossed = self._crossed(plan, rows) if single else []
        where = crossed or [f"EXISTS ({select([], derived(rows, 'r'), where=[self.sql(plan)])})"]
        if self.pairs:
            source = f"{self._values(plan, rows)} AS k CROSS JOIN {source}"
            equal = [f"{pair.left} = k.k{i}" for i, pair in enumerate(self.pairs)]
            where = equal if self.equalities_only else equal + where
        return select(columns, source, where=where)

    def _values(self, plan: Plan, rows: str) -> str:
        """A CTE: the distinct values in right rows that left ones are equated with."""
        values = [f"{pair.right} AS k{i}" for i, pair in enumerate(self.pairs)]
        known = [f"{pair.right} IS NOT NULL" for pair in self.pairs]
        return plan.cte(plan.fresh("keys"), select(values, derived(rows, "r"), where=known, distinct=True))

    def _crossed(self, plan: Plan, rows: str) -> list[str]:
        """Conditions under which a left row's match has changed with a relation's one row; none if unknown."""
        signed = (select(["r.*"], derived(rows, "r"), where=[f"r.{quote(WEIGHT)} {sign} 0"]) for sign in "<>")
        before, now = (self.with_values(plan, row) for row in signed)
        if before is None or now is None:
            return []
        return [f"EXISTS ({select([], derived(rows, 'r'))})", f"(({before}) IS TRUE) <> (({now}) IS TRUE)"]

    def with_values(self, plan: Plan, row: str) -> str | None:
        """The conditions as an expression over the left's columns, the right's being those of a query of one row.

        None if no expression can hold that query.
        """
        if plan.target.value(row) is None:
            return None
        right = {f.name for f in self.right}
        parts = []
        for condition in self.conditions:
            result = exp.Paren(this=condition.copy())
            for column in list(result.find_all(exp.Column)):
                if column.name in right:
                    value = plan.target.value(select([quote(column.name)], derived(row, "r")))
                    column.replace(exp.Var(this=value))
            parts.append(plan.target.condition(result))
        return all_of(parts)


def _column(side: exp.Expr) -> str:
    inner = side.this.unnest() if isinstance(side, exp.Cast) else side
    return inner.name if isinstance(inner, exp.Column) else ""


def _kind(side: exp.Expr, field: Field) -> str:
    """What values of a side are compared as, empty if its distinct values are not what ``=`` tells apart."""
    base = field.base_type
    own = "integer" if base in _INTEGERS else "text" if base in _TEXTS else base
    if isinstance(side, exp.Column):
        return own if field.hashable else ""
    kind = _CASTS.get(side.to.this, "") if isinstance(side, exp.Cast) and not side.to.expressions else ""
    allowed = {"text": _TEXTS | {"character"}, "integer": _INTEGERS, "numeric": _INTEGERS | {"numeric"}}
    return kind if kind and (base in allowed[kind] or not field.builtin) else ""
