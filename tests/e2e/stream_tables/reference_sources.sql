CREATE TABLE orders (
    id int PRIMARY KEY, order_id int, customer_id int, user_id int, cust_id int, customer text, region text,
    amount numeric, status text
);
INSERT INTO orders
SELECT n, n, n % 4, n % 3, n % 5, 'customer ' || n % 4, (ARRAY['north', 'south', NULL])[1 + n % 3], n * 100,
       (ARRAY['active', 'shipped', 'new'])[1 + n % 3]
FROM generate_series(1, 12) AS n;
CREATE VIEW active_orders AS
SELECT * FROM orders WHERE status = 'active';
CREATE TABLE order_lines (id int PRIMARY KEY, region text);
INSERT INTO order_lines VALUES (1, 'north'), (2, 'north'), (3, 'south'), (4, NULL);
CREATE TABLE order_summary (region text, total numeric);
INSERT INTO order_summary VALUES ('north', 10), ('south', 20), ('west', 30);
CREATE TABLE sales (region text, revenue numeric);
INSERT INTO sales VALUES ('north', 1), ('north', 2), ('south', 3), (NULL, 4);
CREATE TABLE events (
    id int PRIMARY KEY, ts timestamptz, event_type text, payload jsonb, created_at timestamptz
);
INSERT INTO events
SELECT n, timestamptz '2026-01-01 00:00Z' + n * interval '17 min', 'type ' || n % 2, jsonb_build_object('type', n % 3), now()
FROM generate_series(1, 8) AS n;
CREATE TABLE employees (
    id int PRIMARY KEY, employee_id int, name text, department text, dept text, dept_id int, salary numeric,
    experience int, active boolean, grade text, permissions int, flags int, office_location text, manager_id int
);
INSERT INTO employees
SELECT n, n, 'name ' || n, 'd' || n % 3, 'd' || n % 2, n % 3, 1000 + 10 * n, n % 7, n % 5 > 0, 'g' || n % 3, n, n * 3,
       'office ' || n % 3, CASE WHEN n > 2 THEN n / 2 END
FROM generate_series(1, 33) AS n;
CREATE TABLE department_caps (max_salary numeric);
INSERT INTO department_caps VALUES (1200), (1290);
CREATE TABLE departments (id int PRIMARY KEY, name text);
INSERT INTO departments VALUES (0, 'zero'), (1, 'one'), (9, 'empty');
CREATE TABLE config (department text, setting_name text, setting_value text, key text, value int);
INSERT INTO config VALUES ('d1', 'colour', 'red', 'a', 1), ('d1', 'size', 'XL', 'b', 2), ('d2', 'colour', NULL, 'a', 3);
CREATE TABLE users (id int PRIMARY KEY, name text, active boolean, age int, contact_info jsonb);
INSERT INTO users VALUES
    (1, 'ann', true, 30, '{"phones": [{"type": "home", "number": "1"}, {"type": "work", "number": "2"}]}'),
    (2, 'Bob', true, NULL, '{"phones": []}'), (3, 'eve', false, 50, NULL),
    (0, 'joe', true, 20, '{"phones": [{"type": "home"}]}');
CREATE TABLE categories (id int PRIMARY KEY, name text, parent_id int);
INSERT INTO categories VALUES (1, 'all', NULL), (2, 'books', 1), (3, 'novels', 2), (4, 'crime', 3), (5, 'toys', 1), (6, 'lost', 99);
CREATE TABLE orders_east (customer_id int);
CREATE TABLE orders_west (customer_id int);
INSERT INTO orders_east VALUES (1), (1), (2), (NULL);
INSERT INTO orders_west VALUES (1), (3), (NULL), (NULL);
CREATE TABLE warehouse_a (item_name text);
CREATE TABLE warehouse_b (item_name text);
INSERT INTO warehouse_a VALUES ('x'), ('x'), ('y'), (NULL);
INSERT INTO warehouse_b VALUES ('x'), ('x'), ('x'), (NULL), ('z');
CREATE TABLE shipments (order_id int);
INSERT INTO shipments VALUES (1), (2), (2), (77);
CREATE TABLE stock_received (sku text);
CREATE TABLE stock_shipped (sku text);
INSERT INTO stock_received VALUES ('a'), ('a'), ('a'), ('b'), (NULL);
INSERT INTO stock_shipped VALUES ('a'), ('c');
CREATE TABLE customers (id int PRIMARY KEY, name text, email text);
INSERT INTO customers VALUES (1, 'ann', 'a@x'), (2, 'bob', 'b@x'), (3, 'cat', NULL), (9, 'dan', 'a@x');
CREATE TABLE newsletter_subscribers (email text);
INSERT INTO newsletter_subscribers VALUES ('a@x'), ('n@x'), (NULL);
CREATE TABLE parent_data (id int PRIMARY KEY, data jsonb);
INSERT INTO parent_data VALUES (1, '{"children": [1, "two", 1]}'), (2, '{"children": []}'), (3, '{}');
CREATE TABLE documents (id int PRIMARY KEY, metadata jsonb);
INSERT INTO documents VALUES (1, '{"a": 1, "b": [2]}'), (2, '{}'), (3, NULL);
CREATE TABLE tagged_items (id int PRIMARY KEY, tags text[]);
INSERT INTO tagged_items VALUES (1, '{x,y,x}'), (2, '{}'), (3, NULL), (4, '{NULL}');
CREATE TABLE products (id int PRIMARY KEY, name text, price numeric, prices jsonb);
INSERT INTO products VALUES
    (1, 'Widget', 9.99, '[99, 101]'), (2, 'Gadget', 24.99, '[500]'), (3, 'Gizmo', 14.99, '[]'), (4, 'None', NULL, '[7]');
CREATE TABLE competitor_prices (id int PRIMARY KEY, product_id int, price numeric);
INSERT INTO competitor_prices VALUES (1, 1, 12.99), (2, 1, 11.50), (3, 2, 19.99), (4, 3, 14.99);
CREATE TABLE order_items (id int PRIMARY KEY, product_id int);
INSERT INTO order_items VALUES (1, 1), (2, 1), (3, 3);
CREATE TABLE line_items (id int PRIMARY KEY, order_id int, amount numeric, created_at timestamp);
INSERT INTO line_items
SELECT n, n % 5, n * 10, timestamp '2026-01-01' + n * interval '1 hour' FROM generate_series(1, 12) AS n;
CREATE TABLE arrays (id int PRIMARY KEY, data jsonb);
INSERT INTO arrays VALUES (1, '[1, 2, 3]'), (2, '[]'), (3, '[null]');
CREATE TABLE ratings (id int PRIMARY KEY, rating int);
INSERT INTO ratings VALUES (1, 1), (2, 5), (3, 9), (4, NULL);
CREATE TABLE quality_thresholds (min_rating int);
INSERT INTO quality_thresholds VALUES (2), (4);
CREATE TABLE players (id int PRIMARY KEY, score int);
INSERT INTO players VALUES (1, 10), (2, 20), (3, 20), (4, NULL), (5, 5);
CREATE TABLE sensor_readings (id int PRIMARY KEY, ts timestamp, value numeric);
INSERT INTO sensor_readings
SELECT n, timestamp '2026-01-01' + n * interval '1 min', n * 1.5 FROM generate_series(1, 6) AS n;
CREATE TABLE transactions (id int PRIMARY KEY, created_at timestamp, amount numeric);
INSERT INTO transactions
SELECT n, timestamp '2026-01-01' + n * interval '1 min', n * 2.5 FROM generate_series(1, 6) AS n;
CREATE TABLE json_data (id int PRIMARY KEY, data text);
INSERT INTO json_data VALUES (1, '{}'), (2, '[1]'), (3, '7'), (4, 'no'), (5, NULL);
CREATE TABLE measurements (id int PRIMARY KEY, a int, b int, c text);
INSERT INTO measurements VALUES (1, 1, 2, 'x'), (2, NULL, 3, 'y'), (3, 4, 5, NULL);
CREATE TABLE t (a int, b int, c int, v int);
INSERT INTO t SELECT nullif(n % 3, 0), n % 2, nullif(n % 4, 3), n FROM generate_series(1, 20) AS n;
CREATE SCHEMA keyless;
CREATE TABLE keyless.events (ts timestamptz, payload jsonb);
INSERT INTO keyless.events SELECT now(), jsonb_build_object('type', n % 3) FROM generate_series(1, 7) AS n;
INSERT INTO keyless.events VALUES (NULL, NULL), (NULL, '{}');
CREATE SCHEMA partitioned;
CREATE TABLE partitioned.orders (id int, region text, amount numeric) PARTITION BY LIST (region);
CREATE TABLE partitioned.orders_us PARTITION OF partitioned.orders FOR VALUES IN ('US');
CREATE TABLE partitioned.orders_eu PARTITION OF partitioned.orders FOR VALUES IN ('EU');
INSERT INTO partitioned.orders VALUES (1, 'US', 1), (1, 'US', 1), (2, 'EU', 2);
