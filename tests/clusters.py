"""PostgreSQL clusters, and databases in them, for as long as a test needs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from server.postgres.cluster import EmbeddedPostgres, binaries
from server.postgres.data_directory import DataDirectory

_numbers = count(1)

OTHER_PROGRAMS = os.environ.get("HEADWATER_TEST_POSTGRES")
"""A directory with the initdb and postgres of another major version, to run the end-to-end tests in front of it."""


class OtherPostgres(EmbeddedPostgres):
    """A cluster of those programs; psql, pg_dump and the like stay those of the embedded PostgreSQL."""

    def __init__(self, data: DataDirectory, settings: Mapping[str, str] | None = None):
        super().__init__(data, settings)
        if OTHER_PROGRAMS is not None:
            self._bin = Path(OTHER_PROGRAMS)
            version = subprocess.run([self._bin / "postgres", "--version"], capture_output=True, text=True, check=True)
            if int(version.stdout.split()[2].split(".")[0]) < 17:  # without a provider of its own
                self._locale = ("--locale=C.UTF-8",)

    @property
    def bin_dir(self) -> Path:
        return binaries()

    @property
    def psql(self) -> Path:
        return binaries() / "psql"


@contextmanager
def started_cluster(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedPostgres]:
    """A new cluster in a data directory of its own."""
    postgres = OtherPostgres(DataDirectory(directory).create(), settings)
    postgres.start()
    try:
        yield postgres
    finally:
        postgres.stop()


def make_logins_cheap(dsn: str) -> None:
    """Have passwords hashed once instead of 4096 times, that of the role of `dsn` and those given from now on.

    PostgreSQL 15 cannot. Both sides go through the same exchange, for a tenth of the client's time.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.info.server_version < 160000:
            return
        connection.execute("ALTER SYSTEM SET scram_iterations = 1")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("SET scram_iterations = 1")
        password = sql.Literal(connection.info.password)
        connection.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(password))


@contextmanager
def new_database(cluster: EmbeddedPostgres, kind: str = "test", template: str = "template1") -> Iterator[str]:
    """The name of a new database, a copy of its template; its name begins with its kind."""
    name = f"{kind}_{next(_numbers)}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        try:
            yield name
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def drop_schemas(connection: psycopg.Connection[Any], *kept: str) -> None:
    """Drop all schemas but PostgreSQL's own and those that begin with `kept`, and make `public` anew."""
    rows = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE NOT nspname ^@ ANY (%s) AND nspname <> 'information_schema'",
        [["pg_", *kept]],
    ).fetchall()
    schemas = sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows)
    connection.execute(
        sql.SQL(
            "DROP SCHEMA {} CASCADE; CREATE SCHEMA public AUTHORIZATION pg_database_owner;"
            " GRANT USAGE ON SCHEMA public TO PUBLIC"
        ).format(schemas)
    )
