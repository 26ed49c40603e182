"""What writes a part of a large result: one COPY into a table of its own.

It runs where the rows are: in the executors of Spark, which get this module's functions by value and need nothing of
Headwater's, only the packages pyarrow and psycopg. They log in as a role that can do this and nothing else.

The table is made in the transaction that fills it, so that COPY can freeze the rows: the refresh reads at a snapshot
that is older than they are, and would not see them otherwise.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from catalog.pinned_settings import PINNED, set_local
from sql.spark.types import INFINITE_DAYS

STAGING_SCHEMA = "pgtrickle_staging"

CSV_ROWS = 16384
"""Rows in one chunk of COPY data."""


Fields = list[tuple[str, Any]]
"""Columns of a result with their Arrow types, None where that is as Spark gives it."""


SETTINGS = ("SET LOCAL ROLE NONE", set_local(PINNED))
"""Names and values mean what they mean to the engine, whatever the role has set."""


def csv_chunks(batch: Any) -> Iterator[bytes]:
    """A record batch as CSV for COPY: no header, NULL an unquoted empty field, text quoted."""
    import pyarrow.csv

    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    for start in range(0, batch.num_rows, CSV_ROWS):
        sink = io.BytesIO()
        pyarrow.csv.write_csv(batch.slice(start, CSV_ROWS), sink, options)
        yield sink.getvalue()


def checked(table: Any, fields: Fields) -> Any:
    """A table or batch of a result with exactly the types that were promised; a column with infinite dates or
    timestamps is text.

    Raises pyarrow's errors for a value that does not fit, OverflowError for a date or timestamp outside the years 1 to
    9999, which has no text that PostgreSQL reads back.
    """
    import datetime

    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.cast(pa.schema([(name, type_ or table.schema.field(name).type) for name, type_ in fields]))
    first, last = ((day - datetime.date(1970, 1, 1)).days for day in (datetime.date.min, datetime.date.max))

    def within(days: Any) -> bool:
        extremes = pc.min_max(days)
        low, high = (extremes[name].cast(pa.int32()).as_py() for name in ("min", "max"))
        return low is None or (low >= first and high <= last)

    for number, column in enumerate(table.columns):
        if not pa.types.is_temporal(column.type) or within(days := column.cast(pa.date32())):
            continue
        ends = [pa.scalar(day, pa.int32()).cast(pa.date32()) for day in (INFINITE_DAYS, -INFINITE_DAYS)]
        infinite = [pc.and_kleene(pc.equal(days, end), pc.equal(column, end.cast(column.type))) for end in ends]
        finite = pc.if_else(pc.or_kleene(*infinite), pa.scalar(None, column.type), column)
        if not within(finite.cast(pa.date32())):
            raise OverflowError("Spark job gave a date outside the years 1 to 9999")
        text = finite.cast(pa.string())
        for end, name in zip(infinite, ("infinity", "-infinity"), strict=True):
            text = pc.if_else(end, pa.scalar(name), text)
        table = table.set_column(number, table.schema.names[number], text)
    return table


def writer(number: int, conninfo: str, fields: Fields) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for `DataFrame.mapInArrow`: writes a partition's batches, gives the table's name and its rows.

    `number` is that of the staging area. A partition that is computed twice is written twice, under two
    names; what Spark gives to its driver names one of them. PostgreSQL's error (42501) where the refresh has ended.
    """

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import uuid

        import psycopg
        import pyarrow as pa

        rows, part = 0, uuid.uuid4().hex
        table = f'{STAGING_SCHEMA}."{number}_{part}"'
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        with psycopg.connect(conninfo, application_name="headwater on spark") as connection:
            for statement in (*SETTINGS, f"SELECT pgtrickle._begin_staging_part({number}, '{part}')"):
                connection.execute(statement.encode(), binary=True)  # one statement, by the extended protocol
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv, FREEZE)".encode()) as copy:
                batch: Any = first
                while batch is not None:
                    for chunk in csv_chunks(checked(batch, fields)):
                        copy.write(chunk)
                    rows += batch.num_rows
                    batch = next(filled, None)
            connection.execute(f"SELECT pgtrickle._finish_staging_part({number}, '{part}')".encode(), binary=True)
        yield pa.RecordBatch.from_pydict({"part": [part], "rows": [rows]})

    return write
