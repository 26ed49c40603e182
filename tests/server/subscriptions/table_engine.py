"""An engine for the relay's tests: its stream tables are plain tables, filled once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from catalog.session import RequestSession, SqlError


class TableEngine:
    """Implements EngineInterface on the functions of ``requests.sql``."""

    def __init__(self) -> None:
        self.commits = 0
        self.sends = 0
        self.autocommit: list[bool] = []
        self.released: list[str] = []
        self.waiting = threading.Event()
        self.cancelled = threading.Event()
        self.warning: str | None = None
        self.has_callers = False
        """Whether the relay is told of functions that make requests."""

    async def database_ready(self, database: str) -> str | None:
        return self.warning

    def is_trusted(self, database: str) -> bool:
        return True

    def uninstalled(self, database: str) -> str | None:
        return None

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        if self.has_callers:
            found()

    def committed(self, database: str) -> None:
        self.commits += 1

    def sent(self, database: str) -> None:
        self.sends += 1

    async def release_database(self, database: str, role: str) -> None:
        self.released.append(database)

    async def carry_out(self, session: RequestSession) -> None:
        requests = await session.fetch(
            "SELECT request_id, kind, name, query FROM pgtrickle.pgt_requests"
            " WHERE xid = pg_current_xact_id_if_assigned() ORDER BY 1"
        )
        self.autocommit.append(session.autocommit)
        for number, kind, name, query in requests:
            await session.fetch("DELETE FROM pgtrickle.pgt_requests WHERE request_id = $1::bigint", number)
            await getattr(self, "_" + kind)(session, name, query)

    async def _drop(self, session: RequestSession, name: str, query: Any) -> None:
        await session.execute(f'DROP TABLE public."{name}"')

    async def _create(self, session: RequestSession, name: str, query: str) -> None:
        if name == "refused":
            raise SqlError("0A000", 'query of "refused" is refused', detail="No detail.", hint="Use another name.")
        if name == "broken":
            raise RuntimeError("broken")
        if name == "slow":
            await session.execute("SELECT pg_catalog.pg_sleep(60)")
        if name == "far away":
            self.waiting.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        await session.execute(f'CREATE TABLE public."{name}" AS {query}')
        await session.fetch("SELECT pgtrickle._notice($1::text)", f'"{name}" created')
        if name.startswith("two steps") and session.autocommit:
            await session.restart()
            await session.execute(f'INSERT INTO public."{name}" {query}')
            if name.endswith("fail"):
                await session.execute("SELECT 1/0")
