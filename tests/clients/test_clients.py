"""Every client does the same things: stream tables, queues, errors, batches, COPY, cancels, notifications, SUBSCRIBE.

Each client has a program in `programs/`, which prints what it saw as one JSON object with an entry for each thing.
What a client has no means for is left out; the sets below say what that is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from psycopg import conninfo

from tests.clients import packages
from tests.e2e.conftest import Database

PROGRAM_SECONDS = 240.0
EXPECTED: dict[str, Any] = {
    "values": [42, "Grüße, 世界", None, "00ff", "12345678901234567890.123456789", True],
    "refreshed": [["a", 2, "30.50"], ["b", 1, "1.00"]],
    "rolled back": 0,
    "failed": "42P01",
    "usable": 1,
    "batch": [1000, 499_500],
    "copied": 10_000,
    "fetched": 50_005_000,
    "cancelled": "57014",
    "notified": "hello",
    "subscribed": ["1", "2"],
    "event": {"order_id": 42},
    "notices": [],
}
EVERYTHING = frozenset(EXPECTED)
ORM = EVERYTHING - {"copied", "cancelled", "notified", "notices"}


@dataclass(frozen=True)
class Client:
    """A program, what runs it, and which entries it prints."""

    program: str
    install: Callable[[Path], list[str]]
    entries: frozenset[str] = EVERYTHING
    scheme: str = "postgresql"


CLIENTS = {
    "psycopg": Client("with_psycopg.py", packages.python),
    "psycopg2": Client("with_psycopg2.py", packages.python),
    "asyncpg": Client("with_asyncpg.py", packages.python),
    "sqlalchemy": Client("with_sqlalchemy.py", packages.python, ORM),
    "django": Client("with_django.py", packages.python, ORM - {"values", "subscribed", "event", "fetched"}),
    "adbc": Client(
        "with_adbc.py", packages.python, EVERYTHING - {"cancelled", "notified", "subscribed", "event", "notices"}
    ),
    "node-postgres": Client("with_node.mjs", packages.node),
    "jdbc": Client("WithJdbc.java", packages.java, scheme="jdbc:postgresql"),
    "pgx": Client("", packages.go),
    "tokio-postgres": Client("", packages.rust),
}
COMPILED = ("pgx", "tokio-postgres")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in COMPILED else []) for name in CLIENTS]
)
def test_client(name: str, db: Database, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    client = CLIENTS[name]
    folder = Path(request.config.cache.mkdir(f"client-{name}"))
    command = client.install(folder)
    if client.program:
        # node looks for modules beside the program.
        program = packages.PROGRAMS / client.program
        command = [*command, shutil.copy(program, folder if client.install is packages.node else tmp_path)]
    url = _url(db.server.dsn(db.name), client.scheme)
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=PROGRAM_SECONDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert {step: seen.get(step) for step in EXPECTED if step in client.entries} == {
        step: value for step, value in EXPECTED.items() if step in client.entries
    }


def _url(dsn: str, scheme: str) -> str:
    options = conninfo.conninfo_to_dict(dsn)
    user, password = quote(str(options["user"])), quote(str(options["password"]), safe="")
    where = f"{options['host']}:{options['port']}/{options['dbname']}"
    if scheme == "postgresql":
        return f"{scheme}://{user}:{password}@{where}?sslmode=disable"
    return f"{scheme}://{where}?user={user}&password={password}"
