"""Where log lines go: to stderr, one line an event, with structured fields."""

from __future__ import annotations

import logging
import sys

import structlog

LEVELS = ("debug", "info", "warning", "error")
OUR_PACKAGES = ("server", "engine", "catalog", "sql")


def configure(level: str) -> None:
    """Log our packages from `level` (one of LEVELS) upwards, and libraries from warnings upwards."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=False),
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
                # Plain tracebacks: the pretty ones print local variables, passwords among them.
                structlog.dev.ConsoleRenderer(
                    colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
                ),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
