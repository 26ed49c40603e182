"""Following a subscription in a test: the changes folded into the rows they sum to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.e2e.conftest import Database

Row = tuple[Any, ...]


class Folded:
    """The rows of a subscription WITH (PROGRESS), as they were when a timestamp was last closed."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()
        self.closed = 0
        """The last progress timestamp: what came before it is in `rows`. 0 until the snapshot is there."""
        self._progressed = 0
        self._pending: list[tuple[int, int, Row]] = []
        self._last = 0

    def take(self, row: Row) -> bool:
        """Take a row of (mz_timestamp, mz_progressed, mz_diff, …); whether it has closed a timestamp."""
        timestamp, progressed, diff, *values = row
        assert timestamp >= self._last, "time went back"
        self._last = int(timestamp)
        if not progressed:
            self._pending.append((self._last, int(diff), tuple(values)))
            return False
        self._progressed += 1
        if self._progressed == 1:
            return False  # it says where the snapshot begins
        assert all(time < self._last for time, _, _ in self._pending), "a row at a time that was closed"
        for _, change, values_ in self._pending:
            self.rows[values_] += change
            if not self.rows[values_]:
                del self.rows[values_]
        assert all(count > 0 for count in self.rows.values()), "a row was deleted that was not there"
        self._pending.clear()
        self.closed = max(self.closed, self._last)
        return True

    def forget_pending(self) -> None:
        """The connection is lost: what was not closed comes again, from `closed` on or just before it."""
        self._pending.clear()
        if not self.closed:
            self._progressed = 0
        self._last = self.closed - 1


def fetches(connection: psycopg.Connection[Any], cursor: str, timeout: str = "1s") -> Iterator[Row]:
    """The rows of a cursor over a SUBSCRIBE, as they come; ends with the cursor's."""
    while True:
        yield from connection.execute(f"FETCH ALL {cursor} WITH (timeout='{timeout}')")


def timestamp_of(database: Database, xid: str) -> int | None:
    """The first noted timestamp at which a transaction is visible."""
    rows = database.rows(
        "SELECT mz_timestamp FROM pgtrickle.pgt_timeline"
        " WHERE pg_visible_in_snapshot(%s::text::xid8, snapshot) ORDER BY 1 LIMIT 1",
        xid,
    )
    return rows[0][0] if rows else None
