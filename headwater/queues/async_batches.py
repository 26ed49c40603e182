"""The asynchronous consumer: what `batches.py` does, awaited. A change of one is a change of the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection

from headwater.calls import make_async
from headwater.queues import calls
from headwater.queues.events import BatchLost, Delivery, Event
from headwater.queues.subscription import Pauses, Subscription, is_lost, log, passes, slices, stopped_by_signals

AsyncHandler = Callable[[Event, "AsyncConnection[Any]"], Awaitable[object]]


class AsyncBatch(Delivery):
    """Events to be processed. Asking for the next batch acknowledges this one, unless it has been or has failed."""

    def __init__(self, subscription: Subscription, connection: AsyncConnection[Any], events: tuple[Event, ...]):
        super().__init__(events)
        self._subscription = subscription
        self.connection = connection
        """The consumer's, in autocommit mode: what is done on it within `transaction()` is committed with the batch."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction on the consumer's connection, which acknowledges the batch before it commits: exactly once.

        An exception undoes it, and the batch comes again, after a pause. Three kinds of failure are no exception here:
        the connection is lost, the batch is (BatchLost), or the database has rolled the transaction back because of
        others (class 40: serialization failures, deadlocks). They are logged, and the loop goes on; the batch comes
        again unless it has been finished after all. Code behind the `with` can ask for `finished`.
        """
        began = False
        try:
            async with self.connection.transaction():
                began = True
                yield self.connection
                if not self.finished:
                    await self.ack()
        except BaseException as error:
            self.finished, self.undone = False, True
            if not isinstance(error, BatchLost) and not passes(self.connection, error):
                raise
            log.warning("%s: batch %d is not finished here: %s", self._subscription, self.id, error)
        if not began:
            # A block cannot be left out. On a closed connection it can do nothing.
            await self.connection.close()
            with suppress(psycopg.OperationalError):
                yield self.connection

    async def ack(self) -> None:
        """Close the batch. Raises BatchLost if it is no longer this consumer's."""
        if await make_async(self.connection, calls.ack(self.id)) != 1:
            self.undone = True
            raise BatchLost(f"batch {self.id} has been finished or taken over by somebody else")
        self.finished = True

    async def nack(self, event: Event, *, after: timedelta | None = None, reason: str | None = None) -> None:
        """Have an event come again (`pgque.nack`), or be a dead letter once it has had the queue's `max_retries`.

        after: `retry_after` of the consumer, where nothing is said.
        reason: Kept with a dead letter.
        Raises BatchLost if the batch is no longer this consumer's, and ValueError for an event of another one.
        """
        if event.batch_id != self.id:
            raise ValueError(f"event {event.id} is not one of batch {self.id}")
        delay = self._subscription.retry_after if after is None else after
        try:
            await make_async(self.connection, calls.nack(event, delay, reason))
        except psycopg.errors.RaiseException as error:
            self.undone = True
            raise BatchLost(f"batch {self.id}: {error.diag.message_primary}") from error

    async def touch(self) -> None:
        """A sign of life during long work, for members with a `dead_interval`. It is seen once it is committed."""
        await make_async(self.connection, calls.touch(self._subscription))


async def batches(subscription: Subscription) -> AsyncGenerator[AsyncBatch, None]:
    """Batches with events, until the subscription is stopped.

    Raises psycopg's errors: those of the first connection, and all but the loss of the connection later.
    """
    with stopped_by_signals(subscription):
        connection = await _connect(subscription)
        batch: AsyncBatch | None = None
        pauses = Pauses()
        try:
            while True:
                try:
                    if batch is not None and not batch.undone:
                        pauses = Pauses()
                        await _settle(batch)
                    elif batch is not None:
                        await _pause(subscription, pauses.next())
                    batch = None
                    if subscription.stopped:
                        return
                    batch = await _receive(subscription, connection)
                except psycopg.OperationalError as error:
                    if not passes(connection, error):
                        raise
                    if not is_lost(connection, error):
                        await _pause(subscription, pauses.next())
                        continue
                    await connection.close()
                    again = await _reconnect(subscription, error)
                    if again is None:
                        return
                    connection = again
                    if batch is not None:
                        batch.connection = connection
                    continue
                if batch is not None:
                    yield batch
        finally:
            await connection.close()


async def _connect(subscription: Subscription) -> AsyncConnection[Any]:
    connection = await psycopg.AsyncConnection.connect(subscription.dsn, autocommit=True)
    try:
        await connection.execute(calls.listen(subscription))
        await make_async(connection, calls.subscribe(subscription))
    except BaseException:
        await connection.close()
        raise
    return connection


async def _reconnect(subscription: Subscription, error: psycopg.OperationalError) -> AsyncConnection[Any] | None:
    """A new connection, as soon as there is one; None if the consumer is stopped before that."""
    pauses = Pauses()
    while True:
        log.warning("%s: the connection is lost, and opened anew: %s", subscription, error)
        await _pause(subscription, pauses.next())
        if subscription.stopped:
            return None
        try:
            return await _connect(subscription)
        except psycopg.OperationalError as again:
            error = again


async def _settle(batch: AsyncBatch) -> None:
    """The program has asked for more, so it is done with this batch."""
    if not batch.finished:
        try:
            await batch.ack()
        except BatchLost as error:
            log.warning("%s", error)


async def _receive(subscription: Subscription, connection: AsyncConnection[Any]) -> AsyncBatch | None:
    """A batch; or None: after one without events, or after a notification or `poll_interval` where there was none.

    To receive nothing does not mean that there is nothing more: of many ticks without events one call may pass over one
    only. Notifications of the others have come already.
    """
    events = await make_async(connection, calls.receive(subscription))
    if not events:
        batch_id = await make_async(connection, calls.next_batch(subscription))
        if batch_id is None:
            await _wait(subscription, connection)
            return None
        events = await make_async(connection, calls.batch_events(batch_id))
        if not events:
            await make_async(connection, calls.ack(batch_id))
            return None
    return AsyncBatch(subscription, connection, events)


async def _wait(subscription: Subscription, connection: AsyncConnection[Any]) -> None:
    for part in slices(subscription.poll_interval):
        if subscription.stopped or [n async for n in connection.notifies(timeout=part, stop_after=1)]:
            break


async def _pause(subscription: Subscription, seconds: float) -> None:
    for part in slices(seconds):
        if not subscription.stopped:
            await asyncio.sleep(part)


async def work(
    subscription: Subscription, handlers: Mapping[str | None, AsyncHandler], others: AsyncHandler | None
) -> None:
    """Give each event to its handler, until stopped; each batch is one transaction, each event a savepoint in it."""
    async for batch in batches(subscription):
        async with batch.transaction() as connection:
            for event in batch:
                handler = handlers.get(event.type, others)
                try:
                    async with connection.transaction():
                        if handler is None:
                            raise LookupError(f"there is no handler for events of type {event.type!r}")
                        await handler(event, connection)
                except Exception as error:
                    if passes(connection, error):
                        raise
                    log.warning("%s: event %d is refused", subscription, event.id, exc_info=error)
                    await batch.nack(event, reason=f"{type(error).__name__}: {error}")
