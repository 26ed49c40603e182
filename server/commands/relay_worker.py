"""A process that relays for a server with several (`--workers`): it takes the clients that the main process passes on.

It reads what it needs to know from stdin, and ends when the main process has, or wants it to.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import uvloop

from engine.imports import freeze
from server.commands import logs, traces
from server.commands.engine_parts import make_engine
from server.commands.options import EmbeddedLogin, ServeOptions, Storage, make_relay, tls_context
from server.postgres.data_directory import DataDirectory
from server.protocol.startup import CancelRequest
from server.relay.figures import Figures, own_figures
from server.relay.relay import Relay
from server.workers.channel import Channel
from server.workers.shared_engine import SharedEngine

PROGRAM = "from server.commands.relay_worker import main; sys.exit(main(int(sys.argv[2])))"
"""Given to `python_command`; its argument is the descriptor of the channel to the main process."""


@dataclass(frozen=True, slots=True)
class _Configuration:
    options: ServeOptions
    embedded: EmbeddedLogin | None
    number: int
    share: int
    """So many clients it may have."""

    def storage(self) -> Storage:
        if self.embedded is not None:
            return Storage.of_embedded(self.embedded, lambda: True)  # the main process looks after it
        assert self.options.postgres is not None
        return Storage.of_url(self.options.postgres)


def configuration(options: ServeOptions, embedded: EmbeddedLogin | None, number: int, share: int) -> bytes:
    """What the process of this number reads from stdin; it may have so many clients."""
    return pickle.dumps(_Configuration(options, embedded, number, share))


def main(descriptor: int) -> int:
    """Returns the exit status."""
    gc.disable()
    given = pickle.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # passwords are in memory
    logs.configure(given.options.log_level, given.options.log_format)
    uvloop.run(_run(given, socket.socket(fileno=descriptor), traces.start(given.options.traces)))
    sys.stderr.flush()
    os._exit(0)  # to free the memory object by object takes longer


async def _run(given: _Configuration, connection: socket.socket, exporting: traces.Exporting | None) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    options, storage = given.options, given.storage()
    async with AsyncExitStack() as stack:
        if exporting is not None:
            stack.push_async_callback(exporting.stop)
        made = await make_engine(
            options,
            DataDirectory(options.data),
            storage,
            stack,
            place=f"spark/worker-{given.number}",
            idle=True,
            expecting=lambda database: shared.expect(database),
        )
        engine = made.engine

        def passed(client: socket.socket) -> None:
            relay.admit(client)

        def hidden_requests_found(database: str) -> None:
            relay.context.hidden_requests(database).possible = True

        async def cancel(request: CancelRequest) -> bool:
            return await relay.context.cancels.cancel_here(request)

        def figures() -> Figures:
            return own_figures(relay, made.parts.load())

        channel = Channel(
            connection,
            {
                "client": passed,
                "committed": engine.committed,
                "expect": engine.expect,
                "release_database": engine.release_database,
                "hidden_requests_found": hidden_requests_found,
                "cancel": cancel,
                "figures": figures,
            },
            stopping.set,
        )
        stack.callback(channel.close)
        shared = SharedEngine(engine, channel)
        relay: Relay = make_relay(options, storage, shared, tls_context(options), given.share, shared)
        stack.push_async_callback(relay.stop)
        relay.start()
        await engine.start()
        freeze()
        gc.enable()
        channel.tell("ready")
        made.compilers.warm_up()
        await stopping.wait()
