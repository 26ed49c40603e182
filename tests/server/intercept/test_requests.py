"""Engine requests: carried out inside the statement that made them, in both protocols, in every transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.server.conftest import Engaged

CREATE = "select pgtrickle.create_stream_table(%s, 'select 1 as a')"


def create(name: str, query: str = "select 1 as a") -> str:
    return f"select pgtrickle.create_stream_table('{name}', '{query}')"


@pytest.fixture
def client(engaged: Engaged) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(engaged.dsn, autocommit=True) as connected:
        yield connected


@pytest.fixture(params=["simple", "extended", "prepared"])
def run(request: pytest.FixtureRequest, client: psycopg.Connection[Any]) -> Any:
    """Runs one statement in the simple protocol, the extended one, or as a named prepared statement."""
    if request.param == "simple":
        return psycopg.ClientCursor(client).execute
    return lambda sql: client.execute(sql, (), prepare=request.param == "prepared")


def test_plain_call_creates_before_it_completes(engaged: Engaged, run: Any) -> None:
    assert run(create("t")).fetchall() == [("",)]
    assert engaged.tables() == {"t"}
    assert engaged.engine.autocommit == [True]
    assert run("select a from t").fetchall() == [(1,)]
    run("select pgtrickle.drop_stream_table('t')")
    assert engaged.tables() == set()


def test_several_rows_make_several_requests(engaged: Engaged, run: Any) -> None:
    run(create("a"))
    run(create("b"))
    rows = run("select pgtrickle.drop_stream_table(n) from (values ('a'), ('b')) v(n)").fetchall()
    assert rows == [(True,), (True,)]
    assert engaged.tables() == set()


@pytest.mark.parametrize("unnamed", [False, True])
def test_failure_is_the_statements_error_and_leaves_nothing(
    engaged: Engaged, client: psycopg.Connection[Any], run: Any, unnamed: bool
) -> None:
    sql = "select make('refused', 'select 1')" if unnamed else create("refused")
    with pytest.raises(errors.FeatureNotSupported) as caught:
        run(sql)
    diagnosis = caught.value.diag
    assert diagnosis.message_primary == 'query of "refused" is refused'
    assert (diagnosis.message_detail, diagnosis.message_hint) == ("No detail.", "Use another name.")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert client.execute("select count(*) from pgtrickle.pgt_requests").fetchone() == (0,)


def test_postgresqls_own_error_of_injected_work_comes_verbatim(client: psycopg.Connection[Any], run: Any) -> None:
    with pytest.raises(errors.UndefinedTable) as caught:
        run(create("t", "select * from nowhere"))
    assert caught.value.diag.message_primary == 'relation "nowhere" does not exist'
    assert caught.value.diag.statement_position is None
    assert run("select 1").fetchone() == (1,)


def test_procedure_that_commits_a_request_is_told_why_it_cannot(
    engaged: Engaged, client: psycopg.Connection[Any], run: Any
) -> None:
    client.execute("create procedure p() language plpgsql as $$ begin perform make('t', 'select 1'); commit; end $$")
    with pytest.raises(errors.InvalidTransactionTermination) as caught:
        run("call p()")
    assert "Call the function outside the procedure" in (caught.value.diag.message_hint or "")
    assert engaged.tables() == set()
    assert run("select 1").fetchone() == (1,)


def test_mistake_of_the_engine_is_an_internal_error(client: psycopg.Connection[Any], run: Any) -> None:
    with pytest.raises(errors.InternalError_, match="internal error of the engine"):
        run(create("broken"))
    assert run("select 1").fetchone() == (1,)


def test_two_steps_in_autocommit(engaged: Engaged, run: Any) -> None:
    run(create("two steps"))
    assert run('select count(*) from "two steps"').fetchone() == (2,)
    with pytest.raises(errors.DivisionByZero):
        run(create("two steps fail"))
    assert engaged.tables() == {"two steps", "two steps fail"}  # the first step was committed


def test_explicit_transaction_with_savepoints_and_rollback(
    engaged: Engaged, client: psycopg.Connection[Any], run: Any
) -> None:
    run("begin")
    run(create("a"))
    assert run("select a from a").fetchone() == (1,)
    run("savepoint s")
    run(create("b"))
    with pytest.raises(errors.FeatureNotSupported):
        run(create("refused"))
    with pytest.raises(errors.InFailedSqlTransaction):
        run("select 1")
    run("rollback to s")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    run(create("c"))
    run("commit")
    assert engaged.tables() == {"a", "c"}
    assert engaged.engine.autocommit == [False] * 4
    run("begin")
    run(create("d"))
    run("rollback")
    assert engaged.tables() == {"a", "c"}


def test_function_of_the_users_in_autocommit_is_run_again_in_a_transaction(engaged: Engaged, run: Any) -> None:
    assert run("select make('t', 'select 7 as a')").fetchall() == [("t",)]
    assert run("select a from t").fetchall() == [(7,)]
    assert engaged.engine.autocommit == [False]


def test_function_of_the_users_in_a_transaction(engaged: Engaged, run: Any) -> None:
    run("begin")
    assert run("select make('t', 'select 7 as a')").fetchall() == [("t",)]
    assert run("select a from t").fetchall() == [(7,)]
    run("commit")
    assert engaged.tables() == {"t"}


def test_rows_already_sent_cannot_be_taken_back(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    many = "select repeat('x', 100000), case when n = 100 then make('t', 'select 1') end from generate_series(1, 200) n"
    with pytest.raises(errors.FeatureNotSupported) as caught:
        psycopg.ClientCursor(client).execute(many)
    assert "transaction block" in (caught.value.diag.message_hint or "")
    assert engaged.tables() == set()
    assert client.execute("select 1").fetchone() == (1,)


def test_do_block_and_execute_and_sql_prepare(engaged: Engaged, run: Any) -> None:
    run("do $$ begin perform pgtrickle.create_stream_table('a', 'select 1'); end $$")
    run("prepare p as select pgtrickle.create_stream_table($1, 'select 1')")
    run("execute p('b')")
    run("do $$ begin perform make('c', 'select 1'); end $$")
    assert engaged.tables() == {"a", "b", "c"}


def test_do_block_in_a_transaction(engaged: Engaged, run: Any) -> None:
    run("begin")
    run("do $$ begin perform pgtrickle.create_stream_table('a', 'select 1'); end $$")
    run("commit")
    assert engaged.tables() == {"a"}


def test_procedure_that_commits_by_itself_and_only_sounds_like_a_request(engaged: Engaged, run: Any) -> None:
    run("create procedure refresh_stream_table_log() language plpgsql as $$ begin commit; end $$")
    run("call refresh_stream_table_log()")


def test_caught_exception_takes_the_request_back(engaged: Engaged, run: Any) -> None:
    run(
        "do $$ begin begin perform pgtrickle.create_stream_table('a', 'select 1'); raise 'x';"
        " exception when others then null; end; end $$"
    )
    assert engaged.tables() == set()


def test_multi_statement_string_is_one_implicit_transaction(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    cursor = psycopg.ClientCursor(client)
    cursor.execute(
        "create table x(i int); insert into x values (1), (2);"
        f" {create('t', 'select * from public.x')}; select count(*) from t"
    )
    results = []
    while True:
        results.append((cursor.statusmessage, cursor.fetchall() if cursor.description else None))
        if not cursor.nextset():
            break
    assert results == [("CREATE TABLE", None), ("INSERT 0 2", None), ("SELECT 1", [("",)]), ("SELECT 1", [(2,)])]
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with pytest.raises(errors.DivisionByZero):
        cursor.execute(f"insert into x values (3); {create('u')}; select 1/0; insert into x values (4)")
    assert engaged.tables() == {"x", "t"}
    assert client.execute("select count(*) from x").fetchone() == (2,)


def test_transaction_control_inside_a_multi_statement_string(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    cursor = psycopg.ClientCursor(client)
    notices: list[str] = []
    client.add_notice_handler(lambda diagnosis: notices.append(diagnosis.message_primary or ""))
    cursor.execute(f"{create('a')}; begin; {create('b')}; rollback; {create('c')}")
    assert engaged.tables() == {"c"}
    cursor.execute(f"begin; {create('d')}")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    cursor.execute("commit")
    assert engaged.tables() == {"c", "d"}
    notices.clear()
    with pytest.raises(errors.DivisionByZero):
        cursor.execute(f"{create('e')}; commit; {create('f')}; select 1/0")
    assert engaged.tables() == {"c", "d", "e"}
    assert notices == ['"e" created', "there is no transaction in progress", '"f" created']
    with pytest.raises(errors.NoActiveSqlTransaction, match="SAVEPOINT can only be used in transaction blocks"):
        cursor.execute(f"{create('g')}; savepoint s")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_position_of_an_error_is_in_the_whole_string(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    text = f"select 'ä€'; {create('a')}; select nothing"
    with pytest.raises(errors.UndefinedColumn) as caught:
        psycopg.ClientCursor(client).execute(text)
    assert caught.value.diag.statement_position == str(text.index("nothing") + 1)


def test_pipeline_whose_next_statement_reads_the_new_table(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    with client.pipeline():
        client.execute("create table x(i int)")
        first = client.execute(CREATE, ("t",))
        second = client.execute("select a from t")
        third = client.execute("insert into x values (1) returning i")
    assert (first.fetchall(), second.fetchall(), third.fetchall()) == ([("",)], [(1,)], [(1,)])
    assert engaged.tables() == {"t", "x"}


def test_failing_pipeline_is_rolled_back_as_one(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    with pytest.raises(errors.DivisionByZero), client.pipeline():
        client.execute("create table x(i int)")
        client.execute(CREATE, ("t",))
        client.execute("select 1/0")
        client.execute("create table y(i int)")
    assert engaged.tables() == set()
    with pytest.raises(errors.FeatureNotSupported), client.pipeline():
        client.execute("create table x(i int)")
        client.execute(CREATE, ("refused",))
        client.execute("create table y(i int)")
    assert engaged.tables() == set()
    assert client.execute("select 1").fetchone() == (1,)


def test_pipeline_with_begin_and_commit_as_executes(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    with client.pipeline() as pipeline:
        client.execute("begin")
        client.execute(CREATE, ("a",))
        client.execute("commit")
        pipeline.sync()
        client.execute("begin")
        client.execute(CREATE, ("b",))
        client.execute("rollback")
        pipeline.sync()
    assert engaged.tables() == {"a"}


def test_begin_behind_the_request_makes_the_transaction_the_clients(
    engaged: Engaged, client: psycopg.Connection[Any]
) -> None:
    with client.pipeline():
        client.execute(CREATE, ("a",))
        client.execute("begin")
        client.execute("create table x()")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert engaged.tables() == set()
    client.execute("commit")
    assert engaged.tables() == {"a", "x"}


def test_deferred_constraint_fails_at_our_commit(engaged: Engaged, client: psycopg.Connection[Any], run: Any) -> None:
    run("create table k(i int primary key deferrable initially deferred)")
    with pytest.raises(errors.UniqueViolation):
        run(
            "with n as (insert into k values (1), (1) returning i)"
            " select pgtrickle.create_stream_table('t', 'select 1') from n limit 1"
        )
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert engaged.tables() == {"k"}
    assert run("select 1").fetchone() == (1,)


def test_clients_settings_do_not_reach_injected_work_and_survive_it(engaged: Engaged, run: Any) -> None:
    run('create schema "größe"')
    run('set search_path = pg_temp, public, pg_catalog, "größe"')
    run("set client_encoding = latin1")
    run("set datestyle = 'German, DMY'")
    run("create function public.pg_sleep(float8) returns void language sql as 'select 1/0'")
    run("begin")
    run("set local intervalstyle = sql_standard")
    run("select pgtrickle.create_stream_table('ärger', 'select timestamptz ''2020-02-01'' as a')")
    assert run("show search_path").fetchone() == ('pg_temp, public, pg_catalog, "größe"',)
    assert run("show datestyle").fetchone() == ("German, DMY",)
    assert run("show client_encoding").fetchone() == ("LATIN1",)
    assert run("show intervalstyle").fetchone() == ("sql_standard",)
    run("commit")
    assert run("show intervalstyle").fetchone() == ("postgres",)
    assert engaged.tables() == {"ärger"}


def test_client_min_messages_does_not_hide_the_request(engaged: Engaged, run: Any) -> None:
    run("set client_min_messages = error")
    run(create("t"))
    assert engaged.tables() == {"t"}


def test_notices_of_injected_work_reach_the_client_and_the_request_does_not(
    client: psycopg.Connection[Any], run: Any
) -> None:
    notices: list[str | None] = []
    client.add_notice_handler(lambda diagnosis: notices.append(diagnosis.message_primary))
    run(create("t"))
    run("select make('u', 'select 1')")
    assert notices == ['"t" created', '"u" created']


def test_unnamed_statement_survives_a_request_in_its_batch(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    with client.pipeline():
        client.execute("select make('a', 'select 1')")
        got = client.execute("select 5")
    assert got.fetchall() == [(5,)]
    assert engaged.tables() == {"a"}


@pytest.mark.parametrize("name", ["slow", "far away"])
def test_cancel_during_the_engines_work(engaged: Engaged, client: psycopg.Connection[Any], run: Any, name: str) -> None:
    timer = threading.Timer(0.3, client.cancel_safe)
    timer.start()
    with pytest.raises(errors.QueryCanceled):
        run(create(name))
    timer.join()
    assert engaged.tables() == set()
    assert run("select 1").fetchone() == (1,)


def test_client_that_vanishes_ends_the_engines_work(engaged: Engaged) -> None:
    client = psycopg.connect(engaged.dsn, autocommit=True)
    client.pgconn.send_query(create("far away").encode())
    client.pgconn.flush()
    assert engaged.engine.waiting.wait(10)
    client.close()
    assert engaged.engine.cancelled.wait(10)
    assert engaged.tables() == set()


def test_backend_that_dies_during_injected_work(engaged: Engaged, client: psycopg.Connection[Any]) -> None:
    def kill() -> None:
        with psycopg.connect(engaged.direct, autocommit=True) as direct:
            direct.execute("select pg_terminate_backend(%s)", (client.info.backend_pid,))

    threading.Timer(0.3, kill).start()
    with pytest.raises(errors.AdminShutdown):
        client.execute(create("slow"))
    assert client.closed


def test_commits_wake_the_engine(engaged: Engaged, client: psycopg.Connection[Any], run: Any) -> None:
    run("create table x(i int)")
    assert engaged.engine.commits == 0
    run("insert into x values (1)")
    assert engaged.engine.commits == 1
    run("select * from x")
    run("begin")
    run("update x set i = 2")
    assert engaged.engine.commits == 1
    run("commit")
    assert engaged.engine.commits == 2
    run(create("t"))
    assert engaged.engine.commits == 3


def test_sessions_that_send_events_wake_the_clock(engaged: Engaged, run: Any) -> None:
    with psycopg.connect(engaged.direct, autocommit=True) as direct:
        direct.execute("create schema pgque")
        direct.execute("create function pgque.send(text) returns int language sql as 'select 1'")
    run("select 1")
    run("select count(*) from pg_class where relnamespace = 'pgque'::regnamespace")
    assert engaged.engine.sends == 0
    run("select PGQUE.send('q')")
    before = engaged.engine.sends
    assert before >= 1  # the client may have prepared the statement by itself
    for n in range(1, 8):  # where that has a name, nothing else is sent
        run("select PGQUE.send('q')")
        assert engaged.engine.sends == before + n
    run("begin")
    before = engaged.engine.sends
    run("select 1")
    assert engaged.engine.sends == before
    run("commit")
    assert engaged.engine.sends == before + 1
    assert engaged.engine.commits == 0


def test_databases_are_released_before_they_are_dropped(engaged: Engaged, run: Any) -> None:
    run('create database "My Copy"')
    run('alter database "My Copy" rename to copy')
    run("drop database copy")
    assert engaged.engine.released == ["My Copy", "copy"]


def test_warning_of_the_engine_greets_the_client(engaged: Engaged) -> None:
    engaged.engine.warning = "stream tables are not available"
    with psycopg.connect(engaged.dsn) as client:
        assert client.execute("select 1").fetchone() == (1,)
