"""Loads in several steps, and what the scheduler shows of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.conftest import Database


def load(db: Database, table: str, rows: str) -> None:
    """COPY rows into a table, in a transaction of their own."""
    with db.connection.cursor().copy(f"COPY {table} FROM STDIN WITH (FORMAT csv)".encode()) as copy:
        copy.write(rows)


def skips(db: Database, name: str) -> list[str]:
    """What the history says of refreshes that were due and not done."""
    rows = [row for row in db.history(name) if row["action"] == "SKIP"]
    assert all((row["status"], row["initiated_by"]) == ("SKIPPED", "SCHEDULER") for row in rows)
    return [row["error_message"] for row in rows]


def refreshes(db: Database, name: str) -> list[str]:
    """What the refreshes did that found something."""
    return [row["action"] for row in db.history(name) if row["action"] not in ("SKIP", "NO_DATA")]


@contextmanager
def seen_while(db: Database, query: str) -> Iterator[set[Any]]:
    """What a query answers, asked again and again meanwhile."""
    seen: set[Any] = set()
    ended = threading.Event()
    reader = db.connect()

    def look() -> None:
        while not ended.is_set():
            seen.update(reader.execute(query.encode()).fetchall())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
