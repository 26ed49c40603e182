"""Where log lines go: to stderr, one line an event, with structured fields, to be read by people or by programs."""

from __future__ import annotations

import logging
import sys

import structlog

from engine import tracing

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")
OUR_PACKAGES = ("server", "engine", "catalog", "sql")


def configure(level: str, log_format: str = "console") -> None:
    """Log our packages from `level` (one of LEVELS) upwards, and libraries from warnings upwards, in one of FORMATS."""
    as_json = log_format == "json"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_trace,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=as_json),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_json() if as_json else _console()),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(as_json)  # else Python writes them to stderr itself
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def _with_trace(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What is logged within a span names it."""
    if (ids := tracing.ids()) is not None:
        event["trace_id"], event["span_id"] = ids
    return event


# Plain tracebacks in both: the pretty ones have local variables, passwords among them.


def _console() -> list[structlog.typing.Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    ]


def _json() -> list[structlog.typing.Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
