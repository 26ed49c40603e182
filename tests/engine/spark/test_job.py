"""A view that several queries read is computed once on Sail, and has the rows and types that it would have anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from engine.spark import job
from engine.spark.backends import batches_of, frame_of, rows_of
from engine.spark.sessions import SparkSessions

VALUES = """
SELECT CAST(id AS SMALLINT) AS s, CAST(id AS INT) AS i, id AS l, id > 1 AS b, CAST('-0.0' AS DOUBLE) * id AS d,
  CAST('NaN' AS FLOAT) AS f, CAST(id AS DECIMAL(38, 4)) AS n, DATE '2024-02-29' AS day,
  TIMESTAMP '1999-12-31 23:59:59.999999' AS t, TIMESTAMP_NTZ '0001-01-01 00:00:00.000001' AS z,
  concat('text ', id) AS x, CAST('bytes' AS BINARY) AS y, array(CAST(id AS INT), NULL) AS a,
  CASE WHEN id = 2 THEN 'only' END AS missing
FROM range({})
"""


@pytest.mark.parametrize(("number", "kept_in_a_file"), [(3, False), (job.FEW_ROWS + 1, True)])
async def test_rows_that_are_kept_are_those_of_the_view(tmp_path: Path, number: int, kept_in_a_file: bool) -> None:
    sessions = SparkSessions("sail", tmp_path / "spark")
    file = tmp_path / "view.parquet"

    def work(spark: Any) -> None:
        query = VALUES.format(number)
        frame = job._stored(spark, *batches_of(frame_of(spark, query)), file)
        frame.createOrReplaceTempView("kept")
        read, expected = rows_of(frame_of(spark, "SELECT * FROM kept")), rows_of(frame_of(spark, query))
        assert sorted(map(repr, read.to_pylist())) == sorted(map(repr, expected.to_pylist()))
        assert read.schema.types == expected.schema.types
        assert len(read) == number

    async with sessions.acquire() as lease:
        await lease.run(work, description="test")
    assert file.exists() == kept_in_a_file
    if kept_in_a_file:
        assert not pq.ParquetFile(file).metadata.row_group(0).column(0).has_dictionary_page
    await sessions.stop()


async def test_view_of_few_rows_that_are_large_is_kept_in_a_file(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path / "spark")
    file = tmp_path / "view.parquet"

    def work(spark: Any) -> None:
        query = f"SELECT repeat('x', {job.FEW_BYTES}) AS c0 FROM range(2)"
        job._stored(spark, *batches_of(frame_of(spark, query)), file).createOrReplaceTempView("kept")
        assert len(rows_of(frame_of(spark, "SELECT * FROM kept"))) == 2

    async with sessions.acquire() as lease:
        await lease.run(work, description="test")
    assert file.exists()
    await sessions.stop()
