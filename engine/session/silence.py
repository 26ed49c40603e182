"""Peers that are gone without a word, and acknowledge nothing of what is on its way to them.

Keepalive asks only where nothing is on its way; else the kernel goes on sending for 15 minutes and more.
TCP_USER_TIMEOUT would limit that. But Linux applies it also to a peer whose window is closed, and which answers every
probe of it (`tcp_probe_timer`; measured on 6.18): it would cut off a client that reads slowly, and a COPY that waits
for a lock. So the server asks the kernel for what tells the two apart: when the last acknowledgement came, and what has
been sent since.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Protocol

UNANSWERED = 3
"""So many segments in a row without an acknowledgement are no accident. Closed windows are probed every two minutes."""

_APART = 0.1
"""Seconds between two segments, at least: a retransmission comes after 0.2 s or later."""
_INFO = struct.Struct("=8B24I3Q")
"""The beginning of Linux's `struct tcp_info`, since 4.1."""
_RETRANSMITS, _PROBES, _UNACKED, _LAST_SENT, _LAST_ACK, _BYTES_ACKED = 2, 3, 12, 17, 20, 34
_KNOWN = sys.platform == "linux"


class Socket(Protocol):
    """What is asked; asyncio's and uvloop's sockets are not `socket.socket`."""

    @property
    def family(self) -> int: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Transmission:
    """What the kernel says of a connection at one moment, in seconds of the monotonic clock."""

    at: float
    acknowledged_at: float
    """When the last acknowledgement came, be it of nothing new."""
    sent_at: float
    """When data were sent last, or sent again."""
    unacknowledged: bool = True
    """Whether segments are on their way."""
    acknowledged: int = 0
    """Bytes that have been."""
    retransmits: int = 0
    """How many times in a row segments were sent again, since bytes were acknowledged."""
    probes: int = 0
    """Probes of a closed window, and of keepalive, since the last acknowledgement."""

    @property
    def unanswered(self) -> bool:
        """Whether data were sent since the last acknowledgement."""
        return self.unacknowledged and self.sent_at > self.acknowledged_at


class Silence:
    """For how long a peer has acknowledged nothing of what was sent to it, as far as it was looked at."""

    def __init__(self) -> None:
        self._first: Transmission | None = None
        """The first look in a row at which the peer owed an acknowledgement."""
        self._last: Transmission | None = None
        self._unanswered = 0

    def lasts(self, seen: Transmission) -> float:
        """Seconds since the peer was first seen to owe an acknowledgement; 0 up to the third segment without one.

        >>> silence = Silence()
        >>> [silence.lasts(Transmission(at, acknowledged_at=0, sent_at=at)) for at in (1, 2, 4)]
        [0.0, 0.0, 3]

        A segment that is acknowledged, but not taken, since the window is closed, is no silence. If what comes in is
        acknowledgements of nothing new while segments are sent again, then these do not arrive.

        >>> [silence.lasts(Transmission(at, acknowledged_at=at - 1, sent_at=at)) for at in (10, 20, 40)]
        [0.0, 0.0, 0.0]
        >>> silence = Silence()
        >>> seen = [Transmission(at, acknowledged_at=at - 1, sent_at=at, retransmits=at) for at in (1, 2, 3, 4)]
        >>> [silence.lasts(each) for each in seen]
        [0.0, 0.0, 2, 3]
        """
        first, last = self._first, self._last
        if not (seen.unanswered or seen.retransmits or seen.probes):
            self._first = self._last = None
            return 0.0
        if first is None or last is None or _has_answered(first, last, seen):
            first, self._first, self._unanswered = seen, seen, 1
        elif seen.unanswered and seen.sent_at > last.sent_at + _APART:
            self._unanswered += 1
        self._last = seen
        in_a_row = max(self._unanswered, seen.probes, seen.retransmits - first.retransmits)
        return seen.at - first.at if in_a_row >= UNANSWERED else 0.0


def silent_for(silence: Silence, transport: asyncio.Transport | None) -> float:
    """Seconds for which the peer of a connection, of which `silence` was told, acknowledges nothing; 0 if it does."""
    if transport is None or transport.is_closing():
        return 0.0
    try:
        seen = transmission(transport.get_extra_info("socket"))
    except OSError:  # it has gone
        return 0.0
    return silence.lasts(seen) if seen is not None else 0.0


def _has_answered(first: Transmission, last: Transmission, seen: Transmission) -> bool:
    if seen.acknowledged != first.acknowledged:
        return True
    return seen.retransmits <= first.retransmits and seen.acknowledged_at > last.acknowledged_at + _APART


def transmission(connection: Socket) -> Transmission | None:
    """What the kernel says of a connection; None where it is not TCP, or no kernel that says it. Raises OSError."""
    if not _KNOWN or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    info = _INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    now = time.monotonic()
    return Transmission(
        now,
        acknowledged_at=now - info[_LAST_ACK] / 1000,
        sent_at=now - info[_LAST_SENT] / 1000,
        unacknowledged=info[_UNACKED] > 0,
        acknowledged=info[_BYTES_ACKED],
        retransmits=info[_RETRANSMITS],
        probes=info[_PROBES],
    )
