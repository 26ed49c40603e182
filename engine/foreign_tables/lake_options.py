"""What the options of a lake table say: where its files are, and how they are to be read.

    CREATE SERVER lake FOREIGN DATA WRAPPER headwater_lake OPTIONS (location 's3://warehouse');
    CREATE FOREIGN TABLE events (id int, at timestamptz) SERVER lake
        OPTIONS (path 'events/*.parquet', format 'parquet');

Who owns the server says where files may be; who owns the table, which of these it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote as percent

from catalog.session import SqlError

WRAPPER = "headwater_lake"
FORMATS = ("parquet", "delta", "csv", "json")
SCHEMES = ("file", "s3")
_SERVER, _TABLE, _CSV = ("location",), ("path", "format"), ("header", "delimiter")


@dataclass(frozen=True, slots=True)
class LakeTable:
    """Files, as the options describe them."""

    location: str
    """URI below which they must be, without a slash at its end."""
    path: str
    """Relative to it, as it is written."""
    format: str
    header: bool = True
    """Of CSV: whether the first line of a file has the columns' names; without it they go by position."""
    delimiter: str = ","

    @property
    def uri(self) -> str:
        """The whole URI: only ``*``, ``?`` and ``[…]`` of the path keep a meaning."""
        return f"{self.location}/{percent(self.path, safe='/*[]!-')}"


def lake_table(server: Mapping[str, str], table: Mapping[str, str]) -> LakeTable:
    """The table that the options of a server and of a foreign table describe. Raises SqlError 22023.

    >>> lake_table({"location": "file:///data/"}, {"path": "a b/?.csv", "format": "csv"}).uri
    'file:///data/a%20b/%3F.csv'
    """
    _known("server", server, _SERVER)
    _known("foreign table", table, _TABLE + (_CSV if table.get("format") == "csv" else ()))
    for name, options in (("location", server), ("path", table), ("format", table)):
        if not options.get(name):
            raise _invalid(f'option "{name}" is required', f"Formats are {', '.join(FORMATS)}.")
    location, path = _location(server["location"]), table["path"]
    if path.startswith("/") or "://" in path or ".." in path.split("/") or "\0" in path:
        raise _invalid(f'path "{path}" is not below the server\'s location', "Paths are relative, without '..'.")
    if table["format"] not in FORMATS:
        raise _invalid(f'invalid format "{table["format"]}"', f"Formats are {', '.join(FORMATS)}.")
    header = table.get("header", "true").lower()
    if header not in ("true", "false"):
        raise _invalid(f'invalid value "{table["header"]}" of option "header"', "It is true or false.")
    delimiter = table.get("delimiter", ",")
    if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
        raise _invalid(f'invalid delimiter "{delimiter}"', "It is one byte.")
    return LakeTable(location, path, table["format"], header == "true", delimiter)


def _location(given: str) -> str:
    """A server's location, without a slash at its end. Raises SqlError 22023."""
    location = given.rstrip("/")
    scheme, separator, rest = location.partition("://")
    if not separator or scheme not in SCHEMES or (scheme == "file") != rest.startswith("/") or ".." in rest.split("/"):
        raise _invalid(f'invalid location "{given}"', "Locations are file:///directory and s3://bucket/directory.")
    return location


def _known(whose: str, options: Mapping[str, str], allowed: tuple[str, ...]) -> None:
    for name in options:
        if name not in allowed:
            raise _invalid(
                f'invalid option "{name}" of a {WRAPPER} {whose}',
                f"Options of the server: location. Of a foreign table: path, format"
                f" ({', '.join(FORMATS)}); with csv also header, delimiter.",
            )


def _invalid(message: str, hint: str) -> SqlError:
    return SqlError("22023", message, hint=hint)
