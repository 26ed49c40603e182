"""SQL as text: literals, names and calls. dbt renders text, so that values cannot be bound everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dbt_common.exceptions import DbtRuntimeError


def literal(value: object) -> str:
    r"""A value as an SQL literal: None, a Boolean, a number, a text; a dict or a list is one of JSON.

    It means the same whatever `standard_conforming_strings` is.

    >>> literal("it's"), literal("a\\b"), literal(None), literal(True), literal(5), literal({"a": "int"})
    ("'it''s'", " E'a\\\\b'", 'NULL', 'true', '5', '\'{"a": "int"}\'')
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(dict(value) if isinstance(value, Mapping) else list(value))
    if not isinstance(value, str):
        raise DbtRuntimeError(f"a {type(value).__name__} has no SQL literal: {value!r}")
    if "\0" in value:
        raise DbtRuntimeError("a text of PostgreSQL cannot hold the character NUL")
    quoted = "'" + value.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted


def identifier(name: str) -> str:
    """A name, quoted.

    >>> identifier('a"b')
    '"a""b"'
    """
    if not name or "\0" in name:
        raise DbtRuntimeError(f"{name!r} is no name")
    return '"' + name.replace('"', '""') + '"'


def call(function: str, arguments: Mapping[str, object]) -> str:
    """A SELECT that calls a function with named arguments; those that are None are left out.

    >>> call("pgtrickle.alter_stream_table", {"name": "st", "schedule": None, "status": "ACTIVE"})
    "SELECT pgtrickle.alter_stream_table(name => 'st', status => 'ACTIVE')"
    """
    named = (f"{name} => {literal(value)}" for name, value in arguments.items() if value is not None)
    return f"SELECT {function}({', '.join(named)})"
