-- Cooperative consumers: several subconsumers share the cursor of one logical consumer.
--
-- The group's row (coop_main) has the cursor and never a batch; each member's row (coop_member, its consumer named
-- "consumer.subconsumer", sub_main the group's row) has a batch and its bounds while it works on one, and nulls else.
-- Retries are the group's: any member may get them. Batches are handed out under a lock of the group's row.


-- The group's row, locked, or null where the consumer is not registered.
CREATE OR REPLACE FUNCTION pgque._coop_lock(queue text, consumer text) RETURNS pgque.subscription
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.*
      FROM pgque.queue q
      JOIN pgque.subscription s ON s.sub_queue = q.queue_id
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
     WHERE q.queue_name = queue AND c.co_name = consumer
       FOR UPDATE OF s
$$;


-- A member's row, locked, or null. Raises 42710 where the name "consumer.subconsumer" is somebody else's.
CREATE OR REPLACE FUNCTION pgque._coop_member(main pgque.subscription, consumer text, subconsumer text)
RETURNS pgque.subscription
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pgque.subscription;
BEGIN
    SELECT s.* INTO member
      FROM pgque.subscription s JOIN pgque.consumer c ON c.co_id = s.sub_consumer
     WHERE s.sub_queue = main.sub_queue AND c.co_name = consumer || '.' || subconsumer
       FOR UPDATE OF s;
    IF member.sub_id IS NOT NULL AND member.sub_main IS DISTINCT FROM main.sub_id THEN
        RAISE EXCEPTION USING ERRCODE = '42710',
            MESSAGE = format('consumer "%s.%s" exists and is no member of cooperative consumer "%s"', consumer, subconsumer, consumer);
    END IF;
    RETURN member;
END $$;


-- Register a subconsumer, and its consumer if need be. Returns 1 for a new registration, 0 for one that exists. Raises
-- 55000 where the consumer is a normal one and may not be converted: for want of convert_normal, or for its open batch.
CREATE OR REPLACE FUNCTION pgque.register_subconsumer(
    queue text, consumer text, subconsumer text, convert_normal boolean DEFAULT false
) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    main pgque.subscription;
    fresh boolean;
BEGIN
    IF coalesce(consumer, '') = '' OR coalesce(subconsumer, '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'consumer and subconsumer must not be empty';
    END IF;
    main := pgque._coop_lock(queue, consumer);
    IF main.sub_id IS NULL THEN
        -- Of workers that start cold at the same time one creates the group.
        PERFORM FROM pgque.queue q WHERE q.queue_name = queue FOR NO KEY UPDATE;
        fresh := pgque.register_consumer(queue, consumer) = 1;
        main := pgque._coop_lock(queue, consumer);
    END IF;
    IF main.sub_role = 'coop_member' THEN
        RAISE EXCEPTION USING ERRCODE = '55000',
            MESSAGE = format('consumer "%s" is a subconsumer and cannot have subconsumers', consumer);
    ELSIF main.sub_role = 'normal' THEN
        IF NOT coalesce(fresh, false) AND NOT coalesce(convert_normal, false) THEN
            RAISE EXCEPTION USING ERRCODE = '55000',
                MESSAGE = format('consumer "%s" on queue "%s" is a normal consumer', consumer, queue),
                HINT = 'Convert it: pgque.register_subconsumer(queue, consumer, subconsumer, convert_normal => true).';
        ELSIF main.sub_batch IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = '55000',
                MESSAGE = format('consumer "%s" on queue "%s" has an active batch and cannot be converted', consumer, queue),
                HINT = format('Finish batch %s first.', main.sub_batch);
        END IF;
        UPDATE pgque.subscription s SET sub_role = 'coop_main'
         WHERE s.sub_id = main.sub_id;
    END IF;
    IF (pgque._coop_member(main, consumer, subconsumer)).sub_id IS NOT NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO pgque.subscription (sub_queue, sub_consumer, sub_role, sub_main)
    VALUES (main.sub_queue, pgque._consumer(consumer || '.' || subconsumer), 'coop_member', main.sub_id);
    RETURN 1;
END $$;


-- Remove a subconsumer; 0 where there is none. An open batch is refused (55000), or with batch_handling 1 each of its
-- events is treated as by nack(): retried after a minute, or dead once it has had its retries. When the last
-- subconsumer leaves, the consumer is a normal one again.
CREATE OR REPLACE FUNCTION pgque.unregister_subconsumer(
    queue text, consumer text, subconsumer text, batch_handling integer DEFAULT 0
) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    main pgque.subscription := pgque._coop_lock(queue, consumer);
    member pgque.subscription;
    left_open pgque._batch_state;
BEGIN
    IF batch_handling IS NULL OR batch_handling NOT IN (0, 1) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('batch_handling must be 0 or 1, not %s', coalesce(batch_handling::text, 'null'));
    ELSIF main.sub_id IS NULL OR main.sub_role <> 'coop_main' THEN
        RETURN 0;
    END IF;
    member := pgque._coop_member(main, consumer, subconsumer);
    IF member.sub_id IS NULL THEN
        RETURN 0;
    ELSIF member.sub_batch IS NOT NULL THEN
        IF batch_handling = 0 THEN
            RAISE EXCEPTION USING ERRCODE = '55000',
                MESSAGE = format('subconsumer "%s" of consumer "%s" has active batch %s', subconsumer, consumer, member.sub_batch),
                HINT = 'Finish the batch, or pass batch_handling => 1 to retry its events.';
        END IF;
        PERFORM pgque._nack_batch(member.sub_batch, main.sub_consumer, interval '60 seconds', 'subconsumer unregistered');
        left_open := pgque._batch(member.sub_batch);
        IF left_open.slots IS NOT NULL THEN
            PERFORM pgque._retry_all_keyed(left_open, now() + interval '60 seconds', left_open.max_retries);
        END IF;
        PERFORM pgque.finish_batch(member.sub_batch);
    END IF;
    DELETE FROM pgque.subscription s WHERE s.sub_id = member.sub_id;
    PERFORM pgque._forget_consumers(ARRAY[member.sub_consumer]);
    UPDATE pgque.subscription s SET sub_role = 'normal'
     WHERE s.sub_id = main.sub_id AND NOT EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = main.sub_id)
       AND NOT EXISTS (SELECT FROM pgque.ordering o WHERE o.sub_id = main.sub_id);
    RETURN 1;
END $$;


-- All events of a batch to the retry queue (of one of slots: see _retry_all_keyed), or to the dead letters of a consumer those that have had their retries.
CREATE OR REPLACE FUNCTION pgque._nack_batch(batch bigint, consumer_id int, retry_after interval, reason text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH events AS (
        SELECT e.*, coalesce(s.sub_main, s.sub_id) AS owner, s.sub_queue, coalesce(e.ev_retry, 0) >= q.queue_max_retries AS exhausted,
               EXISTS (SELECT FROM pgque.batch_part p WHERE p.sub_id = s.sub_id AND p.slots IS NOT NULL) AS keyed
          FROM pgque.subscription s
          JOIN pgque.queue q ON q.queue_id = s.sub_queue
          CROSS JOIN LATERAL pgque.get_batch_events(batch) e
         WHERE s.sub_id = (SELECT pgque._holder(batch)) AND s.sub_batch = batch
    ), retried AS (
        INSERT INTO pgque.retry_queue AS r (ev_retry_after, ev_queue, ev_owner, ev_id, ev_time, ev_retry, ev_type, ev_data,
                                            ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_batch)
        SELECT now() + retry_after, e.sub_queue, e.owner, e.ev_id, e.ev_time, coalesce(e.ev_retry, 0) + 1, e.ev_type, e.ev_data,
               e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4, batch
          FROM events e WHERE NOT e.exhausted AND NOT e.keyed
        ON CONFLICT (ev_owner, ev_id) DO UPDATE
           SET ev_retry_after = excluded.ev_retry_after, ev_retry = excluded.ev_retry, ev_batch = excluded.ev_batch
         WHERE r.ev_retry < excluded.ev_retry
    )
    INSERT INTO pgque.dead_letter (dl_queue_id, dl_consumer_id, dl_reason, ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
                                   ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    SELECT e.sub_queue, consumer_id, reason, e.ev_id, e.ev_time, e.ev_txid::text::xid8, e.ev_retry, e.ev_type, e.ev_data,
           e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
      FROM events e WHERE e.exhausted
    ON CONFLICT DO NOTHING
$$;


-- Another name of register_subconsumer.
CREATE OR REPLACE FUNCTION pgque.subscribe_subconsumer(
    queue text, consumer text, subconsumer text, convert_normal boolean DEFAULT false
) RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgque.register_subconsumer(queue, consumer, subconsumer, convert_normal)
$$;


-- Another name of unregister_subconsumer.
CREATE OR REPLACE FUNCTION pgque.unsubscribe_subconsumer(
    queue text, consumer text, subconsumer text, batch_handling integer DEFAULT 0
) RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgque.unregister_subconsumer(queue, consumer, subconsumer, batch_handling)
$$;


-- A sign of life of a subconsumer, so that its batch is not taken over. Returns how many rows it touched.
CREATE OR REPLACE FUNCTION pgque.touch_subconsumer(queue text, consumer text, subconsumer text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    touched int;
BEGIN
    UPDATE pgque.subscription m SET sub_active = clock_timestamp()
      FROM pgque.queue q, pgque.subscription g, pgque.consumer gc, pgque.consumer mc
     WHERE q.queue_name = queue AND gc.co_name = consumer AND mc.co_name = consumer || '.' || subconsumer
       AND g.sub_queue = q.queue_id AND g.sub_consumer = gc.co_id AND g.sub_role = 'coop_main'
       AND m.sub_queue = q.queue_id AND m.sub_consumer = mc.co_id AND m.sub_main = g.sub_id;
    GET DIAGNOSTICS touched = ROW_COUNT;
    RETURN touched;
END $$;


-- A batch for a subconsumer: the one it has, else that of a member that has given no sign of life for `dead_interval`,
-- under a new id, so that the old one is worth nothing; else the group's next. Nulls where there is none.
-- Registers what is not registered.
CREATE OR REPLACE FUNCTION pgque.next_batch_custom(
    queue text, consumer text, subconsumer text, min_lag interval, min_count int4, min_interval interval,
    dead_interval interval DEFAULT NULL, OUT batch_id bigint, OUT prev_tick_id bigint, OUT next_tick_id bigint
) RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    main pgque.subscription := pgque._coop_lock(queue, consumer);
    member pgque.subscription;
    dead pgque.subscription;
    done boolean;
    keyed pgque._batch_state;
BEGIN
    IF dead_interval < interval '0' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'dead_interval must not be negative';
    END IF;
    IF main.sub_id IS NOT NULL AND main.sub_role = 'coop_main' THEN
        member := pgque._coop_member(main, consumer, subconsumer);
    END IF;
    IF member.sub_id IS NULL THEN
        PERFORM pgque.register_subconsumer(queue, consumer, subconsumer);
        main := pgque._coop_lock(queue, consumer);
        member := pgque._coop_member(main, consumer, subconsumer);
    END IF;
    IF member.sub_batch IS NOT NULL THEN
        batch_id := member.sub_batch;
        prev_tick_id := member.sub_last_tick;
        next_tick_id := member.sub_next_tick;
    ELSE
        IF dead_interval IS NOT NULL THEN
            -- A member that is just finishing its batch holds its row's lock; it is not dead.
            SELECT s.* INTO dead FROM pgque.subscription s
             WHERE s.sub_main = main.sub_id AND s.sub_batch IS NOT NULL AND s.sub_active < clock_timestamp() - dead_interval
             ORDER BY s.sub_last_tick LIMIT 1 FOR UPDATE SKIP LOCKED;
        END IF;
        IF dead.sub_id IS NOT NULL THEN
            UPDATE pgque.subscription s SET sub_batch = NULL, sub_last_tick = NULL, sub_next_tick = NULL
             WHERE s.sub_id = dead.sub_id;
        END IF;
        IF EXISTS (SELECT FROM pgque.ordering o WHERE o.sub_id = main.sub_id) THEN
            -- What a dead member had is furthest behind, and is handed out first.
            PERFORM pgque._release_slots(dead.sub_id);
            keyed := pgque._next_keyed(main, member.sub_id, min_lag, min_count, min_interval);
            prev_tick_id := keyed.prev_tick_id;
            next_tick_id := keyed.next_tick_id;
            batch_id := keyed.batch_id;
        ELSIF dead.sub_id IS NOT NULL THEN
            prev_tick_id := dead.sub_last_tick;
            next_tick_id := dead.sub_next_tick;
            UPDATE pgque.batch_part p SET sub_id = member.sub_id WHERE p.sub_id = dead.sub_id;
        ELSE
            next_tick_id := pgque._find_tick(main.sub_queue, main.sub_last_tick, min_lag, min_count, min_interval);
            IF main.sub_next_tick IS NOT NULL THEN
                -- Of what lies before this tick some parts have been handed out.
                next_tick_id := (SELECT t.tick_id FROM pgque.tick t
                                  WHERE t.tick_queue = main.sub_queue AND t.tick_id = main.sub_next_tick
                                    AND (min_lag IS NULL OR t.tick_time <= clock_timestamp() - min_lag));
            END IF;
            IF next_tick_id IS NOT NULL THEN
                prev_tick_id := main.sub_last_tick;
                done := CASE WHEN main.sub_next_tick IS NULL
                                  AND (SELECT q.queue_max_batch_events FROM pgque.queue q WHERE q.queue_id = main.sub_queue) IS NULL
                             THEN true ELSE pgque._share_part(main, member.sub_id, next_tick_id) END;
                UPDATE pgque.subscription s
                   SET sub_last_tick = CASE WHEN done THEN next_batch_custom.next_tick_id ELSE s.sub_last_tick END,
                       sub_next_tick = CASE WHEN NOT done THEN next_batch_custom.next_tick_id END,
                       sub_active = clock_timestamp()
                 WHERE s.sub_id = main.sub_id;
            END IF;
        END IF;
        IF next_tick_id IS NOT NULL AND batch_id IS NULL THEN
            batch_id := nextval('pgque.batch_id_seq');
        END IF;
        IF dead.sub_id IS NOT NULL THEN
            -- All of the batch is given again. What was to be retried of it must not come once more; what has come
            -- already counts as asked for.
            DELETE FROM pgque.retry_queue r
             WHERE r.ev_owner = main.sub_id AND r.ev_batch = dead.sub_batch AND r.ev_retry_after < 'infinity';
            UPDATE pgque.retry_queue r SET ev_batch = next_batch_custom.batch_id
             WHERE r.ev_owner = main.sub_id AND r.ev_batch = dead.sub_batch;
        END IF;
    END IF;
    UPDATE pgque.subscription s
       SET sub_active = clock_timestamp(), sub_batch = next_batch_custom.batch_id,
           sub_last_tick = next_batch_custom.prev_tick_id, sub_next_tick = next_batch_custom.next_tick_id
     WHERE s.sub_id = member.sub_id;
    PERFORM set_config('pgque.holder', member.sub_id::text, false);
END $$;


-- The id of a batch for a subconsumer, or null where there is none.
CREATE OR REPLACE FUNCTION pgque.next_batch(queue text, consumer text, subconsumer text, dead_interval interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT b.batch_id FROM pgque.next_batch_custom(queue, consumer, subconsumer, NULL, NULL, NULL, dead_interval) b
$$;


-- Messages for a subconsumer, of the first batch that has any: batches without events are finished, up to a thousand in a call.
CREATE OR REPLACE FUNCTION pgque.receive_coop(
    queue text, consumer text, subconsumer text, max_return int DEFAULT 100, dead_interval interval DEFAULT NULL
) RETURNS SETOF pgque.message
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch bigint;
BEGIN
    IF max_return IS NULL OR max_return < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('max_return must be >= 1, got %s', coalesce(max_return::text, 'null'));
    END IF;
    -- Each that is passed over writes the subconsumer's row, whose versions stay until the transaction ends.
    FOR turn IN 1 .. 1000 LOOP
        batch := pgque.next_batch(queue, consumer, subconsumer, dead_interval);
        EXIT WHEN batch IS NULL;
        RETURN QUERY
            SELECT e.ev_id, batch, e.ev_type, e.ev_data, e.ev_retry, e.ev_time, e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
              FROM pgque.get_batch_events(batch) e LIMIT max_return;
        EXIT WHEN FOUND;
        PERFORM pgque.finish_batch(batch);
    END LOOP;
END $$;
