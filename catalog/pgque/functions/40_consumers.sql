-- Consumers: who reads a queue, and from which tick on.


-- The subscription of a consumer to a queue; null if there is none.
CREATE OR REPLACE FUNCTION pgque._subscription(queue text, consumer text) RETURNS pgque.subscription
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT s FROM pgque.subscription s
              JOIN pgque.queue q ON q.queue_id = s.sub_queue
              JOIN pgque.consumer c ON c.co_id = s.sub_consumer
             WHERE q.queue_name = queue AND c.co_name = consumer);
END $$;


-- The id of a consumer of this name, which is made if need be, and stays while the caller's transaction goes on.
CREATE OR REPLACE FUNCTION pgque._consumer(name text) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id integer;
BEGIN
    LOOP
        SELECT c.co_id INTO id FROM pgque.consumer c WHERE c.co_name = name FOR KEY SHARE;
        IF FOUND THEN
            RETURN id;
        END IF;
        INSERT INTO pgque.consumer (co_name) VALUES (name) ON CONFLICT (co_name) DO NOTHING;
    END LOOP;
END $$;


-- Delete those of these consumers that have no subscription any more. One that has dead letters stays with them.
CREATE OR REPLACE FUNCTION pgque._forget_consumers(ids integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Whoever registers one holds its row; what he does is seen by the next statement.
    PERFORM FROM pgque.consumer c WHERE c.co_id = ANY (ids) ORDER BY c.co_id FOR UPDATE;
    DELETE FROM pgque.consumer c
     WHERE c.co_id = ANY (ids)
       AND NOT EXISTS (SELECT FROM pgque.subscription s WHERE s.sub_consumer = c.co_id)
       AND NOT EXISTS (SELECT FROM pgque.dead_letter d WHERE d.dl_consumer_id = c.co_id);
END $$;


-- Subscribe at a tick, or at the last one. The queue's row is locked against rotation, which must see the new reader.
CREATE OR REPLACE FUNCTION pgque._register_consumer(queue text, consumer text, tick_pos bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id integer;
    number integer;
    known pgque.subscription;
    start bigint;
    changed bigint;
BEGIN
    IF consumer IS NULL OR consumer = '' THEN
        RAISE EXCEPTION 'consumer name must not be empty';
    END IF;
    SELECT q.queue_id INTO id FROM pgque.queue q WHERE q.queue_name = queue FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Event queue not created yet';
    END IF;
    IF tick_pos IS NULL THEN
        SELECT max(t.tick_id) INTO start FROM pgque.tick t WHERE t.tick_queue = id;
        IF start IS NULL THEN
            RAISE EXCEPTION 'No ticks for this queue.  Please run ticker on database.';
        END IF;
    ELSE
        SELECT t.tick_id INTO start FROM pgque.tick t WHERE t.tick_queue = id AND t.tick_id = tick_pos;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'cannot reposition, tick not found: %', tick_pos;
        END IF;
    END IF;
    number := pgque._consumer(consumer);
    known := pgque._subscription(queue, consumer);
    IF known.sub_id IS NOT NULL THEN
        IF tick_pos IS NOT NULL THEN
            IF known.sub_role = 'coop_member' THEN
                RAISE EXCEPTION 'cannot reposition consumer % of queue %: it is a subconsumer, whose group has the position',
                    consumer, queue;
            END IF;
            -- A batch that it has been given is worth nothing any more.
            UPDATE pgque.subscription
               SET sub_last_tick = start, sub_next_tick = NULL, sub_batch = NULL, sub_active = now()
             WHERE sub_id = known.sub_id;
            DELETE FROM pgque.batch_part WHERE sub_id = known.sub_id;
            PERFORM pgque._move_slots(known.sub_id, start);
        END IF;
        RETURN 0;
    END IF;
    INSERT INTO pgque.subscription (sub_queue, sub_consumer, sub_last_tick) VALUES (id, number, start)
        ON CONFLICT (sub_queue, sub_consumer) DO NOTHING;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;


-- Subscribe a consumer to a queue: it gets what is sent from the last tick on. Returns 1, or 0 where it is subscribed.
CREATE OR REPLACE FUNCTION pgque.register_consumer(queue_name text, consumer_id text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._register_consumer(queue_name, consumer_id, NULL);
END $$;


-- Subscribe a consumer to a queue from a tick on, or set it back or forward to that. Returns 1, or 0 where it was
-- subscribed.
CREATE OR REPLACE FUNCTION pgque.register_consumer_at(queue_name text, consumer_name text, tick_pos bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._register_consumer(queue_name, consumer_name, tick_pos);
END $$;


-- Remove a subscription with what it was to be given again, and the consumer with its last subscription. A group's main row
-- goes when no subconsumer is left. A member, by its name "consumer.subconsumer", leaves as by unregister_subconsumer().
CREATE OR REPLACE FUNCTION pgque.unregister_consumer(queue_name text, consumer_name text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known pgque.subscription := pgque._subscription(queue_name, consumer_name);
    main text;
BEGIN
    IF known.sub_role = 'coop_member' THEN
        SELECT c.co_name INTO main
          FROM pgque.subscription g JOIN pgque.consumer c ON c.co_id = g.sub_consumer WHERE g.sub_id = known.sub_main;
        RETURN pgque.unregister_subconsumer(queue_name, main, substr(consumer_name, length(main) + 2), 0);
    END IF;
    PERFORM FROM pgque.subscription s WHERE s.sub_id = known.sub_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    ELSIF EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = known.sub_id) THEN
        RAISE EXCEPTION 'consumer % of queue % has registered subconsumers, unregister them with unregister_subconsumer()',
            consumer_name, queue_name;
    END IF;
    DELETE FROM pgque.retry_queue WHERE ev_owner = known.sub_id;
    DELETE FROM pgque.subscription WHERE sub_id = known.sub_id;
    PERFORM pgque._forget_consumers(ARRAY[known.sub_consumer]);
    RETURN 1;
END $$;


-- Subscribe a consumer to a queue: it gets what is sent from the last tick on. Returns 1, or 0 where it is subscribed.
CREATE OR REPLACE FUNCTION pgque.subscribe(queue text, consumer text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._register_consumer(queue, consumer, NULL);
END $$;


-- Remove a consumer's subscription, with what it was to be given again. Returns how many were removed.
CREATE OR REPLACE FUNCTION pgque.unsubscribe(queue text, consumer text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.unregister_consumer(queue, consumer);
END $$;
