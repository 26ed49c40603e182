"""A portal's parameters as literals: PostgreSQL itself reads the values that the client has bound, and writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.subscribe import CLIENT_SETTINGS, AsOf, Envelope, Subscribe
from server.protocol import messages as m
from server.protocol import values
from server.protocol.lexer import tokens
from server.protocol.subscribe_syntax import Piece, Subscription
from server.request_session import CLEAR, NAME, RelayedSession, run_by_name

if TYPE_CHECKING:
    from server.subscriptions.subscriber import Subscriber

_TYPE_NAMES = (
    "SELECT pg_catalog.format_type(t::pg_catalog.oid, -1)"
    " FROM pg_catalog.unnest($1::pg_catalog.int8[]) WITH ORDINALITY AS u(t, n) ORDER BY n"
)
_PASSED_ON = (*CLIENT_SETTINGS, "standard_conforming_strings")


async def type_names(session: RelayedSession, types: Sequence[int]) -> list[str]:
    """The names of types by their oids, as a cast takes them."""
    return [str(name) for (name,) in await session.fetch(_TYPE_NAMES, list(types))]


async def of(subscriber: Subscriber, session: RelayedSession, types: Sequence[int], parameters: bytes) -> list[str]:
    """One literal for each parameter, in parentheses. ``parameters`` is what Bind says about them."""
    if not types:
        return []
    names = await type_names(session, types)
    client = session.before["client_encoding"]
    declared = m.INT16.pack(len(types)) + b"".join(map(m.INT32.pack, types))
    asking = b"SELECT " + b", ".join(b"$%d" % n for n in range(1, len(types) + 1))
    bound = m.message(m.BIND, NAME + b"\0" + NAME + b"\0" + parameters + m.INT16.pack(0))
    messages = (
        _encoding(client)  # in which the client has sent them
        + (CLEAR + m.parse(NAME, asking, declared) + bound + m.execute(NAME) + CLEAR)
        + _encoding("UTF8")
    )
    answers = await subscriber.exchange(messages)
    rows = [data for kind, data in answers if kind not in b"123CZnt"]
    found = values.row(b"".join(rows[1:-1]), [str] * len(types), values.codec(client))
    return [literal(value, name) for value, name in zip(found, names, strict=True)]


def _encoding(name: str) -> bytes:
    command = b"SELECT pg_catalog.set_config('client_encoding', '" + name.encode("ascii") + b"', true)"
    return run_by_name(command)


def literal(value: str | None, type_name: str) -> str:
    """
    >>> literal("it's", "text"), literal(None, "integer")
    ("(E'it''s'::text)", '(NULL::integer)')
    """
    if value is None:
        return f"(NULL::{type_name})"
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"(E'{escaped}'::{type_name})"


def put_in(piece: Piece, literals: Sequence[str], encoding: str) -> str:
    """The text of a piece with literals in place of its parameters.

    >>> put_in(Piece(0, b"select $1, '$1' where a < $2"), ["(1)", "(2)"], "utf-8")
    "select (1), '$1' where a < (2)"
    """
    if not literals:
        return piece.text.decode(encoding, "replace")
    parts, end = [], 0
    for token in tokens(piece.text):
        if token.kind == "number" and token.word.startswith("$"):
            number = int(token.word[1:])
            if 0 < number <= len(literals):
                parts += [piece.text[end : token.start].decode(encoding, "replace"), literals[number - 1]]
                end = token.end
    return "".join(parts) + piece.text[end:].decode(encoding, "replace")


def asked(subscription: Subscription, literals: Sequence[str], encoding: str, settings: Mapping[str, str]) -> Subscribe:
    """What the hub is asked for. ``encoding`` is Python's name of the client's."""

    def text(piece: Piece) -> str:
        return put_in(piece, literals, encoding)

    return Subscribe(
        query=("TABLE " if subscription.named else "") + text(subscription.query),
        envelope=Envelope(
            subscription.envelope, tuple(key.text.decode(encoding, "replace") for key in subscription.keys)
        ),
        order_by=text(subscription.order_by) if subscription.order_by else None,
        snapshot=subscription.snapshot,
        progress=subscription.progress,
        as_of=AsOf(text(subscription.as_of), subscription.at_least) if subscription.as_of else None,
        up_to=text(subscription.up_to) if subscription.up_to else None,
        settings={name: value for name, value in settings.items() if name in _PASSED_ON},
    )
