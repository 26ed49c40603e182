"""The API as programs know it: arguments, defaults and results (`queue_signatures.txt`), and the tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from tests.catalog.conftest import Queue

LINES = [
    line
    for line in (Path(__file__).parent / "queue_signatures.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@dataclass(frozen=True)
class Argument:
    """An argument, or a column of a result."""

    name: str
    type: str
    default: str | None = None


def arguments(text: str) -> list[Argument]:
    """What stands in a function's parentheses.

    >>> arguments("a int, b text default 'x'")
    [Argument(name='a', type='int', default=None), Argument(name='b', type='text', default="'x'")]
    """
    found = []
    for part in filter(None, text.split(", ")):
        declared, _, default = part.partition(" default ")
        name, kind = declared.split(" ", 1)
        found.append(Argument(name, kind, default or None))
    return found


def normal(queue: Queue, declared: list[Argument]) -> list[tuple[str, str]]:
    """Names and types, the types as PostgreSQL prints them."""
    return [(a.name, queue.value("SELECT %s::regtype::text", a.type)) for a in declared]


def test_functions(queue: Queue) -> None:
    wrong = []
    for line in LINES:
        try:
            check(queue, line)
        except AssertionError as error:
            wrong.append((line, str(error)))
    assert wrong == []
    assert len(LINES) > 80


def check(queue: Queue, line: str) -> None:
    """Assert that the function is as declared."""
    match = re.fullmatch(r"(\w+)\((.*?)\) -> (setof )?([\w.\[\]]+)(?:\((.*)\))?", line)
    assert match is not None
    name, declared, many, result, columns = match.groups()
    taken = arguments(declared)
    function = queue.value(
        "SELECT to_regprocedure(%s)::oid", f"pgque.{name}({', '.join(argument.type for argument in taken)})"
    )
    assert function is not None, "there is none that takes these types"
    [(kind, count, defaults, names, types, modes, retset, returned)] = queue.rows(
        "SELECT prokind, pronargs, pronargdefaults, coalesce(proargnames, '{}'), "
        "ARRAY(SELECT t::regtype::text FROM unnest(coalesce(proallargtypes, proargtypes::oid[])) t), "
        "proargmodes::text[], proretset, prorettype::regtype::text FROM pg_proc WHERE oid = %s",
        function,
    )
    assert list(zip(names, types, strict=False))[:count] == normal(queue, taken)
    assert defaults == sum(argument.default is not None for argument in taken)
    for position, argument in enumerate(taken, start=1):
        if argument.default is not None:
            stored = queue.value("SELECT pg_get_function_arg_default(%s, %s)", function, position)
            same = sql.SQL("SELECT ({})::{} IS NOT DISTINCT FROM ({})").format(
                *(sql.SQL(part) for part in (argument.default, argument.type, stored))
            )
            row = queue.connection.execute(same).fetchone()
            assert row == (True,)
    if result == "procedure":
        assert kind == "p"
        return
    assert kind == "f"
    assert retset is (many is not None or result == "table")
    assert returned == ("record" if result == "table" else queue.value("SELECT %s::regtype::text", result))
    if columns is not None:
        out = [(n, t) for n, t, mode in zip(names, types, modes, strict=True) if mode in "ot"]
        assert out[: 3 if name == "queue_health" else None] == normal(queue, arguments(columns))


def test_dead_letters(queue: Queue) -> None:
    """The columns in order: name, type, whether it may be null."""
    assert queue.rows(
        "SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute "
        "WHERE attrelid = 'pgque.dead_letter'::regclass AND attnum > 0 ORDER BY attnum"
    ) == [
        ("dl_id", "bigint", False),
        ("dl_queue_id", "integer", False),
        ("dl_consumer_id", "integer", False),
        ("dl_time", "timestamp with time zone", False),
        ("dl_reason", "text", True),
        ("ev_id", "bigint", False),
        ("ev_time", "timestamp with time zone", False),
        ("ev_txid", "xid8", True),
        ("ev_retry", "integer", True),
        *(
            (column, "text", True)
            for column in ("ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")
        ),
    ]
    assert queue.rows(
        "SELECT confrelid::regclass::text, confdeltype FROM pg_constraint WHERE contype = 'f' "
        "AND conrelid = 'pgque.dead_letter'::regclass ORDER BY 1"
    ) == [("pgque.consumer", "c"), ("pgque.queue", "c")]


def test_message(queue: Queue) -> None:
    assert queue.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'pgque.message'::regclass AND attnum > 0 ORDER BY attnum"
    ) == [
        ("msg_id", "bigint"),
        ("batch_id", "bigint"),
        ("type", "text"),
        ("payload", "text"),
        ("retry_count", "integer"),
        ("created_at", "timestamp with time zone"),
        *((f"extra{number}", "text") for number in range(1, 5)),
    ]


def test_tables(queue: Queue) -> None:
    expected = ["config", "consumer", "dead_letter", "delayed_events", "queue", "retry_queue", "subscription", "tick"]
    found = queue.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgque'::regnamespace AND relname = ANY (%s) ORDER BY 1",
        expected,
    )
    assert [name for (name,) in found] == expected
