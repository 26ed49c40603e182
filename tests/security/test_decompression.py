"""Files that expand a thousandfold: loaded in bounded memory, while others are answered."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater

ROWS = 2_000_000
"""Of 100 characters each."""

GROWTH = 200 << 20
"""Bytes by which the server may grow meanwhile, an upper bound of the same order as the file."""

CSV = ("x" * 100 + "\n").encode()
JSON = ('{"line": "' + "x" * 100 + '"}\n').encode()


@pytest.fixture(scope="module")
def sail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    running = Headwater(tmp_path_factory.mktemp("bombs") / "data", "--spark", "sail").start()
    yield running
    running.stop()


@pytest.fixture
def database(sail: Headwater) -> Iterator[Database]:
    found = Database(sail, "postgres")
    found.run("DROP TABLE IF EXISTS bomb; CREATE UNLOGGED TABLE bomb (line text)")
    yield found
    found.run("DROP TABLE bomb")
    found.close()


def _write(path: Path, line: bytes, rows: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(rows // 1000):
            file.write(line * 1000)


def _watched(server: Headwater, work: Callable[[], None]) -> tuple[int, float]:
    """By how many bytes the server grows at most during the work, and how long others wait at most."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    over = threading.Event()
    before = process.memory_info().rss
    grown, slowest = 0, 0.0

    def watch() -> None:
        nonlocal grown, slowest
        with psycopg.connect(server.dsn(), autocommit=True) as other:
            while not over.wait(0.01):
                begin = time.perf_counter()
                other.execute("SELECT 1")
                slowest = max(slowest, time.perf_counter() - begin)
                grown = max(grown, process.memory_info().rss - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        work()
    finally:
        over.set()
        watching.join()
    return grown, slowest


@pytest.mark.parametrize(
    ("name", "line"), [("bomb.csv.gz", CSV), pytest.param("bomb.json.gz", JSON, marks=pytest.mark.long)]
)
def test_compressed_file_is_loaded_in_bounded_memory(
    sail: Headwater, database: Database, tmp_path: Path, name: str, line: bytes
) -> None:
    path = tmp_path / name
    _write(path, line, 1000)
    database.run(f"COPY bomb FROM 'file://{path}'")  # what is needed for the first file is there
    _write(path, line, ROWS)
    assert path.stat().st_size < ROWS * len(line) / 50
    grown, slowest = _watched(sail, lambda: database.run(f"COPY bomb FROM 'file://{path}'") and None)
    assert database.value("SELECT count(*) FROM bomb") == ROWS + 1000
    assert grown < GROWTH, f"{grown >> 20} MB"
    assert slowest < 1.0


def test_line_without_an_end_is_refused(sail: Headwater, database: Database, tmp_path: Path) -> None:
    path = tmp_path / "line.json.gz"
    _write(path, b"x" * 1000, 300_000)

    def load() -> None:
        with pytest.raises(errors.ProgramLimitExceeded, match="line of a file is too long"):
            database.run(f"COPY bomb FROM 'file://{path}'")

    grown, slowest = _watched(sail, load)
    assert grown < GROWTH, f"{grown >> 20} MB"
    assert slowest < 1.0
