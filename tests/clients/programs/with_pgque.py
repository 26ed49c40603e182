"""PgQue's own client library: `with_pgque.py URL` does what its README shows, and prints what it saw as JSON."""

import json
import sys
import threading
import time

import pgque

url = sys.argv[1]
seen = {}


def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def worked(consumer, done, what):
    """Let a consumer work until it has done something."""
    thread = threading.Thread(target=consumer.start)
    thread.start()
    try:
        until(done, what)
    finally:
        consumer.stop()
        thread.join(60)


with pgque.connect(url) as client:
    for queue in ("orders", "parcels", "manual"):
        client.conn.execute("SELECT pgque.create_queue(%s)", (queue,))
    client.conn.execute("SELECT pgque.set_queue_config('orders', 'max_retries', '0')")
    seen["subscribed"] = [client.subscribe("orders", "order_worker"), client.subscribe("orders", "order_worker")]
    client.subscribe("manual", "by hand")
    client.conn.commit()

    client.send("orders", {"order_id": 42}, type="order.created")
    client.send_batch("orders", "order.created", [{"order_id": 43}, {"order_id": "fails"}])
    client.send("orders", {"what": "is this"}, type="unheard of")
    client.send("orders", {"no": "type"})
    client.conn.commit()

    handled = []
    consumer = pgque.Consumer(dsn=url, queue="orders", name="order_worker", poll_interval=60)

    @consumer.on("order.created")
    def handle_order(message):
        handled.append(json.loads(message.payload))
        if handled[-1]["order_id"] == "fails":
            raise ValueError("no luck")

    @consumer.on("default")
    def handle_default(message):
        handled.append(json.loads(message.payload))

    dead = "SELECT count(*) FROM pgque.dlq_inspect('orders')"

    def done():
        count = client.conn.execute(dead).fetchone()[0]
        client.conn.commit()
        return count == 2 and len(handled) == 4

    worked(consumer, done, "the handlers")
    seen["handled"] = handled
    rows = client.conn.execute("SELECT ev_type, dl_reason FROM pgque.dlq_inspect('orders') ORDER BY ev_id").fetchall()
    seen["dead"] = [list(row) for row in rows]
    client.conn.commit()

    shared = []
    members = [
        pgque.Consumer(
            dsn=url, queue="parcels", name="shipping", subconsumer=name, dead_interval="5 minutes", poll_interval=60
        )
        for name in ("worker-1", "worker-2")
    ]
    for member in members:
        member.on("*")(lambda message: shared.append(json.loads(message.payload)["parcel"]))
        client.subscribe_subconsumer("parcels", "shipping", member.subconsumer)
    client.conn.commit()
    threads = [threading.Thread(target=member.start) for member in members]
    for thread in threads:
        thread.start()
    for number in range(10):
        client.send("parcels", {"parcel": number}, type="packed")
        client.conn.commit()
    until(lambda: len(shared) == 10, "the parcels")
    for member in members:
        member.stop()
    for thread in threads:
        thread.join(60)
    seen["shared"] = sorted(shared)

    client.send("manual", {"n": 1}, type="t")
    client.conn.commit()
    client.force_next_tick("manual")
    client.ticker("manual")
    client.conn.commit()
    (message,) = client.receive("manual", "by hand", 2_147_483_647)
    seen["received"] = [message.type, json.loads(message.payload), message.retry_count]
    client.nack(message.batch_id, message, retry_after=3600, reason="later")
    seen["acked"] = [client.ack(message.batch_id), client.ack(message.batch_id)]
    client.conn.commit()
    retried = client.conn.execute("SELECT ev_retry FROM pgque.retry_queue").fetchall()
    seen["retried"] = [row[0] for row in retried]
    seen["unsubscribed"] = [
        client.unsubscribe_subconsumer("parcels", "shipping", "worker-1"),
        client.unsubscribe("manual", "by hand"),
    ]
    client.conn.commit()

print(json.dumps(seen))
