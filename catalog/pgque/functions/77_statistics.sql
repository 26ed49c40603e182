-- Statistics for dashboards and alerts. Numbers of events are distances of event ids at ticks: estimates, which cost
-- nothing to take, and are too high by what was rolled back and by what force_next_tick() added.


-- One row a queue. `depth` is what its slowest consumer has not finished (without consumers: events since the last
-- tick), `oldest_msg_age` the age of that consumer's position, null at depth 0.
CREATE OR REPLACE FUNCTION pgque.queue_stats()
RETURNS TABLE (
    queue_name text, queue_id int4, depth bigint, oldest_msg_age interval, consumers int4, events_per_sec numeric,
    cur_table int4, rotation_age interval, rotation_period interval, ticker_paused boolean, last_tick_time timestamptz,
    last_tick_id bigint, dlq_count bigint
)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT q.queue_name, q.queue_id, d.depth, CASE WHEN d.depth > 0 THEN now() - coalesce(slowest.tick_time, newest.tick_time) END,
           slowest.consumers::int4, round(i.ev_per_sec::numeric, 6), q.queue_cur_table, now() - q.queue_switch_time, q.queue_rotation_period,
           q.queue_ticker_paused, newest.tick_time, newest.tick_id,
           (SELECT count(*) FROM pgque.dead_letter l WHERE l.dl_queue_id = q.queue_id)
      FROM pgque.queue q
      JOIN pgque.get_queue_info() i ON i.queue_name = q.queue_name
      LEFT JOIN pgque.tick newest ON newest.tick_queue = q.queue_id AND newest.tick_id = i.last_tick_id
      CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.sub_role <> 'coop_member') AS consumers, min(t.tick_event_seq) AS seq, min(t.tick_time) AS tick_time
          FROM pgque.subscription s
          LEFT JOIN pgque.tick t ON t.tick_queue = s.sub_queue AND t.tick_id = s.sub_last_tick
         WHERE s.sub_queue = q.queue_id
      ) slowest
      CROSS JOIN LATERAL (
        SELECT greatest(coalesce(pg_sequence_last_value(q.queue_event_seq::regclass), 0) - coalesce(slowest.seq, newest.tick_event_seq), 0) AS depth
      ) d
     ORDER BY q.queue_name
$$;


-- One row a consumer and subconsumer. `last_batch_start` is when it was last active.
CREATE OR REPLACE FUNCTION pgque.consumer_stats()
RETURNS TABLE (
    queue_name text, consumer_name text, lag interval, pending_events bigint, last_batch_start timestamptz,
    batch_active boolean, batch_id bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.queue_name, i.consumer_name, i.lag, i.pending_events, now() - i.last_seen, i.current_batch IS NOT NULL, i.current_batch
      FROM pgque.get_consumer_info() i
$$;


-- Three checks a queue, each 'ok', 'warning' or 'critical', and why:
--   ticker_running  the last tick is older than twice the idle period (critical: five times), or ticks are paused, or nothing makes any
--   rotation        the tables should have rotated one period ago (critical: three), so that they grow
--   dlq             there are dead letters (critical: over 1000)
CREATE OR REPLACE FUNCTION pgque.queue_health()
RETURNS TABLE (queue_name text, check_name text, status text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    clock CONSTANT text := pgque._clock_state();
    stands CONSTANT boolean := clock IN ('missing', 'stopped', 'not running');
BEGIN
    RETURN QUERY
    SELECT s.queue_name, c.check_name, c.status, c.detail
      FROM pgque.queue_stats() s
      JOIN pgque.queue q ON q.queue_id = s.queue_id
      CROSS JOIN LATERAL (
        VALUES ('ticker_running',
                CASE WHEN s.ticker_paused OR q.queue_external_ticker AND s.last_tick_id IS NOT NULL THEN
                          CASE WHEN s.ticker_paused THEN 'warning' ELSE 'ok' END
                     WHEN s.last_tick_time IS NULL OR s.last_tick_time < now() - 5 * q.queue_ticker_idle_period THEN 'critical'
                     WHEN s.last_tick_time < now() - 2 * q.queue_ticker_idle_period
                          OR stands THEN 'warning'
                     ELSE 'ok' END,
                CASE WHEN s.ticker_paused THEN 'ticker is paused'
                     WHEN NOT q.queue_external_ticker AND stands
                     THEN format('the clock is %s, %s', clock, coalesce(format('last tick %s ago', now() - s.last_tick_time), 'never ticked'))
                     ELSE coalesce(format('last tick %s ago', now() - s.last_tick_time), 'never ticked') END),
               ('rotation',
                CASE WHEN s.rotation_age > 4 * s.rotation_period THEN 'critical'
                     WHEN s.rotation_age > 2 * s.rotation_period THEN 'warning'
                     ELSE 'ok' END,
                format('last rotation %s ago, period %s', s.rotation_age, s.rotation_period)),
               ('dlq',
                CASE WHEN s.dlq_count > 1000 THEN 'critical' WHEN s.dlq_count > 0 THEN 'warning' ELSE 'ok' END,
                format('%s dead letters', s.dlq_count))
      ) AS c (check_name, status, detail)
     ORDER BY s.queue_name, c.check_name;
END $$;


-- The numbers of queue_stats and consumer_stats as metrics for an OpenTelemetry collector; times in seconds.
CREATE OR REPLACE FUNCTION pgque.otel_metrics()
RETURNS TABLE (metric_name text, metric_type text, metric_value numeric, labels jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.metric_name, m.metric_type, m.metric_value, jsonb_build_object('queue', s.queue_name)
      FROM pgque.queue_stats() s
      JOIN pgque.queue q ON q.queue_id = s.queue_id
      CROSS JOIN LATERAL (
        VALUES ('pgque.queue.depth', 'gauge', s.depth::numeric),
               ('pgque.queue.oldest_message_age', 'gauge', coalesce(extract(epoch FROM s.oldest_msg_age), 0)),
               ('pgque.queue.consumers', 'gauge', s.consumers),
               ('pgque.queue.events', 'counter', coalesce(pg_sequence_last_value(q.queue_event_seq::regclass), 0)),
               ('pgque.queue.events_per_second', 'gauge', coalesce(s.events_per_sec, 0)),
               ('pgque.queue.ticker_lag', 'gauge', extract(epoch FROM now() - s.last_tick_time)),
               ('pgque.queue.dead_letters', 'gauge', s.dlq_count),
               ('pgque.queue.retries', 'gauge', (SELECT count(*) FROM pgque.retry_queue r WHERE r.ev_queue = s.queue_id AND r.ev_retry_after < 'infinity'))
      ) AS m (metric_name, metric_type, metric_value)
    UNION ALL
    SELECT m.metric_name, m.metric_type, m.metric_value, jsonb_build_object('queue', s.queue_name, 'consumer', s.consumer_name)
      FROM pgque.consumer_stats() s
      CROSS JOIN LATERAL (
        VALUES ('pgque.consumer.lag', 'gauge', extract(epoch FROM s.lag)),
               ('pgque.consumer.pending_events', 'gauge', s.pending_events::numeric),
               ('pgque.consumer.batch_active', 'gauge', s.batch_active::int::numeric)
      ) AS m (metric_name, metric_type, metric_value)
     WHERE m.metric_value IS NOT NULL
$$;


-- Consumers whose finished work is older than the threshold.
CREATE OR REPLACE FUNCTION pgque.stuck_consumers(threshold interval DEFAULT '1 hour')
RETURNS TABLE (queue_name text, consumer_name text, lag interval, last_active timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.queue_name, i.consumer_name, i.lag, now() - i.last_seen
      FROM pgque.get_consumer_info() i
     WHERE i.lag > threshold
     ORDER BY i.lag DESC
$$;


-- The batches of a queue that are being worked on.
CREATE OR REPLACE FUNCTION pgque.in_flight(queue text)
RETURNS TABLE (consumer_name text, batch_id bigint, batch_age interval, estimated_events bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.consumer_name, i.current_batch, i.last_seen, b.seq_end - b.seq_start
      FROM pgque.get_consumer_info(queue) i
      CROSS JOIN LATERAL pgque.get_batch_info(i.current_batch) b
     WHERE i.current_batch IS NOT NULL
     ORDER BY i.consumer_name
$$;


-- The buckets of a period that ends now, each beginning at a multiple of its size.
CREATE OR REPLACE FUNCTION pgque._buckets(period interval, bucket_size interval) RETURNS SETOF timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT coalesce(period > interval '0' AND bucket_size > interval '0', false) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'period and bucket_size must be positive';
    END IF;
    RETURN QUERY SELECT generate_series(date_bin(bucket_size, now() - period, timestamptz 'epoch'), now(), bucket_size);
END $$;


-- The id of a queue. Raises 42704 where there is none.
CREATE OR REPLACE FUNCTION pgque._queue_id(queue text) RETURNS int4
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number int4;
BEGIN
    SELECT q.queue_id INTO number FROM pgque.queue q WHERE q.queue_name = queue;
    IF number IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('queue not found: %s', coalesce(queue, 'null'));
    END IF;
    RETURN number;
END $$;


-- Events of a queue by the time of the tick that published them, as far back as ticks are kept.
CREATE OR REPLACE FUNCTION pgque.throughput(queue text, period interval, bucket_size interval)
RETURNS TABLE (bucket_start timestamptz, events bigint, events_per_sec numeric)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH published AS (
        SELECT date_bin(bucket_size, t.tick_time, timestamptz 'epoch') AS bucket,
               t.tick_event_seq - lag(t.tick_event_seq) OVER (ORDER BY t.tick_id) AS number
          FROM pgque.tick t WHERE t.tick_queue = pgque._queue_id(queue)
    )
    SELECT b.bucket, coalesce(sum(p.number), 0)::bigint,
           round(coalesce(sum(p.number), 0) / extract(epoch FROM bucket_size), 6)
      FROM pgque._buckets(period, bucket_size) AS b (bucket)
      LEFT JOIN published p ON p.bucket = b.bucket
     GROUP BY b.bucket ORDER BY b.bucket
$$;


-- Retries and dead letters of a queue by time. A retry counts at the tick that brought the event again (as long as the
-- event's table has not rotated); one that waits in the retry queue counts when it is due, at the latest now.
CREATE OR REPLACE FUNCTION pgque.error_rate(queue text, period interval, bucket_size interval)
RETURNS TABLE (bucket_start timestamptz, retries bigint, dead_letters bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id int4 := pgque._queue_id(queue);
BEGIN
    RETURN QUERY EXECUTE format($query$
        WITH ticks AS (
            SELECT t.tick_time, pg_snapshot_xmax(t.tick_snapshot) AS upper,
                   lag(pg_snapshot_xmax(t.tick_snapshot)) OVER (ORDER BY t.tick_id) AS lower
              FROM pgque.tick t WHERE t.tick_queue = $1
        ), failures AS (
            SELECT t.tick_time AS at, 1 AS retries, 0 AS dead
              FROM ticks t JOIN %s e ON e.ev_txid >= t.lower AND e.ev_txid < t.upper
             WHERE e.ev_retry IS NOT NULL AND t.tick_time >= now() - $2
            UNION ALL
            SELECT least(r.ev_retry_after, now()), 1, 0 FROM pgque.retry_queue r
             WHERE r.ev_queue = $1 AND r.ev_retry_after < 'infinity'
            UNION ALL
            SELECT d.dl_time, 0, 1 FROM pgque.dead_letter d WHERE d.dl_queue_id = $1
        )
        SELECT b.bucket, coalesce(sum(f.retries), 0)::bigint, coalesce(sum(f.dead), 0)::bigint
          FROM pgque._buckets($2, $3) AS b (bucket)
          LEFT JOIN failures f ON date_bin($3, f.at, timestamptz 'epoch') = b.bucket
         GROUP BY b.bucket ORDER BY b.bucket
        $query$, pgque._event_table(id))
    USING id, period, bucket_size;
END $$;
