"""The states of a relayed session and every transition between them.

A session begins with packets that have no type (``startup``). They ask for encryption, cancel a statement of another
session, or start a session. Then the server connects to PostgreSQL and passes its authentication on, until PostgreSQL
says ReadyForQuery for the first time. The engine now prepares the database (it may have to install its schemas) while
the client waits. From then on bytes pass in both directions (``traffic``).

When a message needs the engine, the session is *intercepted*: both directions are cut into messages, and one coroutine
(``intercept.base``) decides about each of them until the batch has been answered. Then bytes pass again.

An error on either side leads to CLOSED from every state, and nothing leads out of CLOSED. An event that the table does
not have in a state is a mistake of the relay, and raises :class:`ImpossibleTransition`.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    STARTUP = auto()
    """Waiting for a startup packet."""
    SECURING = auto()
    """The TLS handshake with the client is under way."""
    CONNECTING = auto()
    """Connecting to PostgreSQL."""
    AUTHENTICATION = auto()
    """PostgreSQL decides who gets in."""
    GREETING = auto()
    """PostgreSQL is ready; the engine looks at the database before the client learns of it."""
    RELAY = auto()
    """Bytes pass."""
    INTERCEPTED = auto()
    """A coroutine reads the messages of both sides one by one."""
    CLOSED = auto()


class Event(Enum):
    TLS_BEGINS = auto()
    TLS_DONE = auto()
    STARTUP_MESSAGE = auto()
    BACKEND_CONNECTED = auto()
    BACKEND_READY = auto()
    DATABASE_READY = auto()
    ATTENTION = auto()
    ATTENTION_DONE = auto()
    CLOSE = auto()


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.STARTUP: {
        Event.TLS_BEGINS: State.SECURING,
        Event.STARTUP_MESSAGE: State.CONNECTING,
        Event.CLOSE: State.CLOSED,
    },
    State.SECURING: {Event.TLS_DONE: State.STARTUP, Event.CLOSE: State.CLOSED},
    State.CONNECTING: {Event.BACKEND_CONNECTED: State.AUTHENTICATION, Event.CLOSE: State.CLOSED},
    State.AUTHENTICATION: {Event.BACKEND_READY: State.GREETING, Event.CLOSE: State.CLOSED},
    State.GREETING: {Event.DATABASE_READY: State.RELAY, Event.CLOSE: State.CLOSED},
    State.RELAY: {Event.ATTENTION: State.INTERCEPTED, Event.CLOSE: State.CLOSED},
    State.INTERCEPTED: {Event.ATTENTION_DONE: State.RELAY, Event.CLOSE: State.CLOSED},
    State.CLOSED: {Event.CLOSE: State.CLOSED},
}


class ImpossibleTransition(Exception):
    """The relay itself is wrong."""


def after(state: State, event: Event) -> State:
    """The state that an event leads to.

    >>> after(State.STARTUP, Event.TLS_BEGINS)
    <State.SECURING: 2>
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise ImpossibleTransition(f"{event.name} in state {state.name}") from None
