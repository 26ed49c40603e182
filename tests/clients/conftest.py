"""Real clients against a whole server: the fixtures are those of the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import db, eventually, fresh_db, live_db, own_db, own_server, server

collect_ignore = ["programs"]  # programs of their own, which run when they are imported

__all__ = ["db", "eventually", "fresh_db", "live_db", "own_db", "own_server", "server"]
