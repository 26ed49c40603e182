"""What may be asked of Spark: a target (`--spark`), and properties (`--spark-conf`) that change no result."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

SESSION_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.variable.substitute": "false",
}
"""What results depend on: set on every session, whatever the server's own configuration.

Spark would else put variables of its environment in the place of ${env:NAME}, also in literals of users' queries.
"""


def parse_conf(words: Iterable[str]) -> dict[str, str]:
    """Spark properties from `name=value`. Raises SparkTargetError for what is none, or is not to be changed.

    >>> parse_conf(["spark.executor.memory=4g"])
    {'spark.executor.memory': '4g'}
    """
    conf = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"spark\.[A-Za-z0-9._-]+", name):
            raise SparkTargetError(word, "Spark property", "write name=value, for instance spark.executor.memory=4g")
        if name in SESSION_CONF or name == "spark.master":
            raise SparkTargetError(word, "Spark property", f"{name} is set by the server; results depend on it")
        conf[name] = value
    return conf


class SparkTargetError(ValueError):
    """A `--spark` or `--spark-conf` value that is none; `hint` says what would be one."""

    def __init__(
        self,
        text: str,
        what: str = "Spark target",
        hint: str = "use local[*], local[N], spark://host:port, sc://host:port, sail or off",
    ):
        super().__init__(f'invalid {what} "{text}"')
        self.hint = hint


class Kind(Enum):
    LOCAL = "local"
    CLUSTER = "cluster"
    CONNECT = "connect"
    SAIL = "sail"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed Spark target.

    >>> Target.parse("local[2]").kind
    <Kind.LOCAL: 'local'>
    >>> Target.parse("yarn")
    Traceback (most recent call last):
    engine.spark.target.SparkTargetError: invalid Spark target "yarn"
    """

    kind: Kind
    url: str

    @property
    def shown(self) -> str:
        """The URL for logs and messages, without parameters: a token may be among them.

        >>> Target.parse("sc://host:15002/;token=secret").shown
        'sc://host:15002/'
        """
        return self.url.partition(";")[0]

    @staticmethod
    def parse(text: str) -> Target:
        """Raises SparkTargetError."""
        if text in ("off", "sail"):
            return Target(Kind(text), text)
        if re.fullmatch(r"local(\[(\*|[1-9]\d*)\])?", text):
            return Target(Kind.LOCAL, text)
        if re.fullmatch(r"spark://[^/\s:]+:\d+(,[^/\s:]+:\d+)*", text):
            return Target(Kind.CLUSTER, text)
        if re.fullmatch(r"sc://[^/\s:;]+(:\d+)?(/(;[^\s]*)?)?", text):
            return Target(Kind.CONNECT, text)
        raise SparkTargetError(text)


__all__ = ["SESSION_CONF", "Kind", "SparkTargetError", "Target", "parse_conf"]
