"""What log lines look like, of a program that logs as the server does."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta

PROGRAM = """
import logging, sys, warnings
import structlog
from server.commands import logs

logs.configure("info", sys.argv[1])
log = structlog.get_logger("server.relay.session")
log.debug("left out")
log.info("two\\nlines", database='a "b"', rows=3, place=("x", 1))
secret = "never shown"
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
logging.getLogger("asyncio").warning("of a library: %s", 1)
warnings.warn("of Python", stacklevel=1)
"""


def logged(log_format: str) -> list[str]:
    """The lines of that program."""
    command = [sys.executable, "-c", PROGRAM, log_format]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr.splitlines()


def test_every_line_of_a_json_log_is_an_object() -> None:
    lines = logged("json")
    entries = [json.loads(line) for line in lines]
    assert [(each["level"], each["logger"]) for each in entries] == [
        ("info", "server.relay.session"),
        ("error", "server.relay.session"),
        ("warning", "asyncio"),
        ("warning", "py.warnings"),
    ]
    first, failed, library, warned = entries
    assert (first["event"], first["database"], first["rows"], first["place"]) == ("two\nlines", 'a "b"', 3, ["x", 1])
    assert failed["event"] == "it failed" and "ZeroDivisionError: division by zero" in failed["exception"]
    assert "never shown" not in "".join(lines)
    assert library["event"] == "of a library: 1" and "of Python" in warned["event"]
    for each in entries:
        assert datetime.fromisoformat(each["timestamp"]).utcoffset() == timedelta(0)


def test_a_console_log_is_for_people() -> None:
    lines = logged("console")
    assert "[info" in lines[0] and "database='a \"b\"'" in lines[1] and "rows=3" in lines[1]
    assert "ZeroDivisionError: division by zero" in lines
    assert "never shown" not in "\n".join(lines)
