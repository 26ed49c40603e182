"""Queries at which Spark has failed by a value, so that not each refresh fails there before PostgreSQL computes it.

What fails at a value (an overflow, a quotient of too many digits) most likely does so again: the value is still there.
It is tried again when the query is another one, and now and then, since the value may have gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

REST_SECONDS = 600.0
"""So long a query is left to PostgreSQL, as a column is in which the mirror has found a value that it cannot keep."""

BY_VALUE = "38000"
"""The SQLSTATE of a job that failed by itself; time limits and a Spark that is gone are other matters."""


@dataclass(frozen=True, slots=True)
class _Failure:
    query: str
    until: float


class SparkFailures:
    """The last failure of each stream table's refreshes, full and differential ones apart. In memory only.

    >>> now = 0.0
    >>> failures = SparkFailures(clock=lambda: now)
    >>> failures.note(7, "full", "SELECT 1", "38000")
    >>> failures.reason(7, "full", "SELECT 1")
    'Spark has failed at this query (38000), and is tried again in 600 s'
    >>> failures.reason(7, "full", "SELECT 2"), failures.reason(7, "differential", "SELECT 1")
    (None, None)
    >>> now = 600.0
    >>> failures.reason(7, "full", "SELECT 1") is None
    True
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._failures: dict[tuple[int, str], _Failure] = {}

    def note(self, pgt_id: int, kind: str, query: str, sqlstate: str) -> None:
        """Remember a failure, if it is one that the next refresh would meet again."""
        if sqlstate == BY_VALUE:
            self._failures[pgt_id, kind] = _Failure(query, self._clock() + REST_SECONDS)

    def reason(self, pgt_id: int, kind: str, query: str) -> str | None:
        """Why Spark is not to be tried; None if it may be."""
        failure = self._failures.get((pgt_id, kind))
        left = 0.0 if failure is None or failure.query != query else failure.until - self._clock()
        if left <= 0:
            self._failures.pop((pgt_id, kind), None)
            return None
        return f"Spark has failed at this query ({BY_VALUE}), and is tried again in {left:.0f} s"


__all__ = ["SparkFailures"]
