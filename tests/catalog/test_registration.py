"""Entries in `pg_extension` for what is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from catalog.session import SqlError
from catalog.systems import QUEUES, VERSION
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.extension_files import DIRECTORY, SCRIPT, extension_settings
from tests.catalog.conftest import PASSWORD, Connect, install_into

VERSIONS = "SELECT extversion FROM pg_extension WHERE extname = 'pgque'"


@pytest.fixture
def files(cluster: EmbeddedPostgres, dsn: str) -> Iterator[Path]:
    """Where the cluster has its control files; what a test adds is removed."""
    ((directory,),) = _rows(dsn, "SELECT current_setting('data_directory')")
    place = Path(directory, DIRECTORY)
    before = {path: path.read_text() for path in place.iterdir()}
    yield place
    for path in place.iterdir():
        path.unlink()
    for path, text in before.items():
        path.write_text(text)


def _rows(dsn: str, query: str) -> list[tuple[str, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def test_an_entry_of_an_earlier_version_is_brought_up_to_date(dsn: str, bare_connect: Connect, files: Path) -> None:
    install_into(dsn)
    connection = bare_connect()
    (files / "pgque--0.0.9.sql").write_text(SCRIPT)
    (files / f"pgque--0.0.9--{VERSION}.sql").write_text(SCRIPT)
    connection.execute("CREATE EXTENSION pgque VERSION '0.0.9'")
    assert install_into(dsn, system=QUEUES).changed
    assert connection.execute(VERSIONS).fetchall() == [(VERSION,)]
    # Without a way from there it stays as it is, and the server works all the same.
    (files / f"pgque--0.0.9--{VERSION}.sql").unlink()
    connection.execute("DROP EXTENSION pgque; CREATE EXTENSION pgque VERSION '0.0.9'")
    assert not install_into(dsn, system=QUEUES).changed
    assert connection.execute(VERSIONS).fetchall() == [("0.0.9",)]
    connection.execute("DROP EXTENSION pgque")
    assert not install_into(dsn, system=QUEUES).changed
    assert connection.execute(VERSIONS).fetchall() == [(VERSION,)]


def test_a_real_extension_is_neither_taken_for_ours_nor_installed(dsn: str, bare_connect: Connect, files: Path) -> None:
    install_into(dsn)
    connection = bare_connect()
    control = files / "pgque.control"
    control.write_text(control.read_text().replace("Headwater: ", ""))
    assert install_into(dsn, system=QUEUES).changed
    assert connection.execute(VERSIONS).fetchall() == []
    connection.execute("DROP SCHEMA pgque CASCADE")
    (files / f"pgque--{VERSION}.sql").write_text("CREATE TABLE pgque.real (n int);")
    connection.execute("CREATE EXTENSION pgque")
    with pytest.raises(SqlError, match="extension pgque is installed in this database") as failure:
        install_into(dsn, system=QUEUES)
    assert failure.value.sqlstate == "42710"


def test_who_is_no_superuser_makes_no_entries(dsn: str, database: str, bare_connect: Connect) -> None:
    bare_connect().execute(f'GRANT CREATE ON DATABASE "{database}" TO catalog_alice'.encode())
    assert install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD)).changed
    assert bare_connect().execute("SELECT count(*) FROM pg_extension WHERE extname = 'pg_trickle'").fetchone() == (0,)


def test_the_place_of_the_files_is_said_where_it_can_be() -> None:
    assert extension_settings(Path("/data"), 18) == {"extension_control_path": "/data:$system"}
    assert extension_settings(Path("/data"), 17) == extension_settings(Path("/da:ta"), 18) == {}
