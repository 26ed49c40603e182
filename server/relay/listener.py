"""Where clients connect: the sockets that listen, and what those are told whom the server does not take."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog

from server.protocol.messages import error_response
from server.protocol.startup import MAX_LENGTH

log = structlog.get_logger(__name__)

BACKLOG = 512
_PAUSE_SECONDS = 0.5


class Listener:
    """Listens on all addresses of `host`, and hands each connection to `admit`. Port 0 takes any free port."""

    def __init__(self, host: str, port: int, admit: Callable[[socket.socket], None]):
        self.host = host
        self.port = port
        self._admit = admit
        self._listeners: list[socket.socket] = []

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                self._listeners.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.setblocking(False)
                listener.bind((address[0], self.port, *address[2:]))
                self.port = listener.getsockname()[1]
                listener.listen(BACKLOG)
                loop.add_reader(listener.fileno(), self._accept, listener)
        except OSError:
            self.stop()
            raise

    def stop(self) -> None:
        """Accept nobody any more."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors left: some may be free again soon
                log.error("cannot accept a connection", error=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                loop.call_later(_PAUSE_SECONDS, self._accept_again, listener)
                return
            self._admit(accepted)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)


async def turn_away(accepted: socket.socket, *, patient: bool) -> None:
    """Say that there are too many clients, and give this one, if `patient`, time to read it: who closes first takes it
    back.
    """
    with accepted, suppress(OSError, TimeoutError):
        accepted.send(error_response("53300", "sorry, too many clients already", severity="FATAL"))
        accepted.shutdown(socket.SHUT_WR)
        if patient:
            async with asyncio.timeout(_PAUSE_SECONDS):
                while await asyncio.get_running_loop().sock_recv(accepted, MAX_LENGTH):
                    pass
