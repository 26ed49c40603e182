"""A request that came unannounced: made by a function of the client's, by EXECUTE, by DO.

PostgreSQL is already past the statement. In a transaction of the client's, or where the client has not sent
Sync yet, there is still time. In autocommit there is none: the commit fails with HW002, PostgreSQL undoes
everything, and the kept messages of the batch run once more inside a transaction of ours, without repeating to
the client what it already has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from catalog.session import SqlError
from server.intercept.base import COMPLETIONS, Refused
from server.intercept.extended import ExtendedInterceptor
from server.intercept.relayed_session import BackendError
from server.intercept.simple import SimpleInterceptor
from server.protocol import messages as m
from server.protocol.batches import Batch
from server.protocol.executed import Executed, followed, prepared_again
from server.protocol.framing import WHOLE

_TOO_LATE = SqlError(
    "0A000",
    "cannot carry out the engine request of this statement outside a transaction block",
    hint="Run it inside a transaction block, or name the function in the statement's own text.",
)


@dataclass(slots=True)
class _Rest:
    """What is left of the answer to the oldest batch, held until it is known what becomes of it."""

    batch: Batch
    ahead: bool
    """Whether the client has sent more behind the batch."""
    in_block: bool
    """Whether it runs in a transaction block: what that has done before cannot be repeated."""
    seen: int
    """Messages of the answer that the client already has."""
    repeatable: bool = False
    """Whether the batch may be run again."""
    left: bool = False
    """Whether its commit has failed over the request."""
    answers: deque[tuple[int, bytes]] = field(default_factory=deque)
    size: int = 0

    def too_long(self, more: int) -> Iterator[tuple[int, bytes]]:
        """Take out what is held beyond 1 MiB, behind so many bytes more: the client gets it early."""
        self.size += more
        while self.size > WHOLE and len(self.answers) > 1:
            self.repeatable = False
            kept, early = self.answers.popleft()
            self.size -= len(early)
            yield kept, early

    def given(self) -> None:
        """The client has got all that was held."""
        self.answers.clear()
        self.size, self.repeatable = 0, False


class ReplayInterceptor(ExtendedInterceptor):
    everything = True

    async def take_over(self) -> None:
        """Take over in the middle of the answer of the oldest batch."""
        self.dialogue.requested = True
        if not self.traffic.outstanding:
            await self._in_time()
            return
        while self.dialogue.requested and self.traffic.outstanding:
            await self._answered()
        if self.dialogue.requested:
            await self._in_time()

    async def _in_time(self) -> None:
        """The batch's Sync has not been sent: nothing is committed yet."""
        traffic = self.traffic
        if traffic.batch is None:
            return
        self.string = b"".join(traffic.batch.raw or ())
        while traffic.client.skip:  # in the middle of a long message
            _, piece = await self.dialogue.next_from_client()
            await self.send(piece)
        await self.send(m.FLUSH_MESSAGE)
        while traffic.owes_in_batch() and not self.skipping:
            kind, data = await self.dialogue.next_from_backend()
            await self.release()
            if kind == m.COMMAND_COMPLETE:
                self._completed(data)
                traffic.completed()
                continue
            if kind == m.ERROR:
                self.skipping = True
                traffic.read(kind, data[5:])
                data = self.explained(data)
            elif kind in b"123TnIs":
                traffic.completed()
            await self.give(kind, data)
            if kind == m.COPY_IN:
                await self._copy()
                await self.send(m.FLUSH_MESSAGE)
        if not self.skipping:
            try:
                self.status = self.status_in_batch()
            except Refused as error:
                await self.refuse(error)
            else:
                await self.turn()
        await self.release()
        await self.run_batch()

    async def _copy(self) -> None:
        """PostgreSQL wants COPY data, which the client may have sent already."""
        self.traffic.begin_copy()
        if self.traffic.copying:
            await self.pump_copy()
            self.traffic.end_copy()

    async def _answered(self) -> None:
        """The batch has been sent to its end: hold what is left of its answer until it is known what it was."""
        traffic = self.traffic
        head = traffic.oldest()
        ahead = len(traffic.outstanding) > 1 or traffic.batch is not None or bool(traffic.client.skip)
        rest = _Rest(head, ahead, traffic.status != m.IDLE, traffic.seen)
        rest.repeatable = head.raw is not None and not traffic.rows and not ahead and not rest.in_block
        if await self._hold(rest):
            await self._conclude(rest)

    async def _hold(self, rest: _Rest) -> bool:
        """Read what is left of the answer. False if the batch goes on, since PostgreSQL has ignored its end."""
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                return True
            if kind == m.ERROR and m.sqlstate_of(data[5:]) == m.REQUEST_LEFT:
                rest.left = True
                continue
            rest.answers.append((kind, data))
            if kind == m.COPY_IN:
                await self._copy_behind(rest)
                if not self.traffic.outstanding:  # PostgreSQL has ignored the Sync
                    await self._in_time()
                    return False
                continue
            if kind == m.ERROR:
                self.traffic.read(kind, data[5:])
                if not self.traffic.outstanding:  # PostgreSQL ignores a Query behind it, and waits for a Sync
                    await self._fail_up_to_sync(rest)
                    return False
            if kind in COMPLETIONS:
                self.traffic.completed()
            for early in rest.too_long(len(data)):
                await self.give(*early)

    async def _copy_behind(self, rest: _Rest) -> None:
        """PostgreSQL wants COPY data behind what is held."""
        for answer in rest.answers:
            await self.give(*answer)
        rest.given()
        await self._copy()

    async def _fail_up_to_sync(self, rest: _Rest) -> None:
        """The batch has failed, and its Sync has not been sent."""
        for answer in rest.answers:
            await self._said(*answer)
        await self.release()
        self.skipping = True
        self.dialogue.requested = False
        await self.run_batch()

    async def _conclude(self, rest: _Rest) -> None:
        """The batch has been answered to its end: carry out its request, if it is not too late."""
        if rest.left and rest.in_block:
            await self._refuse_left(rest, SqlError(m.REQUEST_LEFT, ""))
            return
        if rest.left:
            await self._left_behind(rest)
            return
        failed = any(kind == m.ERROR for kind, _ in rest.answers)
        for answer in rest.answers:
            await self._said(*answer)
        # Where more has been sent already, the request is carried out when that has been answered, too.
        if self.status == m.IN_TRANSACTION and not failed and not rest.ahead:
            self.string = b"".join(rest.batch.raw or ())
            await self.carry_out()
        if self.status == m.IDLE:
            self.dialogue.requested = False
        await self.release()
        await self._ready()

    async def _said(self, kind: int, data: bytes) -> None:
        """Let the client have what was held, and this, but for a CommandComplete."""
        await self.release()
        if kind == m.COMMAND_COMPLETE:
            self.traffic.note_tag(data[5:])
            self.held = data
        else:
            await self.give(kind, self.explained(data) if kind == m.ERROR else data)

    async def _ready(self) -> None:
        """End the oldest batch; the next one may have begun."""
        await self.ready(self.status, oldest=True)

    async def _left_behind(self, rest: _Rest) -> None:
        """PostgreSQL has undone the batch, since its request was left behind: run it once more, if that may be."""
        self.dialogue.requested = False
        batch = b"".join(rest.batch.raw or ())
        prepared = frozenset() if rest.batch.simple else await asyncio.to_thread(prepared_again, batch)
        if not rest.repeatable or rest.batch.raw is None or prepared is None:
            await self._refuse_left(rest, _TOO_LATE)
            return
        self.dialogue.suppress = rest.seen
        self.dialogue.told = self.traffic.take_told()
        if rest.batch.simple:
            again = SimpleInterceptor(self.session, self.dialogue)
            self.session.interceptor = again
            text = batch[5:-1]
            await again.run_statements(text, alone=not (await again.survey(text, subscribing=False)).several)
        else:
            self.parsed = prepared
            try:
                await self._look_up_what_is_older(batch)
            except BackendError as error:  # cancelled, or out of time
                self.dialogue.suppress = 0
                await self.report(error)
                await self.ready(self.status)
                return
            self.dialogue.repeat(batch)
            await self.run_batch()

    async def _refuse_left(self, rest: _Rest, error: SqlError) -> None:
        """Let a batch whose commit has failed over a request fail with an error of ours."""
        self.dialogue.requested = False
        for kind, data in rest.answers:
            if kind != m.COMMAND_COMPLETE:
                await self.give(kind, data)
        await self.report(error)
        await self._ready()

    async def _look_up_what_is_older(self, batch: bytes) -> None:
        """Learn, before the batch is run again, what its statements are that it does not parse itself."""
        executed = Executed(self.traffic.unnamed)
        older: dict[bytes, bytes] = {}
        for kind, message in followed(batch):
            executed.follow(kind, message)
            name = executed.unknown(m.text_at(message, 5)) if kind == m.EXECUTE else None
            if name is not None and name not in older:
                older[name] = await self.look_up(name, flush=False)
        self.older = older
