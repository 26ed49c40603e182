"""What a poll runs: the statement that changes a copy into what its source is now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from catalog.session import SqlSession
from sql.base.text import quote

CHANGES = "pgtrickle_changes"


async def run_poll(session: SqlSession, statement: str) -> dict[str, Any]:
    """Run a statement that returns one jsonb with the rights of the role that the session acts as; {} for no row.

    Raises SqlError, HV00N where a foreign server cannot be reached.
    """
    ((text,),) = await session.fetch("SELECT pgtrickle._poll($1::text)::text", statement)
    return {} if text is None else dict(json.loads(text))


def difference(source: str, copy: str, columns: Sequence[str]) -> str:
    """The statement that changes a copy into what a source is now, as EXCEPT ALL both ways; it returns the counts.

    Rows are compared by their text: so values that are equal and differ (1.0 and 1.00) count as changed, and types
    without equality (json) are compared, too. `source` and `copy` are qualified and quoted. The source is read once.
    """
    names = ", ".join(quote(name) for name in columns)
    fields = ", ".join(f"r.{quote(name)}" for name in columns)
    row = f'ROW({fields})::pg_catalog.text COLLATE "C"'
    return f"""
WITH __pgt_new AS MATERIALIZED (
    SELECT {fields}, {row} AS __pgt_row, pg_catalog.row_number() OVER (PARTITION BY {row}) AS __pgt_place
    FROM {source} r
), __pgt_old AS MATERIALIZED (
    SELECT r.ctid AS __pgt_at, {row} AS __pgt_row, pg_catalog.row_number() OVER (PARTITION BY {row}) AS __pgt_place
    FROM {copy} r
), __pgt_gone AS (
    DELETE FROM {copy} WHERE ctid = ANY (ARRAY(
        SELECT o.__pgt_at FROM __pgt_old o WHERE NOT EXISTS (
            SELECT FROM __pgt_new n WHERE n.__pgt_row OPERATOR(pg_catalog.=) o.__pgt_row
                                      AND n.__pgt_place OPERATOR(pg_catalog.=) o.__pgt_place)))
    RETURNING 1
), __pgt_come AS (
    INSERT INTO {copy} ({names})
    SELECT {names} FROM __pgt_new n WHERE NOT EXISTS (
        SELECT FROM __pgt_old o WHERE o.__pgt_row OPERATOR(pg_catalog.=) n.__pgt_row
                                  AND o.__pgt_place OPERATOR(pg_catalog.=) n.__pgt_place)
    RETURNING 1
)
SELECT pg_catalog.jsonb_build_object('gone', (SELECT pg_catalog.count(*) FROM __pgt_gone),
                                     'come', (SELECT pg_catalog.count(*) FROM __pgt_come))"""
