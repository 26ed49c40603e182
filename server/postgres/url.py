"""The URL of a PostgreSQL that runs already (`--postgres`): what it may say, how to connect with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from catalog.pinned_settings import PINNED_PATH
from server.intercept.engine_interface import Backend
from server.postgres.data_directory import StartupError

# What libpq (our own look at the server), asyncpg (the engine) and the relay all understand.
PARAMETERS = frozenset({"host", "port", "user", "password", "dbname", "passfile", "sslmode", "sslrootcert"})
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
OLDEST, NEWEST = 15, 18

_MAY_CREATE_ROLES = "SELECT rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user"


_KNOWN_TO_LIBPQ = frozenset(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())
_MALFORMED = "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE with special characters percent-encoded (@ is %40)"


class InvalidUrl(ValueError):
    """The text is no URL of a PostgreSQL, or asks for something that is not supported."""


def take_nothing_over(connection: psycopg.Connection[Any]) -> None:
    """Be who has logged in, and have operators be PostgreSQL's own.

    The owner of a database can have each session in it begin as another role, and with a search_path of his own.
    """
    connection.execute("SET ROLE NONE")
    connection.execute(f"SET search_path = {PINNED_PATH}".encode())


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A PostgreSQL server, and the role the engine uses on it. Clients log in as whom they like."""

    host: str
    """A host name, an address, or the directory of a Unix socket."""
    port: int
    user: str
    database: str
    parameters: dict[str, str]
    """All of them, as libpq names them, the password included."""

    def __repr__(self) -> str:
        return f"PostgresUrl({self.dsn(with_password=False)!r})"

    @classmethod
    def parse(cls, url: str) -> PostgresUrl:
        """Raises InvalidUrl.

        >>> PostgresUrl.parse("postgresql://app@db.example/shop?sslmode=require").port
        5432
        """
        if not url.startswith(("postgresql://", "postgres://")):
            raise InvalidUrl("it must start with postgresql://")
        try:
            given = {k: str(v) for k, v in conninfo_to_dict(url).items() if v is not None}
        except psycopg.ProgrammingError:
            # libpq's message shows parts of the URL, and so parts of a password that is not encoded.
            raise InvalidUrl(_MALFORMED) from None
        _refuse_unknown(given)
        if "," in given.get("host", "") or "," in given.get("port", ""):
            raise InvalidUrl("it must name one server, not several")
        user = given.get("user") or os.environ.get("PGUSER") or "postgres"
        database = given.get("dbname") or user
        parameters = {
            **given,
            "host": given.get("host", "localhost"),
            "port": given.get("port", "5432"),
            "user": user,
            "dbname": database,
        }
        if parameters.get("sslmode", "prefer") not in SSL_MODES:
            raise InvalidUrl(f"invalid sslmode; use {', '.join(SSL_MODES)}")
        if any(mark in parameters["host"] for mark in "@?#%") or "@" in database:
            raise InvalidUrl(_MALFORMED)  # a password with such a character has been cut there
        return cls(parameters["host"], _port(parameters["port"]), user, database, parameters)

    @property
    def is_socket(self) -> bool:
        return self.host.startswith("/")

    @property
    def backend(self) -> Backend:
        """The address, as the relay wants it."""
        root = self.parameters.get("sslrootcert")
        return Backend(
            host=self.host,
            port=self.port,
            unix_socket_dir=Path(self.host) if self.is_socket else None,
            sslmode="disable" if self.is_socket else self.parameters.get("sslmode", "prefer"),
            sslrootcert=Path(root) if root else None,
        )

    def conninfo(self, database: str | None = None) -> str:
        """A libpq connection string."""
        return make_conninfo("", **{**self.parameters, "dbname": database or self.database})

    def address(self, database: str) -> str:
        """A libpq connection string for those who log in as another role: without user and password."""
        kept = {k: v for k, v in self.parameters.items() if k not in ("user", "password", "passfile")}
        return make_conninfo("", **{**kept, "dbname": database})

    @property
    def has_password(self) -> bool:
        return "password" in self.parameters

    def dsn(self, database: str | None = None, *, with_password: bool = True) -> str:
        """A URL. Without its password it can be shown and logged."""
        credentials = quote(self.user, safe="")
        if with_password and "password" in self.parameters:
            credentials += ":" + quote(self.parameters["password"], safe="")
        query = {k: v for k, v in self.parameters.items() if k not in ("user", "password", "dbname", "host", "port")}
        if self.is_socket:
            address = ""
            query = {"host": self.host, "port": str(self.port), **query}
        else:
            address = f"[{self.host}]" if ":" in self.host else self.host
            address += f":{self.port}"
        name = quote(database or self.database, safe="")
        return f"postgresql://{credentials}@{address}/{name}" + (f"?{urlencode(query)}" if query else "")

    def lines_without_proof(self) -> list[str]:
        """The lines of pg_hba.conf that let us in without a password, as far as the role may read them."""
        asking = (
            "SELECT line_number, type, pg_catalog.array_to_string(database, ','),"
            " pg_catalog.array_to_string(user_name, ','), coalesce(address, ''), auth_method"
            " FROM pg_catalog.pg_hba_file_rules"
            " WHERE auth_method IN ('trust', 'peer', 'ident', 'cert') AND error IS NULL"
            " AND (type = 'local') = (pg_catalog.inet_client_addr() IS NULL) ORDER BY line_number"
        )
        try:
            with psycopg.connect(self.conninfo(), connect_timeout=10, client_encoding="UTF8") as connection:
                take_nothing_over(connection)
                rows = connection.execute(asking).fetchall()
        except psycopg.Error:
            return []  # it takes a superuser, or a grant
        return [f"line {row[0]}: {' '.join(str(part) for part in row[1:] if part)}" for row in rows]

    def is_asked_for_password(self) -> bool:
        """Whether PostgreSQL asks our role for a password, or for GSSAPI, when we connect. Raises psycopg.Error."""
        with psycopg.connect(self.conninfo(), connect_timeout=10, client_encoding="UTF8") as connection:
            return bool(connection.pgconn.used_password or connection.pgconn.used_gssapi)

    def check(self, *, creates_roles: bool = False) -> str:
        """Connect once; returns the server's version.

        Raises StartupError if it cannot be used, or if the role has to create roles and may not.
        """
        shown = self.dsn(with_password=False)
        try:
            # A database in SQL_ASCII would have us read bytes.
            with psycopg.connect(self.conninfo(), connect_timeout=10, client_encoding="UTF8") as connection:
                number = connection.info.server_version
                row = connection.execute("SHOW server_version").fetchone()
                may = connection.execute(_MAY_CREATE_ROLES).fetchone() == (True,)
                direct = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
                pooled = direct != (connection.info.backend_pid,)
        except psycopg.Error as error:
            asked = error.pgconn is not None and error.pgconn.used_password
            raise StartupError(
                f"could not connect to the PostgreSQL at {shown}: {' '.join(str(error).split())}",
                "A password can be given in HEADWATER_POSTGRES, in PGPASSWORD or in a PGPASSFILE." if asked else None,
            ) from error
        version = str(row[0]) if row else str(number)
        if pooled:  # it made up a process id and a cancel key of its own
            raise StartupError(
                f"there is a connection pooler between the server and the PostgreSQL at {shown}",
                "Let the server connect to PostgreSQL itself. Clients may come to the server through a pooler.",
            )
        if creates_roles and not may:
            raise StartupError(
                f'the role "{self.user}" may not create roles, as which Spark\'s executors log in',
                "ALTER ROLE … CREATEROLE; or start the server without --spark-postgres.",
            )
        if not OLDEST <= number // 10000 <= NEWEST:
            raise StartupError(
                f"the PostgreSQL at {shown} is version {version}; supported are {OLDEST} to {NEWEST}",
                "Upgrade PostgreSQL." if number // 10000 < OLDEST else "Upgrade Headwater.",
            )
        return version


def _refuse_unknown(given: Mapping[str, str]) -> None:
    if unknown := sorted(given.keys() - PARAMETERS):
        shown = [name for name in unknown if name in _KNOWN_TO_LIBPQ]  # others may be parts of a password
        what = f"parameter {', '.join(shown)}" if len(shown) == len(unknown) else "a parameter"
        raise InvalidUrl(f"{what} is not supported; use {', '.join(sorted(PARAMETERS))}")


def _port(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) <= 65535):
        raise InvalidUrl("invalid port; " + _MALFORMED)
    return int(digits)
