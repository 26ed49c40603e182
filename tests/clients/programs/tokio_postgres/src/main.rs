//! What `test_clients.py` asks of every client, by tokio-postgres: `with_tokio_postgres URL` prints what it saw.

use bytes::Bytes;
use futures_util::{future::try_join_all, pin_mut, stream, SinkExt, StreamExt, TryStreamExt};
use serde_json::{json, Map, Value};
use tokio_postgres::{AsyncMessage, Client, Error, NoTls};

const TOTALS: &str =
    "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer";

fn code(error: Error) -> String {
    error.code().map_or(error.to_string(), |code| code.code().to_owned())
}

async fn tables(client: &mut Client, seen: &mut Map<String, Value>) -> Result<(), Error> {
    let none: Option<String> = None;
    let row = client
        .query_one(
            "SELECT $1::int, $2::text, $3::text, $4::bytea, $5::text::numeric::text, $6::bool",
            &[&42i32, &"Grüße, 世界", &none, &&[0u8, 255][..], &"12345678901234567890.123456789", &true],
        )
        .await?;
    let data: Vec<u8> = row.get(3);
    let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    seen.insert("values".into(), json!([
        row.get::<_, i32>(0), row.get::<_, &str>(1), row.get::<_, Option<&str>>(2),
        hex, row.get::<_, &str>(4), row.get::<_, bool>(5),
    ]));

    client
        .batch_execute(
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2));
             INSERT INTO orders (customer, amount) VALUES ('a', 10.25), ('a', 20.25)",
        )
        .await?;
    client.execute("SELECT pgtrickle.create_stream_table(name => $1, query => $2)", &[&"totals", &TOTALS]).await?;
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO orders (customer, amount) VALUES ($1, $2::text::numeric)", &[&"b", &"1"]).await?;
    transaction.execute("SELECT pgtrickle.refresh_stream_table($1)", &[&"totals"]).await?;
    transaction.commit().await?;
    let rows = client.query("SELECT customer, orders, total::text FROM totals ORDER BY customer", &[]).await?;
    seen.insert("refreshed".into(), rows.iter()
        .map(|row| json!([row.get::<_, &str>(0), row.get::<_, i64>(1), row.get::<_, &str>(2)])).collect());

    let transaction = client.transaction().await?;
    transaction
        .execute("SELECT pgtrickle.create_stream_table($1, $2)", &[&"passing", &"SELECT customer FROM orders"])
        .await?;
    transaction.rollback().await?;
    let passing = "SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'";
    seen.insert("rolled back".into(), client.query_one(passing, &[]).await?.get::<_, i64>(0).into());
    let failed = client
        .execute("SELECT pgtrickle.create_stream_table($1, $2)", &[&"broken", &"SELECT x FROM nowhere"])
        .await;
    seen.insert("failed".into(), failed.map_or_else(code, |_| "no error".into()).into());
    seen.insert("usable".into(), client.query_one("SELECT 1", &[]).await?.get::<_, i32>(0).into());
    Ok(())
}

async fn bulk(client: &Client, seen: &mut Map<String, Value>) -> Result<(), Error> {
    client.execute("CREATE TABLE numbers (n int PRIMARY KEY)", &[]).await?;
    client
        .execute("SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')", &[])
        .await?;
    // Statements that are awaited together are sent in a pipeline.
    let insert = client.prepare("INSERT INTO numbers VALUES ($1)").await?;
    let numbers: Vec<i32> = (0..1000).collect();
    try_join_all(numbers.iter().map(|n| {
        let insert = &insert;
        async move { client.execute(insert, &[n]).await }
    })).await?;
    client.execute("SELECT pgtrickle.refresh_stream_table('sums')", &[]).await?;
    let sums = client.query_one("SELECT c, s FROM sums", &[]).await?;
    seen.insert("batch".into(), json!([sums.get::<_, i64>(0), sums.get::<_, i64>(1)]));

    client.execute("CREATE TABLE lines (n int, line text)", &[]).await?;
    let sink = client.copy_in("COPY lines FROM STDIN").await?;
    pin_mut!(sink);
    let mut lines = stream::iter((0..10_000).map(|n| Ok(Bytes::from(format!("{n}\tline {n}\n")))));
    sink.send_all(&mut lines).await?;
    sink.finish().await?;
    let blocks: Vec<Bytes> = client.copy_out("COPY lines TO STDOUT").await?.try_collect().await?;
    let copied: usize = blocks.iter().map(|block| block.iter().filter(|byte| **byte == b'\n').count()).sum();
    seen.insert("copied".into(), copied.into());

    let none: [&str; 0] = [];
    let rows = client.query_raw("SELECT n FROM generate_series(1, 10000) AS n", none).await?;
    let fetched: Vec<i32> = rows.map_ok(|row| row.get::<_, i32>(0)).try_collect().await?;
    seen.insert("fetched".into(), fetched.iter().sum::<i32>().into());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).expect("a URL");
    let (mut client, mut connection) = tokio_postgres::connect(&url, NoTls).await?;
    let (heard, mut messages) = futures_channel::mpsc::unbounded();
    let mut received = stream::poll_fn(move |context| connection.poll_message(context));
    tokio::spawn(async move {
        while let Some(Ok(message)) = received.next().await {
            let _ = heard.unbounded_send(message);
        }
    });
    let (other, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let mut seen = Map::new();
    tables(&mut client, &mut seen).await?;
    bulk(&client, &mut seen).await?;

    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND query ~ 'pg_sleep' AND state = 'active'";
    let (slept, _) = tokio::join!(client.execute("SELECT pg_sleep(60)", &[]), async {
        while other.query(cancel, &[&pid]).await.expect("a cancel").is_empty() {}
    });
    seen.insert("cancelled".into(), slept.map_or_else(code, |_| "no error".into()).into());

    client.batch_execute("LISTEN news").await?;
    other.execute("SELECT pg_notify('news', 'hello')", &[]).await?;
    let mut notices: Vec<String> = Vec::new();
    loop {
        match messages.next().await.expect("a message") {
            AsyncMessage::Notification(notification) => {
                seen.insert("notified".into(), notification.payload().into());
                break;
            }
            AsyncMessage::Notice(notice) => notices.push(notice.message().to_owned()),
            _ => {}
        }
    }

    let transaction = client.transaction().await?;
    transaction
        .execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')", &[])
        .await?;
    let rows = transaction.query("FETCH 2 c", &[]).await?;
    seen.insert("subscribed".into(), rows.iter().map(|row| row.get::<_, &str>(2)).collect());
    transaction.commit().await?;

    client.execute("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')", &[]).await?;
    client.execute("SELECT pgque.send('orders', 'order.created', $1::jsonb)", &[&json!({"order_id": 42})]).await?;
    client.execute("SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')", &[]).await?;
    let event = client.query_one("SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)", &[]).await?;
    seen.insert("event".into(), event.get(0));
    seen.insert("notices".into(), notices.into());
    println!("{}", Value::Object(seen));
    Ok(())
}
