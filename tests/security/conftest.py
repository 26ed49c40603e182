"""Attacks that have worked, each of which must fail: the fixtures are those of the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import db, eventually, live_db, own_db, own_server, role, server, shared_db

__all__ = ["db", "eventually", "live_db", "own_db", "own_server", "role", "server", "shared_db"]
