"""The quickstart: it ends well, says what it promises, and leaves nothing behind unless asked to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from server.quickstart.stream_tables import STREAM_TABLES
from tests.e2e.commands.test_cli import HEADWATER, environment, headwater, left_behind, wait_until


def quickstart(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADWATER, "quickstart", *map(str, arguments)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=1100,
        stdin=subprocess.DEVNULL,
    )


def assert_proven(result: subprocess.CompletedProcess[str]) -> None:
    """It ended well, and every stream table was refreshed differentially and equal to its query at the end."""
    assert (result.returncode, result.stderr) == (0, "")
    said = result.stdout
    for table in STREAM_TABLES:
        assert re.search(rf"^{table.name} .* 0 +0 .* equal$", said, re.MULTILINE), table.name
        assert re.search(rf"^{table.name} +DIFFERENTIAL +postgres +\d", said, re.MULTILINE), table.name
    assert re.search(r"^\w+ +spark +[\d,]+ +[\d.]+ ", said, re.MULTILINE)
    assert "announced" in said
    assert "cancelled" in said


@pytest.mark.long
@pytest.mark.parametrize("spark", ["sail", "local[*]"])
def test_quickstart_proves_every_stream_table_and_leaves_nothing(tmp_path: Path, spark: str) -> None:
    assert_proven(quickstart("--spark", spark, TMPDIR=str(tmp_path)))
    assert not left_behind(tmp_path)
    assert not list(tmp_path.iterdir())


def test_kept_quickstart_proves_itself_holds_the_year_as_it_was_and_stops_as_it_says(tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = quickstart("--spark", "sail", "--keep", "--data", data)
    assert_proven(result)
    try:
        counts = "SELECT count(*), count(*) FILTER (WHERE status = 'cancelled'), sum(arr_delay) FROM flights"
        shown = headwater("psql", "--data", data, "-d", "flights", "-Atc", counts)
        assert shown.stdout == "336776|8255|2257174\n"
        assert "flights" in headwater("status", "--data", data).stdout
        again = quickstart("--spark", "off", "--data", data)
        assert again.returncode == 1
        assert "in use by another headwater server" in again.stderr
    finally:
        stop = re.search(r"^ +kill (\d+)$", result.stdout, re.MULTILINE)
        assert stop is not None
        os.kill(int(stop[1]), signal.SIGTERM)
        wait_until(lambda: not left_behind(data))
    again = quickstart("--spark", "off", "--data", data)
    assert again.returncode == 1
    assert 'there is a database "flights" already' in again.stderr


@pytest.mark.parametrize(
    "number",
    [*(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGINT, signal.SIGKILL)), signal.SIGTERM],
)
def test_interrupted_quickstart_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*HEADWATER, "quickstart", "--spark", "off"],
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "A year of flights" in line:
            break
    assert psutil.Process(process.pid).children()
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode != 0
    wait_until(lambda: not left_behind(tmp_path))
    if number != signal.SIGKILL:
        assert not list(tmp_path.iterdir())


def test_quickstart_in_a_directory_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = quickstart("--data", tmp_path / "file" / "data")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
