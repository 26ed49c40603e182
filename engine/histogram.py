"""Durations by their length, as metrics show them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many durations were not longer than each of some bounds, and their sum, in seconds."""

    __slots__ = ("bounds", "buckets", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Upper bounds of the buckets, which grow."""
        self.buckets = [0] * (len(bounds) + 1)
        """How many were in each bucket; the last is for what is longer than all bounds."""
        self.seconds = 0.0
        """Their sum."""

    def note(self, seconds: float) -> None:
        """Count one duration.

        >>> histogram = Histogram((0.000064, 0.000128))
        >>> for seconds in (0.00001, 0.000064, 0.000066, 500.0):
        ...     histogram.note(seconds)
        >>> histogram.buckets
        [2, 1, 1]
        """
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    def add(self, other: Histogram) -> None:
        """Count what another one has counted, by the same bounds."""
        self.buckets = [mine + its for mine, its in zip(self.buckets, other.buckets, strict=True)]
        self.seconds += other.seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as OpenMetrics has them: upper bound in seconds, and how many were not longer."""
        found, total = [], 0
        for bound, number in zip((*self.bounds, None), self.buckets, strict=True):
            total += number
            found.append(("+Inf" if bound is None else repr(bound), float(total)))
        return found
