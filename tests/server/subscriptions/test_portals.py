"""Portals, cursors and texts of SUBSCRIBE where clients do what few do: limits, names used twice, old settings."""

from __future__ import annotations

import pytest

from catalog.session import SqlError
from server.protocol import messages as m
from server.subscriptions import session_subscriptions
from tests.server.subscriptions.subscribing import Subscribed, columns, field, rows, values
from tests.server.wire import statement


def execute(portal: str, limit: int = 0) -> bytes:
    return m.message(m.EXECUTE, portal.encode() + b"\0" + limit.to_bytes(4, "big"))


@pytest.mark.parametrize("inside", [False, True])
def test_unnamed_portal_that_another_statement_takes_ends_its_subscription(
    subscribed: Subscribed, inside: bool
) -> None:
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN"))
    wire.until()
    wire.send(statement("SUBSCRIBE t", b"s", b"", 1), m.FLUSH_MESSAGE if inside else m.SYNC_MESSAGE)
    subscribed.hub.push((1, 1, 1, "a"), (1, 1, 2, "b"))
    wire.until("s")
    wire.send(statement("SELECT 5"), m.SYNC_MESSAGE)
    assert subscribed.hub.feed().closed.wait(60)
    assert ("D", b"\0\1\0\0\0\x015") in wire.until() + ([] if inside else wire.until())
    wire.send(m.query(b"COMMIT"))
    assert wire.until()[-1] == ("Z", b"I")


def test_unnamed_portal_goes_to_a_statement_that_is_looked_at_as_well(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN"), m.parse(b"o", b"SELECT 5, 'create_stream_table'"), m.SYNC_MESSAGE)
    wire.send(statement("SUBSCRIBE t", b"s", b"", 1), m.SYNC_MESSAGE)
    subscribed.hub.push((1, 1, 1, "a"), (1, 1, 2, "b"))
    wire.until("s")
    wire.until()
    wire.send(m.bind(b"", b"o"), m.execute(b""), m.SYNC_MESSAGE)
    assert rows(wire.until()) == [["5", "create_stream_table"]]
    assert subscribed.hub.feed().closed.wait(60)


@pytest.mark.parametrize("cursor", [False, True])
def test_named_portal_is_not_taken_by_another_statement(subscribed: Subscribed, cursor: bool) -> None:
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN"))
    wire.until()
    wire.send(statement("DECLARE p CURSOR FOR SUBSCRIBE t" if cursor else "SUBSCRIBE t", b"s", b"" if cursor else b"p"))
    subscribed.hub.later([(1, 1, 1, "a")], None)
    wire.send(m.parse(b"o", b"SELECT 5"), m.SYNC_MESSAGE)
    wire.until()
    wire.send(m.query(b"SAVEPOINT s"))
    wire.until()
    wire.send(m.bind(b"p", b"o"), execute("p"), m.SYNC_MESSAGE)
    answer = wire.until()
    assert (answer[0][0], field(answer[0][1], "C"), answer[-1]) == ("E", "42P03", ("Z", b"E"))
    wire.send(m.query(b"ROLLBACK TO s"))
    wire.until()
    wire.send(execute("p"), m.SYNC_MESSAGE)
    assert wire.until()[-1] == ("Z", b"T")
    wire.send(m.close_portal(b"p"), m.bind(b"p", b"o"), execute("p"), m.SYNC_MESSAGE)
    assert rows(wire.until()) == [["5"]]


@pytest.mark.parametrize("binary", [False, True])
def test_fetch_gives_no_more_rows_than_execute_asks_for(subscribed: Subscribed, binary: bool) -> None:
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE (SELECT a FROM t)"))
    wire.until()
    subscribed.hub.push(*((1, 1, n) for n in range(5)))
    wire.send(m.parse(b"f", b"FETCH 4 c"), m.bind(b"p", b"f", (), (1,) if binary else ()), m.describe_portal(b"p"))
    wire.send(execute("p", 2), execute("p", 2), execute("p", 2), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "12TDDsDDsCZ"
    assert [code for _, _, code in columns(answer[2][1])] == [int(binary)] * 3
    numbers = [values(body)[2] for kind, body in answer if kind == "D"]
    assert numbers == ([b"\0\0\0%c" % n for n in range(4)] if binary else [b"%d" % n for n in range(4)])
    assert answer[-2] == ("C", b"FETCH 4\0")
    wire.send(m.query(b"FETCH c"))
    assert rows(wire.until()) == [["1", "1", "4"]]


def test_cursor_is_a_portal_of_its_own(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE (SELECT a FROM t)"))
    wire.until()
    subscribed.hub.push(*((1, 1, n) for n in range(3)))
    wire.send(execute("c", 2), execute("c", 2), m.SYNC_MESSAGE)
    answer = wire.until()
    assert "".join(kind for kind, _ in answer) == "DDsDCZ"
    assert rows(answer)[2] == ["1", "1", "2"]


def test_fetch_of_more_than_is_kept_gives_fewer_rows(subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_subscriptions, "MOST_KEPT", 100)
    wire = subscribed.wire
    wire.send(m.query(b"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE (SELECT a FROM t)"))
    wire.until()
    for n in range(10):
        subscribed.hub.push((n, 1, n))
    fetch = m.parse(b"", b"FETCH ALL c WITH (timeout = '1h')") + m.bind(b"", b"", (), (1,)) + m.execute(b"")
    found = 0
    for _ in range(2):
        wire.send(fetch, m.SYNC_MESSAGE)
        answer = wire.until()
        assert 1 < sum(kind == "D" for kind, _ in answer) < 9
        found += sum(kind == "D" for kind, _ in answer)
    subscribed.hub.end()
    wire.send(m.query(b"FETCH ALL c"))
    assert len(rows(wire.until())) == 10 - found


@pytest.mark.parametrize(("timeout", "sqlstate"), [("infinity", None), ("9999 years", None), ("-infinity", "22023")])
def test_timeouts_without_end(subscribed: Subscribed, timeout: str, sqlstate: str | None) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t")
    subscribed.wire.until()
    subscribed.query(f"FETCH 1 c WITH (timeout = '{timeout}')")
    if sqlstate is not None:
        assert field(subscribed.wire.until()[0][1], "C") == sqlstate
        return
    assert subscribed.wire.receive()[0] == "T"
    subscribed.hub.push((1, 1, 1, "a"))
    assert subscribed.wire.kinds() == "DCZ"


@pytest.mark.parametrize("extended", [False, True])
def test_empty_statements_around(subscribed: Subscribed, extended: bool) -> None:
    subscribed.hub.refusal = SqlError("0A000", "noticed")
    sql = ";; ; subscribe t ; ;"
    subscribed.wire.send(statement(sql) + m.SYNC_MESSAGE if extended else m.query(sql.encode()))
    assert [field(body, "M") for kind, body in subscribed.wire.until() if kind == "E"] == ["noticed"]


@pytest.mark.parametrize("encoding", ["UTF8", "SJIS"])
def test_backslashes_mean_what_the_client_says(subscribed: Subscribed, encoding: str) -> None:
    wire = subscribed.wire
    subscribed.hub.refusal = SqlError("0A000", "noticed")
    setting = (
        f"SET client_encoding = '{encoding}'; SET standard_conforming_strings = off; SET escape_string_warning = off"
        "; SET backslash_quote = on"
    )
    wire.send(m.query(setting.encode()))
    wire.until()
    sql = r"""SUBSCRIBE (SELECT 'it\'s $1 表' AS b, N'\\' AS n, '$1' AS d, a FROM t WHERE a = $1) AS OF 'x\'' || $1"""
    wire.send(m.parse(b"", sql.encode("sjis" if encoding == "SJIS" else "utf-8")), m.bind(b"", b"", [b"7"]))
    wire.send(m.execute(b""), m.SYNC_MESSAGE)
    assert wire.kinds() == "12EZ"  # and nothing of parameters that are ours
    (asked,) = subscribed.hub.asked
    assert asked.query == (
        r"""SELECT E'it\'s $1 表' AS b, nchar E'\\' AS n, '$1' AS d, a FROM t WHERE a = (E'7'::integer)"""
    )
    assert asked.as_of is not None
    assert asked.as_of.expression == r"""E'x\'' || (E'7'::integer)"""
    wire.send(m.query(rb"COPY (SUBSCRIBE t) TO STDOUT (NULL '\\N', DELIMITER '\t')"))
    subscribed.hub.refusal = None
    output = subscribed.hub.feed().output
    assert getattr(output, "options", "").startswith(r"NULL E'\\N', DELIMITER E'\t'")
    subscribed.hub.end()
    wire.until()


def test_text_that_cannot_be_read_is_refused(subscribed: Subscribed) -> None:
    subscribed.query("SET client_encoding = 'MULE_INTERNAL'")
    subscribed.wire.until()
    subscribed.hub.refusal = SqlError("0A000", "noticed")
    subscribed.query("SUBSCRIBE t")
    assert field(subscribed.wire.until()[0][1], "M") == "noticed"
    subscribed.wire.send(m.query(b"SUBSCRIBE (SELECT a FROM t WHERE b = '\x81\xe4')"))
    answer = subscribed.wire.until()
    assert (field(answer[0][1], "C"), answer[-1]) == ("22021", ("Z", b"I"))


def test_long_parameter(subscribed: Subscribed) -> None:
    subscribed.hub.refusal = SqlError("0A000", "noticed")
    text = b"x" * (3 << 20)
    wire = subscribed.wire
    wire.send(m.parse(b"", b"SUBSCRIBE (SELECT a FROM t WHERE b = $1)"), m.bind(b"", b"", [text]), m.execute(b""))
    wire.send(m.SYNC_MESSAGE)
    assert wire.kinds() == "12EZ"
    assert subscribed.hub.asked[0].query == f"SELECT a FROM t WHERE b = (E'{text.decode()}'::text)"


@pytest.mark.parametrize(
    "wrong",
    [
        m.message(m.PARSE, b"\0SUBSCRIBE t\0\0\2\0\0\0"),
        m.message(m.PARSE, b"\0SUBSCRIBE t\0"),
        m.parse(b"", b"SUBSCRIBE t") + m.message(m.BIND, b"\0\0\0\0\0\1\0\0\1\0"),
        m.parse(b"", b"SUBSCRIBE t") + m.message(m.BIND, b"\0\0"),
        m.parse(b"", b"SUBSCRIBE t") + m.bind(b"", b"") + m.message(m.EXECUTE, b"\0\0"),
    ],
)
def test_malformed_messages_are_the_clients_fault(subscribed: Subscribed, wrong: bytes) -> None:
    subscribed.wire.send(wrong, m.SYNC_MESSAGE)
    (_, error) = subscribed.wire.until("E")[-1]
    assert field(error, "C") == "08P01"


def test_parameters_in_strings_with_backslashes(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    subscribed.hub.refusal = SqlError("0A000", "noticed")
    wire.send(m.query(b"SET standard_conforming_strings = off; SET escape_string_warning = off"))
    wire.until()
    wire.send(m.parse(b"", rb"SUBSCRIBE (SELECT '\', $1 ', a FROM t) UP TO $1::int8"), m.bind(b"", b"", [b"7"]))
    wire.send(m.execute(b""), m.SYNC_MESSAGE)
    assert wire.kinds() == "12EZ"
    assert subscribed.hub.asked[0].query == r"SELECT E'\', $1 ', a FROM t"
