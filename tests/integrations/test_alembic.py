"""SQLAlchemy and Alembic with `headwater-sqlalchemy`: the files of docs/sqlalchemy.md, migrations there and back."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import alembic.command
import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.operations.ops import UpgradeOps
from psycopg import conninfo
from sqlalchemy.orm import Session

from headwater_sqlalchemy import (
    AlterStreamTableOp,
    CreateStreamTableOp,
    DropStreamTableOp,
    include_name,
    include_object,
)
from tests.e2e.conftest import Database
from tests.e2e.documentation import page

FILE = re.compile(r"<!-- (\S+\.py) -->\n```python\n(.*?)```\n", re.DOTALL)
QUERY = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
FIRST = """
from alembic import op
import sqlalchemy as sa

revision = "0001"
down_revision = None


def upgrade():
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("customer", sa.String, nullable=False),
        sa.Column("amount", sa.Numeric, nullable=False),
    )


def downgrade():
    op.drop_table("orders")
"""


def url(database: Database) -> str:
    options = conninfo.conninfo_to_dict(database.server.dsn(database.name))
    login = f"{options['user']}:{quote(str(options['password']), safe='')}"
    return f"postgresql+psycopg://{login}@{options['host']}:{options['port']}/{database.name}"


@pytest.fixture
def engine(db: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url(db))
    yield engine
    engine.dispose()


@pytest.fixture
def orders(db: Database) -> Database:
    db.run("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric)")
    db.run("INSERT INTO orders VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 7)")
    return db


@pytest.fixture
def documented(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """An environment of Alembic's with the files of the page."""
    (tmp_path / "versions").mkdir()
    files = dict(FILE.findall(page("sqlalchemy.md")))
    assert set(files) == {"models.py", "env.py", "versions/totals.py"}
    for name, text in {**files, "versions/first.py": FIRST}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "script.py.mako").write_text("upgrade = ${repr(upgrades)}\nrevision = ${repr(up_revision)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("sqlalchemy.url", url(db).replace("%", "%%"))
    yield config
    del sys.modules["models"]


def differences(connection: sa.Connection, metadata: sa.MetaData, **hooks: Any) -> list[Any]:
    """What autogenerate would write."""
    options = {"include_schemas": True, **hooks}
    context = MigrationContext.configure(connection, opts={"target_metadata": metadata, **options})
    operations = produce_migrations(context, metadata).upgrade_ops
    assert isinstance(operations, UpgradeOps)
    return operations.as_diffs()


def test_the_files_of_the_page_work_and_nothing_is_left_to_generate(documented: Config, db: Database) -> None:
    alembic.command.upgrade(documented, "head")
    db.run("INSERT INTO orders VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 7)")
    db.assert_refreshed("totals")
    alembic.command.check(documented)  # raises where there is anything to generate
    models = sys.modules["models"]
    with sa.create_engine(url(db), poolclass=sa.pool.NullPool).connect() as connection, Session(connection) as session:
        total = session.get_one(models.Total, "a")
        assert (total.orders, total.total) == (2, 30)
    alembic.command.downgrade(documented, "base")
    assert db.rows("SELECT * FROM pgtrickle.pgt_stream_tables") == []


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # types of the catalog's columns
def test_without_the_hooks_autogenerate_would_drop_what_is_the_servers(orders: Database, engine: sa.Engine) -> None:
    orders.create("totals", QUERY)
    orders.run("SELECT pgque.create_queue('sent')")
    orders.run("""SELECT accum.register_create('stock', '{"product": "int"}', '{"quantity": "numeric"}')""")
    orders.run("CREATE INDEX ON totals (total)")
    orders.run("CREATE SCHEMA app; CREATE TABLE app.other (id int)")
    metadata = sa.MetaData()
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("customer", sa.Text),
             sa.Column("amount", sa.Numeric))  # fmt: skip
    with engine.connect() as connection:
        unhooked = {d[1].fullname for d in differences(connection, metadata) if d[0] == "remove_table"}
        assert {"totals", "accum.stock_movements", "pgque.queue", "pgtrickle.pgt_captures", "app.other"} <= unhooked
        hooked = differences(connection, metadata, include_name=include_name, include_object=include_object)
        assert [(d[0], d[1].fullname) for d in hooked] == [("remove_table", "app.other")]
        # One that a class stands for is not compared either, with the mark or without it.
        sa.Table("totals", metadata, sa.Column("customer", sa.Text, primary_key=True), sa.Column("total", sa.Integer))
        hooked = differences(connection, metadata, include_name=include_name, include_object=include_object)
        assert [(d[0], d[1].fullname) for d in hooked] == [("remove_table", "app.other")]


def operations(connection: sa.Connection) -> Operations:
    return Operations(MigrationContext.configure(connection))


def test_operations_there_and_back(orders: Database, engine: sa.Engine) -> None:
    orders.run('CREATE SCHEMA "Odd one"')
    create = CreateStreamTableOp(
        "it's", QUERY, schema="Odd one", schedule="1h", refresh_mode="FULL", initialize=False, cdc_mode="trigger",
        diamond_consistency="atomic", diamond_schedule_policy="slowest", append_only=False, engine="postgres",
    )  # fmt: skip
    alter = AlterStreamTableOp(
        "it's",
        {"schedule": "2h", "query": QUERY.replace("sum", "max"), "status": "SUSPENDED"},
        {"schedule": "1h", "query": QUERY, "status": "ACTIVE"},
        schema="Odd one",
    )
    name = '"Odd one"."it\'s"'
    seen = (
        "schedule",
        "requested_mode",
        "requested_cdc_mode",
        "diamond_consistency",
        "engine",
        "is_populated",
        "status",
    )

    def invoke(operation: CreateStreamTableOp | AlterStreamTableOp | DropStreamTableOp) -> None:
        with engine.begin() as connection:
            operations(connection).invoke(operation)

    invoke(create)
    state = orders.state(name)
    assert [state[key] for key in seen] == ["1h", "FULL", "trigger", "atomic", "postgres", False, "INITIALIZING"]
    invoke(alter)
    state = orders.state(name)
    assert (state["schedule"], state["status"]) == ("2h", "SUSPENDED")
    assert orders.rows(f"SELECT total FROM {name} ORDER BY 1") == [(7,), (20,)]
    invoke(alter.reverse())
    state = orders.state(name)
    assert (state["schedule"], state["status"]) == ("1h", "ACTIVE")
    assert orders.rows(f"SELECT total FROM {name} ORDER BY 1") == [(7,), (30,)]
    drop = create.reverse()
    assert isinstance(drop, DropStreamTableOp)
    invoke(drop)
    assert orders.rows("SELECT * FROM pgtrickle.pgt_stream_tables") == []
    invoke(drop.reverse())
    assert orders.state(name)["schedule"] == "1h"


def test_by_name_on_op_and_rolled_back_with_the_transaction(orders: Database, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        op: Any = operations(connection)
        op.create_stream_table("totals", QUERY, schedule="1h")
        op.alter_stream_table("totals", schedule="2h", existing_schedule="1h")
        assert orders.rows("SELECT * FROM pgtrickle.pgt_stream_tables") == []
        connection.commit()
        assert orders.state("totals")["schedule"] == "2h"
        op.drop_stream_table("totals", existing_query=QUERY, existing_schedule="2h")
        connection.rollback()
        assert orders.state("totals")["schedule"] == "2h"


def test_what_is_not_known_is_refused(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        op: Any = operations(connection)
        with pytest.raises(TypeError, match="create_stream_table\\(\\) has no parameter status"):
            op.create_stream_table("totals", QUERY, status="ACTIVE")
        with pytest.raises(TypeError, match="alter_stream_table\\(\\) has no parameter engine"):
            op.alter_stream_table("totals", engine="spark")
    with pytest.raises(ValueError, match="existing_query"):
        DropStreamTableOp("totals").reverse()
    with pytest.raises(ValueError, match="existing_schedule"):
        AlterStreamTableOp("totals", {"schedule": "1h"}, {}).reverse()


def test_offline_the_statement_is_written_with_literals(orders: Database) -> None:
    written: list[str] = []
    buffer = type("Buffer", (), {"write": lambda _, text: written.append(text), "flush": lambda _: None})()
    context = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        opts={"as_sql": True, "literal_binds": True, "output_buffer": buffer},
    )
    op: Any = Operations(context)
    query = "SELECT id, 'it''s \\ 50% :x' AS text, amount::int % 7 AS rest FROM orders"
    op.create_stream_table("totals", query, schedule="1h", append_only=True)
    with psycopg.connect(orders.server.dsn(orders.name), autocommit=True) as connection:
        connection.execute("".join(written).encode())
    assert orders.rows("SELECT text, rest FROM totals WHERE id = 1") == [("it's \\ 50% :x", 3)]
