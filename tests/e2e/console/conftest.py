"""A console in front of the server that most tests share, and a browser at it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from server.console.config import LISTENS, ConsoleConfig
from tests.e2e.conftest import Database, Headwater
from tests.e2e.console.browser import CHROMIUM, Browser


class Console:
    """A process of the console, as the server starts it."""

    def __init__(self, relay_port: int, **options: Any):
        config = ConsoleConfig(
            host="127.0.0.1", port=0, relay_host="127.0.0.1", relay_port=relay_port, database="postgres"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server.console"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(config) | options) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        assert said.startswith(LISTENS), said
        self.port = int(said.removeprefix(LISTENS))
        self.url = f"http://127.0.0.1:{self.port}/"

    def stop(self) -> None:
        """Close its stdin, at which it ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._process.stdout.close()


class Client:
    """Speaks to a console as a program does, which sends whatever headers it likes."""

    def __init__(self, port: int):
        self.port = port
        self.cookie = ""
        self.headers: dict[str, str] = {}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the answer; its headers are in `headers`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        own = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json", "Cookie": self.cookie}
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        sent = {name: value for name, value in (own | headers).items() if value}
        connection.request(method, path, text, sent)
        answer = connection.getresponse()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        read = answer.read()
        connection.close()
        if "set-cookie" in self.headers:
            self.cookie = self.headers["set-cookie"].partition(";")[0]
        try:
            return answer.status, json.loads(read)
        except ValueError:
            return answer.status, {"text": read.decode()}

    def log_in(self, user: str, password: str, database: str) -> tuple[int, dict[str, Any]]:
        return self.ask("POST", "/api/login", {"user": user, "password": password, "database": database})


@pytest.fixture(scope="module")
def console(server: Headwater) -> Iterator[Console]:
    running = Console(server.port)
    yield running
    running.stop()


@pytest.fixture
def client(console: Console) -> Client:
    return Client(console.port)


@pytest.fixture(scope="module")
def console_db(register_database: Database) -> Database:
    """One database for a module's tests, whose scheduler is at work."""
    return register_database


@pytest.fixture(scope="module")
def browser(console: Console, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for a module's tests, which complains of nothing: no script fails, nothing is refused by the CSP."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (apt-get install chromium)")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    opened.look()
    yield opened
    opened.close()
    assert opened.complaints == []
