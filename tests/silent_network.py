"""A TCP proxy in front of a PostgreSQL, which can fall silent: nothing comes through, and nothing is closed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ATTACH_FILTER = 26
_DROP = struct.pack("=HBBI", 6, 0, 0, 0)  # BPF: return 0


def deafen(descriptor: int) -> None:
    """Have the kernel drop all that comes in for a socket before TCP sees it: as if the machine were gone."""
    program = ctypes.create_string_buffer(_DROP)
    with socket.socket(fileno=os.dup(descriptor)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))


class SilentNetwork:
    """Listens on `port`. Connections that were there when it fell silent stay so."""

    def __init__(self, socket_path: str):
        self._socket_path = socket_path
        self._silent = False
        self._loop = asyncio.new_event_loop()
        self._streams: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self._main = self._loop.create_task(self._serve(listener))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def fall_silent(self) -> None:
        """Nothing passes any more, in either direction, nor on new connections."""
        self._silent = True
        asyncio.run_coroutine_threadsafe(self._freeze(), self._loop).result(10)

    def vanish(self) -> None:
        """What is sent on the connections that are there now is not even acknowledged."""
        for stream in tuple(self._streams):
            connection = stream.get_extra_info("socket")
            if connection.family == socket.AF_INET and connection.fileno() >= 0:
                deafen(connection.fileno())

    def recover(self) -> None:
        """New connections work again."""
        self._silent = False

    async def _freeze(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        self._loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        async with await asyncio.start_server(self._accept, sock=listener) as server:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams.append(writer)
        if self._silent:
            return
        inward, outward = await asyncio.open_unix_connection(self._socket_path)
        self._streams.append(outward)
        for source, sink in ((reader, outward), (inward, writer)):
            task = self._loop.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
            sink.close()

    def close(self) -> None:
        async def end() -> None:
            for stream in self._streams:  # PostgreSQL must not wait for a client that is gone
                stream.transport.abort()
            rest = asyncio.all_tasks() - {asyncio.current_task(), self._main}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            self._main.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join(10)


@contextmanager
def silent_network(socket_dir: object, port: int) -> Iterator[SilentNetwork]:
    """A proxy in front of the PostgreSQL whose Unix socket this is."""
    network = SilentNetwork(f"{socket_dir}/.s.PGSQL.{port}")
    try:
        yield network
    finally:
        network.close()
