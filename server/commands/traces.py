"""Where spans go: by OTLP over HTTP to a collector, from a thread of their own (`pip install 'headwater[otel]'`)."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from engine import tracing
from server import __version__
from server.postgres.data_directory import StartupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = structlog.get_logger(__name__)

STOP_SECONDS = 2.0
"""So long the server waits, when it ends, until its last spans are exported."""

PROTOCOL = "http/protobuf"
HINT = "Install what it needs: pip install 'headwater[otel]'"


def parse_url(value: str) -> str:
    """The URL of a collector, below which is ``/v1/traces``. Raises ValueError.

    >>> parse_url("http://127.0.0.1:4318/")
    'http://127.0.0.1:4318'
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc:
        raise ValueError("it has a user or password in it; set OTEL_EXPORTER_OTLP_HEADERS instead")
    if parts.query or parts.fragment:
        raise ValueError("it has more than a host, a port and a path")
    return value.rstrip("/")


@dataclass(frozen=True, slots=True)
class Exporting:
    """Spans are recorded, and exported now and then."""

    provider: TracerProvider

    async def stop(self) -> None:
        """Record no more, and export what there is, within a moment."""
        tracing.record_with(None)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self.provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=shut_down, name="headwater traces", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), STOP_SECONDS)
        except TimeoutError:
            log.warning("the last spans were not exported")


def start(url: str | None) -> Exporting | None:
    """Record spans and export them to a collector's URL, else as the standard variables of OpenTelemetry say.

    None where neither asks for it. Raises StartupError where that is not possible.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or not (url or _asked_by_environment()):
        return None
    protocol = _variable("PROTOCOL")
    if protocol not in ("", PROTOCOL):
        raise StartupError(
            f'traces are not exported by OTLP over "{protocol}"',
            f"Set OTEL_EXPORTER_OTLP_PROTOCOL={PROTOCOL} with the port of a collector for that, usually 4318, or"
            " OTEL_TRACES_EXPORTER=none.",
        )
    try:
        provider = _provider(url)
    except ImportError as error:
        if url is not None:
            raise StartupError(f"traces need OpenTelemetry: {error}", HINT) from error
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but no traces are exported", error=str(error), hint=HINT)
        return None
    tracing.record_with(provider.get_tracer("headwater", __version__))
    log.info("traces are exported", url=url or _variable("ENDPOINT"))
    return Exporting(provider)


def _asked_by_environment() -> bool:
    """Raises StartupError where another exporter is asked for."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter == "none" or not _variable("ENDPOINT"):
        return False
    if exporter not in ("", "otlp"):
        raise StartupError(f'there is no exporter "{exporter}" for traces', "Set OTEL_TRACES_EXPORTER to otlp or none.")
    return True


def _variable(name: str) -> str:
    """A standard variable of the exporter: that for traces wins over that for everything."""
    for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
        if value := os.environ.get(prefix + name, "").strip():
            return value
    return ""


def _provider(url: str | None) -> TracerProvider:
    """Raises ImportError without the extra."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attributes = {"service.version": __version__}
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not named:
        attributes["service.name"] = "headwater"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=None if url is None else f"{url}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
