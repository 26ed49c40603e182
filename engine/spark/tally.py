"""What Spark has to do for this server, as metrics show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkLoad:
    """Jobs on Spark, and whether it runs."""

    up: bool
    running: int
    ended: Mapping[str, int]
    """By how they ended: "completed", "failed", "lost" or "interrupted"."""

    def __add__(self, other: SparkLoad) -> SparkLoad:
        """That of two processes of a server, of which each has a Spark."""
        return SparkLoad(
            self.up or other.up, self.running + other.running, dict(Counter(self.ended) + Counter(other.ended))
        )
