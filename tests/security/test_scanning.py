"""What clients send is read in one pass: no text makes a scan longer than in proportion to its length."""

from __future__ import annotations

import ast
import asyncio
import importlib
import os
import pkgutil
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import psycopg
import pytest

import server
from catalog.session import SqlError
from engine.subscribe.rendering import CopyFormat
from server.protocol import lexer
from server.protocol import messages as m
from server.protocol.error_rewriting import explained
from server.protocol.fast_path import is_batch
from server.protocol.framing import FRONTEND_LENGTHS, Framer
from server.protocol.keyword_scan import LONG, mentions, sends, speaks_of_cursors
from server.protocol.statements import cursor_syntax, extensions, request_statements, subscribe_syntax, uri_copy
from server.protocol.traffic import Traffic
from tests.server.conftest import Engaged

MEGABYTE = (1 << 20) - 100  # longer messages are not looked at
BESIDE = "PYTEST_XDIST_WORKER" in os.environ
"""Whether other tests run at the same time; then less is tried."""
PATIENCE = 5 if BESIDE else 1
"""How much longer anything may take then. What is not linear takes hundreds of times as long."""
SECONDS = 0.05 * PATIENCE
STEP_SECONDS = 0.02 * PATIENCE  # 10 ms, on a machine that does something else, too

SHAPES = {
    "comments": b"create /**//**/",
    "nested comments": b"/*/**/*/",
    "deeply nested comments": b"/*/*/**/*/*/",
    "comments that do not end": b"create /*",
    "comments of a line": b"create --\n",
    "comments in a literal": b"'create /**//**/ source'",
    "literals that do not end": b"'x",
    "quotes": b"'",
    "double quotes": b'"',
    "dollar quotes": b"$a$ $b$",
    "dollars": b"$",
    "parameters": b"$1",
    "long parameters": b"$" + b"9" * 5000,
    "backslashes": b"\\",
    "escaped quotes": b"\\'",
    "escape strings": b"E'\\' ",
    "continued strings": b"E'a' \n",
    "white space": b" ",
    "lines": b"\n",
    "keywords and white space": b"copy " + b" " * 100 + b"\n",
    "semicolons": b";",
    "statements": b"select 1;",
    "short statements": b"a;",
    "parentheses": b"(",
    "parentheses, both": b"()",
    "brackets": b"[",
    "create": b"create ",
    "drop": b"drop database template = ",
    "extension": b"extension ",
    "retain": b"alter retain ",
    "copy from": b"copy from '",
    "uris": b"'s3://",
    "subscribe": b"\nsubscribe ",
    "for": b"declare for ",
    "cursors": b"fetch ",
    "queues": b"pgque . ",
    "stream tables": b"create stream_table ",
    "functions": b"PL/pgSQL function pgtrickle.f\n",
    "letters": b"a",
    "letters beyond ASCII": b"\xe4\\",
    "numbers": b"1",
    "commit": b"commit \t",
}
BEGINNINGS = {
    "nothing": b"",
    "all words": b"create database extension source retain history subscribe :// drop_stream_table copy from ",
    "a literal": b"select 'create source subscribe :// ",
    "a subscription": b"subscribe (select ",
    "a cursor": b"declare c cursor for subscribe (select ",
    "a fetch": b"fetch ",
    "a copy": b"copy t from 's3://lake/t' ",
    "a copy of a subscription": b"copy (subscribe t) to stdout (",
    "an own statement": b"alter table t set (retain history for ",
    "a source": b"create source ",
    "an extension": b"create extension pgque ",
    "a database": b"create database d template ",
}

SOME = ("all words", "a copy")
"""Those of them that `make test` tries with everything."""
SPLIT = ("comments", "literals that do not end", "dollar quotes", "backslashes", "escape strings", "short statements")
"""The shapes that `make test` splits into statements."""


def _traffic(message: Callable[[bytes], bytes], text: bytes) -> None:
    passing = Traffic(lambda: None)
    data = message(text)
    for begin in range(0, len(data), 1 << 18):
        chunk = data[begin : begin + (1 << 18)]
        if not is_batch(passing, chunk):
            passing.from_client(chunk)


def _with_cursors(text: bytes) -> None:
    passing = Traffic(lambda: None)
    passing.from_client(m.parse(b"s", b"fetch c") + m.bind(b"c", b"s"))
    passing.from_client(m.query(text))


READERS: dict[str, Callable[[bytes], object]] = {
    "mentions": mentions,
    "speaks_of_cursors": speaks_of_cursors,
    "sends": lambda text: sends(text.lower()),
    "Query": lambda text: _traffic(m.query, text),
    "Parse": lambda text: _traffic(lambda sql: m.parse(b"s", sql), text),
    "Query with cursors": _with_cursors,
    "copy": uri_copy.as_request,
    "extension": extensions.as_request,
    "own": request_statements.as_request,
    "subscribe": subscribe_syntax.parse,
    "fetch": cursor_syntax.parse,
    "leading": lambda text: lexer.leading(text, lexer.WORDS_KEPT),
    "databases": lambda text: lexer.databases_touched(
        text, [lexer.Statement(0, len(text), ("CREATE", "DATABASE", "D"))]
    ),
    "tokens": lambda text: sum(1 for _ in lexer.tokens(text)),
    "tokens with backslashes": lambda text: sum(1 for _ in lexer.tokens(text, backslashes=True, encoding="SJIS")),
    "options of COPY": lambda text: CopyFormat.parse(text.decode("latin-1")),
    "context": lambda text: explained(m.message(m.ERROR, b"W" + text + b"\0\0"), in_our_transaction=True),
}


def best(work: Callable[[], object], enough: float, times: int = 8) -> float:
    """The least processor time of several runs; fewer, if one was short enough."""
    least = float("inf")
    for _ in range(times):
        begun = time.process_time()
        with suppress(SqlError):
            work()
        least = min(least, time.process_time() - begun)
        if least <= enough:
            break
    return least


def filled(beginning: bytes, shape: bytes, size: int = MEGABYTE) -> bytes:
    return (beginning + shape * (size // len(shape)))[:size]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "beginning",
    [each if each in SOME else pytest.param(each, marks=pytest.mark.long) for each in BEGINNINGS],
)
@pytest.mark.one_in(3)
def test_a_megabyte_is_read_in_50_milliseconds(reader: str, beginning: str) -> None:
    slow = {
        shape: seconds
        for shape, part in SHAPES.items()
        if (seconds := best(lambda: READERS[reader](filled(BEGINNINGS[beginning], part)), SECONDS)) > SECONDS  # noqa: B023
    }
    assert not slow


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reader", READERS)
def test_short_texts_are_read_in_time_in_proportion_to_their_length(reader: str) -> None:
    """The texts that are looked at most closely."""
    for beginning in (BEGINNINGS[each] for each in (SOME if BESIDE else BEGINNINGS)):
        for part in SHAPES.values():
            text = filled(beginning, part, LONG)
            assert best(lambda: READERS[reader](text), STEP_SECONDS) <= STEP_SECONDS, (beginning, part)  # noqa: B023


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("shape", "encoding"),
    [
        pytest.param(shape, encoding, marks=() if shape in SPLIT and encoding in ("UTF8", "SJIS") else pytest.mark.long)
        for shape in SHAPES
        for encoding in ("UTF8", "SJIS", "GB18030")
    ],
)
def test_a_query_string_is_split_in_short_steps(shape: str, encoding: str) -> None:
    """A statement for each two bytes cannot be made in no time; but everybody else has a turn in between."""

    def steps(size: int) -> Iterator[float]:
        begun = time.process_time()
        for found in lexer.statements(filled(b"", SHAPES[shape], size), backslashes=True, encoding=encoding):
            if found is lexer.PAUSE:
                yield time.process_time() - begun
                begun = time.process_time()
        yield time.process_time() - begun

    size = MEGABYTE // (4 if BESIDE else 1)
    tries = [list(steps(size)) for _ in range(2)]
    assert min(map(max, tries)) <= SECONDS  # a single token that is as long as the text
    whole, part = min(map(sum, tries)), min(sum(steps(size // 4)) for _ in range(3))
    assert whole <= 8 * part + SECONDS


def test_a_message_that_comes_byte_by_byte_costs_no_more_than_its_bytes() -> None:
    message = m.query(b"x" * 500_000)

    def trickle() -> None:
        passing = Traffic(lambda: None)
        passing.from_client(message[:-20_000])
        assert [passing.from_client(message[at : at + 1]) for at in range(len(message) - 20_000, len(message) - 1)] == [
            b""
        ] * 19_999
        assert passing.from_client(message[-1:]) == message

    assert best(trickle, 0.2) <= 0.2  # putting it together for each byte takes half a second and more


def test_many_short_messages_are_read_in_time_in_proportion_to_their_number() -> None:
    def read(number: int) -> float:
        framer = Framer(FRONTEND_LENGTHS)
        framer.feed(m.FLUSH_MESSAGE * number)

        def all_of_them() -> None:
            while framer.next() is not None:
                pass

        return best(all_of_them, 0)

    framer = Framer(FRONTEND_LENGTHS)
    framer.feed(m.FLUSH_MESSAGE * 200_000)
    begun = time.process_time()
    assert sum(1 for _ in iter(framer.next, None)) == 200_000
    assert time.process_time() - begun < 2  # cutting off the rest each time takes minutes


# -- the rule itself ---------------------------------------------------------------------------------------------------

ENGINES = ("engine.subscribe.rendering", "engine.stream_tables.analysis")
"""Modules of the engine with patterns for texts of users."""
UNBOUNDED = {"server.protocol.lexer", "server.protocol.values", *ENGINES}
"""Modules whose patterns may repeat without a bound, possessively: they match where a token begins."""
MADE_LATER = {"server/protocol/header_cache.py"}
"""Files in which a pattern is made at run time: of the lengths of PostgreSQL's rows."""


def _modules() -> list[str]:
    found = [each.name for each in pkgutil.walk_packages(server.__path__, "server.") if "quickstart" not in each.name]
    return [name for name in found if name not in ("server.__main__", "server.postgres.launch")]


def _patterns(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _patterns(each)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for each in value:
            yield from _patterns(each)


def _repetitions(tree: Any) -> Iterator[tuple[bool, int]]:
    """Whether each repetition is possessive, and how often it may repeat."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            _, most, inner = argument
            yield code is codes.POSSESSIVE_REPEAT, int(most)
            yield from _repetitions(inner)
        elif code is codes.BRANCH:
            for each in argument[1]:
                yield from _repetitions(each)
        elif code is codes.SUBPATTERN:
            yield from _repetitions(argument[-1])
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _repetitions(argument[1])
        elif code is codes.ATOMIC_GROUP:
            yield from _repetitions(argument)


def test_no_pattern_of_the_server_goes_back() -> None:
    wrong = []
    for name in (*_modules(), *ENGINES):
        for attribute, value in vars(importlib.import_module(name)).items():
            for pattern in _patterns(value):
                for possessive, most in _repetitions(parser.parse(pattern.pattern, pattern.flags & re.VERBOSE)):
                    bounded = most <= 64
                    if not (most <= 1 or (possessive and name in UNBOUNDED) or (bounded and name not in UNBOUNDED)):
                        wrong.append(f"{name}.{attribute}")
    assert not wrong


def test_patterns_are_made_where_the_check_above_sees_them() -> None:
    root = Path(server.__file__).parent
    wrong = []
    for file in sorted(root.rglob("*.py")):
        shown = f"server/{file.relative_to(root)}"
        if shown in MADE_LATER:
            continue
        tree = ast.parse(file.read_text())
        inside = [
            node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in function.body
        ]
        for statement in inside:
            returned = isinstance(statement, ast.Return) and shown == "server/protocol/lexer.py"
            for node in ast.walk(statement):
                uses = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re"
                if uses and not (returned and node.attr in ("compile", "DOTALL")):
                    wrong.append(f"{shown}:{node.lineno}")
    assert not wrong


# -- the whole way -----------------------------------------------------------------------------------------------------

HOSTILE = {
    "comments": b"select 'create " + b"/**/" * 5000 + b"source'",
    "white space": b"select 'drop database template" + b" " * 200_000 + b"'",
    "statements": b"select 1 -- create_stream_table\n;" + b";" * 900_000,
    "nested": b"select 1 -- create source\n" + b"/*/*/**/*/*/" * 2000,  # PostgreSQL takes quadratic time
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_others_are_served_while_a_hostile_text_is_read(engaged: Engaged, shape: str) -> None:
    text = HOSTILE[shape].decode()
    done = threading.Event()

    def attack() -> None:
        with suppress(psycopg.Error), psycopg.connect(engaged.dsn, autocommit=True) as attacker:
            attacker.execute(text)  # type: ignore[call-overload]
        done.set()

    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while not done.is_set():
            begun = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - begun)

    thread = threading.Thread(target=attack)
    thread.start()
    engaged.relay.run(beat())
    thread.join()
    assert longest < 0.3 * PATIENCE  # seconds of the processor's time, for all of it before
