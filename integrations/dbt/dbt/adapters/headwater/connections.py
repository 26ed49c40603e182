"""Connections to a Headwater server: PostgreSQL's, on which a statement can be run outside of dbt's transaction."""

from __future__ import annotations

from dataclasses import dataclass

from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.events.logging import AdapterLogger
from dbt.adapters.postgres.connections import PostgresConnectionManager, PostgresCredentials

logger = AdapterLogger("Headwater")


@dataclass
class HeadwaterCredentials(PostgresCredentials):
    """What a profile says; host and port are those of the server, not of the PostgreSQL behind it."""

    @property
    def type(self) -> str:
        return "headwater"


class HeadwaterConnectionManager(PostgresConnectionManager):
    """psycopg2 connections, one for each thread of dbt."""

    TYPE = "headwater"

    def execute_alone(self, sql: str) -> tuple[AdapterResponse, list[str]]:
        """Run one statement in a transaction of its own; what was open is committed first.

        A stream table that is created in a transaction block keeps writers of its sources out until that ends.
        One that is created by a statement of its own is filled after its sources have been released.

        Returns the response, and what the server has told: texts such as `NOTICE:  …`, with their hints.
        Raises DbtDatabaseError.
        """
        connection = self.get_thread_connection()
        handle = connection.handle
        handle.commit()
        connection.transaction_open = False
        before = handle.autocommit
        handle.autocommit = True
        del handle.notices[:]
        try:
            _, cursor = self.add_query(sql, auto_begin=False)
            response = self.get_response(cursor)
        finally:
            if not handle.closed:
                handle.autocommit = before
        self.begin()  # type: ignore[no-untyped-call]  # what comes next on this connection is in a transaction again
        return response, [str(notice).strip() for notice in handle.notices]
