"""What the tests of SUBSCRIBE say and read by hand."""

from __future__ import annotations

from dataclasses import dataclass

from server.intercept.engine_interface import EngineInterface
from server.protocol import messages as m
from tests.server.subscriptions.feed_hub import FeedHub
from tests.server.wire import Wire


@dataclass
class Subscribed:
    """A client in front of a database with a table t(a int, b text)."""

    wire: Wire
    hub: FeedHub
    hooks: EngineInterface
    """The engine behind the relay."""
    port: int
    """The relay's."""
    dsn: str
    direct: str

    def query(self, sql: str) -> None:
        self.wire.send(m.query(sql.encode()))


def texts(row: bytes) -> list[str | None]:
    """The values of a DataRow's body."""
    return [None if value is None else value.decode() for value in values(row)]


def values(row: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    position = 2
    for _ in range(int.from_bytes(row[:2], "big")):
        length = int.from_bytes(row[position : position + 4], "big", signed=True)
        position += 4
        found.append(None if length < 0 else row[position : position + length])
        position += max(length, 0)
    return found


def columns(description: bytes) -> list[tuple[str, int, int]]:
    """Name, type and format of the columns of a RowDescription's body."""
    found = []
    position = 2
    for _ in range(int.from_bytes(description[:2], "big")):
        end = description.index(b"\0", position)
        rest = description[end + 1 : end + 19]
        found.append(
            (description[position:end].decode(), int.from_bytes(rest[6:10], "big"), int.from_bytes(rest[16:], "big"))
        )
        position = end + 19
    return found


def names(description: bytes) -> list[str]:
    return [name for name, _, _ in columns(description)]


def rows(messages: list[tuple[str, bytes]]) -> list[list[str | None]]:
    return [texts(body) for kind, body in messages if kind == "D"]


def field(error: bytes, letter: str) -> str | None:
    found = m.report_fields(error).get(letter)
    return found.decode() if found is not None else None
