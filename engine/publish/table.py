"""The Delta table of a publication: whose it is, and how far it has got.

Its log is the truth. The last commit that changed rows says, under the key ``headwater``,

- ``publication``, ``number``: which publication has made it, and which of its commits it is, as the transaction (`txn`)
  of the commit says as well;
- ``stream_table``, ``frontier``, ``data_timestamp``: which state of the stream table it is;
- ``system``, ``followed``, ``snapshot``, ``also``: which changes it has. Those that the snapshot sees, and those of
  the transactions in ``also``, as they were captured for ``followed`` (`pgt_published.subscription_id`).

A commit goes in only as the successor of the version that was read. So a crash before or after it, or another server,
neither loses nor repeats a refresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from catalog.session import SqlError
from engine.mirror.delta_table import Keeping, Location, Mark, StorageFailed, last_metadata
from engine.object_store import environment_options, storage_message
from engine.session.snapshots import PgSnapshot

RETENTION_HOURS = 7 * 24
"""How far back readers can travel in time: files that only versions before that need are removed."""

TARGET_FILE_BYTES = 16 << 20
"""A changed row has the file that holds it written anew, so files are not large."""

CHECKPOINT_COMMITS = 50

_KEEPING = Keeping(
    {
        "delta.logRetentionDuration": f"interval {RETENTION_HOURS} hours",
        "delta.deletedFileRetentionDuration": f"interval {RETENTION_HOURS} hours",
        "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
        "delta.targetFileSize": str(TARGET_FILE_BYTES),
        # By which files with changed rows are found. Those of other columns would mislead readers: deltalake writes
        # decimals as floats, and where a column of floats has none it reads that as no row at all.
        "delta.dataSkippingStatsColumns": "__pgt_row_id",
    },
    RETENTION_HOURS,
    text_statistics=False,
)

_PATIENCE = {"connect_timeout": "5s", "timeout": "15s", "max_retries": "1", "retry_timeout": "15s"}
"""A store that does not answer is given up soon, and tried again later."""


class NotOurs(Exception):
    """What is at the location is not this publication's."""


@dataclass(frozen=True, slots=True)
class Position:
    """Which changes a Delta table has: of one capture, those that a snapshot sees, and of more transactions."""

    system: str
    followed: int
    snapshot: PgSnapshot
    also: frozenset[int] = frozenset()

    @staticmethod
    def parse(metadata: Mapping[str, Any]) -> Position:
        """The inverse of `as_metadata`. Raises KeyError, TypeError, ValueError."""
        return Position(
            str(metadata["system"]),
            int(metadata["followed"]),
            PgSnapshot.parse(metadata["snapshot"]),
            frozenset(int(xid) for xid in metadata["also"]),
        )

    def as_metadata(self) -> dict[str, Any]:
        """As a commit says it."""
        return {
            "system": self.system,
            "followed": self.followed,
            "snapshot": str(self.snapshot),
            "also": sorted(self.also),
        }


@dataclass(frozen=True, slots=True)
class Published:
    """A publication's table as it was found, or as it is after a commit."""

    table: DeltaTable
    number: int
    """Of its commits, how many there are."""
    position: Position | None
    """None where the last commit that changed rows is somebody else's, or cannot be found any more."""


def location_of(uri: str) -> Location:
    """Where a publication writes to. Files of readers are there, too: nothing goes before its time."""
    options = environment_options() | _PATIENCE if "://" in uri else {}
    return Location(uri, options, private=False, keeping=_KEEPING)


def look(place: Location, generation: str) -> Published | None:
    """What is at a publication's place, None if nothing is. Raises NotOurs, StorageFailed."""
    table = place.opened()
    if table is None:
        if place.names():
            raise NotOurs("the location is not empty, and has no Delta table")
        return None
    number = table.transaction_version(generation)
    if number is None:
        raise NotOurs("the location has a Delta table that is not this publication's")
    metadata = last_metadata(table)
    try:
        if metadata is None or metadata["publication"] != generation or metadata["number"] != number:
            return Published(table, number, None)
        return Published(table, number, Position.parse(metadata))
    except (KeyError, TypeError, ValueError):
        return Published(table, number, None)


def check_empty(uri: str) -> None:
    """Raises SqlError 55006 if there is anything at a location, 58030 if that cannot be found out."""
    place = location_of(uri)
    try:
        if place.opened() is not None:
            raise SqlError("55006", f'location "{uri}" has a Delta table', hint=_ELSEWHERE)
        if place.names():
            raise SqlError("55006", f'location "{uri}" is not empty', hint=_ELSEWHERE)
    except (StorageFailed, OSError) as error:
        raise SqlError("58030", f'could not read location "{uri}"', detail=storage_message(error)) from error


_ELSEWHERE = "A stream table is published to a place of its own. Take another location, or empty it."


def mark(generation: str, number: int) -> Mark:
    """What a commit of a publication says in the log."""
    return Mark(generation, number)
