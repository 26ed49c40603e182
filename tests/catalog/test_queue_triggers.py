"""jsontriga, logutriga, sqltriga: the events that changes of a table become."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import psycopg
import pytest

from tests.catalog.conftest import Queue

TRIGGERS = ("jsontriga", "logutriga", "sqltriga")


def attach(
    queue: Queue, function: str, *arguments: str, table: str = "t", when: str = "AFTER", name: str = "capture"
) -> None:
    """Put a trigger on a table, with the queue for its first argument."""
    literals = ", ".join("'" + a.replace("'", "''") + "'" for a in (queue.name, *arguments))
    queue.connection.execute(
        f"CREATE TRIGGER {name} {when} INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW "
        f"EXECUTE PROCEDURE pgque.{function}({literals})"
    )


def events(queue: Queue, columns: str = "ev_type, ev_data") -> list[tuple[Any, ...]]:
    """The events sent since the last call."""
    queue.value("SELECT pgque.subscribe(%s, 'test')", queue.name)
    queue.tick()
    batch = queue.value("SELECT pgque.next_batch(%s, 'test')", queue.name)
    rows = queue.rows(f"SELECT {columns} FROM pgque.get_batch_events(%s)", batch)
    queue.value("SELECT pgque.finish_batch(%s)", batch)
    return rows


@pytest.fixture
def table(queue: Queue) -> Queue:
    """The queue, subscribed, and a table `t` with a key and a column whose name wants quotes."""
    queue.value("SELECT pgque.subscribe(%s, 'test')", queue.name)
    queue.connection.execute("DROP TABLE IF EXISTS t CASCADE")
    queue.connection.execute('CREATE TABLE t (id int PRIMARY KEY, name text, "Big Note" text)')
    return queue


def change(queue: Queue) -> None:
    """An insert, an update of one column and a delete."""
    queue.connection.execute("INSERT INTO t VALUES (1, 'a&b', NULL)")
    queue.connection.execute("UPDATE t SET name = 'it''s é'")
    queue.connection.execute("DELETE FROM t")


def test_jsontriga_sends_json(table: Queue) -> None:
    attach(table, "jsontriga")
    change(table)
    got = events(table, "ev_type, ev_data, ev_extra1, ev_extra2")
    assert [json.loads(kind) for kind, *_ in got] == [
        {"op": op, "table": ["public", "t"], "pkey": ["id"]} for op in ("INSERT", "UPDATE", "DELETE")
    ]
    assert [data for _, data, *_ in got] == [
        '{"id":1,"name":"a&b","Big Note":null}',
        '{"id":1,"name":"it\'s é","Big Note":null}',
        '{"id":1,"name":"it\'s é","Big Note":null}',
    ]
    assert {row[2:] for row in got} == {("public.t", None)}


def test_logutriga_sends_urlencoded_pairs(table: Queue) -> None:
    attach(table, "logutriga")
    change(table)
    assert events(table, "ev_type, ev_data, ev_extra1, ev_extra2") == [
        ("I:id", "id=1&name=a%26b&Big+Note", "public.t", None),
        ("U:id", "id=1&name=it%27s+%c3%a9&Big+Note", "public.t", None),
        ("D:id", "id=1&name=it%27s+%c3%a9&Big+Note", "public.t", None),
    ]


def test_sqltriga_sends_statements_that_repeat_the_change(table: Queue) -> None:
    attach(table, "sqltriga")
    change(table)
    got = events(table, "ev_type, ev_data, ev_extra1")
    assert got == [
        ("I", """INSERT INTO public.t (id,name,"Big Note") VALUES ('1','a&b',NULL)""", "public.t"),
        ("U", """UPDATE public.t SET name='it''s é' WHERE id='1'""", "public.t"),
        ("D", """DELETE FROM public.t WHERE id='1'""", "public.t"),
    ]


def test_sqltriga_applies_to_a_copy(table: Queue) -> None:
    """Whatever the types and settings: what the events do to an empty table makes it equal."""
    table.connection.execute(
        "DROP TABLE t; CREATE TABLE t (a int, b text, n numeric, f float8, ts timestamptz, iv interval, "
        "arr text[], j jsonb, by bytea, ok bool, g int GENERATED ALWAYS AS (a * 2) STORED, "
        "s bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (b, a))"
    )
    attach(table, "sqltriga")
    with table.connection.transaction():
        table.connection.execute("SET LOCAL timezone = 'Asia/Kolkata'; SET LOCAL datestyle = 'German, DMY'")
        table.connection.execute("SET LOCAL intervalstyle = 'sql_standard'; SET LOCAL extra_float_digits = 0")
        table.connection.execute("SET LOCAL bytea_output = 'escape'")
        table.connection.execute(
            r"""INSERT INTO t VALUES
            (1, E'q''\\x\n AND y', 1.500, 0.1, '2024-05-06 07:08:09.123456+02', '1 mon -3 days', '{"a,b",NULL}',
             '{"k": [1, "é"]}', '\xdeadbeef', true),
            (2, '', 'NaN', 0.30000000000000004, '-infinity', '-1 day -02:03:04', '{}', 'null', '', false)"""
        )
        table.connection.execute("UPDATE t SET a = 7, n = NULL WHERE a = 1")
        table.connection.execute("UPDATE t SET ok = ok")
        table.connection.execute("INSERT INTO t (a, b, f) VALUES (3, 'gone', 'Infinity')")
        table.connection.execute("DELETE FROM t WHERE a = 3")
    statements = [data for (data,) in events(table, "ev_data")]
    assert len(statements) == 7
    original = table.rows("SELECT t::text FROM t ORDER BY 1")
    table.connection.execute("DROP TRIGGER capture ON t; DELETE FROM t")
    for statement in statements:
        assert table.connection.execute(statement).rowcount == 1
    assert table.rows("SELECT t::text FROM t ORDER BY 1") == original


def test_sqltriga_can_send_the_fragments_of_pgq(table: Queue) -> None:
    attach(table, "sqltriga", "fragments")
    change(table)
    assert events(table) == [
        ("I", """(id,name,"Big Note") values ('1','a&b',NULL)"""),
        ("U", """name='it''s é' where id='1'"""),
        ("D", """id='1'"""),
    ]


def test_an_update_that_changes_nothing_is_an_event(table: Queue) -> None:
    attach(table, "sqltriga")
    table.connection.execute("INSERT INTO t VALUES (1)")
    table.connection.execute("UPDATE t SET name = name")
    assert events(table)[1] == ("U", "UPDATE public.t SET id=id WHERE id='1'")


@pytest.mark.parametrize("function", TRIGGERS)
def test_ignored_columns_are_not_sent_and_make_no_event_alone(table: Queue, function: str) -> None:
    attach(table, function, "ignore=name, Big Note")
    table.connection.execute("INSERT INTO t VALUES (1, 'secret', 'secret')")
    table.connection.execute("UPDATE t SET name = 'other'")
    table.connection.execute("UPDATE t SET id = 2, name = 'secret'")
    table.connection.execute("UPDATE t SET id = id")
    data = {
        "jsontriga": ['{"id":1}', '{"id":2}', '{"id":2}'],
        "logutriga": ["id=1", "id=2", "id=2"],
        "sqltriga": [
            "INSERT INTO public.t (id) VALUES ('1')",
            "UPDATE public.t SET id='2' WHERE id='1'",
            "UPDATE public.t SET id=id WHERE id='2'",
        ],
    }
    assert [d for (d,) in events(table, "ev_data")] == data[function]


@pytest.mark.parametrize(
    ("function", "kind", "deleted"),
    [
        (
            "jsontriga",
            '{"op":"DELETE","table":["public","t"],"pkey":["name","id"]}',
            '{"id":1,"name":"x","Big Note":null}',
        ),
        ("logutriga", "D:name,id", "id=1&name=x&Big+Note"),
        ("sqltriga", "D", "DELETE FROM public.t WHERE name='x' AND id='1'"),
    ],
)
def test_pkey_replaces_the_primary_key(table: Queue, function: str, kind: str, deleted: str) -> None:
    attach(table, function, "pkey=name,id")
    table.connection.execute("INSERT INTO t VALUES (1, 'x')")
    table.connection.execute("DELETE FROM t")
    assert events(table)[1] == (kind, deleted)


def test_a_table_without_a_key(table: Queue) -> None:
    table.connection.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    attach(table, "sqltriga", name="s")
    table.connection.execute("INSERT INTO t VALUES (1)")
    error = table.fails("DELETE FROM t")
    assert error.sqlstate == "42P10"
    assert "table public.t has no primary key" in str(error)
    table.connection.execute("DROP TRIGGER s ON t")
    attach(table, "jsontriga", name="j")
    attach(table, "logutriga", name="l")
    table.connection.execute("DELETE FROM t")
    assert [kind for (kind,) in events(table, "ev_type")] == [
        "I",
        '{"op":"DELETE","table":["public","t"],"pkey":[]}',
        "D:",
    ]


@pytest.mark.parametrize("function", TRIGGERS)
def test_when_decides_whether_there_is_an_event(table: Queue, function: str) -> None:
    attach(table, function, "when=id % 2 = 0 AND name <> 'no'")
    table.connection.execute("INSERT INTO t VALUES (1, 'x'), (2, 'x'), (4, 'no'), (6, NULL), (8, 'y')")
    table.connection.execute("DELETE FROM t WHERE id = 8")
    got = [data for (data,) in events(table, "ev_data")]
    assert len(got) == 3
    assert all("2" in data for data in got[:1])
    assert all("8" in data for data in got[1:])


@pytest.mark.parametrize(
    ("function", "backup"),
    [
        ("jsontriga", '{"id":1,"name":"old","Big Note":null}'),
        ("logutriga", "id=1&name=old&Big+Note"),
        ("sqltriga", "id=1&name=old&Big+Note"),
    ],
)
def test_backup_keeps_the_old_row_of_an_update(table: Queue, function: str, backup: str) -> None:
    attach(table, function, "backup")
    table.connection.execute("INSERT INTO t VALUES (1, 'old')")
    table.connection.execute("UPDATE t SET name = 'new'")
    table.connection.execute("DELETE FROM t")
    assert events(table, "ev_extra2") == [(None,), (backup,), (None,)]


@pytest.mark.parametrize("function", TRIGGERS)
def test_fields_are_overridden_by_expressions(table: Queue, function: str) -> None:
    fields = ("ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")
    expressions = ("'kind ' || name", '"Big Note"', "id + 1", "NULL", "upper(name)", "id::text || '=' || name")
    attach(table, function, *(f"{field}={expression}" for field, expression in zip(fields, expressions, strict=True)))
    table.connection.execute("INSERT INTO t VALUES (1, 'x', 'note')")
    table.connection.execute("DELETE FROM t")
    assert events(table, ", ".join(fields)) == [("kind x", "note", "2", None, "X", "1=x")] * 2


@pytest.mark.parametrize("function", TRIGGERS)
def test_skip_turns_the_change_into_an_event_only(table: Queue, function: str) -> None:
    attach(table, function, "SKIP", when="BEFORE")
    assert table.connection.execute("INSERT INTO t VALUES (1)").rowcount == 0
    assert table.rows("SELECT * FROM t") == []
    assert len(events(table)) == 1
    table.connection.execute("DROP TRIGGER capture ON t")
    attach(table, function, when="BEFORE")
    change(table)
    assert len(events(table)) == 3
    table.connection.execute("DROP TRIGGER capture ON t")
    attach(table, function, "SKIP")
    change(table)
    assert len(events(table)) == 3, "after the change it is too late to skip it"


def test_a_view_sends_instead(table: Queue) -> None:
    table.connection.execute("CREATE VIEW v AS SELECT id, name FROM t")
    attach(table, "jsontriga", "pkey=id", table="v", when="INSTEAD OF")
    table.connection.execute("INSERT INTO v VALUES (1, 'x')")
    assert [data for (data,) in events(table, "ev_data")] == ['{"id":1,"name":"x"}']
    assert table.rows("SELECT * FROM t") == []


@pytest.mark.parametrize(
    ("function", "kind"),
    [("jsontriga", '{"op":"TRUNCATE","table":["public","t"],"pkey":["id"]}'), ("logutriga", "R"), ("sqltriga", "R")],
)
def test_truncate_is_an_event_of_a_statement(table: Queue, function: str, kind: str) -> None:
    table.connection.execute(
        f"CREATE TRIGGER r AFTER TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION pgque.{function}('{table.name}')"
    )
    table.connection.execute("TRUNCATE t")
    assert events(table) == [(kind, "")]


@pytest.mark.parametrize("function", TRIGGERS)
def test_deny_refuses_changes(table: Queue, function: str) -> None:
    attach(table, function, "deny")
    assert f"Table 'public.t' to queue '{table.name}': change not allowed (INSERT)" in str(
        table.fails("INSERT INTO t VALUES (1)")
    )


@pytest.mark.parametrize("function", TRIGGERS)
def test_wrong_use_is_an_error(table: Queue, function: str) -> None:
    for arguments, message in (
        (("nonsense",), "bad param: nonsense"),
        (("ignore=nope",), 'column "nope" in argument "ignore=nope"'),
        (("pkey=id,nope",), 'column "nope" in argument "pkey=id,nope"'),
        (("when=nope > 1",), 'column "nope" does not exist'),
    ):
        attach(table, function, *arguments)
        assert message in str(table.fails("INSERT INTO t VALUES (1)"))
        table.connection.execute("DROP TRIGGER capture ON t")
    table.connection.execute(f"CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION pgque.{function}()")
    assert "Trigger needs queue name" in str(table.fails("INSERT INTO t VALUES (1)"))
    table.connection.execute(
        "DROP TRIGGER a ON t; CREATE TRIGGER a AFTER INSERT ON t FOR EACH STATEMENT "
        f"EXECUTE FUNCTION pgque.{function}('{table.name}')"
    )
    assert "must be FOR EACH ROW" in str(table.fails("INSERT INTO t VALUES (1)"))
    table.connection.execute(
        "DROP TRIGGER a ON t; CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW "
        f"EXECUTE FUNCTION pgque.{function}('nowhere')"
    )
    assert "queue not found: nowhere" in str(table.fails("INSERT INTO t VALUES (1)"))


def test_an_event_is_part_of_the_transaction(table: Queue) -> None:
    attach(table, "jsontriga")
    with table.connection.transaction(force_rollback=True):
        table.connection.execute("INSERT INTO t VALUES (1)")
    assert events(table) == []


@pytest.mark.parametrize(
    ("function", "data"),
    [
        ("jsontriga", ['{"id":3,"stored":4}', "{}"]),
        ("logutriga", ["id=3&stored=4", ""]),
        ("sqltriga", ["INSERT INTO public.t (id) VALUES ('3')", "INSERT INTO public.nothing DEFAULT VALUES"]),
    ],
)
def test_generated_columns_and_no_columns(table: Queue, function: str, data: list[str]) -> None:
    """A virtual column has no value in a trigger; one that is stored is left to the copy of the table."""
    table.connection.execute(
        "DROP TABLE t; DROP TABLE IF EXISTS nothing; CREATE TABLE nothing (); CREATE TABLE t (id int PRIMARY KEY, "
        "virtual int GENERATED ALWAYS AS (id * 2) VIRTUAL, stored int GENERATED ALWAYS AS (id + 1) STORED)"
    )
    attach(table, function)
    attach(table, function, table="nothing")
    table.connection.execute("INSERT INTO t VALUES (3); INSERT INTO nothing DEFAULT VALUES")
    assert [d for (d,) in events(table, "ev_data")] == data


def test_the_table_may_change_within_a_session(table: Queue) -> None:
    for number, function in enumerate(TRIGGERS):
        attach(table, function, "ignore=id", name=f"capture_{number}")
    table.connection.execute("INSERT INTO t VALUES (1, 'x', 'y')")
    table.connection.execute("ALTER TABLE t DROP COLUMN name, ADD COLUMN more timestamp DEFAULT '2024-01-01'")
    table.connection.execute("""UPDATE t SET "Big Note" = NULL""")
    assert [data for (data,) in events(table, "ev_data")] == [
        '{"name":"x","Big Note":"y"}',
        "name=x&Big+Note=y",
        """INSERT INTO public.t (name,"Big Note") VALUES ('x','y')""",
        '{"Big Note":null,"more":"2024-01-01T00:00:00"}',
        "Big+Note&more=2024-01-01+00%3a00%3a00",
        """UPDATE public.t SET "Big Note"=NULL WHERE id='1'""",
    ]


def test_types_in_json(table: Queue) -> None:
    table.connection.execute(
        "DROP TABLE t; DROP TYPE IF EXISTS mood, pair CASCADE; DROP DOMAIN IF EXISTS small;"
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (x int, y text);"
        "CREATE DOMAIN small AS int CHECK (VALUE < 10);"
        "CREATE TABLE t (id int, ok bool, n numeric, f float8, ts timestamptz, d date, a int[], j jsonb, "
        "m mood, p pair, s small)"
    )
    attach(table, "jsontriga")
    with table.connection.transaction():
        table.connection.execute("SET LOCAL timezone = 'UTC'")
        table.connection.execute(
            """
            INSERT INTO t VALUES
            (1, true, 1.50, 'NaN', '2024-01-02 03:04:05+00', '2024-01-02', '{1,NULL}', '{"k": 1}', 'sad', (1, NULL), 5)
            """
        )
        table.connection.execute("INSERT INTO t (p) VALUES ((NULL, NULL))")
    full, empty = (data for (data,) in events(table, "ev_data"))
    assert full == (
        '{"id":1,"ok":true,"n":1.50,"f":"NaN","ts":"2024-01-02T03:04:05+00:00","d":"2024-01-02",'
        '"a":[1,null],"j":{"k": 1},"m":"sad","p":"(1,)","s":5}'
    )
    assert json.loads(empty) == dict.fromkeys(("id", "ok", "n", "f", "ts", "d", "a", "j", "m", "s")) | {"p": "(,)"}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_text_is_what_postgresql_prints(table: Queue, zone: str) -> None:
    """Also where it is read from a row's JSON image, which prints truth and time in another way."""
    values = {
        "bool": ["true", "false"],
        "int8": ["-9223372036854775808"],
        "numeric": ["1.500", "NaN", "-Infinity", "1e-20", "12345678901234567890.10"],
        "float4": ["0.1", "1e20", "-0"],
        "float8": ["0.30000000000000004", "NaN", "Infinity"],
        "text": ["", "NULL", 'a"b\\c', "T 2024-01-01T00:00:00+00:00", "\t\n☃ %&=+"],
        "char(5)": ["ab"],
        "name": ["x"],
        "uuid": ["00000000-0000-0000-0000-00000000000a"],
        "bytea": ["\\x00ff"],
        "date": ["2024-02-29", "0044-03-15 BC", "infinity", "20240-01-01"],
        "time": ["12:34:56.789"],
        "timetz": ["12:34:56+02"],
        "interval": ["1 mon -3 days 04:05:06.7", "-1 year"],
        "timestamp": ["2024-01-02 03:04:05", "2024-01-02 03:04:05.1", "0044-03-15 00:00:00 BC", "-infinity"],
        "timestamptz": [
            "2024-07-02 03:04:05+00",
            "1800-01-01 00:00:00+00",
            "0044-03-15 00:00:00 BC",
            "infinity",
            "20240-01-01",
        ],
        "inet": ["192.168.0.1", "192.168.0.0/24", "::1"],
        "cidr": ["10.0.0.0/8"],
        "macaddr": ["08:00:2b:01:02:03"],
    }
    columns = [(f"c{n}", kind, value) for n, (kind, value) in enumerate((k, v) for k, vs in values.items() for v in vs)]
    table.connection.execute(
        f"SET timezone = '{zone}'; DROP TABLE t; "
        f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, kind, _ in columns)})"
    )
    attach(table, "logutriga")
    places = ", ".join(f"%s::{kind}" for _, kind, _ in columns)
    table.connection.execute(f"INSERT INTO t VALUES ({places})", [value for *_, value in columns])
    printed = table.rows("SELECT format('%%s', {}) FROM t".format("), format('%%s', ".join(n for n, *_ in columns)))
    [(data,)] = events(table, "ev_data")
    assert dict(parse_qsl(data, keep_blank_values=True)) == {
        name: text for (name, *_), text in zip(columns, printed[0], strict=True)
    }


def test_whoever_changes_the_table_must_be_a_producer(table: Queue, queue_database: str) -> None:
    attach(table, "jsontriga", "ev_extra2=current_user", name="j")
    attach(table, "logutriga", "ignore=name", "backup", name="l")
    attach(table, "sqltriga", "pkey=id", name="s")
    table.connection.execute(
        "DROP ROLE IF EXISTS trigger_app; CREATE ROLE trigger_app LOGIN PASSWORD 'x'; GRANT ALL ON t TO trigger_app"
    )
    try:
        with psycopg.connect(queue_database, user="trigger_app", password="x", autocommit=True) as app:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute("INSERT INTO t VALUES (1, 'x')")
            table.connection.execute("GRANT pgque_writer TO trigger_app")
            app.execute("INSERT INTO t VALUES (1, 'x')")
            app.execute("CREATE TEMP TABLE mine (id int)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(
                    "CREATE TRIGGER x AFTER INSERT ON mine FOR EACH ROW "
                    f"EXECUTE FUNCTION pgque.jsontriga('{table.name}')"
                )
    finally:
        table.connection.execute("DROP OWNED BY trigger_app; DROP ROLE trigger_app")
    assert events(table, "ev_extra2") == [("trigger_app",), (None,), (None,)]


def test_a_cast_of_the_tables_owner_is_not_called(table: Queue) -> None:
    """An event says what the row has, not what somebody's function makes of it."""
    table.connection.execute(
        """
        DROP TABLE t;
        DROP TYPE IF EXISTS sly CASCADE;
        CREATE TYPE sly AS (x int);
        CREATE OR REPLACE FUNCTION trap_json(sly) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$;
        CREATE OR REPLACE FUNCTION trap_text(sly) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$;
        CREATE CAST (sly AS json) WITH FUNCTION trap_json(sly);
        CREATE CAST (sly AS text) WITH FUNCTION trap_text(sly) AS IMPLICIT;
        CREATE TABLE t (id int PRIMARY KEY, c sly)
        """
    )
    for number, function in enumerate(TRIGGERS):
        attach(table, function, "backup", name=f"capture_{number}")
    table.connection.execute("INSERT INTO t VALUES (1, ROW(5))")
    table.connection.execute("UPDATE t SET id = 2")
    assert [data for (data,) in events(table, "ev_data")] == [
        '{"id":1,"c":"(5)"}',
        "id=1&c=%285%29",
        "INSERT INTO public.t (id,c) VALUES ('1','(5)')",
        '{"id":2,"c":"(5)"}',
        "id=2&c=%285%29",
        "UPDATE public.t SET id='2' WHERE id='1'",
    ]


@pytest.mark.parametrize("statement", ["UPDATE p SET k = 3 - k, v = v + 1", "MERGE"])
def test_rows_that_go_to_another_partition(table: Queue, statement: str) -> None:
    """By UPDATE and by MERGE, which inserts and deletes others: who repeats the events has the table."""
    connection = table.connection
    connection.execute(
        "DROP TABLE IF EXISTS p; CREATE TABLE p (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)"
    )
    attach(table, "jsontriga", table="p")
    connection.execute("INSERT INTO p SELECT i, 1 + i % 2, i FROM generate_series(1, 8) i")
    connection.execute(
        "MERGE INTO p USING (VALUES (20, 1), (1, 2), (2, 1), (3, 1), (4, 2), (21, 2), (5, 1), (6, 2)) s (id, k)"
        " ON p.id = s.id WHEN MATCHED AND p.id = 6 THEN DELETE WHEN MATCHED THEN UPDATE SET k = s.k, v = p.v + 10"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.k, 0)"
        if statement == "MERGE"
        else statement
    )
    copy: dict[int, Any] = {}
    for kind, data in events(table):
        row = json.loads(data)
        if json.loads(kind)["op"] == "DELETE":
            del copy[row["id"]]
        else:
            copy[row["id"]] = row
    assert copy == {i: {"id": i, "k": k, "v": v} for i, k, v in table.rows("SELECT id, k, v FROM p")}
    connection.execute("DROP TABLE p")
