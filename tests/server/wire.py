"""A client that speaks the protocol by hand: psycopg logs in, raw messages follow on its socket."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import psycopg

from server.protocol import messages as m


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def startup(*parameters: str, version: int = 3 << 16) -> bytes:
    body = b"".join(p.encode() + b"\0" for p in parameters) + b"\0"
    return struct.pack(">II", len(body) + 8, version) + body


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


class Wire:
    """Raw messages on a connection that has logged in."""

    def __init__(self, dsn: str, **options: Any):
        self.login = psycopg.connect(dsn, autocommit=True, **options)
        self.socket = socket.socket(fileno=os.dup(self.login.pgconn.socket))
        self.socket.settimeout(60)
        self._rest = b""

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def receive(self) -> tuple[str, bytes]:
        """The next message: its type and body."""
        while True:
            if len(self._rest) >= 5:
                size = int.from_bytes(self._rest[1:5], "big") + 1
                if len(self._rest) >= size:
                    message, self._rest = self._rest[:size], self._rest[size:]
                    return chr(message[0]), message[5:]
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._rest += data

    def until(self, kind: str = "Z") -> list[tuple[str, bytes]]:
        """All messages up to one of this type."""
        found = [self.receive()]
        while found[-1][0] != kind:
            found.append(self.receive())
        return found

    def kinds(self, kind: str = "Z") -> str:
        return "".join(k for k, _ in self.until(kind))

    def close(self) -> None:
        self.socket.close()
        self.login.close()


def statement(sql: str, name: bytes = b"", portal: bytes = b"", rows: int = 0) -> bytes:
    """Parse, Bind and Execute of a statement without parameters."""
    execute = m.message(m.EXECUTE, portal + b"\0" + rows.to_bytes(4, "big"))
    return m.parse(name, sql.encode()) + m.bind(portal, name) + execute


def errors_of(answers: list[tuple[str, bytes]]) -> list[str]:
    """The SQLSTATEs of the errors among some messages."""
    return [m.sqlstate_of(body) for kind, body in answers if kind == "E"]
