"""Attacks that have worked, each of which must fail: the fixtures are those of the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import (
    db,
    emptied_db,
    emptied_live_db,
    eventually,
    fresh_db,
    live_db,
    live_shared_db,
    own_db,
    own_server,
    role,
    server,
    shared_db,
)
from tests.server.conftest import backend, engaged, relay, relayed, start_relay

__all__ = [
    "backend",
    "db",
    "emptied_db",
    "emptied_live_db",
    "engaged",
    "eventually",
    "fresh_db",
    "live_db",
    "live_shared_db",
    "own_db",
    "own_server",
    "relay",
    "relayed",
    "role",
    "server",
    "shared_db",
    "start_relay",
]
