// What `test_clients.py` asks of every client, by pgx: `with_pgx URL` prints what it saw.
package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	ctx  = context.Background()
	seen = map[string]any{}
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func do(conn *pgx.Conn, statement string, parameters ...any) {
	_, err := conn.Exec(ctx, statement, parameters...)
	must(err)
}

func value[T any](conn *pgx.Conn, statement string, parameters ...any) (result T) {
	must(conn.QueryRow(ctx, statement, parameters...).Scan(&result))
	return
}

func code(err error) string {
	var failed *pgconn.PgError
	if errors.As(err, &failed) {
		return failed.Code
	}
	return fmt.Sprint(err)
}

func tables(conn *pgx.Conn) {
	var number int
	var text, numeric string
	var none *string
	var data []byte
	var truth bool
	must(conn.QueryRow(ctx, "SELECT $1::int, $2::text, $3::text, $4::bytea, $5::numeric::text, $6::bool",
		42, "Grüße, 世界", nil, []byte{0, 255}, "12345678901234567890.123456789", true).
		Scan(&number, &text, &none, &data, &numeric, &truth))
	seen["values"] = []any{number, text, none, hex.EncodeToString(data), numeric, truth}

	do(conn, "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, amount numeric(10, 2))")
	insert := "INSERT INTO orders (customer, amount) VALUES ($1, $2)"
	do(conn, insert, "a", 10.25)
	do(conn, insert, "a", 20.25)
	do(conn, "SELECT pgtrickle.create_stream_table(name => $1, query => $2)", "totals",
		"SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer")
	must(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insert, "b", 1); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT pgtrickle.refresh_stream_table($1)", "totals")
		return err
	}))
	rows, err := conn.Query(ctx, "SELECT customer, orders, total::text FROM totals ORDER BY customer")
	must(err)
	refreshed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	must(err)
	seen["refreshed"] = refreshed

	tx, err := conn.Begin(ctx)
	must(err)
	_, err = tx.Exec(ctx, "SELECT pgtrickle.create_stream_table($1, $2)", "passing", "SELECT customer FROM orders")
	must(err)
	must(tx.Rollback(ctx))
	seen["rolled back"] = value[int](conn, "SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'")
	_, err = conn.Exec(ctx, "SELECT pgtrickle.create_stream_table($1, $2)", "broken", "SELECT x FROM nowhere")
	seen["failed"] = code(err)
	seen["usable"] = value[int](conn, "SELECT 1")
}

func bulk(conn *pgx.Conn) {
	do(conn, "CREATE TABLE numbers (n int PRIMARY KEY)")
	do(conn, "SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')")
	batch := &pgx.Batch{}
	for n := range 1000 {
		batch.Queue("INSERT INTO numbers VALUES ($1)", n)
	}
	batch.Queue("SELECT pgtrickle.refresh_stream_table('sums')")
	must(conn.SendBatch(ctx, batch).Close())
	seen["batch"] = []int{value[int](conn, "SELECT c FROM sums"), value[int](conn, "SELECT s FROM sums")}

	do(conn, "CREATE TABLE lines (n int, line text)")
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"lines"}, []string{"n", "line"},
		pgx.CopyFromSlice(10000, func(n int) ([]any, error) { return []any{n, fmt.Sprint("line ", n)}, nil }))
	must(err)
	var out bytes.Buffer
	_, err = conn.PgConn().CopyTo(ctx, &out, "COPY lines TO STDOUT")
	must(err)
	seen["copied"] = bytes.Count(out.Bytes(), []byte("\n"))

	rows, err := conn.Query(ctx, "SELECT n FROM generate_series(1, 10000) AS n")
	must(err)
	fetched, n := 0, 0
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error { fetched += n; return nil })
	must(err)
	seen["fetched"] = fetched
}

func others(conn, other *pgx.Conn) {
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(60)")
		ended <- err
	}()
	cancel := "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND query ~ 'pg_sleep' AND state = 'active'"
	for done := int64(0); done == 0; {
		tag, err := other.Exec(ctx, cancel, conn.PgConn().PID())
		must(err)
		done = tag.RowsAffected()
	}
	seen["cancelled"] = code(<-ended)

	do(conn, "LISTEN news")
	do(other, "SELECT pg_notify('news', 'hello')")
	waiting, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	notification, err := conn.WaitForNotification(waiting)
	must(err)
	seen["notified"] = notification.Payload

	tx, err := conn.Begin(ctx)
	must(err)
	_, err = tx.Exec(ctx, "DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')")
	must(err)
	rows, err := tx.Query(ctx, "FETCH 2 c")
	must(err)
	subscribed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (any, error) {
		values, err := row.Values()
		return values[2], err
	})
	must(err)
	seen["subscribed"] = subscribed
	must(tx.Commit(ctx))
}

func main() {
	config, err := pgx.ParseConfig(os.Args[1])
	must(err)
	notices := []string{}
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) { notices = append(notices, notice.Message) }
	conn, err := pgx.ConnectConfig(ctx, config)
	must(err)
	defer conn.Close(ctx)
	other, err := pgx.Connect(ctx, os.Args[1])
	must(err)
	defer other.Close(ctx)
	tables(conn)
	bulk(conn)
	others(conn, other)
	do(conn, "SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')")
	do(conn, "SELECT pgque.send('orders', 'order.created', $1::jsonb)", map[string]int{"order_id": 42})
	do(conn, "SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')")
	seen["event"] = value[map[string]int](conn, "SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)")
	seen["notices"] = notices
	must(json.NewEncoder(os.Stdout).Encode(seen))
}
