"""Differential refreshes whose delta Sail computes, without an engine: rows from PostgreSQL, staging by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.types.json import Jsonb

from engine.mirror.arrow_copy import arrow_type
from engine.spark.python_functions import register
from engine.spark.sessions import Session, SparkSessions
from sql import Source
from sql.base.columns import WEIGHT
from sql.base.text import quote, select
from sql.operators.captured_changes import source_delta
from sql.spark.protocol import Environment
from sql.spark.render import delta_view_name, view_name
from sql.spark.stages import SparkStages, render_stages
from sql.spark.text.collations import ASCII, Collations
from sql.spark.types import column_type
from tests.sql.harness import StreamTable


class OnSail:
    """Sail in this process."""

    def __init__(self, directory: Path):
        self._runner = asyncio.Runner()
        self._directory = directory
        self._sessions = SparkSessions("sail", directory)

    def close(self) -> None:
        self._runner.run(self._sessions.stop())
        self._runner.close()

    def refresh(self, table: StreamTable) -> dict[str, Any]:
        """A differential refresh. Raises NotExpressible before anything was done."""
        changed = table.changed()
        if not changed:
            return {}
        refresh = table.compiled.remote_plan(table.storage, changed)
        stages = render_stages(
            refresh, table.compiled.sources, changed, environment=Environment(Collations(True, ASCII))
        )
        relations = {}
        for source in table.compiled.sources:
            names = stages.reads.get(source.oid)
            if names is not None:
                relation = f"{quote(source.schema, source.name)} AS t"
                relations[view_name(source.oid)] = _rows(table, source, names, relation, [])
                if source.oid in changed:
                    net = f"({source_delta(source, names)}) AS t"
                    relations[delta_view_name(source.oid)] = _rows(table, source, names, net, [WEIGHT])
        results = self._runner.run(self._compute(relations, stages))
        stagings = []
        for number, (result, stage) in enumerate(zip(results, refresh.stages, strict=True)):
            stagings.append(quote("pg_temp", f"staged {number}"))
            _store(table, stagings[-1], stages.stages[number].columns, result)
            assert len(stage.types) == result.num_columns
        return table.run(refresh.statement.over(stagings))

    async def _compute(self, relations: dict[str, pa.Table], stages: SparkStages) -> list[pa.Table]:
        def work(spark: Session) -> list[pa.Table]:
            def store(name: str, rows: pa.Table) -> None:
                file = self._directory / f"{name}.parquet"
                pq.write_table(rows, file)
                spark.read.parquet(str(file)).createOrReplaceTempView(name)

            for name, rows in relations.items():
                store(name, rows)
            register(spark, *(each.sql for each in (*stages.views, *stages.stages)))
            for view in stages.views:
                # What several queries read would be computed once for each.
                store(view.name, spark.sql(view.sql).toArrow())
            return [spark.sql(query.sql).toArrow() for query in stages.stages]

        async with self._sessions.acquire() as lease:
            return await lease.run(work, description="delta")


def _rows(table: StreamTable, source: Source, names: Sequence[str], relation: str, extra: Sequence[str]) -> pa.Table:
    """Columns of a relation of PostgreSQL's, the sources' changes being those since the frontier."""
    types = {c.name: arrow_type(column_type(c.type)) for c in source.columns if c.name in names}
    types |= dict.fromkeys(extra, pa.int64())
    if not types:
        types = {"nothing": pa.int64()}
        columns = ["0 AS nothing"]
    else:
        columns = [f"t.{quote(name)}" for name in types]
    query = select(columns, relation)
    rows = table.connection.execute(query, [Jsonb(table.frontier)] if "$1" in query else []).fetchall()
    arrays = [
        pa.array([row[i] if row[i] is None or type_ != pa.string() else str(row[i]) for row in rows], type_)
        for i, type_ in enumerate(types.values())
    ]
    return pa.Table.from_arrays(arrays, names=list(types))


def _store(table: StreamTable, staging: str, columns: Sequence[Any], rows: pa.Table) -> None:
    table.connection.execute(f"DROP TABLE IF EXISTS {staging}")
    table.connection.execute(
        f"CREATE TEMP TABLE {staging.partition('.')[2]} ({', '.join(f'{quote(c.name)} {c.type}' for c in columns)})"
    )
    with table.connection.cursor() as cursor, cursor.copy(f"COPY {staging} FROM STDIN") as copy:
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            copy.write_row(row)
