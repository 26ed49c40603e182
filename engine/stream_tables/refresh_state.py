"""A stream table as a refresh finds it: locked, with its frontier and what its sources have pending."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from catalog.session import SqlError, SqlSession
from catalog.values import Engine, RefreshMode, Status
from engine.capture.ahead import capture_ahead
from sql import PLAN_FORMAT


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source as a refresh finds it."""

    oid: int
    qualified: str
    name: str
    captured: bool
    pending: int
    """Captured changes that the frontier has not seen; counting stops at 10 000 001."""
    truncated: bool
    late: bool = False
    """Whether its changes are captured from the write-ahead log, and so come later than it shows them."""


@dataclass(frozen=True, slots=True)
class CaptureState:
    """What has been captured for a stream table since its frontier, and what stands against its use."""

    frontier: dict[str, Any] | None
    sources: tuple[SourceState, ...]
    broken: tuple[str, ...] = ()
    """Why what has been captured cannot be trusted."""
    denied: tuple[str, ...] = ()
    """Why the owner may not read a source."""
    ungranted: tuple[dict[str, Any], ...] = ()
    """What the owner has to be granted again of captured changes, in another transaction (`ahead.capture_ahead`)."""
    polled: bool = False
    """Whether the stream table reads copies of foreign tables, which are to be polled first."""

    @property
    def pending(self) -> int:
        """Captured changes of all sources that the frontier has not seen."""
        return sum(source.pending for source in self.sources)

    @property
    def late(self) -> frozenset[int]:
        """The sources whose changes are captured from the write-ahead log."""
        return frozenset(source.oid for source in self.sources if source.late)

    @property
    def changed(self) -> frozenset[int]:
        """The sources with pending changes."""
        return frozenset(source.oid for source in self.sources if source.pending)


@dataclass(frozen=True, slots=True)
class Learned:
    """What earlier refreshes of a stream table have left for the next one."""

    row_id_salt: int = 0
    """Under which no two rows had one row id."""
    last_full_ms: float | None = None
    auto_threshold: float | None = None
    """Ratio of changes above which a full refresh has been faster, where that was seen."""
    executor_costs: dict[str, Any] = field(default_factory=dict)
    """What each executor has taken (`executor_choice.Cost`), by kind of refresh and executor."""
    memory: dict[str, Any] | None = None
    """What the last differential refresh has handed on: ``groups`` for the statement; whether it was ``unusual``."""


@dataclass(frozen=True, slots=True)
class RefreshContext:
    """A stream table, locked for a refresh (`pgtrickle._begin_refresh`): which it is, and what is asked of it."""

    pgt_id: int
    schema: str
    name: str
    relid: int
    storage: str
    """The storage table, qualified and quoted."""
    owner: str
    caller: str
    """The role that the session acts as."""
    status: Status
    refresh_mode: RefreshMode
    requested_mode: RefreshMode
    engine: Engine
    is_populated: bool
    needs_reinit: bool
    canonical_query: str
    plan: str
    """Differs when what the stream table is planned from does; empty if that is not known."""
    one_snapshot: bool
    """True if all statements of the transaction see the same, at REPEATABLE READ or above."""
    capture: CaptureState
    learned: Learned
    settings: dict[str, str] = field(default_factory=dict)
    """Settings that decide how it is refreshed, where it is to be."""
    append_only: bool = False
    """Whether rows are expected only to come."""
    plan_format: int | None = None
    """Which compiler has planned it (`sql.PLAN_FORMAT`); None where nothing is to be done."""
    held_back: str | None = None
    """Why the scheduler must not refresh it now; None where nobody has asked, since it was waited for."""
    read_as_of: str | None = None
    """As of when what it reads is at the latest, where a stream table among that lacks changes."""
    circle: tuple[int, ...] = ()
    """The stream tables that read each other, by id, if it is one of them."""
    computed_whole: str | None = None
    """Why all rows are to be computed this time, whatever has changed."""

    @classmethod
    def from_row(cls, text: str, isolation: str) -> RefreshContext:
        """Read what `_begin_refresh` returned."""
        values = json.loads(text)
        return cls(
            pgt_id=values["pgt_id"],
            schema=values["schema"],
            name=values["name"],
            relid=values["relid"],
            storage=values["storage"],
            owner=values["owner"],
            caller=values["caller"],
            status=Status(values["status"]),
            refresh_mode=RefreshMode(values["refresh_mode"]),
            requested_mode=RefreshMode(values["requested_mode"]),
            engine=Engine(values["engine"]),
            is_populated=values["is_populated"],
            needs_reinit=values["needs_reinit"],
            canonical_query=values["canonical_query"],
            plan=values["plan"],
            one_snapshot=isolation in ("repeatable read", "serializable"),
            capture=_capture_state(values),
            learned=_learned(values),
            settings=values.get("settings", {}),
            append_only=values.get("append_only", False),
            plan_format=values.get("plan_format"),
            held_back=values.get("held_back"),
            read_as_of=values.get("read_as_of"),
            circle=tuple(values.get("circle") or ()),
        )

    @property
    def outdated(self) -> bool:
        """Whether another version of the compiler has planned it."""
        return self.plan_format not in (None, PLAN_FORMAT)


def _capture_state(values: dict[str, Any]) -> CaptureState:
    return CaptureState(
        frontier=values["frontier"],
        sources=tuple(
            SourceState(
                oid=source["oid"],
                qualified=source["qualified"],
                name=source["name"],
                captured=source["captured"],
                pending=source["pending"] or 0,
                truncated=bool(source["truncated"]),
                late=bool(source.get("late")),
            )
            for source in values["sources"]
        ),
        broken=tuple(values["broken"]),
        denied=tuple(values["denied"]),
        ungranted=tuple(values.get("ungranted", ())),
        polled=values.get("polled", False),
    )


def _learned(values: dict[str, Any]) -> Learned:
    return Learned(
        row_id_salt=values["row_id_salt"],
        last_full_ms=values["last_full_ms"],
        auto_threshold=values["auto_threshold"],
        executor_costs=values.get("executor_costs", {}),
        memory=values.get("memory"),
    )


async def lock(session: SqlSession, pgt_id: int, *, wait: bool = True) -> RefreshContext:
    """Lock a stream table against refreshes and changes, and read its state; `wait` for a running refresh to end.

    Raises SqlError: 42501 without membership in its owner's role, 55P03 while another refresh of it runs and `wait` is
    false, 40001 if it changed after a REPEATABLE READ session's snapshot.
    """
    return await _granted(*(await session.fetch(_LOCK.format("$1::bigint"), pgt_id, wait))[0])


async def lock_named(session: SqlSession, name: str, search_path: str) -> RefreshContext:
    """The same by name, waiting. Raises SqlError 42P01, too."""
    rows = await session.fetch(_LOCK.format("pgtrickle._resolve($1::text, $3::text)"), name, True, search_path)
    return await _granted(*rows[0])


async def _granted(text: str, isolation: str) -> RefreshContext:
    context = RefreshContext.from_row(text, isolation)
    for source in context.capture.ungranted:
        await capture_ahead(source)
    return context


_LOCK = "SELECT pgtrickle._begin_refresh({}, $2::boolean)::text, pg_catalog.current_setting('transaction_isolation')"


async def begin(session: SqlSession, pgt_id: int, *, wait: bool = True) -> RefreshContext:
    """Lock a stream table for a refresh.

    Raises SqlError as `lock` does, 55000 if it is suspended, and 42501 if its owner may no longer read a source.
    """
    return may_be_refreshed(await lock(session, pgt_id, wait=wait))


def may_be_refreshed(context: RefreshContext) -> RefreshContext:
    """Raises SqlError 55000 if it is suspended, and 42501 if its owner may no longer read a source."""
    if context.status == Status.SUSPENDED:
        raise SqlError(
            "55000",
            f'stream table "{context.name}" is suspended',
            hint=f"Resume it with pgtrickle.resume_stream_table('{context.schema}.{context.name}').",
        )
    if context.capture.denied:
        obstacle, hint = context.capture.denied[0], f'Grant it to the owner of the stream table, "{context.owner}".'
        if obstacle.startswith("row-level security"):
            hint = (
                f"Give the stream table to a role that it does not apply to (ALTER TABLE {context.storage} OWNER TO …):"
                " the owner of that table, or one with BYPASSRLS. Policies on the stream table then say who sees what."
            )
        raise SqlError("42501", obstacle, hint=hint)
    return context
