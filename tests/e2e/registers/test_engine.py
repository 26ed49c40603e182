"""Registers and the engine: pending rows merged, partitions made ahead, crashes, and whose rights it works with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Database, Headwater
from tests.e2e.registers.registers import consistent, post
from tests.e2e.reliability.test_crash_recovery import connected, kill

Eventually = Callable[..., Any]

VIEWS = """SELECT accum.register_create('{name}', '{{"page": "text"}}', '{{"n": "int"}}', high_write := true)"""

BALANCES = "SELECT t ->> 'page', (t -> 'n')::int FROM accum.{name}_turnover(group_by := '[\"page\"]') AS t ORDER BY 1"
CACHED = "SELECT page, n FROM accum.{name}_balance_cache ORDER BY page"
STORED = "SELECT page, n FROM accum.{name}_balance_cache_stored ORDER BY page"
PENDING = "SELECT count(*) FROM accum.{name}_balance_cache_delta"


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    """A server of the module's own, to be killed and started again."""
    running = Headwater(tmp_path_factory.mktemp("registers") / "data").start()
    with connected(running) as database:
        settings(database, delta_merge_interval="'50ms'", delta_merge_delay=0)
    yield running
    assert running.stop() == 0


@pytest.fixture
def registers(crashing: Headwater) -> Iterator[Database]:
    """Its database, in which the engine merges twenty times a second."""
    with connected(crashing) as database:
        yield database


def settings(database: Database, **values: object) -> None:
    """Settings of `pg_accumulator`, for the engine, which sees them at its next cycle."""
    for name, value in values.items():
        database.run(f"ALTER DATABASE {database.name} SET pg_accumulator.{name} = {value}")


def make(database: Database, name: str) -> None:
    database.run(VIEWS.format(name=name))


def viewed(page: str, n: int) -> dict[str, Any]:
    return {"recorder": f"{page} {n}", "period": "2026-04-18", "page": page, "n": n}


# First, since the server looks at once when it has started again, for registers that it did not know.
@pytest.mark.parametrize("what", ["both", "backend"])
def test_balances_are_right_after_a_crash_and_the_register_is_repaired(
    crashing: Headwater, what: str, eventually: Eventually
) -> None:
    name = f"crashed_{what}"
    with connected(crashing) as database:
        make(database, name)
        post(database, viewed("a", 1), viewed("b", 2), register=name)
        database.run("SELECT accum._force_delta_merge()")
        # Nobody can merge what comes now.
        database.bypass(autocommit=False).execute(f"LOCK TABLE accum.{name}_balance_cache_epoch IN EXCLUSIVE MODE")
        post(database, viewed("a", 10), viewed("c", 30), register=name)
        database.run(f"SELECT accum.register_unpost('{name}', 'b 2')")
        assert database.rows(BALANCES.format(name=name)) == [("a", 11), ("b", 0), ("c", 30)]
        expected = [("a", 11), ("c", 30)]
    kill(crashing, what, random.Random(1))
    with connected(crashing) as database:
        assert [row for row in database.rows(BALANCES.format(name=name)) if row[1]] == expected
        assert database.value(f'SELECT accum.{name}_balance(\'{{"page": "a"}}\')') == {"n": 11}
        assert database.value(f"SELECT accum.{name}_balance()") == {"n": 41}
        assert database.value(f"SELECT accum.{name}_turnover('2026-04-01', '2026-04-30')") == {"n": 41}
        post(database, viewed("a", 100), register=name)
        assert database.value(f'SELECT accum.{name}_balance(\'{{"page": "a"}}\')') == {"n": 111}
        eventually(
            lambda: [r for r in database.rows(STORED.format(name=name)) if r[1]] == [("a", 111), ("c", 30)],
            what="the repaired register",
        )
        assert [row for row in database.rows(BALANCES.format(name=name)) if row[1]] == [("a", 111), ("c", 30)]
        assert consistent(database, name)


def test_pending_rows_are_merged_by_the_engine(registers: Database, eventually: Eventually) -> None:
    make(registers, "merged")
    post(registers, viewed("a", 3), viewed("b", 5), register="merged")
    post(registers, viewed("a", 4), register="merged")
    assert registers.rows(BALANCES.format(name="merged")) == [("a", 7), ("b", 5)]
    eventually(lambda: registers.value(PENDING.format(name="merged")) == 0)
    assert registers.rows(STORED.format(name="merged")) == [("a", 7), ("b", 5)]
    assert registers.rows(CACHED.format(name="merged")) == [("a", 7), ("b", 5)]
    assert registers.rows(BALANCES.format(name="merged")) == [("a", 7), ("b", 5)]
    assert consistent(registers, "merged")


def test_a_buffer_is_seen_to_be_written_whatever_its_register_is_called(registers: Database) -> None:
    name = "n" * 40  # PostgreSQL shortens the name of the buffer's sequence
    make(registers, name)
    written = "SELECT written FROM accum_internal._maintained() WHERE register = %s"
    before = registers.value(written, name)
    post(registers, viewed("a", 3), viewed("b", 5), register=name)
    assert registers.value(written, name) - (before or 0) == 2


def test_a_buffer_through_which_much_has_gone_is_vacuumed(registers: Database, eventually: Eventually) -> None:
    make(registers, "busy")
    registers.run(
        "INSERT INTO accum.busy_movements (recorder, period, page, n)"
        " SELECT 'import', '2026-04-18', i::text, 1 FROM generate_series(1, 12000) AS i"
    )
    assert registers.value("SELECT accum.busy_balance()") == {"n": 12000}
    eventually(lambda: registers.value(PENDING.format(name="busy")) == 0)
    vacuumed = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'busy_balance_cache_delta'"
    eventually(lambda: registers.value(vacuumed) > 0)
    assert registers.value("SELECT accum.busy_balance()") == {"n": 12000}


def test_rows_of_a_long_transaction_are_merged_too(registers: Database, eventually: Eventually) -> None:
    make(registers, "late")
    slow = registers.connect(autocommit=False)
    slow.execute(
        """SELECT accum.register_post('late', '{"recorder": "x", "period": "2026-04-18", "page": "a", "n": 1}')"""
    )
    post(registers, viewed("a", 2), register="late")
    eventually(lambda: registers.rows(STORED.format(name="late")) == [("a", 2)])
    slow.commit()
    assert registers.rows(BALANCES.format(name="late")) == [("a", 3)]
    eventually(lambda: registers.rows(STORED.format(name="late")) == [("a", 3)])


def test_what_a_trigger_does_to_the_workers_session_is_undone(registers: Database, eventually: Eventually) -> None:
    """The next turn is another owner's: neither locks nor settings of this one's may concern that one."""
    make(registers, "lurking")
    registers.run(
        "CREATE FUNCTION lurk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_setting('application_name') LIKE 'pg_accumulator maintenance%' THEN"
        "     PERFORM pg_advisory_lock(4711), set_config('work_mem', '77MB', false);"
        " END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER lurk BEFORE INSERT ON accum.lurking_balance_cache_stored FOR EACH ROW EXECUTE FUNCTION lurk()"
    )
    post(registers, viewed("a", 3), register="lurking")
    eventually(lambda: registers.rows(STORED.format(name="lurking")) == [("a", 3)])
    eventually(lambda: registers.value("SELECT pg_try_advisory_xact_lock(4711)"), what="the lock's release")


def test_the_worker_shows_what_it_is_and_what_it_does(registers: Database, eventually: Eventually) -> None:
    make(registers, "shown")
    (row,) = eventually(
        lambda: registers.rows("SELECT pid, worker_name, query FROM accum._maintenance_status() WHERE pid > 0")
    )
    assert row[1:] == ("pg_accumulator maintenance 0", "delta merge")
    ((state, started),) = registers.rows("SELECT state, started_at < now() FROM accum._maintenance_status()")
    assert (state in ("idle", "active", "idle in transaction"), started) == (True, True)
    shown = registers.server.status()
    (line,) = [line for line in shown.splitlines() if " postgres " in line and "backend" in line]
    assert f"(merged by backend {row[0]}," in line


def test_partitions_are_kept_ahead(registers: Database, eventually: Eventually) -> None:
    registers.run("""SELECT accum.register_create('ahead', '{"page": "text"}', '{"n": "int"}')""")
    count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'accum.ahead_movements'::regclass"
    assert registers.value(count) == 5
    settings(registers, partitions_ahead=6, maintenance_interval=100)
    try:
        eventually(lambda: registers.value(count) == 8)
    finally:
        settings(registers, partitions_ahead="DEFAULT", maintenance_interval="DEFAULT")


def test_rights_of_the_owner_are_all_that_merging_has(registers: Database, eventually: Eventually) -> None:
    registers.run("CREATE ROLE mallory LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO mallory")
    registers.run("GRANT INSERT ON accum._registers TO mallory")
    mallory = registers.connect(user="mallory", password="secret")
    mallory.execute(VIEWS.format(name="planted"))
    mallory.execute(
        """
        CREATE TABLE public.seen (who text, became text);
        CREATE FUNCTION public.planted() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            became text := 'nobody';
        BEGIN
            BEGIN
                RESET ROLE;
                EXECUTE 'SET ROLE postgres';
                ALTER ROLE mallory SUPERUSER;
                became := current_user;
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
            INSERT INTO public.seen VALUES (current_user, became);
            RETURN NULL;
        END $$;
        CREATE TRIGGER planted AFTER INSERT ON accum.planted_balance_cache_stored EXECUTE FUNCTION public.planted();
        CREATE TRIGGER planted AFTER DELETE ON accum.planted_balance_cache_delta EXECUTE FUNCTION public.planted();
        """
    )
    mallory.execute(
        """SELECT accum.register_post('planted', '{"recorder": "x", "period": "2026-04-18", "page": "a", "n": 1}')"""
    )
    eventually(lambda: registers.rows(STORED.format(name="planted")) == [("a", 1)])
    assert registers.rows("SELECT DISTINCT who, became FROM public.seen") == [("mallory", "nobody")]
    assert registers.value("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'") is False


def test_the_worker_leaves_when_no_register_is_in_high_write_mode(registers: Database, eventually: Eventually) -> None:
    make(registers, "last")
    post(registers, viewed("a", 1), register="last")
    eventually(lambda: registers.rows(STORED.format(name="last")) == [("a", 1)])
    registers.run("SELECT accum.register_drop(name, force := true) FROM accum._registers WHERE name <> 'last'")
    registers.run("SELECT accum.register_alter('last', high_write := false)")
    status = "SELECT pid, worker_name, state, query FROM accum._maintenance_status()"
    waiting = [(None, "pg_accumulator maintenance 0", "waiting", "partitions")]
    eventually(lambda: registers.rows(status) == waiting, what="a database without a worker")
    assert registers.rows(BALANCES.format(name="last")) == [("a", 1)]
