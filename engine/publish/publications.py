"""What is published in a database, as the catalog says."""

from __future__ import annotations

from dataclasses import dataclass

from catalog.session import SqlSession

_SQL = """
SELECT publication_id, pgt_id, relid, schema, name, format, location, generation::text, followed, version, frontier,
       obstacle, is_overdue, has_failed
FROM pgtrickle._publications()
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """A row of `pgtrickle._publications`."""

    publication_id: int
    pgt_id: int
    relid: int
    """Of the stream table's table."""
    schema: str
    name: str
    format: str
    location: str
    generation: str
    """By which its Delta table is known."""
    followed: int
    """For which its changes are captured; 0 if they are not yet."""
    version: int
    """The last one of its Delta table that is known; -1 if there is none."""
    frontier: str | None
    """The `pg_snapshot` up to which they need not be kept; None if nothing is published."""
    obstacle: str | None
    """Why it may not be written."""
    is_overdue: bool
    """Whether changes have waited for too long for a place that cannot be written to."""
    has_failed: bool
    """Whether the last attempt has."""


async def publications(session: SqlSession) -> list[Publication]:
    """Those of the database whose stream tables have contents. Raises SqlError."""
    return [
        Publication(
            publication_id=int(number),
            pgt_id=int(pgt_id),
            relid=int(relid),
            schema=schema,
            name=name,
            format=format_,
            location=location,
            generation=generation,
            followed=int(followed or 0),
            version=-1 if version is None else int(version),
            frontier=frontier,
            obstacle=obstacle,
            is_overdue=is_overdue,
            has_failed=has_failed,
        )
        for (
            number,
            pgt_id,
            relid,
            schema,
            name,
            format_,
            location,
            generation,
            followed,
            version,
            frontier,
            obstacle,
            is_overdue,
            has_failed,
        ) in await session.fetch(_SQL)
    ]
