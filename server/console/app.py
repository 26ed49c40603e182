"""The console as a web application (ASGI): its files, and an API over JSON that only its own pages use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from server.console import graph, live, pages, statements, stream_tables
from server.console.config import ConsoleConfig
from server.console.connections import Connection, Login, as_error
from server.console.guard import Guard, cookie_name, texts
from server.console.sessions import MOST_STREAMS, Session, Sessions

log = structlog.get_logger(__name__)

STATIC = Path(__file__).parent / "static"
LONGEST_WORDS = 1000
"""Characters of a user, password or database."""

ACTION_SECONDS = 3600
"""For what a button does."""

Page = Callable[[Connection, Request], Awaitable[dict[str, Any]]]


class Console:
    """The application's routes and what they share."""

    def __init__(self, config: ConsoleConfig):
        self.config = config
        self.tls = config.tls_cert is not None
        self.sessions = Sessions(config.idle_minutes * 60, config.longest_hours * 3600)
        self._logins = asyncio.Semaphore(8)

    def application(self) -> Starlette:
        """What uvicorn runs."""
        get = {
            "graph": lambda c, r: graph.graph(c),
            "stream-tables": lambda c, r: stream_tables.all_of_them(c),
            "stream-table": lambda c, r: stream_tables.one(c, _word(r, "schema"), _word(r, "name")),
            "queues": lambda c, r: pages.queues(c),
            "queue": lambda c, r: pages.queue(c, _word(r, "name")),
            "registers": lambda c, r: pages.registers(c),
            "register": _register,
            "subscriptions": lambda c, r: pages.subscriptions(c),
            "spark": lambda c, r: stream_tables.spark(c),
            "settings": lambda c, r: pages.settings(c),
        }
        routes = [
            Route("/", self._index),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/login", self._log_in, methods=["POST"]),
            Route("/api/logout", self._log_out, methods=["POST"]),
            Route("/api/session", self._session),
            *(Route(f"/api/{name}", self._page(page)) for name, page in get.items()),
            Route("/api/act", self._action(_act), methods=["POST"]),
            Route("/api/replay", self._action(_replay), methods=["POST"]),
            Route("/api/sql", self._sql, methods=["POST"]),
            Route("/api/changes", self._changes),
            Route("/api/rows", self._rows),
        ]
        handlers: dict[Any, Any] = {
            psycopg.Error: _failed,
            stream_tables.Unknown: _unknown,
            HTTPException: _refused,
            ValueError: _wrong,
            ClientDisconnect: _gone,
        }
        return Starlette(
            routes=routes, middleware=[Middleware(Guard)], exception_handlers=handlers, lifespan=self._lifespan
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(self.sessions.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await self.sessions.stop()

    async def _index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    def _identity(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie(request))

    def _cookie(self, request: Request) -> str:
        return cookie_name(self.tls, (request.scope.get("server") or ("", 0))[1])

    def _logged_in(self, request: Request) -> Session:
        """The session of a request. What a page fetches by itself does not keep it alive. Raises HTTPException."""
        session = self.sessions.find(self._identity(request), used="x-by-itself" not in request.headers)
        if session is None:
            raise HTTPException(401, "log in first")
        return session

    async def _log_in(self, request: Request) -> Response:
        user, password, database = texts(await request.json(), ("user", "password", "database"))
        if not user or not database or max(map(len, (user, password, database))) > LONGEST_WORDS:
            raise ValueError("a user and a database are needed")
        address = request.client.host if request.client is not None else ""
        attempts = self.sessions.attempts
        if (wait := attempts.wait(address, user)) > 0:
            seconds = str(int(wait) + 1)
            raise HTTPException(429, f"too many failed logins; try again in {seconds} s", {"Retry-After": seconds})
        if self.sessions.full:
            raise HTTPException(503, "too many sessions of the console already")
        login = Login(self.config.relay_host, self.config.relay_port, user, database, password)
        async with self._logins:
            try:
                connection = await login.connect()
            except psycopg.Error as error:
                attempts.failed(address, user)
                log.warning("login failed", user=user, database=database, address=address)
                return JSONResponse({"error": as_error(error)}, status_code=401)
            await connection.close()
        await self.sessions.end(self._identity(request))
        identity = self.sessions.begin(login)
        log.info("logged in", user=user, database=database, address=address)
        answer = JSONResponse({"user": user, "database": database})
        answer.set_cookie(self._cookie(request), identity, httponly=True, samesite="strict", secure=self.tls, path="/")
        return answer

    async def _log_out(self, request: Request) -> Response:
        await self.sessions.end(self._identity(request))
        answer = JSONResponse({})
        answer.delete_cookie(self._cookie(request), path="/", secure=self.tls, httponly=True, samesite="strict")
        return answer

    async def _session(self, request: Request) -> Response:
        session = self.sessions.find(self._identity(request), used=True)
        if session is None:
            return JSONResponse({"user": None, "database": self.config.database})
        return JSONResponse({"user": session.login.user, "database": session.login.database})

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session = self._logged_in(request)
            async with session.connection() as connection:
                return JSONResponse(await page(connection, request))

        return answer

    def _action(self, action: Page) -> Callable[[Request], Awaitable[Response]]:
        """As a page, in a connection of its own: a refresh may take long, and pages are looked at meanwhile."""

        async def answer(request: Request) -> Response:
            login = self._logged_in(request).login
            connection = await login.connect(statement_seconds=ACTION_SECONDS, lock_seconds=0)
            try:
                return JSONResponse(await action(connection, request))
            finally:
                await connection.close()

        return answer

    async def _sql(self, request: Request) -> Response:
        session = self._logged_in(request)
        (statement,) = texts(await request.json(), ("statement",))
        return JSONResponse(await statements.run(session.login, statement))

    async def _changes(self, request: Request) -> Response:
        session, kind = self._logged_in(request), _word(request, "of")
        if kind not in live.LOOKS:
            raise HTTPException(404, f'nothing is told of "{kind}"')
        return self._stream(session, live.changes(session.login, kind, session.ended))

    async def _rows(self, request: Request) -> Response:
        session = self._logged_in(request)
        schema, name = _word(request, "schema"), _word(request, "name")
        return self._stream(session, live.rows(session.login, schema, name, session.ended))

    def _stream(self, session: Session, events: AsyncIterator[str]) -> Response:
        if session.streams >= MOST_STREAMS:
            raise HTTPException(429, "too many pages of this session are open")

        async def counted() -> AsyncIterator[str]:
            session.streams += 1
            try:
                async for each in events:
                    yield each
            finally:
                session.streams -= 1
                await events.aclose()  # type: ignore[attr-defined]

        return StreamingResponse(counted(), media_type="text/event-stream")


def _word(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value or "\0" in value:
        raise ValueError(f"{name} is missing")
    return value


async def _register(connection: Connection, request: Request) -> dict[str, Any]:
    query = request.query_params
    period, dimensions, confirmed = query.get("period", "day"), query.get("dimensions", ""), "confirmed" in query
    return await pages.register(connection, _word(request, "name"), period, dimensions, confirmed)


async def _act(connection: Connection, request: Request) -> dict[str, Any]:
    schema, name, action = texts(await request.json(), ("schema", "name", "action"))
    if action not in stream_tables.ACTIONS:
        raise ValueError(f'there is no action "{action}"')
    await stream_tables.act(connection, schema, name, action)
    return {}


async def _replay(connection: Connection, request: Request) -> dict[str, Any]:
    body = await request.json()
    if isinstance(body, dict) and isinstance(body.get("id"), int):
        return await pages.replay(connection, body["id"])
    return await pages.replay_all(connection, *texts(body, ("queue",)))


async def _failed(request: Request, error: psycopg.Error) -> Response:
    return JSONResponse({"error": as_error(error)}, status_code=422)


async def _unknown(request: Request, error: stream_tables.Unknown) -> Response:
    return JSONResponse({"error": {"message": str(error)}}, status_code=404)


async def _refused(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": {"message": error.detail}}, status_code=error.status_code, headers=error.headers)


async def _wrong(request: Request, error: ValueError) -> Response:
    return JSONResponse({"error": {"message": str(error)}}, status_code=400)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)
