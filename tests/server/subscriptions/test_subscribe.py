"""SUBSCRIBE in hand-made messages, against feeds that the test fills."""

from __future__ import annotations

import psycopg
import pytest

from catalog.session import SqlError
from engine.subscribe import EnvelopeKind
from server.protocol import messages as m
from tests.server.subscriptions.subscribing import Subscribed, field, names, rows, texts
from tests.server.wire import statement


def test_bare_subscribe_streams_rows_until_the_feed_ends(subscribed: Subscribed) -> None:
    subscribed.query("SUBSCRIBE t")
    kind, description = subscribed.wire.receive()
    assert (kind, names(description)) == ("T", ["mz_timestamp", "mz_diff", "a", "b"])
    subscribed.hub.push((100, 1, 1, "one"), (100, 1, 2, None))
    assert [subscribed.wire.receive()[0] for _ in "DD"] == ["D", "D"]
    subscribed.hub.push((101, -1, 1, "one"))
    assert texts(subscribed.wire.receive()[1]) == ["101", "-1", "1", "one"]
    subscribed.hub.end()
    assert subscribed.wire.until() == [("C", b"SELECT 3\0"), ("Z", b"I")]
    assert subscribed.hub.feed().closed.wait(60)
    assert subscribed.hub.asked[0].query == "TABLE t"


def test_progress_envelopes_and_hidden_columns_are_described(subscribed: Subscribed) -> None:
    subscribed.hub.refusal = SqlError("0A000", "not now")
    with psycopg.connect(subscribed.direct, autocommit=True) as direct:
        direct.execute("create table if not exists st(__pgt_row_id bigint, k int, v text, w numeric)")
    for sql, expected in (
        ("SUBSCRIBE TO st WITH (PROGRESS)", ["mz_timestamp", "mz_progressed", "mz_diff", "k", "v", "w"]),
        ("SUBSCRIBE st ENVELOPE UPSERT (KEY (w, k))", ["mz_timestamp", "mz_state", "w", "k", "v"]),
        (
            "SUBSCRIBE (SELECT * FROM st) ENVELOPE DEBEZIUM (KEY (k)) WITH (PROGRESS = true)",
            ["mz_timestamp", "mz_progressed", "mz_state", "k", "before_v", "before_w", "after_v", "after_w"],
        ),
    ):
        subscribed.wire.send(m.parse(b"s", sql.encode()), m.describe_statement(b"s"), m.close_statement(b"s"))
        subscribed.wire.send(m.SYNC_MESSAGE)
        answer = subscribed.wire.until()
        assert "".join(kind for kind, _ in answer) == "1tT3Z"
        assert names(answer[2][1]) == expected


def test_what_is_asked_for_reaches_the_hub(subscribed: Subscribed) -> None:
    subscribed.hub.refusal = SqlError("0A000", "not now", hint="Later.")
    subscribed.query(
        'subscribe to (select a, /* ; ) */ b from t) envelope upsert (key ("a")) within timestamp order by a desc nulls'
        " last, mz_state with (snapshot = false, progress) as of at least now() - interval '1 s' up to 1 + 2"
    )
    (kind, error), _ = subscribed.wire.until()
    assert (kind, field(error, "C"), field(error, "M"), field(error, "H")) == ("E", "0A000", "not now", "Later.")
    (asked,) = subscribed.hub.asked
    assert asked.query == "select a, /* ; ) */ b from t"
    assert (asked.envelope.kind, asked.envelope.keys) == (EnvelopeKind.UPSERT, ("a",))
    assert asked.order_by == "a desc nulls last, mz_state"
    assert (asked.snapshot, asked.progress, asked.up_to) == (False, True, "1 + 2")
    assert asked.as_of is not None
    assert (asked.as_of.expression, asked.as_of.at_least) == ("now() - interval '1 s'", True)
    assert asked.settings["search_path"] == '"$user", public'
    assert asked.settings["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message", "at"),
    [
        ("SUBSCRIBE missing", "42P01", 'relation "missing" does not exist', "missing"),
        ("SUBSCRIBE (SELECT nix FROM t)", "42703", 'column "nix" does not exist', "nix"),
        ("SUBSCRIBE t WITHIN TIMESTAMP ORDER BY nix", "42703", 'column "nix" does not exist', "nix"),
        ("SUBSCRIBE t ENVELOPE UPSERT (KEY (a, nix))", "42703", 'column "nix" does not exist', "nix"),
        ("SUBSCRIBE t ENVELOPE UPSERT (KEY (a, a))", "42701", 'column "a" specified more than once', "a))"),
        ("SUBSCRIBE t AS OF nix", "42703", 'column "nix" does not exist', "nix"),
        ("SUBSCRIBE t FOR EVER", "42601", 'syntax error at or near "FOR"', "FOR"),
        ("SUBSCRIBE t WITH (colour)", "42601", 'unrecognized SUBSCRIBE option "colour"', "colour"),
        ("SUBSCRIBE t WITH (PROGRESS = maybe)", "42601", "progress requires a Boolean value", "maybe"),
        ("SUBSCRIBE TO", "42601", "syntax error at end of input", ""),
        ("SUBSCRIBE t UP TO 3 UP TO 4", "42601", 'syntax error at or near "UP"', "UP TO 4"),
        ("COPY (SUBSCRIBE t) TO '/tmp/x'", "0A000", "COPY of a subscription can only go to STDOUT", "TO "),
        ("COPY (SUBSCRIBE t) TO STDOUT (FORMAT nix)", "22023", 'COPY format "nix" not recognized', "FORMAT"),
        ("DECLARE c CURSOR FOR SUBSCRIBE t", "25P01", "DECLARE CURSOR can only be used in transaction blocks", None),
    ],
)
def test_errors_have_their_place(subscribed: Subscribed, sql: str, sqlstate: str, message: str, at: str | None) -> None:
    place = None if at is None else str((sql.index(at) if at else len(sql)) + 1)
    subscribed.query(sql)
    *_, (kind, error), ready = subscribed.wire.until()
    assert (kind, field(error, "C"), field(error, "M"), field(error, "P")) == ("E", sqlstate, message, place)
    assert ready == ("Z", b"I")
    subscribed.query("select 'ä'; " + sql)
    *_, (kind, error), ready = subscribed.wire.until()
    if sqlstate != "25P01":  # several statements are a transaction
        assert (field(error, "C"), field(error, "M")) == (sqlstate, message)
        assert field(error, "P") == (None if place is None else str(int(place) + len("select 'ä'; ")))
    assert ready == ("Z", b"I")


def test_error_aborts_the_transaction_and_undoes_a_batch(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN")
    subscribed.wire.until()
    subscribed.query("SUBSCRIBE t WITH (nix)")
    assert subscribed.wire.until()[-1] == ("Z", b"E")
    subscribed.query("SUBSCRIBE t")
    (_, error), ready = subscribed.wire.until()
    assert (field(error, "C"), ready) == ("25P02", ("Z", b"E"))
    subscribed.query("ROLLBACK; SUBSCRIBE t; SELECT 1")
    subscribed.hub.push((1, 1, 1, "a"))
    subscribed.hub.end(SqlError("53400", "too slow"))
    answer = subscribed.wire.until()
    assert "".join(kind for kind, _ in answer) == "CTDEZ"
    assert (field(answer[3][1], "C"), answer[-1]) == ("53400", ("Z", b"I"))
    insert = statement("insert into t values (1, 'x')")
    subscribed.wire.send(insert, m.parse(b"", b"SUBSCRIBE t WITH (nix)"), statement("select 1"), m.SYNC_MESSAGE)
    assert subscribed.wire.kinds() == "12CEZ"
    subscribed.wire.send(insert, statement("SUBSCRIBE t"), m.SYNC_MESSAGE)
    subscribed.hub.end(SqlError("42501", "permission denied for table t"), number=1)
    assert subscribed.wire.kinds() == "12C12EZ"
    subscribed.query("select count(*) from t")
    assert rows(subscribed.wire.until()) == [["0"]]


def test_batch_before_a_subscription_is_committed_at_its_sync(subscribed: Subscribed) -> None:
    subscribed.wire.send(statement("insert into t values (1, 'x')"), statement("SUBSCRIBE t"), m.SYNC_MESSAGE)
    subscribed.hub.push((1, 1, 1, "a"))
    subscribed.hub.end()
    assert subscribed.wire.kinds() == "12C12DCZ"
    subscribed.query("select count(*) from t")
    assert rows(subscribed.wire.until()) == [["1"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", b"1\t1\t1\tone\n1\t1\t2\t\\N\n2\t-1\t1\tone\n"),
        (" WITH (FORMAT csv, HEADER)", b"mz_timestamp,mz_diff,a,b\n1,1,1,one\n1,1,2,\n2,-1,1,one\n"),
        (" CSV NULL AS 'none'", b"1,1,1,one\n1,1,2,none\n2,-1,1,one\n"),
    ],
)
@pytest.mark.parametrize("extended", [False, True])
def test_copy_out(subscribed: Subscribed, options: str, expected: bytes, extended: bool) -> None:
    sql = f"COPY (SUBSCRIBE (SELECT * FROM t)) TO STDOUT{options};"
    if extended:
        subscribed.wire.send(m.parse(b"", sql.encode()), m.bind(b"", b""), m.describe_portal(b""), m.execute(b""))
        subscribed.wire.send(m.SYNC_MESSAGE)
    else:
        subscribed.query(sql)
    subscribed.hub.push((1, 1, 1, "one"), (1, 1, 2, None))
    subscribed.hub.push((2, -1, 1, "one"))
    subscribed.hub.end()
    answer = subscribed.wire.until()
    assert b"".join(body for kind, body in answer if kind == "d") == expected
    shape = "".join(kind for kind, _ in answer).replace("d", "")
    assert shape == ("12nHcCZ" if extended else "HcCZ")
    assert answer[-2:] == [("C", b"COPY 3\0"), ("Z", b"I")]
    assert dict(answer)["H"] == b"\0\0\4" + b"\0\0" * 4


def test_copy_out_binary(subscribed: Subscribed) -> None:
    subscribed.query("COPY (SUBSCRIBE t) TO STDOUT BINARY")
    assert subscribed.wire.receive() == ("H", b"\1\0\4" + b"\0\1" * 4)
    subscribed.hub.push((1, 1, 7, "x"))
    kind, data = subscribed.wire.receive()
    assert (kind, data[:11], data[-13:]) == ("d", b"PGCOPY\n\xff\r\n\0", b"\0\0\0\4\0\0\0\7\0\0\0\1x")
    subscribed.hub.end()
    assert subscribed.wire.kinds() == "cCZ"


def test_cursor_of_the_simple_protocol(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE (SELECT * FROM t)")
    assert subscribed.wire.until() == [("C", b"BEGIN\0"), ("C", b"DECLARE CURSOR\0"), ("Z", b"T")]
    subscribed.hub.push((1, 1, 1, "a"), (1, 1, 2, "b"), (1, 1, 3, "c"))
    subscribed.query("FETCH 2 c")
    answer = subscribed.wire.until()
    assert "".join(kind for kind, _ in answer) == "TDDCZ"
    assert (rows(answer)[1][2], answer[-2:]) == ("2", [("C", b"FETCH 2\0"), ("Z", b"T")])
    subscribed.query("FETCH ALL FROM c WITH (timeout = '0s')")
    assert rows(subscribed.wire.until()) == [["1", "1", "3", "c"]]
    subscribed.query("FETCH ALL c WITH (timeout='10ms')")
    assert [kind for kind, _ in subscribed.wire.until()] == ["T", "C", "Z"]
    subscribed.query("FETCH FORWARD 100 IN c")
    assert subscribed.wire.receive()[0] == "T"
    subscribed.hub.push((2, -1, 1, "a"))
    assert subscribed.wire.until()[-2:] == [("C", b"FETCH 1\0"), ("Z", b"T")]
    subscribed.hub.push((3, 1, 4, "d"))
    subscribed.query("MOVE c")
    assert subscribed.wire.until() == [("C", b"MOVE 1\0"), ("Z", b"T")]
    subscribed.hub.end()
    for _ in range(2):
        subscribed.query("FETCH c")
        assert subscribed.wire.until()[-2:] == [("C", b"FETCH 0\0"), ("Z", b"T")]
    subscribed.query("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 't'::regclass")
    assert rows(subscribed.wire.until()) == [["0"]]
    subscribed.query("SELECT backend_xid IS NULL FROM pg_stat_activity WHERE pid = pg_backend_pid()")
    assert rows(subscribed.wire.until()) == [["t"]]
    subscribed.query("COMMIT")
    assert subscribed.wire.until() == [("C", b"COMMIT\0"), ("Z", b"I")]
    assert subscribed.hub.feed().closed.wait(60)
    subscribed.query("FETCH c")
    assert field(subscribed.wire.until()[0][1], "C") == "34000"


def test_idle_cursor_holds_no_snapshot(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t")
    subscribed.wire.until()
    with psycopg.connect(subscribed.direct) as direct:
        found = direct.execute(
            "select backend_xmin::text, backend_xid::text, state from pg_stat_activity where pid = %s",
            (subscribed.wire.login.info.backend_pid,),
        ).fetchone()
    assert found == (None, None, "idle in transaction")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("CLOSE c", b"T"),
        ("CLOSE ALL", b"T"),
        ("ROLLBACK TO s", b"T"),
        ("ROLLBACK", b"I"),
        ("COMMIT AND CHAIN", b"T"),
        ("COMMIT; BEGIN", b"T"),
    ],
)
def test_what_ends_a_cursor(subscribed: Subscribed, end: str, status: bytes) -> None:
    subscribed.query("BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR SUBSCRIBE t")
    subscribed.wire.until()
    subscribed.query(end)
    assert subscribed.wire.until()[-1] == ("Z", status)
    subscribed.query("FETCH c")
    assert field(subscribed.wire.until()[0][1], "C") == "34000"
    assert subscribed.hub.feed().closed.wait(60)
    subscribed.query("ROLLBACK; BEGIN; DECLARE c CURSOR FOR SELECT 5; FETCH c")
    assert rows(subscribed.wire.until()) == [["5"]]


def test_cursors_beside_others_of_the_transaction(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE plain CURSOR FOR SELECT 7; DECLARE c CURSOR FOR SUBSCRIBE t")
    subscribed.wire.until()
    subscribed.query("FETCH plain")
    assert rows(subscribed.wire.until()) == [["7"]]
    subscribed.query('DECLARE "C" CURSOR FOR SUBSCRIBE (SELECT b FROM t)')
    assert subscribed.wire.kinds() == "CZ"
    subscribed.hub.push((1, 1, "b"), number=1)
    subscribed.query('FETCH "C"; FETCH 0 c; INSERT INTO t VALUES (1)')
    assert subscribed.wire.kinds() == "TDCTCCZ"
    for name in ("c", "plain"):
        subscribed.query(f"SAVEPOINT s; DECLARE {name} CURSOR FOR SUBSCRIBE t")
        answer = subscribed.wire.until()
        assert (field(answer[-2][1], "C"), answer[-1]) == ("42P03", ("Z", b"E"))
        subscribed.query("ROLLBACK TO s")
        subscribed.wire.until()
    for sql, sqlstate in (("FETCH PRIOR c", "55000"), ("FETCH c WITH (timeout = '-1s')", "22023")):
        subscribed.query("SAVEPOINT s; " + sql)
        assert field(subscribed.wire.until()[-2][1], "C") == sqlstate
        subscribed.query("ROLLBACK TO s")
        subscribed.wire.until()
    subscribed.query("FETCH 0 c")
    assert subscribed.wire.kinds() == "TCZ"
    for clause in ("SCROLL CURSOR", "CURSOR WITH HOLD"):
        subscribed.query(f"SAVEPOINT s; DECLARE d {clause} FOR SUBSCRIBE t")
        assert field(subscribed.wire.until()[-2][1], "C") == "0A000"
        subscribed.query("ROLLBACK TO s")
        subscribed.wire.until()


def test_failed_fetch_does_not_lose_rows_silently(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; SAVEPOINT s")
    subscribed.wire.until()
    subscribed.hub.push((1, 1, 1, "a"))
    subscribed.query("FETCH ALL c WITH (timeout = '1h')")
    assert [subscribed.wire.receive()[0] for _ in "TD"] == ["T", "D"]
    subscribed.wire.login.cancel_safe()
    (_, error), ready = subscribed.wire.until()
    assert (field(error, "C"), ready) == ("57014", ("Z", b"E"))
    subscribed.query("ROLLBACK TO s")
    subscribed.wire.until()
    subscribed.query("FETCH c")
    (_, error), _ = subscribed.wire.until()
    assert (field(error, "C"), field(error, "M")) == ("55000", 'portal "c" cannot be run')


@pytest.mark.parametrize("before", ["", "select 1;", "begin; ", "/* select */ ", "-- select\n", "SELECT 1 AS a\n;"])
def test_is_noticed_wherever_it_begins(subscribed: Subscribed, before: str) -> None:
    subscribed.hub.refusal = SqlError("0A000", "noticed")
    for sql in ("subscribe t", "Subscribe\tTO t", "copy(subscribe t) to stdout", "SUBSCRIBE(SELECT * FROM t)"):
        subscribed.query(before + sql)
        answer = subscribed.wire.until()
        assert [field(body, "M") for kind, body in answer if kind == "E"] == ["noticed"]
        subscribed.query("rollback")
        subscribed.wire.until()
        if not before.startswith(("s", "b", "S")):
            subscribed.wire.send(statement(before + sql), m.SYNC_MESSAGE)
            assert [field(body, "M") for kind, body in subscribed.wire.until() if kind == "E"] == ["noticed"]
