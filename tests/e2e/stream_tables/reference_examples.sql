-- example: order_totals
SELECT pgtrickle.create_stream_table(
    name => 'order_totals',
    query => 'SELECT region, SUM(amount) AS total FROM orders GROUP BY region',
    schedule => '2m'
);
-- example: hourly_summary
SELECT pgtrickle.create_stream_table(
    name => 'hourly_summary',
    query => 'SELECT date_trunc(''hour'', ts), COUNT(*) FROM events GROUP BY 1',
    schedule => '@hourly',
    refresh_mode => 'FULL'
);
-- example: daily_report
SELECT pgtrickle.create_stream_table(
    name => 'daily_report',
    query => 'SELECT region, SUM(revenue) AS total FROM sales GROUP BY region',
    schedule => '0 6 * * 1-5',
    refresh_mode => 'FULL'
);
-- example: wal_orders
SELECT pgtrickle.create_stream_table(
    name => 'wal_orders',
    query => 'SELECT id, amount FROM orders',
    schedule => '1s',
    refresh_mode => 'DIFFERENTIAL'
);
-- example: sales_summary
SELECT pgtrickle.create_stream_table(
    name => 'sales_summary',
    query => 'SELECT region, COUNT(*) AS cnt, SUM(amount) AS total, AVG(amount) AS avg_amount
      FROM orders GROUP BY region',
    schedule => '1m'
);
-- example: salary_ranges
SELECT pgtrickle.create_stream_table(
    name => 'salary_ranges',
    query => 'SELECT department, MIN(salary) AS min_sal, MAX(salary) AS max_sal
      FROM employees GROUP BY department',
    schedule => '2m'
);
-- example: team_members
SELECT pgtrickle.create_stream_table(
    name => 'team_members',
    query => 'SELECT department,
        STRING_AGG(name, '', '' ORDER BY name) AS members,
        ARRAY_AGG(employee_id) AS member_ids,
        BOOL_AND(active) AS all_active,
        JSON_AGG(name) AS members_json
      FROM employees
      GROUP BY department',
    schedule => '1m'
);
-- example: permission_summary
SELECT pgtrickle.create_stream_table(
    name => 'permission_summary',
    query => 'SELECT department,
        BIT_OR(permissions) AS combined_perms,
        BIT_AND(permissions) AS common_perms,
        BIT_XOR(flags) AS xor_flags
      FROM employees
      GROUP BY department',
    schedule => '1m'
);
-- example: config_map
SELECT pgtrickle.create_stream_table(
    name => 'config_map',
    query => 'SELECT department,
        JSON_OBJECT_AGG(setting_name, setting_value) AS settings,
        JSONB_OBJECT_AGG(key, value) AS metadata
      FROM config
      GROUP BY department',
    schedule => '1m'
);
-- example: salary_stats
SELECT pgtrickle.create_stream_table(
    name => 'salary_stats',
    query => 'SELECT department,
        STDDEV_POP(salary) AS sd_pop,
        STDDEV_SAMP(salary) AS sd_samp,
        VAR_POP(salary) AS var_pop,
        VAR_SAMP(salary) AS var_samp
      FROM employees
      GROUP BY department',
    schedule => '1m'
);
-- example: salary_percentiles
SELECT pgtrickle.create_stream_table(
    name => 'salary_percentiles',
    query => 'SELECT department,
        MODE() WITHIN GROUP (ORDER BY grade) AS most_common_grade,
        PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY salary) AS median_salary,
        PERCENTILE_DISC(0.9) WITHIN GROUP (ORDER BY salary) AS p90_salary
      FROM employees
      GROUP BY department',
    schedule => '1m'
);
-- example: regression_stats
SELECT pgtrickle.create_stream_table(
    name => 'regression_stats',
    query => 'SELECT department,
        CORR(salary, experience) AS sal_exp_corr,
        COVAR_POP(salary, experience) AS covar_pop,
        COVAR_SAMP(salary, experience) AS covar_samp,
        REGR_SLOPE(salary, experience) AS slope,
        REGR_INTERCEPT(salary, experience) AS intercept,
        REGR_R2(salary, experience) AS r_squared,
        REGR_COUNT(salary, experience) AS regr_n
      FROM employees
      GROUP BY department',
    schedule => '1m'
);
-- example: dept_sample
SELECT pgtrickle.create_stream_table(
    name => 'dept_sample',
    query => 'SELECT department, ANY_VALUE(office_location) AS sample_office
      FROM employees GROUP BY department',
    schedule => '1m'
);
-- example: order_metrics
SELECT pgtrickle.create_stream_table(
    name => 'order_metrics',
    query => 'SELECT region,
        COUNT(*) AS total,
        COUNT(*) FILTER (WHERE status = ''active'') AS active_count,
        SUM(amount) FILTER (WHERE status = ''shipped'') AS shipped_total
      FROM orders
      GROUP BY region',
    schedule => '1m'
);
-- example: active_order_totals
SELECT pgtrickle.create_stream_table(
    name => 'active_order_totals',
    query => 'WITH active_users AS (
        SELECT id, name FROM users WHERE active = true
      )
      SELECT a.id, a.name, SUM(o.amount) AS total
      FROM active_users a
      JOIN orders o ON o.user_id = a.id
      GROUP BY a.id, a.name',
    schedule => '1m'
);
-- example: top_regions
SELECT pgtrickle.create_stream_table(
    name => 'top_regions',
    query => 'WITH regional AS (
        SELECT region, SUM(amount) AS total FROM orders GROUP BY region
      ),
      ranked AS (
        SELECT region, total FROM regional WHERE total > 1000
      )
      SELECT * FROM ranked',
    schedule => '2m'
);
-- example: self_compare
SELECT pgtrickle.create_stream_table(
    name => 'self_compare',
    query => 'WITH totals AS (
        SELECT user_id, SUM(amount) AS total FROM orders GROUP BY user_id
      )
      SELECT t1.user_id, t1.total, t2.total AS next_total
      FROM totals t1
      JOIN totals t2 ON t1.user_id = t2.user_id + 1',
    schedule => '1m'
);
-- example: event_log_st
SELECT pgtrickle.create_stream_table(
    name => 'event_log_st',
    query => 'SELECT id, event_type, payload, created_at FROM events',
    schedule => '30s'
);
-- example: category_tree
SELECT pgtrickle.create_stream_table(
    name => 'category_tree',
    query => 'WITH RECURSIVE cat_tree AS (
        SELECT id, name, parent_id, 0 AS depth
        FROM categories WHERE parent_id IS NULL
        UNION ALL
        SELECT c.id, c.name, c.parent_id, ct.depth + 1
        FROM categories c
        JOIN cat_tree ct ON c.parent_id = ct.id
      )
      SELECT * FROM cat_tree',
    schedule => '5m',
    refresh_mode => 'FULL'
);
-- example: org_chart
SELECT pgtrickle.create_stream_table(
    name => 'org_chart',
    query => 'WITH RECURSIVE reports AS (
        SELECT id, name, manager_id FROM employees WHERE manager_id IS NULL
        UNION ALL
        SELECT e.id, e.name, e.manager_id
        FROM employees e JOIN reports r ON e.manager_id = r.id
      )
      SELECT * FROM reports',
    schedule => '2m',
    refresh_mode => 'DIFFERENTIAL'
);
-- example: bi_region_customers
SELECT pgtrickle.create_stream_table(
    name => 'bi_region_customers',
    query => 'SELECT customer_id FROM orders_east
      INTERSECT
      SELECT customer_id FROM orders_west',
    schedule => '2m'
);
-- example: common_items
SELECT pgtrickle.create_stream_table(
    name => 'common_items',
    query => 'SELECT item_name FROM warehouse_a
      INTERSECT ALL
      SELECT item_name FROM warehouse_b',
    schedule => '1m'
);
-- example: unshipped_orders
SELECT pgtrickle.create_stream_table(
    name => 'unshipped_orders',
    query => 'SELECT order_id FROM orders
      EXCEPT
      SELECT order_id FROM shipments',
    schedule => '1m'
);
-- example: excess_inventory
SELECT pgtrickle.create_stream_table(
    name => 'excess_inventory',
    query => 'SELECT sku FROM stock_received
      EXCEPT ALL
      SELECT sku FROM stock_shipped',
    schedule => '5m'
);
-- example: all_contacts
SELECT pgtrickle.create_stream_table(
    name => 'all_contacts',
    query => 'SELECT email FROM customers
      UNION
      SELECT email FROM newsletter_subscribers',
    schedule => '5m'
);
-- example: flat_children
SELECT pgtrickle.create_stream_table(
    name => 'flat_children',
    query => 'SELECT p.id, child.value AS val
      FROM parent_data p,
        jsonb_array_elements(p.data->''children'') AS child',
    schedule => '1m'
);
-- example: flat_properties
SELECT pgtrickle.create_stream_table(
    name => 'flat_properties',
    query => 'SELECT d.id, kv.key, kv.value
      FROM documents d,
        jsonb_each(d.metadata) AS kv',
    schedule => '2m'
);
-- example: flat_tags
SELECT pgtrickle.create_stream_table(
    name => 'flat_tags',
    query => 'SELECT t.id, tag.tag
      FROM tagged_items t,
        unnest(t.tags) AS tag(tag)',
    schedule => '1m'
);
-- example: high_value_items
SELECT pgtrickle.create_stream_table(
    name => 'high_value_items',
    query => 'SELECT p.id, (e.value)::int AS amount
      FROM products p,
        jsonb_array_elements(p.prices) AS e
      WHERE (e.value)::int > 100',
    schedule => '5m'
);
-- example: element_counts
SELECT pgtrickle.create_stream_table(
    name => 'element_counts',
    query => 'SELECT a.id, count(*) AS cnt
      FROM arrays a,
        jsonb_array_elements(a.data) AS e
      GROUP BY a.id',
    schedule => '1m',
    refresh_mode => 'FULL'
);
-- example: latest_items
SELECT pgtrickle.create_stream_table(
    name => 'latest_items',
    query => 'SELECT o.id, o.customer, latest.amount
      FROM orders o,
        LATERAL (
          SELECT li.amount
          FROM line_items li
          WHERE li.order_id = o.id
          ORDER BY li.created_at DESC
          LIMIT 1
        ) AS latest',
    schedule => '1m'
);
-- example: dept_summaries
SELECT pgtrickle.create_stream_table(
    name => 'dept_summaries',
    query => 'SELECT d.id, d.name, stats.total, stats.cnt
      FROM departments d,
        LATERAL (
          SELECT SUM(e.salary) AS total, COUNT(*) AS cnt
          FROM employees e
          WHERE e.dept_id = d.id
        ) AS stats',
    schedule => '1m'
);
-- example: dept_stats_all
SELECT pgtrickle.create_stream_table(
    name => 'dept_stats_all',
    query => 'SELECT d.id, d.name, stats.total
      FROM departments d
      LEFT JOIN LATERAL (
          SELECT SUM(e.salary) AS total
          FROM employees e
          WHERE e.dept_id = d.id
      ) AS stats ON true',
    schedule => '1m'
);
-- example: active_customers
SELECT pgtrickle.create_stream_table(
    name => 'active_customers',
    query => 'SELECT c.id, c.name
      FROM customers c
      WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)',
    schedule => '1m'
);
-- example: inactive_customers
SELECT pgtrickle.create_stream_table(
    name => 'inactive_customers',
    query => 'SELECT c.id, c.name
      FROM customers c
      WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)',
    schedule => '1m'
);
-- example: ordered_products
SELECT pgtrickle.create_stream_table(
    name => 'ordered_products',
    query => 'SELECT p.id, p.name
      FROM products p
      WHERE p.id IN (SELECT product_id FROM order_items)',
    schedule => '1m'
);
-- example: unordered_products
SELECT pgtrickle.create_stream_table(
    name => 'unordered_products',
    query => 'SELECT p.id, p.name
      FROM products p
      WHERE p.id NOT IN (SELECT product_id FROM order_items)',
    schedule => '1m'
);
-- example: products_with_max_price
SELECT pgtrickle.create_stream_table(
    name => 'products_with_max_price',
    query => 'SELECT p.id, p.name, (SELECT max(price) FROM products) AS max_price
      FROM products p',
    schedule => '1m'
);
-- example: cheapest_products
SELECT pgtrickle.create_stream_table(
    name => 'cheapest_products',
    query => $$
      SELECT p.id, p.name, p.price
      FROM products p
      WHERE p.price < ALL (
        SELECT cp.price
        FROM competitor_prices cp
        WHERE cp.product_id = p.id
      )
    $$,
    schedule => '1m'
);
-- example: salary_caps
SELECT pgtrickle.create_stream_table(
    name => 'salary_caps',
    query => 'SELECT id, name FROM employees WHERE salary >= ALL (SELECT max_salary FROM department_caps)',
    schedule => '1m'
);
-- example: good_ratings
SELECT pgtrickle.create_stream_table(
    name => 'good_ratings',
    query => 'SELECT id, rating FROM ratings WHERE rating > ALL (SELECT min_rating FROM quality_thresholds)',
    schedule => '1m'
);
-- example: top_earners
SELECT pgtrickle.create_stream_table(
    name => 'top_earners',
    query => $$
      SELECT
        id,
        name,
        CASE WHEN ROW_NUMBER() OVER (PARTITION BY dept ORDER BY salary DESC) = 1
             THEN 'top earner'
             ELSE 'other'
        END AS rank_label
      FROM employees
    $$
);
-- example: adjusted_ranks
SELECT pgtrickle.create_stream_table(
    name => 'adjusted_ranks',
    query => 'SELECT id, ABS(RANK() OVER (ORDER BY score) - 5) AS adjusted_rank FROM players'
);
-- example: previous_values
SELECT pgtrickle.create_stream_table(
    name => 'previous_values',
    query => 'SELECT id, COALESCE(LAG(value) OVER (ORDER BY ts), 0) AS prev_value FROM sensor_readings'
);
-- example: running_averages
SELECT pgtrickle.create_stream_table(
    name => 'running_averages',
    query => 'SELECT id,
        ROW_NUMBER() OVER (ORDER BY created_at) * 100 AS seq,
        SUM(amount) OVER (ORDER BY created_at) / COUNT(*) OVER (ORDER BY created_at) AS running_avg
      FROM transactions'
);
-- example: big_departments
SELECT pgtrickle.create_stream_table(
    name => 'big_departments',
    query => 'SELECT department, COUNT(*) AS cnt FROM employees GROUP BY department HAVING COUNT(*) > 10',
    schedule => '1m'
);
-- example: event_summary (keyless)
SELECT pgtrickle.create_stream_table(
    name => 'event_summary',
    query => 'SELECT payload->>''type'' AS event_type, COUNT(*) FROM events GROUP BY 1',
    schedule => '1m'
);
-- example: sorted_names
SELECT pgtrickle.create_stream_table(
    name => 'sorted_names',
    query => 'SELECT name COLLATE "C" AS c_name FROM users',
    schedule => '1m'
);
-- example: valid_json_events
SELECT pgtrickle.create_stream_table(
    name => 'valid_json_events',
    query => 'SELECT id, payload FROM events WHERE payload::text IS JSON',
    schedule => '1m'
);
-- example: json_objects_only
SELECT pgtrickle.create_stream_table(
    name => 'json_objects_only',
    query => 'SELECT id, data IS JSON OBJECT AS is_obj,
        data IS JSON ARRAY AS is_arr,
        data IS JSON SCALAR AS is_scalar
      FROM json_data',
    schedule => '1m',
    refresh_mode => 'FULL'
);
-- example: user_json
SELECT pgtrickle.create_stream_table(
    name => 'user_json',
    query => 'SELECT id, JSON_OBJECT(''name'' : name, ''age'' : age) AS data FROM users',
    schedule => '1m'
);
-- example: value_arrays
SELECT pgtrickle.create_stream_table(
    name => 'value_arrays',
    query => 'SELECT id, JSON_ARRAY(a, b, c) AS arr FROM measurements',
    schedule => '1m',
    refresh_mode => 'FULL'
);
-- example: user_phones
SELECT pgtrickle.create_stream_table(
    name => 'user_phones',
    query => $$SELECT u.id, j.phone_type, j.phone_number
      FROM users u,
        JSON_TABLE(u.contact_info, '$.phones[*]'
          COLUMNS (
            phone_type TEXT PATH '$.type',
            phone_number TEXT PATH '$.number'
          )
        ) AS j$$,
    schedule => '1m'
);
-- example: order_summary
SELECT pgtrickle.create_stream_table(
    name => 'order_summary',
    query => 'SELECT customer_id, COUNT(*) FROM active_orders GROUP BY customer_id',
    schedule => '1m'
);
-- example: order_summary (partitioned)
SELECT pgtrickle.create_stream_table(
    name => 'order_summary',
    query => 'SELECT region, SUM(amount) FROM orders GROUP BY region',
    schedule => '1m'
);
-- example: order_details
SELECT pgtrickle.create_stream_table(
    name => 'order_details',
    query => 'SELECT o.id, c.name FROM orders o JOIN customers c ON o.cust_id = c.id',
    schedule => '1m'
);
-- example: multi_dim
SELECT pgtrickle.create_stream_table(
    name => 'multi_dim',
    query => 'SELECT a, b, c, SUM(v) FROM t
      GROUP BY GROUPING SETS ((a, b, c), (a, b), (a), ())',
    schedule => '5m'
);
-- example: order_report
SELECT pgtrickle.create_stream_table(
    'order_report',
    'SELECT s.region, s.total, l.line_count
     FROM order_summary s
     JOIN (SELECT region, COUNT(*) AS line_count FROM order_lines GROUP BY region) l
     USING (region)',
    '1m'
);
