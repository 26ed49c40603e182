"""Which interceptor a session gets for what its client has sent."""

from __future__ import annotations

from server.intercept.extended import ExtendedInterceptor
from server.intercept.intercepted_session import InterceptedSession
from server.intercept.message_stream import MessageStream
from server.intercept.replay import ReplayInterceptor
from server.intercept.simple import SimpleInterceptor
from server.protocol import messages as m
from server.protocol.framing import CONTINUATION
from server.protocol.statement_registry import Attention


async def intercept(session: InterceptedSession, dialogue: MessageStream, attention: Attention) -> None:
    """Intercept the session until its batch has been answered."""
    if attention is Attention.REQUEST_MADE:
        session.interceptor = unnamed = ReplayInterceptor(session, dialogue)
        await unnamed.take_over()
        return
    kind, data = await dialogue.next_from_client()
    if kind == m.QUERY:
        session.interceptor = simple = SimpleInterceptor(session, dialogue)
        await simple.run(data, attention)
        if not simple.own:
            return
        session.interceptor = behind = ExtendedInterceptor(session, dialogue)  # the transaction goes on up to a Sync
        behind.go_on_from(simple)
        await behind.run_batch()
    else:
        assert kind != CONTINUATION
        session.interceptor = extended = ExtendedInterceptor(session, dialogue)
        await extended.run(kind, data, attention)
