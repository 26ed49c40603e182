// What `test_clients.py` asks of every client, by node-postgres: `node with_node.mjs URL` prints what it saw.

import pg from "pg";
import Cursor from "pg-cursor";
import { from, to } from "pg-copy-streams";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

const url = process.argv[2];
const client = new pg.Client({ connectionString: url });
await client.connect();
const seen = {};
const notices = [];
client.on("notice", (notice) => notices.push(notice.message));
const rows = async (text, values) => (await client.query({ text, values, rowMode: "array" })).rows;
const failure = async (work) => {
  try {
    await work;
  } catch (error) {
    return error.code;
  }
};

const values = [42, "Grüße, 世界", null, Buffer.from([0, 255]), "12345678901234567890.123456789", true];
const [[number, text, none, data, numeric, truth]] = await rows(
  "SELECT $1::int, $2::text, $3::text, $4::bytea, $5::numeric, $6::bool", values);
seen["values"] = [number, text, none, data.toString("hex"), numeric, truth];

await client.query(
  "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2))");
await client.query("INSERT INTO orders (customer, amount) VALUES ($1, $2), ($3, $4)", ["a", 10.25, "a", 20.25]);
const totals = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer";
await client.query("SELECT pgtrickle.create_stream_table(name => $1, query => $2)", ["totals", totals]);
await client.query("BEGIN");
await client.query("INSERT INTO orders (customer, amount) VALUES ($1, $2)", ["b", 1]);
await client.query("SELECT pgtrickle.refresh_stream_table($1)", ["totals"]);
await client.query("COMMIT");
seen["refreshed"] = (await rows("SELECT customer, orders, total FROM totals ORDER BY customer")).map(
  ([customer, orders, total]) => [customer, Number(orders), total]);

await client.query("BEGIN");
await client.query("SELECT pgtrickle.create_stream_table($1, $2)", ["passing", "SELECT customer FROM orders"]);
await client.query("ROLLBACK");
seen["rolled back"] = Number(
  (await rows("SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'"))[0][0]);

seen["failed"] = await failure(
  client.query("SELECT pgtrickle.create_stream_table($1, $2)", ["broken", "SELECT x FROM nowhere"]));
seen["usable"] = (await rows("SELECT 1"))[0][0];

await client.query("CREATE TABLE numbers (n int PRIMARY KEY)");
await client.query("SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')");
await Promise.all([
  ...Array.from({ length: 1000 }, (_, n) =>
    client.query({ name: "insert", text: "INSERT INTO numbers VALUES ($1)", values: [n] })),
  client.query("SELECT pgtrickle.refresh_stream_table('sums')"),
]);
seen["batch"] = (await rows("SELECT c, s FROM sums"))[0].map(Number);

await client.query("CREATE TABLE lines (n int, line text)");
const lines = Array.from({ length: 10000 }, (_, n) => `${n}\tline ${n}\n`);
await pipeline(Readable.from(lines), client.query(from("COPY lines FROM STDIN")));
let copied = 0;
for await (const block of client.query(to("COPY lines TO STDOUT"))) {
  copied += block.toString().split("\n").length - 1;
}
seen["copied"] = copied;

const cursor = client.query(new Cursor("SELECT n FROM generate_series(1, 10000) AS n"));
let fetched = 0;
for (let read = await cursor.read(1000); read.length > 0; read = await cursor.read(1000)) {
  fetched += read.reduce((sum, row) => sum + row.n, 0);
}
await cursor.close();
seen["fetched"] = fetched;

const other = new pg.Client({ connectionString: url });
await other.connect();
const sleeping = failure(client.query("SELECT pg_sleep(60)"));
const active = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND query ~ 'pg_sleep' AND state = 'active'";
while ((await other.query(active, [client.processID])).rowCount === 0);
seen["cancelled"] = await sleeping;

await client.query("LISTEN news");
const notified = new Promise((resolve) => client.once("notification", (message) => resolve(message.payload)));
await other.query("SELECT pg_notify('news', 'hello')");
seen["notified"] = await notified;

await client.query("BEGIN");
await client.query("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')");
seen["subscribed"] = (await rows("FETCH 2 c")).map((row) => row[2]);
await client.query("COMMIT");

await client.query("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')");
await client.query("SELECT pgque.send('orders', 'order.created', $1::jsonb)", [JSON.stringify({ order_id: 42 })]);
await client.query("SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')");
seen["event"] = (await rows("SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)"))[0][0];
seen["notices"] = notices;

await other.end();
await client.end();
console.log(JSON.stringify(seen));
