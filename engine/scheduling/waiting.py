"""Why a scheduled refresh is put off: said in the log, in the history, and by `headwater status`."""

from __future__ import annotations

from catalog.session import SqlError
from catalog.values import Action, Initiator, RefreshStatus
from engine.refresh.failures import LOCK_TIMEOUT
from engine.refresh.record import RefreshRecord, finish
from engine.session.pool import DatabasePool

# A refresh reads its sources and writes its storage. Of its other locks none is held for long by anybody else.
_HOLDER = """
WITH RECURSIVE touched AS (
    SELECT s.pgt_relid AS relid, true AS written FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = $1::bigint
    UNION SELECT d.source_relid, false FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = $1::bigint
    UNION SELECT h.inhrelid, t.written FROM touched t JOIN pg_inherits h ON h.inhparent = t.relid
)
SELECT format('%s is locked by process %s of role "%s" (%s), in a transaction since %s',
              pgtrickle._qualified(t.relid), l.pid, a.usename, l.mode, to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SSOF'))
FROM touched t
JOIN pg_locks l ON l.relation = t.relid
JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
  AND (l.mode = 'AccessExclusiveLock'
       OR t.written AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))
ORDER BY a.xact_start LIMIT 1
"""


async def note_waiting(pool: DatabasePool, pgt_id: int) -> str | None:
    """Who has locked what a stream table reads or is stored in, written down in its history; None if nobody has now.

    That it waits is no failure of the stream table: it is tried again. Raises SqlError.
    """
    async with pool.session() as session:
        rows = await session.fetch(_HOLDER, pgt_id)
        if not rows:
            return None
    said = str(rows[0][0])
    await note_skipped(pool, pgt_id, said)
    return said


def skipped(reason: str) -> RefreshRecord:
    """What the history says of a refresh that is put off."""
    return RefreshRecord(
        action=Action.SKIP, status=RefreshStatus.SKIPPED, initiated_by=Initiator.SCHEDULER, error_message=reason
    )


async def note_skipped(pool: DatabasePool, pgt_id: int, reason: str) -> None:
    """Write down in a stream table's history that its refresh is put off, and why. Raises SqlError."""
    async with pool.session() as session:
        try:
            async with session.transaction("read_committed"):
                await session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                await finish(session, pgt_id, skipped(reason))
        except SqlError as error:
            if error.sqlstate != "55P03":  # else it is refreshed just now
                raise
