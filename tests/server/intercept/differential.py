"""Random conversations, held with PostgreSQL itself and with a relay in front of it: the answers must be the same."""

from __future__ import annotations

import random
import re
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.protocol import messages as m
from tests.server.wire import Wire, statement

NAMES = (b"", b"", b"", b"a", b"b")
PLAIN = (
    "select 1",
    "select n, 'x' || n from generate_series(1, 5) n",
    "select",
    "",
    ";",
    "-- nothing",
    "select 1/0",
    "select n/(n - 3) from generate_series(1, 5) n",
    "selec 1",
    "select * from missing",
    "select $1::int + 1",
    "select $1::int, $2::text",
    "begin",
    "begin isolation level serializable",
    "start transaction read only",
    "commit",
    "rollback",
    "commit and chain",
    "rollback and chain",
    "end and no chain",
    "abort work",
    "savepoint s",
    "release s",
    "rollback to s",
    "savepoint s",
    "rollback to s",
    "release s",
    "set extra_float_digits = 0",
    "set application_name = 'one'",
    "set local application_name = 'two'",
    "set standard_conforming_strings = off",
    "show application_name",
    "insert into c values (1), (2)",
    "insert into d values (1)",
    "insert into d values (1) -- twice",
    "delete from c",
    "select count(*) from c",
    "copy c from stdin",
    "copy c to stdout",
    "copy c from stdin; select 2",
    "copy (select 1 where false) to stdout",
    "do $$begin raise notice 'said'; end$$",
    "do $$begin raise warning 'said' using errcode = 'HW003'; end$$",
    "declare k cursor for select n from generate_series(1, 9) n",
    "fetch 2 from k",
    "fetch all in k",
    "move 1 in k",
    "close k",
    "close all",
    "prepare q as select 7",
    "execute q",
    "deallocate all",
    "create temp table e (i int)",
    "drop table e",
    "explain (costs off) select 1",
    "vacuum c",
    "select repeat('y', 20000)",
)
SEVERAL = (
    "select 1; select 2",
    "select 1; select 1/0; select 3",
    "begin; select 1; commit",
    "begin; select 1",
    "insert into c values (3); rollback; select 4",
    "select 1; begin; select 1/0; commit; select 5",
    "commit; select 1",
    "insert into c values (4); savepoint s; select 1",
    "select 1; vacuum c",
    "insert into d values (1); insert into d values (1); select 3",
    "set application_name = 'three'; select 1",
    "insert into c values (9); begin; select count(*) from c; rollback; select count(*) from c",
    "; ; select 1; -- end",
)
CONTROLS = (
    "begin",
    "start transaction read only",
    "commit",
    "end",
    "abort",
    "rollback",
    "commit and chain",
    "end work and chain",
    "rollback and chain",
    "abort and no chain",
    "savepoint s",
    "release s",
    "rollback to s",
)
CHANGES = (
    "insert into c values (1), (2)",
    "insert into d values (1)",
    "delete from c",
    "select count(*) from c",
    "select 1/0",
    "do $$begin raise warning 'said' using errcode = '25001'; end$$",
)
MENTIONING = (
    " /* create_stream_table */",
    " -- drop database",
    " -- create extension pgque",
    " /* for subscribe t */",
    " -- create source",
    " -- copy from 's3://'",
    " /*\n subscribe x */",
)
"""What is put behind a statement, so that an interceptor reads it, which must come to nothing."""


@dataclass(frozen=True)
class Conversation:
    """What a client sends: whole messages; in how large pieces (0: all at once), and whether it waits between them."""

    messages: tuple[bytes, ...]
    piece: int = 0
    waiting: bool = False


class Speaker:
    """Makes up conversations. Batches that mention what is the server's run in transactions of the server's, of which
    the answers must say nothing.
    """

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.mentioning = self.chance.random() < 0.5

    def conversation(self) -> Conversation:
        chance = self.chance
        steps = [step for _ in range(chance.randrange(1, 9)) for step in self._step()]
        if chance.random() < 0.4:
            steps += self._pipeline()
        if chance.random() < 0.1:
            at = chance.randrange(len(steps))
            steps[at:at] = [m.query(b"copy c from stdin"), m.message(m.COPY_DATA, b"1\n"), m.COPY_DONE_MESSAGE]
        return Conversation(tuple(steps), chance.choice((0, 0, 1, 7, 40, -1)), chance.random() < 0.2)

    def _text(self, several: bool) -> bytes:
        chance = self.chance
        text = chance.choice(SEVERAL if several and chance.random() < 0.4 else PLAIN)
        if self.mentioning and chance.random() < 0.5 and "--" not in text:
            text += chance.choice(MENTIONING)
            if chance.random() < 0.2:
                text = text.replace("select", chance.choice(MENTIONING).replace("--", "\n --") + "\nselect", 1)
        return text.encode()

    def _pipeline(self) -> list[bytes]:
        """Several Executes without a Sync between them, and what may end their transaction, or goes on with it."""
        chance = self.chance
        older = chance.choice(CONTROLS).encode()
        name = chance.choice((b"", b"a"))
        steps = [m.parse(name, older), m.SYNC_MESSAGE] if chance.random() < 0.3 else []
        executed = m.bind(b"", name) + m.execute(b"") if steps else statement(chance.choice(CONTROLS))
        middle = [executed]
        for _ in range(chance.randrange(4)):
            text = chance.choice(chance.choice((CONTROLS, CHANGES)))
            middle.append(statement(text, name=b"b" if chance.random() < 0.1 else b""))
        chance.shuffle(middle)
        mention = chance.choice(MENTIONING) if self.mentioning else ""
        first = statement(chance.choice(CHANGES) + mention, name=b"b" if name or not steps else b"c")
        ends = [m.SYNC_MESSAGE, *(m.query(chance.choice((*CONTROLS, *CHANGES, *SEVERAL)).encode()) for _ in range(3))]
        chance.shuffle(ends)
        return [*steps, first, *middle, *ends[: chance.randrange(5)], m.SYNC_MESSAGE]

    def _step(self) -> list[bytes]:
        chance = self.chance
        name, portal = chance.choice(NAMES), chance.choice(NAMES)
        execute = m.message(m.EXECUTE, portal + b"\0" + chance.choice((0, 0, 0, 1, 2)).to_bytes(4, "big"))
        kind = chance.random()
        if kind < 0.3:
            parameters = chance.choice(([], [], [], [b"5"], [b"5", b"six"], [b"no number"], [None, None]))
            parsed = m.parse(name, self._text(several=chance.random() < 0.1))
            steps = [parsed, m.bind(portal, name, parameters, chance.choice(((), (), (1,)))), execute]
            if chance.random() < 0.3:
                steps.insert(2, m.describe_portal(portal))
            if chance.random() < 0.2:
                steps.insert(1, m.describe_statement(name))
            return [*steps, m.SYNC_MESSAGE] if chance.random() < 0.5 else steps
        if kind < 0.5:
            return [m.query(self._text(several=True))]
        if kind < 0.62:
            return [m.SYNC_MESSAGE]
        if kind < 0.66:
            return [m.FLUSH_MESSAGE]
        if kind < 0.72:
            return [execute]
        if kind < 0.76:
            return [m.bind(portal, name, chance.choice(([], [b"1"]))), execute]
        if kind < 0.82:
            return [m.describe_portal(portal) if chance.random() < 0.5 else m.describe_statement(name)]
        if kind < 0.87:
            return [m.close_portal(portal) if chance.random() < 0.5 else m.close_statement(name)]
        if kind < 0.92:
            return [m.message(m.COPY_DATA, chance.choice((b"1\n2\n", b"x\n", b"", b"7")))]
        if kind < 0.95:
            return [m.COPY_DONE_MESSAGE]
        if kind < 0.97:
            return [m.message(m.COPY_FAIL, b"enough\0")]
        if chance.random() < 0.5:
            return [m.message(m.FUNCTION_CALL, struct.pack(">Ihhh", 999999, 0, 0, 0))]
        return [m.message(m.FUNCTION_CALL, struct.pack(">Ihhi", INT4LARGER, 0, 2, 1) + b"7\0\0\0\x0212\0\0")]


INT4LARGER = 768
SETUP = b"create temp table c (i int); create temp table d (i int primary key deferrable initially deferred)"
_TEMPORARY = re.compile(rb"pg_temp_[0-9]+")
_PLACE = re.compile(rb"\0F[a-z_]+\.[cly]\0L[0-9]+\0R[A-Za-z_]+")


def held_with(wire: Wire, said: Conversation, marker: bytes) -> list[tuple[str, bytes]]:
    """Hold a conversation; returns what was answered, up to the end of the connection if it came to that."""
    answers: list[tuple[str, bytes]] = []
    end = [
        m.message(m.COPY_FAIL, b"the end\0"),
        m.SYNC_MESSAGE,
        m.query(b"rollback"),
        m.query(b"discard all"),
        m.query(b"select '" + marker + b"'"),
    ]
    try:
        wire.send(m.query(SETUP))
        wire.until()
        for piece in _pieces(said):
            wire.send(piece)
            if said.waiting:
                time.sleep(0.003)
        wire.send(*end)
        while True:
            kind, body = wire.receive()
            answers.append((kind, comparable(kind, body)))
            if kind == "D" and marker in body:
                answers += [(kind, comparable(kind, body)) for kind, body in wire.until()]
                return answers
    except (EOFError, ConnectionError):
        return [*answers, ("end", b"")]


def _pieces(said: Conversation) -> Sequence[bytes]:
    if said.piece < 0:
        return said.messages
    stream = b"".join(said.messages)
    size = said.piece or max(1, len(stream))
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def differ(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> bool:
    """Whether answers differ in more than when a parameter is reported, and who gets to see why a connection ends.

    What PostgreSQL itself gets wrong (a Query behind a suspended portal can leave it in a state that it does not know)
    may be different.
    """
    if any(b"CXX000" in body for _, body in one):
        return False
    ended = one[-1][0] == "end"
    if ended != (other[-1][0] == "end"):
        return True
    one, other = _in_order(one), _in_order(other)
    if not ended:
        return one != other
    one, other = _last_words_off(one), _last_words_off(other)
    shorter = min(len(one), len(other))
    return one[:shorter] != other[:shorter]


def _in_order(answers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Parameters that are reported go in front of the ReadyForQuery behind them."""
    found: list[tuple[str, bytes]] = []
    reported: list[tuple[str, bytes]] = []
    for answer in answers:
        if answer[0] == "S":
            reported.append(answer)
            continue
        if answer[0] == "Z":
            found += reported
            reported = []
        found.append(answer)
    return found


def _last_words_off(answers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    while answers and (answers[-1][0] == "end" or b"VFATAL" in answers[-1][1] or b"C08P01" in answers[-1][1]):
        answers.pop()
    return answers


def comparable(kind: str, body: bytes) -> bytes:
    """A message without the numbers of temporary tables, and the places in PostgreSQL's source."""
    if kind != "T":
        return _PLACE.sub(b"", _TEMPORARY.sub(b"pg_temp", body))
    columns, position = [], 2
    for _ in range(int.from_bytes(body[:2], "big")):
        end = body.index(b"\0", position) + 1
        columns.append(body[position:end] + body[end + 4 : end + 18])
        position = end + 18
    return b"|".join(columns)
