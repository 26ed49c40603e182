"""The processes that relay, as the main process sees them: who takes which client, and what each must be told.

The main process accepts connections and passes them on, so that clients are spread evenly and their number has one
limit. The engine works in the main process, so that nobody's statements wait for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from engine.child_process import python_command
from engine.service import Engine
from engine.spark.tally import SparkLoad
from server.kept_process import end_within, keep_running
from server.postgres.data_directory import StartupError
from server.protocol.startup import CancelRequest
from server.relay.figures import Figures, own_figures, together
from server.relay.listener import BACKLOG, turn_away
from server.relay.relay import NEWCOMERS
from server.workers.channel import Answers, Channel, ChannelClosed

log = structlog.get_logger(__name__)

START_SECONDS = 60.0
STOP_SECONDS = 8.0
"""More than a process needs in which all sessions linger."""
FIGURES_SECONDS = 1.0
"""A process that does not say within this time what it has counted is left out."""


@dataclass(slots=True)
class RelayWorker:
    """One of the processes."""

    number: int
    share: int
    """So many of the clients it may have."""
    process: asyncio.subprocess.Process | None = None
    channel: Channel | None = None
    """None while it does not run."""
    clients: int = 0
    """Connections that were passed on to it and have not ended."""
    subscribed: set[str] = field(default_factory=set)
    """Databases in which it has had subscriptions, so that commits matter to it."""
    figures: Figures = field(default_factory=Figures)
    """What it had counted when it was last asked."""
    former: Figures = field(default_factory=Figures)
    """What those had counted that have ended by themselves."""

    def tell(self, subject: str, *arguments: object) -> None:
        """Tell it something; where it has ended there is nobody to be told."""
        with suppress(ChannelClosed):
            if self.channel is not None:
                self.channel.tell(subject, *arguments)

    async def ask(self, subject: str, *arguments: object) -> object:
        """Ask it something; None where it has ended."""
        with suppress(ChannelClosed):
            if self.channel is not None:
                return await self.channel.ask(subject, *arguments)
        return None


class RelayWorkers:
    """So many processes, at most as many as clients; one that ends by itself is started anew.

    `program` is what such a process runs, given to `python_command`. It finds on its stdin what `configuration` gives
    for its number and its share of the clients; its argument is the descriptor of its end of the channel.
    """

    def __init__(
        self,
        program: str,
        configuration: Callable[[int, int], bytes],
        number: int,
        max_connections: int,
        engine: Engine,
        spark: Callable[[], SparkLoad | None],
    ):
        self.max_connections = max_connections
        self._program = program
        self._configuration = configuration
        self._engine = engine
        self._spark = spark
        self.workers = [
            RelayWorker(each, max_connections // number + (each < max_connections % number)) for each in range(number)
        ]
        self._keeping: list[asyncio.Task[None]] = []
        self._turning_away: set[asyncio.Task[None]] = set()
        self._turned_away = 0

    async def start(self) -> None:
        """Start them, and wait until they take clients. Raises StartupError."""
        await asyncio.gather(*(self._start(worker) for worker in self.workers))
        self._keeping = [
            asyncio.create_task(self._keep(worker), name=f"headwater relay worker {worker.number}")
            for worker in self.workers
        ]

    async def stop(self) -> None:
        """Have them end their sessions and themselves."""
        for task in (*self._keeping, *self._turning_away):
            task.cancel()
        await asyncio.gather(*self._keeping, *self._turning_away, return_exceptions=True)
        await asyncio.gather(*(self._end(worker) for worker in self.workers))

    @property
    def full(self) -> bool:
        """Whether each has as many clients as it may have."""
        return all(worker.clients >= worker.share for worker in self.workers)

    def admit(self, accepted: socket.socket) -> None:
        """Pass a client that has connected on to the process that has the smallest part of its share. Never blocks."""
        running = [worker for worker in self.workers if worker.channel is not None]
        worker = min(running, key=lambda each: each.clients / each.share, default=None)
        if worker is None or worker.clients >= worker.share + NEWCOMERS:
            self._turn_away(accepted)
            return
        assert worker.channel is not None
        worker.clients += 1
        with suppress(ChannelClosed):
            worker.channel.tell("client", passed=accepted)

    async def figures(self) -> Figures:
        """What all processes of the server have counted."""
        own = own_figures(None, self._spark())
        own.relay.errors["53"] += self._turned_away
        return together([own, *await asyncio.gather(*(self._figures(worker) for worker in self.workers))])

    async def _figures(self, worker: RelayWorker) -> Figures:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIGURES_SECONDS):
                found = await worker.ask("figures")
                if isinstance(found, Figures):
                    worker.figures = found
        return together([worker.former, worker.figures])

    def _turn_away(self, accepted: socket.socket) -> None:
        self._turned_away += 1
        task = asyncio.create_task(turn_away(accepted, patient=len(self._turning_away) <= BACKLOG))
        self._turning_away.add(task)
        task.add_done_callback(self._turning_away.discard)

    # -- processes ---------------------------------------------------------------------------------------------------

    async def _start(self, worker: RelayWorker) -> None:
        """Start a process, and wait until it takes clients. Raises StartupError."""
        here, there = socket.socketpair()
        with there:
            worker.process = process = await asyncio.create_subprocess_exec(
                *python_command(self._program),
                str(there.fileno()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl-C is for the main process, which ends this one
            )
        ready = asyncio.get_running_loop().create_future()
        channel = Channel(here, self._answers(worker, ready), lambda: self._lost(worker))
        assert process.stdin is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                process.stdin.write(self._configuration(worker.number, worker.share))
                process.stdin.close()
                ended = asyncio.ensure_future(process.wait())
                await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
        except (OSError, TimeoutError):
            pass
        except asyncio.CancelledError:
            await self._end(worker)
            raise
        if not ready.done():
            channel.close()
            await self._end(worker)
            raise StartupError("a process that relays to clients has not started", "Its reason is in the log.")
        worker.channel, worker.clients, worker.subscribed = channel, 0, set()

    def _lost(self, worker: RelayWorker) -> None:
        """Nothing comes from there any more: its clients have lost their connections."""
        worker.channel, worker.clients = None, 0
        figures, worker.figures = worker.figures, Figures()
        figures.connections.clear()
        if (load := figures.spark) is not None:
            figures.spark = replace(load, up=False, running=0)
        worker.former.add(figures)

    async def _keep(self, worker: RelayWorker) -> None:
        """Start it anew when it ends by itself."""

        async def start_again() -> str | None:
            try:
                await self._start(worker)
            except StartupError as error:
                return str(error)
            log.info("a process relays again", worker=worker.number)
            return None

        await keep_running(f"relay worker {worker.number}", lambda: worker.process, start_again)

    async def _end(self, worker: RelayWorker) -> None:
        """Close its channel, at which it ends; kill it if it does not."""
        process, worker.process = worker.process, None
        channel, worker.channel = worker.channel, None
        if channel is not None:
            channel.close()
        if process is None:
            return
        await end_within(process, STOP_SECONDS)

    # -- what they say -----------------------------------------------------------------------------------------------

    def _answers(self, worker: RelayWorker, ready: asyncio.Future[None]) -> Answers:
        """What is done with what a worker says."""
        others = [each for each in self.workers if each is not worker]
        engine = self._engine

        def is_ready() -> None:
            if not ready.done():
                ready.set_result(None)

        def departed() -> None:
            worker.clients -= 1

        def ended(committed: set[str], sent: set[str]) -> None:
            for database in sent:
                engine.sent(database)
            for database in committed:
                engine.committed(database)
                changing = engine.is_changing(database)
                for other in others:
                    if changing or database in other.subscribed:
                        other.tell("committed", database)

        def expect(database: str) -> None:
            engine.expect(database)
            _tell(others, "expect", database)

        async def release_database(database: str, role: str) -> None:
            await asyncio.gather(
                engine.release_database(database, role),
                *(other.ask("release_database", database, role) for other in others),
            )

        async def cancel(request: CancelRequest) -> bool:
            return any(await asyncio.gather(*(other.ask("cancel", request) for other in others)))

        return {
            "ready": is_ready,
            "departed": departed,
            "ended": ended,
            "expect": expect,
            "subscribed": lambda database: worker.subscribed.add(database),
            "hidden_requests_found": lambda database: _tell(others, "hidden_requests_found", database),
            "database_ready": engine.database_ready,
            "release_database": release_database,
            "cancel": cancel,
        }


def _tell(workers: Sequence[RelayWorker], subject: str, database: str) -> None:
    for worker in workers:
        worker.tell(subject, database)
