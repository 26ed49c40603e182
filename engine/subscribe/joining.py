"""A client that is to join an evaluation at a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from engine.subscribe.evaluation import Evaluation
from engine.subscribe.feed import LiveFeed


class TooLate(Exception):
    """A table was emptied or rewritten after the snapshot was taken, which sees neither old rows nor new ones."""


@dataclass(slots=True, eq=False)
class Joining:
    """A client that waits for its first timestamp.

    `begin` is run with the timestamp and the name of its snapshot, and must say when it has imported that. It raises
    TooLate, before it has given anything, if the snapshot does not serve it.
    """

    evaluation: Evaluation
    feed: LiveFeed
    begin: Callable[[int, str, asyncio.Event], Coroutine[Any, Any, None]]
    joined: asyncio.Future[int]
    target: int | None = None
    """Not before this timestamp, and at it if that can be."""
    again: bool = False
    """Whether it must join at another tick."""
