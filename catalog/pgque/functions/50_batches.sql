-- Batches: what became visible between two ticks, for one consumer.
--
-- A transaction's events belong to the first tick whose snapshot sees it, whenever it began. So of two snapshots, the
-- batch is: transactions from the older one's xmax on that the newer one sees, and those that the older one listed as
-- in progress and the newer one does not.


-- The subscription that has a batch; null if none has. An index of batches would cost more than all else that is done for one: each batch would
-- make new entries in every index of the table. So whoever gives one leaves in a setting of the session (pgque.holder) to whom: that one is
-- looked at first, and then all of them. Where the setting names another one nothing else is different.
CREATE OR REPLACE FUNCTION pgque._holder(batch_id bigint) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder integer := nullif(current_setting('pgque.holder', true), '');
BEGIN
    IF EXISTS (SELECT FROM pgque.subscription s WHERE s.sub_id = holder AND s.sub_batch = batch_id) THEN
        RETURN holder;
    END IF;
    RETURN (SELECT s.sub_id FROM pgque.subscription s WHERE s.sub_batch = batch_id LIMIT 1);
END $$;


-- An active batch with all that is needed to read it; null if there is none of this id.
CREATE OR REPLACE FUNCTION pgque._batch(batch_id bigint) RETURNS pgque._batch_state
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    holder integer := pgque._holder(batch_id);
    state pgque._batch_state;
BEGIN
    PERFORM pgque._lock_ticks(s.sub_queue, true)
       FROM pgque.subscription s WHERE s.sub_id = holder AND s.sub_batch = batch_id AND NOT pgque._is_at_home(s.sub_queue);
    SELECT batch_id, q.queue_id, q.queue_name, pgque._event_table(q.queue_id), q.queue_max_retries,
           s.sub_id, owner.sub_id, owner.sub_consumer, c.co_name,
           prev.tick_id, next.tick_id, prev.tick_snapshot, next.tick_snapshot,
           p.after_id, p.upto_id, p.last_id, q.queue_max_batch_events, s.sub_role, true, p.slots, o.key
      INTO state
      FROM pgque.subscription s
      JOIN pgque.subscription owner ON owner.sub_id = coalesce(s.sub_main, s.sub_id)
      JOIN pgque.queue q ON q.queue_id = s.sub_queue
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
      JOIN pgque.tick prev ON prev.tick_queue = s.sub_queue AND prev.tick_id = s.sub_last_tick
      JOIN pgque.tick next ON next.tick_queue = s.sub_queue AND next.tick_id = s.sub_next_tick
      LEFT JOIN pgque.batch_part p ON p.sub_id = s.sub_id
      LEFT JOIN pgque.ordering o ON o.sub_id = s.sub_main AND p.slots IS NOT NULL
     WHERE s.sub_id = holder AND s.sub_batch = batch_id;
    RETURN state;
END $$;


-- The query of a batch's events with the given select list; ordered only where they have keys, see _in_order.
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
    IF batch.slots IS NOT NULL THEN
        RETURN pgque._keyed_query(batch, columns);
    ELSIF batch.upto_id IS NOT NULL THEN
        -- Found by the events' ids: written so that the index of transactions cannot be used. See 52_parts.sql.
        RETURN format('SELECT %s FROM %s WHERE ev_id > %s AND ev_id <= %s AND pg_visible_in_snapshot(ev_txid, %L) '
                      'AND NOT pg_visible_in_snapshot(ev_txid, %L) AND %s',
                      columns, batch.data_table, batch.after_id, batch.upto_id, batch.next_snapshot, batch.prev_snapshot, ours);
    END IF;
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


-- The query of a batch's events in the order in which they are handed out.
CREATE OR REPLACE FUNCTION pgque._in_order(batch pgque._batch_state) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._batch_query(batch, '*') || CASE WHEN batch.slots IS NULL THEN ' ORDER BY ev_id' ELSE '' END;
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


DROP FUNCTION IF EXISTS pgque._take_next(text, text);  -- of an earlier version


-- The batch of a consumer: the active one, else the next, which becomes the active one; a null row where there is none.
-- Locks nothing unless it has something to write: the row must then be as it was seen, or it is looked at once more.
CREATE OR REPLACE FUNCTION pgque._take_batch(
    queue text, consumer text, min_lag interval, min_count integer, min_interval interval
) RETURNS pgque._batch_state LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state;
BEGIN
    LOOP
        SELECT s.sub_batch, q.queue_id, q.queue_name, 'pgque.event_' || q.queue_id, q.queue_max_retries,
               s.sub_id, s.sub_id, s.sub_consumer, c.co_name,
               prev.tick_id, next.tick_id, prev.tick_snapshot, next.tick_snapshot,
               p.after_id, p.upto_id, p.last_id, q.queue_max_batch_events, s.sub_role,
               q.queue_cluster IS NOT DISTINCT FROM pgque._cluster(), NULL, NULL
          INTO batch
          FROM pgque.queue q
          JOIN pgque.consumer c ON c.co_name = consumer
          JOIN pgque.subscription s ON s.sub_queue = q.queue_id AND s.sub_consumer = c.co_id
          LEFT JOIN pgque.batch_part p ON p.sub_id = s.sub_id AND p.prev_tick = s.sub_last_tick
          LEFT JOIN pgque.tick prev ON prev.tick_queue = s.sub_queue AND prev.tick_id = s.sub_last_tick
          LEFT JOIN LATERAL (
            SELECT t.* FROM pgque.tick t
             WHERE t.tick_queue = s.sub_queue AND t.tick_id >= coalesce(s.sub_next_tick, s.sub_last_tick + 1)
               AND CASE WHEN s.sub_next_tick IS NOT NULL THEN t.tick_id = s.sub_next_tick
                        ELSE (min_count IS NULL OR t.tick_event_seq >= prev.tick_event_seq + min_count)
                             AND (min_interval IS NULL OR t.tick_time >= prev.tick_time + min_interval) END
             ORDER BY t.tick_id LIMIT 1) AS next ON true
         WHERE q.queue_name = queue;
        IF NOT FOUND THEN
            PERFORM pgque._lock_subscription(queue, consumer);  -- which says what is missing
            CONTINUE;
        ELSIF NOT batch.at_home THEN
            PERFORM pgque._lock_ticks(batch.queue_id, true);
            CONTINUE;
        ELSIF batch.role <> 'normal' THEN
            PERFORM pgque._refuse_cooperative(pgque._lock_subscription(queue, consumer), queue, consumer);
        END IF;
        IF batch.prev_snapshot IS NULL OR batch.batch_id IS NOT NULL AND batch.next_snapshot IS NULL THEN
            RAISE EXCEPTION 'PgQ corruption: consumer % on queue % does not see tick %', consumer, queue, batch.prev_tick_id;
        ELSIF batch.batch_id IS NOT NULL THEN
            RETURN batch;
        ELSIF batch.next_tick_id IS NULL
              OR min_lag > clock_timestamp() - (SELECT t.tick_time FROM pgque.tick t
                                                 WHERE t.tick_queue = batch.queue_id AND t.tick_id = batch.next_tick_id) THEN
            RETURN NULL;
        END IF;
        batch.batch_id := nextval('pgque.batch_id_seq'::regclass);
        UPDATE pgque.subscription s
           SET sub_batch = batch.batch_id, sub_next_tick = batch.next_tick_id, sub_active = now()
         WHERE s.sub_id = batch.sub_id AND s.sub_batch IS NULL AND s.sub_last_tick = batch.prev_tick_id
           AND s.sub_next_tick IS NOT DISTINCT FROM CASE WHEN batch.last_id IS NOT NULL THEN batch.next_tick_id END
           AND s.sub_role = batch.role;
        IF FOUND THEN
            PERFORM set_config('pgque.holder', batch.sub_id::text, false);
            RETURN CASE WHEN num_nulls(batch.part_size, batch.last_id) < 2 THEN pgque._begin_part(batch) ELSE batch END;
        END IF;
    END LOOP;
END $$;


-- Raises unless a subscription, which has been locked, is one that gets batches of its own. A group without members is none.
CREATE OR REPLACE FUNCTION pgque._refuse_cooperative(subscription pgque.subscription, queue text, consumer text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF subscription.sub_role = 'coop_member' THEN
        RAISE EXCEPTION 'consumer % of queue % is a subconsumer, use receive_coop() or next_batch(queue, consumer, subconsumer)',
            consumer, queue;
    ELSIF subscription.sub_role = 'coop_main'
          AND EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = subscription.sub_id) THEN
        RAISE EXCEPTION 'consumer % of queue % has subconsumers, use receive_coop() or next_batch(queue, consumer, subconsumer)',
            consumer, queue;
    ELSIF EXISTS (SELECT FROM pgque.ordering o WHERE o.sub_id = subscription.sub_id) THEN
        RAISE EXCEPTION 'consumer % of queue % has an ordering key, use receive_coop() or next_batch(queue, consumer, subconsumer)',
            consumer, queue;
    ELSIF subscription.sub_role = 'coop_main' THEN
        UPDATE pgque.subscription s SET sub_role = 'normal' WHERE s.sub_id = subscription.sub_id;  -- somebody has deleted them
    END IF;
END $$;


-- The next batch of a consumer that is at least so old and so large, with the ticks that bound it. The batch it has, if
-- any.
--
-- Out columns are null where there is no batch to be had.
CREATE OR REPLACE FUNCTION pgque.next_batch_custom(
    queue_name text, consumer_name text, min_lag interval, min_count int4, min_interval interval,
    OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint,
    OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz,
    OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    batch pgque._batch_state := pgque._take_batch(queue_name, consumer_name, min_lag, min_count, min_interval);
BEGIN
    batch_id := batch.batch_id;
    SELECT batch.next_tick_id, batch.prev_tick_id, cur.tick_time, prev.tick_time, cur.tick_event_seq, prev.tick_event_seq
      INTO cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
      FROM pgque.tick cur, pgque.tick prev
     WHERE cur.tick_queue = batch.queue_id AND cur.tick_id = batch.next_tick_id
       AND prev.tick_queue = batch.queue_id AND prev.tick_id = batch.prev_tick_id;
END $$;


-- The next batch of a consumer, with the ticks that bound it; nulls where there is none.
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


-- The id of the next batch of a consumer, the same until it is finished; NULL where there is none.
CREATE OR REPLACE FUNCTION pgque.next_batch(queue_name text, consumer_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (pgque._take_batch(queue_name, consumer_name, NULL, NULL, NULL)).batch_id;
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
    RETURN pgque._in_order(batch);
END $$;


-- A cursor over the events of a batch that meet a condition; returns the first quick_limit of them.
--
-- `extra_where` is trusted SQL and goes into the query as it is: so these two have the caller's rights, not the
-- owner's.
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
    EXECUTE 'DECLARE ' || quote_ident(cursor_name) || ' NO SCROLL CURSOR FOR ' || query;
    RETURN QUERY EXECUTE 'FETCH ' || quick_limit || ' FROM ' || quote_ident(cursor_name);
END $$;


-- A cursor over the events of a batch; returns the first quick_limit of them.
CREATE OR REPLACE FUNCTION pgque.get_batch_cursor(
    batch_id bigint, cursor_name text, quick_limit int4,
    OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int4, OUT ev_type text, OUT ev_data text,
    OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgque.get_batch_cursor(batch_id, cursor_name, quick_limit, NULL);
END $$;


-- Finish a batch: its events are done with, and the consumer gets the next one. Returns 1, or 0 with a warning where it
-- is not there.
--
-- The group's position was moved when a member got its batch; the member's row only gives up its ticks. What is done in
-- parts is seen to afterwards. The subscription is looked for as _holder does.
CREATE OR REPLACE FUNCTION pgque.finish_batch(batch_id bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder integer := nullif(current_setting('pgque.holder', true), '');
    closed integer;
    in_parts boolean;
    retried boolean;
BEGIN
    FOR attempt IN 1 .. 2 LOOP
        UPDATE pgque.subscription s
           SET sub_last_tick = CASE WHEN s.sub_role = 'coop_member' THEN NULL ELSE s.sub_next_tick END,
               sub_next_tick = NULL, sub_batch = NULL, sub_active = now()
         WHERE s.sub_id = holder AND s.sub_batch = finish_batch.batch_id
        RETURNING s.sub_id, EXISTS (SELECT FROM pgque.batch_part p WHERE p.sub_id = s.sub_id),
                  EXISTS (SELECT FROM pgque.retry_queue r WHERE r.ev_batch = finish_batch.batch_id AND r.ev_retry_after = 'infinity')
             INTO closed, in_parts, retried;
        EXIT WHEN closed IS NOT NULL;
        holder := (SELECT s.sub_id FROM pgque.subscription s WHERE s.sub_batch = finish_batch.batch_id LIMIT 1);
    END LOOP;
    IF closed IS NULL THEN
        RAISE WARNING 'finish_batch: batch % not found', batch_id;
        RETURN 0;
    END IF;
    IF in_parts THEN
        PERFORM pgque._close_part(closed, batch_id);
    END IF;
    IF retried THEN
        DELETE FROM pgque.retry_queue r WHERE r.ev_batch = finish_batch.batch_id AND r.ev_retry_after = 'infinity';
    END IF;
    RETURN 1;
END $$;


-- The batch after one that has no events, under the same id; without an id, and at the place where the consumer then stands,
-- where there is none.
CREATE OR REPLACE FUNCTION pgque._following(batch pgque._batch_state) RETURNS pgque._batch_state
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    batch.prev_tick_id := batch.next_tick_id;
    batch.prev_snapshot := batch.next_snapshot;
    SELECT t.tick_id, t.tick_snapshot INTO batch.next_tick_id, batch.next_snapshot
      FROM pgque.tick t
     WHERE t.tick_queue = batch.queue_id AND t.tick_id > batch.prev_tick_id ORDER BY t.tick_id LIMIT 1;
    IF NOT FOUND THEN
        batch.batch_id := NULL;
    END IF;
    RETURN batch;
END $$;


-- Finish a batch: its events are done with. Returns 1, or 0 where it is finished already.
--
-- Becomes part of the query that calls it.
CREATE OR REPLACE FUNCTION pgque.ack(batch_id bigint) RETURNS integer
LANGUAGE sql VOLATILE RETURN pgque.finish_batch(batch_id);
