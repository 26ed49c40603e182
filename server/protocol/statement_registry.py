"""Which statements and portals of a session somebody must look at: what their texts mention is kept by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from server.protocol import messages as m
from server.protocol.keyword_scan import NOTHING, Keyword, commits, mentions, sends, speaks_of_cursors


class Attention(Enum):
    NAMED_REQUEST = auto()
    """The next client message is a Query or Execute that names a request function."""
    LOAD = auto()
    """The next client message is a Parse that may be a statement of ours, which goes out as another."""
    SUBSCRIBE = auto()
    """The next client message is, or is about, a subscription, its prepared statement, portal or cursor."""
    DATABASE = auto()
    """The next client message is a Query or Execute that may drop, alter or copy a database."""
    COMMIT = auto()
    """The next client message is a Query or Execute that may commit; what comes before it may make a request yet."""
    REQUEST_MADE = auto()
    """The oldest unanswered batch has made a request without naming it."""


@dataclass(frozen=True, slots=True)
class Mentioning:
    """A statement that mentions something."""

    mention: Keyword
    text: bytes


@dataclass(slots=True)
class HiddenRequests:
    """Whether statements of a database may make engine requests without naming them. Its sessions share it."""

    possible: bool = False
    found: Callable[[], None] = lambda: None
    """Called when they become possible."""

    def expect(self) -> None:
        """Something has been found that may make them."""
        if not self.possible:
            self.possible = True
            self.found()


class StatementRegistry:
    """What the client's messages say about that."""

    def __init__(self) -> None:
        self.attention: Attention | None = None
        self._watching = True
        """Whether texts are looked at: not on a replication connection, which has the simple protocol only."""
        self.trusted = True
        """Whether the catalog is the server's. Where it is not, no function of it is called for the client."""
        self.statements: dict[bytes, Mentioning] = {}
        """Prepared statements that mention something, by name."""
        self.portals: dict[bytes, Mentioning] = {}
        """Portals of such statements, and cursors of subscriptions."""
        self.hidden = HiddenRequests()
        """Where they are possible, what commits waits for what comes before it."""
        self.committing: set[bytes] = set()
        """Prepared statements that commit, by name; some may be closed."""
        self._committing_portals: set[bytes] = set()
        self.failed = False
        """Whether the batch that is being answered has failed."""
        self.rolled_back = False
        """Whether cursors of subscriptions may have been lost by ROLLBACK TO SAVEPOINT."""
        self.sending = False
        """Whether the session has sent events to queues or made a register; its statements may be prepared, so it is
        taken to go on."""

    # -- as an interceptor says ------------------------------------------------------------------------------------

    def attend(self) -> Attention | None:
        """Somebody looks at what needs attention; returns why it does."""
        attention, self.attention = self.attention, None
        return attention

    def follow(self, kind: int, message: bytes) -> None:
        """Take note of a Parse, Bind or Close, or of the first piece of one, at which somebody looks anyway."""
        self.look(kind, message, 0, len(message))
        self.attention = None

    def keep_statement(self, name: bytes, mention: Keyword, text: bytes) -> None:
        """A prepared statement has been read closely: it mentions this. If that is nothing it is forgotten."""
        if mention is NOTHING:
            self.statements.pop(name, None)
        else:
            self.statements[name] = Mentioning(mention, text)

    def open_portal(self, name: bytes, text: bytes = b"") -> None:
        """There is a portal of a subscription, or a cursor, of this name."""
        self.portals[name] = Mentioning(Keyword.SUBSCRIBE, text)

    def close_portal(self, name: bytes) -> None:
        """There is no such portal any more, or none that matters here."""
        self.portals.pop(name, None)

    def lost_cursors_forgotten(self) -> None:
        """The cursors that ROLLBACK TO SAVEPOINT had undone have been closed."""
        self.rolled_back = False

    # -- as the client sends -----------------------------------------------------------------------------------------

    def look(self, kind: int, data: bytes, position: int, following: int) -> bool:
        """Follow which statement and portal mentions something; True in front of a message that needs attention."""
        at = position + 5
        if kind == m.PARSE:
            self.attention = self._parse(data, at, following)
        elif kind == m.BIND:
            self.attention = self._bind(data, at)
        elif kind == m.EXECUTE:
            bound = self.portals.get(m.text_at(data, at))
            self.attention = reason(bound.mention) if bound is not None and not self.failed else None
        elif kind in (m.CLOSE, m.DESCRIBE):
            self.attention = self._close_or_describe(kind, data, at)
        return self.attention is not None

    def _parse(self, data: bytes, at: int, following: int) -> Attention | None:
        name = m.text_at(data, at)
        text = data[at:following] if following <= len(data) else b""
        if name or self.hidden.possible:
            self._follow_commit(name, text)
        found = self.mentioned(text)
        if name and found in (NOTHING, Keyword.SUBSCRIBE) and speaks_of_cursors(text):
            found |= Keyword.CURSOR
        if found is NOTHING:
            if self.statements:
                self.statements.pop(name, None)
            return None
        self.statements[name] = Mentioning(found, m.text_at(data, at + len(name) + 1))
        if Keyword.SUBSCRIBE in found:
            return Attention.SUBSCRIBE
        return Attention.LOAD if Keyword.LOAD in found else None

    def _bind(self, data: bytes, at: int) -> Attention | None:
        portal = m.text_at(data, at)
        name = m.text_at(data, at + len(portal) + 1)
        if name in self.committing:
            self._committing_portals.add(portal)
        else:
            self._committing_portals.discard(portal)
        statement = self._about(self.statements.get(name))
        replaced = self.portals.pop(portal, None)
        if statement is not None:
            self.portals[portal] = statement
        return Attention.SUBSCRIBE if _subscribes(statement) or _subscribes(replaced) else None

    def _close_or_describe(self, kind: int, data: bytes, at: int) -> Attention | None:
        names = self.statements if data[at : at + 1] == b"S" else self.portals
        name = m.text_at(data, at + 1)
        about = self._about(names.pop(name, None) if kind == m.CLOSE else names.get(name))
        return Attention.SUBSCRIBE if _subscribes(about) else None

    def _follow_commit(self, name: bytes, parse: bytes) -> None:
        """Note whether the statement of a Parse commits. One that is not there as a whole is too long to."""
        begin = len(name) + 1
        if self.trusted and commits(parse[begin : parse.find(b"\0", begin)].lower()):
            self.committing.add(name)
        elif self.committing:
            self.committing.discard(name)

    def _about(self, statement: Mentioning | None) -> Mentioning | None:
        """A statement as it is now: one that speaks of a cursor matters where there may be cursors of subscriptions."""
        if statement is not None and statement.mention is Keyword.CURSOR:
            return Mentioning(Keyword.SUBSCRIBE, statement.text) if self.portals else None
        return statement

    def mentioned(self, text: bytes) -> Keyword:
        """What a text mentions, to this session."""
        if not self.trusted:
            return mentions(text) & Keyword.DATABASE
        if not self.sending and sends(text.lower()):
            self.sending = True
        found = mentions(text)
        if Keyword.CALLER in found:
            self.hidden.expect()
            found &= ~Keyword.CALLER
        if self.portals and speaks_of_cursors(text):
            found |= Keyword.SUBSCRIBE
        return found


def _subscribes(statement: Mentioning | None) -> bool:
    return statement is not None and Keyword.SUBSCRIBE in statement.mention


def reason(found: Keyword) -> Attention:
    """Why a statement that mentions something needs attention."""
    if Keyword.SUBSCRIBE in found:
        return Attention.SUBSCRIBE
    return Attention.DATABASE if found is Keyword.DATABASE else Attention.NAMED_REQUEST
