"""The server and PostgreSQL see the same statements in a text, whatever its encoding and its strings."""

from __future__ import annotations

import random
from itertools import product

import pytest

from server.protocol import messages as m
from tests.server.conftest import RunningRelay, through
from tests.server.wire import Wire

FRAGMENTS = (
    *(b"'", b"''", b"\\", b"\\'", b"E'", b"e'a\\'b'", b"U&'", b"U&'d\\0061'", b" UESCAPE '!'", b'U&"', b"N'", b"b'1'"),
    *(b"$a$", b"$$", b"$\xc3\xbc$", b"$1", b"a$", b"/*", b"*/", b"/* ; */", b"--", b"\n", b"\r", b";", b"; select 2"),
    *(b" select 1 ", b"select ", b"1", b" as ", b'"', b'"a;b"', b"x", b"x'", b"||", b"(", b")", b" ", b"\f", b"\v"),
    *(b"''\n'", b"'a'--;\n'b'", b"case", b"*", b"/", b"-", b"@", b"\xc2\xa0", b"\xe3\x80\x80", b"0x1", b"1e", b"1_0"),
    *(b".5", b"::text", b"[1]", b":=", b"'a'", b"\t", b"+"),
)
CHARACTERS = {
    "UTF8": (b"\xc3\xa9", b"\xe2\x82\xac", b"\xff", b"\xc3"),
    "SJIS": (b"\x83\x5c", b"\x95\x5c", b"\x83\x7c", b"\x81\x40", b"\xb1", b"\x83"),
    "BIG5": (b"\xa4\x5c", b"\xa5\x5c", b"\xa4\x40", b"\xa4\x7c", b"\xa4"),
    "GBK": (b"\x81\x5c", b"\xb0\xa1", b"\x81\x40", b"\xbf\x27", b"\xbf\x5c", b"\xbf"),
    "GB18030": (b"\x81\x30\x81\x30", b"\xbf\x5c", b"\x81\x5c"),
    "UHC": (b"\x81\x41", b"\xb0\xa1", b"\x81"),
    "JOHAB": (b"\x88\x61", b"\x88\x5c", b"\xd8\x5c"),
    "EUC_JP": (b"\xa4\xa2", b"\x8f\xb0\xa1"),
    "LATIN1": (b"\xe9",),
}
"""Characters whose second byte looks like a backslash or a letter, and bytes that are no character."""
QUOTES = ((b"'", b"'"), (b"'", b"'"), (b"'", b"'"), (b"E'", b"'"), (b"$a$", b"$a$"), (b'"', b'"'), (b"", b""))
BEHIND = (b"", b"; select 3", b"\n; select 4 --", b" as x; select 5")


def _text(chance: random.Random, encoding: str) -> bytes:
    """A query string of several statements, or of what may be taken for some, which an interceptor reads."""
    parts = [chance.choice(CHARACTERS[encoding] if chance.random() < 0.15 else FRAGMENTS) for _ in range(8)]
    before, after = chance.choice(QUOTES)
    inside = b"".join(parts[: chance.randrange(1, 9)])
    return b"/* create_stream_table */ select 1, " + before + inside + after + chance.choice(BEHIND)


def _ask(wire: Wire, text: bytes) -> list[tuple[str, bytes]]:
    """The answer; an error undoes what came before it, and comes alone where PostgreSQL reads the whole text first."""
    wire.send(m.query(text))
    answers = [answer for answer in wire.until() if answer[0] != "N"]
    wire.send(m.query(b"rollback"))
    wire.until()
    return [("E", b"")] if any(kind == "E" for kind, _ in answers) else answers


def _compare(relay: RunningRelay, dsn: str, times: int) -> None:
    wires = [Wire(address) for address in (dsn, through(relay, dsn))]
    succeeded = 0
    for encoding, conforming in product(CHARACTERS, ("on", "off")):
        for wire in wires:
            wire.send(m.query(f"set client_encoding = {encoding}".encode()))
            wire.until()
            wire.send(m.query(f"set standard_conforming_strings = {conforming}".encode()))
            wire.until()
        chance = random.Random(f"{encoding} {conforming}")
        for _ in range(times):
            text = _text(chance, encoding)
            straight, relayed = (_ask(wire, text) for wire in wires)
            assert straight == relayed, (encoding, conforming, text)
            succeeded += straight[0][0] != "E"
    assert succeeded > times
    for wire in wires:
        wire.close()


def test_statements_are_those_that_postgresql_sees(relay: RunningRelay, dsn: str) -> None:
    _compare(relay, dsn, 10)


@pytest.mark.long
def test_many_statements_are_those_that_postgresql_sees(relay: RunningRelay, dsn: str) -> None:
    _compare(relay, dsn, 1000)
