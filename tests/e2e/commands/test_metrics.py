"""`headwater serve --metrics`: what a scraper and a load balancer get from a running server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from catalog.values import Action
from server.metrics.described import DESCRIBED, documented_name
from tests import promql
from tests.e2e.commands.test_dashboards import every_expression
from tests.e2e.conftest import BLOCKED, Headwater

ROOT = Path(__file__).parents[3]
OBJECTS = 4
ACTIONS = {action.lower() for action in Action}
"""Of refreshes: some are done in special cases only."""
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


class Scraped:
    """What one scrape gave."""

    def __init__(self, text: str):
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float | None:
        """Of the one sample with these labels; None where there is none."""
        found = self.all(name, **labels)
        assert len(found) <= 1, found
        return next(iter(found.values()), None)

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of all samples of that name."""
        return [one.labels for each in self.families.values() for one in each.samples if one.name == name]

    def all(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """All samples that have these labels, by the values of their labels."""
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }


class Measured(Headwater):
    """A server with metrics."""

    @property
    def address(self) -> str:
        return re.findall(r"url=http://(\S+)/metrics", self.log)[-1]

    def get(self, path: str, timeout: float = 30.0) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", headers=OPENMETRICS)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def scrape(self) -> Scraped:
        status, text = self.get("/metrics")
        assert status == 200, text
        return Scraped(text)

    def until(self, holds: Callable[[Scraped], bool], seconds: float = 60.0) -> Scraped:
        """The first scrape for which that holds."""
        end = time.monotonic() + seconds
        while not holds(found := self.scrape()):
            assert time.monotonic() < end, {
                name: [sample for sample in family.samples] for name, family in found.families.items()
            }
            time.sleep(0.5)
        return found

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.administrator().execute(statement)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    place = tmp_path_factory.mktemp("metrics")
    options = ("--metrics", "0", "--metrics-objects", str(OBJECTS), "--warn-blocked", str(BLOCKED))
    running = Measured(place / "data", *options)
    running.start()
    starting = len(running.log)
    try:
        yield running
        assert "event loop blocked" not in running.log[starting:]
    finally:
        assert running.stop() == 0


def test_statements_bytes_errors_and_waits_are_counted(measured: Measured) -> None:
    measured.administrator()
    before = measured.scrape()
    with psycopg.connect(measured.dsn(), autocommit=True) as connection:
        for _ in range(40):
            connection.execute("SELECT pg_catalog.repeat('x', 1000)")
        connection.execute("SELECT pg_sleep(1)")
        for statement in ("SELECT 1 / 0", "SELECT nothing", "SELECT pgtrickle.refresh_stream_table('nothing')"):
            with pytest.raises(psycopg.Error):
                connection.execute(statement)
        connection.execute("DO $$ BEGIN NULL; END $$")
        with pytest.raises(psycopg.Error):
            connection.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'ZZ001'; END $$")
        after = measured.scrape()
        assert (
            after.value("headwater_connections", state="idle")
            == before.value("headwater_connections", state="idle") + 1
        )
        connection.autocommit = False
        connection.execute("SELECT 1")
        assert measured.scrape().value("headwater_connections", state="idle_in_transaction") == 1

    def grown(name: str, **labels: str) -> float:
        return (after.value(name, **labels) or 0.0) - (before.value(name, **labels) or 0.0)

    assert grown("headwater_statements_total") == 47  # psycopg prepares what is repeated, which is one more
    assert 40_000 < grown("headwater_received_bytes_total", source="postgres") < 60_000
    assert 1000 < grown("headwater_received_bytes_total", source="client") < 8000
    assert grown("headwater_errors_total", sqlstate_class="22") == 1
    assert grown("headwater_errors_total", sqlstate_class="42") == 2
    assert grown("headwater_errors_total", sqlstate_class="other") == 1
    assert grown("headwater_connections_opened_total") == 1
    assert grown("headwater_statement_duration_seconds_count") == 47
    assert (
        grown("headwater_statement_duration_seconds_count")
        - grown("headwater_statement_duration_seconds_bucket", le="0.262144")
        >= 1
    )
    assert grown("headwater_statement_duration_seconds_sum") > 1
    assert grown("headwater_relay_added_seconds_count") == 2
    assert 0 < grown("headwater_relay_added_seconds_sum") < 1


def values_not_given(found: Scraped) -> list[str]:
    """Expressions of dashboards and alerts that name a value of a label which the server does not give."""
    wrong = []
    for text in every_expression():
        for selector in promql.selectors(promql.parse(text)):
            own = promql.SERIES[selector.name] - promql.OF_PROMETHEUS
            for each in selector.matchers.matchers:
                if each.name in own and not each.value.startswith("$"):
                    given = {labels[each.name] for labels in found.labels(selector.name)}
                    known = given | (ACTIONS if each.name == "action" else set())
                    wrong += [] if set(each.value.split("|")) <= known else [text]
    return [text for text in wrong if "headwater_spark_" not in text]  # the server runs without Spark


def test_refreshes_failures_and_suspension_of_stream_tables(measured: Measured) -> None:
    measured.run(
        "CREATE TABLE numbers (id int, divisor int)",
        "SELECT pgtrickle.create_stream_table('divided', 'SELECT id, 1 / divisor AS n FROM numbers', '1h')",
        "INSERT INTO numbers VALUES (1, 1), (2, 1)",
        "SELECT pgtrickle.refresh_stream_table('divided')",
        "TRUNCATE numbers",
        "SELECT pgtrickle.refresh_stream_table('divided')",
        "INSERT INTO numbers VALUES (1, 1), (2, 1), (3, 0)",
    )
    found = measured.until(
        lambda found: found.value("headwater_stream_table_lag_rows", stream_table="public.divided") == 3
    )
    table = {"database": "postgres", "stream_table": "public.divided"}
    assert 0 < found.value("headwater_stream_table_lag_seconds", **table) < 100
    assert found.value("headwater_stream_table_suspended", **table) == 0
    assert found.value("headwater_stream_table_buffer_bytes", **table) > 0
    refreshes = "headwater_stream_table_refreshes_total"
    assert found.value(refreshes, **table, action="differential", status="completed") == 1
    assert found.value("headwater_stream_table_rows_total", **table, change="inserted") == 2
    assert found.value("headwater_refresh_fallbacks_total", database="postgres", reason="truncated") == 1
    duration = found.all("headwater_refresh_duration_seconds_count", database="postgres", action="differential")
    assert duration == {("differential", "postgres", "postgres"): 1}
    measured.run("SELECT pgtrickle.alter_stream_table('divided', schedule => '1s')")
    found = measured.until(lambda found: found.value("headwater_stream_table_suspended", **table) == 1)
    assert sum(found.all(refreshes, **table, status="failed").values()) == 3
    assert found.value("headwater_stream_table_consecutive_errors", **table) == 3
    assert found.value("headwater_stream_tables", database="postgres", status="suspended") == 1
    assert found.value("headwater_scheduler_running", database="postgres") == 1
    assert values_not_given(found) == []
    measured.run("SELECT pgtrickle.drop_stream_table('divided')")


def test_queues_with_a_consumer_that_lags_and_dead_letters(measured: Measured) -> None:
    measured.run(
        "SELECT pgque.create_queue('jobs')",
        "SELECT pgque.subscribe('jobs', 'idler')",
        "SELECT pgque.send('jobs', 'job', n::text) FROM generate_series(1, 25) AS n",
    )
    labels = {"database": "postgres", "queue": "jobs"}
    found = measured.until(
        lambda found: (
            found.value("headwater_consumer_pending_events", **labels, consumer="idler") == 25
            and (found.value("headwater_consumer_lag_seconds", **labels, consumer="idler") or 0) > 1
        )
    )
    assert found.value("headwater_queue_depth", **labels) == 25
    assert found.value("headwater_queue_age_seconds", **labels) > 1
    assert found.value("headwater_queue_ticks_total", **labels) >= 1
    assert found.value("headwater_queue_tick_age_seconds", **labels) < 100
    assert found.value("headwater_queue_dead_letters", **labels) == 0


def test_pending_rows_of_registers_and_what_is_held_for_subscriptions(measured: Measured) -> None:
    measured.run(
        "ALTER DATABASE postgres SET pg_accumulator.delta_merge_delay = '1h'",
        'SELECT accum.register_create(\'stock\', \'{"item": "int"}\', \'{"n": "int"}\', high_write := true)',
        'SELECT accum.register_post(\'stock\', \'[{"recorder": "a", "period": "2026-01-01", "item": 1, "n": 2}]\')',
        "CREATE TABLE held (id int)",
        "ALTER TABLE held SET (RETAIN HISTORY FOR '1 hour')",
        "INSERT INTO held VALUES (1), (2)",
    )
    with psycopg.connect(measured.dsn()) as follower:
        follower.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT * FROM held)")
        follower.execute("FETCH 1 c")
        # What is committed from then on is behind the beginning of the history.
        measured.until(lambda found: (found.value("headwater_history_held_seconds", relation="public.held") or 0) > 0)
        measured.run("INSERT INTO held VALUES (3), (4)")
        found = measured.until(
            lambda found: (
                found.value("headwater_subscription_clients", database="postgres") == 1
                and found.value("headwater_register_pending_rows", register="stock") is not None
                and (found.value("headwater_register_pending_rows", register="stock") or 0) >= 1
                and found.value("headwater_history_changes", relation="public.held") == 2
            )
        )
        assert found.value("headwater_subscriptions", database="postgres") == 1
        assert found.value("headwater_registers", database="postgres") == 1
        assert found.value("headwater_history_held_seconds", relation="public.held") >= 0


def test_how_far_publications_are_and_what_was_written_of_them(measured: Measured, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    measured.run(
        "CREATE TABLE bought (id int PRIMARY KEY, what text)",
        "INSERT INTO bought SELECT n, 'thing' FROM generate_series(1, 10) AS n",
        "SELECT pgtrickle.create_stream_table('published', 'SELECT id, what FROM bought', '1h')",
        f"SELECT pgtrickle.publish('published', 'delta', '{place}')",
    )
    labels = {"database": "postgres", "stream_table": "public.published", "location": str(place)}

    def figures(found: Scraped) -> tuple[float | None, ...]:
        return (
            found.value("headwater_publication_commits_total", **labels),
            found.value("headwater_publication_rows_total", **labels, change="written"),
            found.value("headwater_publication_rows_total", **labels, change="removed"),
            found.value("headwater_publication_unpublished_refreshes", **labels),
            found.value("headwater_publication_failing", **labels),
            found.value("headwater_publication_lag_seconds", **labels),
        )

    measured.until(lambda found: figures(found) == (1, 10, 0, 0, 0, 0))
    measured.run(
        "INSERT INTO bought VALUES (11, 'new')",
        "UPDATE bought SET what = 'other' WHERE id <= 2",
        "DELETE FROM bought WHERE id > 8",
        "SELECT pgtrickle.refresh_stream_table('published')",
    )
    found = measured.until(lambda found: figures(found) == (2, 12, 2, 0, 0, 0))
    assert found.value("headwater_publication_failures_total", **labels) == 0
    place.rename(tmp_path / "away")
    place.write_text("")
    measured.run("INSERT INTO bought VALUES (20, 'late')", "SELECT pgtrickle.refresh_stream_table('published')")
    found = measured.until(
        lambda found: (
            figures(found)[:5] == (2, 12, 2, 1, 1)
            and (found.value("headwater_publication_failures_total", **labels) or 0) >= 1
        )
    )
    assert (found.value("headwater_publication_lag_seconds", **labels) or 0) > 0
    shown = subprocess.run(
        [sys.executable, "-m", "server", "status", "--data", str(measured.data)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "300"},
    ).stdout.splitlines()
    assert any(str(place) in line and "public.published" in line and "ERROR" in line for line in shown), shown
    assert any(line.startswith(f"postgres: public.published is not published to {place}: ") for line in shown), shown
    place.unlink()
    (tmp_path / "away").rename(place)
    found = measured.until(lambda found: figures(found)[3:] == (0, 0, 0))
    assert figures(found)[0] == 3
    measured.run("SELECT pgtrickle.drop_stream_table('published')")
    found = measured.until(lambda found: found.value("headwater_publication_failing", **labels) is None)
    ended = {"database": "postgres", "stream_table": "other", "location": "other"}
    assert found.value("headwater_publication_commits_total", **ended) == 3


def test_strange_names_are_escaped_and_most_tables_have_no_series_of_their_own(measured: Measured) -> None:
    strange = 'a"b\\c\n{d="e"} # TYPE'
    quoted = strange.replace('"', '""')
    measured.run("CREATE TABLE origin (id int)")
    for name in (f'"{quoted}"', *(f"many_{n}" for n in range(OBJECTS + 2))):
        measured.administrator().execute(
            "SELECT pgtrickle.create_stream_table(%s, 'SELECT id FROM origin', '1h')", [name]
        )
    total = OBJECTS + 3
    found = measured.until(lambda found: found.value("headwater_left_out", kind="stream tables") == total - OBJECTS)
    shown = {labels[1] for labels in found.all("headwater_stream_table_suspended")}
    assert f"public.{strange}" in shown and len(shown) == OBJECTS
    assert found.value("headwater_stream_tables", database="postgres", status="active") == total
    assert sum(found.all("headwater_stream_table_refreshes_total", stream_table="other").values()) >= 3
    assert "more objects than --metrics-objects" in measured.log


def test_every_metric_is_in_the_documentation_and_the_other_way_round(measured: Measured) -> None:
    rows = re.findall(
        r"^\| `(headwater_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", (ROOT / "docs/metrics.md").read_text(), re.M
    )
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows}
    assert documented == {documented_name(each): (each.kind, each.labels, each.meaning) for each in DESCRIBED.values()}
    for family in measured.scrape().families.values():
        each = DESCRIBED[family.name]
        assert family.type == each.kind, family.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(each.labels), sample


def test_ready_and_healthy(measured: Measured) -> None:
    assert measured.get("/readyz") == (200, "ready\n")
    assert measured.get("/healthz") == (200, "ok\n")
    assert measured.get("/") == (404, "there are /metrics, /healthz, /readyz\n")


def test_what_is_no_request_costs_nothing(measured: Measured) -> None:
    host, port = measured.address.split(":")
    for request, answer in (
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405"),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000, b"HTTP/1.1 431"),
    ):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100).startswith(answer)
    idle = [socket.create_connection((host, int(port))) for _ in range(60)]
    for client in idle:
        client.close()
    measured.until(lambda _: True)


@pytest.mark.long
def test_a_postgresql_that_hangs_leaves_stale_values_and_is_not_ready(measured: Measured) -> None:
    measured.until(lambda found: found.value("headwater_database_up", database="postgres") == 1)
    main = psutil.Process(int((measured.data / "postgres" / "postmaster.pid").read_text().split()[0]))
    stopped = [main, *main.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        found = measured.scrape()
        assert time.monotonic() - began < 20
        found = measured.until(lambda found: found.value("headwater_up") == 0)
        found = measured.until(lambda found: found.value("headwater_database_up", database="postgres") == 0)
        assert found.value("headwater_database_age_seconds", database="postgres") > 5
        assert found.value("headwater_stream_tables", database="postgres", status="active") is not None
        assert measured.get("/readyz") == (503, "PostgreSQL does not answer\n")
        assert measured.get("/healthz") == (200, "ok\n")
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    measured.until(
        lambda found: (
            found.value("headwater_up") == 1 and found.value("headwater_database_up", database="postgres") == 1
        )
    )
    assert measured.get("/readyz") == (200, "ready\n")


def serve(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server", "serve", "--data", str(data), "--port", "0", "--spark", "off", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))


def test_a_port_in_use_is_said(measured: Measured, tmp_path: Path) -> None:
    port = measured.address.rsplit(":", 1)[1]
    ended = serve(tmp_path / "data", "--metrics", port)
    assert ended.returncode == 1
    assert f"headwater: could not listen for metrics on 127.0.0.1 port {port}: " in ended.stderr
    assert "hint: Choose another port with --metrics (0 takes any free one)." in ended.stderr


@pytest.mark.parametrize("value", ["user:secret@127.0.0.1:9187", "http://127.0.0.1:9187/", ":9187", "99999", "::1"])
def test_wrong_addresses_are_refused(value: str, tmp_path: Path) -> None:
    ended = serve(tmp_path / "data", "--metrics", value)
    assert ended.returncode == 2 and "Invalid value for '--metrics'" in ended.stderr, ended.stderr
    assert "secret" not in ended.stderr


def test_without_the_option_nothing_listens_and_the_library_is_not_loaded(server: Headwater) -> None:
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    listening = {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert listening == {server.port}
    assert "metrics are served" not in server.log
