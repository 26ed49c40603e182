"""Watches what the server does: reads the refresh history as it grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row
from rich.table import Table

from catalog.values import Action, RefreshStatus
from server.quickstart.served import Connection, QuickstartError

WAIT_SECONDS = 300.0
POLL_SECONDS = 0.02

_SINCE = """
SELECT h.refresh_id, s.pgt_name AS name, h.action, h.executor, h.executor_reason, h.status, h.error_message,
       h.delta_row_count AS rows_in, h.rows_inserted + h.rows_updated + h.rows_deleted AS rows_out,
       pg_catalog.date_part('epoch', h.end_time - h.start_time) * 1000 AS milliseconds,
       h.end_time
FROM pgtrickle.pgt_refresh_history h
JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
WHERE h.refresh_id > %s AND h.status <> 'RUNNING' AND h.action <> 'NO_DATA'
ORDER BY h.refresh_id
"""

# Behind is who reads a table and has not seen the transaction, or reads a stream table and has not been refreshed (at
# the time in its frontier, or as of then) since that one changed. (Where nothing has changed, nothing is refreshed.)
_BEHIND = """
SELECT count(*)
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle.pgt_dependencies d USING (pgt_id)
WHERE CASE d.source_type
          WHEN 'TABLE' THEN NOT pg_catalog.pg_visible_in_snapshot(%s::xid8, (s.frontier->>'snapshot')::pg_snapshot)
          ELSE EXISTS (SELECT FROM pgtrickle.pgt_refresh_history h
                       JOIN pgtrickle.pgt_stream_tables u USING (pgt_id)
                       WHERE u.pgt_relid = d.source_relid AND h.status = 'COMPLETED'
                         AND h.rows_inserted + h.rows_updated + h.rows_deleted > 0
                         AND h.data_timestamp > greatest(s.data_timestamp, (s.frontier->>'at')::timestamptz))
      END
"""


@dataclass(frozen=True, slots=True)
class Refresh:
    """One row of the refresh history."""

    refresh_id: int
    name: str
    action: str
    executor: str | None
    executor_reason: str | None
    status: str
    error_message: str | None
    rows_in: int
    rows_out: int
    milliseconds: float
    end_time: datetime


class Watcher:
    """Reads each refresh once."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._seen = 0

    def new(self) -> list[Refresh]:
        """The refreshes that have ended since the last call. Raises QuickstartError for one that failed."""
        with self._connection.cursor(row_factory=class_row(Refresh)) as cursor:
            refreshes = cursor.execute(_SINCE, [self._seen]).fetchall()
        for refresh in refreshes:
            if refresh.status == RefreshStatus.FAILED:
                raise QuickstartError(f"the refresh of {refresh.name} failed: {refresh.error_message}")
            self._seen = max(self._seen, refresh.refresh_id)
        return refreshes

    def until_fresh(self, transaction: str) -> list[Refresh]:
        """Wait until every stream table shows what a transaction committed; returns the refreshes meanwhile."""
        found: list[Refresh] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            row = self._connection.execute(_BEHIND, [transaction]).fetchone()
            found += self.new()
            if row == (0,):
                return found
            if time.monotonic() > deadline:
                raise QuickstartError(f"a stream table was not refreshed within {WAIT_SECONDS:.0f} s of a commit")
            time.sleep(POLL_SECONDS)


def refresh_table(refreshes: Sequence[Refresh], committed: datetime) -> Table:
    """The refreshes after one commit."""
    table = Table(pad_edge=False, box=None, padding=(0, 1, 0, 0))
    table.add_column("stream table", min_width=22)
    table.add_column("refresh", min_width=12)
    table.add_column("executor", min_width=8)
    for heading, width in (("rows in", 7), ("rows out", 8), ("ms", 7), ("seen", 6)):
        table.add_column(heading, justify="right", min_width=width)
    for refresh in refreshes:
        table.add_row(
            refresh.name,
            refresh.action,
            refresh.executor or "",
            f"{refresh.rows_in:,}" if refresh.action == Action.DIFFERENTIAL else "all",
            f"{refresh.rows_out:,}",
            f"{refresh.milliseconds:.1f}",
            f"{max((refresh.end_time - committed).total_seconds(), 0.0):.2f} s",
        )
    return table
