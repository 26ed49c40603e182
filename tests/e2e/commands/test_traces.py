"""`headwater serve` with a collector of OpenTelemetry's: what it exports, and the log lines that belong to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.commands.otlp import Collector, Span
from tests.e2e.conftest import BLOCKED, Headwater

TRACE = "0af7651916cd43dd8448eb211c8031{:02x}"
CALLER = "b7ad6b7169203331"


def traceparent(number: int) -> str:
    """A comment as sqlcommenter writes it."""
    return f"/*framework='django',traceparent='00-{TRACE.format(number)}-{CALLER}-01'*/"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Headwater]:
    place = tmp_path_factory.mktemp("traces")
    running = Headwater(place / "data", "--log-format", "json", "--log-level", "debug", "--warn-blocked", str(BLOCKED))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        running.start()
    try:
        running.administrator().execute("CREATE TABLE orders (id int, price int)")
        running.administrator().execute(
            "SELECT pgtrickle.create_stream_table('shares', 'SELECT id, 100 / price AS share FROM orders', '1h')"
        )
        starting = len(running.log)
        yield running
        assert "event loop blocked" not in running.log[starting:]
    finally:
        assert running.stop() == 0


def lines(server: Headwater) -> list[dict[str, object]]:
    """Its log: every line is an object, but for one that is just being written."""
    return [json.loads(line) for line in server.log.splitlines(keepends=True) if line.endswith("\n")]


def steps(collector: Collector, refresh: Span) -> list[str]:
    """The names of the spans within a refresh, in the order in which they ended."""
    return [each.name.removeprefix("headwater.refresh.") for each in collector.spans if each.parent == refresh.id]


def assert_refreshed(collector: Collector, number: int) -> Span:
    """The refresh that a statement with a traceparent has asked for: each span is within the one that began it."""
    trace = TRACE.format(number)
    (statement,) = collector.until(
        lambda: [each for each in collector.named("headwater.statement") if each.trace == trace]
    )
    assert statement.parent == CALLER and statement.of_client and not statement.failed
    assert statement.attributes == {"db.system.name": "postgresql", "db.namespace": "postgres"}
    (request,) = [each for each in collector.named("headwater.request", request="refresh") if each.trace == trace]
    (refresh,) = [each for each in collector.named("headwater.refresh") if each.trace == trace]
    assert (request.parent, refresh.parent) == (statement.id, request.id)
    assert statement.seconds >= request.seconds >= refresh.seconds > 0
    return refresh


def test_a_refresh_has_its_steps_and_the_statements_parent(traced: Headwater, collector: Collector) -> None:
    traced.administrator().execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
    traced.administrator().execute(f"SELECT pgtrickle.refresh_stream_table('shares') {traceparent(1)}")
    refresh = assert_refreshed(collector, 1)
    assert refresh.attributes == {
        "headwater.stream_table": "public.shares",
        "headwater.initiator": "MANUAL",
        "headwater.action": "DIFFERENTIAL",
        "headwater.executor": "postgres",
        "headwater.changes": 2,
        "headwater.rows.inserted": 2,
        "headwater.rows.updated": 0,
        "headwater.rows.deleted": 0,
    }
    assert refresh.resource["service.name"] == "headwater" and refresh.resource["service.version"]
    assert steps(collector, refresh) == ["plan", "write", "apply", "record"]
    assert collector.paths == {"/v1/traces"}
    (line,) = [each for each in lines(traced) if each.get("trace_id") == refresh.trace and each["event"] == "refreshed"]
    assert line["span_id"] == refresh.id and line["stream_table"] == "public.shares"


def test_a_traceparent_is_found_in_every_protocol(traced: Headwater, collector: Collector) -> None:
    with psycopg.connect(traced.dsn(), autocommit=True) as connection:
        query = "SELECT pgtrickle.refresh_stream_table(%s) "
        connection.execute("INSERT INTO orders VALUES (3, 5)")
        connection.execute(query + traceparent(2), ["shares"])  # parameters: the extended protocol
        assert_refreshed(collector, 2)
        connection.execute("INSERT INTO orders VALUES (4, 5)")
        connection.execute(f"SELECT 1; SELECT pgtrickle.refresh_stream_table('shares'); {traceparent(3)}")
        assert_refreshed(collector, 3)
        connection.execute(
            "CREATE FUNCTION refresh_it() RETURNS void LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pgtrickle.refresh_stream_table('shares'); END $$"
        )
        for number, begin in ((4, False), (5, True)):  # the engine learns of it when it has been made
            connection.execute(f"INSERT INTO orders VALUES ({number}, 5)")
            connection.execute("BEGIN") if begin else None
            connection.execute(f"SELECT refresh_it() {traceparent(number)}")
            connection.execute("COMMIT") if begin else None
            assert_refreshed(collector, number)


def test_a_failure_has_its_sqlstate_and_nothing_of_a_row(traced: Headwater, collector: Collector) -> None:
    traced.administrator().execute("CREATE TABLE secrets (secret text)")
    create = "SELECT pgtrickle.create_stream_table('cast_secrets', 'SELECT secret::int AS n FROM secrets', '1h')"
    traced.administrator().execute(create)
    traced.administrator().execute("INSERT INTO secrets VALUES ('hunter2')")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="hunter2"):
        traced.administrator().execute("SELECT pgtrickle.refresh_stream_table('cast_secrets')" + traceparent(6))
    trace = TRACE.format(6)
    collector.until(lambda: [each for each in collector.named("headwater.statement") if each.trace == trace])
    failed = {
        each.name: each.attributes["error.type"] for each in collector.spans if each.trace == trace and each.failed
    }
    names = ("statement", "request", "refresh", "refresh.apply")
    assert failed == dict.fromkeys((f"headwater.{name}" for name in names), "22P02")
    assert b"hunter2" not in collector.received


def test_a_scheduled_refresh_is_a_trace_of_its_own(traced: Headwater, collector: Collector) -> None:
    traced.administrator().execute("CREATE TABLE visits (page int)")
    create = (
        "SELECT pgtrickle.create_stream_table('pages', 'SELECT page, count(*) AS n FROM visits GROUP BY page', '1s')"
    )
    traced.administrator().execute(create)
    traced.administrator().execute("INSERT INTO visits VALUES (1), (1), (2)")
    (refresh, *_) = collector.until(
        lambda: collector.named("headwater.refresh", stream_table="public.pages", initiator="SCHEDULER")
    )
    assert refresh.parent == "" and refresh.attributes["headwater.rows.inserted"] == 2
    assert steps(collector, refresh) == ["plan", "write", "apply", "record"]
    traced.administrator().execute("SELECT pgtrickle.drop_stream_table('pages')")


def test_a_request_past_the_server_is_a_trace_of_its_own(traced: Headwater, collector: Collector) -> None:
    past = traced.administrator(direct=True)
    past.execute("INSERT INTO orders VALUES (7, 5)")
    past.execute(f"SELECT pgtrickle.refresh_stream_table('shares') {traceparent(7)}")  # nobody sees the text
    (request,) = collector.until(
        lambda: [each for each in collector.named("headwater.request", request="refresh") if not each.parent]
    )
    assert request.attributes["headwater.request.name"] == "shares"
    (refresh,) = [each for each in collector.named("headwater.refresh") if each.parent == request.id]
    assert refresh.attributes["headwater.rows.inserted"] == 1


def test_a_wrong_traceparent_begins_a_trace(traced: Headwater, collector: Collector) -> None:
    nothing = f"/*traceparent='00-{'0' * 32}-{CALLER}-01'*/"
    traced.administrator().execute("SELECT pgtrickle.alter_stream_table('shares', schedule => '2h')" + nothing)
    (altered,) = collector.until(lambda: collector.named("headwater.request", request="alter"))
    (statement,) = collector.until(lambda: [each for each in collector.spans if each.id == altered.parent])
    assert statement.parent == "" and statement.trace == altered.trace != "0" * 32


EXPORT = """
import asyncio, sys
sys.path[:0] = {path!r}
from engine import tracing
from server.commands import logs, traces
from server.postgres.data_directory import StartupError

logs.configure("info", "json")
try:
    exporting = traces.start({url!r})
except StartupError as error:
    sys.exit(f"{{error}}. {{error.hint}}")
with tracing.span("headwater.test"):
    pass
if exporting is not None:
    asyncio.run(exporting.stop())
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "requests"))))
"""


def export(url: str | None, path: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    """One span of a program that starts traces as the server does; it prints what it has loaded for that."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", EXPORT.format(url=url, path=list(path))]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**clean, **variables})


@pytest.fixture
def without_extra(tmp_path: Path) -> str:
    """A path on which OpenTelemetry cannot be imported."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('it is not installed')")
    return str(tmp_path)


def test_the_option_wins_over_the_environment() -> None:
    with Collector() as collector:
        nowhere = "http://127.0.0.1:1"
        done = export(f"{collector.url}/base", OTEL_EXPORTER_OTLP_ENDPOINT=nowhere, OTEL_SERVICE_NAME="mine")
        assert done.returncode == 0, done.stderr
        (span,) = collector.spans
        assert (span.name, span.resource["service.name"]) == ("headwater.test", "mine")
        assert collector.paths == {"/base/v1/traces"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_without_traces_nothing_is_loaded(variables: dict[str, str]) -> None:
    done = export(None, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_without_the_extra_the_option_is_refused_and_the_environment_is_warned_of(without_extra: str) -> None:
    refused = export("http://127.0.0.1:1", (without_extra,))
    assert refused.returncode == 1 and "traces need OpenTelemetry: it is not installed" in refused.stderr
    assert "pip install 'headwater[otel]'" in refused.stderr
    warned = export(None, (without_extra,), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert warned.returncode == 0, warned.stderr
    assert "but no traces are exported" in json.loads(warned.stderr)["event"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, 'not exported by OTLP over "grpc"'),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, 'there is no exporter "zipkin"'),
    ],
)
def test_other_ways_to_export_are_refused(variables: dict[str, str], said: str) -> None:
    done = export(None, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **variables)
    assert done.returncode == 1 and said in done.stderr


def test_a_collector_that_is_gone_holds_nothing_up() -> None:
    done = export("http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['opentelemetry'")
