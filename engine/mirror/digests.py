"""Digests of a mirror's files, by which a file that has rotted on its disk is told from what was written.

Parquet as delta-rs writes it has no checksums, and Spark, Sail and DataFusion read a flipped bit as another value. So
each file gets a digest as soon as it is first seen, which is right after it was written: in
`<table>/_headwater/<name>.xxh3`, which every Delta reader passes over. Files of an object store have none: those are
checked by the store, and reading them a second time would cost as much as the first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog
import xxhash

log = structlog.get_logger(__name__)

FOLDER = "_headwater"
SUFFIX = ".xxh3"
CHUNK = 4 << 20
_DIGEST = re.compile(r"[0-9a-f]{32}")
_known: dict[str, str] = {}
"""Digests of files by their paths; no path is ever used for other contents."""


def note(paths: Iterable[str]) -> None:
    """See to it that files have a digest, those that are gone excepted. Raises OSError."""
    for path in paths:
        if path not in _known:
            with suppress(FileNotFoundError):
                _known[path] = _stored(path) or _store(path)


def damaged(paths: Iterable[str]) -> list[str]:
    """The files that are not what was written, or are gone. Raises OSError."""
    found = []
    for path in dict.fromkeys(paths):
        try:
            if path not in _known:
                note([path])
            if digest(path) != _known[path]:
                found.append(path)
        except (FileNotFoundError, KeyError):
            found.append(path)
    return found


def discard(paths: Iterable[str]) -> None:
    """Remove damaged files: a table that misses one is not used, and is made anew."""
    for path in paths:
        log.warning("mirror_damaged", file=path)
        _known.pop(path, None)
        for each in (Path(path), _place(path)):
            each.unlink(missing_ok=True)


def tidy(table: str) -> None:
    """Forget the digests of files of a table that are gone."""
    with suppress(FileNotFoundError):
        for entry in os.scandir(os.path.join(table, FOLDER)):
            file = os.path.join(table, entry.name.removesuffix(SUFFIX))
            if not os.path.exists(file):
                _known.pop(file, None)
                os.unlink(entry.path)


def digest(path: str) -> str:
    """That of a file as it is read now. Raises OSError."""
    result = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(CHUNK, max(1, os.fstat(file.fileno()).st_size))))
        while size := file.readinto(buffer):
            result.update(buffer[:size])
    return result.hexdigest()


def _place(path: str) -> Path:
    folder, name = os.path.split(path)
    return Path(folder, FOLDER, name + SUFFIX)


def _stored(path: str) -> str | None:
    """What was noted of a file; None if nothing was, or if that was cut off by a crash."""
    try:
        text = _place(path).read_text("ascii", errors="replace")
    except FileNotFoundError:
        return None
    return text if _DIGEST.fullmatch(text) else None


def _store(path: str) -> str:
    made = digest(path)
    place = _place(path)
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_name(f"{place.name}.{os.getpid()}")
    temporary.write_text(made, "ascii")
    temporary.replace(place)
    return made
