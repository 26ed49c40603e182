"""Preparing a subscription: what it reads, who may, how it is evaluated, and which columns come out.

The query is analysed on a connection of the engine's, with the role and the names of the client's session: on the
client's own a view could not be made in a READ ONLY transaction, and would hold on to its transaction id.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from catalog.session import SqlError, SqlSession
from engine.capture.lock_retry import LOCK_PATIENCE
from engine.compile.compiled_query import FollowedQuery
from engine.session.roles import run_as_owner
from engine.session.transactions import set_role
from engine.stream_tables.analysis import TRACKABLE_KINDS, Definition, Dependency, analysed, define, function_hashes
from engine.stream_tables.plan_inputs import compiled, plan
from engine.subscribe.coalescing import Coalescing
from engine.subscribe.interface import Described, Envelope, EnvelopeKind, Subscribe
from engine.subscribe.sessions import Rights, SessionsByRights
from sql import NotDifferentiable
from sql.base.text import quote
from sql.changes.change_query import KIND
from sql.jobs import Following

NUMERIC, BOOLEAN, BIGINT, TEXT = (
    Described("", oid, length, -1) for oid, length in ((1700, -1), (16, 1), (20, 8), (25, -1))
)

NAMING = ("search_path", "DateStyle", "TimeZone")

DEADLOCK = "40P01"

FULLY = "Subscribe to a stream table of this query that is refreshed in FULL mode."
"""How to follow what has no changes that can be captured."""

CHANGING = frozenset({"now", "transaction_timestamp", "statement_timestamp", "age", "version", "session_user"})
"""Stable functions of PostgreSQL whose results are others at another time, or in another session."""

CHANGING_PREFIXES = ("pg_", "has_", "current_", "txid_", "inet_client_", "inet_server_", "to_reg", "table_to_xml")


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column that comes out: what the client is told, and what makes it.

    `expression` speaks of the relation `q`; `type` and its output function (None: it is text) are qualified and quoted.
    """

    described: Described
    expression: str
    type: str
    output: str | None


@dataclass(frozen=True, slots=True)
class Preparation:
    """Implements `Prepared`."""

    asked: Subscribe
    role: str
    role_oid: int
    runs_as: str
    runs_as_oid: int
    canonical: str
    followed: FollowedQuery
    order_by: str | None
    """ORDER BY with names looked up, over the relation `__pgt_order`."""
    output: tuple[OutputColumn, ...]
    sources: str
    """What `pgtrickle._subscribe` is told of them, as JSON."""
    function_hashes: str

    @property
    def columns(self) -> tuple[Described, ...]:
        return tuple(column.described for column in self.output)

    @property
    def identity(self) -> tuple[object, ...]:
        """Subscriptions that agree in this, and are written out in the same way, are one."""
        settings = tuple(sorted((k, v) for k, v in self.asked.settings.items() if k != "search_path"))
        envelope = self.asked.envelope
        rights = self.role, self.runs_as
        return self.canonical, rights, envelope, self.order_by, self.asked.progress, self.sources, settings


@dataclass(frozen=True, slots=True)
class Question:
    """What the preparation of a subscription follows from, next to what the database holds."""

    role: str
    role_oid: int
    query: str
    envelope: Envelope
    order_by: str | None
    progress: bool
    names: tuple[tuple[str, str], ...]
    """What names and constants mean: the settings that have a say in it."""


class Preparing:
    """Prepares subscriptions. Those who ask for the same at the same time, as after a restart, get one analysis."""

    def __init__(self, sessions: SessionsByRights):
        self._sessions = sessions
        self._analyses: Coalescing[Question, Preparation] = Coalescing()

    async def prepare(self, session: SqlSession, asked: Subscribe) -> Preparation:
        """See `SubscriptionHub.prepare`."""
        ((role, role_oid),) = await session.fetch(
            "SELECT current_user::text, (SELECT oid::bigint FROM pg_catalog.pg_roles WHERE rolname = current_user)"
        )
        names = tuple((name, asked.settings[name]) for name in NAMING if name in asked.settings)
        question = Question(role, int(role_oid), asked.query, asked.envelope, asked.order_by, asked.progress, names)
        prepared = await self._analyses.result(question, lambda: _prepare(self._sessions, question, asked))
        return replace(prepared, asked=asked)


@retry(
    retry=retry_if_exception(
        lambda error: isinstance(error, SqlError) and (error.sqlstate == DEADLOCK or error.is_of_connection)
    ),
    wait=wait_random_exponential(multiplier=0.05, max=1.0),
    stop=stop_after_delay(LOCK_PATIENCE),
    reraise=True,
)
async def _prepare(sessions: SessionsByRights, question: Question, asked: Subscribe) -> Preparation:
    """Analyse a query. It changes nothing, and is done again where others' locks or a crash were in its way."""
    role, role_oid, names = question.role, question.role_oid, dict(question.names)
    path = names.get("search_path", "public")
    # PostgreSQL computes what is constant in the query: code of the role's can run here, too.
    async with sessions.session(Rights(role_oid, role_oid)) as own, own.transaction("read_committed"):
        # The client's own transaction may hold what is waited for here, and waits for this.
        await own.execute(f"SET LOCAL lock_timeout = '{LOCK_PATIENCE:.0f}s'")
        for name in ("DateStyle", "TimeZone"):
            if name in names:
                await own.fetch("SELECT pg_catalog.set_config($1::text, $2::text, true)", name, names[name])
        async with set_role(own, role):
            definition = await define(own, asked.query, path)
            _refuse(definition)
            await _check_rights(own, role, definition.canonical)
        ordered = asked.order_by is not None
        definition, runs_as, runs_as_oid = await _reader(own, definition, role, role_oid, ordered=ordered)
        async with set_role(own, runs_as):
            try:
                inputs = await plan(own, definition)
                before = asked.envelope.kind is EnvelopeKind.DEBEZIUM
                following = Following(inputs.query, _keys(asked, definition), before)
                followed = await FollowedQuery.of(await compiled(inputs), following, runs_as)
            except NotDifferentiable as reason:
                raise SqlError(
                    "0A000", f"{reason.construct} is not supported in SUBSCRIBE", detail=reason.detail, hint=FULLY
                ) from reason
            found = await analysed(own, definition.canonical, ("types",))
        async with set_role(own, role):
            order_by = await _ordering(own, asked.order_by, followed, path)
    if not followed.reproducible:
        raise SqlError("0A000", "WITH RECURSIVE whose rows depend on the order of others is not supported in SUBSCRIBE")
    types = {
        str(name): (Described("", oid, length, typmod), str(function), str(type_))
        for name, oid, length, typmod, function, type_ in found["types"]
    }
    used = followed.compiled.used_columns
    sources = [
        {
            "relid": d.source.oid,
            "columns": sorted(used.get(d.source.oid, d.columns_used) if d.view is None else d.columns_used),
            "readers": sorted(d.readers),
            "captured": d.view is None,
        }
        for d in definition.dependencies
    ]
    return Preparation(
        asked,
        role,
        role_oid,
        runs_as,
        runs_as_oid,
        definition.canonical,
        followed,
        order_by,
        _output(asked, followed, types),
        json.dumps(sources, sort_keys=True),
        function_hashes(definition.functions),
    )


def _refuse(definition: Definition) -> None:
    """What is not followed, whatever reads it. Raises SqlError 0A000."""
    refused = definition.inspected.rejected
    if refused is not None:
        construct, hint = refused
        raise SqlError("0A000", f"{construct} is not supported in SUBSCRIBE", hint=hint)
    for dependency in definition.dependencies:
        if dependency.source.schema.startswith("pg_temp"):
            raise SqlError("0A000", f'temporary relation "{dependency.source.name}" cannot be followed')
    for use in definition.functions:
        changing = use.name in CHANGING or use.name.startswith(CHANGING_PREFIXES) or "," in use.name
        if use.volatility == "s" and (use.user_defined or changing):
            raise SqlError(
                "0A000",
                f'stable function "{use.name}" is not supported in SUBSCRIBE',
                detail="Its result can change without a change of what the query reads.",
            )


async def _check_rights(session: SqlSession, role: str, canonical: str) -> None:
    """PostgreSQL's own check of the subscriber's rights, and of the owners of views to what these read."""
    rights = f"SELECT pg_catalog.to_jsonb(1) FROM ({canonical}) AS rights LIMIT 0"
    await run_as_owner(session, role, rights, {}, current=role)


async def _reader(
    session: SqlSession, definition: Definition, role: str, role_oid: int, *, ordered: bool
) -> tuple[Definition, str, int]:
    """Whose rights the changes are read with: the subscriber's, unless only the owner of a view may read what it reads.

    Then the query runs as that owner, who could be told things by a function that the subscriber has written; so
    there must be none, nor any whose result does not follow from its arguments. Raises SqlError 0A000.
    """
    denied = [d for d in definition.dependencies if d.kind in TRACKABLE_KINDS and d.denied is not None]
    if not denied:
        return definition, role, role_oid
    owners = {reader for d in denied for reader in d.readers}
    others = [d for d in definition.dependencies if d.view is None and d not in denied]
    reason = f'"{denied[0].source.name}" is read through a view, with its owner\'s rights'
    if len(owners) != 1:
        raise SqlError("0A000", "views of several owners are not supported in SUBSCRIBE", detail=f"{reason}.")
    _refuse_code_of_others(definition, reason, ordered=ordered)
    (owner_oid,) = owners
    await _refuse_other_readers(session, definition, others, owner_oid)
    ((owner,),) = await session.fetch("SELECT pg_catalog.pg_get_userbyid($1::bigint::oid)::text", owner_oid)
    # Whether it can be captured at all is asked when it is.
    dependencies = tuple(replace(d, obstacle=None) if d in denied else d for d in definition.dependencies)
    return replace(definition, dependencies=dependencies), owner, owner_oid


def _refuse_code_of_others(definition: Definition, reason: str, *, ordered: bool) -> None:
    """The owner of a view must not run what the subscriber has written. Raises SqlError 0A000."""
    unsafe = next((f.name for f in definition.functions if f.user_defined or f.volatility != "i"), None)
    if unsafe is not None:
        what = f'function "{unsafe}" is'
    elif ordered:
        what = "WITHIN TIMESTAMP ORDER BY is"
    else:
        return
    raise SqlError(
        "0A000",
        f"{what} not supported in SUBSCRIBE over such a view",
        detail=f"{reason}; only immutable functions of PostgreSQL itself are.",
    )


async def _refuse_other_readers(
    session: SqlSession, definition: Definition, others: list[Dependency], owner_oid: int
) -> None:
    """The owner of the views must be able to read all the rest of the query, too. Raises SqlError 0A000."""
    barriers = await session.fetch(
        "SELECT relname::text FROM pg_catalog.pg_class WHERE oid = ANY ($1::bigint[]::oid[])"
        " AND pgtrickle._view_option(reloptions, 'security_barrier')",
        [d.source.oid for d in definition.dependencies if d.view is not None],
    )
    if barriers:
        raise SqlError("0A000", f'security barrier view "{barriers[0][0]}" is not supported in SUBSCRIBE')
    for dependency in others:
        columns = list(dependency.columns_used)
        ((obstacle,),) = await session.fetch(
            "SELECT pgtrickle._read_obstacle($1::bigint::oid, $2::bigint::oid, $3::text[])",
            owner_oid,
            dependency.source.oid,
            columns,
        )
        if obstacle is not None:
            raise SqlError(
                "0A000", "views and tables of several owners are not supported in SUBSCRIBE", detail=obstacle
            )


def _keys(asked: Subscribe, definition: Definition) -> tuple[str, ...]:
    names = {column.name for column in definition.output}
    for key in asked.envelope.keys:
        if key not in names:
            raise SqlError("42703", f'column "{key}" of the envelope\'s KEY does not exist')
    if len(set(asked.envelope.keys)) < len(asked.envelope.keys):
        raise SqlError("42701", "a column appears more than once in the envelope's KEY")
    if asked.envelope.kind is not EnvelopeKind.NONE and not asked.envelope.keys:
        raise SqlError("42601", "an envelope needs a KEY")
    return asked.envelope.keys


ORDER = "__pgt_order"
_ORDERED = re.compile(rf'\) "?{ORDER}"?\s+ORDER BY\s+(.*)\Z', re.DOTALL)


async def _ordering(session: SqlSession, order_by: str | None, followed: FollowedQuery, path: str) -> str | None:
    """WITHIN TIMESTAMP ORDER BY with every name looked up, as PostgreSQL writes it. Raises SqlError."""
    if order_by is None:
        return None
    columns = ["NULL::text AS mz_state" if followed.keys else "NULL::bigint AS mz_diff"]
    columns += [f"NULL::{column.type} AS {quote(prefix + column.name)}" for _, column, prefix in followed.columns]
    query = f"SELECT 1 AS one FROM (SELECT {', '.join(columns)}) AS {ORDER}\nORDER BY {order_by}\n"
    found = await analysed(session, query, ("definition", "functions", "dependencies"), path=path)
    match = _ORDERED.search(str(found["definition"]))
    if match is None or found["dependencies"]:
        raise SqlError("0A000", "this WITHIN TIMESTAMP ORDER BY is not supported", hint="Sort by columns.")
    return match[1]


def _output(
    asked: Subscribe, followed: FollowedQuery, types: dict[str, tuple[Described, str, str]]
) -> tuple[OutputColumn, ...]:
    found = [_own("mz_timestamp", NUMERIC, "q.mz_timestamp", "numeric", "numeric_out")]
    if asked.progress:
        found.append(_own("mz_progressed", BOOLEAN, "false", "bool", "boolout"))
    if followed.keys:
        found.append(_own("mz_state", TEXT, f"q.{KIND}", "text", None))
    else:
        found.append(_own("mz_diff", BIGINT, f"q.{KIND}", "int8", "int8out"))
    for name, column, prefix in followed.columns:
        described, function, type_ = types[column.name]
        output = None if described.oid == TEXT.oid else function
        # CASE makes of a domain what that is made of.
        value = f"q.{quote(name)}::{type_}"
        found.append(OutputColumn(replace(described, name=prefix + column.name), value, type_, output))
    return tuple(found)


def _own(name: str, described: Described, expression: str, type_: str, output: str | None) -> OutputColumn:
    function = None if output is None else f"pg_catalog.{output}"
    return OutputColumn(replace(described, name=name), expression, f"pg_catalog.{type_}", function)
