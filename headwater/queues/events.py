"""What is received: events, in batches."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class BatchLost(Exception):
    """A batch is no longer this consumer's: another of the same name has finished it, or a worker has taken it over."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it is delivered to one consumer."""

    id: int
    batch_id: int
    type: str | None
    payload: str | None
    """What was sent; PostgreSQL's text of it where it was sent as `jsonb`."""
    retries: int
    """How many times this consumer has refused it: 0 at first."""
    created_at: datetime
    extra1: str | None
    extra2: str | None
    extra3: str | None
    extra4: str | None

    def json(self) -> Any:
        """The payload, read as JSON. Raises `msgspec.DecodeError` where it is none."""
        return self.decode(Any)

    def decode(self, into: builtins.type[T]) -> T:
        """The payload as a dataclass, a TypedDict, a `msgspec.Struct`, a list of these, …; a `Decimal` in it is exact.

        Raises `msgspec.DecodeError` where it is not JSON; `ValidationError`, one of these, where it is no such thing.
        """
        return msgspec.json.decode(self.payload or "", type=into)


class Delivery:
    """A batch, sync or async: its events, in the order of their ids, and what has become of it."""

    def __init__(self, events: tuple[Event, ...]):
        self.id = events[0].batch_id
        self.events = events
        self.finished = False
        """Whether it has been acknowledged; what it was processed in has been committed then."""
        self.undone = False
        """Whether processing it has failed: it comes again, unless the answer to a COMMIT was all that was lost."""

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)
