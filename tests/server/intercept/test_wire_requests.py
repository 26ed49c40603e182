"""Engine requests in hand-made messages: batches, flushes, pipelines, COPY, the ends of transactions."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import conninfo

from server.intercept.extended import ExtendedInterceptor
from server.protocol import messages as m
from tests.server.conftest import Engaged
from tests.server.wire import Wire, statement, until_closed


@pytest.fixture
def requesting(engaged: Engaged) -> Iterator[Wire]:
    client = Wire(engaged.dsn)
    yield client
    client.close()


CREATE = "select pgtrickle.create_stream_table('t', 'select 1 as a')"


def test_request_in_a_batch_with_flushes_instead_of_a_sync(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement(CREATE), m.FLUSH_MESSAGE)
    assert requesting.kinds("C") == "12DNC"
    assert engaged.tables() == set()
    requesting.send(statement("select a from t"), m.FLUSH_MESSAGE)
    assert requesting.kinds("C") == "12DC"
    requesting.send(m.SYNC_MESSAGE)
    assert requesting.until() == [("Z", b"I")]
    assert engaged.tables() == {"t"}
    assert engaged.engine.autocommit == [False]


def test_unnamed_statement_of_an_earlier_batch_is_not_destroyed(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.parse(b"", b"select 5"), m.SYNC_MESSAGE)
    assert requesting.kinds() == "1Z"
    named = m.parse(b"create", CREATE.encode()) + m.bind(b"p", b"create") + m.execute(b"p")
    requesting.send(named, m.bind(b"", b""), m.execute(b""), m.SYNC_MESSAGE)
    assert requesting.kinds() == "12DNC2DCZ"
    assert engaged.tables() == {"t"}


def test_request_without_name_before_the_sync_joins_the_implicit_transaction(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(m.query(b"create table x(i int)"))
    requesting.until()
    requesting.send(
        statement("insert into x values (1)"), statement("select make('t', 'select 1 as a')"), m.FLUSH_MESSAGE
    )
    assert requesting.kinds("D") == "12C12D"
    requesting.send(m.FLUSH_MESSAGE)
    requesting.send(statement("select a from t"), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "C12DCZ"
    assert engaged.tables() == {"t", "x"}


def test_flush_behind_a_request_without_name_is_answered_before_the_sync(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement("select make('t', 'select 1 as a')"), m.FLUSH_MESSAGE)
    assert requesting.kinds("C").replace("N", "") == "12DC"
    requesting.send(statement("select a from t"), m.SYNC_MESSAGE)
    assert requesting.kinds() == "12DCZ"
    assert engaged.tables() == {"t"}


@pytest.mark.parametrize("extended", [False, True])
def test_copy_behind_a_request_without_name_is_begun(requesting: Wire, engaged: Engaged, extended: bool) -> None:
    requesting.send(m.query(b"create table x(i int)"))
    requesting.until()
    make = "select make('t', 'select 1')"
    both = statement(make) + statement("copy x from stdin") + m.FLUSH_MESSAGE
    requesting.send(both if extended else m.query(make.encode() + b"; copy x from stdin"))
    requesting.until("G")
    requesting.send(m.message(m.COPY_DATA, b"1\n"), m.COPY_DONE_MESSAGE, m.SYNC_MESSAGE if extended else b"")
    assert requesting.kinds().endswith("CZ")
    assert engaged.tables() == {"x", "t"}
    requesting.send(m.query(b"select 1"))
    assert requesting.kinds() == "TDCZ"


def test_statement_that_is_out_of_time_when_our_transaction_begins(
    requesting: Wire, engaged: Engaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(interceptor: ExtendedInterceptor, *, alone: bool = False) -> None:
        await interceptor.exchange(interceptor.ours(b"SELECT 1/0"), flush=True)

    monkeypatch.setattr(ExtendedInterceptor, "open", late)
    requesting.send(statement("select make('t', 'select 1')"), m.FLUSH_MESSAGE)
    assert requesting.kinds("E").endswith("E")
    requesting.send(m.SYNC_MESSAGE)
    assert requesting.until() == [("Z", b"I")]
    requesting.send(m.query(b"select 1"))
    assert requesting.kinds() == "TDCZ"
    assert engaged.tables() == set()


def test_failed_request_skips_the_rest_up_to_sync(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement(CREATE.replace("'t'", "'refused'")), statement("select 1"), m.FLUSH_MESSAGE)
    assert requesting.kinds("E") == "12DE"
    requesting.send(statement("select 1"), m.query(b"select 1"), m.SYNC_MESSAGE)
    assert requesting.until() == [("Z", b"I")]
    assert engaged.tables() == set()


def test_row_limited_execute_of_a_request(requesting: Wire, engaged: Engaged) -> None:
    sql = "select pgtrickle.create_stream_table(n, 'select 1') from (values ('a'), ('b'), ('c')) v(n)"
    requesting.send(statement(sql, portal=b"p", rows=2), m.message(m.EXECUTE, b"p\0\0\0\0\2"), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "12DDsDCZ"
    assert engaged.tables() == {"a", "b", "c"}
    sql = sql.replace("('a')", "('d')").replace("('b')", "('e')")
    requesting.send(statement(sql, portal=b"p", rows=2), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "12DDsZ"
    assert engaged.tables() == {"a", "b", "c", "d", "e"}


def test_pipelined_batches_behind_a_request(requesting: Wire, engaged: Engaged) -> None:
    batches = [
        statement(CREATE),
        m.SYNC_MESSAGE,
        statement("select a from t"),
        m.SYNC_MESSAGE,
        m.query(b"select a from t"),
    ]
    requesting.send(*batches, m.query(b"select pgtrickle.drop_stream_table('t')"), m.query(b"select 1"))
    got = [requesting.kinds() for _ in range(5)]
    assert got == ["12DNCZ", "12DCZ", "TDCZ", "TDCZ", "TDCZ"]
    assert engaged.tables() == set()


def test_pipelined_batches_behind_a_request_without_name_are_refused_not_reordered(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(statement("select make('t', 'select 1')"), m.SYNC_MESSAGE, statement("select 1"), m.SYNC_MESSAGE)
    first = requesting.until()
    assert [kind for kind, _ in first] == ["1", "2", "D", "E", "Z"]
    assert b"C0A000" in first[3][1]
    assert requesting.kinds() == "12DCZ"
    assert engaged.tables() == set()


def test_transaction_pipelined_to_its_commit_with_a_request_that_nobody_expects_is_refused_once(
    requesting: Wire, engaged: Engaged
) -> None:
    transaction = m.query(b"begin"), m.query(b"select make('t', 'select 1')"), m.query(b"commit"), m.query(b"select 1")
    requesting.send(*transaction)
    assert requesting.kinds() == "CZ"
    assert requesting.kinds() == "TDCZ"
    refused = requesting.until()
    assert [kind for kind, _ in refused] == ["E", "Z"] and b"C0A000" in refused[0][1]
    assert requesting.kinds() == "TDCZ"
    assert engaged.tables() == set()
    requesting.send(*transaction)
    assert [requesting.kinds() for _ in transaction] == ["CZ", "TDCZ", "NCZ", "TDCZ"]
    assert engaged.tables() == {"t"}


def test_copy_with_requests(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.query(f"copy ({CREATE}) to stdout".encode()))
    assert requesting.kinds() == "HdcNCZ"
    requesting.send(
        m.query(b"create table x(i int); copy x from stdin; select pgtrickle.drop_stream_table('t'), sum(i) from x")
    )
    assert requesting.kinds("G") == "CG"
    requesting.send(m.message(m.COPY_DATA, b"1\n"), m.message(m.COPY_DATA, b"2\n"), m.COPY_DONE_MESSAGE)
    answers = requesting.until()
    assert [kind for kind, _ in answers] == ["C", "T", "D", "C", "Z"]
    assert answers[2][1].endswith(b"3")
    assert engaged.tables() == {"x"}


COPYING = """
    create table x(n text); create function f() returns trigger language plpgsql as
    $$ begin perform make(new.n, 'select 1'); return new; end $$;
    create trigger f before insert on x for each row execute function f()
"""


@pytest.mark.parametrize("extended", [False, True])
def test_copy_from_the_client_whose_trigger_makes_requests(requesting: Wire, engaged: Engaged, extended: bool) -> None:
    requesting.send(m.query(COPYING.encode()))
    requesting.until()
    copy = statement("copy x from stdin") + m.FLUSH_MESSAGE if extended else m.query(b"copy x from stdin")
    end = m.COPY_DONE_MESSAGE + (m.SYNC_MESSAGE if extended else b"")
    for transaction in (False, True):
        if transaction:
            requesting.send(m.query(b"begin"))
            requesting.until()
        requesting.send(copy)
        requesting.until("G")
        for name in (b"d", b"e", b"f") if transaction else (b"a", b"b", b"c"):
            requesting.send(m.message(m.COPY_DATA, name + b"\n"))
        requesting.send(end)
        answer = requesting.until()
        assert "".join(kind for kind, _ in answer).replace("N", "") == "CZ"
        if transaction:
            requesting.send(m.query(b"commit"))
            requesting.until()
            assert engaged.tables() == {"x", "a", "b", "c", "d", "e", "f"}
        else:
            assert engaged.tables() == {"x", "a", "b", "c"}


@pytest.mark.parametrize("extended", [False, True])
def test_copy_from_the_client_that_fails_says_so_before_the_end_of_the_data(
    requesting: Wire, engaged: Engaged, extended: bool
) -> None:
    requesting.send(m.query(b"create table x(i int)"))
    requesting.until()
    requesting.send(statement("copy x from stdin") + m.FLUSH_MESSAGE if extended else m.query(b"copy x from stdin"))
    requesting.until("G")
    requesting.send(m.message(m.COPY_DATA, b"1\n"), m.message(m.COPY_DATA, b"no number\n"))
    assert requesting.kinds("E") == "E"
    rest = [m.message(m.COPY_DATA, b"2\n"), m.COPY_DONE_MESSAGE]
    requesting.send(*rest, *([m.SYNC_MESSAGE] if extended else []))
    assert requesting.kinds() == "Z"
    requesting.send(m.query(b"select count(*) from x"))
    answer = requesting.until()
    assert [kind for kind, _ in answer] == ["T", "D", "C", "Z"] and answer[1][1].endswith(b"0")


def test_request_of_a_copys_trigger_that_fails_undoes_the_copy(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.query(COPYING.encode()))
    requesting.until()
    requesting.send(m.query(b"copy x from stdin"))
    requesting.until("G")
    requesting.send(m.message(m.COPY_DATA, b"a\nrefused\n"), m.COPY_DONE_MESSAGE)
    answer = requesting.until()
    assert "".join(kind for kind, _ in answer) == "NEZ" and b"is refused" in answer[1][1]
    assert engaged.tables() == {"x"}


def test_copy_from_the_client_behind_a_request_in_one_string(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.query(b"create table x(i int); begin"))
    requesting.until()
    requesting.send(m.query(b"select make('t', 'select 1'); copy x from stdin; copy x from stdin"))
    for _ in range(2):
        requesting.until("G")
        requesting.send(m.message(m.COPY_DATA, b"1\n"), m.COPY_DONE_MESSAGE)
    assert requesting.kinds() == "CZ"
    requesting.send(m.query(b"commit"))
    requesting.until()
    assert engaged.tables() == {"t", "x"}


def test_request_made_by_the_commit_itself_is_refused(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(
        m.query(
            b"create table x(i int); create function f() returns trigger language plpgsql as"
            b" $$ begin perform make('t', 'select 1'); return null; end $$;"
            b" create constraint trigger f after insert on x deferrable initially deferred"
            b" for each row execute function f()"
        )
    )
    requesting.until()
    requesting.send(m.query(b"insert into x values (1)"))
    answer = requesting.until()
    assert [kind for kind, _ in answer] == ["E", "Z"] and b"C0A000" in answer[0][1]
    requesting.send(m.query(b"select 1"))
    assert requesting.kinds() == "TDCZ"
    assert engaged.tables() == {"x"}


def test_request_behind_the_end_of_a_transaction_in_one_batch(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement("begin"), statement("create table x()"), statement("commit"), statement(CREATE))
    requesting.send(m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "12C12C12C12DCZ"
    assert engaged.tables() == {"x", "t"}
    drop = statement("select pgtrickle.drop_stream_table('t')")
    requesting.send(statement("begin"), statement("savepoint s"), statement("rollback to s"), drop, m.SYNC_MESSAGE)
    answer = requesting.until()
    assert "".join(kind for kind, _ in answer) == "12C12C12C12EZ" and b"Send Sync" in answer[-2][1]
    assert answer[-1] == ("Z", b"E")  # as after any error
    requesting.send(m.query(b"rollback"))
    requesting.until()
    assert engaged.tables() == {"x", "t"}


def test_terminate_in_the_middle_of_a_batch_leaves_nothing(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(statement(CREATE), m.FLUSH_MESSAGE)
    requesting.until("C")
    requesting.send(m.TERMINATE_MESSAGE)
    assert until_closed(requesting.socket) == b""
    assert engaged.tables() == set()


def test_broken_message_during_a_request_ends_the_session_only(engaged: Engaged) -> None:
    wire = Wire(engaged.dsn)
    wire.send(statement(CREATE), b"\xff\0\0\0\4")
    assert b"C08P01" in until_closed(wire.socket)
    with psycopg.connect(engaged.dsn) as other:
        assert other.execute("select 1").fetchone() == (1,)
    assert engaged.tables() == set()


def test_options_of_the_startup_packet_do_not_reach_injected_work(engaged: Engaged) -> None:
    options = "-c search_path=pg_temp,public,pg_catalog -c datestyle=German -c quote_all_identifiers=on"
    with psycopg.connect(conninfo.make_conninfo(engaged.dsn, options=options), autocommit=True) as client:
        client.execute("create function public.set_config(text, text, bool) returns text language sql as 'select 1/0'")
        client.execute(CREATE)
        assert client.execute("show search_path").fetchone() == ("pg_temp,public,pg_catalog",)
    assert engaged.tables() == {"t"}


def test_any_number_of_queries_behind_an_error_is_ignored(requesting: Wire) -> None:
    requesting.send(statement(CREATE.replace("'t'", "'refused'")), m.FLUSH_MESSAGE)
    assert requesting.kinds("E") == "12DE"
    requesting.send(m.query(b"select 1") * 3000, m.SYNC_MESSAGE)
    assert requesting.until() == [("Z", b"I")]


def test_session_goes_on_after_a_request_before_more_batches_than_are_passed_on(requesting: Wire) -> None:
    """The request is noticed while the client is not read: it has sent too many batches, and many at once."""
    count = 11_500
    requesting.send(m.query(b"select make('t', 'select 1') from pg_sleep(1)"), m.SYNC_MESSAGE * count)
    for _ in range(count + 1):
        requesting.until()
    requesting.send(m.query(b"select 1"))
    assert requesting.kinds() == "TDCZ"


MAKE = "select make('t', 'select 1 as a')"


def test_query_without_a_sync_behind_a_request_and_an_error_waits_for_the_sync(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(statement(MAKE), statement("select 1/0"), m.query(b"select 1"))
    assert requesting.kinds("E") == "12DC1E"
    requesting.send(m.query(b"select 2"), m.SYNC_MESSAGE, m.query(b"select 3"))
    assert requesting.kinds() == "Z"
    assert requesting.kinds() == "TDCZ"
    requesting.send(m.query(b"select 1"))
    assert requesting.kinds() == "TDCZ"
    assert engaged.tables() == set()


def test_batch_that_executes_the_statement_it_replaces_is_not_run_again(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.query(b"create table x(i int)"), m.parse(b"", b"insert into x values (1)"), m.SYNC_MESSAGE)
    requesting.until(), requesting.until()
    requesting.send(m.bind(b"", b""), m.execute(b""), statement(MAKE), m.SYNC_MESSAGE)
    answer = requesting.until()
    assert answer[-2][0] == "E" and b"C0A000" in answer[-2][1]
    requesting.send(m.query(b"select count(*) from x"))
    assert requesting.until()[1][1].endswith(b"0")
    assert engaged.tables() == {"x"}


def test_batch_that_closes_what_it_has_prepared_is_run_again(requesting: Wire, engaged: Engaged) -> None:
    requesting.send(m.parse(b"a", b"select 1"), m.SYNC_MESSAGE)
    requesting.until()
    requesting.send(m.close_statement(b"a"), statement("set x.y = '1'", name=b"a"), statement(MAKE, name=b"b"))
    requesting.send(m.close_statement(b"b"), m.SYNC_MESSAGE)
    assert requesting.kinds().replace("N", "") == "312C12DC3Z"
    assert engaged.tables() == {"t"}


def test_commit_behind_a_request_that_was_not_noticed_before_it_was_sent_waits_for_it(
    engaged: Engaged,
) -> None:
    engaged.engine.has_callers = True
    client = Wire(engaged.dsn)
    client.send(statement("begin"), statement(MAKE), statement("commit"), m.FLUSH_MESSAGE)
    for _ in range(3):
        client.until("C")
    assert engaged.tables() == {"t"}
    client.send(m.SYNC_MESSAGE)
    assert client.until() == [("Z", b"I")]
    client.close()


def test_commit_in_a_text_too_long_to_be_looked_at_says_in_public_terms_why_it_fails(
    requesting: Wire, engaged: Engaged
) -> None:
    requesting.send(m.query(b"begin"))
    requesting.until()
    requesting.send(m.query(MAKE.encode() + b"; commit --" + b"x" * (1 << 20)))
    answer = requesting.until("E")
    assert b"C0A000" in answer[-1][1] and b"HW002" not in answer[-1][1]
    assert requesting.until() == [("Z", b"I")]
    assert engaged.tables() == set()


@pytest.mark.parametrize("behind", [statement("commit"), statement("commit") + statement("insert into x values (2)")])
def test_block_that_was_begun_before_is_committed_whole_or_not_at_all(
    requesting: Wire, engaged: Engaged, behind: bytes
) -> None:
    """A batch can be run again by itself; what the block has done before it cannot."""
    requesting.send(m.query(b"create table x(i int)"), m.query(b"begin"), m.query(b"insert into x values (1)"))
    for _ in range(3):
        requesting.until()
    requesting.send(statement(MAKE), behind, m.SYNC_MESSAGE)
    answer = requesting.until()
    assert answer[-1] == ("Z", b"I")
    requesting.send(m.query(b"select count(*) from x"))
    count = int(requesting.until()[1][1][6:])
    if "E" in [kind for kind, _ in answer]:
        assert (count, engaged.tables()) == (0, {"x"})
    else:
        assert (count, engaged.tables()) == (behind.count(b"E\0\0"), {"x", "t"})
