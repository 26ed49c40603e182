"""Clients that are to join an evaluation at a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from catalog.session import SqlError
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.feed import LiveFeed


class Interrupted(SqlError):
    """The engine's own connection was lost, or PostgreSQL has forgotten the subscriptions in a crash."""

    def __init__(self) -> None:
        super().__init__("57P01", "the subscription was interrupted", hint="Subscribe again.")

    @staticmethod
    def if_of_connection(error: SqlError) -> SqlError:
        """What an error of the engine's own session means to the clients."""
        return Interrupted() if error.is_of_connection else error


class TooLate(Exception):
    """A table was emptied or rewritten after the snapshot was taken, which sees neither old rows nor new ones."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class JoinRequest:
    """Clients that wait for their first timestamp, which is the same.

    `begin` is run with the timestamp and the name of its snapshot, and must say when it has imported that. It raises
    TooLate, before it has given anything, if the snapshot does not serve it.
    """

    evaluation: Evaluation
    feeds: list[LiveFeed]
    begin: Callable[[int, str, asyncio.Event], Coroutine[Any, Any, None]]
    target: int | None = None
    """Not before this timestamp, and at it if that can be."""
    joined: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False
    """Whether it is just given its timestamp: nobody else can come along."""
    again: bool = False
    """Whether it must join at another tick."""

    @property
    def is_open(self) -> bool:
        """Whether another client can come along: what it is given has not been looked at yet."""
        return not self.taken and not self.joined.done()

    def fail(self, error: SqlError) -> None:
        """None of them can join."""
        self.fail_feeds(error)
        if not self.joined.done():
            self.joined.set_exception(error)
            self.joined.exception()  # nobody need ask

    def fail_feeds(self, error: SqlError) -> None:
        """None of them can go on; they have joined all the same."""
        for feed in self.feeds:
            feed.fail(error)
