"""Groups: an aggregate at the root, kept by adding the delta up.

Beside the user's columns each row holds the group's size (``__pgt_count``), what its aggregates are made of, and the
keys that the query does not give out. A refresh aggregates the input's delta, adds it to the stored row, and computes
the user's expressions again. A group whose size reaches 0 is gone. Where addition is not exact, because an extremum
goes or a NaN, the group is *rescanned*: computed again from the input's new state, restricted to the keys of such
groups.

With HAVING only groups that satisfy it are stored, as a stream table holds its query's rows and no others. A touched
group that is not stored may be new or one that failed before: it is rescanned. A stored one that fails now is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Column, Field
from sql.base.text import aliased, any_of, derived, quote, select
from sql.operators import Aggregate, Filter, Operator
from sql.operators.aggregates.accumulators import COUNT, Maintained, auxiliaries, maintained, results
from sql.operators.aggregates.accumulators import state as made_of
from sql.operators.operator import names
from sql.operators.plan import NOTHING, Plan
from sql.operators.statement import Types
from sql.storage.affected_groups import keys_as_stored, staged_keys
from sql.storage.keyed import ID, Keyed
from sql.storage.root import above, hidden_keys, top

MOST_COLUMNS = 800
"""A row must fit into a page of PostgreSQL, 8 kB, where most of its values take 8 bytes and more."""


@dataclass(frozen=True, slots=True)
class Groups(Keyed):
    """``key`` are the storage's columns that hold the aggregate's keys; ``root`` has the aggregate below its top."""

    aggregate: Aggregate
    root: Operator
    maintained: tuple[Maintained, ...]

    @property
    def auxiliaries(self) -> tuple[str, ...]:
        """The hidden columns that make up the aggregates."""
        return tuple(auxiliary.name for auxiliary in auxiliaries(self.maintained))

    @property
    def hidden(self) -> tuple[str, ...]:
        return (*hidden_keys(self.aggregate.keys, self.key, self.output), *self.auxiliaries)

    @property
    def hidden_columns(self) -> list[Column]:
        extrema = {
            auxiliary.name: argument
            for part in self.maintained
            for auxiliary in part.auxiliaries
            if part.call.function in ("min", "max") and (argument := part.call.argument) is not None
        }
        keys = {column.name: column for column in self.key}
        return [
            keys.get(name)
            or Column(
                name, *((f.type, False, f.hashable, f.equality_is_identity) if (f := extrema.get(name)) else ("",))
            )
            for name in self.hidden
        ]

    @property
    def filtered(self) -> bool:
        """Whether there is a HAVING."""
        return any(isinstance(operator, Filter) for operator in top(self.root))

    @property
    def summed(self) -> Operator | None:
        # A value that goes and comes again must not look like an extremum that goes, nor like a change of a group.
        consolidated = self.filtered or any(a.rescan and a.consolidated for a in auxiliaries(self.maintained))
        return None if consolidated else self.aggregate.input

    def core(self, plan: Plan) -> str:
        aggregate = self.aggregate
        return made_of(aggregate.keys, self.maintained, aggregate.input.new(plan), grouped=aggregate.grouped)

    @property
    def core_types(self) -> Types:
        keys = tuple((field.name, field.type) for field in self.aggregate.keys)
        return keys + tuple((name, "") for name in self.auxiliaries)

    def from_core(self, rows: str) -> str:
        return self.finished(rows)

    def finished(self, state: str) -> str:
        """The storage's columns, computed from keys and auxiliaries."""
        return _finished(self.root, self.aggregate, self.maintained, self.output, self.key, self.fields, state)

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        merged, rescan = self._merged(plan, storage)
        rows = self._now(plan, merged, rescan)
        target = plan.cte("__pgt_new", self.identified(self.finished(rows)))
        done = {"updated": self.update(plan, storage, target)}
        if self.aggregate.grouped or self.filtered:
            done["deleted"] = self.delete(plan, storage, plan.cte("__pgt_empty", self._gone(merged, target)))
        unknown = select([], merged, where=["NOT __pgt_known", *([] if self.filtered else self._alive)])
        done["inserted"] = self.insert_missing(plan, storage, target, f"EXISTS ({unknown})")
        return done

    def apply_staged_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        return self._computed_again(plan, storage) if self.summed is None else self.apply_delta(plan, storage)

    @property
    def stored_as(self) -> dict[str, str]:
        """The storage's columns that hold the aggregate's keys, by these."""
        return {key.name: quote(column.name) for key, column in zip(self.aggregate.keys, self.key, strict=True)}

    @property
    def _alive(self) -> list[str]:
        """The condition that a group has rows."""
        return [f"{quote(COUNT)} > 0"] if self.aggregate.grouped else []

    def _merged(self, plan: Plan, storage: str) -> tuple[str, str]:
        """A CTE of the touched groups: what is stored with the changes added, and whether that must be told anew.

        And the condition for the latter.
        """
        keys, parts, stored = self.aggregate.keys, auxiliaries(self.maintained), self.stored_as
        renamed = [f"{quote(key.name)} AS {stored[key.name]}" for key in keys]
        summed = select(
            renamed + [f"{part.sql} AS {quote(part.name)}" for a in parts for part in a.delta],
            derived(self.aggregate.input.delta(plan), "d"),
            group_by=names(keys) if self.aggregate.grouped else None,
        )
        sums = dict.fromkeys((part.name for a in parts for part in a.delta), "")
        summed = plan.statement.staged("__pgt_sums", summed, {c.name: c.type for c in self.key} | sums)
        delta = plan.cte("__pgt_scope", self.identified(summed))
        conditions = [f"coalesce({a.rescan}, FALSE)" for a in parts if a.rescan]
        rescan = any_of([*conditions, *([f"s.{ID} IS NULL"] if self.filtered else [])])
        kept = [f"d.{ID}", f"s.{ID} IS NOT NULL AS __pgt_known"]
        kept += [f"d.{stored[key.name]} AS {quote(key.name)}" for key in keys]
        merged = plan.cte(
            "__pgt_merged",
            select(
                kept + [f"{a.merge} AS {quote(a.name)}" for a in parts] + [f"{rescan} AS __pgt_rescan"],
                f"{delta} AS d LEFT JOIN {storage} AS s ON {self.same('s', 'd')}",
            ),
        )
        return merged, rescan

    def _now(self, plan: Plan, merged: str, rescan: str) -> str:
        """What the touched groups are made of now: as ``merged``, and from the input's rows where that is not sure."""
        keys = self.aggregate.keys
        columns = names(keys) + [quote(a.name) for a in auxiliaries(self.maintained)]
        rows = select(columns, merged, where=["NOT __pgt_rescan", *self._alive])
        if rescan == "FALSE":
            return rows
        # Without extrema and HAVING only NaN and infinity ask for a rescan.
        rare = self.summed is not None
        # Of a group that is not stored the size is not known.
        some = [f"(NOT __pgt_known OR {quote(COUNT)} > 0)"] if self._alive and self.filtered else self._alive
        wanted = select(names(keys), merged, where=["__pgt_rescan", *some])
        if rare:
            plan.statement.violations.append(f"EXISTS ({wanted})")
        if rare and plan.usual:
            return rows
        flagged = plan.cte(plan.fresh("rescan"), wanted)
        rows_again = self.aggregate.input_new(plan, self.aggregate.at(flagged), rare=rare)
        again = made_of(keys, self.maintained, rows_again, grouped=self.aggregate.grouped)
        return rows + " UNION ALL " + select(columns, derived(again, "r"), where=[f"EXISTS (SELECT FROM {flagged})"])

    def _gone(self, merged: str, target: str) -> str:
        """The stored groups that are not among the rows of now."""
        gone = [f"m.{quote(key.name)} AS {self.stored_as[key.name]}" for key in self.aggregate.keys]
        going = select([f"m.{ID}", *gone], f"{merged} AS m", where=["m.__pgt_known", *self._going("m")])
        if not self.filtered:
            return going
        kept_here = select([], f"{target} AS n", where=[self.same("n", "g")])
        return select(["g.*"], derived(going, "g"), where=[f"NOT EXISTS ({kept_here})"])

    def _computed_again(self, plan: Plan, storage: str) -> dict[str, str]:
        """All touched groups from their rows, by an executor that does not know which of them must be."""
        aggregate = self.aggregate
        touched = aggregate.touched(plan)
        rows = aggregate.input_new(plan, aggregate.at(touched))
        state = made_of(aggregate.keys, self.maintained, rows, grouped=aggregate.grouped)
        if not aggregate.keys:
            state = select(["*"], derived(state, "o"), where=[f"EXISTS (SELECT FROM {touched})"])
        keys = staged_keys(plan, self.key, keys_as_stored(aggregate.keys, self.key, touched))
        types = {key.name: key.type for key in aggregate.keys} | dict.fromkeys(self.auxiliaries, "")
        new = self.identified(self.finished(plan.statement.staged("__pgt_state", state, types)))
        return self.apply(plan, storage, plan.cte("__pgt_new", new), plan.cte("__pgt_scope", self.identified(keys)))

    def _going(self, alias: str) -> list[str]:
        return [] if self.filtered else [f"{alias}.{quote(COUNT)} <= 0"]


def _finished(
    root: Operator,
    aggregate: Aggregate,
    maintained: tuple[Maintained, ...],
    output: tuple[Column, ...],
    key: tuple[Column, ...],
    fields: tuple[tuple[str, Field], ...],
    state: str,
) -> str:
    parts = [Field(a.name, "") for a in auxiliaries(maintained)]
    aggregates = results(aggregate.keys, maintained, state, names(parts))
    hidden = hidden_keys(aggregate.keys, key, output)
    columns = [aliased(quote(field.name), name) for name, field in (*fields, *hidden.items())]
    rows = above(NOTHING, root, aggregates, [*hidden.values(), *parts])
    return select([*columns, *names(parts)], derived(rows, "u"))


def groups(
    root: Operator,
    aggregate: Aggregate,
    output: tuple[Column, ...],
    key: tuple[Column, ...],
    fields: tuple[tuple[str, Field], ...],
) -> Groups | None:
    """The shape for an aggregate below the top of the tree all of whose parts add up, or None."""
    if not all(key.equality_is_identity and key.hashable for key in aggregate.keys):
        # The stored spelling of a key (1.0, 'Bob') may be that of a row that has gone.
        return None
    parts = [maintained(call, i) for i, call in enumerate(aggregate.calls, 1)]
    known = tuple(part for part in parts if part is not None)
    if len(known) < len(parts) or len(output) + len(auxiliaries(known)) > MOST_COLUMNS:
        return None
    state = made_of(aggregate.keys, known, aggregate.input.new(Plan(frozenset())), grouped=aggregate.grouped)
    rows = _finished(root, aggregate, known, output, key, fields, state)
    return Groups(rows, output, key, fields, aggregate, root, known)
