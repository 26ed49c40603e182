"""What object stores and file systems say when they fail, in one line."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\s*(?:↳|->)\s*")


def storage_message(error: BaseException) -> str:
    """The text of an error without the colours and lines that deltalake draws it with.

    >>> storage_message(OSError("Generic S3 error\\n  \\x1b[31m↳\\x1b[0m Error performing GET\\n   ↳ HTTP error\\n"))
    'Generic S3 error: Error performing GET: HTTP error'
    """
    return " ".join(_STEP.sub(": ", _COLOUR.sub("", str(error))).split())
