"""The edge-case table, the queries over it, and their comparison on PostgreSQL and on one Spark target.

Run as a program, in a process of its own so that a Spark of another kind is not in its way:
``python -m tests.sql.spark.spark_edge_cases TARGET WORK_DIR [quick]``, with the connection options of a database (JSON)
on standard input. It prints the differences as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from catalog.install import install
from catalog.session import SqlError
from engine.mirror.mirror import Mirror
from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.executor import SparkExecutor
from engine.spark.sessions import SparkJobFailed, SparkSessions
from engine.stream_tables.analysis import column
from sql import Source
from sql.errors import NotExpressible
from sql.spark import equality
from tests.sql.spark import generated_values as generated
from tests.sql.spark import probes

COLUMNS = (
    "k integer",
    "b boolean",
    "i2 smallint",
    "i4 integer",
    "i8 bigint",
    "n numeric(10,2)",
    "n2 numeric(8,3)",
    't text COLLATE "C"',
    "d date",
    "ts timestamp",
    "tz timestamptz",
    "u uuid",
    "f double precision",
    "r real",
    'c char(5) COLLATE "C"',
    "y bytea",
    "j jsonb",
    "a integer[]",
    "v interval",
    "free numeric",
    "di date",
    "tsi timestamp",
    "tzi timestamptz",
    "e letter",
    "p pence",
    "g double precision",
    "r2 real",
)

TYPES = """
CREATE TYPE public.letter AS ENUM ('z', 'it''s \\', 'é', '');
CREATE DOMAIN public.pence AS numeric(10,2) CHECK (VALUE < 1000000)
"""

VALUES: dict[str, tuple[str | None, ...]] = {
    "b": ("t", "f", None),
    "i2": ("0", "1", "-1", "7", "-7", "32767", "-32768", None),
    "i4": ("0", "1", "-1", "7", "-7", "2147483647", "-2147483648", "100000", None, "8"),
    "i8": ("0", "1", "-1", "9223372036854775807", "-9223372036854775808", "1234567890123", None, "3000000000"),
    "n": ("0", "0.01", "-0.01", "0.05", "-0.05", "0.50", "-0.50", "1.45", "-1.45", "2.50", "99999999.99",
          "-99999999.99", None, "12.00"),
    "n2": ("0", "0.001", "-0.005", "0.005", "1.045", "2.500", "-2.500", "99999.999", "-99999.999", None, "0.500"),
    "t": ("", " ", "a", "A", "ab", "abc", "Z", "z", "é", "e\u0301", "ß", "😀", "😀x", "  pad  ", "it's \"quoted\"",
          "back\\slash", "tab\there", "new\nline", "_b", "%", "x_b", "NULL", "\\N", "a,b", None, "\u00a0x", "nul"),
    "d": ("2024-02-29", "2000-01-01", "1970-01-01", "1969-12-31", "1900-03-01", "1582-10-10", "0002-03-01",
          "9999-11-30", "2020-12-31", "2021-01-03", None),
    "ts": ("2013-07-01 12:00:00", "2013-03-10 02:30:00", "1969-12-31 23:59:59.999999", "0001-01-01 00:00:00",
           "1582-10-10 10:10:10.1", "1899-12-31 23:59:59.000001", "9999-12-31 23:59:59.999999", "2020-12-31 23:00:00.5",
           "2021-01-03 00:00:00", "2024-02-29 13:59:59.123456", None),
    "tz": ("2013-07-01 12:00:00+00", "2013-03-10 02:30:00-05", "1969-12-31 23:59:59.999999+00",
           "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "2024-02-29 13:59:59.123456+09:30", None),
    "u": ("00000000-0000-0000-0000-000000000001", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
          "123e4567-e89b-12d3-a456-426614174000", None),
    "f": ("0", "-0", "1", "0.1", "-2.5", "1e308", "5e-324", "NaN", "Infinity", "-Infinity", "0.3333333333333333", None),
    "r": ("0", "-0", "1", "0.1", "-2.5", "3e38", "1e-45", "NaN", "Infinity", "-Infinity", "0.33333334", None),
    "c": ("", "ab", "ab ", "a", "AB", "abcde", " ab", "b", "é", "a\tb", "x", None, "ab\t"),
    "y": ("", "\\x00", "\\xff00", "\\x61", "\\x6162", None),
    "j": ('{"b": 1, "a": [1.50, null]}', "null", '"é\\"x"', "[]", None, "1.0"),
    "a": ("{}", "{1,NULL,3}", "{{1,2},{3,4}}", None),
    "v": ("1 year 2 mons -3 days -04:05:06.7", "00:00:00", "1 mon -30 days", None),
    "free": ("1.0", "1.00", "NaN", "Infinity", "-1e-30", "123456789012345678901234567890123456789012345678.5", None),
    "di": ("infinity", "-infinity", "2024-02-29", None, "1970-01-01"),
    "tsi": ("infinity", "2024-02-29 13:59:59.123456", None, "-infinity"),
    "tzi": ("-infinity", "infinity", "2013-07-01 12:00:00+00", None),
    "e": ("z", "it's \\", "é", None, ""),
    "p": ("0", "1.50", None, "-999999.99"),
    "g": ("0", "-0", "1", "0.7", "-3.3", "NaN", "1e10", None, "0.30000000000000004", "-1e-10"),
    "r2": ("1", "0.7", "-3.3", None, "-1e10", "NaN", "-0", "0.30000001"),
}  # fmt: skip

ROWS = 60

STRUCTURES = (
    "SELECT sum(i4) AS s, avg(i4) AS a, sum(i2) AS t, avg(i2) AS b, avg(i8 % 1000::bigint) AS c FROM edge",
    "SELECT DISTINCT b, n, d FROM edge",
    "SELECT a.k, c.k AS other, a.t FROM edge a JOIN edge c ON a.i4 = c.i2 AND a.k <> c.k",
    "SELECT a.k, c.k AS other FROM edge a LEFT JOIN edge c ON a.n = c.n2",
    "SELECT a.k, c.k AS other FROM edge a FULL JOIN edge c ON a.k = c.i4",
    "SELECT a.k, c.k AS other FROM edge a, edge c, edge e WHERE a.t = c.t AND e.k = a.k AND c.k > 10",
    "SELECT a.k, e.k AS other FROM (edge a JOIN edge c ON a.k = c.i4) RIGHT JOIN edge e ON e.k = c.k + 1",
    "SELECT a.k, x.k AS other FROM edge a LEFT JOIN (edge c JOIN edge x ON c.k = x.i2) ON a.i4 = c.k",
    "SELECT k, t FROM edge UNION ALL SELECT i4, NULL FROM edge WHERE b",
    "SELECT n, 1 AS one FROM edge UNION ALL SELECT sum(n), 2 FROM edge GROUP BY b",
    "WITH w AS (SELECT b, count(*) AS c FROM edge GROUP BY b), x AS (SELECT * FROM w WHERE c > 1)"
    " SELECT w.b, x.c FROM w JOIN x ON w.c = x.c",
    "SELECT s.b, sum(s.c) AS total FROM (SELECT b, t, count(*) AS c FROM edge GROUP BY b, t) s GROUP BY s.b",
    'SELECT s."Select", s."select" FROM (SELECT k AS "Select", i4 AS "select" FROM edge) s',
    "SELECT count(*) AS n FROM edge",
    "SELECT count(*) AS n, sum(i4) AS s, min(t) AS m FROM edge WHERE k < 0",
    "SELECT b, count(*) AS n FROM edge WHERE k < 0 GROUP BY b",
    "SELECT EXTRACT(year FROM ts) AS y, date_trunc('month', ts) AS m, count(*) AS c FROM edge GROUP BY 1, 2",
    "SELECT to_char(ts, 'YYYY') AS y, upper(t) || (j ->> 'b') AS u, count(*) AS c, avg(n) AS a, sum(n) / 3 AS s"
    " FROM edge WHERE k > 3 GROUP BY to_char(ts, 'YYYY'), upper(t) || (j ->> 'b')"
    " HAVING length(upper(t) || (j ->> 'b')) > 0",
    "SELECT a.j ->> 'b' AS x, length(a.j ->> 'b') AS y, max(e.k) AS z FROM edge a JOIN edge e ON a.k = e.i4"
    " GROUP BY a.j ->> 'b'",
    "SELECT g, sum((j ->> 'a')::numeric(20,2)) AS s, avg((j ->> 'a')::numeric(20,2)) AS a, avg(ts - ts2) AS v,"
    " sum(ts - ts2) AS w, count(*) FILTER (WHERE j ->> 'a' = '1') AS c, count(*) FILTER (WHERE j ->> 'a' = '1') AS d"
    " FROM many WHERE jsonb_typeof(j -> 'a') = 'number' AND length(j ->> 'a') < 7 GROUP BY g",
    "SELECT sum(w::numeric(9,2)) FILTER (WHERE w ~ '^[0-9]+$') AS x FROM many WHERE w ~ '^[0-9]+$'",
    "SELECT t, i2 % 3::smallint AS g, sum(i8) AS s FROM edge GROUP BY t, i2 % 3::smallint HAVING count(*) > 1",
    "SELECT k FROM edge WHERE b AND NOT (i4 > 0 OR t IS NULL)",
    "SELECT k FROM edge a WHERE EXISTS (SELECT 1 FROM edge e WHERE e.i4 = a.i2 AND e.k <> a.k)",
    "SELECT k FROM edge a WHERE NOT EXISTS (SELECT FROM edge e WHERE e.i4 = a.i2 AND (e.b OR a.b))",
    "SELECT k FROM edge a WHERE k > 50 OR EXISTS (SELECT 1 FROM edge e WHERE e.i2 = a.i4 AND e.t = 'a')",
    "SELECT k FROM edge a WHERE NOT EXISTS (SELECT 1 FROM edge e WHERE e.k < 0)",
    "SELECT k, n FROM edge ORDER BY n DESC, k LIMIT 7 OFFSET 3",
    "SELECT k, t FROM edge ORDER BY t, k DESC LIMIT 20",
    "SELECT t, n / 3.0 AS x, k FROM edge ORDER BY n / 3.0, k LIMIT 20",
    "SELECT k, c FROM edge ORDER BY c NULLS FIRST, k LIMIT 20",
    "SELECT s.k FROM (SELECT k, n / 3.0 AS x FROM edge ORDER BY x DESC NULLS LAST, k LIMIT 9) s",
    "SELECT k, row_number() OVER (PARTITION BY b ORDER BY n DESC NULLS LAST, k) AS r, rank() OVER (ORDER BY n) AS a,"
    " dense_rank() OVER (PARTITION BY b ORDER BY t) AS d, ntile(4) OVER (ORDER BY k) AS q FROM edge",
    "SELECT k, lag(t) OVER (PARTITION BY b ORDER BY k) AS l, lead(n, 2, 0.50) OVER (ORDER BY n DESC, k) AS m,"
    " first_value(i8) OVER (PARTITION BY b ORDER BY k) AS f, lead(COALESCE(n, 1.5), 1) OVER (ORDER BY k) AS g,"
    " last_value(d) OVER (PARTITION BY b ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS z"
    " FROM edge",
    "SELECT k, sum(i4) OVER (PARTITION BY b ORDER BY k) AS s, count(*) OVER () AS c, sum(n) OVER (ORDER BY k, b) AS t,"
    " sum(n) OVER (ORDER BY k ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS m, max(t) OVER (ORDER BY n) AS x,"
    " min(d) OVER (PARTITION BY b) AS y, sum(CASE WHEN b THEN n ELSE 1 END) OVER (ORDER BY k) AS v FROM edge",
    "SELECT k, avg(n) OVER (PARTITION BY i2) AS a, avg(i4) OVER (ORDER BY k) AS b, n / 3.0 AS c FROM edge WHERE k > 5",
    "SELECT DISTINCT ON (b) b, k, t FROM edge ORDER BY b, k DESC",
    "SELECT n FROM edge UNION ALL SELECT n2 FROM edge",
    "SELECT i4 FROM edge UNION SELECT i2 FROM edge",
    "SELECT t FROM edge WHERE b INTERSECT SELECT t FROM edge WHERE i4 > 0",
    "SELECT t FROM edge EXCEPT SELECT t FROM edge WHERE b",
    "SELECT i2 FROM edge EXCEPT (SELECT i2 FROM edge WHERE b INTERSECT SELECT i2 FROM edge WHERE k > 30)",
    "SELECT c, count(*) AS n, avg(n) AS a FROM edge GROUP BY c",
    "SELECT a.k, e.k AS other FROM edge a JOIN edge e ON a.c = e.c AND a.k < e.k",
    "SELECT s.b, s.a / 7.0 AS x, s.a * 2.0 AS y FROM (SELECT b, avg(n) AS a FROM edge GROUP BY b) s",
    "SELECT s.b, sum(s.x) AS x FROM (SELECT b, CASE WHEN i4 > 0 THEN n ELSE n2 END AS x FROM edge) s GROUP BY s.b",
    "SELECT e.k FROM edge e JOIN (SELECT i2, 0.2 * avg(n) AS a FROM edge GROUP BY i2) s ON e.i2 = s.i2 AND e.n < s.a",
    "SELECT k, n / NULLIF(n2, 0) AS x FROM edge WHERE n / NULLIF(n2, 0) > 1",
    "SELECT e, count(*) AS c, sum(p) AS s, avg(p) AS a FROM edge WHERE e <> 'z'::letter GROUP BY e",
    "SELECT di, count(*) AS c, max(tsi) AS x, min(tzi) AS y FROM edge GROUP BY di",
    "SELECT a.k, e.k AS other FROM edge a JOIN edge e ON a.di = e.tsi WHERE a.k < 9 AND e.k < 9 ORDER BY a.di, a.k,"
    " e.k LIMIT 5",
)


def examples() -> dict[str, str]:
    """Every row-wise example of the list by the name of its column."""
    texts = [example for function in equality.FUNCTIONS for example in function.examples]
    texts += [f"EXTRACT({part} FROM ts)" for part in equality.EXTRACT_PARTS]
    texts += [f"EXTRACT({part} FROM d)" for part in equality.EXTRACT_PARTS if part not in equality.TIME_PARTS]
    # That of years 1 to 9 begins before the year 1.
    texts += [f"date_trunc('{unit}', ts)" for unit in equality.TRUNCATIONS if unit != "decade"]
    texts += [*equality.CAST_EXAMPLES, *equality.OPERATOR_EXAMPLES]
    return {f"x{number}": text for number, text in enumerate(texts)}


def conditions() -> str:
    """The rows for which each condition of the list is true."""
    return " UNION ALL ".join(
        f"SELECT {number} AS number, k FROM edge WHERE {condition}"
        for number, condition in enumerate(equality.CONDITION_EXAMPLES)
    )


async def canonical(connection: asyncpg.Connection, query: str) -> str:
    """A query over tables of `public` as PostgreSQL writes it."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = public; SET LOCAL timezone = 'UTC'")
        await connection.execute(f"CREATE TEMPORARY VIEW canonical AS {query}")
        await connection.execute("SET LOCAL search_path = ''")
        text = await connection.fetchval("SELECT pg_get_viewdef('pg_temp.canonical'::regclass)")
        await connection.execute("DROP VIEW pg_temp.canonical")
    return str(text).rstrip(";")


class Comparison:
    """Runs queries on PostgreSQL and through the Spark executor, and compares the texts of all values."""

    def __init__(self, connection: asyncpg.Connection, options: dict[str, Any], executor: SparkExecutor):
        self._connection = connection
        self._session = PooledSession(connection)
        self._options = options
        self._executor = executor
        self._sources: list[Source] = []
        self.differences: list[str] = []

    async def prepare(self) -> None:
        connection = self._connection
        await install(self._session)
        await connection.execute(TYPES)
        await connection.execute("SET search_path = public, pg_catalog")
        rows = [
            (
                str(k),
                *(values[(k * (3 + n) + k // len(values)) % len(values)] for n, values in enumerate(VALUES.values())),
            )
            for k in range(ROWS)
        ]
        await self._table("edge", COLUMNS, rows)
        await self._table("many", generated.COLUMNS, generated.rows())
        await connection.execute("RESET search_path")
        for name in ("edge", "many"):
            oid, described = await connection.fetchrow(
                "SELECT c::oid::bigint, pgtrickle._columns(c)::text FROM (SELECT $1::text::regclass) x(c)",
                f"public.{name}",
            )
            self._sources.append(Source(oid, "public", name, tuple(column(each) for each in json.loads(described))))

    async def _table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
        await self._connection.execute(f"CREATE TABLE public.{name} ({', '.join(columns)})")
        fields = ", ".join(f"${n}::text::{c.split()[1]}" for n, c in enumerate(columns, start=1))
        fields = fields.replace("::double", "::double precision")
        await self._connection.executemany(f"INSERT INTO public.{name} SELECT {fields}", list(rows))

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(**self._options, server_settings=SESSION_SETTINGS)

    async def _spark(self, canonical: str) -> str:
        result = await self._executor.run(
            self._session,
            database="test",
            connect=self._connect,
            query=canonical,
            sources=self._sources,
            owner=self._options["user"],
            description="equality",
        )
        return result.staging

    async def compare(self, query: str, label: str) -> None:
        """Note a difference between the rows of `query` on PostgreSQL and on Spark, as texts."""
        try:
            text = await canonical(self._connection, query)
            async with self._session.transaction():
                await self._connection.execute("SET LOCAL search_path = ''; SET LOCAL timezone = 'UTC'")
                staging = await self._spark(text)
                for one, other, where in (
                    (text, f"TABLE {staging}", "PostgreSQL"),
                    (f"TABLE {staging}", text, "Spark"),
                ):
                    rows = await self._connection.fetch(
                        f"SELECT (x.*)::text AS row FROM ({one}) x EXCEPT ALL SELECT (x.*)::text FROM ({other}) x"
                    )
                    if rows:
                        self.differences.append(f"{label}: only {where} has {[row[0] for row in rows[:5]]}")
                raise _Undo
        except _Undo:
            return
        except Exception as error:
            self.differences.append(f"{label}: {type(error).__name__}: {error}")

    async def compare_all(self, items: Sequence[str], template: str) -> None:
        """All items in one query, for speed; its halves if that differs, to name the culprit."""
        before = len(self.differences)
        columns = ", ".join(f"{item} AS x{number}" for number, item in enumerate(items))
        await self.compare(template.format(columns), items[0] if len(items) == 1 else "all")
        if len(self.differences) > before and len(items) > 1:
            together = self.differences[before:]
            del self.differences[before:]
            middle = len(items) // 2
            await self.compare_all(items[:middle], template)
            await self.compare_all(items[middle:], template)
            if len(self.differences) == before:  # some may be refused beside each other
                self.differences += [d for d in together if f": {NotExpressible.__name__}: " not in d]

    async def check_error(self, expression: str) -> None:
        """PostgreSQL raises an error; Spark must fail, too, and not answer."""
        query = f"SELECT {expression} AS x FROM public.edge"
        try:
            await self._connection.fetch(query)
        except asyncpg.PostgresError:
            pass
        else:
            self.differences.append(f"{expression}: PostgreSQL does not fail")
        try:
            async with self._session.transaction():
                await self._spark(query)
            self.differences.append(f"{expression}: Spark does not fail")
        except SparkJobFailed:
            return
        except SqlError as error:
            self.differences.append(f"{expression}: {error.sqlstate} {error}")

    async def check_long(self, expression: str) -> None:
        """Spark gives PostgreSQL's result or none."""
        before = len(self.differences)
        await self.compare(f"SELECT {expression} AS x FROM edge", expression)
        self.differences[before:] = [d for d in self.differences[before:] if f": {SparkJobFailed.__name__}: " not in d]


class _Undo(Exception):
    """Rolls a comparison's transaction back."""


async def compare_everything(target: str, work_dir: Path, options: dict[str, Any], *, quick: bool) -> list[str]:
    """Every entry of the equality list on PostgreSQL and `target`; what differs.

    ``quick``: some of each kind, and without what takes longest; fewer on Apache Spark, where each takes long.
    """
    some = slice(None, None, (4 if target == "sail" else 8) if quick else 1)
    # One compiler instead of two: no query here runs long enough for the second to pay.
    java = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"} if target.startswith("local") else {}
    sessions = SparkSessions(target, work_dir / "spark", options=java)
    connection = await asyncpg.connect(**options, server_settings=SESSION_SETTINGS)
    comparison = Comparison(connection, options, SparkExecutor(sessions, Mirror(work_dir / "mirror")))
    try:
        await comparison.prepare()
        await comparison.compare_all(list(examples().values())[some], "SELECT k, {} FROM edge")
        for grouping in ("", " GROUP BY n") if quick else ("", " GROUP BY b", " GROUP BY i2", " GROUP BY n"):
            await comparison.compare_all(equality.AGGREGATE_EXAMPLES[some], f"SELECT {{}} FROM edge{grouping}")
        for values in generated.EXAMPLES.values():
            await comparison.compare_all(values, "SELECT k, {} FROM many")
        await comparison.compare_all(generated.AGGREGATES, "SELECT g, {} FROM many GROUP BY g")
        for expressions in probes.SCALARS.values():
            known = [each for each in expressions if each not in probes.REFUSED]
            await comparison.compare_all(known[some], "SELECT k, {} FROM many")
        known = [each for each in probes.AGGREGATES if each not in probes.REFUSED]
        await comparison.compare_all(known[some], "SELECT g, {} FROM many GROUP BY g")
        for query in [each for each in probes.QUERIES if each not in probes.REFUSED][some]:
            await comparison.compare(query, query)
        await comparison.compare(conditions(), "conditions")
        for query in STRUCTURES[some]:
            await comparison.compare(query, query)
        for expression in equality.ERROR_EXAMPLES[some]:
            await comparison.check_error(expression)
        for expression in () if quick else (*equality.LONG_EXAMPLES, *equality.LONG_AGGREGATES):
            await comparison.check_long(expression)
    finally:
        await sessions.stop()
        await connection.close()
    return comparison.differences


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = asyncio.run(
        compare_everything(sys.argv[1], Path(sys.argv[2]), json.load(sys.stdin), quick="quick" in sys.argv[3:])
    )
    print(json.dumps(found, indent=1, ensure_ascii=False))
