"""Spans of what the engine does, as OpenTelemetry has them. Until `record_with` nothing is recorded, nor imported.

A span has no text of a statement and no message of an error, either of which can contain rows: it names stream tables,
kinds of work, numbers of rows and SQLSTATEs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from catalog.session import SqlError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Attribute = str | int | float | bool | None


class Span(Protocol):
    """Entered, it is the parent of the spans that begin within, also in tasks that are made there."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes; those that are None are left out."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note an error that does not leave the span."""
        ...


class _Nothing:
    """The span that is not recorded."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Nothing is recorded."""

    def failed(self, error: BaseException) -> None:
        """Nothing is recorded."""


_NOTHING = _Nothing()
_tracer: Tracer | None = None


def record_with(tracer: Tracer | None) -> None:
    """Have all spans from now on recorded, or none."""
    global _tracer
    if tracer is not None:  # so that no span has to wait for what it needs to be loaded
        import opentelemetry.trace.propagation.tracecontext  # noqa: F401
    _tracer = tracer


def is_recording() -> bool:
    """Whether spans are recorded: what is only for them need not be done otherwise."""
    return _tracer is not None


def span(name: str, *, parent: str | None = None, of_client: bool = False) -> Span:
    """A span within the present one, or with the `parent` that a W3C ``traceparent`` names.

    `of_client`: it is what a client waits for.
    """
    return _NOTHING if _tracer is None else _Recorded(_tracer, name, parent, of_client)


class _Recorded:
    """A span of OpenTelemetry's."""

    __slots__ = ("_manager", "_span")

    def __init__(self, tracer: Tracer, name: str, parent: str | None, of_client: bool):
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})
        self._span: Any = None
        self._manager = tracer.start_as_current_span(
            name,
            context=context,
            kind=SpanKind.SERVER if of_client else SpanKind.INTERNAL,
            record_exception=False,
            set_status_on_exception=False,
        )

    def __enter__(self) -> Self:
        self._span = self._manager.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self._manager.__exit__(kind, error, traceback)

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """See `Span`."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def failed(self, error: BaseException) -> None:
        """See `Span`."""
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR)
        self._span.set_attribute("error.type", error.sqlstate if isinstance(error, SqlError) else type(error).__name__)


def ids() -> tuple[str, str] | None:
    """The present trace's and span's, in hexadecimal digits, as log lines have them; None outside of spans."""
    if _tracer is None:
        return None
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    return (format_trace_id(context.trace_id), format_span_id(context.span_id)) if context.is_valid else None
