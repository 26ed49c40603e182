"""TLS contexts: one for clients, from a certificate and its key, one for a PostgreSQL that is reached by TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from server.intercept.engine_interface import Backend

ALPN = "postgresql"


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The context for clients' connections. Raises OSError or ssl.SSLError if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([ALPN])
    return context


def backend_context(backend: Backend) -> ssl.SSLContext:
    """The context for connections to PostgreSQL; ``sslmode`` means what it means to libpq."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    context.check_hostname = backend.sslmode == "verify-full"
    if backend.sslmode in ("verify-ca", "verify-full") or backend.sslrootcert is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        if backend.sslrootcert is not None:
            context.load_verify_locations(backend.sslrootcert)
        else:
            context.load_default_certs()
    else:
        context.verify_mode = ssl.CERT_NONE
    return context
