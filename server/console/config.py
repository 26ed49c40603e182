"""What the console's process is told by the server that starts it."""

from __future__ import annotations

from dataclasses import dataclass

LISTENS = "listens on "
"""What the process says on stdout, before the port, once browsers can connect; anything else is why it cannot."""


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """Addresses and files; nothing in it is secret."""

    host: str
    port: int
    relay_host: str
    """Where the server is reached from this machine."""
    relay_port: int
    database: str
    """What the login page proposes."""
    log_level: str = "info"
    log_format: str = "console"
    tls_cert: str | None = None
    tls_key: str | None = None
    idle_minutes: float = 30
    """A session that does nothing for so long has ended."""
    longest_hours: float = 12
    """A session has ended after so long, whatever it does."""


def local_address(host: str) -> str:
    """The address by which this machine reaches a server that listens on `host`.

    >>> local_address("0.0.0.0"), local_address("::"), local_address("192.0.2.7")
    ('127.0.0.1', '::1', '192.0.2.7')
    """
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
