"""The console as the server sees it: a process that is started, looked after, and ended.

It is a process of its own, so that nothing that a page asks for keeps the relay from its clients. It has nothing of the
server's: no connection, no file, no password. What it shows it reads through the relay, as its users.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from dataclasses import asdict, replace

import structlog

from engine.child_process import python_command
from server.console.config import LISTENS, ConsoleConfig
from server.kept_process import end_within, keep_running
from server.metrics.http import is_loopback
from server.postgres.data_directory import StartupError

log = structlog.get_logger(__name__)

START_SECONDS = 60.0
STOP_SECONDS = 5.0
NEEDED = ("starlette", "uvicorn")
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
"""What the process has of the server's environment, in which there may be passwords."""


class ConsoleProcess:
    """Started anew when it ends by itself."""

    def __init__(self, config: ConsoleConfig):
        self.config = config
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{'https' if self.config.tls_cert else 'http'}://{host}:{self.config.port}/"

    async def start(self) -> None:
        """Start it, and wait until it listens. Raises StartupError."""
        if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
            raise StartupError(
                f"--console needs what is not installed: {', '.join(missing)}",
                "Install what it needs: pip install 'headwater[console]'",
            )
        said = await self._start()
        if not said.startswith(LISTENS):
            raise StartupError(
                f"could not listen for the console on {self.config.host} port {self.config.port}: "
                f"{said or 'its process has ended'}",
                "Choose another address with --console (port 0 takes any free one).",
            )
        if not is_loopback(self.config.host) and self.config.tls_cert is None:
            log.warning("passwords are typed into the console without TLS: give --tls-cert and --tls-key")
        log.info("console is served", url=self.url)
        kept = keep_running("the console", lambda: self._process, self._start_again)
        self._keeping = asyncio.create_task(kept, name="headwater console")

    async def stop(self) -> None:
        """End it."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await self._end()

    async def _start(self) -> str:
        """Start the process; returns the line that it says, after which the port is known."""
        self._process = process = await asyncio.create_subprocess_exec(
            *python_command("from server.console.__main__ import main; sys.exit(main())"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server, which ends this
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(asdict(self.config)).encode() + b"\n")
            async with asyncio.timeout(START_SECONDS):
                await process.stdin.drain()
                said = (await process.stdout.readline()).decode().strip()
        except (OSError, TimeoutError) as error:
            said = str(error) or f"it said nothing for {START_SECONDS:.0f} s"
        except asyncio.CancelledError:
            await self._end()
            raise
        if said.startswith(LISTENS):
            self.config = replace(self.config, port=int(said.removeprefix(LISTENS)))
        else:
            await self._end()
        return said

    async def _start_again(self) -> str | None:
        """The same when it has ended by itself; why it could not be started."""
        said = await self._start()
        if said.startswith(LISTENS):
            log.info("console is served again", url=self.url)
            return None
        return said

    async def _end(self) -> None:
        """Close its stdin, at which it ends; kill it if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        await end_within(process, STOP_SECONDS)
