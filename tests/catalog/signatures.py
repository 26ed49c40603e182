"""An API as programs know it: functions with their arguments, defaults and results, declared in files of lines.

A line is `name(argument type default expression, …) -> result`, the result a type, `setof type`, `table(columns)`,
`record(columns)` or `procedure`; columns that end with `...` are the first of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with parameters and returns its rows."""


@dataclass(frozen=True)
class Argument:
    """An argument, or a column of a result."""

    name: str
    type: str
    default: str | None = None


def declared_lines(name: str) -> list[str]:
    """The lines of a file beside this module; comments begin with #."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def arguments(text: str) -> list[Argument]:
    """What stands in a function's parentheses; a comma within a type has no space after it.

    >>> arguments("a int, b text default 'x'")
    [Argument(name='a', type='int', default=None), Argument(name='b', type='text', default="'x'")]
    """
    found = []
    for part in filter(None, text.split(", ")):
        declared, _, default = part.partition(" default ")
        name, kind = declared.split(" ", 1)
        found.append(Argument(name, kind, default or None))
    return found


def wrong_functions(rows: Rows, schema: str, lines: list[str]) -> list[tuple[str, str]]:
    """The lines that are not true of the schema, each with what is wrong."""
    wrong = []
    for line in lines:
        try:
            _check(rows, schema, line)
        except AssertionError as error:
            wrong.append((line, str(error)))
    return wrong


def _value(rows: Rows, statement: str, *parameters: Any) -> Any:
    ((value,),) = rows(statement, *parameters)
    return value


def _normal(rows: Rows, declared: list[Argument]) -> list[tuple[str, str]]:
    """Names and types, the types as PostgreSQL prints them."""
    return [(a.name, _value(rows, "SELECT %s::regtype::text", a.type)) for a in declared]


def _check(rows: Rows, schema: str, line: str) -> None:
    """Assert that the function is as declared."""
    match = re.fullmatch(r"(\w+)\((.*?)\) -> (setof )?([\w.\[\]]+)(?:\((.*)\))?", line)
    assert match is not None
    name, declared, many, result, columns = match.groups()
    taken = arguments(declared)
    function = _value(
        rows, "SELECT to_regprocedure(%s)::oid", f"{schema}.{name}({', '.join(argument.type for argument in taken)})"
    )
    assert function is not None, "there is none that takes these types"
    [(kind, count, defaults, names, types, modes, retset, returned)] = rows(
        "SELECT prokind, pronargs, pronargdefaults, coalesce(proargnames, '{}'), "
        "ARRAY(SELECT t::regtype::text FROM unnest(coalesce(proallargtypes, proargtypes::oid[])) t), "
        "proargmodes::text[], proretset, prorettype::regtype::text FROM pg_proc WHERE oid = %s",
        function,
    )
    assert list(zip(names, types, strict=False))[:count] == _normal(rows, taken)
    assert defaults == sum(argument.default is not None for argument in taken)
    for position, argument in enumerate(taken, start=1):
        if argument.default is not None:
            stored = _value(rows, "SELECT pg_get_function_arg_default(%s, %s)", function, position)
            assert _value(rows, f"SELECT ({argument.default})::{argument.type} IS NOT DISTINCT FROM ({stored})")
    if result == "procedure":
        assert kind == "p"
        return
    assert kind == "f"
    assert retset is (many is not None or result == "table")
    assert returned == ("record" if result == "table" else _value(rows, "SELECT %s::regtype::text", result))
    if columns is not None:
        out = [(n, t) for n, t, mode in zip(names, types, modes, strict=True) if mode in "ot"]
        wanted = _normal(rows, arguments(columns.removesuffix(", ...")))
        assert (out[: len(wanted)] if columns.endswith(", ...") else out) == wanted
