"""Messages that have been damaged or made up: each ends its own connection at worst, and none meets an error of ours.

`conversations.txt` has conversations of psycopg and of hand-made messages with PostgreSQL 18, recorded between the two:
name, side (F or B) and what that side said.
"""

from __future__ import annotations

import base64
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import structlog

from catalog.session import SqlError
from engine.subscribe import SubscriptionHub
from server.protocol import authentication, lexer, startup, values
from server.protocol import messages as m
from server.protocol.error_rewriting import explained
from server.protocol.fast_path import is_answer, is_batch
from server.protocol.framing import AUTHENTICATION_LENGTHS, BACKEND_LENGTHS, CONTINUATION, WHOLE, Framer
from server.protocol.statements import (
    cursor_syntax,
    extensions,
    request_statements,
    subscribe_syntax,
    uri_copy,
)
from server.protocol.traffic import Traffic
from server.subscriptions import describe_query
from tests.server.conftest import Engaged, RunningRelay, through
from tests.server.subscriptions.table_engine import TableEngine
from tests.server.wire import Wire, dial, statement
from tests.server.wire import startup as startup_packet

SUBSCRIBING = (
    m.query(b"SUBSCRIBE t WITH (PROGRESS) AS OF AT LEAST 5 UP TO 9")
    + m.query(b"begin; declare c cursor for subscribe to t envelope upsert (key (a))")
    + m.query(b"fetch 10 c with (timeout = '1s'); close c; commit")
    + m.parse(b"s", b"SUBSCRIBE (SELECT a FROM t WHERE b = $1) WITH (SNAPSHOT = false)", b"\0\1" + m.INT32.pack(25))
    + m.bind(b"p", b"s", [b"x", None], [1])
    + m.describe_portal(b"p")
    + m.execute(b"p")
    + m.close_statement(b"s")
    + m.SYNC_MESSAGE
)
REQUESTING = (
    m.query(b"select pgtrickle.create_stream_table('t', 'select 1 as a')")
    + statement("select make('u', 'select 1')")
    + m.SYNC_MESSAGE
    + m.query(b"create extension pgque; copy t from 's3://lake/t.parquet'; drop source c; drop database x")
    + m.parse(b"l", b"alter table t set (retain history for '1h')")
    + m.bind(b"", b"l")
    + m.execute(b"")
    + m.SYNC_MESSAGE
)


def _recorded() -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Conversations behind the login (what either side says), and the startup packet and login."""
    said: dict[str, dict[str, bytes]] = {}
    for line in (Path(__file__).parent / "conversations.txt").read_text().splitlines():
        name, side, text = line.split(" ")
        said.setdefault(name, {})[side] = base64.b64decode(text)
    login = said.pop("login")
    conversations = [(each["F"], each["B"]) for each in said.values()]
    conversations += [(SUBSCRIBING, conversations[0][1]), (REQUESTING, conversations[1][1]), (b"", login["B"])]
    return conversations, login["F"]


CONVERSATIONS, LOGIN = _recorded()
OPENINGS = (
    startup.SSL_REQUEST + LOGIN,
    m.INT32.pack(8) + m.INT32.pack(80877104) + startup.SSL_REQUEST,
    startup.CancelRequest(7, b"k" * 32).encode(),
    startup_packet("user", "u", "database", "d", "options", "-c a=b", "_pq_.x", "1", version=(3 << 16) + 2),
)
LENGTHS = (0, 1, 3, 4, 5, 6, 7, 8, 255, 10_000, 10_001, WHOLE, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


class Mutator:
    """Damages streams of messages, the same way for the same seed."""

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self._pool = [message for pair in CONVERSATIONS for side in pair for message in m.split(side)]

    def mutated(self, stream: bytes) -> list[bytes]:
        """The messages of a stream, some of them damaged."""
        chance = self.chance
        messages = m.split(stream)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(messages) + 1)
            match chance.randrange(5):
                case 0 if at < len(messages):
                    del messages[at]
                case 1 if at < len(messages):
                    messages.insert(chance.randrange(len(messages)), messages[at])
                case 2:
                    messages.insert(at, chance.choice(self._pool))
                case 3:
                    chance.shuffle(messages)
                case _ if at < len(messages):
                    messages[at] = self.damaged(messages[at])
        return messages

    def damaged(self, data: bytes) -> bytes:
        chance = self.chance
        body = bytearray(data)
        at = chance.randrange(len(body) + 1)
        match chance.randrange(8):
            case 0 if at < len(body):
                body[at] ^= 1 << chance.randrange(8)
            case 1:
                body[1:5] = chance.choice(LENGTHS).to_bytes(4, "big")
            case 2:
                del body[at:]
            case 3:
                body[at:at] = bytes(chance.randrange(1, 4))
            case 4:  # truncated, with a length that says so
                del body[max(at, 5) :]
                body[1:5] = (len(body) - 1).to_bytes(4, "big")
            case 5:
                other = chance.choice(self._pool)
                body[at:] = other[chance.randrange(len(other)) :]
                if len(body) >= 5 and chance.random() < 0.7:
                    body[1:5] = (len(body) - 1).to_bytes(4, "big")
            case 6:
                body[:1] = bytes((chance.randrange(256),))
            case _:
                body[at : at + 4] = chance.choice((b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0"))
        return bytes(body)

    def cut(self, stream: bytes) -> Iterator[bytes]:
        if self.chance.random() < 0.4:
            yield stream
            return
        at = 0
        while at < len(stream):
            end = at + self.chance.choice((1, 4, 5, 20, 100, 1000))
            yield stream[at:end]
            at = end


def _read_text(text: bytes) -> None:
    """Whatever is done to the text of a statement before PostgreSQL has seen it."""
    for encoding in ("UTF8", "SJIS"):
        for each in lexer.split(text, encoding=encoding, backslashes=encoding == "SJIS"):
            lexer.kind_of(each.words)
        for as_request in (uri_copy.as_request, extensions.as_request, request_statements.as_request):
            as_request(text, encoding=encoding)
        for parse in (subscribe_syntax.parse, cursor_syntax.parse):
            with suppress(SqlError):
                parse(text, encoding=encoding)
    lexer.databases_touched(text, lexer.split(text))


def _read_client(traffic: Traffic, chunk: bytes) -> None:
    """Pass a chunk as a session does; what needs attention is taken message by message."""
    if not is_batch(traffic, chunk):
        traffic.from_client(chunk)
        while traffic.attention is not None or traffic.more_from_client:
            if traffic.attention is not None:
                traffic.attention = None
                kind, data = traffic.client.next() or (CONTINUATION, b"")
                if kind == m.QUERY:
                    _read_text(data[5:-1])
                elif kind in (m.PARSE, m.BIND):
                    _read_text(m.text_at(data, 6 + len(m.text_at(data, 5))))
            traffic.from_client(b"")
    assert traffic.client.size <= WHOLE + len(chunk)


def _read_backend(traffic: Traffic, chunk: bytes) -> None:
    if not is_answer(traffic, chunk):
        traffic.from_backend(chunk)
        while traffic.attention is not None or traffic.more_from_backend:
            traffic.attention = None
            traffic.from_backend(b"")
    assert traffic.backend.size <= WHOLE + len(chunk)


def _read_answers(stream: bytes) -> None:
    """Read PostgreSQL's messages one by one, as an interceptor does."""
    framer = Framer(BACKEND_LENGTHS)
    framer.feed(stream)
    decoders: list[values.Decoder] = []
    while (found := framer.next()) is not None:
        kind, data = found
        if kind in (m.ERROR, m.NOTICE):
            m.sqlstate_of(data[5:])
            explained(data, in_our_transaction=True)
            m.without(data, "Ppq")
        elif kind == m.ROW_DESCRIPTION:
            decoders = [str] * len(values.decoders(data))
            describe_query.columns(data)
        elif kind == m.DATA_ROW:
            with suppress(SqlError):
                values.row(data, decoders)
        elif kind == m.AUTHENTICATION:
            authentication.without_channel_binding(data[5:])
            authentication.asks_for_proof(data[5:])


def _read_opening(stream: bytes) -> None:
    found = startup.read(stream)
    if found is not None and isinstance(found[0], startup.StartupMessage):
        packet = found[0]
        _ = (packet.user, packet.database, packet.replication)
        assert startup.read(packet.encode()) == (packet, b"")
        framer = Framer(AUTHENTICATION_LENGTHS)
        framer.feed(found[1])
        while (message := framer.next()) is not None:
            authentication.binding_refused(message[1][5:])


def _through_the_framing(seed: int, wanted: int) -> None:
    """So many mutated messages through everything that reads them without I/O: nothing but ProtocolViolation."""
    mutator, read = Mutator(seed), 0
    while read < wanted:
        client, backend = mutator.chance.choice(CONVERSATIONS)
        sent, answers = mutator.mutated(client), mutator.mutated(backend)
        read += len(sent) + len(answers)
        traffic = Traffic(lambda: None)
        with suppress(m.ProtocolViolation):
            for chunk in mutator.cut(b"".join(sent)):
                _read_client(traffic, chunk)
        traffic.attention = None
        with suppress(m.ProtocolViolation):
            for chunk in mutator.cut(b"".join(answers)):
                _read_backend(traffic, chunk)
        with suppress(m.ProtocolViolation):
            _read_answers(b"".join(answers))
        with suppress(m.ProtocolViolation):
            _read_opening(mutator.damaged(mutator.chance.choice(OPENINGS)))


def test_mutated_messages_through_the_framing() -> None:
    _through_the_framing(1, 12_000)


@pytest.mark.long
def test_two_million_mutated_messages_through_the_framing() -> None:
    for seed in range(20):
        _through_the_framing(100 + seed, 100_000)


# -- through a relay, with PostgreSQL behind it ------------------------------------------------------------------------


class Hooks(TableEngine):
    async def subscriptions(self, database: str) -> SubscriptionHub:
        raise SqlError("0A000", "not here")


@pytest.fixture
def attacked(
    start_relay: Callable[..., RunningRelay], engaged: Engaged, caplog: pytest.LogCaptureFixture
) -> Iterator[tuple[RunningRelay, str]]:
    """A relay, and the connection string through it; afterwards nothing may have gone wrong in it."""
    relay = start_relay(hooks=Hooks())
    with structlog.testing.capture_logs() as events, caplog.at_level(logging.WARNING):
        yield relay, through(relay, engaged.direct)
        deadline = time.monotonic() + 60
        while relay.relay.sessions:
            assert time.monotonic() < deadline, [session.state for session in relay.relay.sessions]
            time.sleep(0.02)
    assert [event for event in events if event["log_level"] in ("error", "critical")] == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def _attack(relay: RunningRelay, dsn: str, seed: int, times: int) -> None:
    mutator = Mutator(seed)
    with psycopg.connect(dsn, autocommit=True) as other:
        for n in range(times):
            if n % 4 == 0:
                with dial(relay.port) as connection, suppress(OSError):
                    connection.sendall(mutator.damaged(mutator.chance.choice(OPENINGS)))
            wire = Wire(dsn)
            client, _ = mutator.chance.choice(CONVERSATIONS)
            with suppress(OSError):
                for chunk in mutator.cut(b"".join(mutator.mutated(client))):
                    wire.send(chunk)
                wire.socket.settimeout(0.05)
                while wire.socket.recv(1 << 16):
                    pass
            wire.close()
            assert other.execute("select 1").fetchone() == (1,)


def test_mutated_messages_through_a_relay(attacked: tuple[RunningRelay, str]) -> None:
    _attack(*attacked, seed=1, times=15)


@pytest.mark.long
def test_many_mutated_messages_through_a_relay(attacked: tuple[RunningRelay, str]) -> None:
    _attack(*attacked, seed=2, times=2000)
