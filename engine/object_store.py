"""Object stores where the files of users are: how they are reached, and what they say when they fail, in one line."""

from __future__ import annotations

import os
import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\s*(?:↳|->)\s*")


def storage_message(error: BaseException) -> str:
    """The text of an error without the colours and lines that deltalake draws it with.

    >>> storage_message(OSError("Generic S3 error\\n  \\x1b[31m↳\\x1b[0m Error performing GET\\n   ↳ HTTP error\\n"))
    'Generic S3 error: Error performing GET: HTTP error'
    """
    return " ".join(_STEP.sub(": ", _COLOUR.sub("", str(error))).split())


def environment_options() -> dict[str, str]:
    """What deltalake is told of object stores where users' files are, for which the environment has the credentials.

    It reads ``AWS_*`` of the environment itself, but for plain HTTP, which it must be allowed.
    """
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"AWS_ALLOW_HTTP": "true"} if plain else {}
