-- Reading: receive() and get_batch_events().
--
-- To plan a query over a queue's tables takes longer than to read a small batch. So these two are generated, like those
-- that send (15_dispatch.sql): with a statement for each queue, which a session plans once. Beyond 64 queues the younger ones
-- go the slow way, and so do batches that are not all that lies between two ticks.


-- What _batch_query() says for a whole batch, for the queue of which _decision() has the id. Where the older snapshot lists all
-- transactions from its xmin to its xmax, as it does where nobody sends but in short transactions, whatever of them is seen
-- now is new: then the batch is one range.
CREATE OR REPLACE FUNCTION pgque._read_statement(columns text, most text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    range text := (SELECT string_agg(replace($range$
            SELECT {columns} FROM pgque.event_%2$s_{number}
             WHERE ev_txid >= lower AND ev_txid < pg_snapshot_xmax(batch.next_snapshot) AND (all_ended OR ev_txid <> ALL (still_open))
               AND (ev_owner IS NULL OR ev_owner = batch.owner)$range$, '{number}', n::text), ' UNION ALL ')
                     FROM generate_series(0, 2) AS n);
    listed text := (SELECT string_agg(replace($listed$
            SELECT {columns} FROM pgque.event_%2$s_{number}
             WHERE ev_txid = ANY (finished) AND (ev_owner IS NULL OR ev_owner = batch.owner)$listed$, '{number}', n::text), ' UNION ALL ')
                     FROM generate_series(0, 2) AS n);
BEGIN
    RETURN replace(replace(replace(replace($leaf$
        IF one_range THEN
            RETURN QUERY {range} ORDER BY 1 LIMIT {most};
        ELSE
            RETURN QUERY {range} UNION ALL {listed} ORDER BY 1 LIMIT {most};
        END IF;
        read := FOUND;$leaf$, '{range}', range), '{listed}', listed), '{columns}', columns), '{most}', most);
END $$;


-- What these statements need to know of a batch's snapshots. Where none of them lists a transaction nothing is executed for that.
CREATE OR REPLACE FUNCTION pgque._read_bounds() RETURNS text LANGUAGE sql IMMUTABLE RETURN $bounds$
        lower := pg_snapshot_xmin(batch.prev_snapshot);
        one_range := lower = pg_snapshot_xmax(batch.prev_snapshot);
        IF NOT one_range THEN
            finished := array(SELECT pg_snapshot_xip(batch.prev_snapshot));
            one_range := cardinality(finished) = pg_snapshot_xmax(batch.prev_snapshot)::text::numeric - lower::text::numeric;
            IF NOT one_range THEN
                lower := pg_snapshot_xmax(batch.prev_snapshot);
                finished := array(SELECT xid FROM unnest(finished) AS xid WHERE pg_visible_in_snapshot(xid, batch.next_snapshot));
            END IF;
        END IF;
        all_ended := pg_snapshot_xmin(batch.next_snapshot) = pg_snapshot_xmax(batch.next_snapshot);
        IF NOT all_ended THEN
            still_open := array(SELECT pg_snapshot_xip(batch.next_snapshot));
        END IF;
$bounds$;


-- Generate both.
CREATE OR REPLACE FUNCTION pgque._make_readers() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    queues pgque.queue[];
    settings constant text := 'LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp '
                              'SET enable_seqscan = off SET work_mem = ''64MB'' SET plan_cache_mode = force_generic_plan';
    message constant text := 'ev_id, batch.batch_id, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4';
    event constant text := 'ev_id, ev_time, ev_txid::text::bigint, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4';
BEGIN
    PERFORM pgque._lock_queues(true);
    queues := array(SELECT q FROM (SELECT * FROM pgque.queue ORDER BY queue_id LIMIT 64) AS q
                     ORDER BY q.queue_name COLLATE "C");
    EXECUTE format('CREATE OR REPLACE FUNCTION pgque.receive(queue text, consumer text, max_return int DEFAULT 100) '
                   'RETURNS SETOF pgque.message %s AS %L', settings, $begin$
-- Up to max_return messages of the consumer's batch. A batch without events is passed over and finished: after a long quiet
-- time those are many, so where the consumer stands is written once, in the end. A batch that somebody has had an id of
-- becomes another one under another id.
#variable_conflict use_column
DECLARE
    batch pgque._batch_state;
    queue_name constant text := queue;
    first bigint;
    holder text;
    read boolean;
    one_range boolean;
    lower xid8;
    finished xid8[];
    still_open xid8[];
    all_ended boolean;
BEGIN
    IF max_return IS NULL OR max_return < 1 THEN
        RAISE EXCEPTION 'max_return must be >= 1, got %', coalesce(max_return::text, 'NULL');
    END IF;
    -- Where there is nothing special about it, that is, the consumer has no batch and is not in the middle of one, one statement finds
    -- and marks the next. Where another session has been faster, the row is no longer as it was joined.
    UPDATE pgque.subscription s
       SET sub_batch = nextval('pgque.batch_id_seq'::regclass), sub_next_tick = next.tick_id, sub_active = now()
      FROM pgque.queue q, pgque.consumer c, pgque.tick prev,
           LATERAL (SELECT t.tick_id, t.tick_snapshot FROM pgque.tick t
                     WHERE t.tick_queue = prev.tick_queue AND t.tick_id > prev.tick_id ORDER BY t.tick_id LIMIT 1) AS next
     WHERE q.queue_name = queue AND c.co_name = consumer AND s.sub_queue = q.queue_id AND s.sub_consumer = c.co_id
       AND prev.tick_queue = s.sub_queue AND prev.tick_id = s.sub_last_tick
       AND s.sub_batch IS NULL AND s.sub_next_tick IS NULL AND s.sub_role = 'normal' AND q.queue_cluster = pgque._cluster()
    RETURNING s.sub_batch, q.queue_id, q.queue_name, 'pgque.event_' || q.queue_id, q.queue_max_retries,
              s.sub_id, s.sub_id, s.sub_consumer, c.co_name,
              prev.tick_id, next.tick_id, prev.tick_snapshot, next.tick_snapshot,
              NULL, NULL, NULL, q.queue_max_batch_events, s.sub_role, true, NULL, NULL
         INTO batch;
    IF batch.batch_id IS NULL THEN
        batch := pgque._take_batch(queue, consumer, NULL, NULL, NULL);
    ELSIF batch.part_size IS NOT NULL THEN
        batch := pgque._begin_part(batch);
    END IF;
    IF batch.batch_id IS NOT NULL THEN
        holder := set_config('pgque.holder', batch.sub_id::text, false);  -- see _holder
    END IF;
    first := batch.batch_id;
    IF first IS NULL THEN
        RETURN;
    END IF;
    LOOP
        read := NULL;
        IF batch.upto_id IS NULL THEN
$begin$ || pgque._read_bounds() || pgque._decision(queues, pgque._read_statement(message, 'max_return')) || format($end$
        END IF;
        IF read IS NULL THEN
            RETURN QUERY EXECUTE 'SELECT %1$s FROM (' || pgque._in_order(batch) || ' LIMIT $2) AS event'
                USING batch.batch_id, max_return;
            read := FOUND;
        END IF;
        EXIT WHEN read;
        batch := pgque._following(batch);
        EXIT WHEN batch.batch_id IS NULL;
        IF batch.batch_id = first THEN
            batch.batch_id := nextval('pgque.batch_id_seq'::regclass);
        END IF;
        IF batch.part_size IS NOT NULL THEN
            batch := pgque._begin_part(batch);
        END IF;
    END LOOP;
    IF batch.batch_id IS DISTINCT FROM first THEN
        UPDATE pgque.subscription s
           SET sub_batch = batch.batch_id, sub_last_tick = batch.prev_tick_id, sub_next_tick = batch.next_tick_id,
               sub_active = now()
         WHERE s.sub_id = batch.sub_id;
        DELETE FROM pgque.retry_queue r WHERE r.ev_batch = first AND r.ev_retry_after = 'infinity';
    END IF;
END $end$, replace(message, 'batch.batch_id', '$1')));

    EXECUTE format('CREATE OR REPLACE FUNCTION pgque.get_batch_events(batch_id bigint, '
                   'OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int4, OUT ev_type text, '
                   'OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text) '
                   'RETURNS SETOF record %s AS %L', settings, $begin$
#variable_conflict use_column
DECLARE
    batch pgque._batch_state := pgque._batch(batch_id);
    queue_name constant text := batch.queue_name;
    read boolean;
    one_range boolean;
    lower xid8;
    finished xid8[];
    still_open xid8[];
    all_ended boolean;
BEGIN
    IF batch.batch_id IS NULL THEN
        RAISE EXCEPTION 'batch not found: %', batch_id;
    END IF;
    IF batch.upto_id IS NULL AND batch.slots IS NULL THEN
$begin$ || pgque._read_bounds() || pgque._decision(queues, pgque._read_statement(event, 'NULL')) || format($end$
    END IF;
    IF read IS NULL THEN
        RETURN QUERY EXECUTE 'SELECT %1$s FROM (' || pgque._in_order(batch) || ') AS event';
    END IF;
END $end$, event));
END $make$;

SELECT pgque._make_readers();


CREATE OR REPLACE FUNCTION pgque._readers_follow() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgque._make_readers();
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER queues_are_read AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF queue_id, queue_name ON pgque.queue
    FOR EACH STATEMENT EXECUTE FUNCTION pgque._readers_follow();


COMMENT ON FUNCTION pgque.receive(queue text, consumer text, max_return int) IS
    'Messages of the consumer''s batch, the next one if it has none; none where nothing is to be had. ack() finishes the '
    'batch, also what of it was not returned: ask for as many as it may have.';
COMMENT ON FUNCTION pgque.get_batch_events(batch_id bigint) IS 'The events of a batch, in the order of their ids.';
