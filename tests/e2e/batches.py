"""Kinds of calls and kinds of batches, and crews that send the ones in the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import conninfo

from server.protocol import messages as m
from tests.e2e.conftest import Database
from tests.server.intercept.differential import comparable, differ
from tests.server.wire import Wire, errors_of, statement

DEADLINE = 20.0
"""Seconds within which everything that was sent must be answered."""
AT_ONCE = 4
"""Conversations that are held at the same time, each by a crew with tables of its own."""


@dataclass(frozen=True)
class Call:
    """A call, and what does the same in PostgreSQL alone; `{n}` is the crew's number."""

    sql: str
    alike: str = "select 1"
    """PostgreSQL's session is afterwards in the state in which it is after this."""
    data: tuple[bytes, ...] = ()
    """COPY data that follow."""
    fails: str = ""
    """SQLSTATE of the engine's error."""

    @property
    def plain(self) -> bool:
        """Whether it is no request: the answers are PostgreSQL's, byte by byte."""
        return self.sql == self.alike and not self.fails


def _plain(sql: str, *data: bytes) -> Call:
    return Call(sql, sql, data)


COPIED = (m.message(m.COPY_DATA, b"1\n"), m.message(m.COPY_DATA, b"2\n"), m.COPY_DONE_MESSAGE)
_MAKE = "pgtrickle.create_stream_table('made{n}', 'select id, v from source{n}')"
_BLOCK = "do $$begin perform 1; end$$"
_DEFERRED = "insert into d values (1), (1)"
CALLS = {
    "select": _plain("select n from generate_series(1, 3) n"),
    "create": Call(f"select {_MAKE}"),
    "refresh": Call("select pgtrickle.refresh_stream_table('kept{n}')"),
    "drop": Call("select pgtrickle.drop_stream_table('spare{n}')"),
    "event": Call("select pgque.send('queue', 'x')"),
    "queue that is made": Call("select pgque.create_queue('made{n}')"),
    "register that is made": Call('select accum.register_create(\'made{n}\', \'{{"d": "int"}}\', \'{{"r": "int"}}\')'),
    "movement": Call(
        'select accum.register_post(\'register\', \'[{{"recorder": "a", "period": "2026-04-18", "d": {n}, "r": 1}}]\')'
    ),
    "register": Call("select accum.register_info('register')"),
    "function": Call("select make{n}()"),
    "block": Call(f"do $$begin perform {_MAKE}; end$$", _BLOCK),
    "trigger": Call("insert into making{n} values (1)", "insert into unmade values (1)"),
    "cte": Call(f"with made as materialized (select {_MAKE}) select * from made"),
    "execute": Call("do $$begin execute 'select make{n}()'; end$$", _BLOCK),
    "procedure": Call("call proceed{n}()", _BLOCK),
    "subscribe": Call("subscribe (select 1 as one)"),
    "copy in": _plain("copy c from stdin", *COPIED),
    "copy in with a trigger": Call("copy making{n} from stdin", "copy unmade from stdin", COPIED),
    "copy in that fails": _plain("copy c from stdin", m.message(m.COPY_DATA, b"no number\n"), m.COPY_DONE_MESSAGE),
    "copy out": _plain("copy (select n from generate_series(1, 3) n) to stdout"),
    "copy out of a request": Call(f"copy (select {_MAKE}) to stdout", "copy (select 1) to stdout"),
    "begin": _plain("begin"),
    "commit": _plain("commit"),
    "rollback": _plain("rollback"),
    "rollback and chain": _plain("rollback and chain"),
    "savepoint": _plain("savepoint s"),
    "failing": _plain("select 1/0"),
    "not parsed": _plain("selec 1"),
    "set": _plain("set statement_timeout = '19s'"),
    "listen": _plain("listen heard{n}"),
    "notify": _plain("notify heard{n}, 'x'"),
    "deferred": _plain(_DEFERRED),
    "request that fails": Call("select pgtrickle.refresh_stream_table('missing')", "select 1/0", fails="42P01"),
    "request that is refused": Call(
        "select pgtrickle.create_stream_table('made{n}', 'select nothing from source{n}')", "select 1/0", fails="42703"
    ),
    "function whose request is refused": Call("select refused{n}()", "select 1/0", fails="42703"),
}

Batch = Callable[[str, tuple[bytes, ...]], list[bytes]]
S, ONE = m.SYNC_MESSAGE, statement("select 1")


def _query(*texts: str) -> bytes:
    return m.query("; ".join(texts).encode())


def _prepared(sql: str, name: bytes) -> list[bytes]:
    return [
        m.parse(name, sql.encode()),
        S,
        ONE if name else m.close_portal(b"x"),
        S,
        m.bind(b"", name) + m.execute(b""),
    ]


BATCHES: dict[str, Batch] = {
    "a query": lambda sql, data: [_query(sql), *data],
    "first of a string": lambda sql, data: [_query(sql, "select 1"), *data],
    "middle of a string": lambda sql, data: [_query("select 1", sql, "select 2"), *data],
    "last of a string": lambda sql, data: [_query("select 1", sql), *data],
    "string behind BEGIN": lambda sql, data: [_query("begin", sql, "commit"), *data],
    "with Sync": lambda sql, data: [statement(sql), *data, S],
    "named": lambda sql, data: [*_prepared(sql, b"named"), *data, S],
    "unnamed of an earlier batch": lambda sql, data: [*_prepared(sql, b""), *data, S],
    "first of a pipeline": lambda sql, data: [statement(sql), *data, ONE, ONE, S],
    "middle of a pipeline": lambda sql, data: [ONE, statement(sql), *data, ONE, S],
    "last of a pipeline": lambda sql, data: [ONE, ONE, statement(sql), *data, S],
    "twice in a pipeline": lambda sql, data: [statement(sql), *data, statement(sql), *data, S],
    "with Flush": lambda sql, data: [statement(sql), *data, m.FLUSH_MESSAGE, ONE, m.FLUSH_MESSAGE, S],
    "batch behind it": lambda sql, data: [statement(sql), *data, S, ONE, S, _query("select 2")],
    "query behind it": lambda sql, data: [_query(sql), *data, _query("select 2"), ONE, S],
    "query without a Sync behind it": lambda sql, data: [statement(sql), *data, _query("select 2"), S],
    "query without a Sync before it": lambda sql, data: [ONE, _query(sql), *data, S],
    "in a transaction": lambda sql, data: [_query("begin"), _query(sql), *data, _query("commit")],
    "in a transaction, extended": lambda sql, data: [_query("begin"), statement(sql), *data, S, _query("commit")],
    "transaction in a pipeline": lambda sql, data: [statement("begin"), statement(sql), *data, statement("commit"), S],
    "behind a savepoint": lambda sql, data: [_query("begin; savepoint s"), statement(sql), *data, S, _query("commit")],
    "in a failed transaction": lambda sql, data: [
        *(_query("begin; select 1/0"), _query(sql), *data, statement(sql), *data, S, _query("rollback")),
    ],
    "behind an error": lambda sql, data: [statement("selec 1"), statement(sql), *data, S],
    "before an error": lambda sql, data: [statement(sql), *data, statement("selec 1"), S],
    "with a row limit": lambda sql, data: [
        *(statement(sql, portal=b"p", rows=1), *data, m.message(m.EXECUTE, b"p\0\0\0\0\1"), S),
    ],
    **{
        f"{control} behind it": lambda sql, data, control=control: [statement(sql), *data, statement(control), ONE, S]  # type: ignore[misc]
        for control in ("begin", "commit", "rollback", "commit and chain", "savepoint s", "rollback to s", "release s")
    },
    "described only": lambda sql, data: [
        *(m.parse(b"", sql.encode()), m.describe_statement(b""), m.bind(b"", b""), m.describe_portal(b""), S),
    ],
}


@dataclass(frozen=True)
class Case:
    call: str
    batch: str
    piecewise: bool = False
    """Whether each message comes by itself."""

    def messages(self, crew: int, sql: str | None = None) -> list[bytes]:
        call = CALLS[self.call]
        return BATCHES[self.batch]((sql or call.sql).format(n=crew), call.data)


SETUP = """
CREATE TABLE unmade (n int);
SELECT pgque.create_queue('queue');
SELECT accum.register_create(name := 'register', dimensions := '{{"d": "int"}}', resources := '{{"r": "int"}}');
"""
OF_A_CREW = f"""
CREATE TABLE source{{n}} (id int PRIMARY KEY, v int);
INSERT INTO source{{n}} SELECT i, i FROM generate_series(1, 10) AS i;
CREATE FUNCTION make{{n}}() RETURNS text LANGUAGE plpgsql AS $f$
    BEGIN PERFORM pgtrickle.create_stream_table('made{{n}}', 'select id, v from source{{n}}'); RETURN ''; END $f$;
CREATE FUNCTION refused{{n}}() RETURNS text LANGUAGE plpgsql AS $f$
    BEGIN PERFORM pgtrickle.create_stream_table('made{{n}}', 'select nothing from source{{n}}'); RETURN ''; END $f$;
CREATE PROCEDURE proceed{{n}}() LANGUAGE plpgsql AS $f$ BEGIN PERFORM {_MAKE}; END $f$;
CREATE FUNCTION trigger{{n}}() RETURNS trigger LANGUAGE plpgsql AS $f$
    BEGIN PERFORM make{{n}}(); RETURN NULL; END $f$;
CREATE TABLE making{{n}} (n int);
CREATE TRIGGER making AFTER INSERT ON making{{n}} FOR EACH STATEMENT EXECUTE FUNCTION trigger{{n}}();
"""
OF_A_SESSION = """
    create temp table c (i int); create temp table d (i int primary key deferrable initially deferred)
"""


class Crew:
    """Holds conversations with the server, and with PostgreSQL itself."""

    def __init__(self, db: Database, number: int):
        self.number = number
        limits = conninfo.make_conninfo(connect_timeout=20)
        self.dsn = conninfo.make_conninfo(db.server.dsn(db.name), **conninfo.conninfo_to_dict(limits))
        self.direct = db.server.direct_dsn(db.name)
        self._wires: dict[str, Wire] = {}
        with psycopg.connect(self.dsn, autocommit=True) as client:
            client.execute(OF_A_CREW.format(n=number).encode())
            client.execute(f"SELECT pgtrickle.create_stream_table('kept{number}', 'SELECT sum(v) FROM source{number}')")
        self.restore()

    def restore(self) -> None:
        """Put back what a conversation has made, dropped and brought up to date."""
        n = self.number
        with psycopg.connect(self.dsn, autocommit=True) as client:
            present = {
                name for (name,) in client.execute("SELECT pgt_name FROM pgtrickle.pgt_stream_tables").fetchall()
            }
            if f"made{n}" in present:
                client.execute("SELECT pgtrickle.drop_stream_table(%s)", [f"made{n}"])
            client.execute("SELECT pgque.drop_queue(queue_name) FROM pgque.queue WHERE queue_name = %s", [f"made{n}"])
            client.execute("SELECT accum.register_drop(name, true) FROM accum._registers WHERE name = %s", [f"made{n}"])
            if f"spare{n}" not in present:
                client.execute(
                    "SELECT pgtrickle.create_stream_table(%s, %s)",
                    [f"spare{n}", f"SELECT v FROM source{n} WHERE v > 5"],
                )
            client.execute(f"UPDATE source{n} SET v = v + 1 WHERE id = 1")

    def wire(self, dsn: str) -> Wire:
        if dsn not in self._wires:
            self._wires[dsn] = wire = Wire(dsn)
            wire.socket.settimeout(DEADLINE)
            wire.send(m.query(OF_A_SESSION.encode()))
            wire.until()
        return self._wires[dsn]

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def held(self, dsn: str, messages: Sequence[bytes], piecewise: bool) -> list[tuple[str, bytes]]:
        """What is answered, up to the answer to what is asked last. Raises TimeoutError."""
        wire = self.wire(dsn)
        deadline = time.monotonic() + DEADLINE
        for message in messages if piecewise else [b"".join(messages)]:
            wire.send(message)
            if piecewise:
                time.sleep(0.002)
        wire.send(m.message(m.COPY_FAIL, b"end\0"), S, _query("rollback"), _query("reset all"), _query("unlisten *"))
        wire.send(_query("deallocate all"), _query("select 'marker'"))
        answers: list[tuple[str, bytes]] = []
        while time.monotonic() < deadline:
            kind, body = wire.receive()
            if kind != "A":  # comes whenever it does
                answers.append((kind, comparable(kind, body)))
            if kind == "D" and body.endswith(b"marker"):
                return answers + wire.until()
        raise TimeoutError

    def check(self, case: Case) -> str | None:
        """What is wrong with the answers, if anything is."""
        call = CALLS[case.call]
        try:
            got = self.held(self.dsn, case.messages(self.number), case.piecewise)
        except TimeoutError:
            self.close()
            return "no answer"
        except (EOFError, ConnectionError):
            self.close()
            return "the session has ended"
        alike = self.held(self.direct, case.messages(self.number, call.alike), case.piecewise)
        own = "XX000" in errors_of(alike)  # PostgreSQL itself errs: it does not know its state behind such a batch
        if own or (call.fails and "XX000" in errors_of(got) and self._errs(case)):
            return None if call.plain else self.restore()
        if "XX000" in errors_of(got):
            return f"internal error: {_shown(got)}"
        if call.plain:
            return f"{_shown(got)} instead of {_shown(alike)}" if differ(alike, got) else None
        self.restore()
        return self._otherwise(case, call, got, alike)

    def _errs(self, case: Case) -> bool:
        """Whether PostgreSQL itself has an internal error where the call does not fail."""
        return "XX000" in errors_of(self.held(self.direct, case.messages(self.number, "select 1"), case.piecewise))

    def _otherwise(
        self, case: Case, call: Call, got: list[tuple[str, bytes]], alike: list[tuple[str, bytes]]
    ) -> str | None:
        """A request has PostgreSQL's states, and fails as it must, or is refused and has the states of an error."""
        ours, theirs = errors_of(got), errors_of(alike)
        if call.fails:
            theirs = [call.fails if error == "22012" else error for error in theirs]
        if _states(got) == _states(alike) and ours == theirs:
            return None
        passing = self.held(self.direct, case.messages(self.number, "select 1"), case.piecewise)
        # What comes later in the batch may have failed first.
        later = call.fails and (ours or case.batch in NOT_CARRIED_OUT)
        if later and (_states(got), ours) == (_states(passing), errors_of(passing)):
            return None
        if call.fails:  # what was noticed when the statement had been answered fails as a deferred constraint does
            late = self.held(self.direct, case.messages(self.number, _DEFERRED), case.piecewise)
            expected = [call.fails if error == "23505" else error for error in errors_of(late)]
            if (_states(got), ours) == (_states(late), expected):
                return None
            if "XX000" in errors_of(passing) and ours == [call.fails]:  # PostgreSQL itself errs: no states to compare
                return None
        failing = self.held(self.direct, case.messages(self.number, "select 1/0"), case.piecewise)
        more = [error for error in ours if error not in theirs]
        allowed = REFUSALS + TWICE if case.batch == "twice in a pipeline" else REFUSALS
        if _states(got) in map(_states, (alike, failing, passing)) and more and all(error in allowed for error in more):
            return None
        return f"{_states(got)} and {ours} instead of {_states(alike)} and {theirs}"


REFUSALS = ("0A000",)
NOT_CARRIED_OUT = ("described only", "rollback behind it", "begin behind it")
"""A function's request in a pipeline is carried out as its transaction ends: it is rolled back here, or open."""
TWICE = ("42P07", "42P01", "42710")
"""What is made or dropped the second time."""


def _states(answers: list[tuple[str, bytes]]) -> str:
    return "".join(body.decode() for kind, body in answers if kind == "Z")


def _shown(answers: list[tuple[str, bytes]]) -> str:
    return "".join(kind + (body.decode() if kind == "Z" else "") for kind, body in answers) + f" {errors_of(answers)}"
