"""What `\\df+` says of the functions for users: the first paragraph above each in the scripts."""

from __future__ import annotations

from catalog.descriptions import routines
from catalog.install import bundled_scripts
from catalog.systems import STREAM_TABLES, SYSTEMS
from tests.e2e.conftest import Database

_UNDESCRIBED = """
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = ANY (%s::regnamespace[]) AND p.proname !~ '^_'
  AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
  AND obj_description(p.oid, 'pg_proc') IS NULL
"""


def test_every_function_for_users_is_described(shared_db: Database) -> None:
    assert shared_db.rows(_UNDESCRIBED, [system.schema for system in SYSTEMS]) == []


def test_description_is_that_of_the_script(shared_db: Database) -> None:
    scripts = [script.sql for script in bundled_scripts(STREAM_TABLES).functions]
    for name in ("drop_stream_table", "explain_st", "pg_trickle_hash_multi"):  # the last has quotes in it
        (written,) = (one.description for one in routines(scripts) if one.name == f"pgtrickle.{name}")
        described = shared_db.value("SELECT obj_description(%s::regproc, 'pg_proc')", f"pgtrickle.{name}")
        assert described == written
