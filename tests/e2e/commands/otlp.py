"""A collector of OpenTelemetry's, as small as can be: it takes spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Encoded
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True, slots=True)
class Span:
    """A span that was received. Ids are hexadecimal digits; `parent` is empty at the root."""

    name: str
    trace: str
    id: str
    parent: str
    seconds: float
    failed: bool
    of_client: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """Listens on a free port while it is entered."""

    spans: list[Span] = field(default_factory=list)
    received: bytes = b""
    paths: set[str] = field(default_factory=set)

    def __enter__(self) -> Collector:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.add(self.path)
                collector.take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            spans = [_span(each, resource) for of_scope in of_resource.scope_spans for each in of_scope.spans]
            self.spans = [*self.spans, *spans]
        self.received += body

    def named(self, name: str, **attributes: Any) -> list[Span]:
        """Those of that name and with these attributes of ours."""
        wanted = {f"headwater.{key}": value for key, value in attributes.items()}
        return [each for each in self.spans if each.name == name and wanted.items() <= each.attributes.items()]

    def until(self, found: Callable[[], Any], seconds: float = 60.0) -> Any:
        """What that gives, as soon as it is something."""
        end = time.monotonic() + seconds
        while not (result := found()):
            assert time.monotonic() < end, self.spans
            time.sleep(0.05)
        return result


def _attributes(encoded: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in encoded}


def _span(each: Encoded, resource: dict[str, Any]) -> Span:
    return Span(
        name=each.name,
        trace=each.trace_id.hex(),
        id=each.span_id.hex(),
        parent=each.parent_span_id.hex(),
        seconds=(each.end_time_unix_nano - each.start_time_unix_nano) / 1e9,
        failed=each.status.code == Status.STATUS_CODE_ERROR,
        of_client=each.kind == Encoded.SPAN_KIND_SERVER,
        attributes=_attributes(each.attributes),
        resource=resource,
    )
