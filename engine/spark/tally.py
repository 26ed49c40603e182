"""What Spark has to do for this server, as metrics show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkLoad:
    """Jobs on Spark, and whether it runs."""

    up: bool
    running: int
    ended: Mapping[str, int]
    """By how they ended: "completed", "failed", "lost" or "interrupted"."""
