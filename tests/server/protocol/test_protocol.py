"""The protocol without I/O: invariants over random streams, and the parts that are plain functions."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.protocol import messages as m
from server.protocol import startup, values
from server.protocol.fast_path import is_answer, is_batch
from server.protocol.framing import BACKEND_LENGTHS, FRONTEND_LENGTHS, Framer
from server.protocol.header_cache import HeaderCache, Rows
from server.protocol.keyword_scan import ELSEWHERE, EVERYWHERE, IN_EVERYWHERE, LONG, Keyword, mentions
from server.protocol.lexer import Kind, kind_of, split
from server.protocol.state import TRANSITIONS, Event, ImpossibleTransition, State, after
from server.protocol.statement_registry import Attention
from server.protocol.traffic import TOO_LATE, Traffic

REQUEST = m.query(b"select pgtrickle.create_stream_table('t', 'q')")
MADE = m.notice_response("HW001", "1", severity="INFO")
LEFT = m.error_response("HW002", "left")


def traffic(hidden: bool = False) -> Traffic:
    """What is known at a session's beginning; `hidden`: functions may make requests."""
    new = Traffic(lambda: None)
    new.hidden.possible = hidden
    return new


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(edges)]


frontend = st.sampled_from(
    [
        m.query(b"select 1"),
        m.query(b"-- database"),
        m.parse(b"s", b"select $1"),
        m.bind(b"p", b"s", [b"x" * 300, None]),
        m.describe_portal(b"p"),
        m.execute(b"p"),
        m.close_statement(b"s"),
        m.SYNC_MESSAGE,
        m.FLUSH_MESSAGE,
        m.message(m.COPY_DATA, b"1\t2\n" * 40),
        m.COPY_DONE_MESSAGE,
        m.message(m.FUNCTION_CALL, b"\0" * 10),
    ]
)
backend = st.sampled_from(
    [
        m.message(m.DATA_ROW, b"\0\1\0\0\0\1x"),
        m.message(m.DATA_ROW, b"y" * 500),
        m.message(m.ROW_DESCRIPTION, b"\0\0"),
        m.message(m.COMMAND_COMPLETE, b"SELECT 1\0"),
        m.message(m.COMMAND_COMPLETE, b"INSERT 0 1\0"),
        m.message(m.PARSE_COMPLETE),
        m.message(m.BIND_COMPLETE),
        m.notice_response("01000", "careful"),
        m.error_response("22012", "division by zero"),
        m.message(m.PARAMETER_STATUS, b"TimeZone\0UTC\0"),
        m.ready(m.IDLE),
        m.message(m.COPY_DATA, b"data"),
    ]
)


@given(st.lists(frontend), st.lists(st.integers(0, 10_000)))
def test_client_bytes_pass_unchanged_however_they_are_cut(sent: list[bytes], places: list[int]) -> None:
    passing = traffic()
    stream = b"".join(sent)
    assert b"".join(passing.from_client(chunk) for chunk in cut(stream, places)) == stream
    whole = traffic()
    whole.from_client(stream)
    expected = _batches(whole)
    assert _batches(passing) == expected
    ends = sum(message[0] in b"QSF" for message in sent)
    assert len(expected) == ends


def _batches(passing: Traffic) -> list[tuple[bytes | None, int, bool]]:
    """What is kept of each outstanding batch."""
    found = []
    while passing.outstanding:
        batch = passing.oldest()
        found.append((None if batch.raw is None else b"".join(batch.raw), batch.sent, batch.simple))
        passing.outstanding.popleft()
    return found


@given(st.lists(st.lists(frontend, max_size=6)), st.lists(backend), st.integers(1, 4))
def test_express_keeps_the_same_notes(chunks: list[list[bytes]], answer: list[bytes], times: int) -> None:
    """A chunk that passes by express leaves everything as it would have been left without, also when it comes again."""
    quick, thorough = traffic(), traffic()
    for chunk in map(b"".join, chunks * times):
        if not is_batch(quick, chunk):
            quick.from_client(chunk)
        thorough.from_client(chunk)
    for chunk in cut(b"".join(answer), [n * 100 for n in range(len(answer))]) * times:
        if not is_answer(quick, chunk):
            quick.from_backend(chunk)
        thorough.from_backend(chunk)
    assert _notes(quick) == _notes(thorough)
    assert _batches(quick) == _batches(thorough)


def _notes(passing: Traffic) -> dict[str, object]:
    ignored = ("outstanding", "client", "backend", "_committed", "batch", "batches", "answers", "_past_rows")
    ignored += ("_begin", "_wanted")  # of the last chunk alone
    return {name: value for name, value in vars(passing).items() if name not in ignored}


chunks_of_answer = st.lists(
    st.sampled_from(
        [
            m.message(m.BIND_COMPLETE) + m.message(m.DATA_ROW, b"abc"),
            m.message(m.DATA_ROW, b"abc") + m.message(m.BIND_COMPLETE),
            m.message(m.DATA_ROW, bytes(m.message(m.BIND_COMPLETE)) + b"abcdefg"),
        ]
    ),
    max_size=2,
).map(b"".join)


@given(st.lists(chunks_of_answer))
def test_shapes_of_one_length_are_told_apart(answers: list[bytes]) -> None:
    """What is known is what walking from header to header finds."""
    shapes = HeaderCache()
    layouts: dict[bytes, list[tuple[int, int]]] = {}

    def layout(data: bytes) -> list[tuple[int, int]]:
        framer = Framer(BACKEND_LENGTHS)
        framer.feed(data)
        return [(found[0], len(found[1])) for found in iter(framer.next, None)]

    for answer in answers * 3:
        if shapes.know(answer):
            assert layout(answer) in layouts.values()
        else:
            shapes.learn(answer)
            layouts[answer] = layout(answer)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=50), max_size=4), st.integers(0, 9), st.integers())
def test_end_of_rows_is_found_however_long_they_are(pools: list[list[int]], tail: int, seed: int) -> None:
    rows, chance = Rows(), random.Random(seed)
    for pool in pools:
        for _ in range(10):
            bodies = [b"D\0\0\0\4" * (size // 5) for size in chance.choices(pool, k=200)]
            data = b"".join(m.message(m.DATA_ROW, body) for body in bodies) + b"D\0\0\0\30abcd"[:tail]
            data += chance.choice([b"", b"C\0\0\0\6S\0"])
            last = len(data) - 5
            position = 0
            while position <= last and data[position] == m.DATA_ROW:
                position += 1 + int.from_bytes(data[position + 1 : position + 5])
            assert rows.past(data, 0, last) == position


@given(st.lists(backend), st.lists(st.integers(0, 10_000)))
def test_backend_bytes_pass_unchanged_however_they_are_cut(sent: list[bytes], places: list[int]) -> None:
    passing = traffic()
    stream = b"".join(sent)
    assert b"".join(passing.from_backend(chunk) for chunk in cut(stream, places)) == stream
    assert passing.backend.partial == b""


@given(st.lists(frontend), st.lists(frontend), st.lists(st.integers(0, 10_000)), st.booleans())
def test_client_bytes_stop_in_front_of_a_request(
    before: list[bytes], behind: list[bytes], places: list[int], hidden: bool
) -> None:
    passing = traffic(hidden)
    passed = b""
    rest = b""
    for chunk in cut(b"".join(before) + REQUEST + b"".join(behind), places):
        if passing.attention is None:
            passed += passing.from_client(chunk)
        else:
            rest += chunk
        while hidden and passing.attention is Attention.COMMIT:  # then it waits for what comes before it
            waiting = passing.client.next()
            assert waiting is not None and waiting[0] == m.QUERY
            passed += waiting[1]
            passing.attention = passing.batch = None
            passed += passing.from_client(b"")
    assert passed == b"".join(before)
    assert passing.attention is Attention.NAMED_REQUEST
    assert passing.client.take() + rest == REQUEST + b"".join(behind)


SELECT = m.parse(b"", b"select 1") + m.bind(b"", b"") + m.execute(b"")
COMMIT = m.parse(b"n", b"-- all\ncommit"), m.bind(b"p", b"n"), m.execute(b"p")


BEHIND = [
    ([m.query(b"select 1")], m.query(b"commit")),
    ([m.query(b"select 1")], m.query(b"select 2; END")),
    ([SELECT, m.SYNC_MESSAGE, *COMMIT[:2]], COMMIT[2]),
    ([SELECT, *COMMIT[:2]], COMMIT[2]),
    ([SELECT], m.query(b"select 2")),
]


@pytest.mark.parametrize(("before", "commit"), BEHIND)
def test_commit_stops_behind_what_has_not_been_answered(before: list[bytes], commit: bytes) -> None:
    passing = traffic(hidden=True)
    assert passing.from_client(b"".join(before) + commit) == b"".join(before)
    assert passing.attention is Attention.COMMIT
    alone = traffic(hidden=True)
    controls = [part for part in before if part in COMMIT]
    assert alone.from_client(b"".join(controls) + commit) == b"".join(controls) + commit
    assert alone.attention is None


@pytest.mark.parametrize(("before", "commit"), BEHIND)
def test_commit_waits_for_nothing_where_nothing_can_make_a_request(before: list[bytes], commit: bytes) -> None:
    passing = traffic()
    sent = b"".join(before) + commit
    assert passing.from_client(sent) == sent
    assert passing.attention is None


@pytest.mark.parametrize(
    "batch",
    [
        m.query(b"commit"),
        m.query(b"select 1; /* all */ end"),
        m.parse(b"", b"COMMIT") + m.bind(b"", b"") + m.execute(b"") + m.SYNC_MESSAGE,
        m.bind(b"p", b"n") + m.execute(b"p") + m.SYNC_MESSAGE,
        SELECT + m.bind(b"p", b"n") + m.execute(b"p") + m.SYNC_MESSAGE,
    ],
)
def test_commit_behind_something_passes_by_the_fast_path_where_nothing_can_make_a_request(batch: bytes) -> None:
    for hidden in (False, True):
        passing = traffic(hidden)
        prepared = m.parse(b"n", b"commit") + m.SYNC_MESSAGE
        assert not is_batch(passing, prepared)  # it must be known by its name
        assert passing.from_client(prepared) == prepared
        assert is_batch(passing, m.query(b"select 2"))
        assert is_batch(passing, batch) is not hidden


def test_commit_prepared_behind_another_statement_is_known_by_its_name() -> None:
    passing = traffic()
    prepared = SELECT + COMMIT[0] + m.SYNC_MESSAGE
    assert not is_batch(passing, prepared)
    assert passing.from_client(prepared) == prepared
    assert passing.committing == {b"n"}


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        (b"create function f() returns void return pgtrickle.refresh_stream_table('t')", True),
        (b"create or replace view v as select pgtrickle.drop_stream_table('t')", True),
        (b"alter table t alter i set default pgtrickle.resume_stream_table('t')", True),
        (b"prepare p as select pgtrickle.retain_history('t', '1 hour')", True),
        (b"select pgtrickle.create_stream_table('t', 'select 1')", False),
        (b"create table stream_tables (i int)", False),
        (b"create function f() returns void return pgtrickle.publish('t', 'delta', '/t')", True),
        (b"create publication p for all tables", False),
    ],
)
def test_what_will_make_requests_without_being_named_is_noticed_when_it_is_defined(text: bytes, possible: bool) -> None:
    passing = traffic()
    passing.from_client(m.query(text))
    assert passing.hidden.possible is possible


@given(st.lists(backend), st.lists(backend), st.lists(st.integers(0, 10_000)))
def test_request_notice_is_swallowed(before: list[bytes], behind: list[bytes], places: list[int]) -> None:
    passing = traffic()
    passed = b""
    rest = b""
    for chunk in cut(b"".join(before) + MADE + b"".join(behind), places):
        if passing.attention is None:
            passed += passing.from_backend(chunk)
        else:
            rest += chunk
    assert passed == b"".join(before)
    assert passing.attention is Attention.REQUEST_MADE
    assert passing.backend.take() + rest == b"".join(behind)


@given(st.lists(backend), st.lists(backend), st.lists(st.integers(0, 10_000)))
def test_error_of_a_left_request_is_explained(before: list[bytes], behind: list[bytes], places: list[int]) -> None:
    passing = traffic()
    stream = b"".join(before) + LEFT + b"".join(behind)
    passed = b"".join(passing.from_backend(chunk) for chunk in cut(stream, places))
    assert passed == b"".join(before) + TOO_LATE + b"".join(behind)


@given(st.binary(), st.lists(st.integers(0, 10_000)))
@settings(max_examples=300)
def test_garbage_passes_or_is_refused_and_is_never_kept_at_length(garbage: bytes, places: list[int]) -> None:
    for feed in (traffic().from_client, traffic().from_backend):
        with suppress(m.ProtocolViolation):
            for chunk in cut(garbage, places):
                feed(chunk)
    with suppress(m.ProtocolViolation):
        startup.read(garbage)


@given(st.lists(frontend), st.lists(st.integers(0, 10_000)))
def test_framer_cuts_a_stream_into_its_messages(sent: list[bytes], places: list[int]) -> None:
    framer = Framer(FRONTEND_LENGTHS)
    found = []
    for chunk in cut(b"".join(sent), places):
        framer.feed(chunk)
        while (message := framer.next()) is not None:
            found.append(message)
    assert found == [(message[0], message) for message in sent]


def test_long_message_comes_in_pieces_and_is_not_collected() -> None:
    framer = Framer(BACKEND_LENGTHS)
    framer.feed(m.HEADER.pack(m.DATA_ROW, 3_000_000) + b"x" * 95)
    kind, first = framer.next() or (0, b"")
    assert (kind, len(first), framer.partial) == (m.DATA_ROW, 100, b"")
    framer.feed(b"x" * 2_999_901 + b"Z")
    assert framer.next() == (0, b"x" * 2_999_901)
    assert framer.partial == b"Z"


def test_batches_that_are_too_long_are_not_kept() -> None:
    passing = traffic()
    stream = m.parse(b"", b"select $1") + m.bind(b"", b"", [b"x" * 2_000_000]) + m.execute(b"") + m.SYNC_MESSAGE
    for start in range(0, len(stream), 65536):
        passing.from_client(stream[start : start + 65536])
    batch = passing.oldest()
    assert (batch.raw, batch.sent) == (None, 3)


@given(
    st.integers(3 << 16, (3 << 16) + 2),
    st.lists(st.tuples(st.binary(min_size=1), st.binary()).filter(lambda p: b"\0" not in p[0] + p[1])),
    st.binary(),
)
def test_startup_message_round_trip(version: int, pairs: list[tuple[bytes, bytes]], rest: bytes) -> None:
    packet = startup.StartupMessage(version, tuple(pairs))
    if len(packet.encode()) <= startup.MAX_LENGTH:
        assert startup.read(packet.encode() + rest) == (packet, rest)


@given(st.lists(st.one_of(st.none(), st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8")))))
def test_text_arrays_round_trip(texts: list[str | None]) -> None:
    encoded = values.encode(texts)
    assert encoded is not None
    assert values._array(str)(encoded.decode()) == texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ; ;-- x\n;/* y */", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';', \";\", $$;$$, $a$;$$;$a$, E'\\';', 'it''s;'; x", None),
        ("select U&'\\003b;', U&\"d;\" ; x", None),
        ("/* ; /* ; */ ; */ select 1; x", None),
        ("select a$b$ ; x", ["select a$b$", "x"]),
        ("select $1; select $2", ["select $1", "select $2"]),
        ("create rule r as on insert to t do (select 1; select 2); x", None),
        ("create function f() returns int begin atomic select 1; select case when true then 1 end; end; x", None),
        ("create or replace procedure p() language sql begin atomic; end; x", None),
        ("begin; select 1; end; x", ["begin", "select 1", "end", "x"]),
        ("select 'unfinished; x", ["select 'unfinished; x"]),
        ("select $q$ unfinished; x", ["select $q$ unfinished; x"]),
        ("select 1 -- a; b\n; x", None),
        ("select E'a' -- c\n 'b\\';c'; x", None),
    ],
)
def test_split(text: str, expected: list[str] | None) -> None:
    found = [text.encode()[s.start : s.end].decode() for s in split(text.encode())]
    assert [part.strip() for part in found] == (expected if expected is not None else [*_but_last(text), "x"])


def _but_last(text: str) -> list[str]:
    first = text[: text.rindex("; x")]
    return [first[len("/* ; /* ; */ ; */ ") :] if first.startswith("/*") else first.strip()]


def test_split_without_standard_conforming_strings() -> None:
    text = rb"select 'a\';b'; select 2"
    assert [s.end for s in split(text, backslashes=True)] == [len(b"select 'a\\';b'"), len(text)]
    assert [s.end for s in split(text)] == [len(b"select 'a\\'"), len(text)]


@pytest.mark.parametrize(
    ("encoding", "character"),
    [("SJIS", "表"), ("BIG5", "功"), ("GBK", "昞"), ("GB18030", "昞"), ("GB18030", "\u3400"), ("UHC", "가")],
)
def test_split_in_an_encoding_with_backslashes_in_its_characters(encoding: str, character: str) -> None:
    first = f"select E'{character}', ';' as \"{character}\"".encode(values.codec(encoding))
    text = first + b"; select 2"
    assert [text[s.start : s.end] for s in split(text, encoding=encoding)] == [first, b"select 2"]


@given(st.binary(max_size=200))
def test_split_never_fails_and_loses_nothing_but_separators(text: bytes) -> None:
    last = 0
    for statement in split(text):
        assert last <= statement.start < statement.end <= len(text)
        last = statement.end


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("BEGIN", Kind.BEGIN),
        ("START TRANSACTION", Kind.BEGIN),
        ("COMMIT AND CHAIN", Kind.END),
        ("COMMIT PREPARED x", Kind.OTHER),
        ("ROLLBACK WORK TO s", Kind.SAVEPOINT),
        ("ROLLBACK", Kind.END),
        ("RELEASE s", Kind.SAVEPOINT),
        ("SELECT 1", Kind.QUERY),
        ("VACUUM", Kind.OTHER),
        ("DO x", Kind.BLOCK),
    ],
)
def test_kind_of(words: str, kind: Kind) -> None:
    assert kind_of(tuple(words.split())) is kind


def test_mentions() -> None:
    assert mentions(b"SELECT pgtrickle.CREATE_STREAM_TABLE_IF_NOT_EXISTS('x')") is Keyword.REQUEST
    assert mentions(b"select * from pgtrickle.pgt_stream_tables") is Keyword.NOTHING
    assert mentions(b"DROP /* a */ DATABASE x") is Keyword.DATABASE


STATEMENTS = {
    "create database d": Keyword.DATABASE,
    "select dblink_exec('drop database d')": Keyword.DATABASE,
    "select pgtrickle.drop_stream_table('x')": Keyword.REQUEST,
    "call retain_history('x')": Keyword.REQUEST,
    "select pgtrickle.publish('t', 'delta', '/lake/t')": Keyword.REQUEST,
    "select pgtrickle.unpublish('t')": Keyword.REQUEST,
    "copy t from 's3://lake/t.csv'": Keyword.LOAD,
    "alter extension pgque update": Keyword.LOAD,
    "create source s from load generator counter": Keyword.LOAD,
    "set local pg_trickle.enabled = off": Keyword.LOAD,
    'show "pg_trickle" . enabled': Keyword.LOAD,
    "alter table t set (retain history for '1d')": Keyword.LOAD,
    "subscribe t": Keyword.SUBSCRIBE,
    "declare c cursor for subscribe t": Keyword.SUBSCRIBE,
    "copy t from stdin": Keyword.COPY_IN,
}
"""One of each form, and what it mentions."""


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("before", ["", "select 1; ", "/* select */ "])
@pytest.mark.parametrize("behind", ["", " -- " + "x" * LONG])
def test_what_is_mentioned_does_not_pass_by_the_fast_path(before: str, statement: str, behind: str) -> None:
    text = (before + statement + behind).upper().encode()
    assert STATEMENTS[statement] in mentions(text)
    assert not is_batch(traffic(), m.query(text))
    assert not is_batch(traffic(), m.parse(b"", text) + m.bind(b"", b"") + m.execute(b"") + m.SYNC_MESSAGE)


def test_every_form_is_looked_for_by_the_fast_path() -> None:
    tried = " ".join(STATEMENTS).encode()
    assert all(word in tried for word in (*EVERYWHERE, *ELSEWHERE))
    assert all(IN_EVERYWHERE in word for word in EVERYWHERE)


def test_mentions_takes_time_in_proportion_to_the_text() -> None:
    """Tried at every "drop" anew, this would take minutes, in which the server would do nothing else."""
    assert mentions(b"drop " * 5000 + b"databases") == Keyword.NOTHING
    assert mentions(b"drop " * 100_000 + b"database x") == Keyword.DATABASE


def test_every_state_can_be_closed_and_closed_is_final() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(after(state, Event.CLOSE) is State.CLOSED for state in State)
    with pytest.raises(ImpossibleTransition):
        after(State.CLOSED, Event.ATTENTION)
