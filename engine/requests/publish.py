"""`pgtrickle.publish`: rights, columns and location are checked when it is asked for; writing is done in background."""

from __future__ import annotations

import asyncio
import json

from catalog.session import RequestSession, SqlError
from engine.load_generators import find_relation
from engine.publish.places import FORMATS, Places, check_installed
from sql.errors import NotExpressible


async def publish(
    session: RequestSession,
    name: str,
    format_: str | None,
    location: str | None,
    search_path: str,
    places: Places,
) -> None:
    """Publish a stream table of the session's user at a location that is empty.

    Raises SqlError 42P01, 0A000 for what is no stream table or has a column that Delta has not, 42501, 22023, 55006 if
    there is something at the location, 58030 if it cannot be read.
    """
    pgt_id = await _stream_table(session, name, search_path)
    if not isinstance(location, str) or format_ not in FORMATS:
        raise SqlError("22023", "malformed publish request")
    await session.fetch("SELECT pgtrickle._check_publisher($1::bigint)::text", pgt_id)
    uri = places.checked(location)
    ((text,),) = await session.fetch(
        "SELECT pgtrickle._publish($1::bigint, $2::text, $3::text)::text", pgt_id, format_, uri
    )
    check_installed(format_)
    await asyncio.to_thread(_check_storable, name, json.loads(text), uri)


async def unpublish(session: RequestSession, name: str, location: str | None, search_path: str) -> None:
    """End a stream table's publications, or the one at a location. Raises SqlError 42P01, 42501, 42704."""
    await session.fetch(
        "SELECT pgtrickle._unpublish(pgtrickle._resolve($1::text, $3::text), $1::text, $2::text)::text",
        name,
        location,
        search_path,
    )


async def _stream_table(session: RequestSession, name: str, search_path: str) -> int:
    """Its id. Raises SqlError 42P01, 0A000."""
    ((pgt_id,),) = await session.fetch("SELECT pgtrickle._resolve($1::text, $2::text, true)", name, search_path)
    if pgt_id is not None:
        return int(pgt_id)
    ((parts,),) = await session.fetch("SELECT pg_catalog.parse_ident($1::text)", name)
    if await find_relation(session, tuple(parts), search_path) is not None:
        raise SqlError(
            "0A000",
            f'cannot publish "{name}", which is not a stream table',
            hint=f"Publish a stream table of it: SELECT pgtrickle.create_stream_table('published', 'TABLE {name}').",
        )
    raise SqlError("42P01", f'stream table "{name}" does not exist')


def _check_storable(name: str, columns: dict[str, str], uri: str) -> None:
    """Raises SqlError if the columns cannot be published, or there is something at the location."""
    from engine.mirror.state import arrow_schema  # it loads Arrow, which a server without publications has not
    from engine.publish.table import check_empty

    try:
        arrow_schema(columns, name)
    except NotExpressible as reason:
        raise SqlError(
            "0A000",
            f'cannot publish stream table "{name}": {reason}',
            hint="Cast the column in the query to a type that Delta Lake has, or to text, or give it another name.",
        ) from reason
    check_empty(uri)
