"""What is published in a database, as the catalog says."""

from __future__ import annotations

from dataclasses import dataclass

from catalog.session import SqlSession

_SQL = """
SELECT publication_id, pgt_id, relid, schema, name, location, generation::text, followed, frontier, obstacle, is_overdue
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
    location: str
    generation: str
    """By which its Delta table is known."""
    followed: int
    """For which its changes are captured; 0 if they are not yet."""
    frontier: str | None
    """The `pg_snapshot` up to which they need not be kept; None if nothing is published."""
    obstacle: str | None
    """Why it may not be written."""
    is_overdue: bool
    """Whether changes have waited for too long for a place that cannot be written to."""


async def publications(session: SqlSession) -> list[Publication]:
    """Those of the database whose stream tables have contents. Raises SqlError."""
    found = []
    for number, pgt_id, relid, schema, name, location, generation, followed, *rest in await session.fetch(_SQL):
        ids = int(number), int(pgt_id), int(relid)
        found.append(Publication(*ids, schema, name, location, generation, int(followed or 0), *rest))
    return found
