"""The protocol by hand, through the relay: what drivers rarely do."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import psycopg
import pytest

from server.protocol import messages as m
from tests.server.conftest import RunningRelay, cancel_when_active
from tests.server.wire import Wire, dial, startup, statement


@pytest.fixture
def wire(relayed: str) -> Iterator[Wire]:
    client = Wire(relayed)
    yield client
    client.close()


def test_messages_cut_into_single_bytes_and_many_at_once(wire: Wire) -> None:
    batch = statement("select 42") + m.SYNC_MESSAGE + m.query(b"select 'x'") + statement("select") + m.SYNC_MESSAGE
    for byte in batch:
        wire.send(bytes((byte,)))
    assert [wire.kinds(), wire.kinds(), wire.kinds()] == ["12DCZ", "TDCZ", "12DCZ"]
    wire.send(batch * 50)
    assert [wire.kinds() for _ in range(150)] == ["12DCZ", "TDCZ", "12DCZ"] * 50


def test_simple_query_behind_a_failing_execute_and_its_sync(wire: Wire) -> None:
    wire.send(statement("select 1/(0*random())"), statement("select 1"), m.SYNC_MESSAGE, m.query(b"select 1"))
    assert [wire.kinds(), wire.kinds()] == ["12EZ", "TDCZ"]


def test_describe_and_flush(wire: Wire) -> None:
    wire.send(m.parse(b"s", b"select 1"), m.message(m.DESCRIBE, b"Ss\0"), m.FLUSH_MESSAGE)
    assert wire.kinds("T") == "1tT"
    wire.send(m.bind(b"", b"s"), m.describe_portal(b""), m.execute(b""), m.FLUSH_MESSAGE)
    assert wire.kinds("C") == "2TDC"
    wire.send(m.SYNC_MESSAGE)
    assert wire.kinds() == "Z"


def test_empty_query(wire: Wire) -> None:
    wire.send(m.query(b"-- ping"), statement(""), m.SYNC_MESSAGE)
    assert [wire.kinds(), wire.kinds()] == ["IZ", "12IZ"]


def test_function_call(wire: Wire) -> None:
    body = struct.pack(">Ihhh", 1598, 0, 0, 0)  # random()
    wire.send(m.message(m.FUNCTION_CALL, body), m.query(b"select 1"))
    assert [wire.kinds(), wire.kinds()] == ["VZ", "TDCZ"]


def test_copy_in_whose_first_sync_is_ignored(wire: Wire) -> None:
    wire.send(m.query(b"create temp table c(i int)"))
    wire.until()
    wire.send(statement("copy c from stdin"), m.SYNC_MESSAGE)
    assert wire.kinds("G") == "12G"
    wire.send(m.message(m.COPY_DATA, b"1\n2\n"), m.COPY_DONE_MESSAGE, m.SYNC_MESSAGE)
    assert wire.kinds() == "CZ"
    wire.send(m.COPY_DONE_MESSAGE, m.message(m.COPY_FAIL, b"stray\0"), m.message(m.COPY_DATA, b"stray"))
    wire.send(m.query(b"select sum(i) from c"))
    assert [body for kind, body in wire.until() if kind == "D"] == [b"\0\1\0\0\0\x013"]


def test_replication_connection_speaks_the_simple_protocol(relayed: str) -> None:
    wire = Wire(relayed, replication="database")
    wire.send(m.query(b"IDENTIFY_SYSTEM"))
    assert wire.kinds() == "TDCZ"
    wire.send(m.query(b"SHOW headwater.relay"))
    assert wire.kinds() == "EZ"
    wire.close()


def test_logical_replication_streams_both_ways(relayed: str) -> None:
    wire = Wire(relayed, replication="database")
    wire.send(m.query(b"CREATE_REPLICATION_SLOT relay_test TEMPORARY LOGICAL test_decoding"))
    assert wire.kinds() == "TDCZ"
    wire.send(m.query(b"START_REPLICATION SLOT relay_test LOGICAL 0/0"))
    assert wire.kinds("W") == "W"
    with psycopg.connect(relayed, autocommit=True) as other:
        other.execute("create table r(i int)")
        other.execute("insert into r values (5)")
    decoded = b""
    while b"i[integer]:5" not in decoded:
        kind, body = wire.receive()
        assert kind == "d"
        decoded += body
    status = b"r" + struct.pack(">QQQQB", 0, 0, 0, 0, 1)
    wire.send(m.message(m.COPY_DATA, status), m.COPY_DONE_MESSAGE)
    assert wire.kinds().endswith("Z")
    wire.send(m.query(b"IDENTIFY_SYSTEM"))
    assert wire.kinds() == "TDCZ"
    wire.send(m.query(b"DROP_REPLICATION_SLOT relay_test"))  # a database with a slot in use cannot be dropped
    assert wire.kinds() == "CZ"
    wire.close()


def test_protocol_3_2_has_long_cancel_keys_that_work(relayed: str, dsn: str) -> None:
    with psycopg.connect(
        relayed, autocommit=True, max_protocol_version="3.2", min_protocol_version="3.2"
    ) as connection:
        connection.execute("set statement_timeout = '300s'")
        cancel_when_active(connection, dsn)
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            connection.execute("select pg_sleep(200)")


def test_unknown_protocol_options_are_negotiated_once(relay: RunningRelay) -> None:
    with dial(relay.port) as connection:
        connection.sendall(startup("user", "postgres", "_pq_.magic", "1", version=(3 << 16) + 9999))
        answer = connection.recv(1000)
        assert answer.count(b"_pq_.magic") == 1
        assert answer[:1] == b"v" and answer[5:9] == (196610).to_bytes(4, "big")


def test_a_message_longer_than_what_is_kept_whole(wire: Wire) -> None:
    text = b"select length('" + b"x" * 3_000_000 + b"') -- drop_stream_table"
    wire.send(m.query(text))
    assert [body for kind, body in wire.until() if kind == "D"] == [b"\0\1\0\0\0\x073000000"]
    wire.send(m.parse(b"", b"select length($1)"), m.bind(b"", b"", [b"y" * 2_500_000]), m.execute(b""), m.SYNC_MESSAGE)
    assert [body for kind, body in wire.until() if kind == "D"] == [b"\0\1\0\0\0\x072500000"]


def test_both_sides_write_without_reading_and_nothing_locks(relayed: str) -> None:
    with psycopg.connect(relayed, autocommit=True) as connection, connection.pipeline():
        cursors = [connection.execute("select %s::text || 'x'", ("y" * 100_000,)) for _ in range(300)]
        assert all(len(cursor.fetchone()[0]) == 100_001 for cursor in cursors)  # type: ignore[index]
