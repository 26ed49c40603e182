"""Functions of users that are written in SQL, as Spark is given them: what their bodies mean, by PostgreSQL's word.

A body is read by PostgreSQL as a query over one row, whose columns are the parameters, with the search_path and the
settings under which a refresh calls the function. A body that is a text means what it means there; of one that
PostgreSQL keeps parsed (`RETURN`, `BEGIN ATOMIC`) the functions are compared that it is known to call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from catalog.pinned_settings import PINNED_PATH
from catalog.session import SqlSession
from engine.compile.compiled_query import Kept
from engine.compile.pool import compilers
from engine.session.transactions import set_role
from engine.stream_tables.analysis import FunctionUse
from engine.stream_tables.plan_inputs import guard
from sql import NotDifferentiable, jobs
from sql.base.text import quote
from sql.spark.types import base_type
from sql.spark.user_defined.functions import SqlFunction

# The labels of all enums as well: bodies have them as literals, and they can be given other names.
_HASHES = """
SELECT coalesce(nullif(s.function_hashes, ''), '{}'),
       CASE WHEN s.function_hashes OPERATOR(pg_catalog.<>) '{}' THEN (
           SELECT pg_catalog.md5(pg_catalog.string_agg(
                      pg_catalog.concat_ws(' ', e.oid, e.enumlabel), ',' ORDER BY e.oid
                  ))
           FROM pg_catalog.pg_enum e
       ) END
FROM pgtrickle.pgt_stream_tables s
WHERE s.pgt_id OPERATOR(pg_catalog.=) $1::pg_catalog.int8
"""

# Of functions by their signatures. The last column: whether those of the query are what they were when it was planned.
_FUNCTIONS = """
SELECT pg_catalog.jsonb_build_object(
           'signature', g.signature, 'schema', n.nspname, 'name', p.proname, 'kind', p.prokind,
           'language', l.lanname, 'volatile', p.provolatile OPERATOR(pg_catalog.=) 'v', 'strict', p.proisstrict,
           'set', p.proretset, 'definer', p.prosecdef, 'settings', p.proconfig IS NOT NULL,
           'modes', p.proargmodes IS NOT NULL, 'defaults', ARRAY(
               SELECT pg_catalog.pg_get_function_arg_default(p.oid, d.place)
               FROM pg_catalog.generate_series(p.pronargs - p.pronargdefaults + 1, p.pronargs) AS d(place)
               ORDER BY d.place),
           'result', pg_catalog.format_type(p.prorettype, NULL),
           'names', p.proargnames,
           'types', ARRAY(SELECT pg_catalog.format_type(t.oid, NULL)
                          FROM pg_catalog.unnest(p.proargtypes) WITH ORDINALITY AS t(oid, place) ORDER BY t.place),
           'plain', NOT EXISTS (
               SELECT FROM pg_catalog.pg_type t
               WHERE (t.oid OPERATOR(pg_catalog.=) p.prorettype
                      OR t.oid OPERATOR(pg_catalog.=) ANY (p.proargtypes::pg_catalog.oid[]))
                 AND (t.typtype NOT IN ('b', 'e', 'r') OR t.oid OPERATOR(pg_catalog.=) 'bpchar'::pg_catalog.regtype)),
           'text', p.prosrc, 'parsed', pg_catalog.pg_get_function_sqlbody(p.oid),
           'calls', ARRAY(SELECT DISTINCT d.refobjid::pg_catalog.regprocedure::pg_catalog.text
                          FROM pg_catalog.pg_depend d
                          WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                            AND d.objid OPERATOR(pg_catalog.=) p.oid
                            AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass)
       )::pg_catalog.text,
       (SELECT pgtrickle._changed_function($2::pg_catalog.text))
FROM pg_catalog.unnest($1::pg_catalog.text[]) AS g(signature)
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(g.signature)
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid OPERATOR(pg_catalog.=) p.prolang
"""

# A function within a function that PostgreSQL has put in its place is not asked for when a query is planned.
_DENIED = """
SELECT g.signature FROM pg_catalog.unnest($1::pg_catalog.text[]) AS g(signature)
WHERE pg_catalog.has_function_privilege(
    $2::pg_catalog.text::pg_catalog.name, pg_catalog.to_regprocedure(g.signature)::pg_catalog.oid, 'EXECUTE'
) IS NOT TRUE
LIMIT 1
"""

# In the time zone of refreshes, which the session has for the time of the statement: a client is told of no other.
_ANALYSED = """
SELECT found.text, pg_catalog.set_config('TimeZone', found.zone, true) FROM (
    SELECT pgtrickle._analysed($1::text, $2::text, $3::text[], true)::text AS text, before.zone
    FROM (SELECT current.zone, pg_catalog.set_config('TimeZone', 'UTC', true)
          FROM (SELECT pg_catalog.current_setting('TimeZone') AS zone OFFSET 0) AS current OFFSET 0) AS before
    OFFSET 0
) AS found
"""

_NUMBERS = frozenset(("smallint", "integer", "bigint", "numeric", "real", "double precision"))

_PARSED = re.compile(r"\s*(?:RETURN\s+(?P<returned>.*)|BEGIN ATOMIC\s+(?P<statement>.*?);?\s*END)\s*", re.DOTALL)

_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<![\w$])\$(?P<number>[0-9]+)""")
"""Parameters by their numbers, and what may hold something that looks like one."""

_UNCLEAR = re.compile(r"\\|/\*|--|\$[^0-9]")
"""What a text may have in which numbers of parameters are not looked for: escapes, comments, quotes by dollars."""


class FunctionsRefused(Exception):
    """Functions are not what they were when the query was planned, or not for its owner; the text says which."""


class SqlFunctions:
    """The functions that queries of one database call, each kept as long as none of the query's changes."""

    def __init__(self) -> None:
        self._kept: Kept[tuple[str, str, str], tuple[tuple[str, ...], tuple[SqlFunction, ...]]] = Kept(256)

    async def of(self, session: SqlSession, pgt_id: int, owner: str, caller: str) -> tuple[SqlFunction, ...]:
        """Those that a stream table's query calls, and that these call in turn, with the rights of its owner.

        `caller` is the role that the session acts as. Raises FunctionsRefused, SqlError.
        """
        rows = await session.fetch(_HASHES, pgt_id)
        hashes, labels = map(str, rows[0]) if rows else ("{}", "")
        if hashes == "{}":
            return ()

        async def made() -> tuple[tuple[str, ...], tuple[SqlFunction, ...]]:
            return await _reached(session, hashes, owner, caller)

        signatures, functions = await self._kept.get((hashes, labels, owner), made)
        denied = await session.fetch(_DENIED, list(signatures), owner)
        if denied:
            raise FunctionsRefused(f"the owner may not execute function {denied[0][0]}")
        return functions


async def _reached(
    session: SqlSession, hashes: str, owner: str, caller: str
) -> tuple[tuple[str, ...], tuple[SqlFunction, ...]]:
    """The signatures of the functions of a query and of those that they call, and what is known of them."""
    found: dict[str, tuple[dict[str, Any], SqlFunction]] = {}
    fresh = sorted(json.loads(hashes))
    while fresh:
        rows = await session.fetch(_FUNCTIONS, fresh, hashes)
        if changed := next((row[1] for row in rows if row[1]), None):
            raise FunctionsRefused(str(changed))
        called: set[str] = set()
        async with set_role(session, owner, current=caller):
            for facts in (json.loads(row[0]) for row in rows):
                function, calls = await _function(session, facts)
                found[facts["signature"]] = facts, function
                called |= calls
        fresh = sorted(called - found.keys())
    known = [facts for facts, _ in found.values()]
    return tuple(found), tuple(_told_apart(facts, function, known) for facts, function in found.values())


def _told_apart(facts: dict[str, Any], function: SqlFunction, known: Sequence[dict[str, Any]]) -> SqlFunction:
    """The function, refused where a call by its name could be that of another one."""
    others = [other for other in known if (other["schema"], other["name"]) == (facts["schema"], facts["name"])]
    alike = [other for other in others if len(other["types"]) == len(facts["types"])]
    if not function.refused and (len(alike) > 1 or (len(others) > 1 and any(other["defaults"] for other in others))):
        return _refused(facts, "of which the query calls several")
    return function


async def _function(session: SqlSession, facts: dict[str, Any]) -> tuple[SqlFunction, set[str]]:
    """A function, and the signatures of those that it calls. Raises SqlError."""
    if reason := _declared_otherwise(facts):
        return _refused(facts, reason), set()
    if ";" in _text(facts):
        # It is read as a part of a statement, of which it could otherwise be the end, and more be behind it.
        return _refused(facts, "whose body may be more than one statement"), set()
    body = _statement(facts)
    if body is None:
        return _refused(facts, "whose body is not understood"), set()
    query = _over_parameters(facts, body)
    parts = ("definition", "columns", "dependencies", "functions")
    ((text, _),) = await session.fetch(_ANALYSED, query, PINNED_PATH, list(parts))
    found = json.loads(text)
    if "failed" in found:
        return _refused(facts, f"whose body PostgreSQL refuses ({found['message']})"), set()
    uses = [FunctionUse(*use) for use in found["functions"]]
    calls = {use.signature for use in uses if use.signature}
    reason = _does_otherwise(facts, found, uses, calls)
    defaults = tuple(map(str, facts["defaults"]))
    if reason := reason or await _not_understood(session, found["definition"], defaults):
        return _refused(facts, reason), set()
    parameters = tuple(zip(_names(facts), facts["types"], strict=True))
    function = SqlFunction(
        facts["schema"],
        facts["name"],
        parameters,
        facts["result"],
        bool(facts["strict"]),
        str(found["definition"]),
        defaults=defaults,
    )
    return function, calls


def _refused(facts: dict[str, Any], reason: str) -> SqlFunction:
    return SqlFunction(facts["schema"], facts["name"], refused=reason)


def _declared_otherwise(facts: dict[str, Any]) -> str:
    """Why a function cannot be put in the place of its calls, by how it is declared; nothing if it may be."""
    kinds = {"a": "an aggregate", "w": "a window function", "p": "a procedure"}
    reasons = (
        (facts["kind"] in kinds, f"which is {kinds.get(facts['kind'])}"),
        (facts["language"] != "sql", f"which is written in {facts['language']}"),
        (facts["definer"], "which is SECURITY DEFINER"),
        (facts["settings"], "which has a SET clause"),
        (facts["set"], "which returns a set"),
        (facts["volatile"], "which is volatile"),
        (facts["modes"], "which has parameters that are not IN"),
        (not facts["plain"], "with a type that is composite, polymorphic, a domain or character"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _does_otherwise(facts: dict[str, Any], found: dict[str, Any], uses: Sequence[FunctionUse], calls: set[str]) -> str:
    """The same by what its body does."""
    columns = found["columns"]
    if found["dependencies"]:
        return "which reads a table"
    if any(use.volatility == "v" for use in uses):
        return "which calls a volatile function"
    if any(use.kind for use in uses) or len(columns) != 1:
        return "whose body is more than an expression"
    if facts["parsed"] is not None and calls != {*facts["calls"]}:
        return "of which it is not clear what it calls"
    given, wanted = base_type(str(columns[0]["type"])), base_type(facts["result"])
    if given != wanted and not {given, wanted} <= _NUMBERS:
        return f"whose body gives {given} for {wanted}"
    return ""


async def _not_understood(session: SqlSession, definition: str, defaults: tuple[str, ...]) -> str:
    """The same by what the compiler reads."""
    try:
        await guard(session, definition)
    except NotDifferentiable:
        return "whose body is not understood exactly"
    return await compilers().run(jobs.body_obstacle, definition, defaults)


def _names(facts: dict[str, Any]) -> list[str]:
    """The names of parameters as columns have them: those without one have their number."""
    names = facts["names"] or [""] * len(facts["types"])
    return [name or f"${number}" for number, name in enumerate(names, 1)]


def _text(facts: dict[str, Any]) -> str:
    """The body where it is a text, without the end of its statement; empty where PostgreSQL has it parsed."""
    return "" if facts["parsed"] is not None else str(facts["text"]).strip().removesuffix(";").strip()


def _statement(facts: dict[str, Any]) -> str | None:
    """The body as a SELECT, over columns for parameters; None where it cannot be told which these are."""
    body = _text(facts)
    if facts["parsed"] is not None:
        found = _PARSED.fullmatch(str(facts["parsed"]))
        if found is None:
            return None
        body = found["statement"] or f"SELECT {found['returned']}"
    return _by_name(body, [f"{quote(facts['name'])}.{quote(name)}" for name in _names(facts)])


def _by_name(body: str, names: Sequence[str]) -> str | None:
    """A body with names in the place of its parameters' numbers.

    >>> _by_name("SELECT $1 || '$2'", ['f."$1"', "f.b"])
    'SELECT f."$1" || \\'$2\\''
    >>> _by_name("SELECT $1 -- $2", ['f."$1"'])
    """
    if "$" not in body:
        return body
    if _UNCLEAR.search(body) or any(int(n) not in range(1, len(names) + 1) for n in _numbers(body)):
        return None
    return _TOKENS.sub(lambda found: names[int(found["number"]) - 1] if found["number"] else found[0], body)


def _numbers(body: str) -> list[str]:
    return [found["number"] for found in _TOKENS.finditer(body) if found["number"]]


def _over_parameters(facts: dict[str, Any], body: str) -> str:
    """A query that has the body as its only column, over one row of the parameters."""
    given = ", ".join(
        f"NULL::{type_} AS {quote(name)}" for name, type_ in zip(_names(facts), facts["types"], strict=True)
    )
    row = f" FROM (SELECT {given}) AS {quote(facts['name'])}" if given else ""
    return f"SELECT ({body}\n) AS body{row}"
