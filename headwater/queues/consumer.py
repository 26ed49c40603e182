"""The consumer, as programs see it: something to iterate over, or to give handlers to."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headwater.queues import async_batches, batches
from headwater.queues.async_batches import AsyncBatch
from headwater.queues.batches import Batch
from headwater.queues.subscription import Subscription

H = TypeVar("H", bound=Callable[..., object])
EVERY_TYPE = "*"


@dataclass(eq=False)
class Consumer(Subscription):
    """`for batch in consumer(…)`, `async for batch in consumer(…)`, or `on()` and `run()`.

    Iterating opens a connection, registers the consumer where it is not registered, and yields batches that have
    events. It waits for notifications and, should these not come, asks every `poll_interval` seconds. A lost connection
    is opened anew. The connection is closed when the iteration ends.
    """

    _handlers: dict[str | None, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    def __iter__(self) -> Iterator[Batch]:
        return batches.batches(self)

    def __aiter__(self) -> AsyncGenerator[AsyncBatch, None]:
        return async_batches.batches(self)

    def on(self, type: str | None = EVERY_TYPE) -> Callable[[H], H]:
        """Register a function `handler(event, connection)` for events of a type; `*` for those that have no other.

        What it does on the connection is committed with the batch. If it raises, that is undone, and the event is
        refused. So is an event that has no handler: it becomes a dead letter in the end, and is not lost.
        """

        def register(handler: H) -> H:
            self._handlers[type] = handler
            return handler

        return register

    def run(self) -> None:
        """Give each event to its handler, until the consumer is stopped. Each batch is a transaction."""
        batches.work(self, self._registered(are_async=False), self._handlers.get(EVERY_TYPE))

    async def run_async(self) -> None:
        """The same, with handlers that are coroutine functions."""
        await async_batches.work(self, self._registered(are_async=True), self._handlers.get(EVERY_TYPE))

    def _registered(self, are_async: bool) -> dict[str | None, Callable[..., Any]]:
        if not self._handlers:
            raise ValueError("no handler is registered: there would be nobody to give events to")
        for handler in self._handlers.values():
            if inspect.iscoroutinefunction(handler) != are_async:
                raise TypeError(f"handler {handler!r} is for {'run' if are_async else 'run_async'}()")
        return self._handlers


consumer = Consumer
"""As it reads best: `for batch in consumer(dsn, queue, name)`."""
