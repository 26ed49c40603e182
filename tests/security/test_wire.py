"""The protocol as an attacker speaks it: answers out of turn, floods, half-open connections, smuggled bytes."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest

from server.protocol import messages as m
from server.request_session import RelayedSession


class Prompter:
    """A dialogue in which PostgreSQL's answers are those that a client has arranged to come first."""

    client_encoding = "UTF8"
    pinned = False

    def __init__(self, answers: bytes):
        self._answers = deque(m.split(answers))

    async def to_backend(self, data: bytes) -> None:
        pass

    async def next_from_backend(self) -> tuple[int, bytes]:
        answer = self._answers.popleft()
        return answer[0], answer


async def test_the_engine_takes_no_answer_of_the_clients_for_its_own() -> None:
    columns, value = 20, m.INT32.pack(1) + b"x"
    described = b"".join(b"c\0" + m.INT32.pack(0) + bytes(2) + m.INT32.pack(25) + bytes(8) for _ in range(columns))
    forged = (
        m.message(m.ROW_DESCRIPTION, m.INT16.pack(columns) + described)
        + m.message(m.DATA_ROW, m.INT16.pack(columns) + value * columns)
        + m.message(m.COMMAND_COMPLETE, b"SELECT 1\0")
        + m.ready(m.IN_TRANSACTION)
    )

    async def nothing() -> None:
        raise AssertionError

    session = RelayedSession(cast(Any, Prompter(forged)), "db", m.IN_TRANSACTION, lambda: None, nothing)
    with pytest.raises(m.ProtocolViolation, match="out of turn"):
        await session.pin()
