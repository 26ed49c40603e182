"""A real PostgreSQL for every test that wants one: one embedded cluster a run, a fresh database a test."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, Phase, settings

from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory
from tests.clusters import make_logins_cheap, new_database, started_cluster

# A cluster that does not wait for the disk (the tests stop processes, never the machine), and whose autovacuum does not
# take locks that a test with a lock_timeout would meet.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "256MB", "autovacuum": "off"}

MEMORY = Path("/dev/shm")
"""Files here are in memory. Most tests make a database, a thousand files: 0.02 s here, on a disk 0.1 to 0.3."""

ROOM = 12 * 2**30
"""Bytes that must be free there, and of memory."""

TESTS = Path(__file__).parent

# Where the tests run in several processes, these files are begun first: what takes longest must not come last.
LONGEST = (
    "sql/spark/test_render",
    "engine/spark/test_spark_sessions",
    "e2e/commands/test_cli_quickstart",
    "e2e/commands/test_cli",
    "e2e/stream_tables/test_redefine_differs",
    "e2e/immediate/test_life_cycle",
    "security/test_complexity",
    "security/test_immediate",
    "e2e/stream_tables/test_source_definitions",
    "e2e/stream_tables/test_redefine",
    "e2e/immediate/test_partitions",
    "e2e/security/test_privileges",
    "property/test_random_immediate",
    "e2e/stream_tables/test_accept_types_and_keys",
    "server/relay/test_silence",
    "e2e/stream_tables/test_scheduler",
    "property/test_random_full_on_spark",
    "property/test_random_queries",
    "tpch/test_tpch",
    "e2e/capture/test_wal",
    "e2e/capture/test_unlogged",
    "e2e/reliability/test_contention",
    "e2e/reliability/test_crash_loops",
    "e2e/spark/test_placement",
    "e2e/security/test_constructs",
    "e2e/stream_tables/test_life_cycle",
    "security/test_names",
    "e2e/capture/test_capture",
    "e2e/commands/test_metrics",
    "clients/test_clients",
    "property/test_equal_values",
    "security/test_requests",
    "engine/session/test_liveness",
    "sql/build/test_subqueries",
    "security/test_scanning",
    "e2e/files/test_lake",
    "sql/spark/test_deltas",
    "e2e/commands/test_maintenance",
    "e2e/stream_tables/test_bad_input",
    "e2e/stream_tables/test_reference_examples",
    "e2e/requests/test_two_phase",
    "security/test_sessions",
    "engine/compile/test_compile_pool",
    "e2e/security/test_names",
    "server/postgres/test_cluster",
    "e2e/requests/test_request_contexts",
    "engine/mirror/test_damage",
    "security/test_install",
    "e2e/queues/test_queues",
    "e2e/queues/test_python_consumer",
)


def pytest_configure(config: pytest.Config) -> None:
    """No test is a test of speed, and `make test` tries the same examples each time: `make test-long` looks for others.

    A shell that runs the tests in the background has SIGINT and SIGQUIT ignored; what is tested must not inherit that.
    """
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and _has_room(MEMORY):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each server would compile the whole program, each time
    same = "not long" in config.getoption("markexpr")
    settings.register_profile(
        "patient",
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        derandomize=same,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    )
    settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _has_room(directory: Path) -> bool:
    try:
        available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
        return shutil.disk_usage(directory).free >= ROOM and int(available.split()[1]) * 1024 >= ROOM
    except (OSError, StopIteration):
        return False


def _share(item: pytest.Item) -> int:
    marker = item.get_closest_marker("one_in")
    assert marker is not None
    return int(marker.args[0])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Of several processes each begins to collect elsewhere.

    In a new checkout whoever comes first to a file rewrites its assertions, and the others find that done: all four
    would else do it at the same time, 5 s of CPU time each.
    """
    report = yield
    workers = getattr(collector.config, "workerinput", {})
    if workers and isinstance(collector, pytest.Directory | pytest.Session) and report.result:
        first = len(report.result) * int(workers["workerid"].removeprefix("gw")) // int(workers["workercount"])
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest is begun first; of tests `one_in` n, the other cases are among the long ones.

    The order is the same in all processes, wherever they have begun.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("one_in") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        found.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))  # some of each kind, and always the same
        for item in found[-(-len(found) // _share(found[0])) :]:
            item.add_marker("long")

    def urgency(item: pytest.Item) -> tuple[int, Path, bool]:
        name = str(item.path.relative_to(TESTS).with_suffix("")) if item.path.is_relative_to(TESTS) else ""
        first = LONGEST.index(name) if name in LONGEST else len(LONGEST)
        return first, item.path, isinstance(item, pytest.Function)  # a file's doctests, then its tests

    if len({item.path for item in items}) > 1:
        items.sort(key=urgency)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The embedded PostgreSQL."""
    with started_cluster(tmp_path_factory.mktemp("cluster") / "data", SETTINGS) as postgres:
        make_logins_cheap(postgres.dsn())
        yield postgres


@pytest.fixture
def database(cluster: EmbeddedPostgres) -> Iterator[str]:
    """The name of a database that is empty, and is dropped after the test."""
    with new_database(cluster) as name:
        yield name


@pytest.fixture
def dsn(cluster: EmbeddedPostgres, database: str) -> str:
    """A connection string of the test's database that goes straight to PostgreSQL, not through the relay."""
    return cluster.dsn(database)


@pytest.fixture
def data_directory(tmp_path: Path) -> DataDirectory:
    """A data directory of the test's own."""
    return DataDirectory(tmp_path / "data").create()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of `localhost` that is its own authority, and its key, as PEM files."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"
