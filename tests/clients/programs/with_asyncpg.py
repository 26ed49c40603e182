"""What `test_clients.py` asks of every client, by asyncpg: `with_asyncpg.py URL` prints what it saw."""

import asyncio
import io
import json
import sys
from decimal import Decimal

import asyncpg

TOTALS = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"


async def failure(work):
    try:
        await work
    except asyncpg.PostgresError as error:
        return error.sqlstate


async def tell():
    connection = await asyncpg.connect(sys.argv[1])
    notices, seen = [], {}
    connection.add_log_listener(lambda _, message: notices.append(message.message))

    values = (42, "Grüße, 世界", None, b"\x00\xff", Decimal("12345678901234567890.123456789"), True)
    number, text, null, data, numeric, truth = await connection.fetchrow(
        "SELECT $1::int, $2::text, $3::text, $4::bytea, $5::numeric, $6::bool", *values
    )
    seen["values"] = [number, text, null, data.hex(), str(numeric), truth]

    await connection.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2))"
    )
    insert = "INSERT INTO orders (customer, amount) VALUES ($1, $2)"
    await connection.executemany(insert, [("a", Decimal("10.25")), ("a", Decimal("20.25"))])
    await connection.execute("SELECT pgtrickle.create_stream_table(name => $1, query => $2)", "totals", TOTALS)
    async with connection.transaction():
        await connection.execute(insert, "b", Decimal(1))
        await connection.execute("SELECT pgtrickle.refresh_stream_table($1)", "totals")
    seen["refreshed"] = [
        [customer, orders, str(total)]
        for customer, orders, total in await connection.fetch(
            "SELECT customer, orders, total FROM totals ORDER BY customer"
        )
    ]

    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pgtrickle.create_stream_table($1, $2)", "passing", "SELECT customer FROM orders")
    await transaction.rollback()
    seen["rolled back"] = await connection.fetchval(
        "SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'"
    )
    create = "SELECT pgtrickle.create_stream_table($1, $2)"
    seen["failed"] = await failure(connection.execute(create, "broken", "SELECT x FROM nowhere"))
    seen["usable"] = await connection.fetchval("SELECT 1")

    await connection.execute("CREATE TABLE numbers (n int PRIMARY KEY)")
    await connection.execute(create, "sums", "SELECT count(*) AS c, sum(n) AS s FROM numbers")
    await connection.executemany("INSERT INTO numbers VALUES ($1)", [(n,) for n in range(1000)])
    await connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    seen["batch"] = [int(value) for value in await connection.fetchrow("SELECT c, s FROM sums")]

    await connection.execute("CREATE TABLE lines (n int, line text)")
    await connection.copy_records_to_table("lines", records=[(n, f"line {n}") for n in range(10_000)])
    out = io.BytesIO()
    await connection.copy_from_table("lines", output=out)
    seen["copied"] = out.getvalue().count(b"\n")

    async with connection.transaction():
        cursor = connection.cursor("SELECT n FROM generate_series(1, 10000) AS n", prefetch=1000)
        seen["fetched"] = sum([row["n"] async for row in cursor])

    other = await asyncpg.connect(sys.argv[1])
    sleeping = asyncio.create_task(failure(connection.execute("SELECT pg_sleep(60)")))
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND query ~ 'pg_sleep' AND state = 'active'"
    )
    while not await other.fetch(cancel, connection.get_server_pid()):
        pass
    seen["cancelled"] = await sleeping

    heard = asyncio.get_running_loop().create_future()
    await connection.add_listener("news", lambda _connection, _pid, _channel, payload: heard.set_result(payload))
    await other.execute("SELECT pg_notify('news', 'hello')")
    seen["notified"] = await asyncio.wait_for(heard, 60)
    await other.close()

    async with connection.transaction():
        await connection.execute(
            "DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')"
        )
        seen["subscribed"] = [row[2] for row in await connection.fetch("FETCH 2 c")]

    await connection.execute("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')")
    await connection.execute("SELECT pgque.send('orders', 'order.created', $1::jsonb)", json.dumps({"order_id": 42}))
    await connection.execute("SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')")
    event = "SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)"
    seen["event"] = json.loads(await connection.fetchval(event))
    seen["notices"] = notices
    await connection.close()
    print(json.dumps(seen))


asyncio.run(tell())
