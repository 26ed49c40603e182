"""Polls of lake tables: files into a table of texts, texts into one of values, and the difference into the copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from catalog.session import SqlError, SqlSession
from engine.foreign_tables.change_feed import FILE, ROW, changes, deleted_values
from engine.foreign_tables.difference import CHANGES, difference, run_poll
from engine.foreign_tables.lake_options import LakeTable, lake_table
from engine.session.transactions import savepoint, set_role
from engine.stream_tables.refresh_state import RefreshContext
from sql.base.text import quote
from sql.base.text import text as literal

logger = structlog.get_logger(__name__)

STAGING = "pgtrickle_staging"
"""The schema of both tables, which exist for the time of a poll, in its transaction (`pgtrickle._begin_lake_poll`)."""

Poll = dict[str, Any]
"""An element of what `pgtrickle._polls` returns."""


class NotFollowed(Exception):
    """A change feed cannot be applied; the text says why."""


class ChangeFeed(Protocol):
    """What has changed in a lake table since it was last read (`engine.files.delta_changes.DeltaFeed`)."""

    @property
    def rows(self) -> int | None:
        """How many rows more there are now; None if that is not known."""
        ...

    async def fill(self, session: SqlSession, staging: str) -> None:
        """Copy the changes into a table in `STAGING`, as `LakeReader.fill`, with weights as ROW. Raises NotFollowed."""
        ...


class Files(Protocol):
    """The files of a lake table at one moment (`engine.files.lake_tables.LakeFiles`)."""

    @property
    def state(self) -> str | None:
        """Differs when they do; None if they may change without that it does."""
        ...

    def uri(self, number: int) -> str:
        """The URI of one of them."""
        ...

    async def since(self, before: str | None, columns: Sequence[tuple[str, bool]]) -> ChangeFeed | None:
        """What has changed since they had this state; None where nothing says so. Raises NotFollowed."""
        ...


class LakeReader(Protocol):
    """Reads lake tables (`engine.files.lake_tables.Lake`)."""

    def look(self, table: LakeTable) -> Any:
        """The table's files. Blocks. Raises SqlError."""
        ...

    async def fill(
        self,
        session: SqlSession,
        staging: str,
        columns: Sequence[tuple[str, bool]],
        table: LakeTable,
        found: Any,
        name: str,
    ) -> None:
        """Copy the rows into a table in `STAGING` with these columns (name, whether an array), FILE and ROW."""
        ...


async def poll_lake(
    session: SqlSession, context: RefreshContext, poll: Poll, reader: LakeReader | None
) -> dict[str, Any]:
    """Make the copy of a lake table equal to its files; nothing is read if these are what they were.

    Of a Delta table with a change feed the changes are read, else all files.

    Raises SqlError: 22023 for wrong options, 58000 without Spark, what PostgreSQL says to a value, with the file, the
    row and the column in its detail, and what `lake_tables` raises.
    """
    table = lake_table(poll["server_options"], poll["table_options"])
    if reader is None:
        name = f"{poll['schema']}.{poll['name']}"
        raise SqlError(
            "58000",
            f'lake table "{name}" cannot be read without Spark',
            hint="Start the server with --spark sail or local[*].",
        )
    found = await asyncio.to_thread(reader.look, table)
    if found.state is not None and found.state == poll["files"]:
        return {"gone": 0, "come": 0}
    copy = f"{CHANGES}.{quote(poll['copy'])}"
    async with set_role(session, context.owner, current=context.caller):
        counts = await _followed(session, context, poll, found, copy)
        if counts is None:
            counts = await _compared(session, context, poll, reader, table, found, copy)
    await session.fetch(
        "SELECT pgtrickle._set_poll_files($1::bigint, $2::text, $3::text, $4::text)",
        context.pgt_id,
        poll["schema"],
        poll["name"],
        found.state,
    )
    return counts


async def _begun(session: SqlSession, context: RefreshContext, poll: Poll) -> int:
    """Make the tables of texts and of values; the number that their names begin with."""
    beginning = "SELECT pgtrickle._begin_lake_poll($1::bigint, $2::text)"
    ((number,),) = await session.fetch(beginning, context.pgt_id, poll["copy"])
    return int(number)


async def _ended(session: SqlSession, number: int) -> None:
    await session.fetch("SELECT pgtrickle._end_lake_poll($1::int4)", number)


def _staging(number: int) -> tuple[str, str]:
    """The tables of texts and of values."""
    return f"{STAGING}.{quote(f'{number}_texts')}", f"{STAGING}.{quote(f'{number}_values')}"


async def _compared(
    session: SqlSession,
    context: RefreshContext,
    poll: Poll,
    reader: LakeReader,
    table: LakeTable,
    found: Files,
    copy: str,
) -> dict[str, Any]:
    """Read all files, and put the difference into the copy."""
    number = await _begun(session, context, poll)
    texts, values = _staging(number)
    await reader.fill(session, f"{number}_texts", _arrays(poll), table, found, f"{poll['schema']}.{poll['name']}")
    await _convert(session, poll, texts, values, found)
    counts = await run_poll(session, difference(values, copy, poll["columns"]))
    await _ended(session, number)
    return counts


async def _followed(
    session: SqlSession, context: RefreshContext, poll: Poll, found: Files, copy: str
) -> dict[str, Any] | None:
    """Put what a change feed says into the copy; None, and nothing is done, where there is none that can be trusted."""
    try:
        feed = await found.since(poll["files"], _arrays(poll))
        if feed is None:
            return None
        async with savepoint(session):
            return await _applied(session, context, poll, feed, copy)
    except (NotFollowed, _Undone) as error:
        name, reason = f"{poll['schema']}.{poll['name']}", str(error.__cause__ or error)
        logger.info("change feed not followed", foreign_table=name, reason=reason)
        return None


class _Undone(SqlError):
    """What a feed has changed goes back to the savepoint."""

    def __init__(self) -> None:
        super().__init__("55000", "the change feed is not applied")


async def _applied(
    session: SqlSession, context: RefreshContext, poll: Poll, feed: ChangeFeed, copy: str
) -> dict[str, Any]:
    """Raises _Undone, SqlError."""
    try:
        number = await _begun(session, context, poll)
        texts, values = _staging(number)
        await feed.fill(session, f"{number}_texts")
        columns = [(name, type_["plain"]) for name, type_ in _typed(poll)]
        gone = await run_poll(session, deleted_values(texts, values, columns))
        counts = await run_poll(session, changes(texts, values, copy, columns, gone))
        if counts["gone"] != gone["rows"] or feed.rows not in (None, counts["come"] - counts["gone"]):
            raise NotFollowed("rows are deleted that are not there")
        await _ended(session, number)
    except NotFollowed as reason:
        raise _Undone from reason
    except SqlError as error:
        if error.sqlstate[:2] not in ("22", "23"):
            raise
        raise _Undone from error  # a value that PostgreSQL does not take: reading all files finds where it is
    return counts


async def _convert(session: SqlSession, poll: Poll, texts: str, values: str, found: Files) -> None:
    """Texts become values as assignments would make them: what is too long is an error, not cut off."""
    names = ", ".join(quote(name) for name in poll["columns"])
    cast = ", ".join(f"{quote(name)}::{type_['plain']}" for name, type_ in _typed(poll))
    statement = (
        f"WITH put AS (INSERT INTO {values} ({names}) SELECT {cast} FROM {texts} RETURNING 1)"
        " SELECT pg_catalog.jsonb_build_object('rows', pg_catalog.count(*)) FROM put"
    )
    try:
        async with savepoint(session):
            await run_poll(session, statement)
    except SqlError as error:
        if error.sqlstate[:2] not in ("22", "23"):
            raise
        where = await _offender(session, poll, texts, found)
        raise SqlError(error.sqlstate, error.message, detail=where or error.detail, hint=error.hint) from error


async def _offender(session: SqlSession, poll: Poll, texts: str, found: Files) -> str | None:
    """Which value PostgreSQL does not read; None if that cannot be found out."""
    for name, type_ in _typed(poll):
        statement = (
            f"SELECT pg_catalog.jsonb_build_object('file', {FILE}, 'row', {ROW}) FROM {texts}"
            f" WHERE NOT pg_catalog.pg_input_is_valid({quote(name)}, {literal(type_['type'])})"
            f" ORDER BY {FILE}::pg_catalog.int8, {ROW}::pg_catalog.int8 LIMIT 1"
        )
        try:
            async with savepoint(session):
                at = await run_poll(session, statement)
        except SqlError:
            return None  # PostgreSQL 15 has no such function
        if at:
            file = f'file "{found.uri(int(at["file"]))}", column "{name}"'
            return file if at["row"] is None else f"row {at['row']} of {file}"
    return None


def _arrays(poll: Poll) -> list[tuple[str, bool]]:
    """The columns, and whether an array is wanted."""
    return [(column, type_["array"]) for column, type_ in _typed(poll)]


def _typed(poll: Poll) -> list[tuple[str, Any]]:
    """The columns with what `pgtrickle._copied_types` says of them."""
    return list(zip(poll["columns"], poll["types"], strict=True))
