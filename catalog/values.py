"""Values that columns of `pgtrickle`'s tables take, as their CHECK constraints have them."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from catalog.session import SqlError


class RefreshMode(StrEnum):
    """How a stream table is refreshed: `pgt_stream_tables.requested_mode` as asked for, `refresh_mode` never AUTO."""

    AUTO = "AUTO"
    FULL = "FULL"
    DIFFERENTIAL = "DIFFERENTIAL"
    IMMEDIATE = "IMMEDIATE"
    """Triggers maintain it, within the statements that change its sources."""


class Status(StrEnum):
    """The state of a stream table (`pgt_stream_tables.status`)."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"
    ERROR = "ERROR"


class Engine(StrEnum):
    """Who is to compute a stream table's refreshes (`pgt_stream_tables.engine`)."""

    AUTO = "auto"
    SPARK = "spark"
    POSTGRES = "postgres"


class Executor(StrEnum):
    """Who has computed a refresh (`pgt_refresh_history.executor`)."""

    POSTGRES = "postgres"
    SPARK = "spark"


class Action(StrEnum):
    """What a refresh did (`pgt_refresh_history.action`)."""

    NO_DATA = "NO_DATA"
    FULL = "FULL"
    DIFFERENTIAL = "DIFFERENTIAL"
    REINITIALIZE = "REINITIALIZE"
    SKIP = "SKIP"
    """It waits for a lock, or is held back, and is tried again."""


class RefreshStatus(StrEnum):
    """How a refresh ended (`pgt_refresh_history.status`)."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class Initiator(StrEnum):
    """Who asked for a refresh (`pgt_refresh_history.initiated_by`)."""

    SCHEDULER = "SCHEDULER"
    MANUAL = "MANUAL"
    INITIAL = "INITIAL"


class RequestKind(StrEnum):
    """What an engine request asks for (`pgt_requests.kind`)."""

    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"
    REFRESH = "refresh"
    RESUME = "resume"
    COPY = "copy"
    EXTENSION = "extension"
    STATEMENT = "statement"
    RETAIN = "retain"
    PUBLISH = "publish"


E = TypeVar("E", bound=StrEnum)


def argument(kind: type[E], name: str, value: object) -> E:
    """The value that an argument of a request has, in capitals or not. Raises SqlError 22023 if there is no such value.

    >>> argument(RefreshMode, "refresh mode", "full")
    <RefreshMode.FULL: 'FULL'>
    """
    text = str(value)
    for known in kind:
        if known.upper() == text.upper():
            return known
    raise SqlError("22023", f'invalid {name} "{text}"', hint=f"Valid values are {', '.join(kind)}.")
