"""Code of a stream table's owner, wherever a query can call it, runs with its owner's rights, whoever makes it run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

Connection = psycopg.Connection[Any]

ALICE = "constructs_alice"
BOB = "constructs_bob"

WORLD = """
CREATE TABLE secret (id int PRIMARY KEY, hidden text);
INSERT INTO secret VALUES (1, 'top secret');
CREATE TABLE failing (id int PRIMARY KEY, number text);
"""

# What the code reaches for. What it is given is written down beside the role that it had then.
ATTEMPTS = (
    "RESET ROLE",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "RESET SESSION AUTHORIZATION",
    "SELECT set_config('role', 'postgres', false)",
    "SELECT set_config('session_authorization', 'postgres', false)",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY public.loot FROM PROGRAM 'id'",
    "SELECT pg_read_file('PG_VERSION')",
    "SELECT pg_ls_dir('.')",
    "SELECT rolpassword FROM pg_authid LIMIT 1",
    "SELECT hidden FROM public.secret",
    "CREATE ROLE constructs_evil SUPERUSER",
    "ALTER SYSTEM SET work_mem = '4MB'",
    "SELECT pgtrickle._set_state(pgt_id, '{}') FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'admins' LIMIT 1",
    "SELECT pgtrickle._finish_refresh(1, '{}')",
    "SELECT pgtrickle_roles.as_10('SELECT to_jsonb(hidden) FROM public.secret', '{}')",
    "DELETE FROM pgtrickle.pgt_refresh_history",
)

ALICES = """
CREATE TABLE loot (attempt text, who text, given text); GRANT ALL ON loot TO PUBLIC;
CREATE TABLE mine (id int PRIMARY KEY, v int, t text, doc jsonb);
INSERT INTO mine SELECT n, n % 3, 't' || n, jsonb_build_object('a', jsonb_build_array(n, n + 1))
FROM generate_series(1, 4) AS n;
CREATE TABLE attempts (attempt text);

-- Tries everything, once on each way that leads here, and writes down what it was given; a failed attempt is none.
CREATE FUNCTION act() RETURNS void VOLATILE LANGUAGE plpgsql AS $$
DECLARE attempt text; given text; way text;
BEGIN
    GET DIAGNOSTICS way = PG_CONTEXT;
    IF EXISTS (SELECT FROM public.loot AS l WHERE l.attempt = 'called' AND l.who = current_user AND l.given = way) THEN
        RETURN;
    END IF;
    FOR attempt IN SELECT a.attempt FROM public.attempts AS a LOOP
        given := NULL;
        BEGIN
            IF attempt LIKE 'SELECT%' THEN
                EXECUTE 'SELECT string_agg(q::text, '','') FROM (' || attempt || ') AS q' INTO given;
            ELSE
                EXECUTE attempt;
            END IF;
            INSERT INTO public.loot VALUES (attempt, current_user, given);
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    INSERT INTO public.loot VALUES ('called', current_user, way);
END $$;

CREATE FUNCTION reach(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN v; END $$;
CREATE FUNCTION reach(v text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN true; END $$;
CREATE FUNCTION reach_two(a int, b int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN a + coalesce(b, 0); END $$;
CREATE FUNCTION reach_minus(a int, b int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN a - coalesce(b, 0); END $$;
CREATE FUNCTION reach_equal(a int, b int) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN a = b; END $$;
CREATE FUNCTION reach_set(v int) RETURNS SETOF int IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN NEXT v; RETURN NEXT v + 1; END $$;
CREATE FUNCTION reach_table() RETURNS TABLE (x int, y text) IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); x := 1; y := 'one'; RETURN NEXT; END $$;
CREATE FUNCTION reach_atomic(v int) RETURNS int IMMUTABLE LANGUAGE sql RETURN public.reach(v);
CREATE AGGREGATE reach_sum (int) (SFUNC = reach_two, STYPE = int, INITCOND = '0');
CREATE AGGREGATE reach_moving (int) (SFUNC = int4pl, STYPE = int, INITCOND = '0', MSFUNC = reach_two,
    MINVFUNC = reach_minus, MSTYPE = int, MINITCOND = '0');
CREATE AGGREGATE reach_final (int) (SFUNC = int4pl, STYPE = int, INITCOND = '0', FINALFUNC = reach);
CREATE OPERATOR ~+~ (LEFTARG = int, RIGHTARG = int, FUNCTION = reach_two);
CREATE OPERATOR ~=~ (LEFTARG = int, RIGHTARG = int, FUNCTION = reach_equal);
CREATE DOMAIN checked_int AS int CHECK (reach(VALUE) IS NOT NULL);
CREATE DOMAIN checked_text AS text CHECK (reach(VALUE));
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION pair_as_int(p pair) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM public.act(); RETURN p.a; END $$;
CREATE CAST (pair AS int) WITH FUNCTION pair_as_int(pair);
CREATE VIEW seen AS SELECT id, reach(v) AS v FROM mine;
CREATE VIEW seen_as_caller WITH (security_invoker) AS SELECT id, reach(v) AS v FROM mine;
CREATE VIEW seen_behind WITH (security_barrier) AS SELECT id, v FROM mine WHERE reach(v) >= 0;
"""

QUERIES = {
    "select_list": "SELECT id, reach(v) AS v FROM mine",
    "where": "SELECT id FROM mine WHERE reach(v) >= 0",
    "join_condition": "SELECT a.id, b.id AS other FROM mine a JOIN mine b ON a.v = reach(b.v)",
    "outer_join_condition": "SELECT a.id, b.id AS other FROM mine a LEFT JOIN mine b ON a.id = b.v AND reach(b.v) > 0",
    "group_key": "SELECT reach(v) AS k, count(*) AS n FROM mine GROUP BY reach(v)",
    "having": "SELECT v, count(*) AS n FROM mine GROUP BY v HAVING reach(v) >= 0",
    "filter": "SELECT v, count(*) FILTER (WHERE reach(id) > 2) AS n FROM mine GROUP BY v",
    "grouping_sets": "SELECT reach(v) AS k, id, count(*) AS n FROM mine GROUP BY ROLLUP (reach(v), id)",
    "distinct_on": "SELECT DISTINCT ON (reach(v)) v, id FROM mine ORDER BY reach(v), id",
    "top": "SELECT id, reach(v) AS w FROM mine ORDER BY reach(v), id LIMIT 2",
    "aggregate": "SELECT v, reach_sum(id) AS s FROM mine GROUP BY v",
    "aggregate_final": "SELECT v, reach_final(id) AS s FROM mine GROUP BY v",
    "aggregate_argument": "SELECT v, array_agg(reach(id) ORDER BY reach(id)) AS s FROM mine GROUP BY v",
    "window": "SELECT id, sum(reach(id)) OVER (PARTITION BY reach(v) ORDER BY id) AS s FROM mine",
    "window_aggregate": "SELECT id, reach_sum(id) OVER (PARTITION BY v ORDER BY id) AS s FROM mine",
    "moving_aggregate": "SELECT id, reach_moving(id) OVER (PARTITION BY v ORDER BY id ROWS 1 PRECEDING) AS s FROM mine",
    "frame": "SELECT id, sum(id) OVER (PARTITION BY v ORDER BY id ROWS reach(1) PRECEDING) AS s FROM mine",
    "lateral_subquery": "SELECT m.id, x.y FROM mine m, LATERAL (SELECT reach(m.v) AS y FROM mine n WHERE n.id = 1) x",
    "lateral_values": "SELECT m.id, x.y FROM mine m, LATERAL (VALUES (reach(m.v)), (reach(m.id))) AS x (y)",
    "set_returning": "SELECT m.id, x.y FROM mine m, reach_set(m.v) AS x (y)",
    "set_returning_left": "SELECT m.id, x.y FROM mine m LEFT JOIN LATERAL reach_set(m.v) AS x (y) ON x.y > 1",
    "set_returning_in_select": "SELECT id, reach_set(v) AS y FROM mine",
    "rows_from": "SELECT m.id, x.* FROM mine m, ROWS FROM (reach_set(m.v), generate_series(1, 2)) WITH ORDINALITY AS x",
    "table_function": "SELECT m.id, f.y FROM mine m JOIN reach_table() AS f ON f.x = m.v",
    "scalar_subquery": "SELECT a.id, (SELECT max(reach(b.v)) FROM mine b WHERE b.v = a.v) AS m FROM mine a",
    "exists": "SELECT a.id FROM mine a WHERE EXISTS (SELECT 1 FROM mine b WHERE b.id = a.v AND reach(b.v) >= 0)",
    "not_in": "SELECT a.id FROM mine a WHERE a.id NOT IN (SELECT reach(b.v) FROM mine b)",
    "union": "SELECT reach(v) AS v FROM mine UNION SELECT id FROM mine",
    "except": "SELECT id FROM mine EXCEPT ALL SELECT reach(v) FROM mine",
    "cte": "WITH w AS MATERIALIZED (SELECT reach(v) AS v FROM mine) SELECT v FROM w",
    "recursion": "WITH RECURSIVE r (id, v) AS (SELECT id, reach(v) FROM mine UNION SELECT r.id, reach(m.v)"
    " FROM r JOIN mine m ON m.id = r.v) SELECT id, v FROM r",
    "operator": "SELECT id, v OPERATOR(public.~+~) 1 AS w FROM mine",
    "operator_condition": "SELECT a.id, b.id AS other FROM mine a JOIN mine b ON a.v OPERATOR(public.~=~) b.id",
    "operator_any": "SELECT id FROM mine WHERE v OPERATOR(public.~=~) ANY (ARRAY[0, 1])",
    "domain_cast": "SELECT id, v::checked_int AS w FROM mine",
    "domain_in_values": "SELECT m.id, x.y FROM mine m JOIN (VALUES (1::checked_int), (2)) AS x (y) ON x.y = m.v",
    "domain_constant": "SELECT id, 'x'::checked_text AS w FROM mine",
    "domain_array_constant": "SELECT id, ('{x}'::checked_text[])[1]::text AS w FROM mine",
    "domain_by_text": "SELECT id, (t || '')::checked_text AS w FROM mine",
    "cast": "SELECT id, ROW(id, v)::pair::int AS w FROM mine",
    "case": "SELECT id, CASE reach(v) WHEN 1 THEN 'one' ELSE 'other' END AS w FROM mine",
    "atomic_body": "SELECT id, reach_atomic(v) AS w FROM mine",
    "view": "SELECT id, v FROM seen",
    "view_security_invoker": "SELECT id, v FROM seen_as_caller",
    "view_security_barrier": "SELECT id, v FROM seen_behind",
    "json_table": "SELECT m.id, j.y FROM mine m, JSON_TABLE(m.doc, '$.a[*] ? (@ > $x)' PASSING reach(m.v) AS x"
    " COLUMNS (y int PATH '$')) AS j",
    "json_table_domain": "SELECT m.id, j.y FROM mine m, JSON_TABLE(m.doc, '$.a[*]'"
    " COLUMNS (y checked_int PATH '$')) AS j",
    "json_value_default": "SELECT id, JSON_VALUE(doc, '$.none' RETURNING int DEFAULT reach(7) ON EMPTY) AS w FROM mine",
    "json_object": "SELECT id, JSON_OBJECT('a' : reach(v) RETURNING jsonb) AS w FROM mine",
    "no_source": "SELECT reach(1) AS v",
}
"""Every place of a query where its owner's code can stand."""

HIDDEN = ("top secret", "no-number")


class House:
    """One database, alice's code in it, and a superuser who looks after everybody's stream tables."""

    def __init__(self, db: Any):
        self.db = db
        db.run(WORLD)
        for role in (ALICE, BOB):
            db.run(f"DROP ROLE IF EXISTS {role}")
            db.run(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT CREATE, USAGE ON SCHEMA public TO {role}")
        db.create("admins", "SELECT id, hidden FROM secret")
        db.create("numbers", "SELECT id, number::int AS number FROM failing")
        db.run("INSERT INTO failing VALUES (1, 'no-number-at-all')")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            db.refresh("numbers")
        self.alice: Connection = db.connect(user=ALICE, password="secret")
        self.alice.execute(ALICES)
        relations = db.rows(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'v', 'S')"
            " AND relnamespace::regnamespace::text LIKE 'pgtrickle%'"
        )
        reads = [f"SELECT r::text FROM {relation} AS r" for (relation,) in relations]
        with self.alice.cursor() as cursor:
            cursor.executemany("INSERT INTO attempts VALUES (%s)", [(text,) for text in (*ATTEMPTS, *reads)])

    def loot(self) -> set[tuple[str, str]]:
        """Attempts that succeeded, each with whose rights it was made; nothing hidden may have been given."""
        found = self.db.rows("SELECT attempt, who, coalesce(given, '') FROM loot")
        self.db.run("TRUNCATE loot")
        assert [row for row in found if row[0] != "called" and any(text in row[2] for text in HIDDEN)] == []
        return {(attempt, who) for attempt, who, _ in found}


@pytest.fixture(scope="module")
def house(shared_db: Any) -> Iterator[House]:
    made = House(shared_db)
    yield made
    made.alice.close()
    for role in (ALICE, BOB):
        shared_db.run(f"DROP OWNED BY {role} CASCADE")
        shared_db.run(f"DROP ROLE {role}")


@pytest.fixture(scope="module")
def given_to_alice(house: House) -> set[str]:
    """What alice is given when she asks for it herself."""
    house.alice.execute("SELECT act()")
    house.alice.execute("RESET ROLE; RESET SESSION AUTHORIZATION")
    loot = house.loot()
    assert {who for _, who in loot} == {ALICE}
    return {attempt for attempt, _ in loot}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("construct", QUERIES)
def test_code_in_a_query_gains_nothing_on_any_path(house: House, given_to_alice: set[str], construct: str) -> None:
    db, alice = house.db, house.alice
    called = []

    def nothing_gained() -> None:
        loot = house.loot()
        assert {who for _, who in loot} <= {ALICE}
        assert {attempt for attempt, _ in loot} <= given_to_alice
        called.append(bool(loot))

    create = "SELECT pgtrickle.create_stream_table('st', %s, refresh_mode => %s)"
    with suppress(psycopg.errors.FeatureNotSupported):  # of some of them
        alice.execute(create, [QUERIES[construct], "IMMEDIATE"])
        nothing_gained()
        # Her query runs in the statement of a superuser.
        db.run("UPDATE mine SET v = v + 1 WHERE id = 1; INSERT INTO mine VALUES (8, 8, 't8', '{\"a\": [1]}')")
        nothing_gained()
        db.run("DELETE FROM mine WHERE id = 8; UPDATE mine SET v = v - 1 WHERE id = 1")
        alice.execute("SELECT pgtrickle.drop_stream_table('st')")
    nothing_gained()
    with db.connection.transaction(force_rollback=True):
        db.run(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(ALICE)))
        db.run(create, QUERIES[construct], "FULL")
        db.run("RESET ROLE; TRUNCATE loot")  # what was done for the superuser comes to light below
    alice.execute(create, [QUERIES[construct], "AUTO"])
    nothing_gained()
    db.rows("SELECT * FROM pgtrickle.explain_st('st')")
    nothing_gained()
    alice.execute("UPDATE mine SET v = v + 1 WHERE id = 1; INSERT INTO mine VALUES (9, 9, 't9', '{\"a\": [1]}')")
    db.refresh("st")
    nothing_gained()
    db.run("SELECT pgtrickle.alter_stream_table('st', refresh_mode => 'FULL')")
    alice.execute("DELETE FROM mine WHERE id = 9")
    db.refresh("st")
    nothing_gained()
    alice.execute("ALTER TABLE mine DISABLE TRIGGER USER; ALTER TABLE mine ENABLE TRIGGER USER")
    db.refresh("st")
    nothing_gained()
    alice.execute("SELECT pgtrickle.drop_stream_table('st')")
    assert any(called), "the code was not even called"
    assert db.rows("SELECT current_user::text, session_user::text") == [("postgres", "postgres")]
    assert db.rows("SELECT rolname FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'") == []
    alice.execute("UPDATE mine SET v = id % 3")
