"""Captured changes can be read as long as their source can, and for a moment more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]
Role = Callable[..., Connection]
Eventually = Callable[..., Any]

# How a role {m} comes to be able to read a table {t} in schema {s}, also as a member of {g}; and how it loses that.
LOSSES = {
    "left a role": ("GRANT SELECT ON {t} TO {g}; GRANT {g} TO {m}", "REVOKE {g} FROM {m}"),
    "inherits no more": ("GRANT SELECT ON {t} TO {g}; GRANT {g} TO {m}", "GRANT {g} TO {m} WITH INHERIT FALSE"),
    "role has lost it": ("GRANT SELECT ON {t} TO {g}; GRANT {g} TO {m}", "REVOKE SELECT ON {t} FROM {g}"),
    "dropped with what the role owns": ("GRANT SELECT ON {t} TO {g}; GRANT {g} TO {m}", "DROP OWNED BY {g}"),
    "one column": ("GRANT SELECT (id, a) ON {t} TO {m}", "REVOKE SELECT (a) ON {t} FROM {m}"),
    "everybody": ("GRANT SELECT ON {t} TO PUBLIC", "REVOKE SELECT ON {t} FROM PUBLIC"),
    "another owner": ("ALTER TABLE {t} OWNER TO {g}; GRANT {g} TO {m}", "REASSIGN OWNED BY {g} TO CURRENT_USER"),
    "another owner by name": (
        "ALTER TABLE {t} OWNER TO {g}; GRANT {g} TO {m}",
        "ALTER TABLE {t} OWNER TO CURRENT_USER",
    ),
    "row-level security": ("GRANT SELECT ON {t} TO {m}", "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY"),
    "row-level security no more bypassed": (
        "GRANT SELECT ON {t} TO {m}; ALTER TABLE {t} ENABLE ROW LEVEL SECURITY; ALTER ROLE {m} BYPASSRLS",
        "ALTER ROLE {m} NOBYPASSRLS",
    ),
    "schema": ("GRANT SELECT ON {t} TO {m}", "REVOKE USAGE ON SCHEMA {s} FROM {m}"),
}

FEW = ("left a role", "inherits no more", "dropped with what the role owns")


def may_read(connection: Connection, buffer: str) -> bool:
    try:
        connection.execute(f"SELECT a FROM {buffer}".encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


@pytest.mark.parametrize("ways", [FEW, pytest.param(tuple(LOSSES), marks=pytest.mark.long)], ids=["few", "all"])
def test_buffer_is_unreadable_soon_after_the_source_is(
    db: Database, role: Role, eventually: Eventually, ways: tuple[str, ...]
) -> None:
    readers = {}
    for number, way in enumerate(ways):
        mallory = role("mallory")
        names = {"m": mallory.info.user, "g": f"{mallory.info.user}_group", "s": f"s{number}", "t": f"s{number}.t"}
        db.run(f"CREATE ROLE {names['g']}; CREATE SCHEMA s{number} CREATE TABLE t (id int PRIMARY KEY, a text)")
        db.run(f"GRANT USAGE ON SCHEMA s{number} TO {names['m']}")
        db.run(LOSSES[way][0].format(**names))
        mallory.execute(
            "SELECT pgtrickle.create_stream_table(%s, %s)", [f"st{number}", f"SELECT id, a FROM {names['t']}"]
        )
        oid = db.value("SELECT %s::regclass::oid::bigint", names["t"])
        readers[way] = (mallory, f"pgtrickle_changes.changes_{oid}", names)
        assert may_read(*readers[way][:2])
    try:
        # Also where there are no event triggers, which only a superuser can make.
        db.run("ALTER EVENT TRIGGER pg_trickle_ddl_tracker DISABLE")
        for way in ways:
            db.run(LOSSES[way][1].format(**readers[way][2]))
        left = set(ways)

        def gone() -> bool:
            left.difference_update([way for way in left if not may_read(*readers[way][:2])])
            return not left

        eventually(gone, what=f"the loss of {left}")
    finally:
        for _, _, names in readers.values():
            db.run("DROP OWNED BY {g}; DROP ROLE {g}".format(**names))


@pytest.mark.long
def test_right_that_is_given_back(db: Database, role: Role, eventually: Eventually) -> None:
    mallory, other = role("mallory"), role("other")
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    for connection in (mallory, other):
        db.run(f"GRANT SELECT ON t TO {connection.info.user}")
        connection.execute("SELECT pgtrickle.create_stream_table(%s, 'SELECT id, a FROM t')", [connection.info.user])
    buffer = f"pgtrickle_changes.changes_{db.value('SELECT %s::regclass::oid::bigint', 't')}"
    user = mallory.info.user
    db.run(f"REVOKE SELECT ON t FROM {user}")
    assert not may_read(mallory, buffer)
    db.run(f"INSERT INTO t VALUES (1, 'a'); GRANT SELECT ON t TO {user}")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.refresh_stream_table(%s)", [user])
    assert mallory.execute(f"SELECT id, a FROM {user}".encode()).fetchall() == [(1, "a")]
    assert may_read(mallory, buffer)
    # The transaction in which it got the buffer again is in nobody's way.
    db.run(f"SET lock_timeout = '60s'; REVOKE SELECT ON t FROM {user}, {other.info.user}")
    assert not may_read(other, buffer)
    mallory.execute("COMMIT")
    # Without a stream table there is nothing to be read for.
    db.run(f"GRANT SELECT ON t TO {user}")
    mallory.execute("SELECT pgtrickle.refresh_stream_table(%s)", [user])
    db.run("INSERT INTO t VALUES (2, 'b')")
    mallory.execute("SELECT pgtrickle.refresh_stream_table(%s)", [user])
    assert may_read(mallory, buffer)
    mallory.execute("SELECT pgtrickle.drop_stream_table(%s)", [user])
    eventually(lambda: not may_read(mallory, buffer), what="the loss")


@pytest.mark.long
def test_who_may_not_read_a_table_does_not_learn_whether_it_changes(db: Database, role: Role) -> None:
    mallory, reader = role("mallory"), role("reader")
    db.run(f"CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT ON t TO {reader.info.user}")
    db.create("st", "SELECT id FROM t", schedule="1s")
    db.run("INSERT INTO t VALUES (1); SELECT pg_sleep(3.2)")
    pending = 'SELECT pgtrickle._pending(source_oid::oid, \'{"snapshot": "1:1:", "xid": null}\'), pending_rows'
    pending += " FROM pgtrickle.change_buffer_sizes()"
    stale = "SELECT stale FROM pgtrickle.stream_tables_info WHERE pgt_name = 'st'"
    assert reader.execute(pending.encode()).fetchall() == db.rows(pending) == [(1, 1)]
    assert reader.execute(stale).fetchall() == db.rows(stale) == [(True,)]
    assert mallory.execute(pending.encode()).fetchall() == [(None, None)]
    assert mallory.execute(stale).fetchall() == [(None,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mallory.execute("SELECT pgtrickle._changed_since('t'::regclass, '1:1:')")
