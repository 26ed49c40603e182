"""The adapter: PostgreSQL's, with what the macros need for stream tables, queues and registers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.base.meta import available
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.events.logging import AdapterLogger
from dbt.adapters.events.types import AdapterEventWarning
from dbt.adapters.headwater import sql
from dbt.adapters.headwater.connections import HeadwaterConnectionManager
from dbt.adapters.headwater.registers import register_changes
from dbt.adapters.postgres.impl import PostgresAdapter, PostgresConfig
from dbt_common.events.functions import warn_or_error
from dbt_common.exceptions import DbtRuntimeError

if TYPE_CHECKING:
    import agate

logger = AdapterLogger("Headwater")

INTERNAL = "__pgt_"
"""What the names of columns begin with that a stream table needs for itself."""

POLL_SECONDS = 0.5

# What a function is told that an existing stream table cannot be given: it is for the creation alone.
_CREATION_ONLY = ("engine",)
_STREAM_TABLE = (
    *("schedule", "refresh_mode", "initialize", "diamond_consistency", "diamond_schedule_policy"),
    *("cdc_mode", "append_only", "engine"),
)
_REFUSED = {
    "unlogged": "a stream table is always logged",
    "sql_header": "its query is run by the server, at each refresh; set what it needs for the role or the database",
}


@dataclass
class HeadwaterConfig(PostgresConfig):
    """What models can be configured with: parameters of the functions that are called, by their names."""

    # stream_table
    schedule: str | None = None
    refresh_mode: str | None = None
    initialize: bool | None = None
    diamond_consistency: str | None = None
    diamond_schedule_policy: str | None = None
    cdc_mode: str | None = None
    append_only: bool | None = None
    engine: str | None = None
    status: str | None = None
    # queue
    queue_name: str | None = None
    settings: dict[str, Any] | None = None
    consumers: list[str] | None = None
    # register
    register_name: str | None = None
    dimensions: dict[str, str] | None = None
    resources: dict[str, str] | None = None
    kind: str | None = None
    totals_period: str | None = None
    partition_by: str | None = None
    high_write: bool | None = None
    recorder_type: str | None = None


class HeadwaterAdapter(PostgresAdapter):
    """PostgreSQL's adapter over a Headwater server."""

    ConnectionManager = HeadwaterConnectionManager
    AdapterSpecificConfigs = HeadwaterConfig

    connections: HeadwaterConnectionManager

    _capabilities = CapabilityDict(
        {
            Capability.SchemaMetadataByRelations: CapabilitySupport(support=Support.Full),
            Capability.TableLastModifiedMetadata: CapabilitySupport(support=Support.Full),
        }
    )

    @available
    def literal(self, value: object) -> str:
        """A value as an SQL literal (`sql.literal`)."""
        return sql.literal(value)

    @available
    def call(self, function: str, arguments: Mapping[str, object]) -> str:
        """A SELECT that calls a function with named arguments (`sql.call`)."""
        return sql.call(function, arguments)

    @available
    def stream_table_options(self, config: Any, present: Mapping[str, Any] | None) -> dict[str, Any]:
        """The parameters that a model gives, for one that is to be created, or for the `present` one.

        Raises DbtRuntimeError for what a stream table cannot be given.
        """
        for name, reason in _REFUSED.items():
            if config.get(name):
                raise DbtRuntimeError(f"a stream table takes no {name}: {reason}")
        options = {name: config.get(name) for name in _STREAM_TABLE if config.get(name) is not None}
        if present is None:
            return options
        for name in _CREATION_ONLY:
            if name in options and str(options[name]).lower() != str(present[name]).lower():
                raise DbtRuntimeError(
                    f"{name} is {present[name]!r} in the database and {options[name]!r} in the model; it is given"
                    " when the stream table is created: run the model with --full-refresh"
                )
        return {name: value for name, value in options.items() if name not in _CREATION_ONLY}

    @available
    def status_to_set(self, wanted: str | None, present: str) -> str | None:
        """The status to set for a stream table to be as a model says; None where it is so, or nothing is said."""
        if wanted is None or (wanted.upper() == "SUSPENDED") == (present == "SUSPENDED"):
            return None
        return wanted

    @available
    def register_changes(self, declared: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
        """What `accum.register_alter` has to be told (`registers.register_changes`)."""
        return register_changes(declared, info)

    @available
    def run_alone(self, statement: str) -> dict[str, str]:
        """Run one statement in a transaction of its own, and log what the server tells; warnings are dbt's warnings.

        Returns `code` and `message` of the response; a stream table that has not been changed is `UNCHANGED`.
        """
        response, notices = self.connections.execute_alone(statement)
        unchanged = False
        for notice in notices:
            severity, _, text = notice.partition(":")
            unchanged = unchanged or (severity == "INFO" and text.rstrip().endswith("is unchanged"))
            if severity == "WARNING":
                warn_or_error(AdapterEventWarning(base_msg=text.strip()))
            elif severity == "NOTICE":
                logger.info(text.strip())
            else:
                logger.debug(notice)
        code = "UNCHANGED" if unchanged else response.code or "OK"
        return {"code": code, "message": code}

    @available
    def without_internal_columns(self, catalog: agate.Table, stream_tables: agate.Table) -> agate.Table:
        """The rows of dbt's catalog as its documentation shows them: stream tables are called that."""
        import agate

        known = {(row["table_schema"], row["table_name"]) for row in stream_tables.rows}
        place = catalog.column_names.index("table_type")
        rows = []
        for row in catalog.rows:
            if not row["column_name"].startswith(INTERNAL):
                values = list(row)
                if (row["table_schema"], row["table_name"]) in known:
                    values[place] = "STREAM TABLE"
                rows.append(values)
        return agate.Table(rows, catalog.column_names, catalog.column_types)

    @available
    def swap_schemas(self, live: str, next: str, max_lag: str, timeout: str) -> None:
        """Exchange the names of the schemas `live` and `next` as soon as `next` is fresh enough.

        It is when each of its stream tables is ACTIVE, and lags by `max_lag` (an interval, as `5 seconds`) at most.
        Raises DbtRuntimeError if that does not come within `timeout` (an interval), or if it cannot come.
        """
        if live == next:
            raise DbtRuntimeError("the two schemas must be different ones")
        names = {"live": sql.literal(live), "next": sql.literal(next)}
        existing = {row["nspname"] for row in self._rows(_SCHEMAS.format(**names))}
        if next not in existing:
            raise DbtRuntimeError(f'there is no schema "{next}" to be swapped in')
        self._await_freshness(next, self._seconds(max_lag), self._seconds(timeout))
        grants = [str(row["statement"]) for row in self._rows(_GRANTS.format(**names))]
        self.connections.execute_alone("; ".join([*grants, *_renames(live, next, live in existing)]))
        logger.info(f'schema "{next}" is "{live}" now')

    def _await_freshness(self, schema: str, bound: float, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        query = _FRESHNESS.format(schema=sql.literal(schema), bound=bound)
        while waiting := self._rows(query):
            if time.monotonic() > deadline or any(row["status"] == "SUSPENDED" for row in waiting):
                told = (f"{row['pgt_name']} is {row['status']}, its lag is {row['lag']} s" for row in waiting)
                raise DbtRuntimeError(
                    f'not swapped: stream tables of "{schema}" are not fresh enough: {"; ".join(told)}'
                )
            time.sleep(POLL_SECONDS)

    def _seconds(self, interval: str) -> float:
        (row,) = self._rows(f"SELECT extract(epoch FROM {sql.literal(interval)}::interval)::float8 AS seconds")
        return float(row["seconds"])

    def _rows(self, query: str) -> list[Any]:
        """The rows of a query, in a transaction that ends with it."""
        _, table = self.connections.execute(query, auto_begin=True, fetch=True)
        self.connections.commit_if_has_connection()
        return list(table.rows)


def _renames(live: str, next: str, is_live: bool) -> list[str]:
    """The statements that exchange two names, or give the one schema the name that is free."""
    now, new, between = (sql.identifier(name) for name in (live, next, f"headwater_swap_{secrets.token_hex(8)}"))
    renames = [(now, between), (new, now), (between, new)] if is_live else [(new, now)]
    return [f"ALTER SCHEMA {old} RENAME TO {name}" for old, name in renames]


_SCHEMAS = "SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname IN ({live}, {next})"

# Those that are not fresh enough, with the lag in seconds.
_FRESHNESS = """
SELECT s.pgt_name, s.status, l.lag
FROM pgtrickle.pgt_stream_tables s,
     LATERAL pgtrickle.get_lag(pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name)) AS l(lag)
WHERE s.pgt_schema = {schema} AND (s.status <> 'ACTIVE' OR l.lag IS NULL OR l.lag > {bound})
ORDER BY s.pgt_name
"""

# Who may use the one schema may use the other.
_GRANTS = """
SELECT pg_catalog.format('GRANT %s ON SCHEMA %I TO %s%s', a.privilege_type, {next}::text,
                         CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(r.rolname) END,
                         CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) AS statement
FROM pg_catalog.pg_namespace n, LATERAL pg_catalog.aclexplode(n.nspacl) a
LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
WHERE n.nspname = {live} AND a.grantee <> n.nspowner AND (a.grantee = 0 OR r.rolname IS NOT NULL)
"""
