"""Rows of a cursor in another format than it was declared with: FETCH may ask for binary values, DECLARE cannot.

PostgreSQL converts them: it reads the texts as the columns' types and gives them out as it is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from server.intercept.relayed_session import run_by_name
from server.protocol import values
from server.subscriptions.describe_query import Column
from server.subscriptions.literals import type_names
from server.subscriptions.session_subscriptions import RowBuffer
from server.subscriptions.subscriber import Subscriber

_ROWS_AT_ONCE = 5000


class FormatConversion:
    """The rows of one FETCH: kept in text format, and given out in others."""

    def __init__(self, subscriber: Subscriber, columns: Sequence[Column], formats: Sequence[int]):
        self._subscriber = subscriber
        self._columns = columns
        self._formats = formats
        self.kept = RowBuffer()

    @classmethod
    def needed(
        cls, subscriber: Subscriber, columns: Sequence[Column], formats: Sequence[int]
    ) -> FormatConversion | None:
        """Where any of these formats, Bind's, is not text."""
        return cls(subscriber, columns, formats) if any(formats) else None

    async def give(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Give out what has been kept."""
        encoding = values.codec(self._subscriber.encoding)
        names = await type_names(self._subscriber.session_of_ours(), [column.oid for column in self._columns])
        numbered = list(enumerate(names, 1))
        asking = (
            "SELECT "
            + ", ".join(f"hw.c{n}::{name}" for n, name in numbered)
            + " FROM ROWS FROM ("
            + ", ".join(f"pg_catalog.unnest(${n}::pg_catalog.text[])" for n, _ in numbered)
            + ") WITH ORDINALITY AS hw("
            + ", ".join(f"c{n}" for n, _ in numbered)
            + ", n) ORDER BY hw.n"
        )
        rows = [values.row(row, [str] * len(names), encoding) for row in self.kept.rows()]
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            lists = map(list, zip(*rows[begin : begin + _ROWS_AT_ONCE], strict=True))
            parameters = [values.encode(of_column, encoding) for of_column in lists]
            answers = await self._subscriber.exchange(run_by_name(asking.encode(encoding), parameters, self._formats))
            await write(b"".join(data for kind, data in answers if kind not in b"123CZ"))
