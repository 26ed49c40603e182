"""What `--spark` may be depends on the packages that are installed: none, Sail and a client, or Apache Spark too."""

from __future__ import annotations

import errno
import platform
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from engine.spark import installed, sail_program
from engine.spark.installed import SparkNotInstalled, check_installed, default_target
from engine.spark.target import Target

SAIL = ("deltalake", "pandas", "pyarrow", "pyspark", "grpc", "pysail")
SPARK = (*SAIL, "py4j")
TARGETS = ("local[*]", "local[2]", "spark://master:7077", "sc://connect:15002", "sail", "off")


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, packages: tuple[str, ...]) -> None:
    """Have these packages be all there are; PySpark with Spark's own files if py4j is one of them."""
    (folder / "pyspark" / ("jars" if "py4j" in packages else "python")).mkdir(parents=True)

    def find(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None, origin=str(folder / name / "__init__.py")) if name in packages else None

    monkeypatch.setattr(installed, "find_spec", find)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sail_program, "_filter", lambda listening, instructions: None)


def runs(target: str) -> bool:
    try:
        check_installed(Target.parse(target))
    except SparkNotInstalled:
        return False
    return True


@pytest.mark.parametrize(
    ("packages", "accepted", "default"),
    [
        ((), {"off"}, "off"),
        (SAIL, {"sc://connect:15002", "sail", "off"}, "sail"),
        (SPARK, set(TARGETS), "local[*]"),
    ],
)
def test_targets_that_run_and_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: tuple[str, ...], accepted: set[str], default: str
) -> None:
    install(monkeypatch, tmp_path, packages)
    assert {target for target in TARGETS if runs(target)} == accepted
    assert default_target() == default


def test_py4j_without_the_files_of_spark_is_no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, SPARK)
    (tmp_path / "pyspark" / "jars").rmdir()
    assert not runs("local[*]")


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_sail_is_no_default_where_it_cannot_be_guarded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str
) -> None:
    install(monkeypatch, tmp_path, SAIL)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert default_target() == "off"


def test_sail_is_no_default_where_this_user_can_set_no_packet_filter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(listening: object, instructions: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    install(monkeypatch, tmp_path, SAIL)
    monkeypatch.setattr(sail_program, "_filter", refuse)
    assert default_target() == "off"
    assert "SO_ATTACH_FILTER" in (sail_program.why_unguarded() or "")


@pytest.mark.parametrize(
    ("packages", "target", "hint"),
    [
        ((), "local[*]", "run pip install 'headwater[spark]', or use off"),
        ((), "sc://connect:15002/;token=secret", "run pip install 'headwater[sail]', or use off"),
        (SAIL, "spark://master:7077", "pip uninstall pyspark-client, then pip install 'headwater[spark]', or use sail"),
    ],
)
def test_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: tuple[str, ...], target: str, hint: str
) -> None:
    install(monkeypatch, tmp_path, packages)
    with pytest.raises(SparkNotInstalled, match="which is not installed") as caught:
        check_installed(Target.parse(target))
    assert caught.value.hint.endswith(hint)
    assert "secret" not in str(caught.value)
