"""What rendering for Spark is told of a database's collations, and of a session's time zone."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo

from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.environment import environment_of
from server.postgres.cluster import EmbeddedPostgres
from sql.spark.text.collations import ASCII, BYTES, DEFAULT, OTHER, Collations
from tests.clusters import OTHER_PROGRAMS

# What is said by words of them depends on more than one character: final sigma, what looks like an i, ligatures.
WORDS = (
    "ΟΔΥΣΣΕΥΣ",
    "Straße",
    "ﬁn",
    "İstanbul \u0131I",
    "I\u0307",
    "ǅ ǆ",
    "ŉ",
    "ÉCOLE é e\u0301",
    "\U00010400\U00010428",
    "Ⅷ ⓐ",
)

TABLE = """CREATE TABLE public.t (
    a text, b text COLLATE "C", c text COLLATE "POSIX", d varchar(9) COLLATE "C", e integer, f text COLLATE "ucs_basic",
    g text COLLATE public."C"
)"""


def _login(dsn: str) -> dict[str, Any]:
    login = conninfo.conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "user", "password": "password", "database": "dbname"}
    return {name: login[key] for name, key in names.items()}


async def _collations(cluster: EmbeddedPostgres, options: str) -> tuple[Collations, list[tuple[str, str]]]:
    """Of a new database, with a table; what PostgreSQL makes of the words there."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE collated TEMPLATE template0 STRATEGY file_copy {options}".encode())
        try:
            connection = await asyncpg.connect(**_login(cluster.dsn("collated")), server_settings=SESSION_SETTINGS)
            try:
                await connection.execute('CREATE COLLATION public."C" FROM pg_catalog.pg_unicode_fast')
                await connection.execute(TABLE)
                oid = await connection.fetchval("SELECT 'public.t'::regclass::oid::bigint")
                found = (await environment_of(PooledSession(connection), [oid])).collations
                words = await connection.fetch("SELECT upper(w), lower(w) FROM unnest($1::text[]) w", [*WORDS])
                return (
                    Collations(found.binary_order, found.casing, frozenset((0, *c[1:]) for c in found.columns)),
                    [(word["upper"], word["lower"]) for word in words],
                )
            finally:
                await connection.close()
        finally:
            admin.execute("DROP DATABASE collated WITH (FORCE)")


@pytest.mark.parametrize(
    ("zone", "utc"), [("Etc/UTC", True), ("gmt", True), ("Europe/London", False), ("UTC+1", False)]
)
async def test_time_zone_is_that_of_the_session(dsn: str, zone: str, utc: bool) -> None:
    connection = await asyncpg.connect(**_login(dsn), server_settings={**SESSION_SETTINGS, "TimeZone": zone})
    try:
        assert (await environment_of(PooledSession(connection), [])).utc == utc
    finally:
        await connection.close()


@pytest.mark.skipif(OTHER_PROGRAMS is not None, reason="earlier versions of PostgreSQL have no provider of their own")
@pytest.mark.parametrize(
    ("options", "binary", "known"),
    [
        ("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'", True, True),
        ("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C' LOCALE 'C'", True, True),
        ("LOCALE_PROVIDER libc LOCALE 'C'", True, True),
        ("LOCALE_PROVIDER libc LOCALE 'C.UTF-8'", False, True),
        ("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'PG_UNICODE_FAST' LOCALE 'C'", False, False),
    ],
)
async def test_cases_are_known_where_each_character_changes_by_itself(
    cluster: EmbeddedPostgres, options: str, binary: bool, known: bool
) -> None:
    found, words = await _collations(cluster, options)
    assert found.binary_order == binary
    assert (found.casing is not None) == known
    names = {"b": BYTES, "c": BYTES, "d": BYTES, "f": BYTES, "g": OTHER}
    assert found.columns == {(0, name, collation) for name, collation in names.items()}
    assert found.ordered(BYTES) and found.casing_of(BYTES) == ASCII and not found.ordered(OTHER)
    assert found.ordered(DEFAULT) == binary
    if found.casing is not None:
        assert found.casing.ordinary
        translated = [
            tuple(word.translate(str.maketrans(*letters)) for letters in (found.casing.upper, found.casing.lower))
            for word in WORDS
        ]
        assert translated == words
