"""Where the mirror is kept: `--mirror` and `--mirror-option`, and what Spark must be told to read there."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from engine.mirror.delta_table import Location

log = structlog.get_logger(__name__)

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
"""Object stores that deltalake knows. Only s3 is tested."""


class MirrorLocationError(ValueError):
    """A `--mirror` or `--mirror-option` that is none."""


def parse_uri(text: str) -> str:
    """An absolute path, or an object store's URI without a slash at its end. Raises MirrorLocationError.

    >>> parse_uri("s3://bucket/mirror/")
    's3://bucket/mirror'
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if scheme is None:
        return str(Path(text).expanduser().absolute())
    if scheme[1] == "file":
        return str(Path(text.removeprefix("file://")).absolute())
    if scheme[1] not in SCHEMES or not text[scheme.end() :].strip("/"):
        raise MirrorLocationError(f'invalid mirror location "{text}"')
    return text.rstrip("/")


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` words as deltalake's storage options, in any case: those of Amazon's that Sail reads, too, as it
    finds them in the environment, and all others as deltalake knows them. Raises MirrorLocationError.

    >>> parse_options(["aws_region=eu-west-1", "MAX_RETRIES=3"])
    {'AWS_REGION': 'eu-west-1', 'max_retries': '3'}
    """
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise MirrorLocationError(f'invalid storage option "{word}"')
        options[name.upper() if name.upper().startswith("AWS_") else name.lower()] = value
    return options


def location(uri: str | None, options: Sequence[str], default: Path, *, alone: bool = True) -> Location:
    """The mirror's location: without a URI the default directory, which belongs to this server, and if it is `alone` to
    this process.

    What stands in the environment (``AWS_ACCESS_KEY_ID`` ...) deltalake finds by itself. Raises MirrorLocationError.
    """
    from engine.mirror.delta_table import Location  # it loads Arrow; the command line only checks what was given

    if uri is None:
        return Location.local(default, private=alone)
    return Location(parse_uri(uri), parse_options(options), private=False)


def spark_properties(place: Location, target: str) -> dict[str, str]:
    """Properties that a Spark session needs to read the mirror.

    Sail reads object stores itself, as the environment says. Apache Spark reads ``s3://`` with hadoop-aws, which is
    not part of it: its operator gives it the jars and the credentials.
    """
    if not place.remote:
        return {}
    if target == "sail":
        os.environ.update({name: value for name, value in place.options.items() if name.startswith("AWS_")})
        return {}
    if place.uri.startswith("s3://"):
        log.info("Apache Spark needs hadoop-aws to read the mirror", mirror=place.uri)
        return {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    return {}
