"""What the catalog keeps of a compiled query may only change together with `sql.PLAN_FORMAT`."""

from __future__ import annotations

import hashlib
import json

import sql
from tests.sql.conftest import Workspace
from tests.sql.queries import QUERIES

RECORDED = (5, "4cb223728d60477a")
"""The format, and the hash of what its compiler asks and how it lays out storage tables."""


def test_probes_and_layouts_of_a_format_stay_as_they_are(shared_workspace: Workspace) -> None:
    kept = {}
    for number, query in enumerate(QUERIES.values()):
        table = shared_workspace.stream(f"f{number}", query)
        kept[query] = [table.probes, table.compiled.create_storage_sql(table.storage)]
    found = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
    assert (sql.PLAN_FORMAT, found) == RECORDED, (
        "stream tables that were planned before cannot be refreshed by this compiler as they are:"
        " raise sql.PLAN_FORMAT, so that they are planned anew, and record the new hash here"
    )
