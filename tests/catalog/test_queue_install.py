"""Installing and upgrading the queues: repeatable, with live queues, beside stream tables and without them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import conninfo, sql

from catalog.install import Script, Scripts, bundled_scripts
from catalog.session import SqlError
from catalog.systems import QUEUES, STREAM_TABLES
from tests.catalog.conftest import PASSWORD, Connect, Queue, install_into


def test_installed_once_by_many_servers(dsn: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: install_into(dsn, system=QUEUES), range(4)))
    assert sum(result.changed for result in results) == 1
    assert {result.state for result in results} == {bundled_scripts(QUEUES).state(superuser=True)}
    assert not install_into(dsn, system=QUEUES).changed


def test_systems_do_not_need_each_other(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn, system=QUEUES)
    connection = bare_connect()
    assert connection.execute("SELECT to_regnamespace('pgtrickle')").fetchone() == (None,)
    assert connection.execute("SELECT pgque.create_queue('q')").fetchone() == (1,)
    install_into(dsn)
    versions = connection.execute("SELECT version FROM pgque.schema_version ORDER BY 1").fetchall()
    assert [version for (version,) in versions] == [
        *(m.version for m in bundled_scripts(QUEUES).migrations),
        "functions",
    ]
    for system in (STREAM_TABLES, QUEUES):
        row = connection.execute(
            "SELECT obj_description(to_regnamespace(%s)::oid, 'pg_namespace')", [system.schema]
        ).fetchone()
        assert row == (bundled_scripts(system).state(superuser=True),)


def test_upgrade_keeps_queues_events_and_consumers(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn, system=QUEUES)
    queue = Queue(bare_connect(), "orders")
    queue.value("SELECT pgque.create_queue('orders')")
    queue.value("SELECT pgque.subscribe('orders', 'c')")
    queue.send("before")
    old = bundled_scripts(QUEUES)
    new = Scripts(
        (*old.migrations, Script("0099_more", "-- More.\nALTER TABLE pgque.queue ADD COLUMN queue_more int")),
        old.functions,
        old.superuser,
        old.title,
    )
    assert install_into(dsn, new, QUEUES).changed
    queue.send("after")
    queue.tick()
    assert queue.rows("SELECT payload FROM pgque.receive('orders', 'c')") == [("before",), ("after",)]
    with pytest.raises(SqlError) as failure:
        install_into(dsn, system=QUEUES)
    assert (failure.value.sqlstate, "0099_more" in failure.value.message) == ("0A000", True)


def test_a_schema_that_is_not_ours_is_left_alone(dsn: str, bare_connect: Connect) -> None:
    connection = bare_connect()
    connection.execute("CREATE SCHEMA pgque; CREATE TABLE pgque.queue (queue_id int)")
    with pytest.raises(SqlError) as failure:
        install_into(dsn, system=QUEUES)
    assert failure.value.sqlstate == "42710"
    assert failure.value.message == "schema pgque exists and was not made by Headwater"
    assert install_into(dsn).changed  # stream tables are installed all the same
    connection.execute("DROP TABLE pgque.queue")
    assert install_into(dsn, system=QUEUES).changed  # an empty schema is made use of


def test_missing_right_to_create_names_the_queues(dsn: str, bare_connect: Connect) -> None:
    bare_connect()
    with pytest.raises(SqlError) as failure:
        install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD), system=QUEUES)
    assert failure.value.sqlstate == "42501"
    assert failure.value.hint is not None and failure.value.hint.endswith("queries work without, queues do not.")


def test_ordinary_role_installs_and_owns_the_queues(dsn: str, database: str, bare_connect: Connect) -> None:
    admin = bare_connect()
    admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO catalog_alice").format(sql.Identifier(database)))
    result = install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD), system=QUEUES)
    assert result.changed
    queue = Queue(bare_connect("catalog_alice"), "orders")
    assert queue.value("SELECT pgque.create_queue('orders')") == 1
    queue.value("SELECT pgque.subscribe('orders', 'c')")
    queue.send("x")
    queue.tick()
    assert queue.rows("SELECT payload FROM pgque.receive('orders', 'c')") == [("x",)]
    assert queue.value("SELECT pgque.maint()") >= 0


def test_every_privileged_function_pins_its_search_path(queue: Queue) -> None:
    loose = queue.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pgque'::regnamespace AND prosecdef "
        "AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))"
    )
    assert loose == []


def test_nobody_but_the_roles_may_do_anything(queue: Queue) -> None:
    open_to_all = queue.rows(
        "SELECT p.oid::regprocedure::text"
        " FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a "
        "WHERE p.pronamespace = 'pgque'::regnamespace AND a.grantee = 0"
        " UNION ALL SELECT c.oid::regclass::text FROM pg_class c, aclexplode(c.relacl) a "
        "WHERE c.relnamespace = 'pgque'::regnamespace AND a.grantee = 0"
    )
    assert open_to_all == []
