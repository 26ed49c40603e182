"""A stream table without an engine: sources with capture triggers, the compiled statements, and the comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from sql import Column, Compiled, Source, opaque_query, parse_query, regenerate

Connection = psycopg.Connection[tuple[Any, ...]]

CAPTURE = """
CREATE SCHEMA IF NOT EXISTS pgtrickle_changes;
CREATE SEQUENCE IF NOT EXISTS pgtrickle_changes.change_id_seq;
"""

FAITHFUL = {
    "int2", "int4", "int8", "bool", "text", "varchar", "bpchar", "date", "timestamp", "timestamptz", "uuid", "bytea",
}  # fmt: skip
NOT_HASHABLE = {"json", "xml", "point", "money", "bit", "varbit", "tsvector"}


def connect(dsn: str) -> Connection:
    """A connection in autocommit, as an engine would set it up for a refresh."""
    connection = psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.RawCursor)
    connection.execute(CAPTURE)
    connection.execute("SET datestyle = 'ISO'; SET extra_float_digits = 1")
    return connection


def source(connection: Connection, name: str, schema: str = "public") -> Source:
    """Describe a table and capture its changes."""
    relation = psycopg.sql.Identifier(schema, name).as_string(connection)
    oid = int(one(connection, "SELECT $1::text::regclass::oid::bigint", relation))
    key = connection.execute(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indrelid = $1::oid AND i.indisprimary ORDER BY a.attnum",
        [oid],
    ).fetchall()
    connection.execute("SET search_path = ''")
    columns = describe(connection, oid)
    connection.execute("RESET search_path")
    quoted = ", ".join(psycopg.sql.Identifier(c.name).as_string(connection) for c in columns)
    buffer = f"pgtrickle_changes.changes_{oid}"
    connection.execute(
        f'CREATE TABLE {buffer} AS SELECT 0::bigint AS "__pgt_change_id", pg_current_xact_id() AS "__pgt_xid",'
        f' 0::smallint AS "__pgt_w", {quoted} FROM {relation} WITH NO DATA;'
    )
    connection.execute(f'ALTER TABLE {buffer} ALTER "__pgt_xid" SET DEFAULT pg_current_xact_id()')
    insert = f'INSERT INTO {buffer} ("__pgt_change_id", "__pgt_w", {quoted}) SELECT __change, %s, {quoted} FROM %s;'
    new, old = insert % ("1", "new_rows"), insert % ("-1", "old_rows")
    for event, body, tables in (
        ("INSERT", new, "NEW TABLE AS new_rows"),
        ("UPDATE", old + new, "OLD TABLE AS old_rows NEW TABLE AS new_rows"),
        ("DELETE", old, "OLD TABLE AS old_rows"),
    ):
        function = f"pgtrickle_changes.capture_{oid}_{event.lower()}"
        connection.execute(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $f$ DECLARE __change bigint ="
            f" nextval('pgtrickle_changes.change_id_seq'); BEGIN {body} RETURN NULL; END $f$"
        )
        connection.execute(
            f"CREATE TRIGGER capture_{event.lower()} AFTER {event} ON {relation} REFERENCING {tables}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        )
    return Source(oid, schema, name, columns, tuple(k for (k,) in key))


def describe(connection: Connection, relation: int) -> tuple[Column, ...]:
    """The columns of a relation, as the compiler wants them described."""
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, t.typname, c.collisdeterministic,"
        " t.typtype"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation"
        " WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        [relation],
    ).fetchall()
    return tuple(
        Column(
            name,
            type_,
            not_null,
            kind.lstrip("_") not in NOT_HASHABLE and category != "c",
            kind in FAITHFUL and deterministic is not False and type_ != "bpchar",
        )
        for name, type_, not_null, kind, deterministic, category in rows
    )


def one(connection: Connection, query: str, *parameters: Any) -> Any:
    """The single value of a query."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def view(connection: Connection, query: str) -> tuple[str, tuple[Column, ...]]:
    """A query's canonical form and its columns, as the engine asks PostgreSQL for them."""
    connection.execute("DROP VIEW IF EXISTS pg_temp.probe_view")
    connection.execute(f"CREATE TEMP VIEW probe_view AS {query}")
    connection.execute("SET search_path = ''")
    try:
        text = one(connection, "SELECT pg_get_viewdef('pg_temp.probe_view'::regclass)")
        columns = describe(connection, one(connection, "SELECT 'pg_temp.probe_view'::regclass::oid::bigint"))
    finally:
        connection.execute("RESET search_path")
    return text.strip().rstrip(";"), columns


class StreamTable:
    """A query's stream table, refreshed by hand."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        query: str,
        sources: Sequence[Source],
        opaque: bool = False,
        special: frozenset[str] = frozenset(),
    ):
        self.connection = connection
        self.sources = sources
        self.storage = f'public."{name}"'
        self.canonical, output = self._view(query)
        answers: dict[str, Any] = {}
        if opaque:
            self.compiled: Compiled = opaque_query(self.canonical, output)
        else:
            again, _ = self._view(regenerate(self.canonical))
            # pg_get_viewdef is not always idempotent: what it makes of its own text is the fair comparison.
            assert again in (self.canonical, self._view(self.canonical)[0]), (again, self.canonical)
            parsed = parse_query(self.canonical, sources, output, special)
            while probes := parsed.probes(answers):
                answers |= {probe: self._view(probe)[1] for probe in probes}
            self.compiled = parsed.compile(answers)
        self.probes = tuple(answers)
        for statement in self.compiled.create_storage_sql(self.storage):
            connection.execute(statement)
        self.reset()

    def reset(self) -> None:
        """Empty the storage and populate it again."""
        self.connection.execute(f"TRUNCATE {self.storage}")
        self.frontier: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}
        self.usual = False
        """Whether the last differential refresh was by a usual statement."""
        self.populate()

    def _view(self, query: str) -> tuple[str, tuple[Column, ...]]:
        return view(self.connection, query)

    def run(self, statement: str) -> dict[str, Any]:
        """Run a compiled statement as the engine does."""
        self.connection.execute("SET search_path = pg_catalog, pg_temp")
        try:
            result: dict[str, Any] = one(self.connection, statement, Jsonb(self.frontier | {"memory": self.memory}))
        finally:
            if self.connection.info.transaction_status is not TransactionStatus.INERROR:
                self.connection.execute("RESET search_path")
        self.frontier = {key: result[key] for key in ("snapshot", "xid", "change_id")}
        self.memory = result.get("memory", {})
        assert result.get("overlooked") or result.get("missing", 0) == 0
        return result

    def populate(self) -> dict[str, Any]:
        """Fill the empty storage."""
        return self.run(self.compiled.populate_sql(self.storage))

    def full(self) -> dict[str, Any]:
        """A full refresh."""
        return self.run(self.compiled.full_sql(self.storage))

    def staged(self) -> dict[str, Any]:
        """A full refresh from a staging table, which stands for an external executor's result."""
        self.connection.execute("DROP TABLE IF EXISTS staging")
        self.connection.execute(f"CREATE TEMP TABLE staging AS {self.compiled.core.query}")
        return self.run(self.compiled.staged_sql(self.storage, "pg_temp.staging"))

    def changed(self) -> frozenset[int]:
        """The sources with changes that are not visible in the frontier."""
        pending = 'NOT pg_visible_in_snapshot("__pgt_xid", $1::text::pg_snapshot)'
        return frozenset(
            s.oid
            for s in self.compiled.sources
            if one(
                self.connection,
                f"SELECT EXISTS (SELECT FROM pgtrickle_changes.changes_{s.oid} WHERE {pending})",
                self.frontier["snapshot"],
            )
        )

    def refresh(self) -> dict[str, Any]:
        """A differential refresh."""
        changed, before = self.changed(), (self.frontier, self.memory)
        self.usual = self.compiled.remembers(self.memory)
        if self.usual:
            with self.connection.transaction() as undone:
                result = self.run(self.compiled.refresh_sql(self.storage, changed, usual=True))
                if not result["overlooked"]:
                    return result
                raise psycopg.Rollback(undone)
            self.usual, (self.frontier, self.memory) = False, before
        return self.run(self.compiled.refresh_sql(self.storage, changed))

    def difference(self, *, looks: bool = True) -> list[tuple[Any, ...]]:
        """Rows that the stream table lacks (+) or has too many (-), compared by what they look like, or else by =."""
        names = [psycopg.sql.Identifier(c.name).as_string(self.connection) for c in self.compiled.output]
        texts = ", ".join(f"{name}::text" if looks else name for name in names)
        expected = f"SELECT {texts} FROM ({self.canonical}) AS q"
        actual = f"SELECT {texts} FROM {self.storage}"
        return self.connection.execute(
            f"(SELECT '+', * FROM ({expected} EXCEPT ALL {actual}) x)"
            f" UNION ALL (SELECT '-', * FROM ({actual} EXCEPT ALL {expected}) x)"
        ).fetchall()

    def tuples(self) -> Mapping[Any, str]:
        """Where each row lies, to see which rows a refresh has touched."""
        rows = self.connection.execute(f"SELECT __pgt_row_id, ctid::text FROM {self.storage}").fetchall()
        return dict(rows)


def normalised(text: str) -> str:
    """SQL text with single spaces."""
    return re.sub(r"\s+", " ", text).strip()
