"""A session message by message: what an intercepted session's coroutine reads from and writes to both sides.

While intercepted, both sides only fill their framers; :class:`MessageStream` takes messages out of them, one at a time,
and sees to it that notices, notifications and parameter changes reach the client whenever they come, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from catalog.pinned_settings import PINNED
from server.protocol import messages as m
from server.protocol.error_rewriting import is_own_debugging
from server.protocol.framing import CONTINUATION, WHOLE, Framer, begins
from server.protocol.traffic import Traffic
from server.protocol.values import codec
from server.relay.endpoints import Endpoint, PauseReason

PINS = {**PINNED, "DateStyle": "ISO", "client_encoding": "UTF8"}
"""What injected work sets for itself. DateStyle keeps its order of day and month: queries are read by it."""


_TURN = 200
"""Messages that are read in one turn of the event loop."""


class BackendGone(Exception):
    """PostgreSQL has closed the connection."""


class MessageStream:
    """Messages of both sides of one intercepted session. ``settled`` waits until no cancel request is on its way."""

    def __init__(self, client: Endpoint, backend: Endpoint, traffic: Traffic, settled: Callable[[], Awaitable[None]]):
        self._client = client
        self._backend = backend
        self._traffic = traffic
        self._settled = settled
        self.requested = False
        """Whether a request has been made that has not been carried out."""
        self.pinned = False
        """Whether injected work has its own parameters in force, of which the client must not learn."""
        self.backend_gone = False
        self.told: list[bytes] = []
        """Bodies of notices that the client has got from a first run of the batch."""
        self.suppress = 0
        """Answers that the client already has from a first run of the batch."""
        self.swallow: str | None = None
        """SQLSTATE of a notice that the client would not get without us."""
        self._ahead: Framer | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._taken = 0
        self._news = asyncio.Event()

    # -- filled by the session -------------------------------------------------------------------------------

    def from_client(self, data: bytes) -> None:
        framer = self._traffic.client
        framer.feed(data)
        if framer.size > WHOLE:
            self._client.hold(PauseReason.QUEUE)
        self._news.set()

    def from_backend(self, data: bytes) -> None:
        framer = self._traffic.backend
        framer.feed(data)
        if framer.size > WHOLE:
            self._backend.hold(PauseReason.QUEUE)
        self._news.set()

    def backend_closed(self) -> None:
        self.backend_gone = True
        self._news.set()

    def repeat(self, raw: bytes) -> None:
        """Let these bytes come from the client before anything else does."""
        self._ahead = Framer(self._traffic.client.lengths)
        self._ahead.feed(raw)

    def leave(self) -> None:
        """The session passes bytes again: what was read too early goes back."""
        if self._waiting:
            early = b"".join(data for _, data in self._waiting)
            self._traffic.backend.put_back(early)

    # -- reading ---------------------------------------------------------------------------------------------

    async def next_from_client(self) -> tuple[int, bytes]:
        """The client's next message or piece. What PostgreSQL says meanwhile by itself goes to the client."""
        await self._take_turns()
        if self._ahead is not None:
            found = self._ahead.next()
            if found is not None:
                return found
            self._ahead = None
        while True:
            self._news.clear()
            found = self._traffic.client.next()
            if found is not None:
                return found
            self._client.release(PauseReason.QUEUE)
            self._pass_what_is_said()
            await self._news.wait()

    async def copy_data(self) -> tuple[int, bytes] | None:
        """What a client that copies sends next: all CopyData messages there are, or one of another type, or a piece.

        None as soon as PostgreSQL has answered: it does so before the end of the data where it has found an error.
        """
        client = self._traffic.client
        await self._take_turns()
        while True:
            self._news.clear()
            self._pass_what_is_said()
            if self._waiting and not client.skip:  # a message that has begun is passed on to its end
                return None
            if data := client.run_of(m.COPY_DATA):
                return m.COPY_DATA, data
            if (found := client.next()) is not None:
                return found
            self._client.release(PauseReason.QUEUE)
            await self._news.wait()

    async def quiet(self) -> None:
        """While PostgreSQL has nothing to do: pass on what it says by itself, until the client says goodbye.

        Raises BackendGone, ProtocolViolation.
        """
        position = 0
        while True:
            self._news.clear()
            self._pass_what_is_said()
            goodbye, position = begins(self._traffic.client.partial, m.TERMINATE, position)
            if goodbye:
                return
            await self._news.wait()

    def _pass_what_is_said(self) -> None:
        while (spoken := self._from_framer()) is not None:
            if not self._pass_asynchronous(*spoken):
                self._waiting.append(spoken)
        if self.backend_gone:
            raise BackendGone

    async def next_from_backend(self) -> tuple[int, bytes]:
        """PostgreSQL's next message or piece that is not asynchronous. Raises BackendGone."""
        await self._take_turns()
        if self._waiting:
            return self._waiting.popleft()
        while True:
            self._news.clear()
            found = self._from_framer()
            if found is None:
                self._backend.release(PauseReason.QUEUE)
                if self.backend_gone:
                    raise BackendGone
                await self._news.wait()
            elif not self._pass_asynchronous(*found):
                return found

    async def _take_turns(self) -> None:
        """Let the server's other clients have their turns, however many messages are there already."""
        self._taken += 1
        if self._taken % _TURN == 0:
            await asyncio.sleep(0)

    def _from_framer(self) -> tuple[int, bytes] | None:
        return self._traffic.backend.next()

    def _pass_asynchronous(self, kind: int, data: bytes) -> bool:
        if kind == m.NOTICE:
            sqlstate = m.sqlstate_of(data[5:])
            if sqlstate == m.REQUEST_MADE:
                self.requested = True
            elif sqlstate != self.swallow and not self._is_own_debugging(data[5:]):
                self._tell(data)
        elif kind == m.NOTIFICATION:
            self._client.write(data)
        elif kind == m.PARAMETER_STATUS:
            self._pass_parameter(data)
        elif kind == m.ERROR and m.is_fatal(data[5:]):
            self._traffic.dismissed()
            self._client.write(data)
        else:
            return False
        return True

    def _tell(self, notice: bytes) -> None:
        """Let the client have a notice, unless it has it already of a first run."""
        body = notice[5:]
        if body in self.told:
            self.told.remove(body)
        else:
            self._traffic.note_told(body)
            self._client.write(self.for_client(notice))

    def _is_own_debugging(self, body: bytes) -> bool:
        return (self.pinned and m.is_debugging(body)) or (self._traffic.trusted and is_own_debugging(body))

    def _pass_parameter(self, data: bytes) -> None:
        name = m.text_at(data, 5)
        value = m.text_at(data, 6 + len(name))
        known = self._traffic.parameters.get(name.decode("ascii", "replace"))
        ours = self.pinned and name.decode("ascii", "replace") in PINS
        if not ours and known != value.decode("utf-8", "replace"):
            self._traffic.read(m.PARAMETER_STATUS, data[5:])
            self._client.write(data)

    # -- writing ---------------------------------------------------------------------------------------------

    async def to_backend(self, data: bytes) -> None:
        """Write to PostgreSQL, once no cancel is on its way there and it takes bytes."""
        await self._settled()
        await self._backend.drained()
        if self.backend_gone:
            return
        self._backend.write(data)

    async def to_client(self, kind: int, data: bytes) -> None:
        """Write a message or a piece to the client, once it takes bytes, unless it already has it."""
        if self.suppress and kind not in (m.DATA_ROW, CONTINUATION):
            self.suppress -= 1
            return
        await self._client.drained()
        self._client.write(data)

    @property
    def client_encoding(self) -> str:
        """PostgreSQL's name of the encoding that the client has set."""
        return self._traffic.parameters.get("client_encoding", "UTF8")

    def for_client(self, report: bytes) -> bytes:
        """An error or notice of injected work in the client's encoding."""
        encoding = codec(self.client_encoding)
        if not self.pinned or encoding == "utf-8":
            return report
        fields = m.report_fields(report[5:])
        recoded = {k: v.decode("utf-8", "replace").encode(encoding, "replace") for k, v in fields.items()}
        return m.rebuild_report(report[0], recoded)
