"""Processes that the server has started: kept running while it runs, and ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from engine.session.backoff import pause_after

log = structlog.get_logger(__name__)

STEADY_SECONDS = 60.0
"""A process that has run so long has not failed at its start."""


async def keep_running(
    title: str, current: Callable[[], asyncio.subprocess.Process | None], start: Callable[[], Awaitable[str | None]]
) -> None:
    """Start a process anew whenever it has ended by itself, after a pause that grows while it does not stay.

    `start` says why it could not be started, None if it was; then `current` gives it.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began_at = loop.time()
        if (process := current()) is not None:
            log.error(f"{title} has ended by itself", status=await process.wait())
        failures = 1 if loop.time() - began_at > STEADY_SECONDS else failures + 1
        await asyncio.sleep(pause_after(failures))
        if (reason := await start()) is not None:
            log.error(f"{title} could not be started again", reason=reason)


async def end_within(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Wait for the end of a process that has been told to end; kill it if it does not."""
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
