"""The protocol by hand, through the relay: what drivers rarely do, and what nobody should."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from server.protocol import messages as m
from server.relay import Limits
from tests.server.conftest import Engaged, RunningRelay, through
from tests.server.wire import Wire, dial, startup, statement, until_closed


@pytest.fixture
def wire(relayed: str) -> Iterator[Wire]:
    client = Wire(relayed)
    yield client
    client.close()


@pytest.fixture
def requesting(engaged: Engaged) -> Iterator[Wire]:
    client = Wire(engaged.dsn)
    yield client
    client.close()


CREATE = "select pgtrickle.create_stream_table('t', 'select 1 as a')"


# -- the protocol is kept ------------------------------------------------------------------------------------------


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
    wire.close()


def test_protocol_3_2_has_long_cancel_keys_that_work(relayed: str) -> None:
    with psycopg.connect(
        relayed, autocommit=True, max_protocol_version="3.2", min_protocol_version="3.2"
    ) as connection:
        connection.execute("set statement_timeout = '30s'")
        import threading

        threading.Timer(0.2, connection.cancel_safe).start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            connection.execute("select pg_sleep(20)")


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


# -- requests ------------------------------------------------------------------------------------------------------


def test_request_in_a_batch_with_flushes_instead_of_a_sync(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement(CREATE), m.FLUSH_MESSAGE)
    assert requesting.kinds("C") == "12DNC"
    assert engaged.tables() == set()
    requesting.send(statement("select a from t"), m.FLUSH_MESSAGE)
    assert requesting.kinds("C") == "12DC"
    requesting.send(m.SYNC_MESSAGE)
    assert requesting.until() == [("Z", b"I")]
    assert engaged.tables() == {"t"}
    assert engaged.engine.autocommit == [False]


def test_unnamed_statement_of_an_earlier_batch_is_not_destroyed(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.parse(b"", b"select 5"), m.SYNC_MESSAGE)
    assert requesting.kinds() == "1Z"
    named = m.parse(b"create", CREATE.encode()) + m.bind(b"p", b"create") + m.execute(b"p")
    requesting.send(named, m.bind(b"", b""), m.execute(b""), m.SYNC_MESSAGE)
    assert requesting.kinds() == "12DNC2DCZ"
    assert engaged.tables() == {"t"}


def test_request_without_name_before_the_sync_joins_the_implicit_transaction(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(m.query(b"create table x(i int)"))
    requesting.until()
    requesting.send(
        statement("insert into x values (1)"), statement("select make('t', 'select 1 as a')"), m.FLUSH_MESSAGE
    )
    assert requesting.kinds("D") == "12C12D"
    requesting.send(m.FLUSH_MESSAGE)
    requesting.send(statement("select a from t"), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "C12DCZ"
    assert engaged.tables() == {"t", "x"}


def test_failed_request_skips_the_rest_up_to_sync(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement(CREATE.replace("'t'", "'refused'")), statement("select 1"), m.FLUSH_MESSAGE)
    assert requesting.kinds("E") == "12DE"
    requesting.send(statement("select 1"), m.query(b"select 1"), m.SYNC_MESSAGE)
    assert requesting.until() == [("Z", b"I")]
    assert engaged.tables() == set()


def test_row_limited_execute_of_a_request(requesting: Wire, engaged: Engaged) -> None:
    sql = "select pgtrickle.create_stream_table(n, 'select 1') from (values ('a'), ('b'), ('c')) v(n)"
    requesting.send(statement(sql, portal=b"p", rows=2), m.message(m.EXECUTE, b"p\0\0\0\0\2"), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "12DDsDCZ"
    assert engaged.tables() == {"a", "b", "c"}
    sql = sql.replace("('a')", "('d')").replace("('b')", "('e')")
    requesting.send(statement(sql, portal=b"p", rows=2), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "12DDsZ"
    assert engaged.tables() == {"a", "b", "c", "d", "e"}


def test_pipelined_batches_behind_a_request(requesting: Wire, engaged: Engaged) -> None:
    batches = [
        statement(CREATE),
        m.SYNC_MESSAGE,
        statement("select a from t"),
        m.SYNC_MESSAGE,
        m.query(b"select a from t"),
    ]
    requesting.send(*batches, m.query(b"select pgtrickle.drop_stream_table('t')"), m.query(b"select 1"))
    got = [requesting.kinds() for _ in range(5)]
    assert got == ["12DNCZ", "12DCZ", "TDCZ", "TDCZ", "TDCZ"]
    assert engaged.tables() == set()


def test_pipelined_batches_behind_a_request_without_name_are_refused_not_reordered(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(statement("select make('t', 'select 1')"), m.SYNC_MESSAGE, statement("select 1"), m.SYNC_MESSAGE)
    first = requesting.until()
    assert [kind for kind, _ in first] == ["1", "2", "D", "E", "Z"]
    assert b"C0A000" in first[3][1]
    assert requesting.kinds() == "12DCZ"
    assert engaged.tables() == set()


def test_transaction_pipelined_to_its_commit_with_a_request_without_name_is_refused(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(
        m.query(b"begin"), m.query(b"select make('t', 'select 1')"), m.query(b"commit"), m.query(b"select 1")
    )
    assert requesting.kinds() == "CZ"
    assert requesting.kinds() == "TDCZ"
    refused = requesting.until()
    assert [kind for kind, _ in refused] == ["E", "Z"] and b"C0A000" in refused[0][1]
    assert requesting.kinds() == "TDCZ"
    assert engaged.tables() == set()


def test_copy_with_requests(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.query(f"copy ({CREATE}) to stdout".encode()))
    assert requesting.kinds() == "HdcNCZ"
    requesting.send(
        m.query(b"create table x(i int); copy x from stdin; select pgtrickle.drop_stream_table('t'), sum(i) from x")
    )
    assert requesting.kinds("G") == "CG"
    requesting.send(m.message(m.COPY_DATA, b"1\n"), m.message(m.COPY_DATA, b"2\n"), m.COPY_DONE_MESSAGE)
    answers = requesting.until()
    assert [kind for kind, _ in answers] == ["C", "T", "D", "C", "Z"]
    assert answers[2][1].endswith(b"3")
    assert engaged.tables() == {"x"}


@pytest.mark.parametrize("extended", [False, True])
def test_copy_from_the_client_whose_trigger_makes_requests(requesting: Wire, engaged: Engaged, extended: bool) -> None:
    trigger = (
        "create table x(n text); create function f() returns trigger language plpgsql as"
        " $$ begin perform make(new.n, 'select 1'); return new; end $$;"
        " create trigger f before insert on x for each row execute function f()"
    )
    requesting.send(m.query(trigger.encode()))
    requesting.until()
    copy = statement("copy x from stdin") + m.FLUSH_MESSAGE if extended else m.query(b"copy x from stdin")
    end = m.COPY_DONE_MESSAGE + (m.SYNC_MESSAGE if extended else b"")
    for transaction in (False, True):
        if transaction:
            requesting.send(m.query(b"begin"))
            requesting.until()
        requesting.send(copy)
        requesting.until("G")
        for name in (b"a", b"b", b"c"):
            requesting.send(m.message(m.COPY_DATA, name + b"\n"))
        requesting.send(end)
        answer = requesting.until()
        if transaction:
            assert "".join(kind for kind, _ in answer).replace("N", "") == "CZ"
            requesting.send(m.query(b"commit"))
            requesting.until()
            assert engaged.tables() == {"x", "a", "b", "c"}
        else:
            assert "".join(kind for kind, _ in answer) == "EZ" and b"C0A000" in answer[0][1]
            assert engaged.tables() == {"x"}


def test_request_made_by_the_commit_itself_is_refused(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(
        m.query(
            b"create table x(i int); create function f() returns trigger language plpgsql as"
            b" $$ begin perform make('t', 'select 1'); return null; end $$;"
            b" create constraint trigger f after insert on x deferrable initially deferred"
            b" for each row execute function f()"
        )
    )
    requesting.until()
    requesting.send(m.query(b"insert into x values (1)"))
    answer = requesting.until()
    assert [kind for kind, _ in answer] == ["E", "Z"] and b"C0A000" in answer[0][1]
    requesting.send(m.query(b"select 1"))
    assert requesting.kinds() == "TDCZ"
    assert engaged.tables() == {"x"}


def test_request_behind_the_end_of_a_transaction_in_one_batch(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement("begin"), statement("create table x()"), statement("commit"), statement(CREATE))
    requesting.send(m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "12C12C12C12DCZ"
    assert engaged.tables() == {"x", "t"}
    drop = statement("select pgtrickle.drop_stream_table('t')")
    requesting.send(statement("begin"), statement("savepoint s"), statement("rollback to s"), drop, m.SYNC_MESSAGE)
    answer = requesting.until()
    assert "".join(kind for kind, _ in answer) == "12C12C12C12EZ" and b"Send Sync" in answer[-2][1]
    assert answer[-1] == ("Z", b"T")
    requesting.send(m.query(b"rollback"))
    requesting.until()
    assert engaged.tables() == {"x", "t"}


def test_terminate_in_the_middle_of_a_batch_leaves_nothing(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement(CREATE), m.FLUSH_MESSAGE)
    requesting.until("C")
    requesting.send(m.TERMINATE_MESSAGE)
    assert until_closed(requesting.socket) == b""
    assert engaged.tables() == set()


def test_broken_message_during_a_request_ends_the_session_only(engaged: Engaged) -> None:
    wire = Wire(engaged.dsn)
    wire.send(statement(CREATE), b"\xff\0\0\0\4")
    assert b"C08P01" in until_closed(wire.socket)
    with psycopg.connect(engaged.dsn) as other:
        assert other.execute("select 1").fetchone() == (1,)
    assert engaged.tables() == set()


# -- the protocol is broken ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"Q\0\0\0\3",
        b"Q\xff\xff\xff\xff",
        b"Q\x7f\xff\xff\xff",
        b"S\0\1\0\0",
        b"\0\0\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"p\0\0\0\4",
        b"Z\0\0\0\5I",
    ],
)
def test_malformed_messages_end_the_connection_with_a_protocol_error(relayed: str, garbage: bytes) -> None:
    wire = Wire(relayed)
    wire.send(garbage)
    answer = until_closed(wire.socket)
    assert answer[:1] == b"E" and b"VFATAL" in answer and b"C08P01" in answer
    wire.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\7",
        b"\0\0\x27\x11\0\3\0\0",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">II", 8, 2 << 16),
        struct.pack(">II", 12, 3 << 16) + b"user",
        struct.pack(">II", 16, 3 << 16) + b"user\0xxx",
        struct.pack(">II", 12, 80877102) + b"\0\0\0\1",
        struct.pack(">II", 500, 80877102) + b"k" * 492,
    ],
)
def test_malformed_startup_packets(relay: RunningRelay, garbage: bytes) -> None:
    with dial(relay.port) as connection:
        connection.sendall(garbage)
        answer = until_closed(connection)
        assert answer[:1] == b"E" and b"C08P01" in answer
    _wait_for(lambda: not relay.relay.sessions)


def test_malformed_password_message(relay: RunningRelay) -> None:
    with dial(relay.port) as connection:
        connection.sendall(startup("user", "postgres") + b"p\0\1\0\0")
        answer = until_closed(connection)
        assert b"C08P01" in answer


def test_random_bytes_never_harm_another_session(relay: RunningRelay, dsn: str) -> None:
    chance = random.Random(7)
    with psycopg.connect(through(relay, dsn), autocommit=True) as good:
        for _ in range(60):
            with dial(relay.port) as connection:
                if chance.random() < 0.5:
                    connection.sendall(startup("user", "postgres"))
                connection.sendall(chance.randbytes(chance.randrange(1, 200)))
        wires = [Wire(through(relay, dsn)) for _ in range(15)]
        for wire in wires:
            wire.send(chance.randbytes(chance.randrange(5, 200)))
            wire.close()
        assert good.execute("select 1").fetchone() == (1,)
    _wait_for(lambda: not relay.relay.sessions)


# -- limits --------------------------------------------------------------------------------------------------------


def test_startup_time_limit(start_relay: Callable[..., RunningRelay]) -> None:
    relay = start_relay(limits=Limits(startup_seconds=0.3))
    begin = time.monotonic()
    with dial(relay.port) as silent, dial(relay.port) as half:
        half.sendall(startup("user", "postgres"))
        assert until_closed(silent) == b""
        assert b"canceling authentication due to timeout" in until_closed(half)
    assert 0.2 < time.monotonic() - begin < 5


def test_time_limit_does_not_end_a_session_that_has_started(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay(limits=Limits(startup_seconds=0.5))
    with psycopg.connect(through(relay, dsn), autocommit=True) as connection:
        assert connection.execute("select 1 from pg_sleep(0.8)").fetchone() == (1,)


def test_connection_limit(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay(limits=Limits(max_connections=2))
    dsn = through(relay, dsn)
    with psycopg.connect(dsn) as first, psycopg.connect(dsn):
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(dsn)
        first.cancel_safe()  # still gets through
        first.close()
        _wait_for(lambda: len(relay.relay.sessions) == 1)
        with psycopg.connect(dsn) as third:
            assert third.execute("select 1").fetchone() == (1,)


def test_backend_that_cannot_be_reached(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    from server.hooks import Backend

    relay = start_relay(backend=Backend(host="127.0.0.1", port=1))
    with pytest.raises(psycopg.OperationalError, match=r"could not connect to PostgreSQL at 127\.0\.0\.1:1"):
        psycopg.connect(through(relay, dsn))


def test_stop_tells_the_clients(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay()
    wire = Wire(through(relay, dsn))
    relay.run(relay.relay.stop())
    assert b"C57P01" in until_closed(wire.socket)


def _wait_for(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_options_of_the_startup_packet_do_not_reach_injected_work(engaged: Engaged) -> None:
    options = "-c search_path=pg_temp,public,pg_catalog -c datestyle=German -c quote_all_identifiers=on"
    with psycopg.connect(conninfo.make_conninfo(engaged.dsn, options=options), autocommit=True) as client:
        client.execute("create function public.set_config(text, text, bool) returns text language sql as 'select 1/0'")
        client.execute(CREATE)
        assert client.execute("show search_path").fetchone() == ("pg_temp,public,pg_catalog",)
    assert engaged.tables() == {"t"}
