"""What `test_clients.py` asks of every client, by psycopg 2: `with_psycopg2.py URL` prints what it saw."""

import io
import json
import select
import sys
import threading
from decimal import Decimal

import psycopg2
import psycopg2.extras

connection = psycopg2.connect(sys.argv[1])
connection.autocommit = True
cursor = connection.cursor()
seen = {}


def rows(statement, parameters=None):
    cursor.execute(statement, parameters)
    return cursor.fetchall()


values = (42, "Grüße, 世界", None, b"\x00\xff", Decimal("12345678901234567890.123456789"), True)
cursor.execute("SELECT %s, %s, %s::text, %s, %s, %s", values)
number, text, null, data, numeric, truth = cursor.fetchone()
seen["values"] = [number, text, null, bytes(data).hex(), str(numeric), truth]

cursor.execute(
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2))"
)
cursor.execute("INSERT INTO orders (customer, amount) VALUES (%s, %s), (%s, %s)", ("a", 10.25, "a", 20.25))
TOTALS = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"
cursor.execute("SELECT pgtrickle.create_stream_table(name => %s, query => %s)", ("totals", TOTALS))
connection.autocommit = False
cursor.execute("INSERT INTO orders (customer, amount) VALUES (%s, %s)", ("b", 1))
cursor.execute("SELECT pgtrickle.refresh_stream_table(%s)", ("totals",))
connection.commit()
seen["refreshed"] = [
    [customer, orders, str(total)]
    for customer, orders, total in rows("SELECT customer, orders, total FROM totals ORDER BY customer")
]

cursor.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ("passing", "SELECT customer FROM orders"))
connection.rollback()
connection.autocommit = True
seen["rolled back"] = rows("SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'")[0][0]

try:
    cursor.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ("broken", "SELECT x FROM nowhere"))
except psycopg2.Error as error:
    seen["failed"] = error.pgcode
seen["usable"] = rows("SELECT 1")[0][0]

cursor.execute("CREATE TABLE numbers (n int PRIMARY KEY)")
cursor.execute("SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')")
psycopg2.extras.execute_batch(cursor, "INSERT INTO numbers VALUES (%s)", [(n,) for n in range(1000)])
cursor.execute("SELECT pgtrickle.refresh_stream_table('sums')")
seen["batch"] = [int(value) for value in rows("SELECT c, s FROM sums")[0]]

cursor.execute("CREATE TABLE lines (n int, line text)")
cursor.copy_from(io.StringIO("".join(f"{n}\tline {n}\n" for n in range(10_000))), "lines")
out = io.StringIO()
cursor.copy_expert("COPY lines TO STDOUT", out)
seen["copied"] = out.getvalue().count("\n")

connection.autocommit = False
with connection.cursor("named") as named:
    named.itersize = 1000
    named.execute("SELECT n FROM generate_series(1, 10000) AS n")
    seen["fetched"] = sum(n for (n,) in named)
connection.commit()
connection.autocommit = True

timer = threading.Timer(0.3, connection.cancel)
timer.start()
try:
    cursor.execute("SELECT pg_sleep(60)")
except psycopg2.Error as error:
    seen["cancelled"] = error.pgcode
timer.join()

cursor.execute("LISTEN news")
other = psycopg2.connect(sys.argv[1])
other.autocommit = True
other.cursor().execute("SELECT pg_notify('news', 'hello')")
other.close()
while not connection.notifies:
    assert select.select([connection], [], [], 60)[0], "no notification came"
    connection.poll()
seen["notified"] = connection.notifies[0].payload

connection.autocommit = False
cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')")
seen["subscribed"] = [id for _, _, id in rows("FETCH 2 c")]
connection.commit()
connection.autocommit = True

cursor.execute("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')")
cursor.execute("SELECT pgque.send('orders', 'order.created', %s::jsonb)", (json.dumps({"order_id": 42}),))
cursor.execute("SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')")
seen["event"] = rows("SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)")[0][0]
seen["notices"] = connection.notices
print(json.dumps(seen))
