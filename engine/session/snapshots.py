"""`pg_snapshot` in Python: which transactions a snapshot sees, and which of two snapshots sees more.

The snapshots of one PostgreSQL are ordered: what was visible stays visible. Their texts do not show it by size alone,
hence these comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PgSnapshot:
    """What a snapshot sees: transactions below `xmax` except those in `xip`, which were still running.

    >>> PgSnapshot.parse("10:20:10,14").sees(11), PgSnapshot.parse("10:20:10,14").sees(14)
    (True, False)
    """

    xmin: int
    xmax: int
    xip: frozenset[int]

    @staticmethod
    def parse(text: str) -> PgSnapshot:
        """The inverse of `str`. Raises ValueError."""
        xmin, xmax, running = text.split(":")
        return PgSnapshot(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.xip)))}"

    def sees(self, xid: int) -> bool:
        """Whether changes of a transaction that has committed are visible."""
        return xid < self.xmax and xid not in self.xip

    def within(self, other: PgSnapshot) -> bool:
        """Whether `other` sees all that this one sees.

        >>> old, new = PgSnapshot.parse("10:20:10,14"), PgSnapshot.parse("14:20:14")
        >>> old.within(new), new.within(old)
        (True, False)
        """
        return self.xmax <= other.xmax and not any(self.sees(xid) for xid in other.xip)

    def condition(self, xid: str) -> str:
        """`sees` in SQL that PostgreSQL (for bigint), Spark and DataFusion understand; `xid` is an expression."""
        text = f"{xid} < {self.xmax}"
        if self.xip:
            text += f" AND {xid} NOT IN ({', '.join(map(str, sorted(self.xip)))})"
        return f"({text})"


@dataclass(frozen=True, slots=True)
class Frontier:
    """What a stream table has seen: a snapshot, and of the transaction that took it the changes up to a number.

    A transaction's own changes are not in its snapshot.
    """

    snapshot: PgSnapshot
    xid: int | None = None
    change_id: int = 0

    @staticmethod
    def parse(frontier: Mapping[str, Any]) -> Frontier:
        """From `pgt_stream_tables.frontier`. Raises KeyError, ValueError."""
        xid = frontier.get("xid")
        return Frontier(
            PgSnapshot.parse(frontier["snapshot"]),
            None if xid is None else int(xid),
            int(frontier.get("change_id") or 0),
        )

    def condition(self, xid: str, change_id: str) -> str:
        """Whether the change was seen, in SQL.

        >>> Frontier.parse({"snapshot": "5:9:5", "xid": "7", "change_id": 3}).condition("x", "n")
        '(CASE WHEN x = 7 THEN n <= 3 ELSE (x < 9 AND x NOT IN (5)) END)'
        """
        seen = self.snapshot.condition(xid)
        if self.xid is None:
            return seen
        return f"(CASE WHEN {xid} = {self.xid} THEN {change_id} <= {self.change_id} ELSE {seen} END)"
