"""Sessions of the console end, whatever the browser does."""

from __future__ import annotations

import psycopg
import pytest

from server.console.connections import Login
from server.console.sessions import Sessions

LOGIN = Login("127.0.0.1", 1, "alice", "shop", "secret")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_session_that_is_not_used_ends() -> None:
    clock = Clock()
    sessions = Sessions(1800, 43200, clock)
    identity = sessions.begin(LOGIN)
    clock.now += 1799
    assert sessions.find(identity, used=True) is not None
    clock.now += 1799
    assert sessions.find(identity, used=True) is not None
    clock.now += 1800
    assert sessions.find(identity, used=True) is None


def test_what_a_page_fetches_by_itself_does_not_keep_a_session_alive() -> None:
    clock = Clock()
    sessions = Sessions(1800, 43200, clock)
    identity = sessions.begin(LOGIN)
    for _ in range(18):
        clock.now += 99
        assert sessions.find(identity, used=False) is not None
    clock.now += 99
    assert sessions.find(identity, used=False) is None


def test_session_that_is_used_ends_too() -> None:
    clock = Clock()
    sessions = Sessions(1800, 43200, clock)
    identity = sessions.begin(LOGIN)
    for _ in range(43):
        clock.now += 1000
        assert sessions.find(identity, used=True) is not None
    clock.now += 200
    assert sessions.find(identity, used=True) is None


async def test_session_that_is_logged_out_is_unknown_and_its_streams_are_told() -> None:
    sessions = Sessions(1800, 43200, Clock())
    identity, other = sessions.begin(LOGIN), sessions.begin(LOGIN)
    session = sessions.find(identity, used=True)
    assert session is not None and identity != other
    await sessions.end(identity)
    assert session.ended.is_set()
    assert sessions.find(identity, used=True) is None
    assert sessions.find(other, used=True) is not None
    assert sessions.find(None, used=True) is None


class Closable:
    """Stands for a connection."""

    usable = True
    hung_up = False

    async def close(self) -> None:
        self.usable = False

    def hang_up(self) -> None:
        self.hung_up = True


async def test_session_may_end_while_a_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Closable] = []

    async def connect(self: Login) -> Closable:
        made.append(Closable())
        return made[-1]

    monkeypatch.setattr(Login, "connect", connect)
    sessions = Sessions(1800, 43200, Clock())
    identity = sessions.begin(LOGIN)
    session = sessions.find(identity, used=True)
    assert session is not None
    with pytest.raises(psycopg.OperationalError, match="lost"):
        async with session.connection():
            await sessions.end(identity)
            assert made[0].hung_up and made[0].usable  # the event loop still waits for it
            raise psycopg.OperationalError("lost")  # as a statement does then
    with pytest.raises(psycopg.OperationalError, match="the session has ended"):
        async with session.connection():
            raise AssertionError
    assert len(made) == 2 and not any(connection.usable for connection in made)


def test_failed_logins_are_counted_for_a_minute() -> None:
    clock = Clock()
    attempts = Sessions(1800, 43200, clock).attempts
    for number in range(20):
        attempts.failed("192.0.2.1", f"user {number}")
    assert attempts.wait("192.0.2.1", "somebody else") == 60.0
    assert attempts.wait("192.0.2.2", "user 1") == 0.0
    clock.now += 60
    assert attempts.wait("192.0.2.1", "somebody else") == 0.0


def test_password_is_in_no_text() -> None:
    assert "secret" not in repr(LOGIN)
