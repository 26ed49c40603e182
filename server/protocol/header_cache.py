"""Shapes: where the messages of a chunk begin, remembered, so that the next chunk of the same shape is known at once.

A client repeats its statements, and so the chunks of a session repeat their shapes: the same kinds of messages, of the
same lengths. A shape proves as much as walking from header to header does, since every header is compared, but it is
one comparison in C. :class:`Rows` does the same for the rows of a long result, whose lengths are few.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from server.protocol.messages import COMMAND_COMPLETE, DATA_ROW, HEADER

_MOST = 16
"""Shapes that are remembered for one direction of a session, and messages that one may have."""
_TRIES = 64
"""Shapes learnt without asking whether they come again."""

_LONGEST = 255
"""Longest row in a pattern, by the length in its header: the other three bytes of it are zero."""
_LENGTHS = 40
"""Most lengths in a pattern: with many more, walking is as fast."""
_LEARNING, _WALKING, _MISSES = 1000, 50_000, 200
"""Rows whose lengths are collected for a pattern; rows walked over where they are too many; rows a pattern may miss."""

_unpack = HEADER.unpack_from


class HeaderCache:
    """Shapes of chunks that consist of a few whole messages, by the chunk's length.

    >>> shapes = HeaderCache()
    >>> for _ in range(2):
    ...     shapes.know(b"1\\0\\0\\0\\4Z\\0\\0\\0\\5I") or shapes.learn(b"1\\0\\0\\0\\4Z\\0\\0\\0\\5I")
    >>> shapes.know(b"1\\0\\0\\0\\4Z\\0\\0\\0\\5T"), shapes.know(b"Z\\0\\0\\0\\5I1\\0\\0\\0\\4")
    (True, False)
    """

    __slots__ = ("_known", "_learnt", "_lengths")

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[bytes], tuple[Any, ...]], tuple[Any, ...]]] = {}
        self._lengths: set[int] = set()
        self._learnt = 0

    def know(self, data: bytes) -> bool:
        """Whether the chunk has the shape of one that was learnt: the same headers in the same places."""
        shape = self._known.get(len(data))
        return shape is not None and shape[0](data) == shape[1]

    def learn(self, data: bytes) -> None:
        """Remember a chunk's headers, and the first letters of command tags, if its length was met before."""
        end = len(data)
        if end not in self._lengths:
            if len(self._lengths) >= 4 * _MOST:
                self._lengths.clear()
            self._lengths.add(end)
            return
        self._learnt += 1
        if self._learnt > _TRIES and self._learnt % _MOST:  # they hardly ever come again here
            return
        layout, position = [">"], 0
        while position < end:
            kind, length = _unpack(data, position)
            fixed = 7 if kind == COMMAND_COMPLETE else 5
            position += length + 1
            if length + 1 < fixed or position > end or len(layout) > _MOST:
                return
            layout.append(f"{fixed}s{length + 1 - fixed}x")
        unpack = struct.Struct("".join(layout)).unpack
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[end] = (unpack, unpack(data))


class Rows:
    """Finds the end of rows, by a regular expression of the lengths that the rows of this session have.

    >>> rows = Rows()
    >>> rows.past(b"D\\0\\0\\0\\4D\\0\\0\\0\\6\\0\\0C\\0\\0\\0\\5x", 0, 13)
    12
    """

    __slots__ = ("_left", "_lengths", "_match")

    def __init__(self) -> None:
        self._match: Callable[[bytes, int], Any] | None = None
        self._lengths: set[int] | None = set()
        """Being collected; None where there is a pattern, or cannot be one."""
        self._left = _LEARNING
        """Rows until that is thought over."""

    def past(self, data: bytes, position: int, last: int) -> int:
        """Where the first message begins that is not a row, or whose header begins behind ``last``.

        At ``position`` there is a row, whole or not.
        """
        if self._match is not None:
            return self._past_known(data, position, last)
        begin = position
        lengths = self._lengths
        kind, length = _unpack(data, position)
        rows = 0
        if lengths is None:
            while kind == DATA_ROW and (position := position + 1 + length) <= last:
                kind, length = _unpack(data, position)
            rows = (position - begin) // 64  # roughly: it only has to come to an end
        else:
            while kind == DATA_ROW:
                rows += 1
                lengths.add(length)
                position += 1 + length
                if position > last:
                    break
                kind, length = _unpack(data, position)
        self._left -= rows
        if self._left <= 0:
            self._think()
        return position

    def _past_known(self, data: bytes, position: int, last: int) -> int:
        match = self._match
        assert match is not None
        while (position := match(data, position).end()) <= last:
            kind, length = _unpack(data, position)
            if kind != DATA_ROW:
                break
            position += 1 + length
            if position > last:
                break
            self._left -= 1
            if self._left <= 0:
                self._think()
                return self.past(data, position, last) if data[position] == DATA_ROW else position
        return position

    def _think(self) -> None:
        """Make a pattern, or see that there is none, or begin to collect lengths again."""
        if self._lengths is None:
            self._match, self._lengths, self._left = None, set(), _LEARNING
        elif len(self._lengths) > _LENGTHS or not 4 <= min(self._lengths) <= max(self._lengths) <= _LONGEST:
            self._lengths, self._left = None, _WALKING
        else:
            rows = b"|".join(re.escape(bytes([n])) + b".{%d}" % (n - 4) for n in sorted(self._lengths))
            self._match = re.compile(rb"(?:D\0\0\0(?:" + rows + rb"))*+", re.DOTALL).match
            self._lengths, self._left = None, _MISSES
