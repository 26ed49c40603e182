"""The packages in `integrations/`, with the programs that they are for, against a whole server."""

from __future__ import annotations

from tests.e2e.conftest import db, eventually, fresh_db, live_db, role, server

__all__ = ["db", "eventually", "fresh_db", "live_db", "role", "server"]
