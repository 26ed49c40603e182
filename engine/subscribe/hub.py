"""The hub: all subscriptions of one database in this server, each distinct one evaluated once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from weakref import WeakValueDictionary

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from catalog.session import SqlError, SqlSession
from engine.capture.lock_retry import with_lock_retry
from engine.session.pool import DatabasePool
from engine.session.transactions import local_setting
from engine.subscribe.as_of import AsOfStart
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.feed import LiveFeed
from engine.subscribe.initial_snapshot import InitialSnapshot, too_early
from engine.subscribe.interface import Output, Prepared, Subscribe
from engine.subscribe.join_request import Interrupted, JoinRequest
from engine.subscribe.preparation import Preparation, Preparing
from engine.subscribe.rendering import Rendering, rendering
from engine.subscribe.sessions import SessionsByRights
from engine.subscribe.ticker import Ticker

logger = structlog.get_logger(__name__)

LINGER = 2.0
"""Seconds for which a subscription is kept that nobody reads any more: somebody may come again at once."""

FORGET_INTERVAL = 5.0
"""Seconds between two attempts to remove a subscription that nobody reads."""

PATIENCE = 10.0
"""Seconds for which a subscription that is interrupted before its first row is begun again."""

NOT_LATER = 1000
"""Milliseconds in the past that AS OF may be and still mean now."""

NUMBERS = frozenset({"smallint", "integer", "bigint", "numeric", "real", "double precision", "text", "unknown"})
"""The types of timestamp expressions that can be a number of milliseconds."""

AHEAD = 0.25
"""Seconds before the time that a client asks for when a session is looked for."""

_FORGET = "DELETE FROM pgtrickle.pgt_subscriptions s WHERE s.subscription_id = $1::bigint"

Key = tuple[object, ...]


class Hub:
    """Implements `SubscriptionHub`. `pool` is the engine's."""

    def __init__(self, pool: DatabasePool):
        self._pool = pool
        self._sessions = SessionsByRights(pool)
        self._ticker = Ticker(pool, self._sessions)
        self._preparing = Preparing(self._sessions)
        self._known: dict[Key, asyncio.Task[Evaluation]] = {}
        self._gathering: WeakValueDictionary[int, JoinRequest] = WeakValueDictionary()
        """Those who join next, by the number of their subscription: each as long as its task is under way."""
        self._wanted: Counter[Key] = Counter()
        """How many clients wait for an evaluation."""
        self._starting: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def is_ticking(self) -> bool:
        """Whether timestamps are taken here for what is committed."""
        return self._ticker.worker.started and bool(self._ticker.evaluations)

    def committed(self) -> None:
        """A transaction that changed data has committed."""
        if self._ticker.worker.started:
            self._ticker.wake()

    async def prepare(self, session: SqlSession, asked: Subscribe) -> Preparation:
        return await self._preparing.prepare(session, asked)

    async def open(self, session: SqlSession, prepared: Prepared, output: Output) -> LiveFeed:
        assert isinstance(prepared, Preparation)
        asked = prepared.asked
        written = rendering(prepared, output)
        path = asked.settings.get("search_path", "public")
        as_of = None if asked.as_of is None else await milliseconds(session, asked.as_of.expression, path, "AS OF")
        up_to = None if asked.up_to is None else await milliseconds(session, asked.up_to, path, "UP TO")
        if as_of is not None and up_to is not None and up_to < as_of:
            raise too_early(up_to, as_of)
        if not self._ticker.worker.started:
            self._ticker.worker.start()
        async for attempt in AsyncRetrying(
            # The client's session may be younger than a crash of PostgreSQL that is only now noticed here.
            retry=retry_if_exception_type(Interrupted),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            stop=stop_after_delay(PATIENCE),
            reraise=True,
        ):
            with attempt:
                feed = LiveFeed(asked, written, self._left)
                feed.as_of, feed.up_to = as_of, up_to
                try:
                    await self._begin(session, prepared, written, feed)
                except BaseException:
                    await feed.close()
                    raise
        return feed

    async def close(self) -> None:
        """End all subscriptions: the server stops, or lets go of the database."""
        self._ticker.fail(SqlError("57P01", "terminating subscription because the server lets go of the database"))
        for task in (*self._starting, *self._leaving, *self._known.values()):
            task.cancel()
            with suppress(asyncio.CancelledError, SqlError):
                await task
        await self._ticker.worker.stop()
        await self._ticker.stop()
        await self._sessions.close()

    # -- beginning --------------------------------------------------------------------------------------------------

    async def _begin(self, session: SqlSession, prepared: Preparation, written: Rendering, feed: LiveFeed) -> None:
        ((now,),) = await session.fetch(
            "SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint"
        )
        as_of, at_least = feed.as_of, bool(prepared.asked.as_of and prepared.asked.as_of.at_least)
        if as_of is not None and as_of > int(now):
            now = max(int(now), await self._closed())
        past = None
        if as_of is not None and as_of == feed.up_to:
            as_of = None  # nothing to be waited for: it ends as soon as it begins
        elif as_of is not None and as_of <= int(now):
            past, as_of = AsOfStart(as_of, at_least, is_now=_means_now(prepared.asked, as_of, int(now))), None
        evaluation = await self._evaluation(prepared, written)
        evaluation.admit(feed)
        evaluation.joining -= 1
        if as_of is not None and as_of > int(now):
            self._start(InitialSnapshot(evaluation, feed, self._sessions), as_of, (as_of - int(now)) / 1000)
            return
        if past is not None:
            joining = self._start(InitialSnapshot(evaluation, feed, self._sessions, past))
        else:
            joining = self._joined_with_others(evaluation, feed)
        timestamp = await asyncio.shield(joining.joined)
        if past is not None:
            await past.found
        elif feed.up_to is not None and feed.up_to < timestamp and feed.up_to != feed.as_of:
            raise too_early(feed.up_to, timestamp)

    def _joined_with_others(self, evaluation: Evaluation, feed: LiveFeed) -> JoinRequest:
        """The request of those who join next, to which the feed is added; a new one where there is none."""
        id_ = evaluation.subscription_id
        gathering = self._gathering.get(id_)
        if gathering is not None and gathering.is_open:
            gathering.feeds.append(feed)
            return gathering
        request = self._gathering[id_] = self._start(InitialSnapshot(evaluation, feed, self._sessions))
        return request

    async def _closed(self) -> int:
        """The last timestamp that a client can know of, to come if the clock was set back. Raises SqlError."""
        async with self._pool.session() as own:
            ((last,),) = await own.fetch("SELECT last_value + 1 FROM pgtrickle.pgt_timeline_seq")
        return int(last)

    def _start(self, start: InitialSnapshot, target: int | None = None, seconds: float = 0.0) -> JoinRequest:
        """Have clients join at the next tick for which there is a session: a tick must not wait for one.

        Or at a target, which is so many seconds away.
        """
        start.joining.target = target

        async def run() -> None:
            try:
                await asyncio.sleep(max(0.0, seconds - AHEAD))
                await start.acquire()
                self._ticker.join(start.joining)
                await start.joining.joined
            except SqlError as error:
                start.joining.fail(Interrupted.if_of_connection(error))
            finally:
                start.joining.joined.cancel()
                await start.release_unless_begun()

        task = asyncio.create_task(run(), name=f"headwater subscribers {self._pool.database}")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return start.joining

    async def _evaluation(self, prepared: Preparation, written: Rendering) -> Evaluation:
        """The evaluation for a rendering, made if there is none; one more client is `joining` it. Raises SqlError."""
        key: Key = (*prepared.identity, written.output)
        self._wanted[key] += 1
        try:
            while True:
                task = self._known.get(key)
                if task is None:
                    task = self._known[key] = asyncio.create_task(self._subscribe(prepared, written, key))
                try:
                    evaluation = await asyncio.shield(task)
                except SqlError:
                    if self._known.get(key) is task:
                        del self._known[key]
                    raise
                if self._known.get(key) is task and not evaluation.dead:
                    evaluation.joining += 1
                    return evaluation
                if self._known.get(key) is task:
                    del self._known[key]
        finally:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]

    async def _subscribe(self, prepared: Preparation, written: Rendering, key: Key) -> Evaluation:
        server = await self._ticker.ready()
        definition = {
            "subscriber": prepared.role_oid,
            "runs_as": prepared.runs_as_oid,
            "function_hashes": json.loads(prepared.function_hashes),
            "sources": [
                source | {"readers": sorted({*source["readers"], prepared.runs_as_oid})}
                if source["captured"]
                else source
                for source in json.loads(prepared.sources)
            ],
        }
        try:
            async with self._pool.session() as own:
                answer = await with_lock_retry(
                    own, "SELECT pgtrickle._subscribe($1::int, $2::text::jsonb)::text", server, json.dumps(definition)
                )
        except SqlError as error:
            if error.is_of_connection or error.sqlstate == "23503":  # the server's own row has gone in a crash
                self._ticker.doubt()
                raise Interrupted from error
            raise
        evaluation = Evaluation(written, int(answer["id"]), self._ticker.role)
        evaluation.key = key
        self._ticker.add(evaluation)
        self._retire_soon(evaluation)  # if who wanted it has gone meanwhile
        return evaluation

    # -- ending -----------------------------------------------------------------------------------------------------

    def _left(self, feed: LiveFeed) -> None:
        self._ticker.leave(feed)
        for evaluation in self._ticker.evaluations.values():
            if feed in evaluation.feeds:
                evaluation.dismiss(feed)
                if not evaluation.feeds:
                    self._retire_soon(evaluation)
                return

    def _retire_soon(self, evaluation: Evaluation) -> None:
        task = asyncio.create_task(self._retire(evaluation))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _retire(self, evaluation: Evaluation) -> None:
        """Forget a subscription that nobody reads; the maintenance of captures ends what it alone needed."""
        await asyncio.sleep(LINGER)
        if evaluation.feeds or evaluation.joining or evaluation.subscription_id not in self._ticker.evaluations:
            return
        if self._wanted[evaluation.key]:
            self._retire_soon(evaluation)
            return
        self._ticker.forget(evaluation)
        known = self._known.get(evaluation.key)
        if known is not None and known.done() and not known.exception() and known.result() is evaluation:
            del self._known[evaluation.key]
        while True:
            try:
                async with self._pool.session() as own:
                    await own.fetch(_FORGET, evaluation.subscription_id)
                return
            except SqlError as error:
                logger.warning("subscription not removed", database=self._pool.database, error=error.message)
            await asyncio.sleep(FORGET_INTERVAL)


def _means_now(asked: Subscribe, as_of: int, now: int) -> bool:
    """Whether a time in the past stands for now where nothing is held of it.

    Not without a snapshot: who has the rows already would miss what has changed since.
    """
    return asked.snapshot and as_of >= now - NOT_LATER


async def milliseconds(session: SqlSession, expression: str, path: str, clause: str) -> int:
    """The value of a timestamp expression: milliseconds since the epoch, as such or as a time. Raises SqlError."""
    async with local_setting(session, "search_path", path):
        ((type_, value),) = await session.fetch(
            "SELECT pg_catalog.pg_typeof(v)::pg_catalog.text, v::pg_catalog.text"
            f" FROM (SELECT (\n{expression}\n) AS v) AS x"
        )
    if value is None:
        raise SqlError("22004", f"timestamp of {clause} must not be null")
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = None
    if number is None or type_ not in NUMBERS:
        ((text,),) = await session.fetch(
            "SELECT pg_catalog.floor(extract(epoch FROM ($1::text)::timestamptz) * 1000)::text", value
        )
        number = Decimal(text)
    if not number.is_finite() or number < 0 or number >= 2**63:
        raise SqlError("22008", f"timestamp of {clause} is out of range: {value}")
    return int(number)
