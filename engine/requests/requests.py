"""Engine requests: what the functions of `pgtrickle` ask for, carried out in the requesting statement's transaction."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from catalog.pinned_settings import PINNED_PATH
from catalog.session import RequestSession, SqlError, SqlSession
from catalog.values import Initiator, RefreshMode, RequestKind, Status, argument
from engine import tracing
from engine.foreign_tables.polling import NotPolled, polled
from engine.publish.places import Places
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.policy import is_fresh
from engine.refresh.record import Job, RefreshOutcome
from engine.refresh.refresh import Unpopulated, refresh
from engine.requests.circle_refresh import refresh_circle_now
from engine.requests.create import check_immediate, create, creation_target, drop_storage, notice, refuse_options
from engine.requests.diamonds import settle_diamond
from engine.requests.extensions import Installer, carry_out_extension
from engine.requests.immediate import awaits_triggers, end_immediate, enter_if_possible, leave_immediate
from engine.requests.publish import publish, unpublish
from engine.requests.redefine import is_query, redefine
from engine.requests.repair import CaptureBroken, must_be_repaired, reasons, repair
from engine.requests.statements import carry_out_statement
from engine.session.transactions import set_role
from engine.stream_tables.append_only import append_obstacle, refuse_append_only, revert_append_only
from engine.stream_tables.cron import check_schedule
from engine.stream_tables.plan_store import load_plan, set_refresh_mode, set_state
from engine.stream_tables.refresh_state import RefreshContext, begin, lock, lock_named, may_be_refreshed
from engine.subscribe.history import retain_history

logger = structlog.get_logger(__name__)


ABOVE_READ_COMMITTED = "in a transaction above READ COMMITTED"
"""What Spark reads is read by other transactions, of which a serializable one would know nothing."""

NAME_SHOWN = 200
"""So many characters of a name are in a span: it is what somebody has typed."""

POLLED = "in the transaction that has polled its foreign tables"
"""For the same reason."""


@dataclass(frozen=True, slots=True)
class Request:
    """A row of `pgtrickle.pgt_requests`."""

    request_id: int
    kind: RequestKind
    arguments: dict[str, Any]
    search_path: str
    requested_by: str
    session_role: str | None = None
    """The role that the session acts as, where that is known."""

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Request:
        """Of (request_id, kind, arguments, search_path, requested_by[, session_role])."""
        request_id, kind, arguments, search_path, requested_by, *session = row
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):  # more digits, or deeper, than Python reads: `checked` refuses it
            arguments = {}
        return cls(int(request_id), RequestKind(kind), arguments, str(search_path), str(requested_by), *session)

    @property
    def may_redefine(self) -> bool:
        """Whether it may give a stream table another query."""
        arguments = self.arguments
        return arguments.get("query") is not None and (
            self.kind == RequestKind.ALTER or bool(arguments.get("or_replace"))
        )

    def checked(self) -> RequestHandling:
        """Its kind. Raises SqlError 22023 for a row that none of our functions has written: anybody may insert one."""
        kind = KINDS[self.kind]
        if not isinstance(self.arguments, dict) or not all(
            isinstance(self.arguments.get(key), str) for key in kind.texts
        ):
            raise SqlError("22023", f"malformed {self.kind} request")
        for key, value in self.arguments.items():
            if kind.plain and not isinstance(value, str | bool | None):
                raise SqlError("22023", f'malformed argument "{key}" of a {self.kind} request')
        return kind


@dataclass(frozen=True, slots=True)
class Means:
    """What requests are carried out with, and how."""

    spark: Spark
    loader: Loader | None = None
    installer: Installer | None = None
    in_two_steps: bool = False
    """Whether a stream table is populated in a transaction of its own."""
    alone: bool = False
    """Whether the transaction does nothing but this request."""
    places: Places = field(default_factory=Places)
    """Where stream tables may be published."""


Change = Callable[[Any, Request, Means], Awaitable[int | None]]
"""Carries out a request in a session; gives the id of a stream table that is still to be populated. Raises SqlError."""


@dataclass(frozen=True, slots=True)
class RequestHandling:
    """What the engine knows of one kind of request."""

    change: Change
    refusal: str = ""
    """What is said in a session that is no client's, where it takes a `RequestSession`."""
    texts: tuple[str, ...] = ("name",)
    """The arguments that must be texts."""
    plain: bool = False
    """Whether all arguments are texts, Booleans or null."""
    expects: bool = False
    """Whether there may be a new source, history or publication, or an extension less, once the transaction commits."""


async def claim(session: SqlSession) -> list[Request]:
    """The requests that the session's transaction has made, in order; they are deleted.

    They come back if the transaction does not commit. Deleting comes before carrying out, since the deferred trigger
    that looks for requests left behind may fire early.
    """
    rows = await session.fetch(
        "SELECT request_id, kind, arguments, search_path, requested_by, current_user::text"
        " FROM pgtrickle._pending_requests() AS r, LATERAL pgtrickle._finish_request(r.request_id) ORDER BY request_id"
    )
    return [Request.from_row(row) for row in rows]


async def carry_out(
    session: SqlSession, request: Request, spark: Spark, *, in_two_steps: bool, alone: bool = False
) -> int | None:
    """Carry out one request; `alone` says that its transaction does nothing else.

    Returns the id of a stream table that is still to be populated, where `in_two_steps`: the caller commits first, so
    that capture's lock on the sources is not held while the table is filled. Raises SqlError.
    """
    kind = request.checked()
    if kind.refusal:
        raise SqlError("0A000", kind.refusal)
    created = await _change(session, request, kind, Means(spark, in_two_steps=in_two_steps, alone=alone))
    if created is not None and not in_two_steps:
        await refresh_now(session, created, Initiator.INITIAL, spark)
        return None
    return created


async def _change(session: Any, request: Request, kind: RequestHandling, means: Means) -> int | None:
    """What is done for one request, in a span of its own."""
    with tracing.span("headwater.request") as traced:
        name = str(request.arguments.get("name", ""))[:NAME_SHOWN]
        traced.set({"headwater.request": str(request.kind), "headwater.request.name": name or None})
        return await kind.change(session, request, means)


def _as_requester(change: Change) -> Change:
    """What was asked for past the server is carried out in a session of the engine's own."""

    async def changed(session: SqlSession, request: Request, means: Means) -> int | None:
        async with set_role(session, request.requested_by, current=request.session_role):
            return await change(session, request, means)

    return changed


async def lock_requested(session: SqlSession, request: Request) -> RefreshContext:
    """Lock the stream table that a request names. Raises SqlError 42P01."""
    return await lock_named(session, request.arguments["name"], request.search_path)


async def refresh_now(
    session: SqlSession,
    pgt_id: int,
    initiator: Initiator,
    spark: Spark,
    *,
    alone: bool = False,
    restart: Callable[[], Awaitable[None]] | None = None,
) -> RefreshOutcome | None:
    """Refresh a stream table in the session's transaction, whatever its isolation level.

    Where the caller can `restart` the transaction, what polls have found is committed first, so that Spark sees it.
    One that was just created and reads what is not populated is left to the scheduler: None is returned.
    """
    context = await begin(session, pgt_id)
    if restart is not None and context.capture.polled:
        _, changed = await polled(session, context, spark.lake)
        if changed:
            await restart()
        context = await begin(session, pgt_id)
    try:
        return await refresh_locked(session, context, initiator, spark, alone=alone)
    except Unpopulated as empty:
        if initiator is not Initiator.INITIAL:
            raise
        told = f'stream table "{context.name}" is not populated yet: it reads "{empty.source}", which is not'
        await notice(session, "NOTICE", told, "It is computed when that has been.")
        return None


async def refresh_locked(
    session: SqlSession, context: RefreshContext, initiator: Initiator, spark: Spark, *, alone: bool = False
) -> RefreshOutcome:
    """The same of one that is locked, and of all that read each other with it.

    Where the refresh is `alone` in the transaction and finds nothing, its commit does not wait for the disk.
    """
    if context.refresh_mode == RefreshMode.IMMEDIATE:
        context = await end_immediate(session, context)
    return await _refresh_repaired(session, await _repaired(session, context), initiator, spark, alone=alone)


async def _repaired(session: SqlSession, context: RefreshContext) -> RefreshContext:
    """The stream table, repaired if it must be; those of a circle are when all of it is refreshed."""
    if must_be_repaired(context) and not context.circle:
        context = await repair(session, context)
        # A view may have closed a circle.
        context = replace(context, circle=(await lock(session, context.pgt_id)).circle)
    return context


async def _refresh_repaired(
    session: SqlSession, context: RefreshContext, initiator: Initiator, spark: Spark, *, alone: bool = False
) -> RefreshOutcome:
    if context.circle:
        outcome = await refresh_circle_now(session, context, initiator, spark)
        if outcome is not None:
            return outcome
    context, changed = await polled(session, context, spark.lake)
    if changed:
        spark = NoSpark(POLLED, spark.lake)
    outcome = await refresh(session, context, initiator=initiator, spark=spark, alone=alone)
    if awaits_triggers(context) and not context.one_snapshot:
        await enter_if_possible(session, context.pgt_id, initiator, spark)
    return outcome


class HeldBack(Exception):
    """The scheduler must not refresh the stream table now; the message says why."""


class ComesLate(Exception):
    """A source is captured from the write-ahead log: a REPEATABLE READ transaction does not see all of it."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """How the scheduler has stream tables refreshed, each after what it has been found to need."""

    on_schedule: bool = True
    """Whether nobody has asked for it: then a gate holds it back."""
    repaired: Container[int] = ()
    """Those whose sources have been captured anew (`repair.prepare`), by id."""
    polled: Container[int] = ()
    """Those whose foreign tables have been polled (`poll_scheduled`)."""
    whole: bool = False
    """Whether what is captured from the write-ahead log is read as a whole in a REPEATABLE READ transaction."""
    job: Job | None = None

    async def ready(self, session: SqlSession, pgt_id: int) -> RefreshContext:
        """Lock a stream table for a refresh, unless there is nothing to do.

        Raises SqlError 55P03 at once if another refresh of it is running; HeldBack; CaptureBroken if its sources must
        be captured anew first, and NotPolled if foreign tables must be polled, in a transaction before; ComesLate where
        the transaction must be READ COMMITTED.
        """
        context = await begin(session, pgt_id, wait=False)
        if _is_current(context):
            return context
        if self.on_schedule and context.held_back is not None:
            raise HeldBack(context.held_back)
        if must_be_repaired(context) and pgt_id not in self.repaired:
            raise CaptureBroken(f"{context.schema}.{context.name}", reasons(context))
        if context.capture.polled and pgt_id not in self.polled:
            raise NotPolled
        if context.one_snapshot and context.capture.late and not self.whole:
            raise ComesLate
        return context

    async def check_gates(self, session: SqlSession, context: RefreshContext) -> None:
        """After a refresh: its statement may have seen what was loaded after a gate that was not there when it began.

        Raises HeldBack.
        """
        if self.on_schedule and not context.one_snapshot:
            query = "SELECT reason FROM pgtrickle._held_back() WHERE pgt_id = $1::bigint"
            for (reason,) in await session.fetch(query, context.pgt_id):
                raise HeldBack(str(reason))


async def refresh_scheduled(
    session: SqlSession, context: RefreshContext, initiator: Initiator, spark: Spark, how: Scheduled
) -> RefreshOutcome | None:
    """Refresh one that is ready in a transaction of the scheduler's; nothing is recorded where there is nothing to do.

    Where foreign tables were polled the refresh is always recorded. Raises HeldBack, and as `refresh` does.
    """
    if _is_current(context):
        return None
    outcome = await refresh(session, context, initiator=initiator, spark=spark, job=how.job)
    await how.check_gates(session, context)
    return outcome


def _is_current(context: RefreshContext) -> bool:
    """Whether there is nothing to do, by what has been captured or since triggers do it."""
    if context.refresh_mode == RefreshMode.IMMEDIATE:
        return not must_be_repaired(context)
    return is_fresh(context) and not context.capture.polled


async def poll_scheduled(session: SqlSession, pgt_id: int, spark: Spark) -> None:
    """Poll the foreign tables of a stream table. Raises SqlError as `begin`, which does not wait, and `polled` do."""
    await polled(session, await begin(session, pgt_id, wait=False), spark.lake)


async def _create(session: SqlSession, request: Request, means: Means) -> int | None:
    arguments = request.arguments
    if arguments.get("or_replace"):
        async with set_role(session, request.requested_by, current=request.session_role):
            target = await creation_target(session, arguments["name"])
            if target.is_stream_table:
                context = await lock_named(session, target.storage, PINNED_PATH)
                await _replace(session, context, request, means.spark)
                return None
    return await create(session, arguments, request.search_path, request.requested_by, in_two_steps=means.in_two_steps)


async def _replace(session: SqlSession, context: RefreshContext, request: Request, spark: Spark) -> None:
    """Give a stream table that exists the definition of a request to create one."""
    ((present, schedule, append_only, cdc_mode, diamond, policy),) = await session.fetch(
        "SELECT defining_query, schedule, append_only, requested_cdc_mode, diamond_consistency, diamond_schedule_policy"
        " FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint",
        context.pgt_id,
    )
    query = request.arguments["query"]
    wanted = {
        "query": None if await is_query(session, context, query, request.search_path, present) else query,
        "schedule": request.arguments.get("schedule") or "calculated",
        "refresh_mode": request.arguments.get("refresh_mode") or RefreshMode.AUTO,
        "append_only": bool(request.arguments.get("append_only")),
        "cdc_mode": request.arguments.get("cdc_mode") or cdc_mode,
        "diamond_consistency": request.arguments.get("diamond_consistency") or "none",
        "diamond_schedule_policy": request.arguments.get("diamond_schedule_policy") or "fastest",
    }
    now = {
        "query": None,
        "schedule": schedule or "calculated",  # none in IMMEDIATE mode
        "refresh_mode": context.requested_mode,
        "append_only": append_only,
        "cdc_mode": cdc_mode,
        "diamond_consistency": diamond,
        "diamond_schedule_policy": policy,
    }
    changes = {name: value for name, value in wanted.items() if value != now[name]}
    if changes:
        await _alter(session, context, changes, request.search_path, spark)
    else:
        await notice(session, "INFO", f'stream table "{context.name}" is unchanged')


async def _refresh(session: SqlSession, request: Request, means: Means) -> None:
    context, spark = may_be_refreshed(await lock_requested(session, request)), means.spark
    if context.one_snapshot:
        spark = NoSpark(ABOVE_READ_COMMITTED, spark.lake)
    await refresh_locked(session, context, Initiator.MANUAL, spark, alone=means.alone)
    if context.read_as_of is not None:
        await session.fetch("SELECT pgtrickle._tell_of_upstream($1::bigint)", context.pgt_id)


async def drop(session: SqlSession, request: Request, _: Means | None = None) -> None:
    """Drop a stream table: storage, catalog entries, and capture that nobody else needs."""
    context = await lock_requested(session, request)
    pgt_id = context.pgt_id
    await session.fetch("SELECT pgtrickle._unregister($1::bigint)", pgt_id)
    if context.storage:
        await drop_storage(session, context.relid)


async def resume(session: SqlSession, request: Request, _: Means) -> None:
    """SUSPENDED back to ACTIVE, errors forgotten. Raises SqlError 55000 if it is not suspended."""
    context = await lock_requested(session, request)
    if context.status != Status.SUSPENDED:
        raise SqlError(
            "55000",
            f'stream table "{context.name}" is not suspended',
            detail=f"Its status is {context.status}.",
        )
    await _set_status(session, context, Status.ACTIVE)


async def _set_status(session: SqlSession, context: RefreshContext, status: Status) -> None:
    """Set the status; ACTIVE forgets errors, and tells those who listen of the end of a suspension."""
    errors = {"consecutive_errors": 0} if status == Status.ACTIVE else {}
    await set_state(session, context.pgt_id, status=status, **errors)
    if status == Status.ACTIVE and context.status == Status.SUSPENDED:
        payload = {"event": "resumed", "pgt_schema": context.schema, "pgt_name": context.name}
        await session.fetch("SELECT pg_catalog.pg_notify('pg_trickle_alert', $1::text)", json.dumps(payload))


async def alter(session: SqlSession, request: Request, means: Means) -> None:
    """Change query, schedule, mode, options or status; arguments that are null stay as they are."""
    context = await lock_requested(session, request)
    await _alter(session, context, request.arguments, request.search_path, means.spark)


async def _alter(
    session: SqlSession, context: RefreshContext, arguments: dict[str, Any], search_path: str, spark: Spark
) -> None:
    changes = {key: value for key, value in arguments.items() if value is not None and key != "name"}
    if context.outdated and "query" not in changes:
        context = await repair(session, context)
    pgt_id = context.pgt_id
    requested = argument(RefreshMode, "refresh mode", changes.get("refresh_mode", context.requested_mode))
    refuse_options(requested, context.engine, changes)
    if context.refresh_mode == RefreshMode.IMMEDIATE and ("query" in changes or requested != RefreshMode.IMMEDIATE):
        context = await leave_immediate(session, context)
    await _set_schedule(session, context, changes.get("schedule"), requested)
    if "query" in changes:
        await redefine(session, context, changes["query"], search_path, spark, requested)
        await _close_circle(session, await lock(session, pgt_id), spark)
    elif "refresh_mode" in changes:
        _refuse_mode_in_circle(context, requested)
        await _set_refresh_mode(session, context, requested)
    if "cdc_mode" in changes:
        await set_state(session, pgt_id, requested_cdc_mode=changes["cdc_mode"])
        await session.fetch("SELECT pgtrickle._check_wal_sources($1::bigint)", pgt_id)
    await _settle_append_only(session, context, changes)
    await settle_diamond(session, pgt_id, changes)
    if "status" in changes:
        await _set_status(session, context, argument(Status, "status", changes["status"]))
    if requested == RefreshMode.IMMEDIATE and not changes.keys().isdisjoint({"query", "refresh_mode", "status"}):
        await become_immediate(session, pgt_id, spark)


async def _set_schedule(
    session: SqlSession, context: RefreshContext, given: str | None, requested: RefreshMode
) -> None:
    """Set the schedule, if one is given. One that was IMMEDIATE had none."""
    if requested == RefreshMode.IMMEDIATE:
        return
    if given is None and context.requested_mode == RefreshMode.IMMEDIATE:
        given = "calculated"
    if given is not None:
        await set_state(session, context.pgt_id, schedule=check_schedule(given))


async def _set_refresh_mode(session: SqlSession, context: RefreshContext, requested: RefreshMode) -> None:
    # AUTO that has fallen back to FULL may be asked to try again.
    fell_back = requested == RefreshMode.AUTO and context.refresh_mode == RefreshMode.FULL
    if requested != context.requested_mode or fell_back:
        await set_refresh_mode(session, context, requested)


async def become_immediate(session: SqlSession, pgt_id: int, spark: Spark) -> None:
    """Have triggers maintain a stream table that is to be so, unless it is suspended. Raises SqlError."""
    context = await lock(session, pgt_id)
    if awaits_triggers(context) and context.status != Status.SUSPENDED:
        context = await _repaired(session, may_be_refreshed(context))  # what it reads may not be known before
        await check_immediate(session, pgt_id)
        await _refresh_repaired(session, context, Initiator.MANUAL, spark)


_ANY_SUSPENDED = """
SELECT pg_catalog.bool_or(s.status OPERATOR(pg_catalog.=) 'SUSPENDED')
FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id OPERATOR(pg_catalog.=) ANY ($1::bigint[])
"""


async def _close_circle(session: SqlSession, context: RefreshContext, spark: Spark) -> None:
    """Compute the circle of a stream table by its new query: what the others hold may rest on its former one.

    While a member is suspended that is left to the next refresh.
    """
    if not context.circle:
        return
    ((suspended,),) = await session.fetch(_ANY_SUSPENDED, list(context.circle))
    if suspended:
        await set_state(session, context.pgt_id, needs_reinit=True)
    else:
        reason = f'another query of "{context.name}", which is in a circle'
        await refresh_circle_now(session, context, Initiator.MANUAL, spark, anew=reason)


def _refuse_mode_in_circle(context: RefreshContext, requested: RefreshMode) -> None:
    """Raises SqlError 0A000."""
    if context.circle and requested in (RefreshMode.FULL, RefreshMode.IMMEDIATE):
        raise SqlError(
            "0A000",
            f'stream table "{context.name}" cannot be in a circle in {requested} mode',
            hint="Give it, or another one of the circle, a query that does not close it.",
        )


async def _settle_append_only(session: SqlSession, context: RefreshContext, changes: dict[str, Any]) -> None:
    """Make it append_only or not; where another query or mode does not allow it any more, end it.

    Raises SqlError 0A000 where it is asked for and is not possible.
    """
    wanted = changes.get("append_only")
    if wanted is False:
        await set_state(session, context.pgt_id, append_only=False)
    elif wanted or not changes.keys().isdisjoint({"query", "refresh_mode"}):
        ((present, keyless),) = await session.fetch(
            "SELECT append_only, has_keyless_source FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint",
            context.pgt_id,
        )
        if not (wanted or present):
            return
        found = await lock(session, context.pgt_id)
        inputs = await load_plan(session, replace(found, plan=""))
        mode = found.requested_mode if found.requested_mode == RefreshMode.IMMEDIATE else found.refresh_mode
        obstacle = await append_obstacle(inputs, mode, keyless=keyless)
        if wanted:
            refuse_append_only(obstacle)
            await set_state(session, context.pgt_id, append_only=True)
        elif obstacle is not None:
            await revert_append_only(session, found, obstacle)


async def retain(session: SqlSession, request: Request, _: Means) -> None:
    """Retain the history of a relation for a period, or no longer. Raises SqlError."""
    period = request.arguments.get("period")
    name = request.arguments["name"]
    ((parts,),) = await session.fetch("SELECT pg_catalog.parse_ident($1::text)", name)
    await retain_history(session, tuple(parts), None if period is None else str(period), request.search_path)


class Loader(Protocol):
    """What carries out COPY from files (`engine.files.copy_from_files.FileLoader`)."""

    async def load(self, session: RequestSession, statement: str, search_path: str) -> int:
        """Load the files with the rights of the session's user; returns the number of rows. Raises SqlError."""
        ...


def check_session(request: Request) -> None:
    """The session must have the role that it had when it asked, since it has its rights. Raises SqlError 42501."""
    if request.session_role != request.requested_by:
        raise SqlError(
            "42501",
            f'cannot carry out a request of role "{request.requested_by}" as role "{request.session_role}"',
            hint="A statement must end with the role that it makes a request with.",
        )


async def _copy(session: RequestSession, request: Request, means: Means) -> None:
    """Carry out a COPY from files. Triggers and defaults run with it."""
    if means.loader is None:
        raise SqlError("58000", "COPY from a file needs Spark", hint="Start the server with --spark sail or local[*].")
    rows = await means.loader.load(session, request.arguments["statement"], request.search_path)
    session.tag = f"COPY {rows}"


async def carry_out_all(
    session: RequestSession,
    spark: Spark,
    loader: Loader | None = None,
    installer: Installer | None = None,
    expect: Callable[[], None] = lambda: None,
    places: Places | None = None,
) -> list[int]:
    """Carry out every pending request of a relayed statement; returns the stream tables it created.

    `expect` is called where a source may be created, a history be retained, a stream table be published or an extension
    be dropped, once the transaction commits.

    Where the relay opened the transaction around this one statement, creating takes two steps: capture is installed
    and committed, then the tables are populated from one fresh snapshot. The caller undoes the first step if the
    second fails (`undo_creation`). A statement that drops stream tables, too, is carried out in one: it may be these.
    """
    requests = await claim(session)
    for request in requests:
        check_session(request)
    kinds = [request.checked() for request in requests]
    await _see_what_commits(session, requests)
    two_steps = (
        session.autocommit
        and any(
            request.kind == RequestKind.CREATE and request.arguments.get("initialize", True) for request in requests
        )
        and all(request.kind != RequestKind.DROP for request in requests)
    )
    alone = session.autocommit and len(requests) == 1
    means = Means(spark, loader, installer, two_steps, alone, places or Places())
    created = []
    for request, kind in zip(requests, kinds, strict=True):
        if kind.refusal:
            await _change(session, request, kind, means)
        elif (pgt_id := await carry_out(session, request, spark, in_two_steps=two_steps, alone=alone)) is not None:
            created.append(pgt_id)
        if kind.expects:
            expect()
    return created if two_steps else []


async def _see_what_commits(session: RequestSession, requests: list[Request]) -> None:
    """Where a query may change, go on in a READ COMMITTED transaction, whatever isolation the client has by default.

    What is computed must contain what was committed before its sources are captured.
    """
    if not (session.autocommit and any(request.may_redefine for request in requests)):
        return
    ((isolation,),) = await session.fetch("SELECT pg_catalog.current_setting('transaction_isolation')")
    if isolation in ("repeatable read", "serializable"):
        await session.restart("READ COMMITTED")


async def _statement(session: RequestSession, request: Request, _: Means) -> None:
    await carry_out_statement(session, request.arguments["statement"], request.search_path)


async def _publish(session: RequestSession, request: Request, means: Means) -> None:
    arguments = request.arguments
    name, location = arguments["name"], arguments.get("location")
    if arguments.get("ends"):
        await unpublish(session, name, location, request.search_path)
    else:
        format_ = arguments.get("format")
        await publish(session, name, format_, location, request.search_path, means.places)


async def _extension(session: RequestSession, request: Request, means: Means) -> None:
    await carry_out_extension(session, request.arguments, means.installer)


KINDS: dict[RequestKind, RequestHandling] = {
    RequestKind.CREATE: RequestHandling(_create, texts=("name", "query"), plain=True),
    RequestKind.ALTER: RequestHandling(_as_requester(alter), plain=True),
    RequestKind.DROP: RequestHandling(_as_requester(drop)),
    RequestKind.REFRESH: RequestHandling(_as_requester(_refresh)),
    RequestKind.RESUME: RequestHandling(_as_requester(resume)),
    RequestKind.RETAIN: RequestHandling(_as_requester(retain), expects=True),
    RequestKind.PUBLISH: RequestHandling(
        _publish,
        "publications begin and end on connections through the server only",
        plain=True,
        expects=True,
    ),
    RequestKind.COPY: RequestHandling(
        _copy, "COPY from a file works on connections through the server only", texts=("statement",)
    ),
    RequestKind.EXTENSION: RequestHandling(
        _extension, "extensions are created and dropped on connections through the server only", expects=True
    ),
    RequestKind.STATEMENT: RequestHandling(
        _statement,
        "this statement works on connections through the server only",
        texts=("statement",),
        expects=True,
    ),
}
"""All kinds; the catalog allows no others (`pgt_requests.kind`)."""
