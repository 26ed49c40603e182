"""Which Sparks the installed packages can run, told without loading any of them.

`headwater` brings none, `headwater[sail]` Sail and the client for Spark Connect, `headwater[spark]` Apache Spark too.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from engine.spark.target import Kind, Target

_MIRROR = ("deltalake", "pandas", "pyarrow", "pyspark", "grpc")
_PACKAGES = {
    Kind.LOCAL: (*_MIRROR, "py4j"),
    Kind.CLUSTER: (*_MIRROR, "py4j"),
    Kind.CONNECT: _MIRROR,
    Kind.SAIL: (*_MIRROR, "pysail"),
    Kind.OFF: (),
}


class SparkNotInstalled(ValueError):
    """What a target needs is not installed; `hint` says how to install it."""

    def __init__(self, target: Target, missing: str):
        super().__init__(f'"{target.shown}" needs {missing}, which is not installed')
        if target.kind not in (Kind.LOCAL, Kind.CLUSTER):
            self.hint = "run pip install 'headwater[sail]', or use off"
        elif find_spec("pyspark") is None:
            self.hint = "run pip install 'headwater[spark]', or use off"
        else:
            self.hint = "run pip uninstall pyspark-client, then pip install 'headwater[spark]', or use sail"


def check_installed(target: Target) -> None:
    """Raises SparkNotInstalled if a package is missing that the target needs."""
    missing = [name for name in _PACKAGES[target.kind] if find_spec(name) is None]
    if missing:
        raise SparkNotInstalled(target, missing[0] if missing != ["py4j"] else "Apache Spark")
    if "py4j" in _PACKAGES[target.kind] and not _has_jars():
        raise SparkNotInstalled(target, "Apache Spark")


def _has_jars() -> bool:
    """Whether PySpark is all of it, and not its client for Spark Connect alone."""
    spec = find_spec("pyspark")
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / "jars").is_dir()


def default_target() -> str:
    """What is used where nothing is asked for: the most that is installed, and runs on this machine."""
    for text in ("local[*]", "sail"):
        with suppress(SparkNotInstalled):
            check_installed(Target.parse(text))
            if text != "sail" or _sail_runs():
                return text
    return "off"


def _sail_runs() -> bool:
    from engine.spark.sail_program import why_unguarded

    return why_unguarded() is None


__all__ = ["SparkNotInstalled", "check_installed", "default_target"]
