"""What this server has refreshed, added up as it is written down (`record.finish`): numbers that only grow.

The history in the database is no source for such numbers, since its rows are removed some day. A refresh whose
transaction fails to commit after that is counted, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial

from engine.histogram import Histogram

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets of durations, in seconds."""

MOST_TABLES = 10_000
"""So many stream tables are counted one by one; those beyond are counted as one, with the number `OTHERS`."""

OTHERS = -1

_REASONS = (
    ("differential_max_change_ratio", "too many changes"),
    ("slower to apply", "slower"),
    ("estimated cost", "estimated cost"),
    ("had not ended", "given up"),
    ("was truncated", "truncated"),
    ("marked for reinitialisation", "reinitialisation"),
    ("foreign_table_polling", "not polled"),
    ("snapshot is older", "late changes"),
    ("rows were missing", "not applicable"),
    ("cannot be computed", "not applicable"),
    ("had one __pgt_row_id", "not applicable"),
)


def reason_class(reason: str) -> str:
    """The class of a reason for which all rows were computed; the reason itself can name what is a user's.

    >>> reason_class('"orders" was truncated; all of it is read'), reason_class("something else")
    ('truncated', 'other')
    """
    return next((named for part, named in _REASONS if part in reason), "other")


@dataclass(slots=True)
class Tally:
    """Refreshes by database. Stream tables are their `pgt_id`."""

    ended: Counter[tuple[str, int, str, str]] = field(default_factory=Counter)
    """By database, stream table, action and status."""
    rows: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """By database, stream table, and what was done with them."""
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By database and class of reason."""
    durations: defaultdict[tuple[str, str, str], Histogram] = field(
        default_factory=lambda: defaultdict(partial(Histogram, BOUNDS))
    )
    """Of those that succeeded, by database, action and executor."""
    _known: set[tuple[str, int]] = field(default_factory=set)

    def note(self, database: str, pgt_id: int, action: str, status: str) -> int:
        """Count a refresh; the number under which its stream table is counted."""
        if (database, pgt_id) not in self._known:
            if len(self._known) >= MOST_TABLES:
                pgt_id = OTHERS
            else:
                self._known.add((database, pgt_id))
        self.ended[database, pgt_id, action, status] += 1
        return pgt_id

    def add(self, other: Tally) -> None:
        """Count what another process of this server has counted."""
        self.ended += other.ended
        self.rows += other.rows
        self.fallbacks += other.fallbacks
        for labels, durations in other.durations.items():
            self.durations[labels].add(durations)


TALLY = Tally()
"""Of this process."""
