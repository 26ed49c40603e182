"""Clients in threads beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self


class ClientThreads:
    """Threads that work until the block ends: each looks at `_stop`. One that does not end then hangs, an error."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def _add(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """A thread that the block starts."""
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        return thread

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"
