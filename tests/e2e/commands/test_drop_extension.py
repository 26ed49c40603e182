"""DROP EXTENSION of what the server installs: what goes with it, and that it stays away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database

ROLE = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def filled(db: Database) -> Database:
    db.run("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 10), (2, 20)")
    db.run("SELECT pgtrickle.create_stream_table('s', 'SELECT sum(n) AS total FROM t', '1h')")
    db.run("SELECT pgtrickle.create_stream_table('above', 'SELECT total + 1 AS more FROM s', '1h')")
    return db


LEFT = """
SELECT 'function ' || p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'pgtrickle' AND p.proname NOT LIKE '\\_%' OR n.nspname = 'pgtrickle_roles'
UNION ALL SELECT 'relation ' || c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' OR n.nspname = 'pgtrickle_changes' AND c.relkind IN ('r', 'v')
   OR n.nspname = 'pgtrickle' AND c.relkind = 'v'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = to_regclass('public.t')
UNION ALL SELECT 'event trigger ' || evtname FROM pg_event_trigger WHERE evtname LIKE 'pg\\_trickle%'
UNION ALL SELECT 'extension' FROM pg_extension WHERE extname = 'pg_trickle'
ORDER BY 1
"""
"""What is there of pg_trickle but for what the server itself uses, and what is in the schema public."""


def test_cascade_leaves_nothing_of_pg_trickle_but_what_the_server_needs(filled: Database) -> None:
    connection = filled.connect()
    with pytest.raises(errors.DependentObjectsStillExist) as failure:
        connection.execute("DROP EXTENSION pg_trickle")
    assert failure.value.diag.message_primary == "cannot drop extension pg_trickle because other objects depend on it"
    assert failure.value.diag.message_detail == (
        "stream table public.above depends on extension pg_trickle\n"
        "stream table public.s depends on extension pg_trickle"
    )
    assert failure.value.diag.message_hint == "Use DROP ... CASCADE to drop the dependent objects too."
    assert connection.execute("DROP EXTENSION pg_trickle CASCADE").statusmessage == "DROP EXTENSION"
    assert connection.execute(LEFT).fetchall() == [
        ("relation pgtrickle.pgt_stream_tables",),
        ("relation t",),
        ("relation t_pkey",),
    ]
    assert connection.execute("SELECT sum(n) FROM t").fetchone() == (30,)
