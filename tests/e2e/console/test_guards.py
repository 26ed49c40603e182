"""What the console refuses, whoever asks and however: logins, sessions, requests of other sites, rights."""

from __future__ import annotations

import http.client
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.e2e.conftest import Database, drop_role
from tests.e2e.console.conftest import Client

USER = f"console_user_{os.getpid()}"
USERS, ROUNDS = 6, 20


@pytest.fixture(scope="module", autouse=True)
def user(console_db: Database) -> Iterator[None]:
    console_db.run(f"CREATE ROLE {USER} LOGIN PASSWORD 'secret'")
    yield
    console_db.close()
    with psycopg.connect(console_db.server.dsn(console_db.name), autocommit=True) as connection:
        drop_role(connection, USER)


def test_nothing_is_shown_before_login(client: Client) -> None:
    for page in (
        "graph",
        "stream-tables",
        "queues",
        "registers",
        "settings",
        "changes?of=graph",
        "rows?schema=a&name=b",
    ):
        status, said = client.ask("GET", f"/api/{page}")
        assert (status, said) == (401, {"error": {"message": "log in first"}}), page
    assert client.ask("POST", "/api/sql", {"statement": "SELECT 1"})[0] == 401
    assert client.ask("GET", "/api/session")[1] == {"user": None, "database": "postgres"}


def test_cookie_is_for_the_browser_and_this_site_alone(client: Client, console_db: Database) -> None:
    status, said = client.log_in(USER, "secret", console_db.name)
    assert (status, said) == (200, {"user": USER, "database": console_db.name})
    name, *attributes = client.headers["set-cookie"].split("; ")
    assert name.startswith(f"headwater-{client.port}=") and len(name) > 40
    assert {each.lower() for each in attributes} == {"httponly", "path=/", "samesite=strict"}
    assert "secret" not in name


def test_session_ends_with_logout(client: Client, console_db: Database) -> None:
    client.log_in(USER, "secret", console_db.name)
    kept = client.cookie
    assert client.ask("GET", "/api/graph")[0] == 200
    assert client.ask("POST", "/api/logout", {})[0] == 200
    client.cookie = kept
    assert client.ask("GET", "/api/graph")[0] == 401


def test_request_of_another_site_is_refused(client: Client, console_db: Database) -> None:
    client.log_in(USER, "secret", console_db.name)
    statement = {"statement": "CREATE TABLE made_by_another_site ()"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{client.port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ):
        assert client.ask("POST", "/api/sql", statement, **headers)[0] == 403, headers
        assert client.ask("POST", "/api/logout", {}, **headers)[0] == 403, headers
    assert console_db.value("SELECT to_regclass('made_by_another_site')") is None
    assert client.ask("GET", "/api/graph")[0] == 200  # nobody was logged out


def test_every_answer_forbids_foreign_and_inline_scripts(client: Client) -> None:
    for path in ("/", "/static/main.js", "/api/session", "/api/graph", "/nowhere"):
        client.ask("GET", path)
        policy = client.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy and "unsafe" not in policy
        assert client.headers["x-content-type-options"] == "nosniff", path
        assert client.headers["x-frame-options"] == "DENY", path
    _, said = client.ask("GET", "/")
    assert "<script" in said["text"] and "onload" not in said["text"] and "http" not in said["text"]


def test_files_outside_are_not_served(client: Client) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
        assert client.ask("GET", path)[0] == 404, path


def test_login_names_what_is_wrong_and_nothing_of_the_server(client: Client, console_db: Database) -> None:
    status, said = client.log_in(USER, "secret", "no such database")
    assert (status, said["error"]["message"]) == (401, 'database "no such database" does not exist')
    # A database is a name: no connection string in its place leads elsewhere.
    status, said = client.log_in(USER, "secret", f"host=127.0.0.1 dbname={console_db.name}")
    assert (status, said["error"]["message"]) == (
        401,
        f'database "host=127.0.0.1 dbname={console_db.name}" does not exist',
    )
    assert client.log_in("", "secret", console_db.name)[0] == 400
    assert client.log_in(USER, "a\0b", console_db.name)[0] == 400
    assert client.ask("POST", "/api/login", ["no", "object"])[0] == 400
    assert client.ask("POST", "/api/login", "no JSON")[0] == 400


def test_passwords_are_not_guessed_quickly(client: Client, console_db: Database) -> None:
    guessed = f"guessed_{os.getpid()}"
    answers = [client.log_in(guessed, str(number), console_db.name)[0] for number in range(6)]
    assert answers == [401] * 5 + [429]
    assert 0 < int(client.headers["retry-after"]) <= 61
    assert client.log_in(USER, "secret", console_db.name)[0] == 200  # others still get in


def test_what_is_asked_for_wrongly_is_told(client: Client, console_db: Database) -> None:
    client.log_in(USER, "secret", console_db.name)
    assert client.ask("GET", "/api/stream-table?schema=public")[0] == 400
    assert client.ask("GET", "/api/stream-table?schema=public&name=none")[0] == 404
    assert client.ask("GET", "/api/register?name=none")[0] == 404
    assert client.ask("GET", "/api/changes?of=nothing")[0] == 404
    assert client.ask("POST", "/api/act", {"schema": "public", "name": "x", "action": "drop"})[0] == 400
    assert client.ask("POST", "/api/sql", {"statement": 1})[0] == 400
    assert client.ask("POST", "/api/sql", "x" * 2_000_000)[0] == 400
    assert client.ask("DELETE", "/api/graph")[0] in (403, 405)


def test_statement_has_a_session_of_its_own(client: Client, console_db: Database) -> None:
    client.log_in(USER, "secret", console_db.name)

    def run(statement: str) -> dict[str, object]:
        return client.ask("POST", "/api/sql", {"statement": statement})[1]

    assert run("SET statement_timeout = 0")["tag"] == "SET"
    assert run("SHOW statement_timeout")["rows"] == [["30s"]]
    assert run("SELECT current_user")["rows"] == [[USER]]
    assert run("SELECT 1; SELECT 2")["error"]["sqlstate"] == "42601"  # type: ignore[index]
    assert "COPY" in run("COPY (SELECT 1) TO STDOUT")["error"]["message"]  # type: ignore[index]
    assert run("")["error"] is None


def test_pages_call_no_function_that_somebody_has_put_on_the_search_path(client: Client, console_db: Database) -> None:
    """As `now()` of a schema that the user searches first, which would run with the user's rights."""
    console_db.run(f"""
        CREATE SCHEMA trap;
        CREATE TABLE trap.sprung (who text);
        CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
            'INSERT INTO trap.sprung VALUES (current_user); SELECT pg_catalog.now()';
        CREATE FUNCTION trap.pg_total_relation_size(oid) RETURNS bigint LANGUAGE sql AS
            'INSERT INTO trap.sprung VALUES (current_user); SELECT 1::bigint';
        GRANT USAGE ON SCHEMA trap TO PUBLIC;
        GRANT INSERT ON trap.sprung TO PUBLIC;
        ALTER ROLE {USER} SET search_path = trap, pg_catalog, public;
        CREATE TABLE t (a int);
        GRANT SELECT ON t TO PUBLIC
    """)
    console_db.create("s", "SELECT a FROM t", schedule="1h")
    console_db.run(f"GRANT SELECT ON s TO {USER}")
    client.log_in(USER, "secret", console_db.name)
    assert [node["title"] for node in client.ask("GET", "/api/graph")[1]["nodes"]] == ["t", "s"]
    assert client.ask("GET", "/api/stream-table?schema=public&name=s")[1]["stream_table"]["status"] == "ACTIVE"
    assert client.ask("POST", "/api/sql", {"statement": "SELECT clock_timestamp()"})[1]["error"] is None
    assert console_db.value("SELECT count(*) FROM trap.sprung") == 1  # of the user's own statement


def test_functions_of_somebody_elses_register_are_not_called_unasked(client: Client, console_db: Database) -> None:
    """They belong to the register's owner, who can write them anew, and run with the rights of who calls them."""
    owner = f"register_owner_{os.getpid()}"
    db = console_db
    db.run(f"""
        CREATE ROLE {owner} LOGIN PASSWORD 'secret';
        GRANT USAGE ON SCHEMA accum TO {owner}, {USER};
        GRANT INSERT ON accum._registers TO {owner}
    """)
    try:
        connection = db.connect(user=owner, password="secret")
        connection.execute("""SELECT accum.register_create('till', '{"shop": "int"}', '{"cash": "numeric"}')""")
        db.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA accum TO {USER}")
        period = "2026-01-01"
        movement = f'[{{"recorder": "r", "period": "{period}", "shop": 1, "cash": 5}}]'
        connection.execute("SELECT accum.register_post('till', %s)", [movement])
        client.log_in(USER, "secret", db.name)
        status, shown = client.ask("GET", "/api/register?name=till&period=year")
        assert (status, shown["owner"], shown["is_trusted"], shown["balances"]) == (200, owner, False, None)
        status, shown = client.ask("GET", "/api/register?name=till&period=year&confirmed=1")
        assert status == 200, shown
        assert [row["balance"] for row in shown["balances"]][-1] == {"cash": 5}
        client.log_in(owner, "secret", db.name)
        assert client.ask("GET", "/api/register?name=till&period=year")[1]["is_trusted"] is True
    finally:
        db.run("SELECT accum.register_drop('till', true)")
        drop_role(db.connection, owner)


def test_events_end_with_the_session(client: Client, console_db: Database) -> None:
    opened = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headwater console' AND usename = %s"
    before = console_db.value(opened, USER)
    client.log_in(USER, "secret", console_db.name)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=90)
    connection.request("GET", "/api/changes?of=graph", headers={"Cookie": client.cookie})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert answer.readline() == b"event: ready\n"
    assert client.ask("POST", "/api/logout", {})[0] == 200
    assert "event: ended" in answer.read().decode()
    connection.close()
    deadline = time.monotonic() + 90
    while console_db.value(opened, USER) > before:
        assert time.monotonic() < deadline, "its connections are still open"
        time.sleep(0.05)


def test_sessions_that_end_while_their_pages_wait_leave_the_others_be(client: Client, console_db: Database) -> None:
    """Their connections are closed while the event loop waits for them, and new ones have the same descriptors."""

    def come_and_go(_: int) -> None:
        own = Client(client.port)
        for _ in range(ROUNDS):
            assert own.log_in(USER, "secret", console_db.name)[0] == 200
            streaming, asking = Client(client.port), Client(client.port)
            streaming.cookie = asking.cookie = own.cookie
            with ThreadPoolExecutor(3) as others:
                answers = [others.submit(streaming.ask, "GET", "/api/changes?of=graph")]
                answers += [others.submit(asking.ask, "GET", f"/api/{page}") for page in ("graph", "stream-tables")]
                time.sleep(random.random() / 50)
                assert own.ask("POST", "/api/logout", {})[0] == 200
                assert all(answer.result()[0] for answer in answers)  # of whatever kind

    with ThreadPoolExecutor(USERS) as users:
        list(users.map(come_and_go, range(USERS)))
    assert client.log_in(USER, "secret", console_db.name)[0] == 200
