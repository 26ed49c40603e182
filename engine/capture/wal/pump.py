"""The pump: reads what PostgreSQL decodes of the write-ahead log, and delivers it into the change buffers.

It runs in a thread, with two connections: one over which PostgreSQL streams from the slot, one that writes. What is
confirmed to the slot has been committed before. After a crash PostgreSQL begins again where it was confirmed; what had
been delivered is known by its position in the log, which each delivery commits with its rows.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import psycopg
import structlog
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from catalog.pinned_settings import PINNED
from engine.capture.wal.delivery import Delivery, Unfit
from engine.capture.wal.pgoutput import Begin, Change, Commit, Relation, Truncate, parse
from engine.session.pool import APPLICATION_NAME, ConnectArguments

logger = structlog.get_logger(__name__)

DELIVERY_BYTES = 16 << 20
"""A delivery of several transactions ends when it is larger; one transaction is never cut."""

PAUSE_SECONDS = 0.01
"""Between two deliveries, at least: what is committed meanwhile is delivered together. A lone one is not held up."""

DELIVERY_SECONDS = 0.1
"""A delivery of several transactions ends after that, also while more are coming."""

STATUS_SECONDS = 5.0
"""PostgreSQL hears at least as often that the pump lives; it gives up after wal_sender_timeout (60 s)."""

LOOK_SECONDS = 0.2
"""How often it looks whether it is to end."""

RELEASE_SECONDS = 1.0
"""How long its end waits for PostgreSQL's."""

_KEEPALIVE = Struct(">QQB")
_STATUS = Struct(">cQQQqB")
_EPOCH = 946684800
"""Of PostgreSQL's timestamps, in seconds of Unix time."""

PUBLICATION = "pgtrickle_cdc"

_SETTINGS = {**PINNED, "TimeZone": "UTC", "client_encoding": "UTF8"}
"""By which PostgreSQL writes values into the stream, and reads them into the buffers."""


_SET = "SELECT pg_catalog.set_config({}, {}, false)"
_UNFLUSHED = "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"
_FLUSHED_BY_COMMIT = "SELECT pg_catalog.pg_logical_emit_message(true, 'headwater', '')"
_START = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {})"


class Ended(Exception):
    """PostgreSQL has ended the stream."""


@dataclass(slots=True)
class Pump:
    """Delivers until it is stopped, or fails. `holder` is the process of the session that holds the lease."""

    login: ConnectArguments
    database: str
    slot: str
    holder: int
    delivered: Callable[[], None]
    """Called, in the thread, when changes have been committed."""
    streaming: bool = False
    """Whether PostgreSQL sends."""
    failure: str | None = None
    """Why it has ended."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _relations: dict[int, Relation] = field(default_factory=dict)
    _delivery: Delivery | None = None
    _begin: Begin | None = None
    _end: int = 0
    """Where the last transaction that was received ends."""
    _confirmed: int = 0
    _told: float = 0.0
    _opened: float = 0.0
    """When the present delivery was begun."""
    _committed: float = 0.0
    """When the last delivery was."""
    _flushed: float = 0.0
    """When it was last seen to that all of the log is on disk."""

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name=f"headwater pump {self.database}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Have it end, within a moment."""
        self._stop.set()

    def join(self) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        writer: psycopg.Connection[Any] | None = None
        try:
            writer = psycopg.connect(self._conninfo(), prepare_threshold=None)
            self._pin(writer)
            with suppress(Unfit):
                self._stream(writer)
        except Exception as error:
            self.failure = " ".join(str(error).split()) or type(error).__name__
            if not self._stop.is_set():
                logger.warning(
                    "capture from the write-ahead log interrupted", database=self.database, error=self.failure
                )
        finally:
            self.streaming = False
            if writer is not None:
                with suppress(psycopg.Error):
                    self._await_release(writer)
                writer.close()

    def _await_release(self, writer: psycopg.Connection[Any]) -> None:
        """Wait until PostgreSQL has noticed that nobody reads the slot: its database cannot be dropped before."""
        writer.rollback()
        asked = "SELECT s.active FROM pg_catalog.pg_get_replication_slots() AS s WHERE s.slot_name = %s"
        deadline = time.monotonic() + RELEASE_SECONDS
        while writer.execute(asked, [self.slot]).fetchone() == (True,) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _conninfo(self, **more: str) -> str:
        arguments = dict(self.login)
        url = arguments.pop("dsn", "")
        name = f"{APPLICATION_NAME}: wal"
        return make_conninfo(
            url, **{**arguments, "dbname": self.database, "application_name": name, "connect_timeout": 10, **more}
        )

    def _pin(self, writer: psycopg.Connection[Any]) -> None:
        """Be who has logged in, and read values as they are written."""
        writer.execute("SET ROLE NONE")
        own = {"headwater.engine": "on", "synchronous_commit": "on", "statement_timeout": "0", "lock_timeout": "0"}
        for name, value in {**_SETTINGS, **own}.items():
            writer.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
        writer.commit()

    def _stream(self, writer: psycopg.Connection[Any]) -> None:
        connection = pq.PGconn.connect(self._conninfo(replication="database").encode())
        try:
            if connection.status != pq.ConnStatus.OK:
                raise Ended(_message(connection.error_message))
            for name, value in _SETTINGS.items():
                _command(connection, sql.SQL(_SET).format(sql.Literal(name), sql.Literal(value)).as_bytes())
            options = sql.Literal(PUBLICATION)
            started = connection.exec_(sql.SQL(_START).format(sql.Identifier(self.slot), options).as_bytes())
            if started.status != pq.ExecStatus.COPY_BOTH:
                raise Ended(_message(started.error_message))
            self.streaming = True
            self._receive(connection, writer)
        finally:
            connection.finish()

    def _receive(self, connection: pq.abc.PGconn, writer: psycopg.Connection[Any]) -> None:
        while not self._stop.is_set():
            size, data = connection.get_copy_data(1)
            if size > 0:
                self._take(bytes(data), connection, writer)
            elif size == 0:
                self._rest(connection, writer)
            else:
                result = connection.get_result()
                raise Ended(_message(result.error_message) if result is not None else "the stream has ended")

    def _rest(self, connection: pq.abc.PGconn, writer: psycopg.Connection[Any]) -> None:
        """There is nothing to read just now: commit what there is, and wait."""
        pause = self._committed + PAUSE_SECONDS - time.monotonic()
        if self._begin is None and pause <= 0:
            self._commit(connection)
        if time.monotonic() - self._told > STATUS_SECONDS:
            self._tell(connection)
        self._put_on_disk(writer)
        held_up = self._begin is None and (self._delivery is not None or self._end > self._confirmed)
        if select.select([connection.socket], [], [], max(pause, 0) if held_up else LOOK_SECONDS)[0]:
            connection.consume_input()

    def _put_on_disk(self, writer: psycopg.Connection[Any]) -> None:
        """Have PostgreSQL flush its log. Up to 16 who waits for the log cannot, and an idle one does so in 5 s only."""
        now = time.monotonic()
        due = now - self._flushed > LOOK_SECONDS and self._delivery is None and self._begin is None
        if due and writer.info.server_version < 170000:
            self._flushed = now
            if writer.execute(_UNFLUSHED).fetchone() == (True,):
                writer.execute(_FLUSHED_BY_COMMIT)
            writer.commit()

    def _take(self, data: bytes, connection: pq.abc.PGconn, writer: psycopg.Connection[Any]) -> None:
        if data[:1] == b"k":
            end, _, wanted = _KEEPALIVE.unpack_from(data, 1)
            if self._begin is None:
                # All that was committed before this position has been received.
                self._end = max(self._end, end)
            if wanted:
                self._tell(connection)
            return
        try:
            self._decode(data[25:], writer)
        except Unfit as unfit:
            self._interrupt(unfit, writer)
            raise
        if self._begin is None and self._delivery is not None:
            age = time.monotonic() - self._opened
            if self._delivery.size > DELIVERY_BYTES or age > DELIVERY_SECONDS:
                self._commit(connection)

    def _decode(self, data: bytes, writer: psycopg.Connection[Any]) -> None:
        message = parse(data)
        if isinstance(message, Change):
            if (delivery := self._delivering(writer)) is not None and self._begin is not None:
                delivery.add(self._begin.xid, message, self._relations[message.relation])
        elif isinstance(message, Begin):
            self._begin = message
        elif isinstance(message, Commit):
            self._begin, self._end = None, max(self._end, message.end)
        elif isinstance(message, Relation):
            self._relations[message.oid] = message
        elif isinstance(message, Truncate) and self._begin is not None:
            for relation in message.relations:
                if (delivery := self._delivering(writer)) is not None:
                    delivery.truncated(self._begin.xid, relation)

    def _delivering(self, writer: psycopg.Connection[Any]) -> Delivery | None:
        """The delivery that takes in changes of the present transaction; None where it had them before a crash."""
        if self._delivery is None:
            self._delivery = Delivery.begin(writer, self.holder)
            self._opened = time.monotonic()
        assert self._begin is not None
        return None if self._begin.lsn < self._delivery.delivered else self._delivery

    def _commit(self, connection: pq.abc.PGconn) -> None:
        """Commit what was received, and confirm it to the slot."""
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            self._committed = time.monotonic()
            try:
                if not delivery.commit(max(self._end, delivery.delivered), lambda: not self._stop.is_set()):
                    return
            except Unfit as unfit:
                self._interrupt(unfit, delivery.connection)
                raise
        if self._end > self._confirmed:
            self._confirmed = self._end
            self._tell(connection)
        if delivery is not None and delivery.rows:
            self.delivered()

    def _interrupt(self, unfit: Unfit, writer: psycopg.Connection[Any]) -> None:
        """Have the source captured by triggers, and what reads it computed anew. The pump begins again without it."""
        writer.rollback()
        writer.execute("SELECT pgtrickle._interrupt_wal(%s::bigint::oid, %s)", [unfit.source, unfit.why])
        writer.commit()
        logger.warning(
            "a source is not captured from the write-ahead log any more", source=unfit.source, reason=unfit.why
        )

    def _tell(self, connection: pq.abc.PGconn) -> None:
        now = int((time.time() - _EPOCH) * 1_000_000)
        connection.put_copy_data(_STATUS.pack(b"r", self._confirmed, self._confirmed, self._confirmed, now, 0))
        connection.flush()
        self._told = time.monotonic()


def _command(connection: pq.abc.PGconn, statement: bytes) -> None:
    result = connection.exec_(statement)
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        raise Ended(_message(result.error_message))


def _message(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())
