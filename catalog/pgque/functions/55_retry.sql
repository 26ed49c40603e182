-- Retries and dead letters. What is given again or put aside is always the event as the batch has it, never what the
-- caller sends back.


-- One event of a batch, as its queue has it; null if it is not in the batch.
CREATE OR REPLACE FUNCTION pgque._batch_event(batch pgque._batch_state, event_id bigint) RETURNS pgque.event_template
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event pgque.event_template;
BEGIN
    EXECUTE 'SELECT ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4'
            ' FROM (' || pgque._batch_query(batch, '*') || ') AS event WHERE ev_id = $1 LIMIT 1'
        INTO event USING event_id;
    RETURN event;
END $$;


-- An active batch, its subscription locked, so that it can be neither closed nor taken over meanwhile. Raises if there
-- is none.
CREATE OR REPLACE FUNCTION pgque._locked_batch(batch_id bigint) RETURNS pgque._batch_state
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    holder integer := pgque._holder(batch_id);
    batch pgque._batch_state;
BEGIN
    PERFORM FROM pgque.subscription s WHERE s.sub_id = holder AND s.sub_batch = batch_id FOR NO KEY UPDATE;
    batch := pgque._batch(batch_id);
    IF batch.batch_id IS NULL THEN
        RAISE EXCEPTION 'batch not found: %', batch_id;
    END IF;
    RETURN batch;
END $$;


-- Give an event again at `at`. 0 if this delivery of it has been asked for already. In the table, `infinity` is what has been
-- moved back already, and would be forgotten.
CREATE OR REPLACE FUNCTION pgque._queue_retry(batch pgque._batch_state, event pgque.event_template, at timestamptz)
RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    queued bigint;
BEGIN
    IF at = 'infinity' THEN
        RAISE EXCEPTION 'retry time must not be infinity';
    ELSIF batch.slots IS NOT NULL THEN
        RETURN pgque._retry_keyed(batch, event.ev_id, at);
    END IF;
    INSERT INTO pgque.retry_queue AS r (ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data,
                                   ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_batch)
    VALUES (at, batch.queue_id, event.ev_id, event.ev_time, NULL, batch.owner, coalesce(event.ev_retry, 0) + 1, event.ev_type,
            event.ev_data, event.ev_extra1, event.ev_extra2, event.ev_extra3, event.ev_extra4, batch.batch_id)
        ON CONFLICT (ev_owner, ev_id) DO UPDATE
       SET ev_retry_after = excluded.ev_retry_after, ev_retry = excluded.ev_retry, ev_batch = excluded.ev_batch
     WHERE r.ev_retry < excluded.ev_retry;
    GET DIAGNOSTICS queued = ROW_COUNT;
    RETURN queued;
END $$;


-- Have an event of a batch given to the consumer again at a time. Returns 1, or 0 where that has been said already.
CREATE OR REPLACE FUNCTION pgque.event_retry(batch_id bigint, event_id bigint, retry_time timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state := pgque._locked_batch(batch_id);
    event pgque.event_template := pgque._batch_event(batch, event_id);
BEGIN
    IF event.ev_id IS NULL THEN
        RAISE EXCEPTION 'event not found: % in batch %', event_id, batch_id;
    ELSIF retry_time IS NULL THEN
        RAISE EXCEPTION 'retry time must not be null';
    END IF;
    RETURN pgque._queue_retry(batch, event, retry_time);
END $$;


-- Have an event of a batch given to the consumer again after so many seconds. Returns 1, or 0 where that has been said
-- already.
CREATE OR REPLACE FUNCTION pgque.event_retry(batch_id bigint, event_id bigint, retry_seconds integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.event_retry(batch_id, event_id, now() + make_interval(secs => retry_seconds));
END $$;


-- Have every event of a batch given to the consumer again after so many seconds. Returns how many there are.
CREATE OR REPLACE FUNCTION pgque.batch_retry(batch_id bigint, retry_seconds integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    batch pgque._batch_state;
    queued bigint;
BEGIN
    IF pgque._holder(batch_id) IS NULL THEN
        RAISE EXCEPTION 'batch_retry: batch % not found', batch_id;
    END IF;
    batch := pgque._locked_batch(batch_id);
    IF retry_seconds IS NULL THEN
        RAISE EXCEPTION 'retry time must not be null';
    ELSIF batch.slots IS NOT NULL THEN
        RETURN pgque._retry_all_keyed(batch, now() + make_interval(secs => retry_seconds), NULL);
    END IF;
    EXECUTE 'INSERT INTO pgque.retry_queue AS r (ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, ev_retry, '
            'ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_batch) '
            'SELECT now() + make_interval(secs => $1), $2, ev_id, ev_time, NULL, $3, coalesce(ev_retry, 0) + 1, ev_type, '
            'ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, $4 FROM (' || pgque._batch_query(batch, '*') || ') AS event '
            'ON CONFLICT (ev_owner, ev_id) DO UPDATE SET ev_retry_after = excluded.ev_retry_after, '
            'ev_retry = excluded.ev_retry, ev_batch = excluded.ev_batch WHERE r.ev_retry < excluded.ev_retry'
        USING retry_seconds, batch.queue_id, batch.owner, batch_id;
    GET DIAGNOSTICS queued = ROW_COUNT;
    RETURN queued;
END $$;


-- Put an event of a batch into the dead letter queue. Returns 1, or 0 where it is dead for this consumer already.
CREATE OR REPLACE FUNCTION pgque.event_dead(
    batch_id bigint, event_id bigint, reason text, ev_time timestamptz, ev_txid xid8, ev_retry int4, ev_type text, ev_data text,
    ev_extra1 text DEFAULT NULL, ev_extra2 text DEFAULT NULL, ev_extra3 text DEFAULT NULL, ev_extra4 text DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state := pgque._locked_batch(batch_id);
    buried bigint;
BEGIN
    INSERT INTO pgque.dead_letter (dl_queue_id, dl_consumer_id, dl_reason, ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
                                   ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    VALUES (batch.queue_id, batch.consumer_id, reason, event_id, event_dead.ev_time, event_dead.ev_txid, event_dead.ev_retry,
            event_dead.ev_type, event_dead.ev_data,
            event_dead.ev_extra1, event_dead.ev_extra2, event_dead.ev_extra3, event_dead.ev_extra4)
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS buried = ROW_COUNT;
    IF batch.slots IS NOT NULL THEN
        PERFORM pgque._forget_held(batch, event_id);
    END IF;
    RETURN buried;
END $$;


-- Have one message of a batch given again after retry_after, or put into the dead letter queue once it has had its
-- max_retries. Of the message only msg_id counts.
CREATE OR REPLACE FUNCTION pgque.nack(
    batch_id bigint, msg pgque.message, retry_after interval DEFAULT '60 seconds', reason text DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state := pgque._locked_batch(batch_id);
    event pgque.event_template := pgque._batch_event(batch, msg.msg_id);
BEGIN
    IF event.ev_id IS NULL THEN
        RAISE EXCEPTION 'msg_id % not found in batch %', msg.msg_id, batch_id;
    END IF;
    IF coalesce(event.ev_retry, 0) >= batch.max_retries THEN
        RETURN pgque.event_dead(batch_id, event.ev_id, reason, event.ev_time, event.ev_txid, event.ev_retry, event.ev_type,
                                event.ev_data, event.ev_extra1, event.ev_extra2, event.ev_extra3, event.ev_extra4);
    END IF;
    RETURN pgque._queue_retry(batch, event, now() + coalesce(retry_after, interval '60 seconds'));
END $$;


-- The dead letters of a queue, the latest first.
CREATE OR REPLACE FUNCTION pgque.dlq_inspect(queue text, limit_count int DEFAULT 100) RETURNS SETOF pgque.dead_letter
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT d.* FROM pgque.dead_letter d JOIN pgque.queue q ON q.queue_id = d.dl_queue_id
     WHERE q.queue_name = queue ORDER BY d.dl_time DESC, d.dl_id DESC LIMIT limit_count;
END $$;


-- Send a dead letter to its queue again, as a new event whose id is returned.
--
-- The row is deleted first: of two sessions that replay it, the second waits for the first and finds nothing.
CREATE OR REPLACE FUNCTION pgque.dlq_replay(dead_letter_id bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dead pgque.dead_letter;
BEGIN
    DELETE FROM pgque.dead_letter d WHERE d.dl_id = dead_letter_id RETURNING * INTO dead;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'dead letter entry not found: %', dead_letter_id;
    END IF;
    RETURN (SELECT pgque.insert_event(q.queue_name, dead.ev_type, dead.ev_data,
                                      dead.ev_extra1, dead.ev_extra2, dead.ev_extra3, dead.ev_extra4)
              FROM pgque.queue q WHERE q.queue_id = dead.dl_queue_id);
END $$;


-- Send all dead letters of a queue again: how many were, how many could not be, and the first error.
--
-- Rows that another session is replaying are left to it.
CREATE OR REPLACE FUNCTION pgque.dlq_replay_all(
    queue text, OUT replayed bigint, OUT failed bigint, OUT first_error text
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    replayed := 0;
    failed := 0;
    FOR id IN SELECT d.dl_id FROM pgque.dead_letter d JOIN pgque.queue q ON q.queue_id = d.dl_queue_id
               WHERE q.queue_name = queue ORDER BY d.dl_id FOR UPDATE OF d SKIP LOCKED
    LOOP
        BEGIN
            PERFORM pgque.dlq_replay(id);
            replayed := replayed + 1;
        EXCEPTION WHEN OTHERS THEN
            failed := failed + 1;
            first_error := coalesce(first_error, format('dl_id %s: %s', id, sqlerrm));
            RAISE WARNING 'dlq_replay_all: dl_id % failed: %', id, sqlerrm;
        END;
    END LOOP;
END $$;


-- Delete the dead letters of a queue that are older than an interval. Returns how many.
CREATE OR REPLACE FUNCTION pgque.dlq_purge(queue text, older_than interval DEFAULT '30 days') RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
BEGIN
    DELETE FROM pgque.dead_letter d USING pgque.queue q
     WHERE q.queue_id = d.dl_queue_id AND q.queue_name = queue AND d.dl_time < now() - older_than;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;
