"""Partitions of a register's movements: made ahead and afterwards, filled from the default one, detached."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Connection, sqlstate
from tests.catalog.test_register_concurrency import value, wrong
from tests.catalog.test_register_deltas import Open, create, lose, sessions

__all__ = ["sessions"]


def partitions(connection: Connection, name: str) -> dict[str, tuple[str, str]]:
    """The bounds of the partitions but the default one, by what follows the name of the movements."""
    rows = connection.execute(
        "SELECT substr(c.relname, length(%s) + 2), pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i"
        " JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = %s::regclass ORDER BY c.relname",
        [f"{name}_movements", f"accum.{name}_movements"],
    ).fetchall()
    bounds = {suffix: bound.split("'") for suffix, bound in rows if suffix != "default"}
    assert len(bounds) == len(rows) - 1
    return {
        suffix: (parts[1].removesuffix(" 00:00:00+00"), parts[3].removesuffix(" 00:00:00+00"))
        for suffix, parts in bounds.items()
    }


def months(first: int, last: int) -> list[str]:
    """The months from the present one, in UTC, as the names of partitions have them."""
    now = datetime.now(UTC)
    number = now.year * 12 + now.month - 1
    return [f"{n // 12:04}_{n % 12 + 1:02}" for n in range(number + first, number + last + 1)]


def insert(connection: Connection, name: str, *periods: Any, n: int = 1, into: str = "movements") -> None:
    for period in periods:
        connection.execute(
            f"INSERT INTO accum.{name}_{into} (recorder, period, item, lot, n) VALUES ('r', %s, 1, 'A', %s)",
            [period, n],
        )


def counts(connection: Connection, name: str) -> dict[str, int]:
    """Movements by partition."""
    rows = connection.execute(
        f"SELECT substr(tableoid::regclass::text, length('accum.{name}_movements') + 2), count(*)"
        f" FROM accum.{name}_movements GROUP BY 1"
    ).fetchall()
    return dict(rows)


# ---------------------------------------------------------------------------------------------------------------------
# Making them


def test_a_register_begins_with_the_present_month_and_three_ahead(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    assert list(partitions(connection, name)) == months(0, 3)
    insert(connection, name, datetime.now(UTC), "2001-01-01")
    assert counts(connection, name) == {months(0, 0)[0]: 1, "default": 1}


@pytest.mark.parametrize(
    ("partition_by", "at", "suffix", "bounds"),
    [
        ("month", "2026-12-31 23:59+00", "2026_12", ("2026-12-01", "2027-01-01")),
        ("quarter", "2026-04-18", "2026_q2", ("2026-04-01", "2026-07-01")),
        ("year", "2026-04-18", "2026", ("2026-01-01", "2027-01-01")),
    ],
)
def test_names_and_bounds(sessions: Open, partition_by: str, at: str, suffix: str, bounds: tuple[str, str]) -> None:
    connection = sessions()
    name = create(connection, high_write=False, partition_by=partition_by)
    # As far as that from now: the interval ends somewhere in the period.
    connection.execute("SELECT accum.register_create_partitions(%s, %s::timestamptz - now())", [name, at])
    assert partitions(connection, name)[suffix] == bounds
    insert(connection, name, at)
    assert counts(connection, name) == {suffix: 1}
    assert wrong(connection, name) == []


def test_partitions_of_days(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False, partition_by="day")
    connection.execute("SELECT accum.register_create_partitions(%s, interval '-2 days')", [name])
    days = [datetime.now(UTC) + timedelta(days=n) for n in range(-2, 5)]
    assert partitions(connection, name) == {
        f"{day:%Y_%m_%d}": (f"{day:%Y-%m-%d}", f"{following:%Y-%m-%d}") for day, following in pairwise(days)
    }


def test_partitions_by_count_and_by_interval(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    make = "SELECT accum.register_create_partitions(%s, %s)"
    assert value(connection, make, name, 3) == 0
    assert value(connection, make, name, 5) == 2
    assert list(partitions(connection, name)) == months(0, 5)
    assert value(connection, make, name, timedelta(days=-1) * 40) in (1, 2)
    assert value(connection, "SELECT accum.register_create_partitions(%s, interval '7 months')", name) == 2
    assert list(partitions(connection, name))[-1] == months(7, 7)[0]
    assert value(connection, "SELECT accum.register_create_partitions(%s)", name) == 0


def test_a_count_or_an_interval_of_no_declared_type(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    make = "SELECT accum.register_create_partitions(%s, %s)"
    assert value(connection, make, name, "5") == 2
    assert value(connection, make, name, None) == 0
    assert value(connection, make, name, "6 months") == 1
    assert sqlstate(connection, make, name, "-1") == "22023"
    assert sqlstate(connection, make, name, "some") == "22007"


def test_as_many_ahead_as_the_setting_says(sessions: Open) -> None:
    connection = sessions()
    connection.execute("SET pg_accumulator.partitions_ahead = 1")
    name = create(connection, high_write=False)
    assert list(partitions(connection, name)) == months(0, 1)
    connection.execute("SET pg_accumulator.partitions_ahead = 2")
    assert value(connection, "SELECT accum.register_create_partitions(%s)", name) == 1


def test_what_cannot_be_made(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    make = "SELECT accum.register_create_partitions(%s, %s)"
    assert sqlstate(connection, make, name, -1) == "22023"
    assert sqlstate(connection, "SELECT accum.register_create_partitions(%s, NULL::interval)", name) == "22004"
    assert sqlstate(connection, make, "nothing", 1) == "42704"
    assert sqlstate(connection, "SELECT accum.register_detach_partitions(%s, NULL)", name) == "22004"
    assert sqlstate(connection, "SELECT accum.register_detach_partitions('nothing', '2024-01-01'::date)") == "42704"


def test_rows_are_moved_from_the_default_partition_unnoticed(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    month = datetime.now(UTC).replace(day=1) - timedelta(days=20)
    insert(connection, name, month, month, "2001-01-01", n=7)
    connection.execute(
        f"""
        CREATE TABLE public.noticed_{name} (what text);
        CREATE FUNCTION public.notice_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.noticed_{name} VALUES (tg_op);
            RETURN NULL;
        END $$;
        CREATE TRIGGER notice AFTER INSERT OR DELETE ON accum.{name}_movements
            FOR EACH ROW EXECUTE FUNCTION public.notice_{name}();
        CREATE TRIGGER off AFTER DELETE ON accum.{name}_movements_default EXECUTE FUNCTION public.notice_{name}();
        ALTER TABLE accum.{name}_movements_default DISABLE TRIGGER off, ENABLE ALWAYS TRIGGER accumulate_delete;
        """
    )
    default = f"accum.{name}_movements_default"
    enabled = f"SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = '{default}'::regclass ORDER BY tgname"
    before = (
        connection.execute(enabled).fetchall(),
        connection.execute(f"SELECT * FROM accum.{name}_balance_cache").fetchall(),
    )
    assert value(connection, "SELECT accum.register_create_partitions(%s, interval '-40 days')", name) in (1, 2)
    assert counts(connection, name) == {f"{month:%Y_%m}": 2, "default": 1}
    assert before == (
        connection.execute(enabled).fetchall(),
        connection.execute(f"SELECT * FROM accum.{name}_balance_cache").fetchall(),
    )
    assert value(connection, f"SELECT count(*) FROM public.noticed_{name}") == 0
    assert value(connection, f"SELECT count(*) FROM accum.{name}_movements_audit") == 0
    assert wrong(connection, name) == []
    assert value(connection, "SELECT accum.register_unpost(%s, 'r')", name) == 3
    assert value(connection, f"SELECT accum.{name}_balance() ->> 'n'") == "0"


def test_a_partition_made_later_counts_when_it_is_written_directly(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    connection.execute("SELECT accum.register_create_partitions(%s, 6)", [name])
    partition = months(6, 6)[0]
    ((lower, _),) = [bounds for suffix, bounds in partitions(connection, name).items() if suffix == partition]
    insert(connection, name, f"{lower} 12:00+00", n=5, into=f"movements_{partition}")
    assert value(connection, f"SELECT accum.{name}_balance() ->> 'n'") == "5"
    connection.execute(f"TRUNCATE accum.{name}_movements_{partition}")
    assert value(connection, f"SELECT accum.{name}_balance() ->> 'n'") == "0"
    assert wrong(connection, name) == []


def test_movements_that_go_to_another_partition(sessions: Open) -> None:
    """PostgreSQL does not tell triggers of those that a MERGE moves; it is refused."""
    connection = sessions()
    name = create(connection, high_write=False)
    connection.execute("SELECT accum.register_create_partitions(%s, interval '-40 days')", [name])
    month = datetime.now(UTC).replace(day=1)
    insert(connection, name, month, month, n=7)
    merge = (
        f"MERGE INTO accum.{name}_movements AS m USING (VALUES (1)) AS s (item) ON m.item = s.item"
        " WHEN MATCHED THEN UPDATE SET n = n + 1, period = period + %s::interval"
    )
    assert sqlstate(connection, merge, "-20 days") == "0A000"
    with connection.transaction():
        connection.execute(f"UPDATE accum.{name}_movements SET n = n + 1")
        assert sqlstate(connection, merge, "-20 days") == "0A000"
        connection.execute(merge, ["1 second"])
    connection.execute(f"UPDATE accum.{name}_movements SET period = period - interval '20 days'")
    assert counts(connection, name) == {months(-1, -1)[0]: 2}
    assert value(connection, f"SELECT accum.{name}_balance() ->> 'n'") == "18"
    assert wrong(connection, name) == []


def test_merge_that_inserts_and_updates_movements_of_one_partition(sessions: Open) -> None:
    """PostgreSQL would confuse the inserted row with the updated one where no trigger looked at it before."""
    connection = sessions()
    name = create(connection, high_write=False)
    month = datetime.now(UTC).replace(day=1)
    insert(connection, name, month, month, n=7)
    for given in ("", ", dim_hash = m.dim_hash"):
        connection.execute(
            f"MERGE INTO accum.{name}_movements AS m USING (VALUES (5), (7), (6)) AS s (n) ON m.n = s.n"
            f" WHEN MATCHED THEN UPDATE SET n = m.n + 100{given} WHEN NOT MATCHED THEN"
            " INSERT (recorder, period, item, lot, n) VALUES ('merged', %s, 1, 'A', s.n)",
            [month],
        )
        assert wrong(connection, name) == []
        total = value(connection, f"SELECT sum(n) FROM accum.{name}_movements")
        assert value(connection, f"SELECT accum.{name}_balance() ->> 'n'") == str(total)


def test_partitions_are_made_while_others_write_and_read(sessions: Open) -> None:
    connection, writer = sessions(), sessions()
    name = create(connection)
    connection.execute("SET lock_timeout = '60s'")
    with writer.transaction():
        insert(writer, name, datetime.now(UTC))
        assert value(connection, "SELECT accum.register_create_partitions(%s, 4)", name) == 1
    assert wrong(connection, name) == []


def test_only_the_owner_makes_and_detaches(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    connection.execute(f"CREATE ROLE stranger_{name}; GRANT ALL ON accum.{name}_movements TO stranger_{name}")
    try:
        for call in ("register_create_partitions(%s, 9)", "register_detach_partitions(%s, '2100-01-01')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"SET LOCAL ROLE stranger_{name}")
                connection.execute(f"SELECT accum.{call}", [name])
    finally:
        connection.execute(f"DROP OWNED BY stranger_{name}; DROP ROLE stranger_{name}")


# ---------------------------------------------------------------------------------------------------------------------
# Detaching them


@pytest.mark.parametrize("high_write", [False, True])
def test_detached_movements_go_on_counting(sessions: Open, high_write: bool) -> None:
    connection = sessions()
    name = create(connection, high_write=high_write, partition_by="quarter")
    connection.execute("SELECT accum.register_create_partitions(%s, '2023-11-01'::timestamptz - now())", [name])
    insert(connection, name, "2023-11-18", "2023-12-31 23:59+00", "2024-01-01", n=10)
    assert value(connection, "SELECT accum.register_detach_partitions(%s, '2024-01-01'::date)", name) == 1
    assert counts(connection, name) == {"2024_q1": 1}
    assert value(connection, f"SELECT count(*) FROM accum.{name}_movements_2023_q4") == 2
    assert min(partitions(connection, name)) == "2024_q1"

    merged = False

    def balances() -> tuple[Any, ...]:
        return (
            value(connection, f"SELECT accum.{name}_balance() ->> 'n'"),
            value(
                connection,
                f"SELECT sum(n) FROM accum.{name}_balance_cache{'_delta' if high_write and not merged else ''}",
            ),
            value(connection, f"SELECT accum.{name}_balance(at_date := '2023-11-30') ->> 'n'"),
        )

    assert balances() == ("30", 30, "10")
    assert wrong(connection, name) == []
    # What is done to the table afterwards is no business of the register's.
    connection.execute(f"DELETE FROM accum.{name}_movements_2023_q4")
    assert balances() == ("30", 30, "10")
    assert value(connection, "SELECT accum.register_rebuild_cache(%s)", name) == 1
    merged = True
    if high_write:
        lose(connection, name)
        assert balances() == ("30", 30, "10")
        connection.execute("SELECT accum._force_delta_merge()")
        assert balances() == ("30", 30, "10")
    connection.execute('SELECT accum.register_alter(%s, add_resources := \'{"w": "int"}\')', [name])
    assert wrong(connection, name) == []
    # Totals of what is retained: balances in the past begin there.
    connection.execute("SELECT accum.register_rebuild_totals(%s)", [name])
    assert balances() == ("30", 30, "0")
    assert value(connection, f"SELECT accum.{name}_balance(at_date := '2024-01-31') ->> 'n'") == "10"
    assert wrong(connection, name) == []
    if high_write:
        lose(connection, name)
        assert balances() == ("30", 30, "0")
        connection.execute("SELECT accum._force_delta_merge()")
        assert balances() == ("30", 30, "0")
        assert wrong(connection, name) == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_detached_partitions_go_with_the_register_unless_they_are_renamed(sessions: Open, by_hand: bool) -> None:
    connection = sessions()
    name = create(connection)
    partition, next_one = (f"{name}_movements_{month}" for month in months(0, 1))
    insert(connection, name, datetime.now(UTC))
    if by_hand:
        connection.execute(f"ALTER TABLE accum.{name}_movements DETACH PARTITION accum.{partition}")
    else:
        connection.execute("SELECT accum.register_detach_partitions(%s, '2100-01-01')", [name])
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
        connection.execute("SELECT accum.register_drop(%s)", [name])
    assert refused.value.diag.message_detail == f"They are in accum.{partition}."
    connection.execute(f"ALTER TABLE accum.{partition} RENAME TO kept_{name}")
    connection.execute("SELECT accum.register_drop(%s, %s)", [name, by_hand])
    connection.execute(f"INSERT INTO accum.kept_{name} SELECT * FROM accum.kept_{name}")
    assert value(connection, f"SELECT count(*) FROM accum.kept_{name}") == 2
    assert value(connection, "SELECT to_regclass(%s)", f"accum.{next_one}") is None
    connection.execute(f"DROP TABLE accum.kept_{name}")
    create_again = 'SELECT accum.register_create(%s, \'{"item": "int", "lot": "text"}\', \'{"n": "int"}\')'
    connection.execute(create_again, [name])
    insert(connection, name, datetime.now(UTC))
    assert counts(connection, name) == {months(0, 0)[0]: 1}


def test_movements_can_be_published(sessions: Open) -> None:
    """In partitions of every origin; others could not be taken back while they are."""
    connection = sessions()
    name = create(connection)
    connection.execute("SELECT accum.register_create_partitions(%s, 4)", [name])
    with connection.transaction(force_rollback=True):
        connection.execute(f"CREATE PUBLICATION of_{name} FOR TABLE accum.{name}_movements")
        insert(connection, name, "2001-01-01", *(datetime.now(UTC) + timedelta(days=30 * n) for n in range(5)))
        assert value(connection, "SELECT accum.register_unpost(%s, 'r')", name) == 6
    identities = (
        f"SELECT DISTINCT relreplident::text FROM pg_class WHERE relname ~ '^{name}_movements(_2.*|_default)?$'"
    )
    assert connection.execute(f"{identities} AND relkind IN ('r', 'p')").fetchall() == [("f",)]


def test_a_detached_month_is_not_made_again(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    future = datetime.now(UTC) + timedelta(days=70)
    assert value(connection, "SELECT accum.register_detach_partitions(%s, %s::date)", name, future.replace(day=1)) >= 2
    rest = partitions(connection, name)
    assert value(connection, "SELECT accum.register_create_partitions(%s, 3)", name) == 0
    assert partitions(connection, name) == rest
    insert(connection, name, datetime.now(UTC))
    assert counts(connection, name) == {"default": 1}


# ---------------------------------------------------------------------------------------------------------------------
# Settings


def test_settings_and_what_is_wrong_with_them(sessions: Open) -> None:
    connection = sessions()
    config = 'SELECT name, setting, problem FROM accum._config WHERE setting <> "default" OR problem IS NOT NULL'
    assert connection.execute(config).fetchall() == []
    defaults = dict(connection.execute("SELECT name, setting FROM accum._config").fetchall())
    assert defaults == {
        "pg_accumulator.background_workers": 1,
        "pg_accumulator.delta_merge_interval": 5000,
        "pg_accumulator.delta_merge_delay": 2000,
        "pg_accumulator.delta_merge_batch_size": 10000,
        "pg_accumulator.partitions_ahead": 3,
        "pg_accumulator.maintenance_interval": 3600000,
    }
    connection.execute("SET pg_accumulator.delta_merge_delay = '3s'; SET pg_accumulator.background_workers = 9")
    connection.execute("SET pg_accumulator.partitions_ahead = many; SET pg_accumulator.delta_merge_interval = 100")
    assert connection.execute(config).fetchall() == [
        ("pg_accumulator.background_workers", 1, '"9" is not a number between 0 and 8'),
        ("pg_accumulator.delta_merge_interval", 100, None),
        ("pg_accumulator.delta_merge_delay", 3000, None),
        ("pg_accumulator.partitions_ahead", 3, '"many" is not a number between 0 and 1000'),
    ]


def test_nobody_maintains_a_database_without_a_server(sessions: Open) -> None:
    connection = sessions()
    create(connection)
    assert connection.execute("SELECT * FROM accum._maintenance_status()").fetchall() == []
    assert json.loads(value(connection, "SELECT to_jsonb(d)::text FROM accum_internal._maintenance_due() d")) == {
        "workers": 1,
        "merges": True,
        "partitions_in": 0,
    }
