"""Who gets in: nobody whom PostgreSQL has not asked for a proof, and no part of a password is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from server.intercept.engine_interface import Backend, NoEngine
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.url import InvalidUrl, PostgresUrl
from server.protocol import messages as m
from server.relay.relay import Relay
from server.relay.session import RelaySession
from tests.clusters import started_cluster
from tests.conftest import SETTINGS
from tests.server.conftest import Engaged, RunningRelay
from tests.server.wire import Wire, dial, startup, statement, until_closed


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A cluster whose pg_hba.conf trusts everybody on its socket."""
    directory = tmp_path_factory.mktemp("trusting") / "data"
    with started_cluster(directory, SETTINGS) as cluster:
        with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
            (file,) = admin.execute("SHOW hba_file").fetchone() or ("",)
            hba = Path(file)
            hba.write_text("local all all trust\nlocal replication all trust\n" + hba.read_text())
            admin.execute("SELECT pg_reload_conf()")
        with psycopg.connect(cluster.dsn()) as admin:
            assert admin.execute("SELECT auth_method FROM pg_hba_file_rules WHERE rule_number = 1").fetchone() == (
                "trust",
            )
        yield cluster


@pytest.mark.parametrize("replication", ["", "database", "true"])
def test_trust_of_the_relays_connection_lets_no_client_in(
    trusting: EmbeddedPostgres, start_relay: Callable[..., RunningRelay], replication: str
) -> None:
    relay = start_relay(backend=Backend(unix_socket_dir=trusting.socket_dir, port=trusting.port))
    with dial(relay.port) as client:
        more = ("replication", replication) if replication else ()
        client.sendall(startup("user", "postgres", "database", "postgres", *more))
        answer = until_closed(client)
    assert b"SFATAL\0" in answer and b"C28000\0" in answer and b"--allow-trust" in answer
    assert answer[:1] == b"E"  # not even AuthenticationOk


def test_an_operator_may_allow_trust(trusting: EmbeddedPostgres, start_relay: Callable[..., RunningRelay]) -> None:
    relay = start_relay(backend=Backend(unix_socket_dir=trusting.socket_dir, port=trusting.port))
    relay.relay.context.allow_trust = True
    with psycopg.connect(host="127.0.0.1", port=relay.port, user="postgres", dbname="postgres") as client:
        assert client.execute("SELECT current_user").fetchone() == ("postgres",)


def test_lines_of_pg_hba_conf_without_proof_are_named(trusting: EmbeddedPostgres) -> None:
    url = PostgresUrl.parse(f"postgresql://postgres@/postgres?host={trusting.socket_dir}&port={trusting.port}")
    assert url.lines_without_proof() == [
        "line 1: local all all trust",
        "line 2: local replication all trust",
    ]


SECRET = ("Sesame", "Open", "hunter")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:Sesame@Open@db/shop",
        "postgresql://app:Sesame/Open@db/shop",
        "postgresql://app:Sesame#Open@db/shop",
        "postgresql://app:Sesame?Open=hunter@db/shop",
        "postgresql://app:Sesame?Open@db/shop",
        "postgresql://app:Sesame%zzOpen@db/shop",
        "postgresql://app:Sesame Open@db/shop",
        "postgresql://app:Sesame[Open@db/shop",
        "postgresql://app:Sesame]:Open@db/shop",
        "postgresql://app:Sesame:Open@db:hunter/shop",
        "postgresql://app:Sesame&Open@db:99999999/shop",
        "postgresql://app:Sesame@db/shop?sslmode=Open",
        "postgresql://app:Sesame@db/shop?Open=hunter",
        "postgresql://app:Sesame@[Open/shop",
        "host=db user=app password=Sesame",
        "postgres:app:Sesame@db",
    ],
)
def test_no_part_of_a_password_is_shown_for_a_malformed_url(url: str) -> None:
    try:
        shown = repr(PostgresUrl.parse(url))
    except InvalidUrl as error:
        shown = f"{error!r} {error} {error.__cause__!r} {error.__context__ if not error.__suppress_context__ else ''}"
    assert not any(part in shown for part in SECRET)


@pytest.mark.parametrize(
    "answer",
    [
        m.message(m.READY),
        m.message(m.COMMAND_COMPLETE),
        m.message(m.COMMAND_COMPLETE, b"B"),
        m.message(m.PARAMETER_STATUS),
        m.message(m.PARAMETER_STATUS, b"x\0"),
        m.message(m.ERROR),
        m.message(m.NOTICE),
    ],
)
async def test_truncated_answers_are_breaches_of_the_protocol(answer: bytes) -> None:
    session = RelaySession(Relay(Backend(), NoEngine()).context)
    try:
        session.traffic.from_backend(answer)
    except m.ProtocolViolation as error:
        assert "invalid" in str(error)


def test_a_query_behind_a_failed_execute_is_ignored_up_to_sync(engaged: Engaged) -> None:
    wire = Wire(engaged.dsn)
    wire.send(statement("select 1/0"), m.query(b"select request_create_stream_table('x')"), m.SYNC_MESSAGE)
    kinds = wire.kinds()
    assert kinds.count("E") == 1 and kinds.endswith("Z")
    wire.send(m.query(b"select 42"))
    assert wire.kinds() == "TDCZ"
    wire.close()
