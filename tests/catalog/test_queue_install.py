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


EARLIER = """
INSERT INTO pgque.queue (queue_id, queue_name, queue_ticker_max_lag, queue_rotation_period, queue_extra_maint,
                         queue_data_pfx, queue_event_seq, queue_tick_seq)
VALUES (1, 'default', '1 millisecond', '-1 second', '{public.lent,public.kept,no.such}',
        'pgque.event_1', 'pgque.event_1_id_seq', 'pgque.event_1_tick_seq'),
       (2, 'chosen', '2 seconds', '1 hour', NULL, 'pgque.event_2', 'pgque.event_2_id_seq', 'pgque.event_2_tick_seq');
INSERT INTO pgque.delayed_events (de_queue_id, de_deliver_at, de_payload) VALUES (2, 'infinity', 'later');
INSERT INTO pgque.consumer (co_name) VALUES ('team'), ('left'), ('dead'), ('orphan');
INSERT INTO pgque.subscription (sub_queue, sub_consumer, sub_last_tick, sub_next_tick, sub_batch, sub_role)
VALUES (1, 1, 1, 2, 7, 'coop_main');
INSERT INTO pgque.dead_letter (dl_queue_id, dl_consumer_id, ev_id, ev_time) VALUES (1, 3, 1, now());
CREATE FUNCTION public.lent(text) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
ALTER FUNCTION public.lent(text) OWNER TO catalog_alice;
CREATE FUNCTION public.kept(text) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'
"""


def test_upgrade_brings_what_an_earlier_version_has_stored_to_pgqs_tables(dsn: str, bare_connect: Connect) -> None:
    scripts = bundled_scripts(QUEUES)
    before = tuple(script for script in scripts.migrations if script.version < "0006")
    asked = Script(
        "10_asked", "CREATE FUNCTION pgque._missing_roles() RETURNS text[] LANGUAGE sql AS 'SELECT NULL::text[]'"
    )
    install_into(dsn, Scripts(before, (asked,), (), scripts.title), QUEUES)
    queue = Queue(bare_connect(), "default")
    queue.connection.execute(EARLIER)
    assert install_into(dsn, system=QUEUES).changed
    assert queue.rows(
        "SELECT queue_ticker_max_lag::text, queue_rotation_period::text, queue_extra_maint_roles::text[]"
        " FROM pgque.queue ORDER BY queue_id"
    ) == [("00:00:03", "02:00:00", ["catalog_alice", None, None]), ("00:00:02", "01:00:00", None)]
    assert queue.rows("SELECT de_queue_name, de_payload FROM pgque.delayed_events") == [("chosen", "later")]
    assert queue.rows(
        "SELECT co_name, sub_role, sub_batch FROM pgque.subscription JOIN pgque.consumer ON co_id = 1"
    ) == [("team", "normal", None)]
    assert queue.rows("SELECT co_name FROM pgque.consumer ORDER BY co_id") == [("team",), ("dead",)]


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
