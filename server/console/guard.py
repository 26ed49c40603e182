"""What every answer says to the browser, and what is refused before anything is done."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 20
"""Of a request's body."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Around the application: a request that changes something must come from a page of the console itself.

    Its Origin must be the address that it was sent to, and its body JSON, which no form of another site can send. That
    comes on top of the cookie's SameSite=Strict.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["Cache-Control"] = "no-store" if scope["path"].startswith("/api/") else "no-cache"
            await send(message)

        if scope["method"] not in ("GET", "HEAD") and (refusal := foreign(Headers(scope=scope))):
            answer = JSONResponse({"error": {"message": refusal}}, status_code=403)
            await answer(scope, receive, send_guarded)
            return
        await self.app(scope, _limited(receive), send_guarded)


def foreign(headers: Headers) -> str | None:
    """Why a request that changes something is refused; None where it is the console's own.

    >>> own = {"host": "127.0.0.1:7480", "origin": "http://127.0.0.1:7480", "content-type": "application/json"}
    >>> foreign(Headers(own)), foreign(Headers(own | {"origin": "http://evil.example"}))
    (None, 'the request comes from another site')
    """
    origin = headers.get("origin", "")
    if urlsplit(origin).netloc != headers.get("host") or not origin:
        return "the request comes from another site"
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "the request comes from another site"
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return "the body must be application/json"
    return None


def _limited(receive: Receive) -> Receive:
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > MOST_BYTES:
            return {"type": "http.disconnect"}
        return message

    return limited


def cookie_name(tls: bool, port: int) -> str:
    """Of the session's cookie. Browsers send it to every port of a host, so that the name has to tell consoles apart.

    With TLS the browser itself sees to it that the cookie is Secure and of this host alone.

    >>> cookie_name(False, 7480), cookie_name(True, 7480)
    ('headwater-7480', '__Host-headwater-7480')
    """
    return f"{'__Host-' if tls else ''}headwater-{port}"


def texts(body: object, names: Iterable[str]) -> list[str]:
    """The texts of these names in a JSON body. Raises ValueError.

    >>> texts({"user": "alice", "password": "x"}, ("user", "password"))
    ['alice', 'x']
    """
    found = [body.get(name) if isinstance(body, dict) else None for name in names]
    if not all(isinstance(value, str) and "\0" not in value for value in found):
        raise ValueError(f"the body must have the texts {', '.join(names)}")
    return [str(value) for value in found]
