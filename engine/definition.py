"""Canonical form: what PostgreSQL's own analysis says about a defining query.

A temporary view of the query validates it with PostgreSQL's own errors; `pg_get_viewdef` under an empty search path
returns it fully resolved; `pg_depend` names its tables and columns; the functions and operators in the view's rewrite
rule give its volatility. Creating a view analyses the query and does not plan it, but reads the constants in it, which
can run code of users: it is done with the rights of the role that acts, and no others.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from catalog.session import SqlError, SqlSession
from engine.transactions import PINNED_PATH, local_setting, quoted
from sql import Column, Source, View

PROBE_VIEW = "__pgt_definition"
TRACKABLE_KINDS = frozenset({"TABLE", "STREAM_TABLE"})
HIDDEN_PREFIX = "__pgt_"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A relation that a defining query reads, and which of its columns."""

    source: Source
    kind: str
    """TABLE, STREAM_TABLE, VIEW, MATVIEW or FOREIGN_TABLE."""
    columns_used: tuple[str, ...]
    obstacle: str | None = None
    """Why triggers on it would not capture all changes."""
    view: View | None = None
    """The definition of a view."""

    @property
    def trackable(self) -> bool:
        """True if triggers can capture its changes."""
        return self.kind in TRACKABLE_KINDS and self.obstacle is None


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """A function (also behind an operator) that a defining query calls."""

    schema: str
    name: str
    volatility: str
    """`i` immutable, `s` stable, `v` volatile."""
    user_defined: bool
    kind: str
    """`aggregate`, `window`, `set` (it returns one), or empty."""
    signature: str | None
    """Of a user-defined function: qualified, with the types of its arguments."""
    body_hash: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A validated defining query."""

    original: str
    canonical: str
    output: tuple[Column, ...]
    dependencies: tuple[Dependency, ...]
    functions: tuple[FunctionUse, ...]

    def functions_of(self, volatility: str) -> list[str]:
        """Names of the functions of one volatility, in order."""
        return sorted({use.name for use in self.functions if use.volatility == volatility})

    @property
    def special_functions(self) -> frozenset[str]:
        """User-defined functions (`kind schema.name`) that are aggregates, window functions or return sets."""
        return frozenset(
            f"{use.kind} {use.schema}.{use.name}" for use in self.functions if use.kind and use.user_defined
        )


def column(described: dict[str, object]) -> Column:
    """A `Column` of what `pgtrickle._source_info` says of it."""
    return Column(
        name=str(described["name"]),
        type=str(described["type"]),
        not_null=bool(described["not_null"]),
        hashable=bool(described["hashable"]),
        faithful=bool(described["faithful"]),
    )


async def describe(session: SqlSession, relids: Sequence[int]) -> list[tuple[Source, str, str | None]]:
    """The columns and key of relations, their kinds, and obstacles to their capture, in the given order."""
    if not relids:
        return []
    ((text,),) = await session.fetch("SELECT pgtrickle._source_info($1::bigint[]::oid[])::text", list(relids))
    return [
        (
            Source(
                oid=int(info["oid"]),
                schema=info["schema"],
                name=info["name"],
                columns=tuple(column(described) for described in info["columns"]),
                key=tuple(info["key"]),
            ),
            info["type"],
            info["obstacle"],
        )
        for info in json.loads(text)
    ]


async def view_columns(session: SqlSession, query: str) -> tuple[Column, ...]:
    """The output columns of a query, with exact types."""
    async with _temporary_view(session, query) as relid:
        described = await describe(session, [relid])
        return described[0][0].columns


async def canonical_text(session: SqlSession, query: str) -> str:
    """The query as `pg_get_viewdef` writes it under an empty search path."""
    async with _temporary_view(session, query) as relid:
        return await _view_definition(session, relid)


async def define(session: SqlSession, query: str, search_path: str) -> Definition:
    """Validate a defining query and say everything the engine must know about it.

    Names in the query are looked up along `search_path`. Raises SqlError: PostgreSQL's own for a query that does not
    parse or names what does not exist, 42601 for an empty one.
    """
    text = query.strip().rstrip(";").strip()
    if not text:
        raise SqlError("42601", "the defining query is empty")
    async with _temporary_view(session, text, search_path=search_path) as relid:
        return await _definition(session, query, relid)


async def _definition(session: SqlSession, original: str, relid: int) -> Definition:
    canonical = await _view_definition(session, relid)
    ((view, _, _),) = await describe(session, [relid])
    output = view.columns
    dependencies = await _dependencies(session, relid)
    # `SELECT *` over a stream table also names its hidden columns, which are not the user's data.
    hidden = {
        c.name
        for dependency in dependencies
        if dependency.kind == "STREAM_TABLE"
        for c in dependency.source.columns
        if c.name.startswith(HIDDEN_PREFIX)
    }
    visible = [c.name for c in output if c.name not in hidden]
    if len(visible) < len(output):
        if not visible:
            raise SqlError("42P16", "the defining query has no column of its own")
        names = ", ".join(quoted(name) for name in visible)
        async with _temporary_view(session, f"SELECT {names} FROM ({canonical}) AS visible", nested=True) as inner:
            canonical = await _view_definition(session, inner)
            output = tuple(c for c in output if c.name in visible)
    if not output:
        raise SqlError("42P16", "the defining query has no columns")
    functions = await _functions(session, relid)
    if len(visible) == len(output) and any(use.user_defined for use in functions):
        await _refuse_other_operators(session, relid, canonical)
    return Definition(original, canonical, output, dependencies, functions)


_OPERATORS = r"""
SELECT coalesce(pg_catalog.string_agg(concat(m[1], m[2]), ' ' ORDER BY concat(m[1], m[2])), '')
FROM pg_catalog.pg_rewrite r,
     pg_catalog.regexp_matches(r.ev_action::text, ':(?:opno (\d+)|opnos \(o ([\d ]+)\))', 'g') AS m
WHERE r.ev_class = $1::bigint::oid
"""


async def _refuse_other_operators(session: SqlSession, relid: int, canonical: str) -> None:
    """The canonical text names the schema of an operator, except in IS DISTINCT FROM, NULLIF, CASE, USING and the like.

    There it could be another one for whoever reads the text. Raises SqlError 0A000.
    """
    ((meant,),) = await session.fetch(_OPERATORS, relid)
    async with _temporary_view(session, canonical, nested=True) as again:
        ((read,),) = await session.fetch(_OPERATORS, again)
    if meant != read:
        raise SqlError(
            "0A000",
            "IS DISTINCT FROM, NULLIF, CASE and USING are not supported with an operator of an extension or a user",
            hint="Compare with = instead, or cast the values to a built-in type.",
        )


@asynccontextmanager
async def _temporary_view(
    session: SqlSession, query: str, *, search_path: str = PINNED_PATH, nested: bool = False
) -> AsyncIterator[int]:
    name = PROBE_VIEW + ("_visible" if nested else "")
    await session.fetch(
        "SELECT pgtrickle._analyse($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text)",
        name,
        query,
        search_path,
    )
    ((relid,),) = await session.fetch("SELECT ('pg_temp.' || $1::text)::regclass::oid::bigint", quoted(name))
    yield int(relid)
    await session.fetch(f"DROP VIEW pg_temp.{quoted(name)}")


async def _view_definition(session: SqlSession, relid: int) -> str:
    async with local_setting(session, "search_path", PINNED_PATH):
        ((text,),) = await session.fetch("SELECT pg_catalog.pg_get_viewdef($1::bigint::oid)", relid)
    return str(text).strip().rstrip(";")


# The relations a view reads: views, and what they read in turn, down to what stores rows. A column that a view over a
# view does not use is still counted: capturing a column too many is harmless.
_DEPENDENCIES = """
WITH RECURSIVE read(relid, attnum) AS (
    SELECT d.refobjid, d.refobjsubid
    FROM pg_catalog.pg_rewrite r
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
    WHERE r.ev_class = $1::bigint::oid AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid <> r.ev_class
  UNION
    SELECT d.refobjid, d.refobjsubid
    FROM read v
    JOIN pg_catalog.pg_class c ON c.oid = v.relid AND c.relkind = 'v'
    JOIN pg_catalog.pg_rewrite r ON r.ev_class = v.relid
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
    WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid <> r.ev_class
)
SELECT r.relid::bigint,
       coalesce(pg_catalog.array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum > 0), '{}'::text[])
FROM read r
JOIN pg_catalog.pg_class c ON c.oid = r.relid AND c.relkind IN ('r', 'p', 'm', 'f', 'v')
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = r.relid AND a.attnum = r.attnum
GROUP BY r.relid
ORDER BY r.relid
"""


async def _dependencies(session: SqlSession, relid: int) -> tuple[Dependency, ...]:
    used = {int(oid): tuple(columns) for oid, columns in await session.fetch(_DEPENDENCIES, relid)}
    dependencies = []
    for source, kind, obstacle in await describe(session, list(used)):
        view = None
        if kind == "VIEW":
            text = await _view_definition(session, source.oid)
            view = View(source.schema, source.name, tuple(c.name for c in source.columns), text)
        dependencies.append(Dependency(source, kind, used[source.oid], obstacle, view))
    return tuple(dependencies)


# A view's dependencies do not name built-in functions, so the node tree of the rewrite rule is read: every function,
# the function of every operator, aggregates and window functions. Casts through text (COERCEVIAIO) call the output
# function of one type and the input function of the other, either of which can be stable (timestamptz); the node names
# only the result's type, so a cast through text to a type with a stable input function counts as stable.
# CURRENT_DATE and its like are nodes of their own, and stable.
_FUNCTIONS = r"""
WITH RECURSIVE views(relid) AS (
    SELECT $1::bigint::oid
  UNION
    SELECT d.refobjid
    FROM views v
    JOIN pg_catalog.pg_rewrite r ON r.ev_class = v.relid
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
    JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'v'
    WHERE d.refclassid = 'pg_catalog.pg_class'::regclass
), rule(tree) AS (
    SELECT r.ev_action::text FROM views v JOIN pg_catalog.pg_rewrite r ON r.ev_class = v.relid
), mentioned(node, oid) AS (
    SELECT m[1], m[2]::oid
    FROM rule, pg_catalog.regexp_matches(tree, ':(funcid|opno|aggfnoid|winfnoid|eqop|sortop) (\d+)', 'g') AS m
  UNION ALL
    SELECT 'opno', each::oid
    FROM rule, pg_catalog.regexp_matches(tree, ':opnos \(o ([\d ]+)\)', 'g') AS m,
    pg_catalog.string_to_table(m[1], ' ') AS each
), called(oid) AS (
    SELECT oid FROM mentioned WHERE node IN ('funcid', 'aggfnoid', 'winfnoid')
  UNION
    SELECT step
    FROM mentioned m
    JOIN pg_catalog.pg_aggregate a ON a.aggfnoid = m.oid AND a.aggfnoid::oid >= 16384,
    unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::oid[]) AS step
    WHERE m.node IN ('aggfnoid', 'winfnoid') AND step <> 0
  UNION
    SELECT o.oprcode::oid FROM mentioned m JOIN pg_catalog.pg_operator o ON o.oid = m.oid
    WHERE m.node IN ('opno', 'eqop', 'sortop')
  UNION
    SELECT t.typinput::oid
    FROM rule, pg_catalog.regexp_matches(tree, '\{COERCEVIAIO .*?:resulttype (\d+)', 'g') AS m
    JOIN pg_catalog.pg_type t ON t.oid = m[1]::oid
)
SELECT n.nspname::text, p.proname::text, p.provolatile::text, p.oid >= 16384,
       CASE p.prokind WHEN 'a' THEN 'aggregate' WHEN 'w' THEN 'window'
                      ELSE CASE WHEN p.proretset THEN 'set' ELSE '' END END,
       CASE WHEN p.oid >= 16384 THEN pgtrickle._signature(p.oid) END,
       CASE WHEN p.oid >= 16384 THEN pgtrickle._body_hash(p.oid) ELSE '' END
FROM called c
JOIN pg_catalog.pg_proc p ON p.oid = c.oid
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
UNION ALL
SELECT 'pg_catalog', 'CURRENT_TIMESTAMP, CURRENT_USER or their like', 's', false, '', NULL, ''
FROM rule WHERE tree LIKE '%{SQLVALUEFUNCTION %'
ORDER BY 1, 2
"""


async def _functions(session: SqlSession, relid: int) -> tuple[FunctionUse, ...]:
    return tuple(FunctionUse(*row) for row in await session.fetch(_FUNCTIONS, relid))


def function_hashes(functions: Sequence[FunctionUse]) -> str:
    """MD5 of each user-defined function's body, to notice a changed one (`pgt_stream_tables.function_hashes`)."""
    return json.dumps({use.signature: use.body_hash for use in functions if use.signature}, sort_keys=True)
