"""What `test_clients.py` asks of every client, by ADBC, in Arrow: `with_adbc.py URL` prints what it saw."""

import json
import sys

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

seen = {}
with adbc.connect(sys.argv[1]) as connection, connection.cursor() as cursor:

    def table(statement, parameters=None):
        cursor.execute(statement, parameters)
        return cursor.fetch_arrow_table()

    values = table(
        "SELECT $1::int AS a, $2::text AS b, NULL::text AS c, '\\x00ff'::bytea AS d, $3::numeric::text AS e, true AS f",
        (42, "Grüße, 世界", "12345678901234567890.123456789"),
    ).to_pylist()[0]
    seen["values"] = [*list(values.values())[:3], values["d"].hex(), values["e"], values["f"]]

    cursor.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2))"
    )
    cursor.execute("INSERT INTO orders (customer, amount) VALUES ('a', 10.25), ('a', 20.25)")
    totals = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"
    table("SELECT pgtrickle.create_stream_table(name => $1, query => $2)::text", ("totals", totals))
    connection.commit()
    cursor.execute("INSERT INTO orders (customer, amount) VALUES ('b', 1)")
    table("SELECT pgtrickle.refresh_stream_table($1)::text", ("totals",))
    connection.commit()
    refreshed = table("SELECT customer, orders, total::text AS total FROM totals ORDER BY customer")
    seen["refreshed"] = [list(row.values()) for row in refreshed.to_pylist()]

    table("SELECT pgtrickle.create_stream_table('passing', 'SELECT customer FROM orders')::text")
    connection.rollback()
    count = table("SELECT count(*) AS n FROM pgtrickle.pgt_status() WHERE name = 'public.passing'")
    seen["rolled back"] = count.to_pylist()[0]["n"]
    try:
        table("SELECT pgtrickle.create_stream_table('broken', 'SELECT x FROM nowhere')::text")
    except adbc.Error as error:
        seen["failed"] = error.sqlstate
    connection.rollback()
    seen["usable"] = table("SELECT 1 AS one").to_pylist()[0]["one"]

    cursor.execute("CREATE TABLE numbers (n bigint PRIMARY KEY)")
    table("SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')::text")
    cursor.adbc_ingest("numbers", pa.table({"n": list(range(1000))}), mode="append")
    table("SELECT pgtrickle.refresh_stream_table('sums')::text")
    connection.commit()
    seen["batch"] = list(table("SELECT c, s::bigint AS s FROM sums").to_pylist()[0].values())

    lines = pa.table({"n": list(range(10_000)), "line": [f"line {n}" for n in range(10_000)]})
    cursor.adbc_ingest("lines", lines, mode="create")
    seen["copied"] = table("SELECT n, line FROM lines").num_rows
    fetched = table("SELECT n::bigint AS n FROM generate_series(1, 10000) AS n")
    seen["fetched"] = sum(fetched["n"].to_pylist())
print(json.dumps(seen))
