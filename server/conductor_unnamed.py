"""Conducting a request that came unannounced: made by a function of the client's, by EXECUTE, by DO.

PostgreSQL is already past the statement. In a transaction of the client's, or where the client has not sent
Sync yet, there is still time. In autocommit there is none: the commit fails with HW002, PostgreSQL undoes
everything, and the kept messages of the batch run once more inside a transaction of ours, without repeating to
the client what it already has.
"""

from __future__ import annotations

from collections import deque

from catalog.session import SqlError
from server.conductor import Refused
from server.conductor_extended import ExtendedConductor
from server.conductor_simple import SimpleConductor
from server.protocol import messages as m
from server.protocol.framing import FRONTEND_LENGTHS, WHOLE, Framer

_TOO_LATE = SqlError(
    "0A000",
    "cannot carry out the engine request of this statement outside a transaction block",
    hint="Run it inside a transaction block, or name the function in the statement's own text.",
)


class UnnamedConductor(ExtendedConductor):
    everything = True

    async def take_over(self) -> None:
        """Take over in the middle of the answer of the oldest batch."""
        self.dialogue.requested = True
        if self.traffic.outstanding:
            await self._answered()
        else:
            await self._in_time()

    async def _in_time(self) -> None:
        """The batch's Sync has not been sent: nothing is committed yet."""
        traffic = self.traffic
        if traffic.batch is None:
            return
        while traffic.client.skip:  # in the middle of a long message
            _, piece = await self.dialogue.next_from_client()
            await self.send(piece)
        await self.send(m.FLUSH_MESSAGE)
        while traffic.received < traffic.batch.sent and not self.skipping:
            kind, data = await self.dialogue.next_from_backend()
            await self.release()
            if kind == m.COMMAND_COMPLETE:
                self._completed(data)
                traffic.received += 1
                continue
            if kind == m.ERROR:
                self.skipping = True
            elif kind in b"123TnIs":
                traffic.received += 1
            await self.give(kind, data)
        if not self.skipping:
            try:
                self.status = self.status_in_batch()
            except Refused as error:
                await self.refuse(error)
            else:
                await self.turn()
        await self.run_batch()

    async def _answered(self) -> None:
        """The batch has been sent to its end: hold what is left of its answer until it is known what it was."""
        traffic = self.traffic
        head = traffic.oldest()
        repeatable = head.raw is not None and not traffic.rows and len(traffic.outstanding) == 1
        seen = traffic.seen
        answers: deque[tuple[int, bytes]] = deque()
        size = 0
        left: bytes | None = None
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                break
            if kind == m.ERROR and m.sqlstate_of(data[5:]) == m.REQUEST_LEFT:
                left = data
                continue
            answers.append((kind, data))
            size += len(data)
            while size > WHOLE and len(answers) > 1:
                repeatable = False
                kept, early = answers.popleft()
                size -= len(early)
                await self.give(kept, early)
        if left is not None:
            await self._left_behind(answers, repeatable, head.raw, head.simple, seen)
            return
        failed = any(kind == m.ERROR for kind, _ in answers)
        for kind, data in answers:
            await self.release()
            if kind == m.COMMAND_COMPLETE:
                traffic.note_tag(data[5:])
                self.held = data
            else:
                await self.give(kind, data)
        ahead = len(traffic.outstanding) > 1 or traffic.batch is not None or traffic.client.skip
        if self.status == m.IN_TRANSACTION and not failed and not ahead:  # else the commit is going to be refused
            await self.carry_out()
        await self.release()
        await self.ready(self.status)

    async def _left_behind(
        self, answers: deque[tuple[int, bytes]], repeatable: bool, raw: list[bytes] | None, simple: bool, seen: int
    ) -> None:
        self.dialogue.requested = False
        if not repeatable or raw is None:
            for kind, data in answers:
                if kind != m.COMMAND_COMPLETE:
                    await self.give(kind, data)
            await self.report(_TOO_LATE)
            await self.ready(self.status)
            return
        self.dialogue.suppress = seen
        batch = b"".join(raw)
        if simple:
            again = SimpleConductor(self.session, self.dialogue)
            self.session.conductor = again
            text = batch[5:-1]
            await again.run_statements(text, alone=not (await again.survey(text, subscribing=False)).several)
        else:
            self.parsed = _named_statements(batch)
            self.dialogue.repeat(batch)
            await self.run_batch()


def _named_statements(batch: bytes) -> frozenset[bytes]:
    framer = Framer(FRONTEND_LENGTHS)
    framer.feed(batch)
    names: set[bytes] = set()
    while (found := framer.next()) is not None:
        kind, data = found
        if kind == m.PARSE and (name := m.text_at(data, 5)):
            names.add(name)
    return frozenset(names)
