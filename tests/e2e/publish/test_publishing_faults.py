"""Publications while something fails: the server, the store, rights, another writer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from tests.e2e.conftest import Database, Headwater, drop_role
from tests.e2e.publish.test_publish import commits, publish, rows_in, rows_of, status, wait_published
from tests.s3_server import s3_server

Eventually = Callable[..., Any]


def prepare(db: Database, schedule: str = "calculated") -> None:
    db.connection.prepare_threshold = None
    db.run("CREATE TABLE orders (id int PRIMARY KEY, region text, amount int)")
    db.run("INSERT INTO orders SELECT i, 'r' || i % 7, i FROM generate_series(1, 100) i")
    query = "SELECT region, count(*) AS n, sum(amount)::bigint AS total FROM orders GROUP BY region"
    db.create("totals", query, schedule=schedule)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    prepare(emptied_db)
    return emptied_db


def killed_while_publishing(
    server: Headwater, place: Path, eventually: Eventually, rounds: int, format_: str = "delta"
) -> tuple[Database, list[Any]]:
    """A server that is killed after some refreshes, each time; the database, and what each refresh has left."""
    db = Database(server, "postgres")
    db.run("SET pg_trickle.enabled = off")
    prepare(db)
    publish(db, "totals", place, format_)
    wait_published(db, eventually, place)
    states = [rows_in(db, "totals")]
    for round_ in range(rounds):
        for number in range(5):
            db.run("UPDATE orders SET amount = amount + 1 WHERE id = %s", round_ * 5 + number + 1)
            db.refresh("totals")
            states.append(rows_in(db, "totals"))
        time.sleep(0.05 * round_)
        server.kill()
        db.close()
        server.start()
        db = Database(server, "postgres")
        db.connection.prepare_threshold = None
    return db, states


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.long)])
def test_exactly_once_when_the_server_is_killed(
    own_server: Headwater, tmp_path: Path, eventually: Eventually, rounds: int
) -> None:
    """Before and after commits, at any moment: each transaction's refresh is there once, in order."""
    place = tmp_path / "totals"
    db, expected = killed_while_publishing(own_server, place, eventually, rounds)
    eventually(lambda: rows_of(place) == expected[-1])
    wait_published(db, eventually, place)
    found = [rows_of(place, version) for version in range(DeltaTable(place).version() + 1)]
    # The scheduler may refresh after a start what was not, which changes nothing here.
    assert found == expected
    numbers = [commit["number"] for commit in commits(place)]
    assert numbers == list(range(len(expected), 0, -1))
    db.close()


@pytest.mark.long  # a quarter of a minute until it is certain that a server hangs
def test_a_server_that_hangs_is_replaced_and_publishes_nothing_twice(
    own_server: Headwater, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "totals"
    db = Database(own_server, "postgres")
    prepare(db)
    publish(db, "totals", place)
    wait_published(db, eventually, place)
    login = conninfo_to_dict(own_server.direct_dsn())
    url = f"postgresql://{login['user']}:{login['password']}@/postgres?host={login['host']}&port={login['port']}"
    (tmp_path / "second").mkdir()
    second = Headwater(tmp_path / "second" / "data", "--postgres", url).start()
    try:
        for number, hanging in enumerate((own_server, second, own_server)):
            other = second if hanging is own_server else own_server
            dsn = conninfo_to_dict(own_server.dsn()) | {"port": other.port}
            assert hanging.process is not None
            os.kill(hanging.process.pid, signal.SIGSTOP)
            try:
                with psycopg.connect(**dsn, autocommit=True) as connection:  # type: ignore[arg-type]
                    connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [number + 1])
                    connection.execute("SELECT pgtrickle.refresh_stream_table('totals')")
                eventually(lambda number=number: commits(place)[0]["number"] == number + 2)
            finally:
                os.kill(hanging.process.pid, signal.SIGCONT)
        eventually(lambda: rows_of(place) == rows_in(db, "totals"))
        assert [commit["number"] for commit in commits(place)] == [4, 3, 2, 1]
    finally:
        second.stop()
        db.close()


def test_rights(db: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "mine"
    db.run("CREATE ROLE writer LOGIN PASSWORD 'secret'")
    db.run("CREATE ROLE mallory LOGIN PASSWORD 'secret' IN ROLE pg_write_server_files")
    try:
        db.run("GRANT CREATE ON SCHEMA public TO writer; GRANT SELECT ON orders TO writer")
        own = db.connect(user="writer", password="secret")
        own.prepare_threshold = None
        own.execute(
            "SELECT pgtrickle.create_stream_table('mine', 'SELECT region, count(*) AS n FROM orders GROUP BY 1')"
        )
        with pytest.raises(errors.InsufficientPrivilege, match="pg_write_server_files"):
            own.execute("SELECT pgtrickle.publish('mine', 'delta', %s)", [str(place)])
        stranger = db.connect(user="mallory", password="secret")
        for call in ("publish('mine', 'delta', '/tmp/x')", "unpublish('mine')"):
            with pytest.raises(errors.InsufficientPrivilege, match="must be owner"):
                stranger.execute(f"SELECT pgtrickle.{call}".encode())
        db.run("GRANT pg_write_server_files TO writer")
        own.execute("SELECT pgtrickle.publish('mine', 'delta', %s)", [str(place)])
        wait_published(db, eventually, place)
        assert stranger.execute("SELECT * FROM pgtrickle.pgt_publications").fetchall() == []
        assert len(own.execute("SELECT * FROM pgtrickle.pgt_publications").fetchall()) == 1
        db.run("REVOKE pg_write_server_files FROM writer")
        before = rows_of(place)
        db.run("DELETE FROM orders WHERE region = 'r1'")
        db.refresh("mine")
        eventually(lambda: "pg_write_server_files" in (status(db, place)[3] or ""))
        assert rows_of(place) == before
        db.run("GRANT pg_write_server_files TO writer")
        eventually(lambda: rows_of(place) == rows_in(db, "mine"))
        eventually(lambda: status(db, place)[3] is None)
    finally:
        db.run("SELECT pgtrickle.drop_stream_table('mine')")
        db.run("REVOKE ALL ON orders FROM writer; REVOKE ALL ON SCHEMA public FROM writer")
        for role in ("writer", "mallory"):
            drop_role(db.connection, role)


def test_a_commit_of_somebody_else_is_replaced_and_maintenance_is_not(
    db: Database, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "totals"
    publish(db, "totals", place)
    wait_published(db, eventually, place)

    def refreshed(change: str) -> None:
        db.run(change)
        db.refresh("totals")
        eventually(lambda: rows_of(place) == rows_in(db, "totals"))

    refreshed("INSERT INTO orders VALUES (1001, 'new', 1)")
    refreshed("INSERT INTO orders VALUES (1002, 'newer', 1)")
    DeltaTable(place).optimize.compact()
    refreshed("DELETE FROM orders WHERE id = 3")
    assert DeltaTable(place).history(1)[0]["operation"] == "MERGE"
    write_deltalake(place, DeltaTable(place).to_pyarrow_table(), mode="append")
    refreshed("DELETE FROM orders WHERE id = 4")
    assert DeltaTable(place).history(1)[0]["operation"] == "WRITE"
    properties = CommitProperties(custom_metadata={"headwater": "{}"})
    write_deltalake(place, DeltaTable(place).to_pyarrow_table(), mode="append", commit_properties=properties)
    refreshed("DELETE FROM orders WHERE id = 5")


def test_a_place_that_becomes_somebody_elses_is_left_alone(
    own_server: Headwater, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "totals"
    db = Database(own_server, "postgres")
    prepare(db)
    publish(db, "totals", place)
    wait_published(db, eventually, place)
    own_server.stop()
    db.close()
    place.rename(tmp_path / "moved")
    write_deltalake(place, DeltaTable(tmp_path / "moved").to_pyarrow_table())
    own_server.start()
    db = Database(own_server, "postgres")
    db.connection.prepare_threshold = None
    db.run("DELETE FROM orders WHERE region = 'r1'")
    db.refresh("totals")
    eventually(lambda: "not this publication's" in (status(db, place)[3] or ""))
    assert DeltaTable(place).version() == 0
    db.close()


@pytest.mark.long
def test_a_version_that_was_put_back_is_replaced(own_server: Headwater, tmp_path: Path, eventually: Eventually) -> None:
    """What the catalog has let go of is not there to be published again."""
    place = tmp_path / "totals"
    db = Database(own_server, "postgres")
    prepare(db)
    publish(db, "totals", place)
    wait_published(db, eventually, place)
    shutil.copytree(place, tmp_path / "backup")
    db.run("DELETE FROM orders WHERE region = 'r1'")
    db.refresh("totals")
    wait_published(db, eventually, place)
    own_server.stop()
    db.close()
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    own_server.start()
    db = Database(own_server, "postgres")
    db.connection.prepare_threshold = None
    db.run("DELETE FROM orders WHERE region = 'r2'")
    db.refresh("totals")
    eventually(lambda: rows_of(place) == rows_in(db, "totals"))
    assert len(rows_of(place)) == 5
    db.close()


def test_drop_extension_ends_publications(live_db: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "totals"
    prepare(live_db)
    publish(live_db, "totals", place)
    wait_published(live_db, eventually, place)
    live_db.run("DROP EXTENSION pg_trickle CASCADE")
    assert len(rows_of(place)) == 7
    live_db.run("CREATE EXTENSION pg_trickle")
    assert live_db.rows("SELECT * FROM pgtrickle.pgt_publications") == []


@pytest.mark.long
def test_many_commits_are_kept_house_with(db: Database, tmp_path: Path, eventually: Eventually) -> None:
    """A checkpoint every 50 commits, few files after 100."""
    place = tmp_path / "rows"
    db.create("copied", "TABLE orders")
    publish(db, "copied", place)
    wait_published(db, eventually, place)
    for number in range(102):
        db.run("INSERT INTO orders VALUES (%s, 'x', 1)", 1000 + number)
        db.refresh("copied")
    wait_published(db, eventually, place)
    assert rows_of(place) == rows_in(db, "copied")
    log = {path.name for path in (place / "_delta_log").iterdir()}
    assert {f"{49:020}.checkpoint.parquet", f"{99:020}.checkpoint.parquet"} <= log
    assert len(DeltaTable(place).file_uris()) < 10
    assert len(rows_of(place, 20)) == 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, subprocess.Popen[bytes]]]:
    """A server whose environment leads to an S3 server with a bucket, which can be stopped."""
    with s3_server("lake") as s3, s3.in_environment():
        running = Headwater(tmp_path_factory.mktemp("publishing") / "data", "--warn-blocked", "200")
        try:
            db = Database(running.start(), "postgres")
            prepare(db)
            yield db, s3.process
            db.close()
        finally:
            s3.process.send_signal(signal.SIGCONT)
            running.stop()


@pytest.mark.long
def test_a_store_that_does_not_answer_holds_up_nothing(
    store: tuple[Database, subprocess.Popen[bytes]], eventually: Eventually
) -> None:
    db, moto = store
    place: Any = "s3://lake/totals"
    publish(db, "totals", place)
    wait_published(db, eventually, place)
    assert same(db, place)
    moto.send_signal(signal.SIGSTOP)
    try:
        for number in range(10):
            db.run("UPDATE orders SET amount = amount + 1 WHERE id = %s", number + 1)
            db.refresh("totals")
        # Through one attempt after the other nothing stands still, as it would if somebody held the GIL while he waits.
        longest, end = 0.0, time.monotonic() + 20
        while time.monotonic() < end or status(db, place)[0] != "ERROR":
            began = time.monotonic()
            db.run("SELECT 1")
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.05)
            assert time.monotonic() < end + 180
        assert longest < 5
        assert "could not write to the location" in status(db, place)[3]
        assert status(db, place)[2] > 0
        refused = db.connect()
        with pytest.raises(errors.IoError):
            refused.execute("SELECT pgtrickle.publish('totals', 'delta', 's3://lake/other')")
    finally:
        moto.send_signal(signal.SIGCONT)
    eventually(lambda: same(db, place), 180.0)
    wait_published(db, eventually, place)
    assert len(commits(place)) == 11


def same(db: Database, place: Any) -> bool:
    return bool(rows_of(place) == rows_in(db, "totals"))


@pytest.mark.long
def test_what_has_waited_for_too_long_is_let_go_of_and_replaced(
    store: tuple[Database, subprocess.Popen[bytes]], eventually: Eventually
) -> None:
    db, moto = store
    place: Any = "s3://lake/short"
    publish(db, "totals", place)
    wait_published(db, eventually, place)
    db.run("ALTER DATABASE postgres SET pg_trickle.publish_hold_seconds = 1")
    moto.send_signal(signal.SIGSTOP)
    try:
        db.run("UPDATE orders SET amount = amount + 1 WHERE id = 1")
        db.refresh("totals")
        held = "SELECT count(subscription_id) FROM pgtrickle.pgt_published WHERE location = %s"
        eventually(lambda: db.value(held, place) == 0, 240.0)
    finally:
        moto.send_signal(signal.SIGCONT)
        db.run("ALTER DATABASE postgres RESET pg_trickle.publish_hold_seconds")
    eventually(lambda: same(db, place), 180.0)
    assert commits(place)[0]["number"] == 2
