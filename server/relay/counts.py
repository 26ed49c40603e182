"""What a relay counts: numbers that only grow, and how long clients have waited.

Sessions count by themselves what passes through them; what those that have ended counted is kept here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.histogram import Histogram

BOUNDS = tuple((1 << power) / 1e6 for power in range(6, 27))
"""Upper bounds of the buckets of durations, in seconds: from 64 µs to 67 s."""


def _durations() -> Histogram:
    return Histogram(BOUNDS)


@dataclass(slots=True)
class RelayCounts:
    """What has been counted since the relay began."""

    connections: int = 0
    """Connections that clients have opened."""
    statements: int = 0
    """Batches that were answered, in sessions that have ended."""
    from_client: int = 0
    """Bytes, in sessions that have ended."""
    from_postgres: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Errors that clients have got, by SQLSTATE class."""
    waited: Histogram = field(default_factory=_durations)
    """From what a client sends until nothing more is owed to it."""
    added: Histogram = field(default_factory=_durations)
    """What the relay itself takes of that until the first byte of the answer has been passed on."""

    def add(self, other: RelayCounts) -> None:
        """Count what another relay has counted."""
        self.connections += other.connections
        self.statements += other.statements
        self.from_client += other.from_client
        self.from_postgres += other.from_postgres
        self.errors += other.errors
        self.waited.add(other.waited)
        self.added.add(other.added)
