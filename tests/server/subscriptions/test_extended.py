"""SUBSCRIBE in the extended protocol, message by message, against feeds that the test fills."""

from __future__ import annotations

import pytest

from catalog.session import SqlError
from server.protocol import messages as m
from tests.server.subscriptions.subscribing import Subscribed, columns, field, names, rows, values
from tests.server.wire import statement


def execute(portal: str, limit: int) -> bytes:
    return m.message(m.EXECUTE, portal.encode() + b"\0" + limit.to_bytes(4, "big"))


def test_description_comes_before_any_data(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(m.parse(b"", b"SUBSCRIBE (SELECT b, a FROM t)"), m.describe_statement(b""), m.FLUSH_MESSAGE)
    answer = wire.until("T")
    assert "".join(kind for kind, _ in answer) == "1tT"
    expected = [("mz_timestamp", 1700, 0), ("mz_diff", 20, 0), ("b", 25, 0), ("a", 23, 0)]
    assert columns(answer[-1][1]) == expected
    wire.send(m.bind(b"", b"", (), (0, 1, 0, 1)), m.describe_portal(b""), m.execute(b""), m.FLUSH_MESSAGE)
    answer = wire.until("T")
    assert "".join(kind for kind, _ in answer) == "2T"
    assert [code for _, _, code in columns(answer[-1][1])] == [0, 1, 0, 1]
    subscribed.hub.push((5, -1, "x", 7))
    kind, row = wire.receive()
    assert (kind, values(row)) == ("D", [b"5", b"\xff" * 8, b"x", b"\0\0\0\7"])
    subscribed.hub.end()
    wire.send(m.SYNC_MESSAGE)
    assert wire.until() == [("C", b"SELECT 1\0"), ("Z", b"I")]


def test_row_limit_suspends_the_portal(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(statement("BEGIN"), statement("SUBSCRIBE t", b"s", b"p", 2), m.SYNC_MESSAGE)
    subscribed.hub.push((1, 1, 1, "a"), (1, 1, 2, "b"), (1, 1, 3, "c"))
    assert wire.until()[-3:] == [*wire_rows("1 1 2 b"), ("s", b""), ("Z", b"T")]
    wire.send(statement("INSERT INTO t VALUES (1)"), execute("p", 2), m.SYNC_MESSAGE)
    subscribed.hub.push((2, -1, 1, "a"))
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "12CDDsZ"
    assert rows(answer)[-1] == ["2", "-1", "1", "a"]
    subscribed.hub.push((3, 1, 4, "d"), (3, 1, 5, "e"))
    subscribed.hub.end()
    wire.send(execute("p", 2), execute("p", 2), execute("p", 0), m.SYNC_MESSAGE)
    answer = wire.until()  # exactly two were left: the portal is suspended, and only then completed
    assert "".join(kind for kind, _ in answer) == "DDsCCZ"
    assert answer[3] == ("C", b"SELECT 0\0")
    wire.send(m.close_portal(b"p"), execute("p", 2), m.SYNC_MESSAGE)
    answer = wire.until()
    assert (answer[0][0], field(answer[1][1], "C"), answer[-1]) == ("3", "34000", ("Z", b"E"))
    assert subscribed.hub.feed().closed.wait(60)


def wire_rows(*lines: str) -> list[tuple[str, bytes]]:
    made = []
    for line in lines:
        parts = [len(value).to_bytes(4, "big") + value.encode() for value in line.split()]
        made.append(("D", len(parts).to_bytes(2, "big") + b"".join(parts)))
    return made


def test_sync_ends_a_portal_outside_a_transaction(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(statement("SUBSCRIBE t", b"s", b"p", 1), m.FLUSH_MESSAGE)
    subscribed.hub.push((1, 1, 1, "a"), (1, 1, 2, "b"))
    assert wire.kinds("s") == "12Ds"
    wire.send(m.SYNC_MESSAGE, execute("p", 1), m.SYNC_MESSAGE)
    answer = wire.until() + wire.until()
    assert (answer[0], field(answer[1][1], "C"), answer[2]) == (("Z", b"I"), "34000", ("Z", b"I"))
    assert subscribed.hub.feed().closed.wait(60)
    wire.send(m.bind(b"", b"s"), m.execute(b""), m.SYNC_MESSAGE)  # the statement is still there
    subscribed.hub.push((9, 1, 1, "a"), number=1)
    subscribed.hub.end(number=1)
    assert wire.kinds() == "2DCZ"
    wire.send(m.close_statement(b"s"), m.bind(b"", b"s"), m.SYNC_MESSAGE)
    assert field(wire.until()[1][1], "C") == "26000"


def test_parameters_are_typed_and_read_by_postgresql(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    sql = b"SUBSCRIBE (SELECT a, b FROM t WHERE a > $1 AND b <> $2 AND now() > $3 AND $4) AS OF $5::int8 UP TO $5 + 1"
    wire.send(m.parse(b"s", sql), m.describe_statement(b"s"), m.SYNC_MESSAGE)
    answer = wire.until()
    found = answer[1][1]
    assert [int.from_bytes(found[n : n + 4], "big") for n in range(2, len(found), 4)] == [23, 25, 1184, 16, 20]
    values = (b"7", b"it's \\ $1 \xc3\xa4", b"2026-02-01 00:00+00", None, b"12")
    wire.send(m.query(b"SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo'; SET client_encoding = 'LATIN1'"))
    wire.until()
    subscribed.hub.refusal = SqlError("0A000", "t\u00e4t's not")
    latin = [v.decode().encode("latin-1") if v else v for v in values]
    wire.send(m.bind(b"", b"s", latin), m.execute(b""), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "2EZ"
    assert b"t\xe4t's not\0" in answer[1][1]
    (asked,) = subscribed.hub.asked
    assert asked.query == (
        "SELECT a, b FROM t WHERE a > (E'7'::integer) AND b <> (E'it''s \\\\ $1 ä'::text)"
        " AND now() > (E'2026-02-01 09:00:00+09'::timestamp with time zone) AND (NULL::boolean)"
    )
    assert asked.as_of is not None
    assert (asked.as_of.expression, asked.up_to) == ("(E'12'::bigint)::int8", "(E'12'::bigint) + 1")
    assert asked.settings["client_encoding"] == "LATIN1"
    assert asked.settings["DateStyle"] == "SQL, DMY"
    wire.send(m.query(b"SHOW datestyle"))
    assert rows(wire.until()) == [["SQL, DMY"]]


def test_binary_parameter(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    body = b"\0s\0" + b"\0\1\0\1" + b"\0\1" + b"\0\0\0\4\0\0\1\0" + b"\0\1\0\1"
    wire.send(m.parse(b"s", b"SUBSCRIBE (SELECT a FROM t WHERE a = $1)"), m.message(m.BIND, body), m.execute(b""))
    wire.send(m.SYNC_MESSAGE)
    subscribed.hub.push((1, 1, 256))
    subscribed.hub.end()
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "12DCZ"
    assert subscribed.hub.asked[0].query == "SELECT a FROM t WHERE a = (E'256'::integer)"
    assert values(answer[2][1])[1:] == [b"\0" * 7 + b"\1", b"\0\0\1\0"]


@pytest.mark.parametrize(
    ("messages", "sqlstate"),
    [
        (m.parse(b"", b"SUBSCRIBE (SELECT $1)") + m.bind(b"", b""), "08P01"),
        (m.parse(b"", b"SUBSCRIBE t") + m.bind(b"", b"", (), (0, 1)), "08P01"),
        (m.parse(b"", b"SUBSCRIBE (SELECT a FROM t WHERE a = $1)") + m.bind(b"", b"", [b"x"]), "22P02"),
        (m.parse(b"s", b"SUBSCRIBE t") * 2, "42P05"),
        (m.parse(b"s", b"SUBSCRIBE t") + m.bind(b"p", b"s") * 2, "42P03"),
        (statement("DECLARE c CURSOR FOR SUBSCRIBE t"), "25P01"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_errors_skip_to_sync(subscribed: Subscribed, messages: bytes, sqlstate: str, inside: bool) -> None:
    wire = subscribed.wire
    if inside:
        wire.send(m.query(b"BEGIN"))
        wire.until()
        if sqlstate == "25P01":
            return
    wire.send(messages, m.FLUSH_MESSAGE)
    assert field(wire.until("E")[-1][1], "C") == sqlstate
    wire.send(statement("SELECT 1"), m.SYNC_MESSAGE)
    assert wire.until() == [("Z", b"E" if inside else b"I")]
    wire.send(statement("ROLLBACK"), statement("SELECT 1"), m.SYNC_MESSAGE)
    assert wire.kinds().replace("N", "") == "12C12DCZ"


def test_cursor_of_the_extended_protocol(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    declare = b"DECLARE c CURSOR FOR SUBSCRIBE (SELECT a FROM t WHERE a = $1)"
    wire.send(statement("BEGIN"), m.parse(b"d", declare), m.describe_statement(b"d"), m.bind(b"", b"d", [b"7"]))
    wire.send(m.describe_portal(b""), m.execute(b""), m.describe_portal(b"c"), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "12C1tn2nCTZ"
    assert answer[4] == ("t", b"\0\1\0\0\0\x17")
    assert names(answer[9][1]) == ["mz_timestamp", "mz_diff", "a"]
    assert subscribed.hub.asked[0].query == "SELECT a FROM t WHERE a = (E'7'::integer)"
    subscribed.hub.push((1, 1, 7), (1, 2, 7), (1, 3, 7))
    fetch = b"FETCH FORWARD 2 FROM c WITH (timeout = '1 hour')"
    wire.send(m.parse(b"f", fetch), m.describe_statement(b"f"), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "1tTZ"
    for formats, first in (((), [b"1", b"1", b"7"]), ((0, 1, 1), [b"1", b"\0" * 7 + b"\3", b"\0\0\0\7"])):
        wire.send(m.bind(b"", b"f", (), formats), m.describe_portal(b""), m.execute(b""), m.SYNC_MESSAGE)
        if formats:
            subscribed.hub.push((2, None, None))
        answer = wire.until()
        assert "".join(kind for kind, _ in answer) == "2TDDCZ"
        assert [code for _, _, code in columns(answer[1][1])] == list(formats or (0, 0, 0))
        assert values(answer[2][1]) == first
        assert answer[-2] == ("C", b"FETCH 2\0")
    assert values(answer[3][1]) == [b"2", None, None]
    wire.send(statement("FETCH 0 c"), m.bind(b"", b"f", (), (0, 1)), statement("SELECT 1"), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "12CEZ"
    assert field(answer[3][1], "C") == "08P01"
    wire.send(statement("ROLLBACK"), m.SYNC_MESSAGE)
    assert wire.until()[-1] == ("Z", b"I")
    assert subscribed.hub.feed().closed.wait(60)


def test_binary_cursor_and_close(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN; DECLARE c BINARY CURSOR FOR SUBSCRIBE (SELECT a FROM t)"))
    wire.until()
    subscribed.hub.push((1, 1, 7))
    wire.send(m.query(b"FETCH c"))
    answer = wire.until()
    assert columns(answer[0][1])[2] == ("a", 23, 1)
    assert values(answer[1][1])[2] == b"\0\0\0\7"
    wire.send(statement("CLOSE c"), statement("FETCH c"), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "12C12EZ"
    assert (answer[2][1], field(answer[5][1], "C")) == (b"CLOSE CURSOR\0", "34000")
    assert subscribed.hub.feed().closed.wait(60)


def test_prepared_statement_that_is_parsed_again_means_the_new_one(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(m.parse(b"", b"SUBSCRIBE t"), m.SYNC_MESSAGE)
    assert wire.kinds() == "1Z"
    wire.send(m.parse(b"", b"SELECT 5"), m.SYNC_MESSAGE)
    assert wire.kinds() == "1Z"
    wire.send(m.bind(b"", b""), m.execute(b""), m.SYNC_MESSAGE)
    assert rows(wire.until()) == [["5"]]
    wire.send(statement("SELECT 'where a column is\n subscribe (it is)'"), m.SYNC_MESSAGE)
    assert wire.kinds() == "12DCZ"
    assert subscribed.hub.asked == []


def test_stale_plan_is_refused(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(m.parse(b"s", b"SUBSCRIBE t"), m.SYNC_MESSAGE)
    wire.until()
    wire.send(m.query(b"ALTER TABLE t ADD c int"))
    wire.until()
    wire.send(m.bind(b"", b"s"), m.execute(b""), m.SYNC_MESSAGE)
    answer = wire.until()
    assert (field(answer[-2][1], "C"), field(answer[-2][1], "M")) == (
        "0A000",
        "cached plan must not change result type",
    )
