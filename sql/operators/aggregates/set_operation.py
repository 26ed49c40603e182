"""Set operation: INTERSECT [ALL] and EXCEPT [ALL].

Not linear: the rule of `recompute_groups`, the key being the whole row, over the union of both inputs, each row tagged
with its side. With ``l`` and ``r`` for the copies of a row on the left and on the right the result has

    INTERSECT: 1 if l > 0 and r > 0     INTERSECT ALL: min(l, r)
    EXCEPT:    1 if l > 0 and r = 0     EXCEPT ALL:    max(l - r, 0)

copies of it. NULLs are equal. Of values that are equal but look different the left side's, first by text, is given out.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.identity import any_alike
from sql.base.text import derived, quote, select
from sql.operators.aggregates.recompute_groups import RecomputeGroups
from sql.operators.operator import names
from sql.operators.plan import Plan

_LEFT, _RIGHT = quote("__pgt_left"), quote("__pgt_right")
_DISTINCT = {"INTERSECT": [f"{_LEFT} > 0", f"{_RIGHT} > 0"], "EXCEPT": [f"{_LEFT} > 0", f"{_RIGHT} = 0"]}
_COPIES = {"INTERSECT": f"LEAST({_LEFT}, {_RIGHT})", "EXCEPT": f"GREATEST({_LEFT} - {_RIGHT}, 0)"}


@dataclass(frozen=True, slots=True)
class SetOperation(RecomputeGroups):
    """``kind`` is INTERSECT or EXCEPT; ``side`` is the input's column that is 1 for the left, 2 for the right."""

    side: Field
    kind: str
    all: bool

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.keys

    def _key(self, key: Field) -> str:
        name = quote(key.name)
        if key.equality_is_identity:
            return f"a.{name}"
        return f"{any_alike(key, 'a', order=quote('a', self.side.name))} AS {name}"

    def computed(self, plan: Plan, rows: str) -> str:
        copies = [
            f"pg_catalog.count(*) FILTER (WHERE a.{quote(self.side.name)} = {side}) AS {name}"
            for side, name in ((1, _LEFT), (2, _RIGHT))
        ]
        counted = select(
            [*map(self._key, self.keys), *copies],
            derived(rows, "a"),
            group_by=[f"a.{name}" for name in names(self.keys)],
        )
        columns = [f"c.{name}" for name in names(self.keys)]
        if not self.all:
            return select(columns, derived(counted, "c"), where=_DISTINCT[self.kind])
        repeat = f"CROSS JOIN {plan.target.copies(_COPIES[self.kind])} AS r"
        return select(columns, f"{derived(counted, 'c')} {repeat}")

    def describe(self) -> str:
        return self.kind.capitalize() + (" all" if self.all else "")
