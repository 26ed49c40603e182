"""A refresh statement in the making: which sources changed, and the WITH clause so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sql.base.columns import WEIGHT, Source
from sql.base.frontier import unseen
from sql.base.identity import content_groups
from sql.base.text import quote, select
from sql.errors import NotDifferentiable

MOST = 1_000_000
"""The length of a statement up to which a query is maintained from changes. Those of TPC-H take 50 000 at most."""

DATES = "__pgt_dates"
"""The common table expression that says which timestamp each transaction has, where changes are dated."""

AT = "__pgt_at"
"""The column that holds the timestamp of a dated change."""

FRONTIER = "($1->>'snapshot')::pg_catalog.pg_snapshot"
"""The snapshot of the frontier, in statements."""

PENDING = (unseen(FRONTIER, "($1->>'xid')::pg_catalog.xid8", "coalesce(($1->>'change_id')::bigint, 0)"),)
"""A change (alias c) is pending for the frontier $1."""


def buffer(oid: int) -> str:
    """The table that captures the changes of a source."""
    return quote("pgtrickle_changes", f"changes_{oid}")


def delta_name(oid: int) -> str:
    """The CTE that holds the net pending changes of a source."""
    return quote(f"__pgt_delta_{oid}")


def recorded(reference: str, type_: str) -> str:
    """A column of a buffer as the source has it: buffers hold the base type of a domain.

    >>> recorded('c."n"', "integer"), recorded('c."n"', "public.positive")
    ('c."n"', 'c."n"::public.positive')
    """
    return f"{reference}::{type_}" if "." in type_ else reference


def pending_changes(source: Source, columns: Sequence[str]) -> str:
    """The pending changes of a source as they were captured; ``columns`` are expressions over the buffer, alias c."""
    return select(columns, f"{buffer(source.oid)} AS c", where=[*PENDING, 'c."__pgt_w" <> 0'])


def source_delta(source: Source, used: Sequence[str], condition: str | None = None, *, dated: bool = False) -> str:
    """The net pending changes of a source: changes that cancel each other out are gone before anything is joined.

    Only those that satisfy a ``condition`` on the buffer's columns (alias c) are looked at, if there is one. If they
    are ``dated``, those of each timestamp are consolidated apart, and have it in the column `AT`.
    """
    columns = [column for column in source.columns if column.name in used]
    by, values = content_groups(columns, "c")
    dates = f' JOIN {quote(DATES)} AS a ON a.xid = c."__pgt_xid"' if dated else ""
    return select(
        [
            f"{recorded(value, column.type)} AS {quote(column.name)}"
            for value, column in zip(values, columns, strict=True)
        ]
        + [f'pg_catalog.sum(c."__pgt_w")::bigint AS {quote(WEIGHT)}']
        + [f"a.mz_timestamp AS {quote(AT)}"] * dated,
        f"{buffer(source.oid)} AS c{dates}",
        where=[*PENDING, 'c."__pgt_w" <> 0', *([f"({condition})"] if condition else [])],
        group_by=[*by, *["a.mz_timestamp"] * dated],
        having=['pg_catalog.sum(c."__pgt_w") <> 0'],
    )


def pending_dates(sources: Sequence[Source]) -> str:
    """The timestamps of transactions with pending changes: the query of the common table expression `DATES`.

    The parameters have those between which they are (``after``, ``until``), and ``rest``, whether a transaction that
    none of these sees has the latter. Without ``rest`` it does not count.
    """
    xids = " UNION ".join(pending_changes(source, ['c."__pgt_xid"']) for source in sources)
    period = "($1->>'after')::bigint, ($1->>'until')::bigint, ($1->>'rest')::boolean"
    dates = f"pgtrickle._dates({period}, ARRAY({xids}))"
    return select(["d.xid", "d.mz_timestamp"], f"{dates} AS d")


@dataclass(frozen=True, slots=True)
class Stage:
    """A relation that another executor computes; PostgreSQL finds its rows in a staging table.

    ``types`` has its columns in order, each with the type that the statement wants, "" for whatever it is.
    """

    name: str
    query: str
    types: tuple[tuple[str, str], ...]

    @property
    def staging(self) -> str:
        """What stands for the staging table in the statement."""
        return f"$staging:{self.name}$"


class Bound(Protocol):
    """What leaves out rows of a delta that cannot matter; see `semi_join_reduction`."""

    def sql(self, plan: Plan, alias: str) -> str:
        """The condition that a row with this alias matters."""


@dataclass(slots=True)
class Plan:
    """Collects the common table expressions of one statement, in order.

    The changes of ``streamed`` sources are read straight from their buffers, once and as captured: whoever reads them
    adds weights up anyway.

    A plan can begin ``remote_plan``: what is written then is for another executor (Spark), which has no indexes, no
    hashes of rows, and relations that hold the sources' net deltas. Its common table expressions are its ``views``. It
    ends with the first `stage`, from which on PostgreSQL goes on.
    """

    changed: frozenset[int]
    streamed: frozenset[int] = frozenset()
    ctes: list[str] = field(default_factory=list)
    deltas: dict[int, tuple[object, str]] = field(default_factory=dict)
    """What `shared` has put into common table expressions."""
    solved: dict[int, str] = field(default_factory=dict)
    """Deltas of operators, by `id`, that a storage shape has found in its own way."""
    bounds: Mapping[int, Sequence[Bound]] = field(default_factory=dict)
    """By the `id` of operators, what bounds their deltas, see `semi_join_reduction`."""
    whole: frozenset[int] = frozenset()
    """Aggregates, by `id`, of which all groups are read in any case, see `linear_aggregate`."""
    narrowed: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By the `id` of joins, the columns that are read, see `narrowing`."""
    touched: dict[int, str] = field(default_factory=dict)
    """For aggregates, by `id`, the common table expressions that hold their touched groups."""
    stored: dict[int, tuple[str, str]] = field(default_factory=dict)
    """For aggregates, by `id`, what is stored of their groups, see `linear_aggregate`."""
    running: Mapping[int, str] = field(default_factory=dict)
    """For aggregates, by `id`, queries of what touched groups are made of, and were, see `running`."""
    groups: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """What `linear_aggregate` has put into common table expressions."""
    sums: dict[int, tuple[str, str]] = field(default_factory=dict)
    """For aggregates, by `id`, the changes of their input, and the common table expressions that add these up."""
    remembered: Mapping[int, str] = field(default_factory=dict)
    """For aggregates, by `id`, the names under which their groups are remembered, see `cached_accumulators`."""
    load_accumulators: dict[int, str] = field(default_factory=dict)
    """For aggregates, by `id`, the common table expressions that hold what is remembered."""
    memory: dict[str, str] = field(default_factory=dict)
    """By their names, expressions of what is to be remembered."""
    usual: bool = False
    """Whether what is hardly ever needed is left out; `alarms` are conditions under which it is."""
    alarms: list[str] = field(default_factory=list)
    quick: bool = False
    """Whether what is written is hardly ever executed, and should above all be quick to plan."""
    remote_plan: bool = False
    views: list[tuple[str, str]] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    """The names of common table expressions that are put in where they are first needed."""
    most: int | None = None
    """The length from which on it is given up: what is too long is not written down to its end."""
    _length: int = 0
    _names: int = 0

    def fresh(self, prefix: str) -> str:
        """A name nothing else in the statement has."""
        self._names += 1
        return f"__pgt_{prefix}_{self._names}"

    def cte(self, name: str, query: str, *, materialized: bool | None = True) -> str:
        """Add a common table expression and return its quoted name; ``materialized``: None if it is read once."""
        quoted = quote(name)
        if self.remote_plan:
            self.views.append((name, query))
            return quoted
        how = {True: "MATERIALIZED ", False: "NOT MATERIALIZED ", None: ""}[materialized]
        self._longer(query)
        self.ctes.append(f"{quoted} AS {how}({query})")
        return quoted

    def stage(self, name: str, query: str, types: Mapping[str, str]) -> str:
        """Add a relation that is all PostgreSQL needs to know of the query so far, and return its quoted name."""
        if not (self.remote_plan or self.stages):
            return self.cte(name, query)
        self.remote_plan = False
        stage = Stage(name, query, tuple(types.items()))
        self.stages.append(stage)
        columns = [f"s.{quote(c)}::{type_} AS {quote(c)}" if type_ else f"s.{quote(c)}" for c, type_ in types.items()]
        return self.cte(name, select(columns, f"{stage.staging} AS s"))

    def modification(self, name: str, statement: str) -> str:
        """Add a data-modifying common table expression and return its quoted name."""
        quoted = quote(name)
        self._longer(statement)
        self.ctes.append(f"{quoted} AS ({statement})")
        return quoted

    def _longer(self, text: str) -> None:
        self._length += len(text)
        if self.most is not None and self._length > self.most:
            raise NotDifferentiable(
                "a query of this complexity",
                "Use refresh_mode => 'FULL', or stream tables of its parts.",
                f"Its changes take a statement of more than {self.most / 1e6:.0f} MB, for whose plan PostgreSQL would"
                " need gigabytes.",
            )

    def statement(self, final: str) -> str:
        """The whole statement. Raises NotDifferentiable if it is too long."""
        self._longer(final)
        return f"WITH {', '.join(self.ctes)} {final}" if self.ctes else final


NOTHING = Plan(frozenset())
"""For rows as they are, which need no common table expressions where nothing has changed."""
