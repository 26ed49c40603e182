"""What `test_clients.py` asks of every client, by psycopg 3: `with_psycopg.py URL` prints what it saw."""

import json
import sys
import threading
from decimal import Decimal

import psycopg

connection = psycopg.connect(sys.argv[1], autocommit=True)
notices = []
connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
seen = {}


def rows(statement, parameters=None):
    return connection.execute(statement, parameters).fetchall()


values = (42, "Grüße, 世界", None, b"\x00\xff", Decimal("12345678901234567890.123456789"), True)
((number, text, null, data, numeric, truth),) = rows("SELECT %s::int, %s, %s::text, %s, %s, %s", values)
seen["values"] = [number, text, null, data.hex(), str(numeric), truth]

TOTALS = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"
with connection.pipeline():
    connection.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2))"
    )
    connection.execute("INSERT INTO orders (customer, amount) VALUES (%s, %s), (%s, %s)", ("a", 10.25, "a", 20.25))
    connection.execute("SELECT pgtrickle.create_stream_table(name => %s, query => %s)", ("totals", TOTALS))
with connection.transaction(), connection.pipeline():
    connection.execute("INSERT INTO orders (customer, amount) VALUES (%s, %s)", ("b", 1))
    connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", ("totals",))
seen["refreshed"] = [
    [customer, orders, str(total)]
    for customer, orders, total in rows("SELECT customer, orders, total FROM totals ORDER BY customer")
]

with connection.transaction(force_rollback=True):
    connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ("passing", "SELECT customer FROM orders"))
seen["rolled back"] = rows("SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'")[0][0]

try:
    connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ("broken", "SELECT x FROM nowhere"))
except psycopg.Error as error:
    seen["failed"] = error.sqlstate
seen["usable"] = rows("SELECT 1")[0][0]

connection.execute("CREATE TABLE numbers (n int PRIMARY KEY)")
connection.execute("SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')")
with connection.pipeline():
    connection.cursor().executemany("INSERT INTO numbers VALUES (%s)", [(n,) for n in range(1000)])
    connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
seen["batch"] = [int(value) for value in rows("SELECT c, s FROM sums")[0]]

connection.execute("CREATE TABLE lines (n int, line text)")
with connection.cursor().copy("COPY lines FROM STDIN") as copy:
    for n in range(10_000):
        copy.write_row((n, f"line {n}"))
with connection.cursor().copy("COPY lines TO STDOUT") as copy:
    seen["copied"] = sum(1 for _ in copy.rows())

with connection.transaction(), connection.cursor("named") as named:
    named.itersize = 1000
    named.execute("SELECT n FROM generate_series(1, 10000) AS n")
    seen["fetched"] = sum(n for (n,) in named)

timer = threading.Timer(0.3, connection.cancel_safe)
timer.start()
try:
    connection.execute("SELECT pg_sleep(60)")
except psycopg.Error as error:
    seen["cancelled"] = error.sqlstate
timer.join()

connection.execute("LISTEN news")
with psycopg.connect(sys.argv[1], autocommit=True) as other:
    other.execute("SELECT pg_notify('news', 'hello')")
seen["notified"] = next(notify.payload for notify in connection.notifies(timeout=60, stop_after=1))

with connection.transaction():
    connection.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')")
    seen["subscribed"] = [id for _, _, id in rows("FETCH 2 c")]

connection.execute("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')")
connection.execute("SELECT pgque.send('orders', 'order.created', %s::jsonb)", (json.dumps({"order_id": 42}),))
connection.execute("SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')")
seen["event"] = rows("SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)")[0][0]
seen["notices"] = notices
print(json.dumps(seen))
