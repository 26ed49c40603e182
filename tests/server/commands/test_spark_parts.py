"""What belongs to Spark is loaded after the server is ready, once, and is then what is used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.foreign_tables.lake_options import LakeTable
from engine.session.pool import DatabasePool
from server.commands.spark_parts import LoadedParts, SparkParts

LOADED_BY_THE_COMMAND = """
import sys
from server.commands import cli, serve
cli._spark("local[2]"), cli._spark_conf(["spark.executor.memory=1g"]), cli._mirror("s3://bucket/mirror")
cli._mirror_options(["max_retries=3"])
print(*sorted({"deltalake", "numpy", "pandas", "pyarrow", "pyspark"} & sys.modules.keys()))
"""


def test_a_server_that_starts_loads_no_module_that_only_spark_needs() -> None:
    command = [sys.executable, "-c", LOADED_BY_THE_COMMAND]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []


class Part:
    """Everything that a part can be asked for; notes what it was."""

    def __init__(self, log: list[str]):
        self._log = log

    def __getattr__(self, name: str) -> Any:
        async def called(*arguments: Any) -> str:
            self._log.append(name)
            return name

        return called


class Lake(Part):
    def look(self, table: LakeTable) -> str:
        self._log.append("look")
        return "files"


class Maintenance(Part):
    @property
    def worker(self) -> Part:
        return Part(self._log)

    def wake(self) -> None:
        self._log.append("wake")


class Loading:
    """Parts whose modules take until `go` to load."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.go = threading.Event()
        self.parts = SparkParts(self.load, self.make)

    def load(self) -> None:
        assert self.go.wait(30)
        self.log.append("modules")

    def make(self) -> LoadedParts:
        def made(kind: str, part: type[Part]) -> Any:
            self.log.append(f"make {kind}")
            return part(self.log)

        return LoadedParts(
            sessions=cast(Any, Part(self.log)),
            lake=cast(Any, Lake(self.log)),
            loader=cast(Any, Part(self.log)),
            spark_for=lambda pool: made("spark", Part),
            mirror_maintenance_for=lambda pool: made("maintenance", Maintenance),
        )


POOL = cast(DatabasePool, SimpleNamespace(database="sales"))
ANYTHING = cast(Any, None)


async def test_parts_are_loaded_once_for_all_that_wait_and_each_database_has_its_own() -> None:
    loading = Loading()
    spark, other, mirrors = (
        loading.parts.spark_for(POOL),
        loading.parts.spark_for(POOL),
        loading.parts.mirror_maintenance_for(POOL),
    )
    mirrors.wake()  # which has nothing to wake yet
    waiting = [
        asyncio.create_task(work)
        for work in (
            spark.compute(ANYTHING, ANYTHING, ANYTHING),
            spark.compute_delta(ANYTHING, ANYTHING, ANYTHING),
            other.compute(ANYTHING, ANYTHING, ANYTHING),
            mirrors.worker.work(),
            loading.parts.loader.load(ANYTHING, "COPY", ""),
            loading.parts.lake.fill(ANYTHING, "", (), ANYTHING, None, ""),
        )
    ]
    await asyncio.sleep(0)
    assert loading.log == []
    loading.go.set()
    await asyncio.gather(*waiting)
    mirrors.wake()
    assert await asyncio.to_thread(loading.parts.lake.look, ANYTHING) == "files"
    assert loading.log[0] == "modules" and loading.log.count("modules") == 1
    assert Counter(loading.log[1:]) == Counter(
        {"make spark": 2, "make maintenance": 1, "compute": 2, "compute_delta": 1}
        | dict.fromkeys(("run", "load", "fill", "wake", "look"), 1)
    )


async def test_who_gives_up_waiting_leaves_the_others_waiting() -> None:
    loading = Loading()
    first, second = (asyncio.create_task(loading.parts.mirror_maintenance_for(POOL).worker.work()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    loading.go.set()
    await second
    assert loading.log == ["modules", "make maintenance", "run"]


async def test_what_was_started_is_stopped_and_what_was_not_is_not_loaded_for_it() -> None:
    unused = Loading()
    await unused.parts.stop()
    assert unused.log == []
    used = Loading()
    task = asyncio.create_task(used.parts.mirror_maintenance_for(POOL).worker.work())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(used.parts.stop())
    used.go.set()
    await asyncio.gather(task, stopping)
    assert used.log[0] == "modules" and "stop" in used.log
