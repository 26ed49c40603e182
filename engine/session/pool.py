"""The engine's own connections: one asyncpg pool a database, each connection a `SqlSession`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, cast

import asyncpg
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from catalog.pinned_settings import PINNED
from catalog.session import Row, SqlError, Value
from engine.session.liveness import CONNECT_SECONDS, KEEPALIVE, RELEASE_SECONDS, Liveness, WatchedConnection

T = TypeVar("T")

ConnectArguments = Mapping[str, Any]
"""Keyword arguments of `asyncpg.connect` that log the engine in."""

SERVER = secrets.token_hex(4)
"""Stands in `application_name` of all sessions of this server: who takes over from it, if it hangs, can tell them."""

APPLICATION_NAME = f"headwater engine {SERVER}"

# Statements are never kept under a name: a function in a defining query could put its own under that name.
STATEMENT_CACHE_SIZE = 0

BROKEN = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""What asyncpg raises where the connection has been lost, also in the middle of another operation."""

LOST = "connection to PostgreSQL was lost"

ROLLBACK_SECONDS = 30.0
"""A connection whose transaction has not been rolled back by then is given up."""

PATIENCE_SECONDS = 3.0
"""How long the engine tries to connect while clients have all of PostgreSQL's connections."""

RESET = """
RESET ALL; SET SESSION AUTHORIZATION DEFAULT; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *;
SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES
"""
"""Undoes what a function of a user can have left in a session: DISCARD ALL, but for the plans, which are nobody's."""

MOST_LEFT = 4 << 20
"""Bytes of a COPY that are read for nobody, rather than that its connection is given up."""

# Whatever the role or the database sets (whose owner can have sessions begin as another role), the engine is who has
# logged in, and reads and writes values in one textual form.
SESSION_SETTINGS = {
    "role": "none",
    "application_name": APPLICATION_NAME,
    "headwater.engine": "on",
    **PINNED,
    "client_min_messages": "warning",
    "statement_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    **KEEPALIVE,
}

_BEGIN = {
    isolation: f"BEGIN ISOLATION LEVEL {isolation.replace('_', ' ')}"
    for isolation in ("read_committed", "repeatable_read", "serializable")
}

DEADLOCK_TIMEOUT = "10ms"
"""Where the role may set it, so that of the engine and a user who wait for each other the engine gives way, and tries
again: PostgreSQL aborts whoever looks for a deadlock first once there is one. A user looks a single time, after having
waited for 1 s by default; it is lost only if the engine has just begun to wait for it, less than this before."""

LOCK_TIMEOUT = "1s"
"""How long a transaction that is `impatient` waits for somebody's lock."""

SHORT_LOCK_TIMEOUT = "100ms"
"""The same where the role may not set `DEADLOCK_TIMEOUT`: the engine gives way before a user looks for a deadlock."""

BE_IMPATIENT = (
    "SELECT pg_catalog.set_config('lock_timeout', CASE pg_catalog.current_setting('deadlock_timeout')"
    f" WHEN '{DEADLOCK_TIMEOUT}' THEN '{LOCK_TIMEOUT}' ELSE '{SHORT_LOCK_TIMEOUT}' END, true)"
)
"""Has a transaction of the engine's wait for locks no longer than that."""

_BEGIN_IMPATIENT = {isolation: f"{begin}; {BE_IMPATIENT}" for isolation, begin in _BEGIN.items()}


def sql_error(error: asyncpg.PostgresError) -> SqlError:
    """The error of PostgreSQL as the engine's own, SQLSTATE and texts unchanged."""
    return SqlError(
        error.sqlstate or "XX000",
        error.message or str(error),
        detail=error.detail,
        hint=error.hint,
    )


_BIGINT_ARRAY: Mapping[str, Any] = {
    **dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames", "basetype_name", "range_subtype_name")),
    **{"oid": 1016, "ns": "pg_catalog", "name": "_int8", "kind": b"b"},
    **{"elemtype": 20, "elemtype_name": "int8", "elemdelim": ",", "depth": 0},
}
"""What asyncpg would ask PostgreSQL in each connection that has such a value, by a query that takes 5 ms."""


class EngineConnection(WatchedConnection):
    """A connection that is reset thoroughly."""

    __slots__ = ()

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._protocol.get_settings().register_data_types([_BIGINT_ARRAY])

    def get_reset_query(self) -> str:
        """What the pool sends before somebody else gets the connection."""
        return RESET


_PINNED_AGAIN = "; ".join(
    f"RESET {name}" for name in SESSION_SETTINGS if name not in ("application_name", "statement_timeout")
)
"""After a commit. A function of a query can have set what holds from then on, below a value for its transaction."""


class PooledSession:
    """A `SqlSession` over an asyncpg connection."""

    def __init__(self, connection: asyncpg.Connection):
        self._connection = connection

    @property
    def lost(self) -> bool:
        """Whether its connection has ended."""
        try:
            return bool(self._connection.is_closed())
        except asyncpg.InterfaceError:  # the pool has taken it back, which it does as soon as it has ended
            return True

    @property
    def process(self) -> int:
        """The process of PostgreSQL that serves it."""
        return int(self._connection.get_server_pid())

    def terminate(self) -> None:
        """Close its connection, whatever goes on in it."""
        with suppress(asyncpg.InterfaceError):
            self._connection.terminate()

    async def reset(self) -> None:
        """Make it what it was when it began, also from within a transaction. Raises SqlError."""
        with self.as_sql_errors():
            await self._connection.reset()

    @contextmanager
    def as_sql_errors(self) -> Iterator[None]:
        """Raise what asyncpg raises as `SqlError`."""
        try:
            yield
        except (asyncpg.PostgresError, *BROKEN) as error:
            raise self._sql_error(error) from error

    def _sql_error(self, error: Exception) -> SqlError:
        if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.ConnectionDoesNotExistError):
            return sql_error(error)
        return SqlError("08006", LOST if self.lost else f"connection to PostgreSQL failed: {error}")

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        """See `SqlSession.fetch`. Always one statement, in the extended protocol."""
        with self.as_sql_errors():
            return [tuple(record) for record in await self._connection.fetch(sql, *args)]

    async def execute(self, sql: str, *args: Value) -> str:
        """See `SqlSession.execute`. Always one statement, in the extended protocol."""
        if self.lost:
            raise SqlError("08006", LOST)
        with self.as_sql_errors():
            # The public method takes a text without arguments for a script.
            _, tag, _ = await self._connection._execute(sql, args, 0, None, return_status=True)
        return str(tag.decode())

    async def execute_later(self, sql: str, *args: Value) -> None:
        """See `SqlSession.execute_later`. It is run at once: asyncpg sends one statement at a time."""
        await self.execute(sql, *args)

    async def run_script(self, script: str) -> None:
        """See `ScriptSession.run_script`."""
        with self.as_sql_errors():
            await self._connection.execute(script)

    async def pin_again(self) -> None:
        """Within a transaction that is `impatient`: whatever functions have set is undone. Raises SqlError."""
        with self.as_sql_errors():
            await self._connection.execute(f"RESET ALL; {BE_IMPATIENT}")

    async def keep_settings(self, role: str) -> None:
        """See `SqlSession.keep_settings`. They are pinned again after a commit, and in the end reset."""

    async def copy_in(self, schema: str, table: str, columns: Sequence[str], source: AsyncIterable[bytes]) -> int:
        """See `SqlSession.copy_in`."""
        with self.as_sql_errors():
            tag = await self._connection.copy_to_table(
                table, schema_name=schema, columns=list(columns), source=source, format="csv"
            )
        return int(str(tag).rsplit(" ", 1)[-1])

    async def copy_out(self, statement: str, sink: Callable[[bytes], Awaitable[None]]) -> None:
        """Run a COPY … TO STDOUT. What goes to `sink` at a time are whole CopyData messages, without their headers.

        Where `sink` fails, or is cancelled, what is left is read past it; too much of it ends the connection.
        """
        failure: BaseException | None = None
        left = MOST_LEFT

        # asyncpg cancels a COPY whose sink raises, and waits for ever if PostgreSQL was already through with it.
        async def guarded(piece: bytes) -> None:
            nonlocal failure, left
            if failure is None:
                try:
                    await sink(piece)
                except BaseException as error:
                    failure = error
                return
            left -= len(piece)
            if left < 0:
                self._connection.terminate()

        try:
            # The public methods put the options of COPY together themselves, from a list that PostgreSQL has outgrown.
            await self._connection._copy_out(statement, guarded, None)
        except Exception as error:
            if failure is not None:  # of a connection given up asyncpg says all kinds of things
                raise failure from None
            if isinstance(error, (asyncpg.PostgresError, *BROKEN)):
                raise self._sql_error(error) from error
            raise
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def transaction(self, isolation: str = "repeatable_read", *, impatient: bool = False) -> AsyncIterator[None]:
        """A transaction around the block; `repeatable_read` gives every statement in it one snapshot.

        Raises SqlError 25P02 where the block ends without an error although a statement in it has failed.

        asyncpg's own is not used: it takes a BEGIN or COMMIT that was cancelled for a transaction that has been
        forgotten, and says so in the log.
        """
        try:
            with self.as_sql_errors():
                await self._connection.execute((_BEGIN_IMPATIENT if impatient else _BEGIN)[isolation])
            yield
            with self.as_sql_errors():
                answer = await self._connection.execute("COMMIT")
                await self._connection.execute(_PINNED_AGAIN)
        except BaseException:
            await self._roll_back()
            raise
        if answer == "ROLLBACK":
            raise SqlError("25P02", "nothing was committed, since a statement of the transaction had failed")

    @asynccontextmanager
    async def sight(self, exported: str | None = None, *, read_only: bool = True) -> AsyncIterator[None]:
        """A transaction that changes nothing, since it is rolled back: at a snapshot of its own, or an exported one.

        Raises SqlError.
        """
        begin = f"BEGIN ISOLATION LEVEL REPEATABLE READ{', READ ONLY' if read_only else ''}"
        if exported is not None:
            begin += f"; SET TRANSACTION SNAPSHOT '{exported}'"
        try:
            await self.run_script(begin)
            yield
        finally:
            await self._roll_back()

    async def _roll_back(self) -> None:
        if self.lost:  # it has rolled back by itself
            return
        try:
            async with asyncio.timeout(ROLLBACK_SECONDS):  # a function of a user's can refuse to be cancelled
                await self._connection.execute("ROLLBACK")
        except BaseException as error:
            # With the connection its transaction ends.
            self._connection.terminate()
            if not isinstance(error, (asyncpg.PostgresError, *BROKEN)):
                raise


async def with_connection_retry(connect: Callable[[], Awaitable[T]]) -> T:
    """What `connect` gives, once PostgreSQL has a connection to spare. Raises its error if it has none for long."""
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(asyncpg.TooManyConnectionsError),
        wait=wait_random_exponential(multiplier=0.05, max=0.5),
        stop=stop_after_delay(PATIENCE_SECONDS),
        reraise=True,
    ):
        with attempt:
            return await connect()
    raise AssertionError


class DatabasePool:
    """Connections of the engine to one database, opened when first used."""

    def __init__(self, database: str, arguments: Callable[[str], ConnectArguments], max_size: int = 8):
        self.database = database
        self._arguments = arguments
        self._max_size = max_size
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._may_set_deadlock_timeout = True
        """Unless PostgreSQL has said otherwise."""
        self.liveness = Liveness(database, self._connect)

    @property
    def login(self) -> ConnectArguments:
        """How the engine logs in to the database."""
        return self._arguments(self.database)

    async def connect(self, settings: Mapping[str, str] | None = None) -> asyncpg.Connection:
        """A new connection outside the pool, with `settings` of its own, to which a reset brings it back, too."""
        try:
            connection = await with_connection_retry(lambda: self._connect(settings))
            try:
                await self.liveness.admit(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection
        except asyncpg.PostgresError as error:
            raise sql_error(error) from error
        except OSError as error:
            raise SqlError("08001", f"could not connect to PostgreSQL: {error}") from error

    async def _connect(self, settings: Mapping[str, str] | None = None) -> EngineConnection:
        connection: EngineConnection = await asyncpg.connect(
            **self._arguments(self.database),
            database=self.database,
            server_settings={**SESSION_SETTINGS, **(settings or {})},
            statement_cache_size=STATEMENT_CACHE_SIZE,
            connection_class=EngineConnection,
            timeout=CONNECT_SECONDS,
        )
        return connection

    async def end(self, session: PooledSession) -> None:
        """End a session whose statement does not end by itself, whatever it does. Errors are passed over."""
        if not session.lost:
            with suppress(SqlError):
                async with self.session() as own:
                    await own.fetch("SELECT pg_catalog.pg_terminate_backend($1::int)", session.process)
        session.terminate()

    @asynccontextmanager
    async def at_most(self, session: PooledSession, seconds: float) -> AsyncIterator[None]:
        """End a session in which the block takes longer: a function may catch a cancellation. Raises SqlError 57014."""
        ending: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(
            seconds, lambda: ending.append(asyncio.create_task(self.end(session)))
        )
        try:
            yield
        except SqlError as error:
            if not ending:
                raise
            raise SqlError("57014", f"it takes longer than {seconds:g} s") from error
        finally:
            timer.cancel()
            if ending:
                await ending[0]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[PooledSession]:
        """A session for the time of the block, in autocommit until `PooledSession.transaction`."""
        try:
            pool = await self._opened()
            connection = await with_connection_retry(pool.acquire)
        except asyncpg.PostgresError as error:
            raise sql_error(error) from error
        except OSError as error:
            raise SqlError("08001", f"could not connect to PostgreSQL: {error}") from error
        try:
            yield PooledSession(connection)
        finally:
            with suppress(asyncpg.PostgresError, *BROKEN):  # a connection that is lost only now, and given up then
                await pool.release(connection, timeout=RELEASE_SECONDS)

    async def _opened(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    **self._arguments(self.database),
                    database=self.database,
                    min_size=0,
                    max_size=self._max_size,
                    max_inactive_connection_lifetime=60.0,
                    server_settings=SESSION_SETTINGS,
                    connect=self._connect_pooled,
                    statement_cache_size=STATEMENT_CACHE_SIZE,
                    connection_class=EngineConnection,
                    timeout=CONNECT_SECONDS,
                    init=self.liveness.admit,
                )
            return self._pool

    async def _connect_pooled(self, *args: Any, **arguments: Any) -> EngineConnection:
        """What the pool connects with: `asyncpg.connect`, with `DEADLOCK_TIMEOUT` where the role may set it."""
        if self._may_set_deadlock_timeout:
            settings = {**arguments["server_settings"], "deadlock_timeout": DEADLOCK_TIMEOUT}
            try:
                connection = await asyncpg.connect(*args, **{**arguments, "server_settings": settings})
                return cast(EngineConnection, connection)
            except asyncpg.InsufficientPrivilegeError:
                pass
        connection = cast(EngineConnection, await asyncpg.connect(*args, **arguments))
        self._may_set_deadlock_timeout = False
        return connection

    @property
    def connections(self) -> tuple[int, int, int]:
        """How many there are, how many of these are idle, and how many there may be."""
        pool = self._pool
        return (0, 0, self._max_size) if pool is None else (pool.get_size(), pool.get_idle_size(), self._max_size)

    async def close(self) -> None:
        """Close every connection; the next use opens new ones. Running statements are given up."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()
        self.liveness.close()
