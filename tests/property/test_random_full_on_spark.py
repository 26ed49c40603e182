"""Whatever the query and the rows: what Spark computes is what PostgreSQL would have computed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.postgres.cluster import EmbeddedPostgres
from tests.clusters import new_database


def run(cluster: EmbeddedPostgres, target: str, examples: int, mode: str = "FULL") -> dict[str, int]:
    """Run the examples in a process; how many refreshes each executor did."""
    with new_database(cluster, "on_spark") as database:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.property.on_spark", target, mode),
                *(str(cluster.socket_dir), cluster.user, database, str(examples)),
            ],
            input=cluster.password + "\n",
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    assert done.returncode == 0, done.stderr[-6000:]
    print(done.stdout)  # why PostgreSQL computed what it did
    counts = done.stdout.strip().splitlines()[-1]
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", counts)}


def test_full_refreshes_on_sail_equal_their_queries(cluster: EmbeddedPostgres) -> None:
    assert run(cluster, "sail", 4).get("spark", 0) > 0


def test_differential_refreshes_on_sail_equal_their_queries(cluster: EmbeddedPostgres) -> None:
    assert run(cluster, "sail", 4, "DIFFERENTIAL").get("spark_delta", 0) > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["sail", "local[2]"])
def test_full_refreshes_on_spark_equal_their_queries_at_length(cluster: EmbeddedPostgres, target: str) -> None:
    assert run(cluster, target, 300).get("spark", 0) > 100


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["sail", "local[2]"])
def test_differential_refreshes_on_spark_equal_their_queries_at_length(cluster: EmbeddedPostgres, target: str) -> None:
    assert run(cluster, target, 200, "DIFFERENTIAL").get("spark_delta", 0) > 100
