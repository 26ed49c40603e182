"""What a relay counts: numbers that only grow, and how long clients have waited.

Sessions count by themselves what passes through them; what those that have ended counted is kept here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FIRST_BUCKET, LAST_BUCKET = 6, 26
"""Upper bounds of the buckets of a histogram are powers of two, in microseconds: from 64 µs to 67 s."""


class Durations:
    """A histogram of durations; to note one costs less than half a microsecond."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (LAST_BUCKET - FIRST_BUCKET + 2)
        """How many were in each bucket; the last is for what is longer than all bounds."""
        self.seconds = 0.0
        """Their sum."""

    def note(self, seconds: float) -> None:
        """Count one duration.

        >>> durations = Durations()
        >>> for seconds in (0.00001, 0.000064, 0.000066, 500.0):
        ...     durations.note(seconds)
        >>> durations.buckets[:2], durations.buckets[-1]
        ([2, 1], 1)
        """
        place = int(seconds * 1e6 - 0.5).bit_length() - FIRST_BUCKET
        self.buckets[0 if place < 0 else min(place, LAST_BUCKET - FIRST_BUCKET + 1)] += 1
        self.seconds += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as OpenMetrics has them: upper bound in seconds, and how many were not longer."""
        found, total = [], 0
        for place, number in enumerate(self.buckets):
            total += number
            bound = FIRST_BUCKET + place
            found.append(("+Inf" if bound > LAST_BUCKET else repr((1 << bound) / 1e6), float(total)))
        return found


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
    waited: Durations = field(default_factory=Durations)
    """From what a client sends until nothing more is owed to it."""
    added: Durations = field(default_factory=Durations)
    """What the relay itself takes of that until the first byte of the answer has been passed on."""
