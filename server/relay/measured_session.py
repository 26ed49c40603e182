"""A session whose statements are timed. Without `--metrics` there is none, and no clock is looked at."""

from __future__ import annotations

from time import perf_counter

from server.relay.context import RelayContext
from server.relay.session import RelaySession

ONE_IN = 16
"""Of so many statements of a session one is measured for what the relay adds: that takes four looks at the clock."""


class MeasuredSession(RelaySession):
    """Notes in `RelayCounts` how long its client waits, and what the relay adds to that.

    What is sent before all that came earlier has been answered is part of the same wait.
    """

    def __init__(self, relay: RelayContext):
        super().__init__(relay)
        self._since = 0.0
        """When the client began to wait, 0 where nothing is owed to it."""
        self._added = 0.0
        """What the relay took to pass on the client's bytes, where that is being measured."""
        self._turn = 0

    def from_client(self, data: bytes) -> None:
        if self._since:
            RelaySession.from_client(self, data)
            return
        began = self._since = perf_counter()
        RelaySession.from_client(self, data)
        self._turn += 1
        if self._turn == ONE_IN:
            self._turn = 0
            if self.dialogue is None:
                self._added = perf_counter() - began

    def from_backend(self, data: bytes) -> None:
        if self._added:
            self._first_bytes(data)
        else:
            RelaySession.from_backend(self, data)
        traffic = self.traffic
        if self._since and not traffic.outstanding and traffic.batch is None and self.dialogue is None:
            self._answered_all()

    def pass_bytes(self) -> None:
        if self._since and not self.traffic.outstanding and self.traffic.batch is None:
            self._answered_all()
        super().pass_bytes()

    def _first_bytes(self, data: bytes) -> None:
        began = perf_counter()
        RelaySession.from_backend(self, data)
        if self.dialogue is None:
            self.relay.counts.added.note(self._added + perf_counter() - began)
        self._added = 0.0

    def _answered_all(self) -> None:
        self.relay.counts.waited.note(perf_counter() - self._since)
        self._since = 0.0
        self._added = 0.0
