"""What this server has published, added up as it is written: numbers that only grow.

Of a commit whose writer is killed before it can count it nothing is known here: the log of the Delta table has it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

PublicationKey = tuple[str, int]
"""A database, and the `publication_id` of a publication in it."""


@dataclass(slots=True)
class PublicationTally:
    """Commits, their rows, and attempts that failed, by publication."""

    commits: Counter[PublicationKey] = field(default_factory=Counter)
    written: Counter[PublicationKey] = field(default_factory=Counter)
    """Rows that have come or changed, and all of them where the contents were replaced."""
    removed: Counter[PublicationKey] = field(default_factory=Counter)
    """Rows that have gone, but for those of contents that were replaced."""
    failures: Counter[PublicationKey] = field(default_factory=Counter)

    def commit(self, key: PublicationKey, written: int, removed: int) -> None:
        """Count a commit, and the rows it has written and removed."""
        self.commits[key] += 1
        self.written[key] += written
        self.removed[key] += removed

    def add(self, other: PublicationTally) -> None:
        """Count what another process of this server has counted."""
        self.commits += other.commits
        self.written += other.written
        self.removed += other.removed
        self.failures += other.failures


PUBLISHED = PublicationTally()
"""Of this process."""
