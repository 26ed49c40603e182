-- Information: queues, consumers, batches.


-- What is known of a queue: its tables, its parameters, the last tick, and how many events come.
CREATE OR REPLACE FUNCTION pgque.get_queue_info(
    queue text,
    OUT queue_name text, OUT queue_ntables integer, OUT queue_cur_table integer, OUT queue_rotation_period interval,
    OUT queue_switch_time timestamptz, OUT queue_external_ticker boolean, OUT queue_ticker_paused boolean,
    OUT queue_ticker_max_count integer, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval,
    OUT ticker_lag interval, OUT ev_per_sec float8, OUT ev_new bigint, OUT last_tick_id bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT q.queue_name, q.queue_ntables, q.queue_cur_table, q.queue_rotation_period, q.queue_switch_time,
           q.queue_external_ticker, q.queue_ticker_paused, q.queue_ticker_max_count, q.queue_ticker_max_lag,
           q.queue_ticker_idle_period, clock_timestamp() - last.tick_time,
           (last.tick_event_seq - early.tick_event_seq)
               / nullif(extract(epoch FROM last.tick_time - early.tick_time), 0)::float8,
           coalesce(pg_sequence_last_value(q.queue_event_seq::regclass), 0) - last.tick_event_seq, last.tick_id
      FROM pgque.queue q
      LEFT JOIN LATERAL (SELECT t.* FROM pgque.tick t WHERE t.tick_queue = q.queue_id
                          ORDER BY t.tick_id DESC LIMIT 1) AS last ON true
      LEFT JOIN LATERAL (SELECT t.* FROM pgque.tick t
                          WHERE t.tick_queue = q.queue_id AND t.tick_id BETWEEN last.tick_id - 20 AND last.tick_id - 1
                          ORDER BY t.tick_id LIMIT 1) AS early ON true
     WHERE get_queue_info.queue IS NULL OR q.queue_name = get_queue_info.queue
     ORDER BY q.queue_name;
END $$;


-- What is known of every queue: its tables, its parameters, the last tick, and how many events come.
CREATE OR REPLACE FUNCTION pgque.get_queue_info(
    OUT queue_name text, OUT queue_ntables integer, OUT queue_cur_table integer, OUT queue_rotation_period interval,
    OUT queue_switch_time timestamptz, OUT queue_external_ticker boolean, OUT queue_ticker_paused boolean,
    OUT queue_ticker_max_count integer, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval,
    OUT ticker_lag interval, OUT ev_per_sec float8, OUT ev_new bigint, OUT last_tick_id bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgque.get_queue_info(NULL::text);
END $$;


-- How far a consumer is with a queue; NULL for all queues, or all consumers.
CREATE OR REPLACE FUNCTION pgque.get_consumer_info(
    queue text, consumer text,
    OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint,
    OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT q.queue_name, c.co_name, clock_timestamp() - t.tick_time, clock_timestamp() - s.sub_active, s.sub_last_tick,
           s.sub_batch, s.sub_next_tick, top.tick_event_seq - greatest(t.tick_event_seq, p.after_id)
      FROM pgque.subscription s
      JOIN pgque.queue q ON q.queue_id = s.sub_queue
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
      LEFT JOIN pgque.tick t ON t.tick_queue = s.sub_queue AND t.tick_id = s.sub_last_tick
      LEFT JOIN pgque.batch_part p ON p.sub_id = s.sub_id
      LEFT JOIN LATERAL (SELECT l.tick_event_seq FROM pgque.tick l WHERE l.tick_queue = s.sub_queue
                          ORDER BY l.tick_id DESC LIMIT 1) AS top ON true
     WHERE (get_consumer_info.queue IS NULL OR q.queue_name = get_consumer_info.queue)
       AND (get_consumer_info.consumer IS NULL OR c.co_name = get_consumer_info.consumer)
     ORDER BY q.queue_name, c.co_name;
END $$;


-- How far each consumer of a queue is.
CREATE OR REPLACE FUNCTION pgque.get_consumer_info(
    queue text,
    OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint,
    OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgque.get_consumer_info(queue, NULL);
END $$;


-- How far each consumer is with each of its queues.
CREATE OR REPLACE FUNCTION pgque.get_consumer_info(
    OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint,
    OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgque.get_consumer_info(NULL, NULL);
END $$;


-- What is known of a batch that is being worked on: whose it is, and the ticks and event numbers that bound it.
CREATE OR REPLACE FUNCTION pgque.get_batch_info(
    batch_id bigint,
    OUT queue_name text, OUT consumer_name text, OUT batch_start timestamptz, OUT batch_end timestamptz,
    OUT prev_tick_id bigint, OUT tick_id bigint, OUT lag interval, OUT seq_start bigint, OUT seq_end bigint
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT q.queue_name, c.co_name, prev.tick_time, next.tick_time, prev.tick_id, next.tick_id,
           clock_timestamp() - next.tick_time, coalesce(p.after_id, prev.tick_event_seq), coalesce(p.upto_id, next.tick_event_seq)
      INTO queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id, lag, seq_start, seq_end
      FROM pgque.subscription s
      JOIN pgque.queue q ON q.queue_id = s.sub_queue
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
      JOIN pgque.tick prev ON prev.tick_queue = s.sub_queue AND prev.tick_id = s.sub_last_tick
      JOIN pgque.tick next ON next.tick_queue = s.sub_queue AND next.tick_id = s.sub_next_tick
      LEFT JOIN pgque.batch_part p ON p.sub_id = s.sub_id
     WHERE s.sub_batch = get_batch_info.batch_id;
END $$;
