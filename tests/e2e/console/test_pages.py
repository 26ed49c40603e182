"""The console in a real browser: what its pages show, what their buttons do, and how soon."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, drop_role
from tests.e2e.console.browser import PATIENCE, Browser
from tests.e2e.console.conftest import Console

OWNER = "alice" if "HEADWATER_SCREENSHOTS" in os.environ else f"console_owner_{os.getpid()}"
NOBODY = f"console_nobody_{os.getpid()}"

MADE = f"""
CREATE ROLE {OWNER} LOGIN PASSWORD 'secret' IN ROLE pgque_reader, pgque_writer;
CREATE ROLE {NOBODY} LOGIN PASSWORD 'secret';
GRANT CREATE, USAGE ON SCHEMA public TO {OWNER};
"""
OWNED = """
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2));
INSERT INTO orders (customer, amount) SELECT 'customer ' || n % 3, n FROM generate_series(1, 300) AS n;
"""
PAGES = (
    "graph", "stream-tables", "stream-table/public/totals", "queues", "queue/orders", "registers", "register/stock",
    "subscriptions", "spark", "settings", "sql",
)  # fmt: skip

DIES = """
SELECT m.batch_id, pgque.event_dead(m.batch_id, m.msg_id, 'card refused', now(), NULL, 5, m.type, m.payload)
FROM pgque.receive('orders', %s, 10) AS m
"""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
"""The lowest contrast of a text to what is behind it, and whose it is."""


@pytest.fixture(scope="module", autouse=True)
def made(console_db: Database) -> Iterator[None]:
    """A stream table over a table, a queue with a dead letter, a register; an owner of the tables, and a stranger."""
    db = console_db
    db.run(MADE)
    owner = db.connect(user=OWNER, password="secret")
    owner.execute(OWNED)
    query = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"
    owner.execute("SELECT pgtrickle.create_stream_table('totals', %s, '1s')", [query])
    db.run("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')")
    db.run("""SELECT accum.register_create('stock', '{"warehouse": "int"}', '{"quantity": "numeric(18,2)"}')""")
    db.run(f"GRANT USAGE ON SCHEMA accum TO {OWNER}; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA accum TO {OWNER}")
    _post(db, 40)
    yield
    db.close()
    with psycopg.connect(db.server.dsn(db.name), autocommit=True) as connection:
        for name in (OWNER, NOBODY):
            drop_role(connection, name)


def _post(db: Database, quantity: int) -> None:
    movement = f"""{{"recorder": "r{quantity}", "period": "now", "warehouse": 1, "quantity": {quantity}}}"""
    db.run("SELECT accum.register_post('stock', %s::jsonb)", f"[{movement}]")


@pytest.fixture
def log_in(browser: Browser, console: Console, console_db: Database) -> Callable[..., None]:
    def enter(user: str = OWNER, page: str = "graph") -> None:
        if browser.evaluate("location.origin") + "/" != console.url:
            browser.open(console.url)
        who = f"{user} on {console_db.name}"
        browser.wait("Boolean(document.querySelector('form.login, header .who'))")
        if who not in browser.text():
            if browser.evaluate("Boolean(document.querySelector('header .who'))"):
                browser.click("button", "Log out")
            _type_login(browser, user, "secret", console_db.name)
            browser.sees(who)
        browser.open(f"{console.url}#/{page}")

    return enter


def _type_login(browser: Browser, user: str, password: str, database: str) -> None:
    for name, text in (("#user", user), ("#password", password), ("#database", database)):
        browser.type(name, text)
    browser.press("Enter")


def _see_page(browser: Browser, page: str) -> None:
    """Wait until a page is there, with what it has read."""
    browser.wait(f"document.querySelector('main').dataset.page === '#/{page}'")
    browser.wait("!document.body.innerText.includes('Loading') && Boolean(document.querySelector('h1'))")


def test_login_with_a_wrong_password_and_then_the_right_one(
    browser: Browser, console: Console, console_db: Database
) -> None:
    browser.open(console.url)
    _type_login(browser, OWNER, "wrong", console_db.name)
    browser.sees(f'password authentication failed for user "{OWNER}"')
    assert browser.evaluate("Boolean(document.querySelector('nav'))") is False
    _type_login(browser, OWNER, "secret", console_db.name)
    browser.sees(f"{OWNER} on {console_db.name}")
    assert browser.evaluate("document.cookie") == ""  # no script can read it
    browser.click("button", "Log out")
    browser.sees("The user and password that you have in PostgreSQL.")


def test_graph_shows_what_reads_what_and_a_new_stream_table_within_a_second(
    browser: Browser, log_in: Callable[..., None], console_db: Database
) -> None:
    log_in()
    browser.wait("document.querySelectorAll('.node').length >= 5")
    titles = browser.evaluate("[...document.querySelectorAll('.node')].map((n) => n.getAttribute('aria-label'))")
    assert {title.split(", ")[0] for title in titles} == {"orders", "totals", "billing", "stock"}
    assert any(title.startswith("orders, source") for title in titles)
    assert any(title.startswith("totals, stream table") for title in titles)
    lags = browser.evaluate("[...document.querySelectorAll('.edge text')].map((n) => n.textContent)")
    assert len(lags) == 2 and all(lag.endswith((" s", " ms")) for lag in lags)

    connection = console_db.connect(user=OWNER, password="secret")
    connection.execute(
        "SELECT pgtrickle.create_stream_table('many', 'SELECT customer FROM totals WHERE orders > 1', '1s')"
    )
    made_at = time.monotonic()
    browser.wait("""Boolean(document.querySelector('.node[aria-label^="many, stream table"]'))""")
    took = time.monotonic() - made_at
    assert took < (1.0 if os.getloadavg()[0] < (os.cpu_count() or 1) else PATIENCE)
    connection.execute("SELECT pgtrickle.drop_stream_table('many')")
    browser.wait("""!document.querySelector('.node[aria-label^="many,"]')""")


def test_graph_is_moved_scaled_and_searched_without_a_mouse(browser: Browser, log_in: Callable[..., None]) -> None:
    log_in()
    browser.wait("Boolean(document.querySelector('.node'))")
    where = "document.querySelector('.graph svg > g').getAttribute('transform')"
    browser.evaluate("document.querySelector('.graph svg').focus()")
    for key in ("+", "ArrowLeft", "0"):
        before = browser.evaluate(where)
        browser.press(key)
        browser.wait(f"{where} !== {before!r}")
    browser.type("input[type=search]", "tota")
    browser.wait("document.querySelectorAll('.node:not(.dim)').length === 1")
    browser.evaluate("""document.querySelector('.node[aria-label^="totals"]').focus()""")
    browser.press("Enter")
    browser.wait("document.querySelector('h1').textContent === 'totals'")


def test_page_of_a_stream_table_and_its_actions(
    browser: Browser, log_in: Callable[..., None], console_db: Database, eventually: Callable[..., Any]
) -> None:
    log_in(page="stream-table/public/totals")
    for text in (
        "GROUP BY customer",
        "Scan(public.orders)",
        "what adds up is added",
        "algebraic",
        "postgres (",
        "UNIQUE",
    ):
        browser.sees(text)
    assert browser.evaluate("document.querySelectorAll('svg.chart .bar').length") >= 1
    browser.click("button", "Refresh")
    browser.sees("MANUAL")
    browser.click("button", "Suspend")
    browser.sees("SUSPENDED")
    assert console_db.state("totals")["status"] == "SUSPENDED"
    browser.click("button", "Refresh")
    browser.sees('ERROR 55000: stream table "totals" is suspended')
    browser.click("button", "Resume")
    browser.wait("document.querySelector('.facts').textContent.includes('ACTIVE')")
    eventually(lambda: console_db.state("totals")["status"] == "ACTIVE")


def test_rows_of_a_stream_table_come_by_subscribe(
    browser: Browser, log_in: Callable[..., None], console_db: Database, eventually: Callable[..., Any]
) -> None:
    log_in(page="stream-table/public/totals")
    browser.click("button", "Follow rows")
    browser.sees("Nothing has changed yet.")
    followed = "SELECT count(*) FROM pgtrickle.subscription_status() WHERE reads = 'public.totals' AND clients = 1"
    eventually(lambda: console_db.value(followed))
    console_db.run("INSERT INTO orders (customer, amount) VALUES ('somebody new', 7)")
    browser.sees("somebody new")
    browser.open(browser.evaluate("location.href").partition("#")[0] + "#/subscriptions")
    browser.sees("Subscriptions")
    console_db.run("DELETE FROM orders WHERE customer = 'somebody new'")


def test_dead_letter_is_inspected_and_replayed(
    browser: Browser, log_in: Callable[..., None], console_db: Database, eventually: Callable[..., Any]
) -> None:
    db = console_db
    db.run("""SELECT pgque.send('orders', 'order.created', '{"order_id": "<b>42</b>"}'::jsonb)""")
    ((batch, *_),) = eventually(lambda: db.rows(DIES, "billing"))
    db.run("SELECT pgque.ack(%s)", batch)
    log_in(page="queue/orders")
    browser.sees("card refused")
    browser.click("summary", "event")
    browser.sees('"order_id": "<b>42</b>"')  # as text
    browser.evaluate("document.querySelector('td button').focus()")
    waits = "SELECT pgque.send('orders', 'order.created', '{}'::jsonb)"
    db.run(waits)  # so that the page is drawn again, under the hands of who uses it
    browser.wait("document.querySelector('tbody td:nth-child(3)').textContent !== '0'")
    assert browser.evaluate("document.activeElement.textContent") == "Replay"
    assert browser.evaluate("document.querySelector('details').open")
    browser.press("Enter")
    browser.sees("Replayed as event")
    browser.wait("!document.body.innerText.includes('card refused')")
    assert db.rows("SELECT count(*) FROM pgque.dead_letter") == [(0,)]
    again = []
    while len(again) < 2:
        again += eventually(lambda: db.rows("SELECT payload, batch_id FROM pgque.receive('orders', 'billing', 10)"))
        db.run("SELECT pgque.ack(%s)", again[-1][1])
    assert sorted(payload for payload, _ in again) == ['{"order_id": "<b>42</b>"}', "{}"]


def test_balances_of_a_register_are_drawn_and_follow_its_movements(
    browser: Browser, log_in: Callable[..., None], console_db: Database, eventually: Callable[..., Any]
) -> None:
    log_in(page="register/stock")
    browser.wait("document.querySelectorAll('svg.chart .dot').length >= 1")
    latest = "document.querySelector('tbody tr td.number').textContent"
    browser.wait(f"{latest} === '40'")
    followed = (
        "SELECT count(*) FROM pgtrickle.subscription_status() WHERE reads = 'accum.stock_movements' AND clients = 1"
    )
    eventually(lambda: console_db.value(followed))
    _post(console_db, 2)
    browser.wait(f"{latest} === '42'")


def test_sql_pane(browser: Browser, log_in: Callable[..., None]) -> None:
    log_in(page="sql")
    browser.type("textarea", "SELECT '<img src=x onerror=document.title=1>' AS html, NULL AS none")
    browser.press("Enter", modifiers=2)
    browser.sees("<img src=x onerror=document.title=1>")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    browser.type("textarea", "SELECT n FROM generate_series(1, 2500) AS n")
    browser.click("button", "Run")
    browser.sees("1,000 of 2,500 rows are shown")
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 1000
    browser.click("button", "EXPLAIN")
    browser.sees("Function Scan on generate_series")
    browser.type("textarea", "SELECT nothing")
    browser.click("button", "Run")
    browser.sees('ERROR 42703: column "nothing" does not exist')
    browser.type("textarea", "DO $$ BEGIN RAISE NOTICE 'so it is'; END $$")
    browser.click("button", "Run")
    browser.sees("NOTICE: so it is")
    browser.click("button", "Explain stream table")
    browser.sees("Operator Tree")


def test_user_without_rights_sees_nothing(browser: Browser, log_in: Callable[..., None]) -> None:
    log_in(NOBODY)
    browser.sees("There is nothing here that you may read.")
    assert "totals" not in browser.text()
    here = browser.evaluate("location.origin")
    for page, said in (
        ("stream-tables", "There is no stream table that you may read."),
        ("stream-table/public/totals", 'there is no stream table "public.totals" that you may read'),
        ("queues", "ERROR 42501: permission denied for schema pgque"),
        ("queue/orders", "ERROR 42501: permission denied for schema pgque"),
        ("registers", "There is no register that you may read."),
        ("register/stock", 'there is no register "stock" that you may read'),
        ("subscriptions", "Nobody subscribes whose subscriptions you may see."),
        ("spark", "No refresh that you may see was computed by Spark."),
    ):
        browser.open(f"{here}/#/{page}")
        browser.sees(said)
        assert "GROUP BY" not in browser.text()
    browser.open(f"{here}/#/sql")
    browser.type("textarea", "SELECT * FROM totals")
    browser.click("button", "Run")
    browser.sees("ERROR 42501: permission denied for table totals")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_360_pixels_and_their_contrast_is_aa(
    browser: Browser, log_in: Callable[..., None], dark: bool
) -> None:
    log_in()
    here = browser.evaluate("location.origin")
    try:
        browser.look(360, 740, dark=dark)
        for page in PAGES:
            browser.open(f"{here}/#/{page}")
            _see_page(browser, page)
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
            ratio, element = browser.evaluate(CONTRAST)
            assert ratio >= 4.5, (page, ratio, element)
    finally:
        browser.look()


SHOWN = """
CREATE TABLE customers (name text PRIMARY KEY, region text);
INSERT INTO customers VALUES ('customer 0', 'north'), ('customer 1', 'south'), ('customer 2', 'north');
SELECT pgtrickle.create_stream_table('revenue', 'SELECT c.region, count(*) AS orders, sum(o.amount) AS revenue
    FROM orders o JOIN customers c ON c.name = o.customer GROUP BY c.region', '1s');
SELECT pgtrickle.create_stream_table('best_customers', 'SELECT t.customer, t.total, c.region FROM totals t
    JOIN customers c ON c.name = t.customer ORDER BY t.total DESC LIMIT 10', '10s');
SELECT pgtrickle.create_stream_table('overview', 'SELECT r.region, r.revenue, b.customer FROM revenue r
    LEFT JOIN best_customers b USING (region)', '1m');
"""


@pytest.mark.skipif("HEADWATER_SCREENSHOTS" not in os.environ, reason="takes the pictures of docs/console.md anew")
def test_screenshots(
    browser: Browser, log_in: Callable[..., None], console_db: Database, eventually: Callable[..., Any]
) -> None:
    """`HEADWATER_SCREENSHOTS=docs/images pytest tests/e2e/console`."""
    place = Path(os.environ["HEADWATER_SCREENSHOTS"])
    db = console_db
    db.connect(user=OWNER, password="secret").execute(SHOWN)
    db.run(
        "SELECT pgque.subscribe('orders', 'mailing'), pgque.send('orders', 'order.created', '{\"order_id\": 7}'::jsonb)"
    )
    ((batch, *_),) = eventually(lambda: db.rows(DIES, "mailing"))
    db.run("SELECT pgque.ack(%s)", batch)
    for day in range(1, 40):
        movement = {
            "recorder": f"day {day}",
            "period": f"{day} days ago",
            "warehouse": 1,
            "quantity": day * 37 % 50 - 20,
        }
        period = db.value("SELECT now() - %s * interval '1 day'", day).isoformat()
        db.run("SELECT accum.register_post('stock', %s::jsonb)", json.dumps([movement | {"period": period}]))
    for number in range(12):
        db.run(
            "INSERT INTO orders (customer, amount) SELECT 'customer 1', n FROM generate_series(1, %s) AS n",
            number**3 + 1,
        )
        db.refresh("totals")
    following = db.connect(autocommit=False, user=OWNER, password="secret")
    following.execute("DECLARE c CURSOR FOR SUBSCRIBE totals")
    browser.look(1100, 620)
    log_in()
    here = browser.evaluate("location.origin")
    for page in PAGES:
        browser.open(f"{here}/#/{page}")
        _see_page(browser, page)
        if page == "sql":
            browser.type("textarea", "SELECT customer, orders, total FROM totals ORDER BY total DESC")
            browser.press("Enter", modifiers=2)
            browser.sees("SELECT 3")
        browser.look(1100, 450 if page == "settings" else 620)  # of fewer bytes
        browser.screenshot(place / f"console-{page.partition('/')[0]}.png")
        if page.startswith("stream-table/"):
            browser.evaluate(
                "[...document.querySelectorAll('h2')].find((e) => e.textContent === 'Plan').scrollIntoView()"
            )
            browser.screenshot(place / "console-plan.png")
            browser.evaluate("scrollTo(0, 0)")
    following.rollback()
    browser.click("button", "Log out")
    browser.sees("The user and password that you have in PostgreSQL.")
    browser.screenshot(place / "console-login.png")
    browser.look()
