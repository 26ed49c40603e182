"""A request that is not named by its statement, in a transaction that is sent up to its COMMIT without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from server.protocol import messages as m
from tests.server.conftest import Engaged
from tests.server.wire import Wire, errors_of, statement

S = m.SYNC_MESSAGE
INSERT = "insert into x values (1)"


def _query(text: str) -> bytes:
    return m.query(text.encode())


def _named(text: str) -> bytes:
    return m.parse(b"n", text.encode())


RUN_NAMED = m.bind(b"p", b"n") + m.execute(b"p")
BEGIN, COMMIT, ROW = statement("begin"), statement("commit"), statement(INSERT)
SENT: dict[str, Callable[[str], list[list[bytes]]]] = {  # what is sent at once, and what behind its answer
    "queries": lambda sql: [[_query("begin"), _query(INSERT), _query(sql), _query("commit")]],
    "queries in a block": lambda sql: [[_query("begin"), _query(INSERT)], [_query(sql), _query("/* all */ END")]],
    "string in a block": lambda sql: [[_query("begin"), _query(INSERT)], [_query(f"{sql}; commit")]],
    "string": lambda sql: [[_query(f"begin; {INSERT}; {sql}; commit")]],
    "batches": lambda sql: [[BEGIN, S, ROW, S, statement(sql), S, COMMIT, S]],
    "batches in a block": lambda sql: [[BEGIN, S, ROW, S], [statement(sql), S, COMMIT, S]],
    "one batch": lambda sql: [[BEGIN, ROW, statement(sql), COMMIT, S]],
    "one batch in a block": lambda sql: [[BEGIN, ROW, S], [statement(sql), COMMIT, S]],
    "something before COMMIT": lambda sql: [[BEGIN, ROW, S], [statement(sql), S, statement("select 1"), S, COMMIT, S]],
    "prepared COMMIT": lambda sql: [[_named("commit"), S, BEGIN, ROW, S], [statement(sql), S, RUN_NAMED, S]],
    "prepared COMMIT in one batch": lambda sql: [[_named("end"), S, BEGIN, ROW, S], [statement(sql), RUN_NAMED, S]],
    "prepared alike": lambda sql: [[_named(sql), S, BEGIN, ROW, S], [m.bind(b"", b"n"), m.execute(b""), COMMIT, S]],
    "query behind an execute": lambda sql: [[BEGIN, ROW, S], [statement(sql), _query("commit"), S]],
    "implicit transaction": lambda sql: [[ROW, statement(sql), _query("commit"), S]],
    "query that commits an implicit transaction": lambda sql: [[ROW, statement(sql), _query("select 1"), S]],
    "savepoint": lambda sql: [[BEGIN, ROW, S], [statement("savepoint s"), S, statement(sql), S, COMMIT, S]],
    "another transaction behind it": lambda sql: [
        [_query("begin"), _query(INSERT), _query(sql), _query("commit"), _query("begin"), _query("commit")]
    ],
}
MAKE = "select make('t', 'select 1 as a')"
REFUSED = MAKE.replace("'t'", "'refused'")
MEMBERS = [pytest.param(sent, id=name) for name, sent in SENT.items()]


@pytest.fixture
def calling(engaged: Engaged) -> Engaged:
    """The relay knows that functions make requests."""
    engaged.engine.has_callers = True
    return engaged


def _held(dsn: str, sent: list[list[bytes]], piecewise: bool) -> list[tuple[str, bytes]]:
    """What is answered, up to the rows of table x, after everything has come to its end."""
    wire = Wire(dsn)
    wire.send(_query("create table x (i int)"))
    wire.until()
    answers: list[tuple[str, bytes]] = []
    for parts in sent:
        for part in parts if piecewise else [b"".join(parts)]:
            wire.send(part)
            time.sleep(0.005)
        answers += wire.until()
    wire.send(S, _query("select 'state'"), _query("rollback"), _query("select 'rows ' || count(*) from x"))
    answers.append(wire.receive())
    while not (answers[-1][0] == "D" and b"rows " in answers[-1][1]):
        answers.append(wire.receive())
    wire.close()
    return answers


@pytest.mark.parametrize("piecewise", [False, True])
@pytest.mark.parametrize("sent", MEMBERS)
@pytest.mark.one_in(3)
def test_is_carried_out_before_the_commit(
    calling: Engaged, sent: Callable[[str], list[list[bytes]]], piecewise: bool
) -> None:
    answers = _held(calling.dsn, sent(MAKE), piecewise)
    assert errors_of(answers) == []
    assert (answers[-1][1][6:], calling.tables()) == (b"rows 1", {"t", "x"})


@pytest.mark.parametrize("piecewise", [False, True])
@pytest.mark.parametrize("sent", MEMBERS)
@pytest.mark.one_in(3)
def test_that_fails_fails_with_the_engines_error(
    calling: Engaged, sent: Callable[[str], list[list[bytes]]], piecewise: bool
) -> None:
    answers = _held(calling.dsn, sent(REFUSED), piecewise)
    failures = [m.report_fields(body) for kind, body in answers if kind == "E"]
    assert failures[0]["M"] == b'query of "refused" is refused'
    assert {failure["C"] for failure in failures[1:]} <= {b"25P02"}
    assert (answers[-1][1][6:], calling.tables()) == (b"rows 0", {"x"})


def test_transaction_behind_one_whose_commit_has_failed_so_is_its_own(calling: Engaged) -> None:
    for begin, insert, make, commit in (
        map(_query, ("begin", INSERT, REFUSED, "commit")),
        (part + S for part in map(statement, ("begin", INSERT, REFUSED, "commit"))),
    ):
        with psycopg.connect(calling.direct, autocommit=True) as direct:
            direct.execute("drop table if exists x")
        again = [begin, insert, insert, commit]
        answers = _held(calling.dsn, [[begin, insert, make, commit, *again]], piecewise=False)
        assert len(errors_of(answers)) == 1
        assert answers[-1][1].endswith(b"rows 2")
