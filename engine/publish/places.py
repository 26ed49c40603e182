"""Where publications may be. Nothing here loads Arrow: a server without it refuses them by these means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from catalog.session import SqlError
from engine.mirror.location import SCHEMES, parse_uri

DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)
ICEBERG_DATA = "data"
"""The Delta table whose files an Iceberg table has, below the location of that."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

HINT = "A location is an absolute path, such as /srv/lake/totals, or an object store's, such as s3://lake/totals."


@dataclass(frozen=True, slots=True)
class Places:
    """Where publications may be: nowhere in the server's own directories, whatever links lead there."""

    own: tuple[Path, ...] = ()

    def checked(self, location: str) -> str:
        """A location as a path without links, or as a URI. Raises SqlError 22023; 42501 in an own directory.

        >>> Places().checked("s3://lake/totals/"), Places().checked("file:///srv/lake/./totals")
        ('s3://lake/totals', '/srv/lake/totals')
        >>> Places().checked("lake/totals")
        Traceback (most recent call last):
        catalog.session.SqlError: invalid location "lake/totals" of a publication
        """
        scheme = _SCHEME.match(location)
        local = location.removeprefix("file://")
        if scheme is None or scheme[1] == "file":
            if not local.startswith("/") or "\0" in local:
                raise _invalid(location)
            path = Path(local).resolve()
            for directory in self.own:
                if path.is_relative_to(directory.resolve()):
                    raise SqlError("42501", f'location "{location}" is in the data directory of the server', hint=HINT)
            return str(path)
        if scheme[1] not in SCHEMES or ".." in location.split("/") or "?" in location or "#" in location:
            raise _invalid(location)
        if not location[scheme.end() :].strip("/"):
            raise _invalid(location)
        return parse_uri(location)


def _invalid(location: str) -> SqlError:
    return SqlError("22023", f'invalid location "{location}" of a publication', hint=HINT)


def check_installed(format_: str) -> None:
    """Raises SqlError 0A000 where what writes tables of a format is not installed."""
    if find_spec("deltalake") is None or find_spec("pyarrow") is None:
        raise SqlError(
            "0A000",
            "publications need the package deltalake",
            hint="pip install 'headwater[mirror]'",
        )
    if format_ == ICEBERG and find_spec("pyiceberg") is None:
        raise SqlError(
            "0A000",
            "publications as Iceberg tables need the package pyiceberg",
            hint="pip install 'headwater[iceberg]'",
        )
