"""The settings `pg_trickle.*` through the wire: shown before they are set, checked when they are, with an effect."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors

from catalog.settings import SETTINGS, Setting
from tests.e2e.conftest import Database


@pytest.fixture
def client(shared_db: Database) -> Any:
    shared_db.run(f"ALTER DATABASE {shared_db.name} RESET pg_trickle.enabled")
    connection = shared_db.connect()
    yield connection
    connection.close()


def value(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def other_value(setting: Setting) -> str:
    """A value that the setting can have and that is not its default."""
    if setting.kind == "bool":
        return "off" if setting.default == "on" else "on"
    if setting.values:
        return next(each for each in setting.values if each != setting.default)
    assert setting.least is not None
    return str(int(setting.least) + 1)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_setting_is_shown_before_it_is_set_and_checked_when_it_is(client: Any, setting: Setting) -> None:
    name = setting.full_name
    shown = client.execute(f"SHOW {name}")
    assert (shown.fetchone(), shown.statusmessage, shown.description[0].name) == ((setting.default,), "SHOW", name)
    if setting.fixed:
        if setting.kind != "string":
            with pytest.raises(errors.FeatureNotSupported, match="cannot be set to"):
                client.execute(f"SET {name} = '{other_value(setting)}'")
        client.execute(f"SET {name} = '{setting.default}'")
        return
    assert client.execute(f"SET {name} = '{other_value(setting)}'").statusmessage == "SET"
    assert value(client, f"SHOW {name}") == other_value(setting)
    client.execute(f"RESET {name}")
    assert value(client, f"SHOW {name}") == setting.default
    with pytest.raises(errors.InvalidParameterValue) as raised:
        client.execute(f"SET LOCAL {name} TO 'nonsense'")
    assert name in (raised.value.diag.message_primary or "")
    if setting.most is not None:
        with pytest.raises(errors.InvalidParameterValue, match="is outside the valid range for parameter"):
            client.execute(f"ALTER ROLE CURRENT_USER SET {name} = {int(setting.most) + 1}")
        with pytest.raises(errors.InvalidParameterValue, match="is outside the valid range for parameter"):
            client.execute(f"ALTER SYSTEM SET {name} = -1")


def test_every_setting_is_in_the_view(client: Any) -> None:
    found = client.execute("SELECT name, boot_val, setting, vartype, source FROM pgtrickle.settings").fetchall()
    assert {row[0]: row[1] for row in found} == {each.full_name: each.default for each in SETTINGS}
    assert {row[3] for row in found} == {"bool", "integer", "real", "enum", "string"}
    assert dict((row[0], (row[2], row[4])) for row in found)["pg_trickle.enabled"] == ("on", "default")


def test_an_unknown_name_is_warned_about_with_the_nearest_known_one(client: Any) -> None:
    notices: list[Any] = []
    client.add_notice_handler(lambda told: notices.append((told.severity, told.message_hint)))
    client.execute("SET pg_trickle.max_concurent_refreshes = 2")
    assert notices == [("WARNING", 'Perhaps you meant "pg_trickle.max_concurrent_refreshes".')]
    assert value(client, "SHOW pg_trickle.max_concurent_refreshes") == "2"  # it is PostgreSQL's
    notices.clear()
    client.execute("SET pg_trickle.adaptive_full_threshold = 0.2")
    assert notices == [("WARNING", 'Perhaps you meant "pg_trickle.differential_max_change_ratio".')]


def test_a_wrong_value_undoes_its_string_of_statements(client: Any) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        client.execute("CREATE TABLE lost (); SET pg_trickle.enabled = perhaps; SELECT 1")
    assert value(client, "SELECT to_regclass('lost')") is None
    client.execute("BEGIN; SET LOCAL pg_trickle.spark_min_rows = 7")
    assert value(client, "SHOW pg_trickle.spark_min_rows") == "7"
    client.execute("COMMIT")
    assert value(client, "SHOW pg_trickle.spark_min_rows") == "100000"


def test_settings_in_prepared_statements(client: Any) -> None:
    assert client.execute("SHOW pg_trickle.refresh_engine", prepare=True).fetchone() == ("auto",)
    client.execute("SET pg_trickle.refresh_engine = 'postgres'", prepare=True)
    assert client.execute("SHOW pg_trickle.refresh_engine", prepare=True).fetchone() == ("postgres",)
    with pytest.raises(errors.InvalidParameterValue) as raised:
        client.execute("SET pg_trickle.refresh_engine = mysql", prepare=True)
    assert raised.value.diag.message_hint == "Available values: auto, spark, postgres."
    assert raised.value.diag.context is None
    client.execute("SET pg_trickle.spark_timeout = E'30'")
    assert value(client, "SHOW pg_trickle.spark_timeout") == "30"


def test_a_value_that_came_past_the_check_is_warned_about_and_not_used(client: Any) -> None:
    notices: list[Any] = []
    client.add_notice_handler(lambda told: notices.append(told.message_primary))
    client.execute("SELECT set_config('pg_trickle.max_concurrent_refreshes', '99', false)")
    assert value(client, "SHOW pg_trickle.max_concurrent_refreshes") == "4"
    assert notices == ['99 is outside the valid range for parameter "pg_trickle.max_concurrent_refreshes" (1 .. 32)']
    error = value(client, "SELECT error FROM pgtrickle.settings WHERE name = 'pg_trickle.max_concurrent_refreshes'")
    assert "outside the valid range" in error


@pytest.mark.parametrize(
    ("changes", "settings", "seen"),
    [
        (10, "", ("off", "4MB")),
        (10_000, "", ("off", "64MB")),
        (10_000, "SET pg_trickle.merge_work_mem_mb = 8", ("off", "8MB")),
        (10_000, "SET work_mem = '256MB'", ("off", "256MB")),
        (10_000, "SET pg_trickle.merge_planner_hints = off", ("on", "4MB")),
    ],
)
def test_what_helps_the_planner_to_apply_changes(
    db: Database, changes: int, settings: str, seen: tuple[str, str]
) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE seen (hints text, memory text)")
    db.create("st", "SELECT n, count(*) AS c FROM t GROUP BY n", refresh_mode="DIFFERENTIAL")
    db.run(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen"
        " VALUES (current_setting('enable_mergejoin'), current_setting('work_mem')); RETURN NULL; END $$;"
        "CREATE TRIGGER look AFTER INSERT ON st EXECUTE FUNCTION look()"
    )
    db.run(f"SET work_mem = '4MB'; {settings}; INSERT INTO t SELECT i, i % 7 FROM generate_series(1, {changes}) AS i")
    db.assert_differential("st")
    assert db.rows("SELECT DISTINCT hints, memory FROM seen") == [seen]
    assert db.value("SELECT current_setting('work_mem')") == ("256MB" if "256" in settings else "4MB")
