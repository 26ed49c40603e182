"""Small pieces of SQL text: quoted identifiers, SELECT, UNION ALL, WITH."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def quote(*names: str) -> str:
    """A possibly qualified identifier, always quoted.

    >>> quote("public", 'odd "name"')
    '"public"."odd ""name\"""'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def text(value: str) -> str:
    """A string literal, whatever standard_conforming_strings says.

    >>> text("it's")
    "'it''s'"
    """
    return " " + escape_string(value) if "\\" in value else plain_string(value)


def plain_string(value: str) -> str:
    """A string literal in which backslashes are characters, if the session's standard_conforming_strings is on."""
    return "'" + value.replace("'", "''") + "'"


def escape_string(value: str) -> str:
    """A string literal of the form in which backslashes escape.

    >>> print(escape_string("it's a " + chr(92)))
    E'it''s a \\\\'
    """
    return "E" + plain_string(value).replace("\\", "\\\\")


def aliased(expression: str, name: str) -> str:
    """``expression AS name``; a column that keeps its own name stays short."""
    target = quote(name)
    return expression if expression == target else f"{expression} AS {target}"


def select(
    columns: Iterable[str],
    source: str | None = None,
    *,
    where: Sequence[str] = (),
    group_by: Sequence[str] | None = None,
    having: Sequence[str] = (),
    distinct: bool = False,
) -> str:
    """A SELECT. ``group_by=()`` groups everything into one row, None does not group.

    >>> select(["a", "b"], "t", where=["a > 1", "b < 2"])
    'SELECT a, b FROM t WHERE a > 1 AND b < 2'
    """
    parts = ["SELECT DISTINCT" if distinct else "SELECT", ", ".join(columns)]
    if source is not None:
        parts += ["FROM", source]
    if where:
        parts += ["WHERE", " AND ".join(where)]
    if group_by is not None:
        parts += ["GROUP BY", ", ".join(group_by) or "()"]
    if having:
        parts += ["HAVING", " AND ".join(having)]
    return " ".join(part for part in parts if part)


def derived(query: str, alias: str) -> str:
    """A query as an item of FROM.

    >>> derived("SELECT 1 AS x", "d")
    '(SELECT 1 AS x) AS d'
    """
    return f"({query}) AS {alias}"


def union_all(queries: Sequence[str]) -> str:
    """One query whose rows are those of all the queries together."""
    return " UNION ALL ".join(queries)


def all_of(conditions: Sequence[str]) -> str:
    """A conjunction, TRUE when there is nothing to demand."""
    return " AND ".join(conditions) or "TRUE"


def any_of(conditions: Sequence[str]) -> str:
    """A disjunction in parentheses, FALSE when there is nothing that could hold."""
    return f"({' OR '.join(conditions)})" if conditions else "FALSE"


def repeated(weight: str) -> str:
    """An item of FROM with as many rows as a weight says, none of them with columns.

    Most rows come once, but PostgreSQL expects 1000 rows of ``generate_series(1, weight)``, and would then read whole
    tables to join them. Of this it expects one row: ten from an array that it does not know, a tenth of them by LIMIT.

    >>> repeated('n."w"')
    'LATERAL (SELECT FROM pg_catalog.unnest(pg_catalog.array_fill(NULL::boolean, ARRAY[n."w"::int])) LIMIT n."w")'
    """
    copies = f"pg_catalog.unnest(pg_catalog.array_fill(NULL::boolean, ARRAY[{weight}::int]))"
    return f"LATERAL (SELECT FROM {copies} LIMIT {weight})"
