-- Batches: what became visible between two ticks, for one consumer.
--
-- A transaction's events belong to the first tick whose snapshot sees it, whenever it began. So of two snapshots, the
-- batch is: transactions from the older one's xmax on that the newer one sees, and those that the older one listed as
-- in progress and the newer one does not.


-- An active batch with all that is needed to read it; null if there is none of this id.
CREATE OR REPLACE FUNCTION pgque._batch(batch_id bigint) RETURNS pgque._batch_state
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    state pgque._batch_state;
BEGIN
    PERFORM pgque._lock_ticks(s.sub_queue, true)
       FROM pgque.subscription s WHERE s.sub_batch = batch_id AND NOT pgque._is_at_home(s.sub_queue);
    SELECT batch_id, q.queue_id, q.queue_name, pgque._event_table(q.queue_id), q.queue_max_retries,
           s.sub_id, owner.sub_id, owner.sub_consumer, c.co_name,
           prev.tick_id, next.tick_id, prev.tick_snapshot, next.tick_snapshot
      INTO state
      FROM pgque.subscription s
      JOIN pgque.subscription owner ON owner.sub_id = coalesce(s.sub_main, s.sub_id)
      JOIN pgque.queue q ON q.queue_id = s.sub_queue
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
      JOIN pgque.tick prev ON prev.tick_queue = s.sub_queue AND prev.tick_id = s.sub_last_tick
      JOIN pgque.tick next ON next.tick_queue = s.sub_queue AND next.tick_id = s.sub_next_tick
     WHERE s.sub_batch = batch_id;
    RETURN state;
END $$;


-- The query of a batch's events with the given select list, not yet ordered.
CREATE OR REPLACE FUNCTION pgque._batch_query(batch pgque._batch_state, columns text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lower xid8 := pg_snapshot_xmax(batch.prev_snapshot);
    upper xid8 := pg_snapshot_xmax(batch.next_snapshot);
    still_open xid8[] := array(SELECT xid FROM pg_snapshot_xip(batch.next_snapshot) AS xid WHERE xid >= lower);
    finished xid8[] := array(SELECT xid FROM pg_snapshot_xip(batch.prev_snapshot) AS xid
                              WHERE pg_visible_in_snapshot(xid, batch.next_snapshot));
    ours text := format('(ev_owner IS NULL OR ev_owner = %s)', batch.owner);
    built text;
BEGIN
    built := format('SELECT %s FROM %s WHERE ev_txid >= %L::xid8 AND ev_txid < %L::xid8 AND %s',
                    columns, batch.data_table, lower, upper, ours);
    IF cardinality(still_open) > 0 THEN
        built := built || format(' AND ev_txid <> ALL (%L::xid8[])', still_open);
    END IF;
    IF cardinality(finished) > 0 THEN
        built := built || format(' UNION ALL SELECT %s FROM %s WHERE ev_txid = ANY (%L::xid8[]) AND %s',
                                 columns, batch.data_table, finished, ours);
    END IF;
    RETURN built;
END $$;


-- The subscription's row, locked, for a batch to be given or closed. Raises if there is none.
CREATE OR REPLACE FUNCTION pgque._lock_subscription(queue text, consumer text) RETURNS pgque.subscription
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_row pgque.subscription;
BEGIN
    SELECT s.* INTO found_row
      FROM pgque.subscription s
      JOIN pgque.queue q ON q.queue_id = s.sub_queue
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
     WHERE q.queue_name = queue AND c.co_name = consumer
       FOR NO KEY UPDATE OF s;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Not subscriber to queue: %/%', coalesce(queue, 'NULL'), coalesce(consumer, 'NULL');
    END IF;
    RETURN found_row;
END $$;


-- The first tick after a given one with at least min_count more events and min_interval later; null arguments ask for
-- nothing.
CREATE OR REPLACE FUNCTION pgque.find_tick_helper(
    i_queue_id int4, i_prev_tick_id int8, i_prev_tick_time timestamptz, i_prev_tick_seq int8,
    i_min_count int8, i_min_interval interval,
    OUT next_tick_id int8, OUT next_tick_time timestamptz, OUT next_tick_seq int8
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT t.tick_id, t.tick_time, t.tick_event_seq INTO next_tick_id, next_tick_time, next_tick_seq
      FROM pgque.tick t
     WHERE t.tick_queue = i_queue_id AND t.tick_id > i_prev_tick_id
       AND (i_min_count IS NULL OR t.tick_event_seq >= i_prev_tick_seq + i_min_count)
       AND (i_min_interval IS NULL OR t.tick_time >= i_prev_tick_time + i_min_interval)
     ORDER BY t.tick_id LIMIT 1;
END $$;


-- The tick that ends the batch after `last`: the one that the helper finds, if it is at least min_lag old.
CREATE OR REPLACE FUNCTION pgque._find_tick(
    queue_id integer, last bigint, min_lag interval, min_count integer, min_interval interval
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id bigint;
    at timestamptz;
BEGIN
    SELECT h.next_tick_id, h.next_tick_time INTO id, at
      FROM pgque.tick t
     CROSS JOIN LATERAL pgque.find_tick_helper(queue_id, last, t.tick_time, t.tick_event_seq, min_count, min_interval) AS h
     WHERE t.tick_queue = queue_id AND t.tick_id = last;
    IF min_lag IS NOT NULL AND clock_timestamp() - at < min_lag THEN
        RETURN NULL;
    END IF;
    RETURN id;
END $$;


-- Out columns are null where there is no batch to be had.
CREATE OR REPLACE FUNCTION pgque.next_batch_custom(
    queue_name text, consumer_name text, min_lag interval, min_count int4, min_interval interval,
    OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint,
    OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz,
    OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    subscription pgque.subscription := pgque._lock_subscription(queue_name, consumer_name);
BEGIN
    IF subscription.sub_role = 'coop_member' THEN
        RAISE EXCEPTION 'consumer % of queue % is a subconsumer, use receive_coop() or next_batch(queue, consumer, subconsumer)',
            consumer_name, queue_name;
    ELSIF subscription.sub_role = 'coop_main' THEN
        IF EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = subscription.sub_id) THEN
            RAISE EXCEPTION 'consumer % of queue % has subconsumers, use receive_coop() or next_batch(queue, consumer, subconsumer)',
                consumer_name, queue_name;
        END IF;
        UPDATE pgque.subscription s SET sub_role = 'normal' WHERE s.sub_id = subscription.sub_id;  -- somebody has deleted them
    END IF;
    batch_id := subscription.sub_batch;
    cur_tick_id := subscription.sub_next_tick;
    prev_tick_id := subscription.sub_last_tick;
    IF batch_id IS NULL THEN
        cur_tick_id := pgque._find_tick(subscription.sub_queue, prev_tick_id, min_lag, min_count, min_interval);
        IF cur_tick_id IS NULL THEN
            prev_tick_id := NULL;
            RETURN;
        END IF;
        batch_id := nextval('pgque.batch_id_seq');
        UPDATE pgque.subscription s SET sub_batch = batch_id, sub_next_tick = cur_tick_id, sub_active = now()
         WHERE s.sub_id = subscription.sub_id;
    END IF;
    SELECT cur.tick_time, prev.tick_time, cur.tick_event_seq, prev.tick_event_seq
      INTO cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
      FROM pgque.tick cur, pgque.tick prev
     WHERE cur.tick_queue = subscription.sub_queue AND cur.tick_id = cur_tick_id
       AND prev.tick_queue = subscription.sub_queue AND prev.tick_id = prev_tick_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'PgQ corruption: consumer % on queue % does not see tick %', consumer_name, queue_name, prev_tick_id;
    END IF;
END $$;


CREATE OR REPLACE FUNCTION pgque.next_batch_info(
    queue_name text, consumer_name text,
    OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint,
    OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz,
    OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT * INTO batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
      FROM pgque.next_batch_custom(queue_name, consumer_name, NULL, NULL, NULL);
END $$;


CREATE OR REPLACE FUNCTION pgque.next_batch(queue_name text, consumer_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT b.batch_id FROM pgque.next_batch_custom(queue_name, consumer_name, NULL, NULL, NULL) AS b);
END $$;


CREATE OR REPLACE FUNCTION pgque.get_batch_events(
    batch_id bigint,
    OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int4, OUT ev_type text, OUT ev_data text,
    OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '64MB' AS $$
DECLARE
    batch pgque._batch_state := pgque._batch(batch_id);
BEGIN
    IF batch.batch_id IS NULL THEN
        RAISE EXCEPTION 'batch not found: %', batch_id;
    END IF;
    RETURN QUERY EXECUTE pgque._batch_query(batch,
        'ev_id, ev_time, ev_txid::text::bigint, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4')
        || ' ORDER BY 1';
END $$;


-- The query of an active batch, which an administrator's cursor executes: he may read these tables.
CREATE OR REPLACE FUNCTION pgque._cursor_query(batch_id bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state := pgque._batch(batch_id);
BEGIN
    IF batch.batch_id IS NULL THEN
        RAISE EXCEPTION 'batch not found: %', batch_id;
    END IF;
    RETURN pgque._batch_query(batch, '*');
END $$;


-- A cursor over a batch, and its first events. `extra_where` is trusted SQL and goes into the query as it is: so these
-- two have the caller's rights, not the owner's.
CREATE OR REPLACE FUNCTION pgque.get_batch_cursor(
    batch_id bigint, cursor_name text, quick_limit int4, extra_where text,
    OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int4, OUT ev_type text, OUT ev_data text,
    OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    query text;
BEGIN
    query := 'SELECT ev_id, ev_time, ev_txid::text::bigint AS ev_txid, ev_retry, ev_type, ev_data, '
             'ev_extra1, ev_extra2, ev_extra3, ev_extra4 FROM (' || pgque._cursor_query(batch_id) || ') AS event';
    IF extra_where IS NOT NULL THEN
        query := query || ' WHERE ' || extra_where;
    END IF;
    EXECUTE 'DECLARE ' || quote_ident(cursor_name) || ' NO SCROLL CURSOR FOR ' || query || ' ORDER BY 1';
    RETURN QUERY EXECUTE 'FETCH ' || quick_limit || ' FROM ' || quote_ident(cursor_name);
END $$;


CREATE OR REPLACE FUNCTION pgque.get_batch_cursor(
    batch_id bigint, cursor_name text, quick_limit int4,
    OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int4, OUT ev_type text, OUT ev_data text,
    OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgque.get_batch_cursor(batch_id, cursor_name, quick_limit, NULL);
END $$;


-- Close a batch. The group's position was moved when a member got its batch; the member's row only gives up its ticks.
CREATE OR REPLACE FUNCTION pgque.finish_batch(batch_id bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    closed pgque.subscription;
BEGIN
    SELECT s.* INTO closed FROM pgque.subscription s WHERE s.sub_batch = batch_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE WARNING 'finish_batch: batch % not found', batch_id;
        RETURN 0;
    END IF;
    UPDATE pgque.subscription s
       SET sub_last_tick = CASE WHEN closed.sub_role = 'coop_member' THEN NULL ELSE s.sub_next_tick END,
           sub_next_tick = NULL, sub_batch = NULL, sub_active = now()
     WHERE s.sub_id = closed.sub_id;
    DELETE FROM pgque.retry_queue r WHERE r.ev_batch = closed.sub_batch AND r.ev_retry_after = 'infinity';
    RETURN 1;
END $$;


-- Up to max_return messages of the consumer's batch. Batches without events are passed over, and finished where nothing
-- comes after them. After a long quiet time those are many: so where the consumer stands is written once, in the end. A
-- batch that has become another has another id.
CREATE OR REPLACE FUNCTION pgque.receive(queue text, consumer text, max_return int DEFAULT 100) RETURNS SETOF pgque.message
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '64MB' AS $$
DECLARE
    batch pgque._batch_state;
    id bigint;
    following bigint;
BEGIN
    IF max_return IS NULL OR max_return < 1 THEN
        RAISE EXCEPTION 'max_return must be >= 1, got %', coalesce(max_return::text, 'NULL');
    END IF;
    SELECT b.batch_id INTO id FROM pgque.next_batch_custom(queue, consumer, NULL, NULL, NULL) AS b;
    IF id IS NULL THEN
        RETURN;
    END IF;
    batch := pgque._batch(id);
    LOOP
        RETURN QUERY EXECUTE pgque._batch_query(batch,
            format('ev_id, %s::bigint, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4',
                   batch.batch_id)) || ' ORDER BY 1 LIMIT ' || max_return;
        EXIT WHEN FOUND;
        following := pgque._find_tick(batch.queue_id, batch.next_tick_id, NULL, NULL, NULL);
        IF following IS NULL THEN
            batch.batch_id := NULL;
            batch.prev_tick_id := batch.next_tick_id;
            batch.next_tick_id := NULL;
            EXIT;
        END IF;
        IF batch.batch_id = id THEN
            batch.batch_id := nextval('pgque.batch_id_seq');
        END IF;
        batch.prev_tick_id := batch.next_tick_id;
        batch.prev_snapshot := batch.next_snapshot;
        SELECT t.tick_id, t.tick_snapshot INTO batch.next_tick_id, batch.next_snapshot
          FROM pgque.tick t WHERE t.tick_queue = batch.queue_id AND t.tick_id = following;
    END LOOP;
    IF batch.batch_id IS DISTINCT FROM id THEN
        UPDATE pgque.subscription s
           SET sub_batch = batch.batch_id, sub_last_tick = batch.prev_tick_id, sub_next_tick = batch.next_tick_id,
               sub_active = now()
         WHERE s.sub_id = batch.sub_id;
        DELETE FROM pgque.retry_queue r WHERE r.ev_batch = id AND r.ev_retry_after = 'infinity';
    END IF;
END $$;


CREATE OR REPLACE FUNCTION pgque.ack(batch_id bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.finish_batch(batch_id);
END $$;
