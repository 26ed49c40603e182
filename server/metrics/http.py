"""A small HTTP server for scrapers and load balancers: GET and HEAD, one request a connection.

It serves no files, reads no bodies and knows no users. What is asked of it costs the server little: a few connections
at a time, little time and few bytes for each request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import structlog

log = structlog.get_logger(__name__)

REQUEST_SECONDS = 5.0
"""Time that a client has to send its request, and again to read the answer."""

MOST_BYTES = 16 << 10
"""Of a request, with its headers."""

MOST_CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> Answer:
        return cls(status, f"{text}\n".encode())

    def encode(self, *, with_body: bool) -> bytes:
        """All bytes of the response."""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("latin-1") + (self.body if with_body else b"")


Page = Callable[[Mapping[str, str]], Awaitable[Answer]]
"""Answers a request with these headers, whose names are in lower case."""


class HttpServer:
    """Serves `pages` by their path at an address; port 0 takes any free port."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]):
        self.host, self.port = host, port
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be used."""
        self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=MOST_BYTES)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and end what is under way."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=1.0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            with suppress(OSError, TimeoutError):
                await self._serve(reader, writer)
        except asyncio.CancelledError:  # the server stops
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = True
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            answer = Answer.text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large")
        else:
            method, _, _ = request.partition(b" ")
            head = method != b"HEAD"
            answer = await self._answer(request)
        writer.write(answer.encode(with_body=head))
        async with asyncio.timeout(REQUEST_SECONDS):
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(MOST_BYTES):  # who closes first, with bytes unread, takes the answer back
                pass

    async def _answer(self, request: bytes) -> Answer:
        lines = request.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Answer.text(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
        if words[0] not in ("GET", "HEAD"):
            return Answer.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
        page = self._pages.get(words[1].partition("?")[0])
        if page is None:
            return Answer.text(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        headers = dict(_header(line) for line in lines[1:] if ":" in line)
        try:
            return await page(headers)
        except Exception:
            log.exception("request for metrics failed", path=words[1])
            return Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, "an error of the server, which its log has")


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def parse_address(value: str) -> tuple[str, int]:
    """Host and port of ``[HOST:]PORT``; without a host the loopback address. Raises ValueError.

    >>> parse_address("9187"), parse_address("0.0.0.0:9187"), parse_address("[::1]:0")
    (('127.0.0.1', 9187), ('0.0.0.0', 9187), ('::1', 0))
    """
    if "@" in value or "/" in value:
        raise ValueError("it is [HOST:]PORT, without user, password or path")
    host, colon, port = value.rpartition(":")
    if colon and not host:
        raise ValueError("the host is empty; 0.0.0.0 is every IPv4 address of the machine")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address is written in brackets, as in [::1]:9187")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f'"{port}" is no port')
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine's users can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(str(address[0]).startswith("127.") or address[0] == "::1" for *_, address in found)
