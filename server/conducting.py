"""Which conductor a session gets for what its client has sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.conductor_extended import ExtendedConductor
from server.conductor_simple import SimpleConductor
from server.conductor_unnamed import UnnamedConductor
from server.dialogue import Dialogue
from server.protocol import messages as m
from server.protocol.framing import CONTINUATION
from server.protocol.watch import Attention

if TYPE_CHECKING:
    from server.session import RelaySession


async def conduct(session: RelaySession, dialogue: Dialogue, attention: Attention) -> None:
    """Conduct the session until its batch has been answered."""
    if attention is Attention.REQUEST_MADE:
        session.conductor = unnamed = UnnamedConductor(session, dialogue)
        await unnamed.take_over()
        return
    kind, data = await dialogue.next_from_client()
    if kind == m.QUERY:
        session.conductor = simple = SimpleConductor(session, dialogue)
        await simple.run(data, attention)
        if not simple.own:
            return
        session.conductor = behind = ExtendedConductor(session, dialogue)  # the transaction goes on up to a Sync
        behind.go_on_from(simple)
        await behind.run_batch()
    else:
        assert kind != CONTINUATION
        session.conductor = extended = ExtendedConductor(session, dialogue)
        await extended.run(kind, data, attention)
