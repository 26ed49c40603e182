-- What the database of the upgrade test holds. make_earlier.py runs this through a server of an earlier revision.
-- Roles are not in a dump: the test makes upgrade_alice before it restores.

CREATE ROLE upgrade_alice;
CREATE SCHEMA shop;
CREATE SCHEMA alice AUTHORIZATION upgrade_alice;

CREATE TABLE shop.customers (id int PRIMARY KEY, name text, region text);
CREATE TABLE shop.orders (id int PRIMARY KEY, customer int, amount numeric(10, 2), note text) PARTITION BY RANGE (id);
CREATE TABLE shop.orders_1 PARTITION OF shop.orders FOR VALUES FROM (1) TO (100);
CREATE TABLE shop.orders_2 PARTITION OF shop.orders FOR VALUES FROM (100) TO (1000);
CREATE TABLE shop.clicks (page text, millis int);  -- without a key
CREATE TABLE shop.prices (id int PRIMARY KEY, price numeric(10, 2));
CREATE TABLE alice.notes (id int PRIMARY KEY, note text);
ALTER TABLE alice.notes OWNER TO upgrade_alice;
INSERT INTO shop.customers SELECT n, 'customer ' || n, 'r' || n % 3 FROM generate_series(1, 6) AS n;
INSERT INTO shop.orders SELECT n, n % 12, n * 1.25, CASE WHEN n % 7 > 0 THEN 'n' || n % 7 END FROM generate_series(91, 115) AS n;
INSERT INTO shop.clicks SELECT 'p' || n % 4, n % 3 FROM generate_series(1, 16) AS n;
INSERT INTO shop.prices SELECT n, n FROM generate_series(1, 5) AS n;
INSERT INTO alice.notes SELECT n, 'note ' || n % 2 FROM generate_series(1, 4) AS n;

SELECT pgtrickle.create_stream_table('shop.totals',
    'SELECT c.region, count(*) AS orders, sum(o.amount) AS total, max(o.amount) AS largest
     FROM shop.orders o JOIN shop.customers c ON c.id = o.customer GROUP BY c.region', '1s');
SELECT pgtrickle.create_stream_table('shop.large', 'SELECT region, total FROM shop.totals WHERE total > 100', '1s');
SELECT pgtrickle.create_stream_table('shop.buyers',
    'SELECT c.name, o.note FROM shop.customers c LEFT JOIN shop.orders o ON o.customer = c.id', '1s');
SELECT pgtrickle.create_stream_table('shop.pages', 'SELECT page, upper(page) AS shown FROM shop.clicks', '5m');
SELECT pgtrickle.create_stream_table('shop.later', 'SELECT count(*) AS n FROM shop.customers', '1h', 'FULL', initialize => false);
SELECT pgtrickle.create_stream_table('shop.exact', 'SELECT sum(price) AS total FROM shop.prices', '1s', engine => 'postgres');
SELECT pgtrickle.alter_stream_table('shop.exact', status => 'SUSPENDED');
SET ROLE upgrade_alice;
SELECT pgtrickle.create_stream_table('alice.counts', 'SELECT note, count(*) AS n FROM alice.notes GROUP BY note', '1s');
RESET ROLE;
GRANT SELECT ON shop.totals TO upgrade_alice;
CREATE VIEW shop.shown AS SELECT region, total FROM shop.totals;

-- So that the history has differential refreshes, and those that find nothing.
UPDATE shop.orders SET amount = amount + 1 WHERE id IN (91, 100);
DELETE FROM shop.clicks WHERE millis = 2;
SELECT pgtrickle.refresh_stream_table(t)
FROM unnest(ARRAY['shop.totals', 'shop.large', 'shop.buyers', 'shop.pages', 'shop.totals']) AS t;

ALTER TABLE shop.prices SET (RETAIN HISTORY FOR '1 hour');
CREATE SOURCE shop.counter FROM LOAD GENERATOR COUNTER (TICK INTERVAL '1s');

SELECT pgque.create_queue('mail');
SELECT pgque.subscribe('mail', 'sender'), pgque.subscribe('mail', 'archive');
SELECT pgque.send('mail', 'welcome', jsonb_build_object('n', n)) FROM generate_series(1, 6) AS n;

SELECT accum.register_create('stock', '{"warehouse": "int", "product": "text"}', '{"quantity": "numeric(18,4)"}',
    high_write := true, totals_period := 'year');
-- Partitions to come, which would be long in the dump.
SELECT format('DROP TABLE %s', inhrelid::regclass) FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE c.relkind = 'r' AND inhrelid::regclass::text ~ '^accum\..*_\d+_\d+$' \gexec
SELECT accum.register_post('stock', '[
    {"recorder": "receipt:1", "period": "2026-04-18", "warehouse": 1, "product": "a", "quantity": 100},
    {"recorder": "receipt:1", "period": "2026-04-18", "warehouse": 2, "product": "b", "quantity": 7.5},
    {"recorder": "sale:1", "period": "2026-04-20T09:30", "warehouse": 1, "product": "a", "quantity": -3}]');
SELECT accum.register_repost('stock', 'sale:1', '[{"period": "2026-04-20T10:00", "warehouse": 1, "product": "a", "quantity": -4}]');

SELECT pg_sleep(1);  -- the clock ticks
SELECT pgque.ack(batch_id) FROM pgque.receive('mail', 'archive') LIMIT 1;
SELECT pgque.nack(batch_id, m, '0 seconds') FROM pgque.receive('mail', 'sender', 1) AS m;

-- From here on nothing is refreshed: what follows waits in the buffers, and in the queue.
ALTER DATABASE postgres SET pg_trickle.enabled = off;
INSERT INTO shop.orders VALUES (121, 3, 1000, 'waits'), (122, NULL, 1, NULL);
UPDATE shop.customers SET region = 'r9' WHERE id = 1;
DELETE FROM shop.orders WHERE id BETWEEN 92 AND 95;
INSERT INTO shop.clicks SELECT 'p9', 1 FROM generate_series(1, 3);
UPDATE shop.prices SET price = price * 2;
INSERT INTO alice.notes VALUES (5, 'note 0');
SELECT pgque.send('mail', 'late', '{"n": 7}'::jsonb);

UPDATE pgtrickle.pgt_stream_tables SET plan_texts = '{}';  -- they are long, and shown only
