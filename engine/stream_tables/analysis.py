"""Canonical form: what PostgreSQL's own analysis says about a defining query.

A view of the query, which is undone at once, validates it with PostgreSQL's own errors; `pg_get_viewdef` under an empty
search path returns it fully resolved; `pg_depend` names its tables and columns; the functions and operators in the
view's rewrite rule give its volatility. Creating a view analyses the query and does not plan it, but reads the
constants in it, which can run code of users: it is done with the rights of the role that acts, and no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from catalog.pinned_settings import PINNED_PATH
from catalog.session import SqlError, SqlSession
from engine.compile.pool import compilers
from sql import Column, Source, View, jobs
from sql.base.text import quote
from sql.jobs import Inspected

TRACKABLE_KINDS = frozenset({"TABLE", "STREAM_TABLE"})
HIDDEN_PREFIX = "__pgt_"

ONLY_SELECT = "SELECT, VALUES, TABLE and WITH … SELECT define a stream table."
_STATEMENTS = re.compile(
    "(?i:alter|analyze|call|comment|copy|create|delete|do|drop|execute|explain|grant|insert|lock|merge|notify|refresh"
    "|reindex|revoke|set|show|truncate|update|vacuum)"
)
"""Words that begin statements which are no queries."""


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
    denied: str | None = None
    """Why the role that asks may not read itself what a view reads."""
    readers: tuple[int, ...] = ()
    """The roles, by their OIDs, whose rights to it PostgreSQL asks for: who asks, or owners of views."""

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
    inspected: Inspected

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
        equality_is_identity=bool(described["faithful"]),
        carrier=str(described.get("carrier") or ""),
    )


def _source(info: dict[str, Any]) -> tuple[Source, str, str | None]:
    source = Source(
        oid=int(info["oid"]),
        schema=info["schema"],
        name=info["name"],
        columns=tuple(column(described) for described in info["columns"]),
        key=tuple(info["key"]),
    )
    return source, info["type"], info["obstacle"]


async def analysed(
    session: SqlSession, query: str, parts: Sequence[str], *, path: str = PINNED_PATH, errors_told: bool = False
) -> dict[str, Any]:
    """What PostgreSQL says about a query: the `parts` of `pgtrickle._analysed` that are asked for.

    Raises SqlError for a query that is wrong; if `errors_told`, {"failed": SQLSTATE, "message"} is returned instead.
    """
    ((text,),) = await session.fetch(
        "SELECT pgtrickle._analysed($1::text, $2::text, $3::text[], $4::boolean)::text",
        query,
        path,
        list(parts),
        errors_told,
    )
    return dict(json.loads(text))


async def define(session: SqlSession, query: str, search_path: str) -> Definition:
    """Validate a defining query and say everything the engine must know about it.

    Names in the query are looked up along `search_path`. Raises SqlError: PostgreSQL's own for a query that does not
    parse or names what does not exist, 42601 for an empty one, 54001 for one that takes too much to be read.
    """
    text = query.strip().rstrip(";").strip()
    if not text:
        raise SqlError("42601", "the defining query is empty")
    text = await _in_their_schemas(session, text, search_path)
    try:
        found = await analysed(session, text, ("definition", "columns", "dependencies", "functions"), path=search_path)
    except SqlError as error:
        raise _in_terms_of_the_query(text, error) from error
    canonical = str(found["definition"])
    output = tuple(column(described) for described in found["columns"])
    dependencies = tuple(_dependency(described) for described in found["dependencies"])
    functions = tuple(FunctionUse(*use) for use in found["functions"])
    hidden = _hidden_columns(dependencies)
    if hidden:
        canonical, output = await _visible(session, canonical, output, hidden)
    inspected = await compilers().run(jobs.inspect, canonical)
    if inspected.without_positions != canonical:
        canonical = str((await analysed(session, inspected.without_positions, ("definition",)))["definition"])
        inspected = await compilers().run(jobs.inspect, canonical)
    if len(output) == len(found["columns"]) and any(use.user_defined for use in functions):
        await _refuse_other_operators(session, text, search_path, canonical)
    if not output:
        raise SqlError("42P16", "the defining query has no columns")
    return Definition(query, canonical, output, dependencies, functions, inspected)


async def _in_their_schemas(session: SqlSession, query: str, search_path: str) -> str:
    """The query with `pgtrickle.name`, as pg_trickle's examples call stream tables, in the schemas that they are in."""
    if "pgtrickle" not in query.lower():
        return query
    named = await compilers().run(jobs.names_qualified_by, query, "pgtrickle")
    if not named:
        return query
    rows = await session.fetch(
        "SELECT name, schema FROM pgtrickle._schemas_of($1::text[], $2::text)",
        sorted({each.name for each in named}),
        search_path,
    )
    schemas = {str(name): quote(str(schema)) for name, schema in rows}
    for each in reversed(named):
        if each.name in schemas:
            schema = schemas[each.name].ljust(each.end - each.start)  # so that positions in errors stay
            query = query[: each.start] + schema + query[each.end :]
    return query


_BEGINNING = re.compile(r"(?:[\s(]|--[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+(\w++)")
"""The first word, behind parentheses and comments. Nothing in it is tried twice: the text can be anybody's."""


def _in_terms_of_the_query(text: str, error: SqlError) -> SqlError:
    """The error that PostgreSQL makes of the view, in terms of the query where those of the view would puzzle."""
    if error.sqlstate not in ("42601", "0A000"):
        return error
    first = found[1].upper() if (found := _BEGINNING.match(text)) else ""
    if _STATEMENTS.fullmatch(first):
        return SqlError("0A000", f"the defining query is {first}, and must be SELECT", hint=ONLY_SELECT)
    if "data-modifying statement" in error.message or "does not have a RETURNING clause" in error.message:
        return SqlError("0A000", "the defining query must not change data", hint=ONLY_SELECT)
    if "SELECT ... INTO" in error.message:
        return SqlError("42601", "the defining query must not have INTO", hint="The stream table has a name already.")
    return error


async def _visible(
    session: SqlSession, canonical: str, output: tuple[Column, ...], hidden: set[str]
) -> tuple[str, tuple[Column, ...]]:
    """The canonical text and the columns of a query without the hidden ones. Raises SqlError 42P16 if none are left."""
    visible = tuple(column for column in output if column.name not in hidden)
    if len(visible) == len(output):
        return canonical, output
    if not visible:
        raise SqlError("42P16", "the defining query has no column of its own")
    names = ", ".join(quote(column.name) for column in visible)
    inner = await analysed(session, f"SELECT {names} FROM ({canonical}) AS visible", ("definition",))
    return str(inner["definition"]), visible


def _hidden_columns(dependencies: Sequence[Dependency]) -> set[str]:
    """`SELECT *` over a stream table also names its hidden columns, which are not the user's data."""
    return {
        c.name
        for dependency in dependencies
        if dependency.kind == "STREAM_TABLE"
        for c in dependency.source.columns
        if c.name.startswith(HIDDEN_PREFIX)
    }


async def _refuse_other_operators(session: SqlSession, query: str, search_path: str, canonical: str) -> None:
    """The canonical text names the schema of an operator, except in IS DISTINCT FROM, NULLIF, CASE, USING and the like.

    There it could be another one for whoever reads the text. Raises SqlError 0A000.
    """
    meant = await analysed(session, query, ("operators",), path=search_path)
    read = await analysed(session, canonical, ("operators",))
    if meant != read:
        raise SqlError(
            "0A000",
            "IS DISTINCT FROM, NULLIF, CASE and USING are not supported with an operator of an extension or a user",
            hint="Compare with = instead, or cast the values to a built-in type.",
        )


def _dependency(described: dict[str, Any]) -> Dependency:
    source, kind, obstacle = _source(described)
    if kind in TRACKABLE_KINDS and described["denied"] is not None:
        # A view is read with its owner's rights: who may read it may not therefore read the changes of its tables.
        obstacle = f"it is read through a view, and its owner's rights: {described['denied']}"
    view = None
    if kind == "VIEW":
        view = View(source.schema, source.name, tuple(c.name for c in source.columns), described["text"])
    readers = tuple(described["readers"])
    return Dependency(source, kind, tuple(described["used"]), obstacle, view, described["denied"], readers)


def function_hashes(functions: Sequence[FunctionUse]) -> str:
    """MD5 of each user-defined function's body, to notice a changed one (`pgt_stream_tables.function_hashes`)."""
    return json.dumps({use.signature: use.body_hash for use in functions if use.signature}, sort_keys=True)
