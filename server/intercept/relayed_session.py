"""The relayed client connection as an SQL session: how the engine works inside a client's transaction.

Every statement runs in the extended protocol under a name of our own, so that neither the client's unnamed
statement nor its portals are touched, and ends with Sync, which does not end the transaction, because there
always is an explicit one around it: the client's or the relay's. What the client has set (search_path,
encodings, styles) does not reach these statements, see :data:`PINS`; it is put back afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from secrets import token_hex

from catalog.session import Row, SqlError, Value
from server.intercept.message_stream import PINS, MessageStream
from server.protocol import messages as m
from server.protocol import values
from sql.base.text import quote

NAME = b"__hw"
"""Name of our statements and portals."""
CLEAR = m.close_portal(NAME) + m.close_statement(NAME)
"""Goes before every use of the name: a statement that failed has left its portal behind."""


def run_by_name(sql: bytes, parameters: Sequence[bytes | None] = (), formats: Sequence[int] = ()) -> bytes:
    """Messages that run a statement under our name; ``formats`` are those of its results."""
    return CLEAR + m.parse(NAME, sql) + m.bind(NAME, NAME, parameters, formats) + m.execute(NAME) + m.close_portal(NAME)


_CHANGES = ", ".join(
    f"pg_catalog.set_config('{name}', ${n}::pg_catalog.text, true) IS NULL" for n, name in enumerate(PINS, 1)
)
_SET = f"SELECT {_CHANGES}"
# What a subquery in FROM returns is computed before the outer list; OFFSET keeps it one.
_LOOK = ", ".join(f"pg_catalog.current_setting('{name}')" for name in PINS)
_LOOK = f"SELECT {_LOOK}, session_user::pg_catalog.text OFFSET 0"
_LOOK_AND_SET = f"SELECT ${len(PINS) + 1}::pg_catalog.text, before.*, {_CHANGES} FROM ({_LOOK}) AS before"

# All that code of another role can have set in the session, and what the session itself had set of it. Parameters that
# no module has defined are not listed; our own of that kind are named.
_NOT_OURS = f"""
FROM (SELECT s.name, CASE WHEN s.source OPERATOR(pg_catalog.=) 'session' THEN s.setting END AS value
      FROM pg_catalog.pg_settings AS s
      WHERE (s.context OPERATOR(pg_catalog.=) 'user' OR s.context OPERATOR(pg_catalog.=) 'superuser'
             AND pg_catalog.has_parameter_privilege(s.name, 'SET'))
        AND NOT 'NO_RESET_ALL' OPERATOR(pg_catalog.=) ANY (pg_catalog.pg_settings_get_flags(s.name))
        AND s.name OPERATOR(pg_catalog.<>) ALL (ARRAY['{"', '".join(PINS)}']::pg_catalog.text[])
      UNION ALL
      SELECT o.name, coalesce(pg_catalog.current_setting(o.name, true), '')
      FROM (VALUES ('pgtrickle.maintenance'), ('pgtrickle.revoking'), ('headwater.engine')) AS o (name)
      OFFSET 0) AS s
"""
_KEEP = f"SELECT pg_catalog.json_object_agg(s.name, s.value)::pg_catalog.text {_NOT_OURS} WHERE s.value IS NOT NULL"
# A plain SET, also of what looks as it did: it replaces a value hidden below one for the transaction. NULL resets.
_PUT_BACK = f"""
SELECT pg_catalog.count(pg_catalog.set_config(s.name, ($1::pg_catalog.json OPERATOR(pg_catalog.->>) s.name), false))
{_NOT_OURS}
"""
_PUT_PINS_BACK = _SET.replace(", true)", ", false)")
_LISTEN_AS_BEFORE = "SELECT pgtrickle._listen_as_before()"


class BackendError(SqlError):
    """An error that PostgreSQL reported; ``response`` is its ErrorResponse."""

    def __init__(self, response: bytes):
        fields = {k: v.decode("utf-8", "replace") for k, v in m.report_fields(response[5:]).items()}
        sqlstate, message = fields.get("C", "XX000"), fields.get("M", "")
        super().__init__(sqlstate, message, detail=fields.get("D"), hint=fields.get("H"), context=fields.get("W"))
        self.response = response


class RelayedSession:
    """Implements ``catalog.session.RequestSession`` on a :class:`MessageStream`."""

    def __init__(
        self,
        dialogue: MessageStream,
        database: str,
        status: int,
        check: Callable[[], None],
        commit: Callable[[], Awaitable[None]],
    ):
        self._dialogue = dialogue
        self._check = check
        self._commit = commit
        self.database = database
        self.status = status
        """Transaction status after the last statement."""
        self.autocommit = False
        self.own = False
        """Whether the transaction is the relay's, and no block of the client's."""
        self.tag: str | None = None
        self.last_error: BackendError | None = None
        self.busy = False
        """Whether PostgreSQL works on a statement of ours."""
        self._encoding = "utf-8"
        self._before: list[Value] = []
        self._session_user: Value = None
        self._kept: Value = None
        """Settings of the session, as JSON, once code of another role may have run."""
        self._later: list[tuple[str, Sequence[Value]]] = []
        """What goes before the next statement (`execute_later`)."""
        self._pin: str | None = None
        """The number of a `pin` that goes before the next statement."""

    # -- RequestSession ----------------------------------------------------------------------------------------

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        rows, _ = await self._run(sql, args)
        return rows

    async def execute(self, sql: str, *args: Value) -> str:
        _, tag = await self._run(sql, args)
        return tag

    async def execute_later(self, sql: str, *args: Value) -> None:
        """See `SqlSession.execute_later`."""
        self._later.append((sql, args))

    async def flush(self) -> None:
        """Run now what was to be run before the next statement. Raises SqlError."""
        if self._later:
            sql, args = self._later.pop()
            await self._run(sql, args)
        elif self._pin is not None:
            await self._run("SELECT", ())

    async def copy_in(self, schema: str, table: str, columns: Sequence[str], source: AsyncIterable[bytes]) -> int:
        names = ", ".join(quote(name) for name in columns)
        return await self.copy_from(f"COPY {quote(schema, table)} ({names}) FROM STDIN (FORMAT csv)", source)

    async def copy_from(self, command: str, source: AsyncIterable[bytes]) -> int:
        await self.flush()
        self._check()
        self.busy = True
        try:
            start = [CLEAR, m.parse(NAME, command.encode()), m.bind(NAME, NAME), m.execute(NAME)]
            await self._dialogue.to_backend(b"".join(start) + m.FLUSH_MESSAGE)
            while True:
                kind, data = await self._dialogue.next_from_backend()
                if kind == m.ERROR:
                    await self._fail(data)
                if kind == m.COPY_IN:
                    break
            try:
                async for chunk in source:
                    await self._dialogue.to_backend(m.message(m.COPY_DATA, chunk))
            except BaseException:
                await self._dialogue.to_backend(m.message(m.COPY_FAIL, b"source failed\0") + m.SYNC_MESSAGE)
                await self._until_ready()
                raise
            end = m.COPY_DONE_MESSAGE + m.close_portal(NAME) + m.close_statement(NAME) + m.SYNC_MESSAGE
            await self._dialogue.to_backend(end)
            tag = ""
            while True:
                kind, data = await self._dialogue.next_from_backend()
                if kind == m.COMMAND_COMPLETE:
                    tag = data[5:-1].decode()
                elif kind == m.ERROR:
                    await self._until_ready()
                    raise self._noted(data)
                elif kind == m.READY:
                    self.status = data[5]
                    return int(tag.rpartition(" ")[2] or 0)
        finally:
            self.busy = False

    async def restart(self, isolation: str = "REPEATABLE READ") -> None:
        """COMMIT what has been done and BEGIN ISOLATION LEVEL `isolation`."""
        if not self.autocommit:
            raise SqlError("25001", "cannot commit in the client's transaction")
        if self.disturbed:
            await self.unpin()
        # The disk is waited for once, at the end of what follows: until then nobody has been told of anything.
        await self.execute("SET LOCAL synchronous_commit = off")
        await self._commit()
        await self.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        await self.pin()

    async def commit_before(self) -> bool:
        """See `RequestSession.commit_before`."""
        if not self.own:
            return False
        if self.disturbed:
            await self.unpin()
        await self._commit()
        await self.execute("BEGIN")
        await self.pin()
        return True

    async def abandon(self) -> None:
        """ROLLBACK what has been done since the last COMMIT, and BEGIN anew, also after a cancel."""
        if not self.autocommit:
            raise SqlError("25001", "cannot roll back the client's transaction")
        self._kept = None
        self._later = []
        self._pin = None
        await self._run("ROLLBACK", (), even_if_cancelled=True)
        await self._run("BEGIN", (), even_if_cancelled=True)

    @property
    def before(self) -> dict[str, str]:
        """The client's own values of what is pinned."""
        return dict(zip(PINS, map(str, self._before), strict=False))

    # -- around it ---------------------------------------------------------------------------------------------

    async def pin(self) -> None:
        """Have our own parameters in force from the next statement until the end of the transaction.

        They are sent with that statement, whose encoding is in force by the time PostgreSQL reads it.
        """
        self._dialogue.pinned = True
        self._encoding = "utf-8"
        self._pin = token_hex(16)

    def _pin_messages(self) -> list[bytes]:
        """Messages that put our own parameters in force. The answer holds a number that nobody can know before."""
        if self._pin is None:
            return []
        parameters = [*PINS.values(), self._pin]
        return self._messages(_LOOK_AND_SET.encode(), self._encoded(parameters))

    async def _read_pin(self, number: str) -> None:
        """Read the answer to `_pin_messages`: what is read from now on answers what we ask.

        Whatever the client has sent in whatever order, the engine must not take answers to it for answers to its own
        questions. Raises ProtocolViolation.
        """
        rows: list[Row] = []
        decoders: list[values.Decoder] = []
        while True:
            kind, data = await self._dialogue.next_from_backend()
            if kind == m.ERROR:
                error = self._noted(data)
                await self._until_ready()
                raise error
            if kind == m.ROW_DESCRIPTION:
                decoders = values.decoders(data)
            elif kind == m.DATA_ROW:
                rows.append(values.row(data, decoders, self._encoding))
            elif kind in (m.COMMAND_COMPLETE, m.READY):
                break
        if len(rows) != 1 or rows[0][0] != number:
            raise m.ProtocolViolation("an answer of PostgreSQL came out of turn")
        before = rows[0][1:]
        self._before = list(before[: len(PINS)])
        self._session_user = before[len(PINS)]

    async def keep_settings(self, role: str) -> None:
        """See `SqlSession.keep_settings`."""
        if self._pin is not None:
            await self.flush()
        if role != self._session_user and self._kept is None:
            ((self._kept,),) = await self.fetch(_KEEP)

    @property
    def disturbed(self) -> bool:
        """Whether code of another role than the session's own may have run in it since `pin`."""
        return self._kept is not None

    async def unpin(self) -> None:
        """Put the client's parameters in force again, those that code of others may have set, too.

        These are SET then, for good: what the client had SET LOCAL before cannot be told from what it had SET.
        """
        if self._pin is not None:  # nothing has run since
            self._pin = None
        elif self.disturbed:
            await self.fetch(_PUT_BACK, self._kept)
            if self.autocommit:
                # In a block of the client's, a LISTEN of its own cannot be told from one of the other role's.
                await self.fetch(_LISTEN_AS_BEFORE)
            await self.fetch(_PUT_PINS_BACK, *self._before)
            self._kept = None
        else:
            await self.fetch(_SET, *self._before)
        self._encoding = values.codec(self._dialogue.client_encoding)
        self._dialogue.pinned = False

    async def _run(self, sql: str, args: Sequence[Value], *, even_if_cancelled: bool = False) -> tuple[list[Row], str]:
        if not even_if_cancelled:
            self._check()
        encoding = self._encoding
        later, self._later = self._later, []
        parts = [
            *self._pin_messages(),
            *(run_by_name(text.encode(encoding), self._encoded(each)) for text, each in later),
            *self._messages(sql.encode(encoding), self._encoded(args)),
            m.SYNC_MESSAGE,
        ]
        pin, self._pin = self._pin, None
        self.busy = True
        try:
            await self._dialogue.to_backend(b"".join(parts))
            if pin is not None:
                await self._read_pin(pin)
            await self._until_completed(len(later))
            rows: list[Row] = []
            decoders: list[values.Decoder] = []
            tag = ""
            held: list[bytes] = []  # of a row longer than what comes whole
            error: BackendError | None = None
            while True:
                kind, data = await self._dialogue.next_from_backend()
                if held and kind != 0:
                    rows.append(values.row(b"".join(held), decoders, encoding))
                    held = []
                if kind == m.DATA_ROW and len(data) == int.from_bytes(data[1:5], "big") + 1:
                    rows.append(values.row(data, decoders, encoding))
                elif kind in (m.DATA_ROW, 0):
                    held.append(data)
                elif kind == m.ROW_DESCRIPTION:
                    decoders = values.decoders(data)
                elif kind == m.COMMAND_COMPLETE:
                    tag = data[5:-1].decode()
                elif kind == m.ERROR:
                    error = self._noted(data)
                elif kind == m.READY:
                    self.status = data[5]
                    if error is not None:
                        raise error
                    return rows, tag
        finally:
            self.busy = False

    @staticmethod
    def _messages(sql: bytes, parameters: Sequence[bytes | None]) -> list[bytes]:
        """Messages that run a statement and describe its rows."""
        return [
            CLEAR,
            m.parse(NAME, sql),
            m.bind(NAME, NAME, parameters),
            m.describe_portal(NAME),
            m.execute(NAME),
            m.close_portal(NAME),
            m.close_statement(NAME),
        ]

    def _encoded(self, args: Sequence[Value]) -> list[bytes | None]:
        return [values.encode(value, self._encoding) for value in args]

    async def _until_completed(self, statements: int) -> None:
        """Read past the answers to so many statements, behind which comes Sync."""
        while statements:
            kind, data = await self._dialogue.next_from_backend()
            if kind == m.ERROR:
                error = self._noted(data)
                await self._until_ready()
                raise error
            statements -= kind == m.COMMAND_COMPLETE

    def _noted(self, response: bytes) -> BackendError:
        self.last_error = BackendError(response)
        return self.last_error

    async def _fail(self, response: bytes) -> None:
        error = self._noted(response)
        await self._dialogue.to_backend(m.SYNC_MESSAGE)
        await self._until_ready()
        raise error

    async def _until_ready(self) -> None:
        while True:
            kind, data = await self._dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                return
