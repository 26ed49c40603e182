"""The synchronous consumer: batches one after another, over one connection that is opened anew when it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import Connection

from headwater.calls import make
from headwater.queues import calls
from headwater.queues.events import BatchLost, Delivery, Event
from headwater.queues.subscription import Pauses, Subscription, is_lost, log, passes, slices, stopped_by_signals

Handler = Callable[[Event, "Connection[Any]"], object]


class Batch(Delivery):
    """Events to be processed. Asking for the next batch acknowledges this one, unless it has been or has failed."""

    def __init__(self, subscription: Subscription, connection: Connection[Any], events: tuple[Event, ...]):
        super().__init__(events)
        self._subscription = subscription
        self.connection = connection
        """The consumer's, in autocommit mode: what is done on it within `transaction()` is committed with the batch."""

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        """A transaction on the consumer's connection, which acknowledges the batch before it commits: exactly once.

        An exception undoes it, and the batch comes again, after a pause. Three kinds of failure are no exception here:
        the connection is lost, the batch is (BatchLost), or the database has rolled the transaction back because of
        others (class 40: serialization failures, deadlocks). They are logged, and the loop goes on; the batch comes
        again unless it has been finished after all. Code behind the `with` can ask for `finished`.
        """
        began = False
        try:
            with self.connection.transaction():
                began = True
                yield self.connection
                if not self.finished:
                    self.ack()
        except BaseException as error:
            self.finished, self.undone = False, True
            if not isinstance(error, BatchLost) and not passes(self.connection, error):
                raise
            log.warning("%s: batch %d is not finished here: %s", self._subscription, self.id, error)
        if not began:
            # A block cannot be left out. On a closed connection it can do nothing.
            self.connection.close()
            with suppress(psycopg.OperationalError):
                yield self.connection

    def ack(self) -> None:
        """Close the batch. Raises BatchLost if it is no longer this consumer's."""
        if make(self.connection, calls.ack(self.id)) != 1:
            self.undone = True
            raise BatchLost(f"batch {self.id} has been finished or taken over by somebody else")
        self.finished = True

    def nack(self, event: Event, *, after: timedelta | None = None, reason: str | None = None) -> None:
        """Have an event come again (`pgque.nack`), or be a dead letter once it has had the queue's `max_retries`.

        after: `retry_after` of the consumer, where nothing is said.
        reason: Kept with a dead letter.
        Raises BatchLost if the batch is no longer this consumer's, and ValueError for an event of another one.
        """
        if event.batch_id != self.id:
            raise ValueError(f"event {event.id} is not one of batch {self.id}")
        delay = self._subscription.retry_after if after is None else after
        try:
            make(self.connection, calls.nack(event, delay, reason))
        except psycopg.errors.RaiseException as error:
            self.undone = True
            raise BatchLost(f"batch {self.id}: {error.diag.message_primary}") from error

    def touch(self) -> None:
        """A sign of life during long work, for members with a `dead_interval`. It is seen once it is committed."""
        make(self.connection, calls.touch(self._subscription))


def batches(subscription: Subscription) -> Iterator[Batch]:
    """Batches with events, until the subscription is stopped.

    Raises psycopg's errors: those of the first connection, and all but the loss of the connection later.
    """
    with stopped_by_signals(subscription):
        connection = _connect(subscription)
        batch: Batch | None = None
        pauses = Pauses()
        try:
            while True:
                try:
                    if batch is not None and not batch.undone:
                        pauses = Pauses()
                        _settle(batch)
                    elif batch is not None:
                        _pause(subscription, pauses.next())
                    batch = None
                    if subscription.stopped:
                        return
                    batch = _receive(subscription, connection)
                except psycopg.OperationalError as error:
                    if not passes(connection, error):
                        raise
                    if not is_lost(connection, error):
                        _pause(subscription, pauses.next())
                        continue
                    connection.close()
                    again = _reconnect(subscription, error)
                    if again is None:
                        return
                    connection = again
                    if batch is not None:
                        batch.connection = connection
                    continue
                if batch is not None:
                    yield batch
        finally:
            connection.close()


def _connect(subscription: Subscription) -> Connection[Any]:
    connection = psycopg.connect(subscription.dsn, autocommit=True)
    try:
        connection.execute(calls.listen(subscription))
        make(connection, calls.subscribe(subscription))
    except BaseException:
        connection.close()
        raise
    return connection


def _reconnect(subscription: Subscription, error: psycopg.OperationalError) -> Connection[Any] | None:
    """A new connection, as soon as there is one; None if the consumer is stopped before that."""
    pauses = Pauses()
    while True:
        log.warning("%s: the connection is lost, and opened anew: %s", subscription, error)
        _pause(subscription, pauses.next())
        if subscription.stopped:
            return None
        try:
            return _connect(subscription)
        except psycopg.OperationalError as again:
            error = again


def _settle(batch: Batch) -> None:
    """The program has asked for more, so it is done with this batch."""
    if not batch.finished:
        try:
            batch.ack()
        except BatchLost as error:
            log.warning("%s", error)


def _receive(subscription: Subscription, connection: Connection[Any]) -> Batch | None:
    """A batch; or None: after one without events, or after a notification or `poll_interval` where there was none.

    To receive nothing does not mean that there is nothing more: of many ticks without events one call may pass over one
    only. Notifications of the others have come already.
    """
    events = make(connection, calls.receive(subscription))
    if not events:
        batch_id = make(connection, calls.next_batch(subscription))
        if batch_id is None:
            _wait(subscription, connection)
            return None
        events = make(connection, calls.batch_events(batch_id))
        if not events:
            make(connection, calls.ack(batch_id))
            return None
    return Batch(subscription, connection, events)


def _wait(subscription: Subscription, connection: Connection[Any]) -> None:
    for part in slices(subscription.poll_interval):
        if subscription.stopped or list(connection.notifies(timeout=part, stop_after=1)):
            break


def _pause(subscription: Subscription, seconds: float) -> None:
    for part in slices(seconds):
        if not subscription.stopped:
            time.sleep(part)


def work(subscription: Subscription, handlers: Mapping[str | None, Handler], others: Handler | None) -> None:
    """Give each event to its handler, until stopped; each batch is one transaction, each event a savepoint in it."""
    for batch in batches(subscription):
        with batch.transaction() as connection:
            for event in batch:
                handler = handlers.get(event.type, others)
                try:
                    with connection.transaction():
                        if handler is None:
                            raise LookupError(f"there is no handler for events of type {event.type!r}")
                        handler(event, connection)
                except Exception as error:
                    if passes(connection, error):
                        raise
                    log.warning("%s: event %d is refused", subscription, event.id, exc_info=error)
                    batch.nack(event, reason=f"{type(error).__name__}: {error}")
