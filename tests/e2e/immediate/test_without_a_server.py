"""IMMEDIATE mode needs no server: triggers in PostgreSQL do it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory
from tests.clusters import OTHER_PROGRAMS
from tests.e2e.conftest import Database, Headwater

pytestmark = pytest.mark.skipif(OTHER_PROGRAMS is not None, reason="PostgreSQL is the server's own here")

QUERIES = {
    "sums": "SELECT v % 3 AS g, count(*) AS n, sum(v) AS s FROM t GROUP BY v % 3",
    "rows": "SELECT id, v FROM t WHERE v > 2",
    "joined": "SELECT t.id, t.v, u.name FROM t LEFT JOIN u ON u.g = t.v % 4",
    "over": "SELECT name, count(*) AS n FROM joined GROUP BY name",
    "parts": "SELECT k, sum(v) AS s FROM p GROUP BY k",
    "ranked": "SELECT id, rank() OVER (PARTITION BY v % 3 ORDER BY v) AS r FROM t",
}


@pytest.fixture
def own_db(own_server: Headwater) -> Iterator[Database]:
    database = Database(own_server, "postgres")
    yield database


def test_changes_and_ddl_meanwhile(own_server: Headwater, own_db: Database, eventually: Callable[..., Any]) -> None:
    own_db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (g int PRIMARY KEY, name text);"
        "CREATE TABLE p (k int, v int) PARTITION BY LIST (k); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
        "INSERT INTO t SELECT i, i * 7 % 11 FROM generate_series(1, 40) i;"
        "INSERT INTO u SELECT i, 'u' || i FROM generate_series(0, 3) i"
    )
    for name, query in QUERIES.items():
        own_db.create(name, query, refresh_mode="IMMEDIATE")
    wanted = {name: own_db.state(name)["defining_query"] for name in QUERIES}
    own_db.close()
    login = psycopg.conninfo.conninfo_to_dict(own_server.direct_dsn())
    assert own_server.stop() == 0
    alone = EmbeddedPostgres(DataDirectory(own_server.data).create())
    alone.start()
    try:
        place = {"host": str(alone.socket_dir), "port": str(alone.port)}
        with psycopg.connect(**{**login, **place}, autocommit=True) as direct:

            def check(statement: str, names: set[str]) -> None:
                direct.execute(statement)
                for name in names:
                    shown = ", ".join(
                        f'"{c}"'
                        for (c,) in direct.execute(
                            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                            " AND NOT attisdropped AND attname !~ '^__pgt' ORDER BY attnum",
                            [name],
                        )
                    )
                    query, stored = wanted[name], f"SELECT {shown} FROM {name}"
                    different = direct.execute(
                        f"SELECT 1 FROM ({query} EXCEPT ALL {stored}) AS m UNION ALL"
                        f" SELECT 2 FROM ({stored} EXCEPT ALL {query}) AS e"
                    ).fetchall()
                    assert different == [], (name, statement)

            everything = set(QUERIES)
            for statement in (
                "INSERT INTO t VALUES (1000, 7), (1001, 8)",
                "UPDATE u SET name = name || '!'",
                "DELETE FROM t WHERE v = 5",
                "WITH x AS (DELETE FROM u WHERE g = 1), y AS (INSERT INTO p VALUES (1, 1)) UPDATE t SET v = v + 1",
                "TRUNCATE t",
                "COPY t FROM PROGRAM 'echo 1,1; echo 2,2; echo 3,10' (FORMAT csv)",
                "CREATE TABLE unrelated (a int)",
            ):
                check(statement, everything)
            # What is no longer what the triggers were made for rests until the server comes; the others go on.
            check("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)", everything)
            check("INSERT INTO p2 VALUES (2, 2)", everything - {"parts"})
            direct.execute("ALTER TABLE u RENAME TO v")
            check("INSERT INTO t VALUES (2000, 4)", {"sums", "rows", "ranked"})
            direct.execute("UPDATE v SET name = 'another'")
            modes = dict(direct.execute("SELECT pgt_name, refresh_mode FROM pgtrickle.pgt_stream_tables").fetchall())
            assert {name for name, mode in modes.items() if mode != "IMMEDIATE"} == {"parts", "joined"}
    finally:
        alone.stop()
    own_server.start()
    again = Database(own_server, "postgres")
    try:
        eventually(
            lambda: again.rows("SELECT DISTINCT refresh_mode FROM pgtrickle.pgt_stream_tables") == [("IMMEDIATE",)]
        )
        again.assert_current(*QUERIES)
        again.run("INSERT INTO p2 VALUES (2, 7); INSERT INTO t VALUES (3000, 3); UPDATE v SET name = 'third'")
        again.assert_current(*QUERIES)
    finally:
        again.close()
