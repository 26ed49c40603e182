"""Following a query: its changes, and its rows as they are or were, where nothing of it is stored.

The changes since a frontier are the net delta of the operator tree's root. With a key they are grouped by it:
what a key had and has are its rows of now, and those less the delta; so a key with several rows shows whenever one of
them changes, whatever time the others come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sql.base.columns import ENUM, Column, Field, Source
from sql.base.consolidate import W, consolidated
from sql.base.identity import content_groups
from sql.base.text import derived, quote, select, union_all
from sql.changes.as_of import versioned
from sql.changes.timestamped import TIMESTAMP, with_timestamp
from sql.compile.compiled import Compiled
from sql.errors import NotDifferentiable
from sql.operators import Operator, Restriction
from sql.operators.captured_changes import AT
from sql.operators.operator import names
from sql.operators.plan import Plan
from sql.operators.statement import MOST
from sql.storage import KeyedRows, Recomputed, Shape
from sql.storage.keyed import Keyed

KIND = "__pgt_kind"
"""The column before the query's own: mz_diff, or with a key mz_state."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A compiled query that is followed, as it is or (`keys`) by what happens to keys.

    The statements below give a column `KIND` and those named in `columns`. Parameters are those of `Compiled`.
    """

    compiled: Compiled
    keys: tuple[str, ...] = ()
    before: bool = False
    """Whether what a key's other columns were before is given out, too."""

    def __post_init__(self) -> None:
        """Raises NotDifferentiable for a key that is none."""
        for column in self.compiled.output:
            if column.name in self.keys and not column.hashable:
                raise NotDifferentiable(f'key column "{column.name}" of type {column.type}')

    @property
    def values(self) -> tuple[Column, ...]:
        """The query's columns that are no keys; all without keys."""
        return tuple(column for column in self.compiled.output if column.name not in self.keys)

    @property
    def columns(self) -> tuple[tuple[str, Column, str], ...]:
        """The columns: how the statements name them, what they hold, and the prefix of their public name."""
        by_name = {column.name: column for column in self.compiled.output}
        found = [(self._internal(name), by_name[name], "") for name in self.keys]
        if self.keys and self.before:
            found += [(f"b{self._number(c.name)}", c, "before_") for c in self.values]
        prefix = "after_" if self.keys and self.before else ""
        return (*found, *((self._internal(c.name), c, prefix) for c in self.values))

    def snapshot(self) -> str:
        """The rows as they are."""
        plan = Plan(frozenset())
        rows = select(_columns(self._fields), derived(self._root.new(plan), "o"))
        if not self._distinct:
            rows = select(["n.*"], derived(self._netted(select(["q.*", f"1::bigint AS {W}"], derived(rows, "q"))), "n"))
        else:
            rows = select(["q.*", f"1::bigint AS {W}"], derived(rows, "q"))
        return self._as_new(rows)

    def past(self, changed: frozenset[int]) -> str:
        """The rows as they were at the frontier, after which these sources have changed."""
        plan = self.compiled.following(changed, streamed=frozenset())
        if not self._root.changed(plan):
            return self.snapshot()
        return plan.statement.text(
            self._as_new(consolidated(self._root.old(plan), self._root_columns, self._internals))
        )

    def changes(self, changed: frozenset[int], *, most: int | None = None) -> str:
        """What has happened since the frontier, after which these sources, and no others, have changed.

        Raises NotDifferentiable if it is longer than ``most``.
        """
        plan = self.compiled.following(changed, streamed=self.compiled.streamed(self._root), most=most)
        delta = consolidated(self._root.delta(plan), self._root_columns, self._internals)
        if not self.keys:
            return plan.statement.text(self._weighted(delta))
        changes = plan.cte("__pgt_changes", delta)
        if self._unique:
            return plan.statement.text(self._by_key(self._counted(f"{changes} AS d")))
        return plan.statement.text(self._by_key(self._beside(plan, changes)))

    def history(self, changed: frozenset[int]) -> str | None:
        """What has happened since the frontier, after which these sources have changed, each timestamp's changes apart.

        Rows have their timestamp in the column `AT`; the parameters are those of `pending_dates` as well. None if
        the query, or the key, asks for more than the changes themselves: see `at_timestamps`.
        """
        root = with_timestamp(self._root)
        if root is None or not changed or (self.keys and not self._unique):
            return None
        plan = self.compiled.following(changed, streamed=frozenset(), dated=True)
        delta = consolidated(root.delta(plan), [*self._root_columns, TIMESTAMP], [*self._internals, AT])
        if not self.keys:
            return plan.statement.text(self._weighted(delta, dated=True))
        return plan.statement.text(self._by_key(self._counted(derived(delta, "d")), dated=True))

    # -- at timestamps in the past ----------------------------------------------------------------------------------

    def at_timestamps(self, keys: Mapping[int, Sequence[str]]) -> Followed:
        """What gives by `changes` those of a timestamp, ``at`` in ``$1``, where the sources' `versions` are there.

        ``keys``: further columns of sources, by which their rows are told apart.
        """
        return replace(self, compiled=versioned(self.compiled, keys))

    def check_length(self) -> None:
        """Write down `changes` of all sources. Raises NotDifferentiable."""
        if self.sources:
            self.changes(frozenset(source.oid for source, _ in self.sources), most=MOST)

    def running(self, changed: frozenset[int]) -> list[tuple[str, str]]:
        """What is done, in this order, before `changes` is asked for those of a timestamp.

        The second statement of each is for what the first one leaves, of which it returns the number.
        """
        plans = partial(self.compiled.following, changed, streamed=frozenset())
        kept = [kept for kept in self.compiled.running if kept.aggregate.sources & changed]
        return [(each.advance(plans()), each.complete(plans())) for each in kept]

    @property
    def sources(self) -> tuple[tuple[Source, tuple[str, ...]], ...]:
        """The sources, each with the columns that are read."""
        return tuple((source, self.compiled.used_columns[source.oid]) for source in self.compiled.sources)

    # -- the query --------------------------------------------------------------------------------------------------

    @property
    def _root(self) -> Operator:
        assert self.compiled.root is not None
        return self.compiled.root

    @property
    def _fields(self) -> list[tuple[str, Field]]:
        return [(self._internal(name), field) for name, field in self.compiled.fields]

    @property
    def _root_columns(self) -> list[Field]:
        return [field for _, field in self.compiled.fields]

    @property
    def _internals(self) -> list[str]:
        return [name for name, _ in self._fields]

    def _number(self, name: str) -> int:
        return next(i for i, column in enumerate(self.compiled.output, 1) if column.name == name)

    def _internal(self, name: str) -> str:
        # Not the query's own names: one of them could be that of a column beside it.
        return f"c{self._number(name)}"

    @property
    def _shape(self) -> Shape:
        shape = self.compiled.shape
        return shape.base if isinstance(shape, Recomputed) else shape

    @property
    def _distinct(self) -> bool:
        """Whether no two rows are the same."""
        shown = {column.name for column in self.compiled.output}
        return isinstance(self._shape, Keyed) and {column.name for column in self._shape.key} <= shown

    @property
    def _unique(self) -> bool:
        """Whether there can be but one row with a key."""
        return isinstance(self._shape, KeyedRows) and {column.name for column in self._shape.key} <= {*self.keys}

    # -- statements ---------------------------------------------------------------------------------------------------

    def _netted(self, rows: str) -> str:
        columns = [
            Column(self._internal(c.name), c.type, c.not_null, c.hashable, c.equality_is_identity)
            for c in self.compiled.output
        ]
        return consolidated(rows, columns)

    def _weighted(self, rows: str, *, dated: bool = False) -> str:
        columns = [f"w.{quote(name)}" for name in [*[AT] * dated, *(name for name, _, _ in self.columns)]]
        return select([f"w.{W} AS {quote(KIND)}", *columns], derived(rows, "w"))

    def _counted(self, changes: str) -> str:
        """How often each row is there now (n) and was before (o), of changes (alias d) to keys with one row at most."""
        return select(["d.*", f"GREATEST(d.{W}, 0) AS n", f"GREATEST(-d.{W}, 0) AS o"], changes)

    def _as_new(self, rows: str) -> str:
        """Rows with their weights, all of which have come."""
        if not self.keys:
            return self._weighted(rows)
        if self._unique:
            state = "'insert'" if self.before else "'upsert'"
            # A domain may not allow NULL.
            types = {
                c: column.type if column.carrier == ENUM else column.carrier or column.type
                for c, column, _ in self.columns
            }
            columns = [
                f"NULL::{types[name]} AS {quote(name)}" if prefix == "before_" else f"r.{quote(name)}"
                for name, _, prefix in self.columns
            ]
            return select([f"{state}::text AS {quote(KIND)}", *columns], derived(rows, "r"))
        return self._by_key(select(["r.*", f"r.{W} AS n", "0::bigint AS o"], derived(rows, "r")))

    def _beside(self, plan: Plan, changes: str) -> str:
        """The rows of keys that have changed: how often they are there now, and were before."""
        key_fields = {self._internal(name): field for name, field in self.compiled.fields if name in self.keys}
        pairs = {field.name: (field.name, field) for field in key_fields.values()}
        chosen = {field.name: name for name, field in key_fields.items()}
        distinct = select(
            [f"d.{quote(name)} AS {quote(field)}" for field, name in chosen.items()], f"{changes} AS d", distinct=True
        )
        only = Restriction(plan.cte("__pgt_keys", distinct), tuple(pairs.values()))
        nullable = [field.name for field in key_fields.values() if not field.not_null]
        present = plan.target.restricted(self._root.new(plan, only), names(self._root.columns), only, nullable)
        rows = union_all(
            [
                select([*_columns(self._fields), "1::bigint AS n", "1::bigint AS o"], derived(present, "p")),
                select(
                    [*(f"d.{quote(n)}" for n in self._internals), "0::bigint AS n", f"-d.{W} AS o"], f"{changes} AS d"
                ),
            ]
        )
        return self._summed(rows)

    def _summed(self, rows: str) -> str:
        """How often each row is there now (n) and was before (o), of rows with parts of both."""
        columns = [
            Column(self._internal(c.name), c.type, c.not_null, c.hashable, c.equality_is_identity)
            for c in self.compiled.output
        ]
        by, values = content_groups(columns, "b")
        sums = ["pg_catalog.sum(b.n)::bigint AS n", "pg_catalog.sum(b.o)::bigint AS o"]
        return select(
            [f"{value} AS {quote(column.name)}" for value, column in zip(values, columns, strict=True)] + sums,
            derived(rows, "b"),
            group_by=by,
            having=["(pg_catalog.sum(b.n) <> 0 OR pg_catalog.sum(b.o) <> 0)"],
        )

    def _by_key(self, content: str, *, dated: bool = False) -> str:
        """One row for each key. ``content`` says how often each row is there now (n) and was before (o).

        If it is ``dated``, there is one for each timestamp.
        """
        apart = [*[AT] * dated, *(self._internal(name) for name in self.keys)]
        partition = f"PARTITION BY {', '.join(f'k.{quote(name)}' for name in apart)}"
        windows = [
            f"pg_catalog.sum(k.n) OVER ({partition}) AS nn",
            f"pg_catalog.sum(k.o) OVER ({partition}) AS oo",
            f"pg_catalog.row_number() OVER ({partition} ORDER BY (k.n > 0) DESC) AS place",
        ]
        if self.before:
            windows += [
                f"pg_catalog.first_value(k.{quote(self._internal(c.name))}) OVER ({partition} ORDER BY (k.o > 0) DESC)"
                f" AS {quote(f'b{self._number(c.name)}')}"
                for c in self.values
            ]
        came = "CASE WHEN x.oo = 0 THEN 'insert' ELSE 'upsert' END" if self.before else "'upsert'"
        state = f"CASE WHEN x.nn > 1 THEN 'key_violation' WHEN x.nn = 1 THEN {came} ELSE 'delete' END::text"
        keys = {self._internal(name) for name in self.keys}
        columns = []
        for name, _, prefix in self.columns:
            known = "x.oo = 1 AND x.nn <= 1" if prefix == "before_" else "x.nn = 1"
            value = f"x.{quote(name)}"
            columns.append(value if name in keys else f"CASE WHEN {known} THEN {value} END AS {quote(name)}")
        return select(
            [f"{state} AS {quote(KIND)}", *[f"x.{quote(AT)}"] * dated, *columns],
            derived(select(["k.*", *windows], derived(content, "k")), "x"),
            where=["x.place = 1"],
        )


def _columns(fields: Sequence[tuple[str, Field]]) -> list[str]:
    return [f"{quote(field.name)} AS {quote(name)}" for name, field in fields]
