"""The parser of SUBSCRIBE: whatever it is given, it finds a statement, none, or says what is wrong where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.subscribe import EnvelopeKind
from server.protocol.statements import cursor_syntax, subscribe_syntax
from server.protocol.statements.cursor_syntax import CloseCursor, FetchRows
from server.protocol.statements.subscribe_syntax import (
    CopySubscription,
    DeclareCursor,
    Piece,
    Subscription,
    SyntaxFault,
)

WORDS = (
    *("SUBSCRIBE", "TO", "(", ")", ",", ".", "=", ";", "COPY", "DECLARE", "CURSOR", "FOR", "ENVELOPE", "UPSERT"),
    *("DEBEZIUM", "KEY", "WITHIN", "TIMESTAMP", "ORDER", "BY", "WITH", "SNAPSHOT", "PROGRESS", "true", "AS", "OF"),
    *("AT", "LEAST", "UP", "STDOUT", "FORMAT", "csv", "t", '"T"', "'x'", "$1", "1", "SELECT", "FETCH", "ALL", "MOVE"),
    *(
        "FORWARD",
        "BACKWARD",
        "FROM",
        "IN",
        "timeout",
        "-",
        "CLOSE",
        "BINARY",
        "NO",
        "SCROLL",
        "HOLD",
        "/*",
        "E'\\",
        "$$",
    ),
)


@given(st.sampled_from(["SUBSCRIBE ", "COPY (SUBSCRIBE ", "DECLARE c CURSOR FOR SUBSCRIBE ", "FETCH ", ""]),
       st.lists(st.sampled_from(WORDS), max_size=14))  # fmt: skip
def test_any_text_is_parsed_or_refused_at_a_place(begin: str, words: list[str]) -> None:
    text = (begin + " ".join(words)).encode()
    for parse in (subscribe_syntax.parse, cursor_syntax.parse):
        try:
            parse(text)
        except SyntaxFault as fault:
            assert 0 <= fault.at <= len(text)
            assert fault.message


def test_every_clause_in_any_order() -> None:
    clauses = (
        b'ENVELOPE DEBEZIUM (KEY (a, "B c"))',
        b"WITHIN TIMESTAMP ORDER BY x::timestamp with time zone, (y) USING <",
        b"WITH (SNAPSHOT = 'off', PROGRESS)",
        b"AS OF AT LEAST now() - interval '1 h'",
        b"UP TO $1 + f(2, (3))",
    )
    for turn in range(len(clauses)):
        text = b"SUBSCRIBE a.b " + b" ".join(clauses[turn:] + clauses[:turn]) + b" ;"
        found = subscribe_syntax.parse(text)
        assert isinstance(found, Subscription)
        assert (found.query, found.named) == (Piece(10, b"a.b"), True)
        assert (found.envelope, [key.text for key in found.keys]) == (EnvelopeKind.DEBEZIUM, [b"a", b"B c"])
        assert found.order_by is not None
        assert found.order_by.text == b"x::timestamp with time zone, (y) USING <"
        assert (found.snapshot, found.progress, found.at_least) == (False, True, True)
        assert found.as_of is not None
        assert found.as_of.text == b"now() - interval '1 h'"
        assert found.up_to is not None
        assert found.up_to.text == b"$1 + f(2, (3))"
        assert text[found.up_to.start :].startswith(found.up_to.text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"FETCH c", FetchRows(b"c", 1)),
        (b"FETCH NEXT FROM c", FetchRows(b"c", 1)),
        (b"fetch next;", FetchRows(b"next", 1)),
        (b'FETCH ALL IN "C"', FetchRows(b"C", None)),
        (b"FETCH FORWARD ALL c", FetchRows(b"c", None)),
        (b"FETCH FORWARD c", FetchRows(b"c", 1)),
        (b"FETCH +5 c WITH (timeout '1 s')", FetchRows(b"c", 5, b"1 s")),
        (b"FETCH c WITH (TIMEOUT = '0s')", FetchRows(b"c", 1, b"0s")),
        (b"MOVE 3 FROM c", FetchRows(b"c", 3, move=True)),
        (b"FETCH -3 c", FetchRows(b"c", -3, backward=True)),
        (b"FETCH ABSOLUTE 3 c", FetchRows(b"c", 3, backward=True)),
        (b"CLOSE ALL", CloseCursor(None)),
        (b'CLOSE "All"', CloseCursor(b"All")),
        (b"FETCH", None),
        (b"FETCH c d e", None),
        (b"CLOSE", None),
        (b"SELECT 1", None),
    ],
)
def test_cursor_statements(text: bytes, expected: object) -> None:
    assert cursor_syntax.parse(text) == expected


def test_statements_of_postgresqls_own() -> None:
    for text in (
        b"COPY t TO STDOUT",
        b"DECLARE c CURSOR FOR SELECT 1",
        b"COPY (SELECT subscribe) TO STDOUT",
        b"TABLE t",
    ):
        assert subscribe_syntax.parse(text) is None


def test_options_of_copy() -> None:
    for rest, options in (
        (b"", ()),
        (b" WITH (FORMAT csv, HEADER, FORCE_QUOTE (a, b), NULL '')",
         (("FORMAT", b"csv"), ("HEADER", b""), ("FORCE_QUOTE", b"(a, b)"), ("NULL", b"''"))),
        (b" WITH CSV HEADER QUOTE AS '\"' FORCE QUOTE a, b",
         (("FORMAT", b"csv"), ("HEADER", b""), ("QUOTE", b"'\"'"), ("FORCE_QUOTE", b"(a, b)"))),
        (b" BINARY", (("FORMAT", b"binary"),)),
    ):  # fmt: skip
        found = subscribe_syntax.parse(b"COPY (SUBSCRIBE t) TO STDOUT" + rest)
        assert isinstance(found, CopySubscription)
        assert found.options == options
        assert found.rest.text == b"TO STDOUT" + rest


def test_declare() -> None:
    found = subscribe_syntax.parse(
        b'DECLARE "My C" BINARY INSENSITIVE NO SCROLL CURSOR WITHOUT HOLD FOR SUBSCRIBE TO t'
    )
    assert isinstance(found, DeclareCursor)
    assert (found.name, found.binary, found.subscription.query.text) == (b"My C", True, b"t")
