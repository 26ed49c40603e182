"""A portal's parameters as literals: PostgreSQL itself reads the values that the client has bound, and writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from catalog.session import SqlError
from engine.subscribe import CLIENT_SETTINGS, AsOf, Envelope, Subscribe
from server.intercept.relayed_session import CLEAR, NAME, RelayedSession, run_by_name
from server.protocol import messages as m
from server.protocol import values
from server.protocol.lexer import tokens
from server.protocol.statements.subscribe_syntax import Piece, Subscription
from sql.base.text import escape_string

Exchange = Callable[[bytes], Awaitable[list[tuple[int, bytes]]]]
"""Sends messages with Sync and reads all answers. Raises BackendError."""

_TYPE_NAMES = (
    "SELECT pg_catalog.format_type(t::pg_catalog.oid, -1)"
    " FROM pg_catalog.unnest($1::pg_catalog.int8[]) WITH ORDINALITY AS u(t, n) ORDER BY n"
)


async def type_names(session: RelayedSession, types: Sequence[int]) -> list[str]:
    """The names of types by their oids, as a cast takes them."""
    return [str(name) for (name,) in await session.fetch(_TYPE_NAMES, list(types))]


async def of(exchange: Exchange, session: RelayedSession, types: Sequence[int], parameters: bytes) -> list[str]:
    """One literal for each parameter, in parentheses. ``parameters`` is what Bind says about them, if there was one."""
    if not types:
        return []
    if not parameters:
        raise SqlError("42P02", "there is no parameter $1")
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
    answers = await exchange(messages)
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
    return f"({escape_string(value)}::{type_name})"


def read_anywhere(
    piece: Piece, literals: Sequence[str] = (), *, backslashes: bool = False, client_encoding: str = "UTF8"
) -> str:
    """The text of a piece as it means the same in any session: with literals in place of its parameters.

    ``backslashes`` is true where the client's ``standard_conforming_strings`` is off: then a plain string that has a
    backslash becomes one in which that escapes. Raises SqlError 22021.

    >>> read_anywhere(Piece(0, b"select $1, '$1' where a < $2"), ["(1)", "(2)"])
    "select (1), '$1' where a < (2)"
    >>> read_anywhere(Piece(0, rb"select 'it\\'s $1'"), ["(1)"], backslashes=True)
    "select E'it\\\\'s $1'"
    """
    parts, end = [], 0
    for token in (
        tokens(piece.text, backslashes=backslashes, encoding=client_encoding) if literals or backslashes else ()
    ):
        instead = None
        if token.kind == "number" and token.word.startswith("$"):
            digits = token.word[1:].lstrip("0")
            number = int(digits) if 0 < len(digits) <= len(str(len(literals))) else 0
            instead = literals[number - 1] if 0 < number <= len(literals) else None
        elif backslashes and token.kind == "string" and "\\" in token.word and token.word[0] in "'nN":
            string = decoded(piece.text[token.start : token.end], client_encoding)
            instead = f"E{string}" if string.startswith("'") else f"nchar E{string[1:]}"
        if instead is not None:
            parts += [decoded(piece.text[end : token.start], client_encoding), instead]
            end = token.end
    return "".join(parts) + decoded(piece.text[end:], client_encoding)


def decoded(text: bytes, client_encoding: str) -> str:
    """What the client has written. Raises SqlError 22021 where that cannot be said for certain.

    >>> decoded(b"\\xe4", "LATIN1"), decoded(b"\\xe4", "SQL_ASCII")
    Traceback (most recent call last):
    ...
    catalog.session.SqlError: text in client_encoding SQL_ASCII cannot be read for a subscription
    """
    try:
        return text.decode("ascii" if client_encoding in values.UNREADABLE else values.codec(client_encoding))
    except UnicodeDecodeError:
        raise SqlError(
            "22021",
            f"text in client_encoding {client_encoding} cannot be read for a subscription",
            hint="SET client_encoding = 'UTF8'.",
        ) from None


def asked(subscription: Subscription, literals: Sequence[str], settings: Mapping[str, str]) -> Subscribe:
    """What the hub is asked for. ``settings`` are the client's. Raises SqlError."""
    encoding = settings["client_encoding"]
    backslashes = settings["standard_conforming_strings"] == "off"

    def text(piece: Piece) -> str:
        return read_anywhere(piece, literals, backslashes=backslashes, client_encoding=encoding)

    return Subscribe(
        query=("TABLE " if subscription.named else "") + text(subscription.query),
        envelope=Envelope(subscription.envelope, tuple(decoded(key.text, encoding) for key in subscription.keys)),
        order_by=text(subscription.order_by) if subscription.order_by else None,
        snapshot=subscription.snapshot,
        progress=subscription.progress,
        as_of=AsOf(text(subscription.as_of), subscription.at_least) if subscription.as_of else None,
        up_to=text(subscription.up_to) if subscription.up_to else None,
        settings={name: value for name, value in settings.items() if name in CLIENT_SETTINGS},
    )
