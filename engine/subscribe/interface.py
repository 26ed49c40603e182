"""What the server asks the subscription hub of a database for, and what it gets.

A SUBSCRIBE is parsed by the server into a :class:`Subscribe`, prepared on the client's own connection (`prepare`), and
started (`open`). What comes back is bytes: whole DataRow or CopyData messages, ready to be forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from catalog.session import SqlSession

CLIENT_SETTINGS = (
    "search_path",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "extra_float_digits",
    "bytea_output",
    "client_encoding",
    "lc_monetary",
    "xmlbinary",
)
"""The client's parameters that a subscription depends on: what its names mean, and how its values are written."""


class EnvelopeKind(StrEnum):
    """How updates of one key within one timestamp are given out."""

    NONE = "none"
    UPSERT = "upsert"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class Envelope:
    """ENVELOPE: its kind and the key columns, by name, in the order they were written."""

    kind: EnvelopeKind
    keys: tuple[str, ...] = ()


NO_ENVELOPE = Envelope(EnvelopeKind.NONE)


@dataclass(frozen=True, slots=True)
class AsOf:
    """AS OF [AT LEAST]: an expression, evaluated on the client's connection when the subscription starts."""

    expression: str
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """What was asked for.

    ``query`` is a SELECT with parameters put in as literals, or ``TABLE name`` for an object. ``order_by`` is what
    follows WITHIN TIMESTAMP ORDER BY, as written. ``as_of`` and ``up_to`` are a number of milliseconds since the epoch
    or a timestamp with time zone, as expressions of any kind without columns.
    """

    query: str
    envelope: Envelope = NO_ENVELOPE
    order_by: str | None = None
    snapshot: bool = True
    progress: bool = False
    as_of: AsOf | None = None
    up_to: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """The client's values of `CLIENT_SETTINGS`, read before its parameters are pinned."""


@dataclass(frozen=True, slots=True)
class Described:
    """One column as RowDescription has it; `oid` is the type's."""

    name: str
    oid: int
    typlen: int
    typmod: int


@dataclass(frozen=True, slots=True)
class RowOutput:
    """DataRow messages. ``formats`` are Bind's result formats: none (text), one for all columns, or one for each."""

    formats: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyOutput:
    """CopyData messages, as COPY (query) TO STDOUT gives them.

    ``options`` is what stands between the parentheses of COPY's options, as written ("" for none), such as ``FORMAT
    csv, HEADER``; ``binary`` says whether its format is binary. A header is in the first batch, a trailer in the last.
    """

    options: str = ""
    binary: bool = False


Output: TypeAlias = RowOutput | CopyOutput


class Prepared(Protocol):
    """A subscription that has been checked, and can be started any number of times."""

    @property
    def asked(self) -> Subscribe: ...

    @property
    def columns(self) -> tuple[Described, ...]:
        """The columns that come out, mz_timestamp first."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that belong to one timestamp, or the time until then: the end of one is the start of the next.

    A timestamp's rows may come in several batches. Progress messages are rows, too; header and trailer of a COPY are
    not.
    """

    timestamp: int
    messages: bytes
    rows: int


PassOn = Callable[[Batch], bool]
"""Takes a batch, without waiting for anything, or says that it takes none now. Never raises."""


class Feed(Protocol):
    """What one client reads of a subscription. To be closed in any case."""

    async def next(self, wait: float | None = None, pass_on: PassOn | None = None) -> Batch | None:
        """The next batch; None once the subscription has ended, for good, without an error.

        Waits as long as `wait` says, in seconds: None for ever, 0 not at all; then raises TimeoutError, and nothing
        is lost. What comes while it waits is given to `pass_on` at once, without ending the wait, as long as that takes
        it: waking a task for each of many clients costs more than writing to them. Raises SqlError if the subscription
        has failed: 42501 a right was revoked, 53400 it was read too slowly, 55000 what it reads was dropped or changed.
        """
        ...

    async def close(self) -> None:
        """Stop. Never raises."""
        ...


class SubscriptionHub(Protocol):
    """All subscriptions of one database in this server."""

    async def prepare(self, session: SqlSession, asked: Subscribe) -> Prepared:
        """Check a subscription on the client's connection, in its transaction, as the role it acts as.

        PostgreSQL reports what is wrong with the query and with rights. Raises SqlError, 0A000 with the reason for what
        cannot be followed.
        """
        ...

    async def open(self, session: SqlSession, prepared: Prepared, output: Output) -> Feed:
        """Start: evaluate AS OF and UP TO on the client's connection, capture the sources, take the snapshot.

        When this returns, everything up to AS OF is in the feed or on its way, and nothing after it will be missed.
        Raises SqlError.
        """
        ...
