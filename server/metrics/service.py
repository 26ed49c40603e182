"""The pages of `--metrics`: /metrics for Prometheus, /healthz and /readyz for load balancers."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog
from prometheus_client.exposition import choose_encoder

from engine.session.background_worker import INTERRUPTIONS
from engine.session.pool import DatabasePool
from server.metrics.collector import PATIENCE_SECONDS, Collector
from server.metrics.http import Answer, HttpServer, is_loopback
from server.postgres.data_directory import StartupError

log = structlog.get_logger(__name__)

CHECK_SECONDS = 1.0
"""PostgreSQL is asked no more often than this whether it answers."""

CHECK_GIVEN_UP_SECONDS = 5.0


@dataclass(slots=True)
class PostgresCheck:
    """Whether PostgreSQL answers, over a connection of its own: those of the engine may all be busy."""

    pool: DatabasePool
    up: bool = False
    _asked_at: float = float("-inf")
    _asking: asyncio.Task[None] | None = None

    async def ask(self) -> bool:
        """Whether it answers now, or did a moment ago; false if it says nothing for a second."""
        if self._asking is None or self._asking.done():
            if time.monotonic() - self._asked_at < CHECK_SECONDS:
                return self.up
            self._asking = asyncio.create_task(self._ask(), name="headwater check of PostgreSQL")
        done, _ = await asyncio.wait({self._asking}, timeout=PATIENCE_SECONDS)
        if not done:
            self.up = False
        return self.up

    async def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking}, timeout=1.0)
        await self.pool.close()

    async def _ask(self) -> None:
        up = False
        try:
            async with asyncio.timeout(CHECK_GIVEN_UP_SECONDS), self.pool.session() as session:
                try:
                    await session.fetch("SELECT 1")
                    up = True
                except asyncio.CancelledError:
                    session.terminate()
                    raise
        except (TimeoutError, *INTERRUPTIONS) as error:
            log.debug("PostgreSQL does not answer", error=str(error) or "no answer")
        finally:
            self.up = up
            self._asked_at = time.monotonic()


@dataclass(slots=True)
class MetricsService:
    """Listens from the start on; is ready once `collector` is there and PostgreSQL answers."""

    host: str
    port: int
    check: PostgresCheck
    alive: Callable[[], bool]
    """Whether the embedded PostgreSQL runs; always true with one of the user's."""
    collector: Collector | None = None
    _http: HttpServer = field(init=False)

    def __post_init__(self) -> None:
        pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        self._http = HttpServer(self.host, self.port, pages)

    async def start(self) -> None:
        """Listen. Raises StartupError if the address cannot be used."""
        try:
            await self._http.start()
        except OSError as error:
            in_use = error.errno in (errno.EADDRINUSE, errno.EACCES)
            raise StartupError(
                f"could not listen for metrics on {self.host} port {self.port}: {error.strerror or error}",
                "Choose another port with --metrics (0 takes any free one)."
                if in_use
                else "Choose an address of this machine with --metrics.",
            ) from error
        self.port = self._http.port
        if not is_loopback(self.host):
            log.warning("metrics are not protected by any login: names and sizes are shown to whoever gets there")
        shown = f"[{self.host}]" if ":" in self.host else self.host
        log.info("metrics are served", url=f"http://{shown}:{self.port}/metrics")

    async def stop(self) -> None:
        """Stop listening."""
        await self._http.stop()
        if self.collector is not None:
            await self.collector.stop()
        await self.check.stop()

    async def _healthz(self, headers: Mapping[str, str]) -> Answer:
        return Answer.text(HTTPStatus.OK, "ok")

    async def _readyz(self, headers: Mapping[str, str]) -> Answer:
        if self.collector is None:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, "starting")
        if not (self.alive() and await self.check.ask()):
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, "PostgreSQL does not answer")
        if self.collector.clients.full:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, "as many clients as --max-connections allows")
        return Answer.text(HTTPStatus.OK, "ready")

    async def _metrics(self, headers: Mapping[str, str]) -> Answer:
        if self.collector is None:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, "starting")
        up, _ = await asyncio.gather(self.check.ask(), self.collector.ask())
        up = up and self.alive()
        families = self.collector.collect(up=up, ready=up and not self.collector.clients.full)
        encode, content_type = choose_encoder(headers.get("accept", ""))
        # In a thread: thousands of samples take longer than other clients should wait.
        body = await asyncio.to_thread(encode, families)
        return Answer(HTTPStatus.OK, body, content_type)
