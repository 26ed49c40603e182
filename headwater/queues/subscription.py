"""Who consumes what, and how: what the sync and the async consumer have in common."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

import psycopg

log = logging.getLogger("headwater.queues")

NOTICED_SECONDS = 0.2
"""So soon it is noticed that a consumer is to stop, wherever it waits."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0


@dataclass(eq=False)
class Subscription:
    """A consumer's place in a queue, how it waits there, and whether it is to stop."""

    dsn: str = field(repr=False)
    """A connection string of psycopg's. Nothing is connected to before the consumer is iterated over."""
    queue: str
    name: str
    """Consumers of different names get every event each; those of one name share a position."""
    _: KW_ONLY
    member: str | None = None
    """The name of a worker that shares the events of the consumer with other members."""
    dead_interval: timedelta | None = None
    """A member takes over the batch of one that has shown no sign of life for so long."""
    poll_interval: float = 5.0
    """Seconds after which the queue is asked even though no notification has come."""
    retry_after: timedelta = timedelta(seconds=60)
    """When a refused event comes again, where nothing else is said."""
    stop_on: Collection[signal.Signals] = (signal.SIGTERM,)
    """Signals by which iterating in the main thread ends after the present batch, where the program leaves them to the
    system (SIG_DFL)."""
    stopped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.dead_interval is not None and self.member is None:
            raise ValueError("dead_interval is for the members of a cooperative consumer: say member, too")

    def __str__(self) -> str:
        return f"{self.queue}/{self.name}" + (f".{self.member}" if self.member is not None else "")

    def stop(self) -> None:
        """End the iteration after the present batch, within a fraction of a second where there is none.

        May be called from anywhere, also from a handler, a signal handler or another thread.
        """
        self.stopped = True


def passes(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], error: BaseException) -> bool:
    """Whether what has failed is simply to be tried again: on a new connection, or in a new transaction (class 40)."""
    rolled_back = isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("40")
    return rolled_back or is_lost(connection, error)


def is_lost(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], error: BaseException) -> bool:
    """Whether an error means that the connection is gone, or is just going (classes 08 and 57P of SQLSTATE)."""
    return isinstance(error, psycopg.Error) and (connection.closed or (error.sqlstate or "").startswith(("08", "57P")))


class Pauses:
    """How long to wait before what has failed is tried again: ever longer, up to LONGEST_PAUSE seconds."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def next(self) -> float:
        """Seconds."""
        seconds, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return seconds


def slices(seconds: float) -> Iterator[float]:
    """A time to wait, cut so that between the parts one can see whether to stop."""
    parts = max(1, math.ceil(seconds / NOTICED_SECONDS))
    return iter([seconds / parts] * parts)


_running: dict[int, set[Subscription]] = {}
"""Whom a signal stops."""


def _stop_all(number: int, frame: FrameType | None) -> None:
    for subscription in _running[number]:
        subscription.stop()


@contextmanager
def stopped_by_signals(subscription: Subscription) -> Iterator[None]:
    """Have the signals of `stop_on` stop it: in the main thread, and where nobody else has a handler for them."""
    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [n for n in subscription.stop_on if signal.getsignal(n) in (signal.SIG_DFL, _stop_all)]
    for number in taken:
        _running.setdefault(number, set()).add(subscription)
        signal.signal(number, _stop_all)
    try:
        yield
    finally:
        for number in taken:
            _running[number].discard(subscription)
            if not _running[number] and signal.getsignal(number) is _stop_all:
                signal.signal(number, signal.SIG_DFL)
