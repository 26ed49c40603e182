-- Oversized batches in parts: a queue's max_batch_events.
--
-- What lies between two ticks may be more than a consumer can take: the ticker has slept, or a transaction has sent millions
-- of events. Where it is more than the queue's max_batch_events, it is handed out in parts, in the order of the events' ids.
-- Each part is a batch of its own, with its own id, closed by itself. Until the last one has been closed the consumer stands
-- where it stood: `batch_part` has how far it is, and `sub_next_tick` remains the tick at which the last part ends. Of a
-- group, each member that asks gets the next part.
--
-- A part is read by the ids of its events. So that it costs what the part has, and not what all parts have, a queue with
-- this setting has an index of ids, a BRIN one: small, and nearly free for senders.


-- The indexes are made when max_batch_events is first set, and stay.
CREATE OR REPLACE FUNCTION pgque._index_ids() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = '' AS $$
BEGIN
    FOR number IN 0 .. NEW.queue_ntables - 1 LOOP
        EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s USING brin (ev_id) WITH (pages_per_range = 16)',
                       format('event_%s_%s_id_idx', NEW.queue_id, number), pgque._event_table(NEW.queue_id, number));
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER queue_indexes_ids AFTER UPDATE OF queue_max_batch_events ON pgque.queue
    FOR EACH ROW WHEN (NEW.queue_max_batch_events IS NOT NULL) EXECUTE FUNCTION pgque._index_ids();


-- Bring the indexes of ids up to date; a queue that had no limit when its window was begun has none.
CREATE OR REPLACE FUNCTION pgque._summarize_ids(data_table text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM brin_summarize_new_values(i.indexrelid)
       FROM pg_inherits h JOIN pg_index i ON i.indrelid = h.inhrelid JOIN pg_class c ON c.oid = i.indexrelid
      WHERE h.inhparent = data_table::regclass AND c.relname ~ '^event_\d+_\d_id_idx$';
END $$;


-- The query of the ids of a batch's events, all or those of its slots.
CREATE OR REPLACE FUNCTION pgque._ids_query(batch pgque._batch_state) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN batch.slots IS NULL THEN pgque._batch_query(batch, 'ev_id') ELSE pgque._slot_query(batch) END;
END $$;


-- The id of the last event of the part that begins after `after_id`. Looks at ever more ids: there may be gaps.
CREATE OR REPLACE FUNCTION pgque._part_end(batch pgque._batch_state) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '64MB' AS $$
DECLARE
    step bigint := batch.part_size;
    number bigint;
    last bigint;
BEGIN
    IF batch.part_size IS NULL THEN
        RETURN batch.last_id;  -- there is no limit any more
    END IF;
    LOOP
        batch.upto_id := least(batch.after_id + step, batch.last_id);
        EXECUTE 'SELECT count(*), max(ev_id) FROM (SELECT ev_id FROM (' || pgque._ids_query(batch) ||
                ') AS event ORDER BY 1 LIMIT $1) AS part' INTO number, last USING batch.part_size;
        IF number = batch.part_size THEN
            RETURN last;
        ELSIF batch.upto_id = batch.last_id THEN
            RETURN batch.last_id;
        END IF;
        step := step * 4;
    END LOOP;
END $$;


-- A batch cut to the part whose turn it is, which ends at `upto_id`; as it is where it has no more than max_batch_events.
CREATE OR REPLACE FUNCTION pgque._cut(batch pgque._batch_state) RETURNS pgque._batch_state
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    number bigint;
    first bigint;
    last bigint;
BEGIN
    IF batch.last_id IS NULL THEN
        IF batch.part_size IS NULL THEN
            RETURN batch;
        END IF;
        EXECUTE 'SELECT count(*), min(ev_id), max(ev_id) FROM (' || pgque._ids_query(batch) || ') AS event'
            INTO number, first, last;
        IF number <= batch.part_size THEN
            RETURN batch;
        END IF;
        batch.after_id := first - 1;
        batch.last_id := last;
        PERFORM pgque._summarize_ids(batch.data_table);
    END IF;
    batch.upto_id := pgque._part_end(batch);
    RETURN batch;
END $$;


-- A batch that is to be handed out, cut to the part whose turn it is. Its subscription is locked: so how far it is is read anew.
CREATE OR REPLACE FUNCTION pgque._begin_part(batch pgque._batch_state) RETURNS pgque._batch_state
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    batch.upto_id := NULL;
    SELECT p.after_id, p.last_id INTO batch.after_id, batch.last_id
      FROM pgque.batch_part p WHERE p.sub_id = batch.sub_id AND p.prev_tick = batch.prev_tick_id;
    batch := pgque._cut(batch);
    IF batch.upto_id IS NULL THEN
        RETURN batch;
    END IF;
    INSERT INTO pgque.batch_part (sub_id, prev_tick, next_tick, after_id, upto_id, last_id)
    VALUES (batch.sub_id, batch.prev_tick_id, batch.next_tick_id, batch.after_id, batch.upto_id, batch.last_id)
        ON CONFLICT (sub_id) DO UPDATE
       SET prev_tick = excluded.prev_tick, next_tick = excluded.next_tick,
           after_id = excluded.after_id, upto_id = excluded.upto_id, last_id = excluded.last_id;
    RETURN batch;
END $$;


-- A subscription has closed the part that it had: it goes back to where it stood, unless that was the last.
CREATE OR REPLACE FUNCTION pgque._close_part(id integer, closed bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part pgque.batch_part;
BEGIN
    UPDATE pgque.batch_part p SET after_id = p.upto_id, upto_id = NULL
     WHERE p.sub_id = id AND p.upto_id < p.last_id AND p.slots IS NULL
    RETURNING * INTO part;
    IF FOUND THEN
        UPDATE pgque.subscription s SET sub_last_tick = part.prev_tick, sub_next_tick = part.next_tick WHERE s.sub_id = id;
    ELSIF EXISTS (SELECT FROM pgque.batch_part p WHERE p.sub_id = id AND p.slots IS NOT NULL) THEN
        PERFORM pgque._close_slots(id, closed);
    ELSE
        DELETE FROM pgque.batch_part p WHERE p.sub_id = id;
    END IF;
END $$;


-- What a group hands out to a member: all up to a tick, or the next part of it. True where nothing of it is left then.
CREATE OR REPLACE FUNCTION pgque._share_part(main pgque.subscription, member integer, upto bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state;
BEGIN
    IF NOT pgque._is_at_home(main.sub_queue) THEN
        PERFORM pgque._lock_ticks(main.sub_queue, true);
    END IF;
    SELECT NULL, q.queue_id, q.queue_name, pgque._event_table(q.queue_id), q.queue_max_retries,
           main.sub_id, main.sub_id, main.sub_consumer, NULL,
           prev.tick_id, next.tick_id, prev.tick_snapshot, next.tick_snapshot,
           p.after_id, NULL, p.last_id, q.queue_max_batch_events, main.sub_role, true, NULL, NULL
      INTO batch
      FROM pgque.queue q
      JOIN pgque.tick prev ON prev.tick_queue = q.queue_id AND prev.tick_id = main.sub_last_tick
      JOIN pgque.tick next ON next.tick_queue = q.queue_id AND next.tick_id = upto
      LEFT JOIN pgque.batch_part p ON p.sub_id = main.sub_id
     WHERE q.queue_id = main.sub_queue;
    IF num_nulls(batch.part_size, batch.last_id) = 2 THEN
        RETURN true;
    END IF;
    batch := pgque._begin_part(batch);
    IF batch.upto_id IS NULL THEN
        RETURN true;
    END IF;
    INSERT INTO pgque.batch_part (sub_id, prev_tick, next_tick, after_id, upto_id, last_id)
    VALUES (member, batch.prev_tick_id, batch.next_tick_id, batch.after_id, batch.upto_id, batch.upto_id);
    IF batch.upto_id < batch.last_id THEN
        UPDATE pgque.batch_part p SET after_id = p.upto_id, upto_id = NULL WHERE p.sub_id = main.sub_id;
        RETURN false;
    END IF;
    DELETE FROM pgque.batch_part p WHERE p.sub_id = main.sub_id;
    RETURN true;
END $$;
