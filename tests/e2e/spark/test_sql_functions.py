"""Functions of users that are written in SQL: on Spark as in PostgreSQL, or in PostgreSQL with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater

ROWS = 500

# Values that are at an edge of their types among ordinary ones, NULLs in all columns.
SOURCE = f"""
CREATE SCHEMA calc;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN cents AS numeric(12,2) CHECK (VALUE > -1000);
CREATE TABLE facts (
    id int PRIMARY KEY, g int, s smallint, i int, b bigint, n numeric(12,3), m numeric(8,2), x float8, t text,
    v varchar(12), c char(6), d date, ts timestamp, f boolean, mood mood, j jsonb, a int[],
    pay cents, w text COLLATE "C");
SELECT setseed(0.23);
INSERT INTO facts SELECT
    k, k % 13,
    CASE WHEN random() > 0.1 THEN (random() * 60000 - 30000)::smallint END,
    CASE WHEN random() > 0.1 THEN (random() * 200 - 100)::int END,
    CASE WHEN random() > 0.1 THEN (random() * 2e12 - 1e12)::bigint END,
    CASE WHEN random() > 0.1 THEN (random() * 20000 - 10000)::numeric(12,3) END,
    CASE WHEN random() > 0.1 THEN (random() * 200 - 100)::numeric(8,2) END,
    CASE WHEN random() > 0.1 THEN (array[0, '-0', 1.5, -2.25, 1e10, random() * 1000])[1 + k % 6]::float8 END,
    CASE WHEN random() > 0.1 THEN (array['', ' ', 'a', 'Ä ', 'it''s', 'x_y%', 'abc'])[1 + k % 7] || (k % 5) END,
    CASE WHEN random() > 0.1 THEN substr(md5(k::text), 1, k % 12) END,
    CASE WHEN random() > 0.1 THEN substr(md5(k::text), 1, k % 6) END,
    CASE WHEN random() > 0.1 THEN '2024-02-29'::date + (random() * 4000 - 2000)::int END,
    CASE WHEN random() > 0.1 THEN '2024-02-29'::timestamp + random() * '900 days'::interval END,
    CASE WHEN random() > 0.2 THEN random() > 0.5 END,
    (enum_range(NULL::mood))[1 + k % 4],
    CASE WHEN random() > 0.1 THEN jsonb_build_object('a', k % 17, 'b', k::text) END,
    CASE WHEN random() > 0.1 THEN array[k, NULL, k % 3] END, k % 100, md5(k::text)
FROM generate_series(1, {ROWS}) AS k;
ALTER DATABASE postgres SET pg_trickle.enabled = off
"""

FUNCTIONS = """
CREATE FUNCTION add(a int, b int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + b';
CREATE FUNCTION half(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS ' SELECT $1 / 2 ; ';
CREATE FUNCTION widened(a bigint) RETURNS numeric LANGUAGE sql IMMUTABLE STRICT RETURN a * 2;
CREATE FUNCTION narrowed(a numeric) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a * 1.5';
CREATE FUNCTION net(price numeric(12,2), rate numeric) RETURNS numeric(12,2) LANGUAGE sql IMMUTABLE
    AS $$ SELECT round(price * (1 - net.rate), 2) $$;
CREATE FUNCTION strictly(a int, b int) RETURNS text LANGUAGE sql IMMUTABLE STRICT
    AS $$ SELECT coalesce(a::text, 'none') || '/' || coalesce(b::text, 'none') $$;
CREATE FUNCTION loosely(a int, b int) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT coalesce(a::text, 'none') || '/' || coalesce(b::text, 'none') $$;
CREATE FUNCTION calc."Twice As"(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT $1 || '$1' || $1 $$;
CREATE FUNCTION calc.sign(a int) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN a > 0 THEN 'plus' WHEN a < 0 THEN 'minus' ELSE 'none' END $$;
CREATE FUNCTION calc.lower(a varchar) RETURNS varchar LANGUAGE sql IMMUTABLE STRICT AS 'SELECT upper(a)';
CREATE FUNCTION nested(a int, b int) RETURNS int LANGUAGE sql IMMUTABLE
    RETURN public.add(public.add(a, b), public.add(b, 1));
CREATE FUNCTION deep(a int) RETURNS int LANGUAGE sql STABLE BEGIN ATOMIC SELECT public.nested(a, a) AS n; END;
CREATE FUNCTION is_good(mood) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT $1 >= 'ok' $$;
CREATE FUNCTION quarter(d date) RETURNS text LANGUAGE sql STABLE STRICT
    AS $$ SELECT extract(year FROM d)::text || 'Q' || extract(quarter FROM d)::text $$;
CREATE FUNCTION later(at timestamp, days int) RETURNS timestamp LANGUAGE sql IMMUTABLE
    AS $$ SELECT at + days * '1 day'::interval $$;
CREATE FUNCTION share(a numeric, b numeric) RETURNS numeric LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN b <> 0 THEN a / b END $$;
CREATE FUNCTION field(j jsonb, key text) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT (j ->> key)::int $$;
CREATE FUNCTION total(int[]) RETURNS int LANGUAGE sql IMMUTABLE
    AS $$ SELECT $1[1] + coalesce($1[2], cardinality($1)) $$;
CREATE FUNCTION answer() RETURNS int LANGUAGE sql IMMUTABLE STRICT AS 'SELECT 42';
CREATE FUNCTION hyper(x float8, y float8) RETURNS float8 LANGUAGE sql IMMUTABLE STRICT AS 'SELECT sqrt(x * x + y * y)';
CREATE FUNCTION scaled(a int, by int DEFAULT -3, note text DEFAULT NULL) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT a * by || coalesce(note, 'none') $$;
CREATE FUNCTION many(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT abs(a)';
CREATE FUNCTION many(a int, b int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT greatest(a, b)';
CREATE FUNCTION many(a text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT length(a)';
"""

QUERIES = {
    "numbers": "SELECT id, add(i, s) AS added, add(add(i, 1), add(s, i)) AS twice, half(i) AS half, widened(i) AS wide,"
    " narrowed(m) AS narrow, net(n, 0.19) AS net, net(rate => m * 0.01, price => n) AS named, nested(i, s) AS nested,"
    " deep(i) AS deep, answer() AS answer, many(i) AS one, many(i, s) AS two FROM facts",
    "texts": 'SELECT id, strictly(i, s) AS strict, loosely(i, s) AS loose, calc."Twice As"(t) AS doubled,'
    " calc.sign(i) AS sign, calc.lower(v) AS upper, quarter(d) AS quarter, is_good(mood) AS good,"
    " scaled(i) AS one, scaled(i, 7) AS two, scaled(i, note => t) AS three,"
    " calc.\"Twice As\"(c) AS padded FROM facts WHERE calc.sign(i) <> 'none'",
    "others": "SELECT id, later(ts, i) AS later, share(n, m) AS share, field(j, 'a') AS field, total(a) AS total,"
    " hyper(x, i) > 50 AS far, later(d, 1) AS tomorrow FROM facts",
    "groups": "SELECT calc.sign(i) AS sign, quarter(d) AS quarter, count(*) AS n, sum(net(n, 0.19)) AS net,"
    " sum(add(i, s)) FILTER (WHERE is_good(mood)) AS added, max(half(b)) AS half FROM facts"
    " GROUP BY calc.sign(i), quarter(d) HAVING sum(add(i, 1)) IS NOT NULL",
    "joins": "SELECT p.id, q.id AS other, strictly(p.i, q.i) AS pair FROM facts p"
    " JOIN facts q ON add(p.i, 1) = q.i AND p.g = many(q.g) AND NOT EXISTS"
    " (SELECT FROM facts r WHERE r.id = add(p.id, 600) AND calc.sign(r.i) = calc.sign(q.i))",
}


def serve(data: Path, target: str) -> Iterator[Database]:
    server = Headwater(data, "--spark", target).start()
    database = Database(server, "postgres")
    try:
        database.run(SOURCE)
        database.run(FUNCTIONS)
        yield database
    finally:
        database.close()
        server.stop()


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    yield from serve(tmp_path_factory.mktemp("functions") / "data", "sail")


def computed(db: Database, *names: str) -> None:
    """The stream tables equal their queries after a refresh that Spark has computed."""
    db.assert_refreshed(*names)
    for name in names:
        last = db.history(name)[-1]
        assert (last["status"], last["executor"]) == ("COMPLETED", "spark"), (name, last["executor_reason"])


def check_functions(db: Database, made: dict[str, str]) -> None:
    """Stream tables of these names, which begin with those of queries, in these modes."""
    for name, mode in made.items():
        db.create(name, QUERIES[name.split("_")[0]], schedule="1h", refresh_mode=mode, engine="spark")
        db.assert_current(name)
    db.run(
        "UPDATE facts SET i = s / 300, n = n + 1, mood = 'sad', t = NULL, d = d + 30 WHERE id % 5 = 0;"
        "DELETE FROM facts WHERE id % 9 = 0; INSERT INTO facts (id, g) VALUES (5000, 1);"
        "INSERT INTO facts (id, g, i, s, n, m) VALUES (5001, 1, 7, NULL, 1.5, 0), (5002, 2, NULL, 7, NULL, 0.01)"
    )
    computed(db, *made)
    for name in made:
        db.run("SELECT pgtrickle.drop_stream_table(%s)", name)


def test_functions_on_sail_are_what_they_are_in_postgresql(db: Database) -> None:
    whole = dict.fromkeys(("numbers", "texts", "others"), "FULL")
    check_functions(db, whole | {f"{name}_differential": "DIFFERENTIAL" for name in ("texts", "groups")})


@pytest.mark.long
@pytest.mark.parametrize("target", ["sail", "local[2]"])
def test_all_functions_on_spark_are_what_they_are_in_postgresql(
    tmp_path_factory: pytest.TempPathFactory, target: str
) -> None:
    made = {f"{name}_{mode}".lower(): mode for name in QUERIES for mode in ("FULL", "DIFFERENTIAL")}
    for database in serve(tmp_path_factory.mktemp("all") / "data", target):
        check_functions(database, made)


def test_function_that_is_replaced_is_computed_anew(db: Database) -> None:
    db.run(
        "CREATE FUNCTION inner_one(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + 1';"
        "CREATE FUNCTION outer_one(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT public.inner_one(a) * 2'"
    )
    for mode in ("FULL", "DIFFERENTIAL"):
        query = "SELECT id, outer_one(i) AS x FROM facts WHERE inner_one(id) < 100"
        db.create("replaced", query, schedule="1h", refresh_mode=mode, engine="spark")
        for body in ("a + 5", "abs(a)", "a + 1"):
            db.run(f"CREATE OR REPLACE FUNCTION inner_one(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT {body}'")
            db.run("UPDATE facts SET i = -3 WHERE id = 7")
            computed(db, "replaced")
        db.run("SELECT pgtrickle.drop_stream_table('replaced')")


def test_label_with_another_name_is_that_in_bodies_as_well(db: Database) -> None:
    db.run(
        "CREATE TYPE size AS ENUM ('s', 'm', 'l'); CREATE TABLE shirts (id int PRIMARY KEY, size size);"
        "INSERT INTO shirts SELECT k, (enum_range(NULL::size))[1 + k % 4] FROM generate_series(1, 20) AS k;"
        "CREATE FUNCTION is_small(size size) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN size < 'm'"
    )
    query = "SELECT id, size, is_small(size) AS small FROM shirts"
    db.create("small", query, schedule="1h", refresh_mode="FULL", engine="spark")
    db.run("ALTER TYPE size RENAME VALUE 'm' TO 'medium'; UPDATE shirts SET size = 's' WHERE id = 3")
    computed(db, "small")
    assert db.value("SELECT count(*) FROM small WHERE NOT small AND size = 'medium'") > 0


def test_body_means_what_it_means_in_a_refresh(db: Database) -> None:
    """Names in a text are looked up where a refresh looks them up; what PostgreSQL has parsed stays what it is."""
    db.run(
        "CREATE FUNCTION calc.abs(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 7';"
        "CREATE FUNCTION by_text(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT abs(a)';"
        "SET search_path = calc, pg_catalog, public;"
        "CREATE FUNCTION public.by_tree(a int) RETURNS int LANGUAGE sql IMMUTABLE RETURN abs(a);"
        "RESET search_path;"
        "SET timezone = 'Asia/Tokyo';"
        "CREATE FUNCTION since(at timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE"
        " AS $$ SELECT at >= '2024-02-29 12:00' $$;"
        "CREATE TABLE moments (id int PRIMARY KEY, i int, at timestamptz);"
        "INSERT INTO moments SELECT k, -k, '2024-02-29 00:00+00'::timestamptz + k * '1 hour'::interval"
        " FROM generate_series(1, 40) AS k"
    )
    query = "SELECT id, by_text(i) AS text, by_tree(i) AS tree, since(at) AS since FROM moments"
    for engine in ("postgres", "spark"):
        db.create(f"on_{engine}", query, schedule="1h", refresh_mode="FULL", engine=engine)
        assert db.history(f"on_{engine}")[-1]["executor"] == engine
    found, on_spark = (db.rows(f"SELECT id, text, tree, since FROM on_{e} ORDER BY id") for e in ("postgres", "spark"))
    assert found == on_spark
    assert found[0] == (1, 1, 7, False)
    assert [row[3] for row in found].index(True) == 11
    assert db.connection.info.parameter_status("TimeZone") == "Asia/Tokyo"
    db.run("RESET timezone")


INT = "(a int) RETURNS int LANGUAGE sql IMMUTABLE AS "
TEXT = "(a text) RETURNS text LANGUAGE sql IMMUTABLE AS "

REFUSED = {
    "x.plain(i)": ("(a int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN a; END'", "written in plpgsql"),
    "x.definer(i)": ("(a int) RETURNS int LANGUAGE sql IMMUTABLE SECURITY DEFINER AS 'SELECT a'", "SECURITY DEFINER"),
    "x.set(i)": ("(a int) RETURNS int LANGUAGE sql IMMUTABLE SET datestyle = 'ISO' AS 'SELECT a'", "has a SET clause"),
    "x.variadic(i, s)": ("(VARIADIC a int[]) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a[1]'", "are not IN"),
    "x.any(i)": ("(a anyelement) RETURNS anyelement LANGUAGE sql IMMUTABLE AS 'SELECT a'", "polymorphic"),
    "x.domain(pay)": ("(a cents) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'", "a domain"),
    "x.padded(c)": ("(a char) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT length(a)'", "or character"),
    "x.given(i)": ("(a int, b date DEFAULT now()) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a'", "not a constant"),
    "x.late(i)": ("(a int, b int DEFAULT abs(-1)) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a'", "not a constant"),
    "x.reads(i)": ("(a int) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM pg_class'", "reads a table"),
    "x.twice(i)": (f"{INT} 'SELECT 1; SELECT a'", "more than one statement"),
    "x.maximum(i)": (f"{INT} 'SELECT max(a)'", "more than an expression"),
    "x.condition(i)": (f"{INT} 'SELECT a WHERE a > 0'", "more than an expression"),
    "x.rows(i)": (f"{INT} 'VALUES (a)'", "more than an expression"),
    "x.chance(i)": ("(a int) RETURNS int LANGUAGE sql STABLE AS 'SELECT a + (random() * 0)::int'", "volatile function"),
    "x.escapes(i)": (r"(int) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT E'\\' || $1 $$", "is not understood"),
    "x.words(i)": ("(a int) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT a'", "gives integer for text"),
    "x.unused(t)": (f"{TEXT} $$ SELECT 'b' $$", "does not use all"),
    "x.other(w)": (f"{TEXT} 'SELECT a'", "collation of its own"),
    "x.collated(t)": (f'{TEXT} $$ SELECT a COLLATE "C" $$', "has a collation of its own"),
    "x.again(i)": (f"{INT} 'SELECT x.again(a - 1)'", "calls itself"),
    "x.large(x.large(x.large(i)))": (f"{INT} 'SELECT {' + '.join(['a'] * 20)}'", "become too long"),
    "x.sound(t)": (f"{TEXT} 'SELECT to_ascii(a)'", "function to_ascii"),
}


def test_what_is_not_put_in_place_says_why(db: Database) -> None:
    db.run("CREATE SCHEMA x")
    for call, (declared, reason) in REFUSED.items():
        if "again" in call:
            db.run("SET check_function_bodies = off")
        db.run(f"CREATE FUNCTION {call.split('(')[0]}{declared}")
        query = f"SELECT id, {call} AS x FROM facts"
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            db.create("refused", query, schedule="1h", refresh_mode="FULL", engine="spark")
        assert reason in str(refused.value), call
    db.run("RESET check_function_bodies")


def test_function_within_a_function_is_for_those_who_may_execute_it(db: Database) -> None:
    db.run(
        "CREATE ROLE clerk LOGIN PASSWORD 'clerk'; GRANT ALL ON SCHEMA public TO clerk; GRANT SELECT ON facts TO clerk;"
        "CREATE FUNCTION hidden(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + 1';"
        "CREATE FUNCTION shown(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT public.hidden(a)'"
    )
    clerk = db.connect(user="clerk", password="clerk")
    query = "SELECT id, shown(i) AS x FROM facts"
    clerk.execute("SELECT pgtrickle.create_stream_table('clerks', %s, '1h', engine => 'spark')", [query])
    db.run("REVOKE EXECUTE ON FUNCTION hidden(int) FROM PUBLIC; UPDATE facts SET i = 0 WHERE id = 2")
    with pytest.raises(psycopg.Error) as refused:
        clerk.execute("SELECT pgtrickle.refresh_stream_table('clerks')")
    assert "hidden" in str(refused.value)
    db.run("GRANT EXECUTE ON FUNCTION hidden(int) TO clerk")
    clerk.execute("SELECT pgtrickle.refresh_stream_table('clerks')")
    db.assert_current("clerks")


def test_body_with_more_statements_runs_none_of_them(db: Database, tmp_path: Path) -> None:
    """Who has written a function has no rights of those who call it, also where its text is no body at all."""
    tmp_path.chmod(0o777)
    written = tmp_path / "written"
    body = f"SELECT 1) AS body) SELECT 1; COPY (SELECT 1) TO '{written}'; WITH query AS (SELECT (SELECT 1"
    db.run("CREATE ROLE mallory; CREATE SCHEMA lair AUTHORIZATION mallory; SET check_function_bodies = off")
    db.run("SET ROLE mallory")
    quoted = body.replace("'", "''")
    db.run(f"CREATE FUNCTION lair.one(a int) RETURNS int LANGUAGE sql IMMUTABLE AS '{quoted}'")
    # PostgreSQL does not put this one in place, and does not read what it calls before it is called.
    db.run(
        "CREATE FUNCTION lair.outside(a int) RETURNS int LANGUAGE sql IMMUTABLE STRICT"
        " AS 'SELECT coalesce(lair.one(a), a)'"
    )
    db.run("RESET ROLE; RESET check_function_bodies")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="more than one statement"):
        db.create("trap", "SELECT id, lair.outside(i) AS x FROM facts", refresh_mode="FULL", engine="spark")
    assert not written.exists()
