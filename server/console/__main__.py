"""The console's process: it reads its configuration from stdin, says on stdout where it listens, ends with stdin."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
import sys

import uvicorn
import uvloop

from server.commands import logs
from server.console.app import Console
from server.console.config import LISTENS, ConsoleConfig

BACKLOG = 128


def main() -> int:
    """Returns the exit status."""
    config = ConsoleConfig(**json.loads(sys.stdin.readline()))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # passwords are in memory
    logs.configure(config.log_level, config.log_format)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # who leaves a page cancels what it has asked for
    console = Console(config)
    served = uvicorn.Config(
        console.application(),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        limit_concurrency=500,
        timeout_graceful_shutdown=2,
    )
    try:
        served.load()
        listening = _listen(config.host, config.port)
    except OSError as error:
        print(error.strerror or error, flush=True)
        return 1
    uvloop.run(_serve(console, uvicorn.Server(served), listening))
    return 0


def _listen(host: str, port: int) -> socket.socket:
    ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    listening.listen(BACKLOG)
    return listening


async def _serve(console: Console, server: uvicorn.Server, listening: socket.socket) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _stop_at_end, console, server)
    print(f"{LISTENS}{listening.getsockname()[1]}", flush=True)  # who connects already waits a moment
    await server.serve(sockets=[listening])


def _stop_at_end(console: Console, server: uvicorn.Server) -> None:
    """The server that has started this one has ended, or wants it to end: nothing else comes from there."""
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        console.sessions.end_streams()
        server.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
