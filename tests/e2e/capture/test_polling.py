"""Foreign tables as sources: computed in full, or polled and maintained by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, errors

from tests.e2e.conftest import Database

POLLING = "ALTER DATABASE {} SET pg_trickle.foreign_table_polling = {}"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def remote(db: Database) -> Database:
    """A database with foreign tables `f_items` and `f_kinds` over its own schema `far`, through a loopback server."""
    where = conninfo.conninfo_to_dict(db.server.direct_dsn(db.name))
    db.run("CREATE EXTENSION postgres_fdw")
    db.run("CREATE SCHEMA far")
    db.run("CREATE TABLE far.items (id int, kind text, price numeric, data json, at timestamptz)")
    db.run(
        f"CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw"
        f" OPTIONS (host '{where['host']}', port '{where['port']}', dbname '{db.name}')"
    )
    login = f"OPTIONS (user '{where['user']}', password '{where['password']}')"
    db.run(f"CREATE USER MAPPING FOR CURRENT_USER SERVER far {login}")
    db.run(
        "CREATE FOREIGN TABLE f_items (id int, kind text, price numeric, data json, at timestamptz)"
        " SERVER far OPTIONS (schema_name 'far', table_name 'items')"
    )
    db.run(
        "INSERT INTO far.items VALUES (1, 'a', 1.0, '{\"x\": 1}', '2026-01-01'), (2, 'b', 2, NULL, NULL),"
        " (2, 'b', 2, NULL, NULL), (3, NULL, NULL, NULL, 'infinity')"
    )
    return db


def polling(db: Database, value: str) -> None:
    db.run(POLLING.format(db.name, value))
    db.run(f"SET pg_trickle.foreign_table_polling = {value}")


def refresh(db: Database, name: str) -> tuple[str, str]:
    db.run(f"SELECT pgtrickle.refresh_stream_table('{name}')")
    ((action, reason),) = db.rows(
        "SELECT action, executor_reason FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 1"
    )
    return action, reason


ALL = "SELECT id, kind, price, data, at FROM f_items"
SUMS = "SELECT kind, count(*) AS n, sum(price) AS total, max(at) AS newest FROM f_items GROUP BY kind"


def create(db: Database, name: str, query: str, mode: str = "DIFFERENTIAL") -> None:
    db.run("SELECT pgtrickle.create_stream_table(%s, %s, '1h', %s)", name, query, mode)


def test_without_the_setting_every_mode_computes_the_whole_query(remote: Database) -> None:
    told: list[str] = []
    remote.connection.add_notice_handler(lambda n: told.append(f"{n.severity}: {n.message_primary}"))
    for mode in ("FULL", "DIFFERENTIAL", "AUTO"):
        create(remote, f"sums_{mode}", SUMS, mode)
    assert sum(m.startswith("INFO: changes of foreign table") for m in told) == 3
    remote.run("INSERT INTO far.items VALUES (9, 'a', 9, NULL, NULL)")
    for mode in ("FULL", "DIFFERENTIAL", "AUTO"):
        assert refresh(remote, f"sums_{mode}")[0] == "FULL"
        remote.assert_current(f"sums_{mode}")
    assert remote.value("SELECT count(*) FROM pgtrickle.pgt_polls") == 0


def test_a_polled_table_is_maintained_by_differences(remote: Database) -> None:
    polling(remote, "on")
    create(remote, "everything", ALL)
    create(remote, "sums", SUMS)
    remote.assert_current("everything")
    remote.assert_current("sums")
    assert refresh(remote, "sums")[0] == "NO_DATA"
    for change in (
        "INSERT INTO far.items VALUES (2, 'b', 2, NULL, NULL), (4, 'new', 4.00, '[]', now())",
        "DELETE FROM far.items WHERE ctid = (SELECT min(ctid) FROM far.items WHERE id = 2)",
        "UPDATE far.items SET price = 1.000 WHERE id = 1",  # an equal value that is written otherwise
        "UPDATE far.items SET kind = NULL, data = '{\"x\" : 1}' WHERE kind = 'b'",
        "DELETE FROM far.items WHERE kind IS NULL",
        "TRUNCATE far.items",
        "INSERT INTO far.items SELECT n, n % 7, n / 3.0 FROM generate_series(1, 300) AS n",
    ):
        remote.run(change)
        for name in ("everything", "sums"):
            assert refresh(remote, name)[0] == "DIFFERENTIAL"
            remote.assert_current(name)


def test_join_of_a_polled_table_and_one_that_changes_at_the_same_time(remote: Database) -> None:
    polling(remote, "on")
    remote.run("CREATE TABLE kinds (kind text PRIMARY KEY, title text)")
    remote.run("INSERT INTO kinds VALUES ('a', 'A'), ('b', 'B')")
    query = "SELECT i.id, i.price, k.title FROM f_items i LEFT JOIN kinds k ON k.kind = i.kind"
    create(remote, "titles", query)
    remote.run("CREATE VIEW dear AS SELECT * FROM f_items WHERE price > 1")
    above = "SELECT d.id, t.title FROM dear d JOIN titles t ON t.id = d.id AND t.price = d.price"
    create(remote, "dear_titles", above)
    for change in (
        "UPDATE far.items SET kind = 'b' WHERE id = 1; DELETE FROM kinds WHERE kind = 'a'",
        "INSERT INTO kinds VALUES ('c', 'C'); INSERT INTO far.items VALUES (7, 'c', 7, NULL, NULL)",
        "DELETE FROM far.items WHERE kind = 'c'; UPDATE kinds SET title = 'CC' WHERE kind = 'c'",
    ):
        remote.run(change)
        assert refresh(remote, "titles")[0] == "DIFFERENTIAL"
        remote.assert_current("titles")
        refresh(remote, "dear_titles")
        remote.assert_current("dear_titles")


def test_another_query_over_polled_tables(remote: Database) -> None:
    """Copies come and go with the queries; nothing is left of them in the end."""
    polling(remote, "on")
    remote.run("CREATE TABLE kinds (kind text PRIMARY KEY, title text)")
    remote.run("INSERT INTO kinds VALUES ('a', 'A'), ('b', 'B')")
    before: list[Any] = remote.traces()
    create(remote, "st", SUMS)
    copies = "SELECT copy_name FROM pgtrickle.pgt_polls"
    for query in (
        SUMS.replace(" GROUP BY", " WHERE price > 1 GROUP BY"),
        "SELECT i.id, k.title FROM f_items AS i JOIN kinds AS k USING (kind)",
        "SELECT kind, title FROM kinds",
        ALL,
    ):
        remote.run("INSERT INTO far.items VALUES (8, 'a', 9, NULL, NULL)")
        known = remote.rows(copies)
        remote.run("SELECT pgtrickle.alter_stream_table('st', query => %s)", query)
        remote.assert_current("st")
        assert len(remote.rows(copies)) == ("f_items" in query) and not {*known} & {*remote.rows(copies)}
        remote.run("UPDATE far.items SET price = price + 1 WHERE kind = 'a'; DELETE FROM kinds WHERE kind = 'b'")
        assert refresh(remote, "st")[0] == "DIFFERENTIAL"
        remote.assert_current("st")
        remote.run("INSERT INTO kinds VALUES ('b', 'BB')")
        remote.refresh("st")
    polling(remote, "off")
    remote.run("SELECT pgtrickle.alter_stream_table('st', query => %s)", SUMS)
    remote.assert_current("st")
    assert remote.rows(copies) == []
    remote.run("SELECT pgtrickle.drop_stream_table('st'); SELECT pgtrickle._cleanup_buffers()")
    assert remote.traces() == before


def test_switched_off_again_refreshes_are_full_until_it_is_back_on(remote: Database) -> None:
    polling(remote, "on")
    create(remote, "sums", SUMS)
    polling(remote, "off")
    remote.run("INSERT INTO far.items VALUES (5, 'e', 5, NULL, NULL)")
    action, reason = refresh(remote, "sums")
    assert (action, "foreign_table_polling is off" in reason) == ("FULL", True)
    remote.assert_current("sums")
    polling(remote, "on")
    remote.run("DELETE FROM far.items WHERE id = 5")
    assert refresh(remote, "sums")[0] == "DIFFERENTIAL"
    remote.assert_current("sums")


def test_in_a_transaction_the_refresh_takes_its_polls_back(remote: Database) -> None:
    polling(remote, "on")
    create(remote, "sums", SUMS)
    remote.run("INSERT INTO far.items VALUES (5, 'e', 5, NULL, NULL)")
    for end in ("ROLLBACK", "COMMIT"):
        remote.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert refresh(remote, "sums")[0] == "DIFFERENTIAL"
        remote.assert_current("sums")
        remote.run(end)
    assert refresh(remote, "sums")[0] == "NO_DATA"
    remote.assert_current("sums")


def test_the_scheduler_polls(remote: Database, eventually: Callable[..., Any]) -> None:
    polling(remote, "on")
    remote.run("SELECT pgtrickle.create_stream_table('sums', %s, '1s', 'DIFFERENTIAL')", SUMS)
    remote.run(f"ALTER DATABASE {remote.name} SET pg_trickle.enabled = on")
    remote.run("INSERT INTO far.items VALUES (5, 'e', 5, NULL, NULL)")
    eventually(lambda: remote.rows("SELECT 1 FROM sums WHERE kind = 'e' AND total = 5"))
    done = remote.rows(
        "SELECT DISTINCT action FROM pgtrickle.pgt_refresh_history WHERE initiated_by = 'SCHEDULER'"
        " AND rows_inserted > 0"
    )
    assert done == [("DIFFERENTIAL",)]


def test_the_owner_must_be_allowed_to_read_the_foreign_table(remote: Database) -> None:
    polling(remote, "on")
    remote.run("CREATE ROLE poller LOGIN PASSWORD 'secret'")
    remote.run("GRANT CREATE ON SCHEMA public TO poller")
    where = conninfo.conninfo_to_dict(remote.server.direct_dsn())
    try:
        with psycopg.connect(
            remote.server.dsn(remote.name, user="poller", password="secret"), autocommit=True
        ) as poller:
            create_it = "SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS n FROM f_items', '1h')"
            with pytest.raises(errors.InsufficientPrivilege, match="f_items"):
                poller.execute(create_it)
            remote.run("GRANT SELECT ON f_items TO poller")
            with pytest.raises(psycopg.Error, match="user mapping"):
                poller.execute(create_it)
            remote.run(
                f"CREATE USER MAPPING FOR poller SERVER far"
                f" OPTIONS (user '{where['user']}', password '{where['password']}')"
            )
            poller.execute(create_it)
            assert poller.execute("SELECT n FROM sums").fetchone() == (4,)
            ((copy,),) = remote.rows("SELECT copy_name FROM pgtrickle.pgt_polls")
            assert poller.execute(f'SELECT count(*) FROM pgtrickle_changes."{copy}"').fetchone() == (4,)
            remote.run("REVOKE SELECT ON f_items FROM poller")
            with pytest.raises(errors.InsufficientPrivilege, match="f_items"):
                poller.execute("SELECT pgtrickle.refresh_stream_table('sums')")
            with pytest.raises(errors.InsufficientPrivilege, match=copy):
                poller.execute(f'SELECT count(*) FROM pgtrickle_changes."{copy}"')
            remote.run("GRANT SELECT ON f_items TO poller")
            remote.run("DELETE FROM far.items WHERE id = 1")
            poller.execute("SELECT pgtrickle.refresh_stream_table('sums')")
            assert poller.execute("SELECT n FROM sums").fetchone() == (3,)
    finally:
        remote.run("DROP OWNED BY poller CASCADE")
        remote.run("DROP USER MAPPING IF EXISTS FOR poller SERVER far")
        remote.run("DROP ROLE poller")


def test_a_foreign_table_that_goes_away_or_changes(remote: Database) -> None:
    polling(remote, "on")
    create(remote, "sums", SUMS)
    remote.run("ALTER FOREIGN TABLE f_items ALTER price TYPE text")
    with pytest.raises(errors.FeatureNotSupported, match="columns of foreign table"):
        refresh(remote, "sums")
    remote.run("ALTER FOREIGN TABLE f_items ALTER price TYPE numeric")
    remote.run("DROP FOREIGN TABLE f_items")
    with pytest.raises(errors.UndefinedTable, match="f_items"):
        refresh(remote, "sums")
    remote.run(
        "CREATE FOREIGN TABLE f_items (id int, kind text, price numeric, data json, at timestamptz)"
        " SERVER far OPTIONS (schema_name 'far', table_name 'items')"
    )
    remote.run("DELETE FROM far.items WHERE id = 1")
    refresh(remote, "sums")
    remote.assert_current("sums")


def test_a_server_that_cannot_be_reached_fails_the_refresh_alone(remote: Database) -> None:
    polling(remote, "on")
    create(remote, "sums", SUMS)
    remote.run("ALTER SERVER far OPTIONS (SET port '1')")
    with pytest.raises(errors.FdwUnableToEstablishConnection):
        refresh(remote, "sums")
    remote.run(f"ALTER SERVER far OPTIONS (SET port '{conninfo.conninfo_to_dict(remote.server.direct_dsn())['port']}')")
    assert refresh(remote, "sums")[0] == "NO_DATA"


def test_dropping_the_stream_table_leaves_nothing(remote: Database) -> None:
    polling(remote, "on")
    before: list[Any] = remote.traces()
    create(remote, "sums", SUMS)
    assert remote.traces() != before
    remote.run("SELECT pgtrickle.drop_stream_table('sums')")
    assert remote.traces() == before
