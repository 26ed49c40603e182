"""Groups: an aggregate at the root, kept by adding the delta up.

Beside the user's columns each row holds the group's size (``__pgt_count``) and what its aggregates are made of. A
refresh aggregates the input's delta, adds it to the stored row, and computes the user's expressions again. A group
whose size reaches 0 is gone. Where addition is not exact, because an extremum goes or a NaN, the group is *rescanned*:
computed again from the input's new state restricted to the keys of such groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import Column, Field
from ..dialect import generate
from ..operators import Aggregate, Operator, Project
from ..operators.operator import names
from ..plan import Plan
from ..render import aliased, any_of, derived, quote, select
from .auxiliaries import COUNT, Auxiliary, Maintained, maintained
from .keyed import ID, Keyed


@dataclass(frozen=True, slots=True)
class Groups(Keyed):
    """``select_list`` computes the user's columns from the aggregate's."""

    aggregate: Aggregate
    select_list: Project
    maintained: tuple[Maintained, ...]
    state: str

    @property
    def hidden(self) -> tuple[str, ...]:
        return tuple(auxiliary.name for auxiliary in _auxiliaries(self.maintained))

    @property
    def summed(self) -> Operator | None:
        # A value that goes and comes again must not look like an extremum that goes.
        return None if any(a.rescan and a.netted for a in _auxiliaries(self.maintained)) else self.aggregate.input

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        keys = self.aggregate.keys
        auxiliaries = _auxiliaries(self.maintained)
        user = {f.name: name for name, f in reversed(self.fields)}
        renamed = [f"{quote(key.name)} AS {quote(user[key.name])}" for key in keys]
        summed = select(
            renamed + [f"{part.sql} AS {quote(part.name)}" for a in auxiliaries for part in a.delta],
            derived(self.aggregate.input.delta(plan), "d"),
            group_by=names(keys) if self.aggregate.grouped else None,
        )
        delta = plan.cte("__pgt_scope", self.identified(summed))
        rescan = any_of([f"coalesce({a.rescan}, FALSE)" for a in auxiliaries if a.rescan])
        kept = [f"d.{ID}", f"s.{ID} IS NOT NULL AS __pgt_known"]
        kept += [f"d.{quote(user[key.name])} AS {quote(key.name)}" for key in keys]
        merged = plan.cte(
            "__pgt_merged",
            select(
                kept + [f"{a.merge} AS {quote(a.name)}" for a in auxiliaries] + [f"{rescan} AS __pgt_rescan"],
                f"{delta} AS d LEFT JOIN {storage} AS s ON {self._same('s', 'd')}",
            ),
        )
        size = quote(COUNT)
        alive = [f"{size} > 0"] if self.aggregate.grouped else []
        columns = names(keys) + [quote(a.name) for a in auxiliaries]
        rows = select(columns, merged, where=["NOT __pgt_rescan", *alive])
        if rescan != "FALSE":
            flagged = plan.cte(plan.fresh("rescan"), select(names(keys), merged, where=["__pgt_rescan", *alive]))
            # Without extrema only NaN and infinity ask for a rescan.
            rows_again = self.aggregate.input_new(plan, self.aggregate.at(flagged), rare=self.summed is not None)
            again = _state(self.aggregate, self.maintained, rows_again)
            gate = [f"EXISTS (SELECT FROM {flagged})"]
            rows += " UNION ALL " + select(columns, derived(again, "r"), where=gate)
        target = plan.cte("__pgt_new", self.identified(finished(self.select_list, self.maintained, self.fields, rows)))
        done = {"updated": self.update(plan, storage, target)}
        if self.aggregate.grouped:
            gone = [f"m.{quote(key.name)} AS {quote(user[key.name])}" for key in keys]
            empty = plan.cte(
                "__pgt_empty", select([f"m.{ID}", *gone], f"{merged} AS m", where=["m.__pgt_known", f"m.{size} <= 0"])
            )
            done["deleted"] = self.delete(plan, storage, empty)
        unknown = select([], merged, where=["NOT __pgt_known", *alive])
        done["inserted"] = self.insert_missing(plan, storage, target, f"EXISTS ({unknown})")
        return done


def _auxiliaries(maintained: tuple[Maintained, ...]) -> list[Auxiliary]:
    """Each auxiliary once, the group's size first."""
    found = {COUNT: Auxiliary.size()}
    for m in maintained:
        for auxiliary in m.auxiliaries:
            found.setdefault(auxiliary.name, auxiliary)
    return list(found.values())


def _state(aggregate: Aggregate, maintained: tuple[Maintained, ...], rows: str) -> str:
    """Keys and auxiliaries of the groups of some input rows."""
    return select(
        names(aggregate.keys) + [f"{a.state} AS {quote(a.name)}" for a in _auxiliaries(maintained)],
        derived(rows, "a"),
        group_by=names(aggregate.keys) if aggregate.grouped else None,
    )


def finished(
    project: Project, maintained: tuple[Maintained, ...], output: tuple[tuple[str, Field], ...], state: str
) -> str:
    """The user's columns, then the auxiliaries, computed from keys and auxiliaries."""
    hidden = [quote(a.name) for a in _auxiliaries(maintained)]
    finals = [f"{m.final} AS {quote(m.call.column.name)}" for m in maintained]
    keys = names([f for f in project.input.columns if f.name not in {m.call.column.name for m in maintained}])
    aggregates = select([*keys, *finals, *hidden], derived(state, "g"))
    expressions = [aliased(generate(e), c.name) for e, c in zip(project.expressions, project.columns, strict=True)]
    computed = select([*expressions, *hidden], derived(aggregates, "f"))
    return select([*(aliased(quote(f.name), name) for name, f in output), *hidden], derived(computed, "u"))


def groups(
    root: Operator,
    aggregate: Aggregate,
    output: tuple[Column, ...],
    key: tuple[Column, ...],
    fields: tuple[tuple[str, Field], ...],
) -> Groups | None:
    """The shape for a root aggregate all of whose parts add up, or None."""
    if not isinstance(root, Project) or root.input is not aggregate:
        return None
    if not all(key.faithful and key.hashable for key in aggregate.keys):
        # The stored spelling of a key (1.0, 'Bob') may be that of a row that has gone.
        return None
    parts = [maintained(call, i) for i, call in enumerate(aggregate.calls, 1)]
    known = tuple(part for part in parts if part is not None)
    if len(known) < len(parts):
        return None
    state = _state(aggregate, known, aggregate.input.new(Plan(frozenset())))
    return Groups(finished(root, known, fields, state), output, key, fields, aggregate, root, known, state)
