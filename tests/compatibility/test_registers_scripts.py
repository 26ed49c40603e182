"""Scripts that use registers as pg_accumulator's documents do: loading, correcting, closing, reporting."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors

from tests.e2e import conftest as whole
from tests.e2e.conftest import Database

server, register_database, registers = whole.server, whole.register_database, whole.registers

# What a script compares where it does not trust a register: each cell, by its movements and by its balance.
DIFFERENCES = """
SELECT count(*) FROM (
    SELECT account, currency, sum(debit) AS debit, sum(credit) AS credit FROM accum.ledger_movements GROUP BY 1, 2
    EXCEPT SELECT account, currency, debit, credit FROM accum.ledger_balance_cache
) AS missing
"""
TOTALS = """
SELECT count(*) FROM (
    SELECT account, currency, date_trunc('{0}', period)::date AS period, sum(debit) AS debit FROM accum.ledger_movements
     GROUP BY 1, 2, 3
    EXCEPT SELECT account, currency, period, debit FROM accum.ledger_totals_{0}
) AS missing
"""


@pytest.fixture(params=[False, True], ids=["standard", "high_write"])
def ledger(registers: Database, request: pytest.FixtureRequest) -> Database:
    """A register of accounts in either mode; unqualified names are found, as in the documents' examples."""
    registers.run("SET search_path = accum, public")
    registers.run(
        """SELECT register_create(name := 'ledger', dimensions := '{"account": "int", "currency": "varchar(3)"}',
                                  resources := '{"debit": "numeric(18,2)", "credit": "numeric(18,2)"}',
                                  kind := 'balance', high_write := %s)""",
        request.param,
    )
    return registers


def post(database: Database, *lines: dict[str, Any], register: str = "ledger") -> int:
    return int(database.value("SELECT register_post(%s, %s)", register, json.dumps(list(lines))))


def line(recorder: str, period: str, account: int, **fields: Any) -> dict[str, Any]:
    return {"recorder": recorder, "period": period, "account": account, "currency": "USD", **fields}


def is_consistent(database: Database) -> None:
    """By the register's own check, and by a script's."""
    database.run("SELECT _force_delta_merge()")
    assert database.rows("SELECT check_type, status FROM register_verify('ledger') WHERE status <> 'OK'") == []
    assert database.value(DIFFERENCES) == 0
    for grain in ("day", "month", "year"):
        assert database.value(TOTALS.format(grain)) == 0


# -- loading ----------------------------------------------------------------------------------------------------------


def test_movements_are_loaded_by_every_statement_there_is(ledger: Database) -> None:
    """INSERT of rows, of a query, of defaults; COPY in both formats; MERGE; a writable common table expression."""
    ledger.run("CREATE TABLE public.statement_lines (account int, booked date, amount numeric)")
    ledger.run(
        "INSERT INTO public.statement_lines SELECT 1 + n % 3, '2026-01-01'::date + n, n FROM generate_series(1, 40) n"
    )
    columns = "(recorder, period, account, currency, debit, credit)"
    ledger.run(
        f"INSERT INTO ledger_movements {columns} VALUES ('v:1', '2026-01-05', 1, 'USD', 10, 0),"
        " ('v:1', '2026-01-05', 2, 'USD', 0, 10), ('v:2', '2026-02-07', 1, NULL, DEFAULT, 3)"
    )
    ledger.run(
        f"INSERT INTO ledger_movements {columns}"
        " SELECT 'bank:' || account, booked, account, 'EUR', amount, 0 FROM public.statement_lines"
    )
    with ledger.connection.cursor() as cursor:
        with cursor.copy(f"COPY accum.ledger_movements {columns} FROM STDIN") as copy:
            for number in range(20):
                copy.write_row((f"c:{number}", date(2026, 3, 1 + number), 7, "USD", Decimal("1.25"), 0))
        with cursor.copy(f"COPY accum.ledger_movements {columns} FROM STDIN (FORMAT csv)") as copy:
            copy.write("c:x,2026-03-31 23:59:59+00,7,USD,100,0\n")
    ledger.run(
        "WITH closed AS (DELETE FROM public.statement_lines WHERE account = 1 RETURNING *)"
        f" INSERT INTO ledger_movements {columns} SELECT 'close', booked, account, 'EUR', 0, amount FROM closed"
    )
    ledger.run(
        "MERGE INTO ledger_movements m USING (VALUES ('v:1'), ('m:1')) AS d (recorder) ON m.recorder = d.recorder"
        " WHEN NOT MATCHED THEN INSERT (recorder, period, account, currency, debit)"
        " VALUES (d.recorder, '2026-04-01', 9, 'USD', 42)"
    )
    assert ledger.value("SELECT count(*) FROM ledger_movements") == 3 + 40 + 20 + 1 + 13 + 1
    is_consistent(ledger)
    balance = "SELECT (ledger_balance(dimensions := %s) ->> 'debit')::numeric"
    assert ledger.value(balance, '{"account": 7}') == 125
    assert ledger.value(balance, '{"account": 9, "currency": "USD"}') == 42
    assert ledger.value("SELECT (ledger_balance('{\"currency\": null}') ->> 'credit')::numeric") == 3
    ledger.run("DROP TABLE public.statement_lines")


def test_movements_are_corrected_by_update_and_delete(ledger: Database) -> None:
    for number in range(12):
        post(ledger, line(f"d:{number}", f"2026-{number + 1:02}-15", number % 4, debit=number, credit=1))
    ledger.run("UPDATE ledger_movements SET debit = debit * 2 WHERE account = 1")
    ledger.run("UPDATE ledger_movements SET account = 10 WHERE recorder IN ('d:2', 'd:3')")
    ledger.run("UPDATE ledger_movements SET period = period - interval '7 months' WHERE recorder = 'd:11'")
    ledger.run("DELETE FROM ledger_movements WHERE recorder = 'd:0'")
    ledger.run("DELETE FROM ledger_movements m USING (VALUES ('d:4'), ('d:5')) AS gone (r) WHERE m.recorder = gone.r")
    is_consistent(ledger)
    operations = "SELECT audit_operation, count(*) FROM ledger_movements_audit GROUP BY 1 ORDER BY 1"
    assert ledger.rows(operations) == [("delete", 3), ("update", 6)]


def test_what_was_loaded_behind_the_triggers_is_rebuilt(ledger: Database) -> None:
    post(ledger, line("d:1", "2026-01-01", 1, debit=5))
    ledger.run("SET session_replication_role = replica")
    ledger.run(
        "INSERT INTO ledger_movements (recorder, period, dim_hash, account, currency, debit)"
        " SELECT 'r:' || n, '2026-02-01'::date + n, _hash_ledger(2, 'USD'), 2, 'USD', 1 FROM generate_series(1, 10) n"
    )
    ledger.run("RESET session_replication_role")
    wrong = ledger.rows("SELECT DISTINCT status FROM register_verify('ledger') WHERE status <> 'OK' ORDER BY 1")
    assert [status for (status,) in wrong] == ["MISSING_IN_CACHE", "MISSING_IN_TOTALS"]
    ledger.run("SELECT register_rebuild_totals('ledger')")
    ledger.run("SELECT register_rebuild_cache('ledger')")
    is_consistent(ledger)
    assert ledger.value("SELECT (ledger_balance() ->> 'debit')::numeric") == 15


# -- documents --------------------------------------------------------------------------------------------------------


def test_a_documents_trigger_posts_reposts_and_unposts(ledger: Database) -> None:
    """The applications' table of documents drives the register: each change of a document is one of its movements."""
    ledger.run(
        """
        CREATE TABLE public.invoices (id int PRIMARY KEY, issued date, account int, total numeric, posted boolean);
        CREATE FUNCTION public.invoice_posting() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            movement jsonb;
        BEGIN
            IF TG_OP = 'DELETE' OR NOT NEW.posted THEN
                PERFORM accum.register_unpost('ledger', 'invoice:' || OLD.id);
                RETURN NULL;
            END IF;
            movement := jsonb_build_object('recorder', 'invoice:' || NEW.id, 'period', NEW.issued,
                                           'account', NEW.account, 'currency', 'USD', 'debit', NEW.total);
            IF TG_OP = 'UPDATE' THEN
                PERFORM accum.register_repost('ledger', 'invoice:' || NEW.id, movement);
            ELSE
                PERFORM accum.register_post('ledger', movement);
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER posting AFTER INSERT OR UPDATE OR DELETE ON public.invoices FOR EACH ROW
            EXECUTE FUNCTION public.invoice_posting();
        INSERT INTO public.invoices
            SELECT n, '2026-01-01'::date + n * 20, n % 2, n * 100, true FROM generate_series(1, 6) n;
        UPDATE public.invoices SET total = total + 1 WHERE id IN (1, 2);
        UPDATE public.invoices SET issued = '2026-06-30' WHERE id = 3;
        UPDATE public.invoices SET posted = false WHERE id = 4;
        DELETE FROM public.invoices WHERE id = 5;
        """
    )
    is_consistent(ledger)
    per_invoice = "SELECT recorder, debit, movement_type FROM ledger_movements ORDER BY 1"
    assert ledger.rows(per_invoice) == [
        ("invoice:1", 101, "adjustment"),
        ("invoice:2", 201, "adjustment"),
        ("invoice:3", 300, "adjustment"),
        ("invoice:6", 600, "regular"),
    ]
    with pytest.raises(psycopg.Error, match="null"):
        ledger.run("INSERT INTO public.invoices VALUES (7, NULL, 1, 1, true)")
    assert ledger.value("SELECT count(*) FROM public.invoices WHERE id = 7") == 0
    assert ledger.value("SELECT register_unpost('ledger', 'invoice:5')") == 0
    ledger.run("DROP TABLE public.invoices; DROP FUNCTION public.invoice_posting()")


def test_a_transfer_that_would_overdraw_is_rolled_back_to_its_savepoint(ledger: Database) -> None:
    """Posting first and asking for the balance then, in one transaction, is how overdrafts are refused."""
    post(ledger, line("in", "2026-01-01", 1, debit=100))
    with ledger.connect(autocommit=False) as bank:
        for number, amount in enumerate((60, 60, 30)):
            try:
                with bank.transaction():
                    transfer = [
                        line(f"t:{number}", "2026-01-02", 1, debit=-amount),
                        line(f"t:{number}", "2026-01-02", 2, debit=amount),
                    ]
                    bank.execute("SELECT accum.register_post('ledger', %s::jsonb)", [json.dumps(transfer)])
                    left = bank.execute("SELECT accum.ledger_balance('{\"account\": 1}') ->> 'debit'").fetchone()
                    if left is not None and Decimal(left[0]) < 0:
                        raise ValueError("overdrawn")
            except ValueError:
                continue
        bank.commit()
    is_consistent(ledger)
    balances = "SELECT account, debit FROM ledger_balance_cache ORDER BY 1"
    assert ledger.rows(balances) == [(1, 10), (2, 90)]


# -- closing and reporting --------------------------------------------------------------------------------------------


def test_reports_are_views_over_the_functions_and_tables(ledger: Database) -> None:
    for month in (1, 2, 3):
        for account in (1, 2):
            post(ledger, line(f"m:{month}", f"2026-{month:02}-10", account, debit=100 * month, credit=10))
    ledger.run(
        """
        CREATE TABLE public.accounts (account int PRIMARY KEY, title text);
        INSERT INTO public.accounts VALUES (1, 'cash'), (2, 'bank'), (3, 'unused');
        CREATE VIEW public.trial_balance AS
            SELECT a.title, (b ->> 'debit')::numeric AS debit, (b ->> 'credit')::numeric AS credit
              FROM public.accounts a, accum.ledger_balance(jsonb_build_object('account', a.account)) AS b;
        CREATE VIEW public.monthly AS
            SELECT account, period, debit, sum(debit) OVER (PARTITION BY account ORDER BY period) AS running
              FROM accum.ledger_totals_month;
        CREATE MATERIALIZED VIEW public.closed_january AS
            SELECT account, (accum.ledger_balance(jsonb_build_object('account', account),
                                                  at_date := '2026-01-31') ->> 'debit')::numeric AS debit
              FROM public.accounts;
        """
    )
    try:
        assert ledger.rows("SELECT * FROM public.trial_balance ORDER BY title") == [
            ("bank", 600, 30),
            ("cash", 600, 30),
            ("unused", 0, 0),
        ]
        running = ledger.rows("SELECT running FROM public.monthly WHERE account = 1 ORDER BY period")
        assert running == [(100,), (300,), (600,)]
        assert ledger.rows("SELECT * FROM public.closed_january ORDER BY 1") == [(1, 100), (2, 100), (3, 0)]
        groups = ledger.rows(
            "SELECT t ->> 'account', (t ->> 'debit')::numeric FROM ledger_turnover("
            " from_date := '2026-02-01', to_date := '2026-03-31', group_by := '[\"account\"]') AS t ORDER BY 1"
        )
        assert groups == [("1", 500), ("2", 500)]
        # Opening, turnover and closing of a month fit together, for each account.
        fits = ledger.rows(
            """
            SELECT account FROM public.accounts,
                   LATERAL (SELECT jsonb_build_object('account', account) AS d) AS cell
             WHERE (accum.ledger_balance(d, '2026-01-31') ->> 'debit')::numeric
                   + (SELECT (t ->> 'debit')::numeric FROM accum.ledger_turnover('2026-02-01', '2026-02-28', d) AS t)
                   <> (accum.ledger_balance(d, '2026-02-28') ->> 'debit')::numeric
            """
        )
        assert fits == []
    finally:
        ledger.run(
            "DROP MATERIALIZED VIEW public.closed_january; DROP VIEW public.monthly, public.trial_balance;"
            " DROP TABLE public.accounts"
        )


def test_a_year_is_closed_and_its_partitions_are_detached(ledger: Database) -> None:
    for month in range(1, 13):
        post(ledger, line(f"y:{month}", f"2023-{month:02}-01", 1, debit=month))
    ledger.run("SELECT register_create_partitions('ledger', '2023-01-01'::timestamptz - now())")
    listed = ledger.rows("SELECT partition_name, row_count FROM register_partitions('ledger') WHERE row_count > 0")
    assert (len(listed), sum(count for _, count in listed)) == (12, 12)
    detached = ledger.value("SELECT register_detach_partitions('ledger', '2023-07-01'::date)")
    assert detached == 6
    assert ledger.value("SELECT count(*) FROM ledger_movements") == 6
    assert ledger.value("SELECT (ledger_balance() ->> 'debit')::numeric") == 78
    ledger.run("SELECT register_rebuild_totals('ledger')")
    assert ledger.value("SELECT sum(debit) FROM ledger_totals_year") == sum(range(7, 13))
    assert ledger.value("SELECT (ledger_balance() ->> 'debit')::numeric") == 78
    post(ledger, line("y:late", "2023-03-01", 1, debit=1))
    assert ledger.value("SELECT (ledger_balance() ->> 'debit')::numeric") == 79


# -- types ------------------------------------------------------------------------------------------------------------

EVERY = {
    "a_int": ("int", 7, 7),
    "a_bigint": ("bigint", 2**40, 2**40),
    "a_smallint": ("smallint", -3, -3),
    "a_text": ("text", 'O\'Neil "x" ü', 'O\'Neil "x" ü'),
    "a_varchar": ("varchar(12)", "abc", "abc"),
    "a_uuid": ("uuid", "550e8400-e29b-41d4-a716-446655440000", UUID("550e8400-e29b-41d4-a716-446655440000")),
    "a_date": ("date", "2026-02-28", date(2026, 2, 28)),
    "a_boolean": ("boolean", True, True),
}


@pytest.mark.parametrize("high_write", [False, True])
def test_a_register_with_a_dimension_of_each_type(registers: Database, high_write: bool) -> None:
    """Full cells, cells of nulls, each dimension as a filter and as a group; a recorder of uuid."""
    registers.run("SET search_path = accum, public")
    registers.run(
        "SELECT register_create('wide', %s, %s, high_write := %s, recorder_type := 'uuid', totals_period := 'month')",
        json.dumps({name: type_ for name, (type_, _, _) in EVERY.items()}),
        json.dumps({"n": "bigint", "r": "real", "d": "double precision", "i": "integer", "q": "numeric(12,3)"}),
        high_write,
    )
    recorder = "00000000-0000-0000-0000-000000000001"
    full = {name: given for name, (_, given, _) in EVERY.items()}
    amounts = {"n": 2**33, "r": 0.5, "d": 0.25, "i": -4, "q": "1.125"}
    cells = [full, *({**full, name: None} for name in EVERY), dict.fromkeys(EVERY)]
    lines = [{"recorder": recorder, "period": "2026-05-05T10:00:00Z", **cell, **amounts} for cell in cells]
    assert post(registers, *lines, register="wide") == len(cells)
    for each in lines:
        assert registers.value("SELECT register_post('wide', %s)", json.dumps(each)) == 1
    registers.run("SELECT _force_delta_merge()")
    assert registers.rows("SELECT status FROM register_verify('wide') WHERE status <> 'OK'") == []
    assert registers.value("SELECT count(*) FROM wide_balance_cache") == len(cells)
    ((found),) = registers.rows(
        f"SELECT {', '.join(EVERY)} FROM wide_balance_cache WHERE num_nulls({', '.join(EVERY)}) = 0"
    )
    assert found == tuple(read for _, _, read in EVERY.values())
    for name, (_, given, _) in EVERY.items():
        with_value = registers.value("SELECT (wide_balance(%s) ->> 'i')::int", json.dumps({name: given}))
        with_null = registers.value("SELECT (wide_balance(%s) ->> 'i')::int", json.dumps({name: None}))
        assert (with_value, with_null) == (-8 * (len(cells) - 2), -16)
        groups = registers.rows("SELECT t ->> 'i' FROM wide_turnover(group_by := %s) AS t", json.dumps([name]))
        assert sorted(groups) == sorted([(str(-8 * (len(cells) - 2)),), ("-16",)])
    one = registers.value("SELECT wide_balance(%s)", json.dumps(full))
    assert one == {"n": 2**34, "r": 1, "d": 0.5, "i": -8, "q": 2.25}
    assert registers.value("SELECT register_unpost('wide', %s::uuid)", recorder) == 2 * len(cells)
    assert registers.value("SELECT wide_balance()") == {"n": 0, "r": 0, "d": 0, "i": 0, "q": 0}


def test_a_register_grows_while_it_is_used(ledger: Database) -> None:
    """Dimensions and resources come later; both modes in turn; then everything is computed anew, to the same."""
    post(ledger, line("a", "2026-01-01", 1, debit=10))
    ledger.run("""SELECT register_alter('ledger', add_dimensions := '{"cost_center": "int"}')""")
    post(ledger, line("b", "2026-01-02", 1, cost_center=5, debit=20))
    ledger.run("""SELECT register_alter('ledger', add_resources := '{"hours": "numeric(10,2)"}')""")
    post(
        ledger,
        line("c", "2026-01-03", 1, cost_center=5, hours=1.5),
        line("c", "2026-01-03", 1, cost_center=None, hours=2),
    )
    for high_write in (True, False, True):
        ledger.run("SELECT register_alter('ledger', high_write := %s)", high_write)
        post(ledger, line(f"mode:{high_write}", "2026-01-04", 2, cost_center=6, debit=1))
    with pytest.raises(errors.InvalidParameterValue, match='field "cost_center" is missing'):
        post(ledger, line("d", "2026-01-05", 1, debit=1))
    before = ledger.rows("SELECT * FROM ledger_balance_cache ORDER BY dim_hash")
    ledger.run("SELECT _force_delta_merge()")
    after = ledger.rows("SELECT account, cost_center, debit, hours FROM ledger_balance_cache ORDER BY 1, 2")
    assert after == [(1, 5, 20, Decimal("1.5")), (1, None, 10, 2), (2, 6, 3, 0)]
    assert len(before) == len(after)
    assert ledger.rows("SELECT status FROM register_verify('ledger') WHERE status <> 'OK'") == []
    assert ledger.value("SELECT register_rebuild_cache('ledger')") == 3
    assert ledger.rows("SELECT account, cost_center, debit, hours FROM ledger_balance_cache ORDER BY 1, 2") == after


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_tenants_are_kept_apart_by_policies(registers: Database) -> None:
    """As the documents have it: a dimension for the tenant, and row-level security on movements and cache."""
    registers.run("SET search_path = accum, public")
    registers.run("""SELECT register_create('usage', '{"tenant": "text", "feature": "text"}', '{"used": "bigint"}')""")
    registers.run("CREATE ROLE tenant_a")
    try:
        for tenant, used in (("tenant_a", 3), ("tenant_b", 5)):
            movement = {"recorder": "r", "period": "2026-01-01", "tenant": tenant, "feature": "api", "used": used}
            post(registers, movement, register="usage")
        for table in ("usage_movements", "usage_balance_cache"):
            registers.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
            registers.run(f"CREATE POLICY own ON {table} USING (tenant = current_user)")
            registers.run(f"GRANT SELECT ON {table} TO tenant_a")
        registers.run("SET ROLE tenant_a")
        assert registers.value("SELECT sum(used) FROM accum.usage_balance_cache") == 3
        assert registers.value("SELECT accum.usage_balance()") == {"used": 3}
        of_another = '{"tenant": "tenant_b", "feature": "api"}'
        assert registers.value("SELECT accum.usage_balance(%s)", of_another) == {"used": 0}
        assert [m["tenant"] for (m,) in registers.rows("SELECT accum.usage_movements()")] == ["tenant_a"]
        registers.run("RESET ROLE")
        assert registers.value("SELECT usage_balance()") == {"used": 8}
    finally:
        registers.run("RESET ROLE; DROP OWNED BY tenant_a; DROP ROLE tenant_a")
