"""What the processes of one server say to each other, over a pair of Unix sockets that nobody else can reach.

A message is its length (4 bytes, network order) and a pickle of ``(kind, number, subject, arguments)``. Both sides are
the same program, and the same user's. A descriptor goes along with the first byte of the message that is about it.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import structlog

log = structlog.get_logger(__name__)

Answers: TypeAlias = Mapping[str, Callable[..., Any]]
"""What is done with a message, by its subject. Where something was asked, what it returns, awaited if need be, is the
answer. Where a descriptor came along it is the last argument, a socket."""

_TOLD, _ASKED, _ANSWERED, _FAILED = range(4)
_LENGTH = 4
_CHUNK = 1 << 16


class ChannelClosed(ConnectionError):
    """The other process has ended, or ends."""


class Channel:
    """One end. `lost` is called once, when the other process is gone."""

    def __init__(self, connection: socket.socket, answers: Answers, lost: Callable[[], None]):
        self._socket = connection
        self._answers = answers
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        """Received, but not their messages yet."""
        self._waiting: deque[tuple[memoryview, socket.socket | None]] = deque()
        """To be sent."""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._answering: set[asyncio.Task[None]] = set()
        self.closed = False
        connection.setblocking(False)
        self._loop.add_reader(connection.fileno(), self._read)

    def tell(self, subject: str, *arguments: Any, passed: socket.socket | None = None) -> None:
        """Send a message. Never blocks. A socket that is passed on is closed here. Raises ChannelClosed."""
        self._send((_TOLD, 0, subject, arguments), passed)

    async def ask(self, subject: str, *arguments: Any) -> Any:
        """Send a message and wait for the answer. Raises ChannelClosed, and RuntimeError where it cannot be given."""
        self._number += 1
        number = self._number
        self._asked[number] = answer = self._loop.create_future()
        try:
            self._send((_ASKED, number, subject, arguments), None)
            return await answer
        finally:
            del self._asked[number]

    def close(self) -> None:
        """End it. Who waits for an answer gets ChannelClosed. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, passed in self._waiting:
            if passed is not None:
                passed.close()
        for descriptor in self._descriptors:
            socket.close(descriptor)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ChannelClosed("the other process has ended"))
        for task in self._answering:
            task.cancel()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, message: tuple[int, int, str, Any], passed: socket.socket | None) -> None:
        if self.closed:
            if passed is not None:
                passed.close()
            raise ChannelClosed("the other process has ended")
        content = pickle.dumps((*message, passed is not None), pickle.HIGHEST_PROTOCOL)
        self._waiting.append((memoryview(len(content).to_bytes(_LENGTH, "big") + content), passed))
        if len(self._waiting) == 1:
            self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                content, passed = self._waiting[0]
                if passed is None:
                    written = self._socket.send(content)
                else:
                    written = socket.send_fds(self._socket, [content], [passed.fileno()])
                    passed.close()
                self._waiting.popleft()
                if written < len(content):
                    self._waiting.appendleft((content[written:], None))
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError:
            self._end()
            return
        self._loop.remove_writer(self._socket.fileno())

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        if not data:
            self._end()
            return
        self._received += data
        while not self.closed and (content := self._next()) is not None:
            self._handle(*pickle.loads(content))

    def _next(self) -> bytes | None:
        """The next message that is complete."""
        end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "big")
        if len(self._received) < max(end, _LENGTH + 1):
            return None
        content = bytes(self._received[_LENGTH:end])
        del self._received[:end]
        return content

    def _handle(self, kind: int, number: int, subject: str, arguments: Any, passes: bool) -> None:
        if passes:
            arguments = (*arguments, socket.socket(fileno=self._descriptors.popleft()))
        if kind in (_ANSWERED, _FAILED):
            answer = self._asked.get(number)
            if answer is None or answer.done():
                return
            if kind == _ANSWERED:
                answer.set_result(arguments)
            else:
                answer.set_exception(RuntimeError(f"{subject}: {arguments}"))
        elif kind == _TOLD:
            self._answers[subject](*arguments)
        else:
            task = self._loop.create_task(self._answer(number, subject, arguments))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, subject: str, arguments: tuple[Any, ...]) -> None:
        try:
            found = self._answers[subject](*arguments)
            said = _ANSWERED, number, subject, await found if isinstance(found, Awaitable) else found
        except Exception as error:
            log.exception("a process of this server could not be answered", subject=subject)
            said = _FAILED, number, subject, str(error)
        if not self.closed:
            self._send(said, None)

    def _end(self) -> None:
        if not self.closed:
            self.close()
            self._lost()
