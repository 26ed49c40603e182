"""What a session holds of subscriptions: prepared statements, portals and cursors, and the rows that wait in them.

Portals and cursors end with their transaction. A cursor that was declared after a savepoint ends when the client rolls
back to it: of that PostgreSQL keeps count, in a parameter of the transaction (:data:`MARKER`) that names the cursors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine.subscribe import Batch, Feed, PassOn
from server.protocol import messages as m
from server.protocol.statements.cursor_syntax import CloseCursor, FetchRows
from server.protocol.statements.subscribe_syntax import CopySubscription, DeclareCursor, Subscription
from server.subscriptions.describe_query import Column, DescribeQuery

Ours = Subscription | CopySubscription | DeclareCursor | FetchRows | CloseCursor
"""A statement that is answered here."""
MARKER = "headwater.cursors"

_serials = count(1)


class RowReader:
    """The rows of a feed, as many at a time as somebody wants."""

    def __init__(self, feed: Feed, timeouts: Mapping[str, str]):
        self.feed = feed
        self.timeouts = timeouts
        """The client's values of the parameters by which PostgreSQL ends idle sessions."""
        self.ended = False
        self.failed = False
        """Reading it failed: what was taken then is gone."""
        self._messages = b""
        self._at = 0
        self._rows = 0
        """Rows that begin at or behind ``_at``."""

    async def take(
        self, limit: int | None, wait: float | None, pass_on: PassOn | None = None
    ) -> tuple[bytes, int] | None:
        """Messages with at most `limit` rows, at least one byte, and how many rows; None at the end of the feed.

        Waits, and passes on meanwhile, as `Feed.next` does. Raises TimeoutError, SqlError.
        """
        if self._at >= len(self._messages):
            if self.ended:
                return None
            batch = await self.feed.next(wait, pass_on)
            if batch is None:
                self.ended = True
                return None
            self._messages, self._at, self._rows = batch.messages, 0, batch.rows
        begin, rows = self._at, self._rows
        if limit is None or rows <= limit:
            self._at = len(self._messages)
        else:
            rows = limit
            for _ in range(limit):
                self._at += m.INT32.unpack_from(self._messages, self._at + 1)[0] + 1
        self._rows -= rows
        taken = self._messages if self._at - begin == len(self._messages) else self._messages[begin : self._at]
        if self._at >= len(self._messages):
            self._messages, self._at = b"", 0
        return taken, rows


MOST_KEPT = 64 << 20


class RowBuffer:
    """Rows that have been taken and wait to be given out: a `Feed` of its own."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether no more should be taken, though there may be: a FETCH may always give fewer rows."""
        return self._size >= MOST_KEPT

    async def keep(self, messages: bytes) -> None:
        self._batches.append(Batch(0, messages, len(m.split(messages))))
        self._size += len(messages)

    def rows(self) -> Iterator[bytes]:
        """The messages, which are then no longer kept."""
        while self._batches:
            yield from m.split(self._batches.popleft().messages)

    async def next(self, wait: float | None = None, pass_on: PassOn | None = None) -> Batch | None:
        return self._batches.popleft() if self._batches else None

    async def close(self) -> None:
        self._batches.clear()


@dataclass(frozen=True, slots=True)
class Statement:
    """A prepared statement; ``text`` is the client's."""

    text: bytes
    asked: Ours
    form: DescribeQuery
    """The stand-in in the statement's own form: a SELECT, a COPY, a DECLARE."""
    columns: tuple[Column, ...] = ()
    parameter_types: tuple[int, ...] = ()


@dataclass(slots=True)
class Portal:
    """A bound statement."""

    name: bytes
    statement: Statement
    description: bytes
    """RowDescription or NoData."""
    formats: tuple[int, ...] = ()
    parameters: bytes = b""
    """Formats and values of the parameters, as Bind has them."""
    flow: RowReader | None = None
    tag: str = ""
    """Of a FETCH: its completion, once its rows have been given out."""


@dataclass(slots=True)
class Cursor:
    """A declared cursor."""

    columns: tuple[Column, ...]
    formats: tuple[int, ...]
    flow: RowReader
    serial: str = field(default_factory=lambda: str(next(_serials)))


class SessionSubscriptions:
    """All of one session. ``spawn`` runs what must be done even after the session."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], object]):
        self._spawn = spawn
        self.statements: dict[bytes, Statement] = {}
        self.portals: dict[bytes, Portal] = {}
        self.cursors: dict[bytes, Cursor] = {}

    def drop(self, flow: RowReader | None) -> None:
        """Nobody reads this any more."""
        if flow is not None:
            flow.ended = True
            self._spawn(flow.feed.close())

    def close_portal(self, name: bytes) -> None:
        if (portal := self.portals.pop(name, None)) is not None:
            self.drop(portal.flow)
        if (cursor := self.cursors.pop(name, None)) is not None:
            self.drop(cursor.flow)

    def end(self) -> None:
        """The transaction has ended."""
        for name in (*self.portals, *self.cursors):
            self.close_portal(name)
