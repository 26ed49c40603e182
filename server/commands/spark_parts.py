"""What a server has of Spark: its modules are loaded after clients are let in, its processes start with the first job.

The modules of Arrow and Delta Lake take a quarter of the CPU time that all modules of a server take to load. A client
that connects needs none of them, so they are loaded in a thread when the engine takes up its first database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from catalog.session import RequestSession, SqlSession
from engine.foreign_tables.lake_options import LakeTable
from engine.foreign_tables.lake_polling import LakeReader
from engine.refresh.executor_choice import Spark, SparkDelta, SparkRows
from engine.requests.requests import Loader
from engine.service import Maintenance
from engine.session.background_worker import BackgroundWorker
from engine.session.pool import DatabasePool
from engine.spark.tally import SparkLoad
from engine.stream_tables.plan_inputs import PlanInputs
from engine.stream_tables.refresh_state import RefreshContext

if TYPE_CHECKING:
    from engine.spark.sessions import SparkSessions

RETRY_SECONDS = 1.0
"""After which modules that could not be loaded are loaded again."""


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """The parts themselves."""

    sessions: SparkSessions
    lake: LakeReader
    loader: Loader
    spark_for: Callable[[DatabasePool], Spark]
    mirror_maintenance_for: Callable[[DatabasePool], Maintenance]


class SparkParts:
    """The parts, loaded when one of them is used first. `load` imports the modules and blocks; `make` does not."""

    def __init__(self, load: Callable[[], None], make: Callable[[], LoadedParts]):
        self._load, self._make = load, make
        self._loading: asyncio.Task[LoadedParts] | None = None
        self.lake = LaterLake(self)
        self.loader = LaterLoader(self)

    def spark_for(self, pool: DatabasePool) -> Spark:
        """The Spark of a database."""
        return LaterSpark(self, pool)

    def mirror_maintenance_for(self, pool: DatabasePool) -> Maintenance:
        """What maintains a database's mirrors."""
        return LaterMaintenance(self, pool)

    async def loaded(self) -> LoadedParts:
        """The parts. Who is cancelled while they are loaded leaves the others waiting."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._loaded(), name="headwater loading Spark's modules")
        return await asyncio.shield(self._loading)

    @property
    def load(self) -> SparkLoad | None:
        """What Spark has to do; None as long as the parts are not loaded."""
        loading = self._loading
        if loading is None or not loading.done() or loading.cancelled() or loading.exception() is not None:
            return None
        return loading.result().sessions.load

    async def stop(self) -> None:
        """End what the parts have started."""
        if self._loading is not None:
            await (await self._loading).sessions.stop()

    async def _loaded(self) -> LoadedParts:
        await asyncio.to_thread(self._load)
        return self._make()


class LaterSpark:
    """Implements `executor_choice.Spark`."""

    def __init__(self, parts: SparkParts, pool: DatabasePool):
        self._parts, self._pool = parts, pool
        self._spark: Spark | None = None

    @property
    def lake(self) -> LakeReader:
        return self._parts.lake

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        return await (await self._loaded()).compute(session, context, plan)

    async def compute_delta(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkDelta:
        return await (await self._loaded()).compute_delta(session, context, plan)

    async def _loaded(self) -> Spark:
        parts = await self._parts.loaded()
        if self._spark is None:
            self._spark = parts.spark_for(self._pool)
        return self._spark


class LaterLake:
    """Implements `lake_polling.LakeReader`."""

    def __init__(self, parts: SparkParts):
        self._parts, self._loop = parts, asyncio.get_running_loop()

    def look(self, table: LakeTable) -> Any:
        # It blocks, so it is called in a thread other than the loop's.
        return asyncio.run_coroutine_threadsafe(self._parts.loaded(), self._loop).result().lake.look(table)

    async def fill(
        self,
        session: SqlSession,
        staging: str,
        columns: Sequence[tuple[str, bool]],
        table: LakeTable,
        found: Any,
        name: str,
    ) -> None:
        await (await self._parts.loaded()).lake.fill(session, staging, columns, table, found, name)


class LaterLoader:
    """Implements `requests.Loader`."""

    def __init__(self, parts: SparkParts):
        self._parts = parts

    async def load(self, session: RequestSession, statement: str, search_path: str) -> int:
        return await (await self._parts.loaded()).loader.load(session, statement, search_path)


class LaterMaintenance:
    """Implements `service.Maintenance`."""

    def __init__(self, parts: SparkParts, pool: DatabasePool):
        self._parts, self._pool = parts, pool
        self.worker = BackgroundWorker("maintenance of mirrors", pool.database, self._work, RETRY_SECONDS)
        self._mirrors: Maintenance | None = None

    def wake(self) -> None:
        # What is only being loaded looks for changes when it begins.
        if self._mirrors is not None:
            self._mirrors.wake()

    async def forget(self) -> None:
        await (await self._loaded()).forget()

    async def _work(self) -> None:
        await (await self._loaded()).worker.run()

    async def _loaded(self) -> Maintenance:
        parts = await self._parts.loaded()
        if self._mirrors is None:
            self._mirrors = parts.mirror_maintenance_for(self._pool)
        return self._mirrors
