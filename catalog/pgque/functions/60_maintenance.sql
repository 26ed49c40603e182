-- Maintenance: events that are due again, events that were to be sent later, rotation.


-- Execute a statement that puts what waited into a queue, for each of these queues; returns how many events it were. In
-- the statement %s is the table that the queue writes to, $1 the queue's id, $2 the counter of its events. A queue that is
-- broken does not stop the others.
CREATE OR REPLACE FUNCTION pgque._move_due(task text, queues integer[], statement text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target pgque.queue;
    moved bigint;
    total bigint := 0;
BEGIN
    FOR target IN SELECT q.* FROM pgque.queue q WHERE q.queue_id = ANY (queues) ORDER BY q.queue_id LOOP
        BEGIN
            IF NOT pgque._is_at_home(target.queue_id) THEN
                PERFORM pgque._lock_ticks(target.queue_id, true);
            END IF;
            EXECUTE format(statement, pgque._event_table(target.queue_id, target.queue_cur_table))
                USING target.queue_id, target.queue_event_seq::regclass;
            GET DIAGNOSTICS moved = ROW_COUNT;
            IF moved > 0 THEN
                PERFORM nextval(target.queue_event_seq::regclass);  -- the ticker counts ids, and retries bring no new ones
            END IF;
            total := total + moved;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING '%: queue % failed: %', task, target.queue_name, sqlerrm;
        END;
    END LOOP;
    RETURN total;
END $$;


-- Move due retries back into their queues, each queue's with one statement. They keep their id and time; the
-- transaction id is this one's, so that the next tick finds them.
CREATE OR REPLACE FUNCTION pgque.maint_retry_events() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    total bigint;
BEGIN
    total := pgque._move_due('maint_retry_events',
        array(SELECT q.queue_id FROM pgque.queue q
               WHERE EXISTS (SELECT FROM pgque.retry_queue r WHERE r.ev_queue = q.queue_id AND r.ev_retry_after <= now())),
        'WITH due AS (SELECT * FROM pgque.retry_queue WHERE ev_queue = $1 AND ev_retry_after <= now() '
        '              FOR UPDATE SKIP LOCKED), '
        'kept AS (UPDATE pgque.retry_queue r SET ev_retry_after = ''infinity'' FROM due d '
        '          WHERE r.ev_owner = d.ev_owner AND r.ev_id = d.ev_id '
        '            AND EXISTS (SELECT FROM pgque.subscription s WHERE s.sub_batch = d.ev_batch)), '
        'gone AS (DELETE FROM pgque.retry_queue r USING due d '
        '          WHERE r.ev_owner = d.ev_owner AND r.ev_id = d.ev_id '
        '            AND NOT EXISTS (SELECT FROM pgque.subscription s WHERE s.sub_batch = d.ev_batch)) '
        'INSERT INTO %s (ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        'SELECT ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        'FROM due ORDER BY ev_id');
    PERFORM pgque._announce_held();
    -- Of batches that were not closed but taken over, or closed while the statement above was at work.
    DELETE FROM pgque.retry_queue r
     USING (SELECT m.ev_owner, m.ev_id FROM pgque.retry_queue m
             WHERE m.ev_retry_after = 'infinity'
               AND NOT EXISTS (SELECT FROM pgque.subscription s WHERE s.sub_batch = m.ev_batch)
               FOR UPDATE SKIP LOCKED) AS moved
     WHERE r.ev_owner = moved.ev_owner AND r.ev_id = moved.ev_id;
    RETURN total;
END $$;


-- Send an event at a later time; what is due already is sent now. Returns the entry's id, or the event's.
CREATE OR REPLACE FUNCTION pgque.send_at(queue text, type text, payload jsonb, deliver_at timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    IF deliver_at IS NULL THEN
        RAISE EXCEPTION 'deliver_at must not be null';
    ELSIF deliver_at <= now() THEN
        RETURN pgque.insert_event(queue, type, payload::text);
    END IF;
    INSERT INTO pgque.delayed_events (de_queue_name, de_deliver_at, de_type, de_payload)
    SELECT q.queue_name, deliver_at, type, payload::text FROM pgque.queue q WHERE q.queue_name = queue
    RETURNING de_id INTO id;
    IF id IS NULL THEN
        RAISE EXCEPTION 'queue not found: %', queue;
    END IF;
    RETURN id;
END $$;


-- Send the events of send_at() that are due. Returns how many.
CREATE OR REPLACE FUNCTION pgque.maint_deliver_delayed() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._move_due('maint_deliver_delayed',
        array(SELECT q.queue_id FROM pgque.queue q
               WHERE q.queue_name IN (SELECT d.de_queue_name FROM pgque.delayed_events d WHERE d.de_deliver_at <= now())
                 AND NOT q.queue_disable_insert),
        'WITH due AS (DELETE FROM pgque.delayed_events e USING '
        '  (SELECT de_id FROM pgque.delayed_events JOIN pgque.queue ON queue_name = de_queue_name '
        '    WHERE queue_id = $1 AND de_deliver_at <= now() FOR UPDATE OF delayed_events SKIP LOCKED) AS d WHERE e.de_id = d.de_id RETURNING e.*) '
        'INSERT INTO %s (ev_id, ev_time, ev_type, ev_data) SELECT nextval($2), now(), de_type, de_payload '
        'FROM (SELECT * FROM due ORDER BY de_deliver_at, de_id) AS ordered');
END $$;


-- Switch a queue to its next table, if it is time, and nobody needs what is in there any more. Returns 1 if it did.
--
-- The table is locked, then looked at: the insert of an event holds its table until its transaction ends, so whatever
-- is still to come is not there, and what is there has been committed. It goes if the tick of the slowest reader (a new
-- one begins at the last tick) has seen all of it. A transaction that has been open for hours is in the way only if it
-- sent events into this very table.
CREATE OR REPLACE FUNCTION pgque.maint_rotate_tables_step1(queue text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    this pgque.queue;
    slowest pgque.tick;
    number integer;
    target text;
    needed boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rotation must run at isolation level read committed';
    END IF;
    -- Whoever registers holds this row; then there is another time.
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM pgque.queue q WHERE q.queue_name = queue) THEN
            RAISE EXCEPTION 'queue not found: %', queue;
        END IF;
        RETURN 0;
    END IF;
    IF NOT pgque._is_at_home(this.queue_id) OR this.queue_switch_step2 IS NULL OR this.queue_switch_time + this.queue_rotation_period > clock_timestamp() THEN
        RETURN 0;
    END IF;
    SELECT * INTO slowest FROM pgque.tick t
     WHERE t.tick_queue = this.queue_id
       AND t.tick_id = coalesce((SELECT min(s.sub_last_tick) FROM pgque.subscription s WHERE s.sub_queue = this.queue_id),
                                (SELECT max(l.tick_id) FROM pgque.tick l WHERE l.tick_queue = this.queue_id));
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF NOT pgque._lock_queues(false) THEN
        RETURN 0;  -- nor now: somebody creates or drops a queue
    END IF;
    number := (this.queue_cur_table + 1) % this.queue_ntables;
    target := pgque._event_table(this.queue_id, number);
    BEGIN
        EXECUTE 'LOCK TABLE ' || target || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
    EXCEPTION WHEN lock_not_available THEN
        RETURN 0;
    END;
    EXECUTE 'SELECT EXISTS (SELECT FROM ' || target || ' WHERE ev_txid >= $1) OR EXISTS (SELECT FROM ' || target ||
            ' WHERE ev_txid = ANY ($2))'
        INTO needed
        USING pg_snapshot_xmax(slowest.tick_snapshot), array(SELECT pg_snapshot_xip(slowest.tick_snapshot));
    IF needed THEN
        RETURN 0;
    END IF;
    EXECUTE 'TRUNCATE ' || target;
    UPDATE pgque.queue q
       SET queue_cur_table = number, queue_switch_time = clock_timestamp(), queue_switch_step1 = pg_current_xact_id(),
           queue_switch_step2 = NULL
     WHERE q.queue_id = this.queue_id;
    DELETE FROM pgque.tick t WHERE t.tick_queue = this.queue_id AND t.tick_id < slowest.tick_id;
    RETURN 1;
END $$;


-- Let queues be switched again whose switch has been committed. Must not share step 1's transaction. A queue at which
-- somebody registers has another time.
CREATE OR REPLACE FUNCTION pgque.maint_rotate_tables_step2() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    confirmed bigint;
BEGIN
    UPDATE pgque.queue q SET queue_switch_step2 = pg_current_xact_id()
      FROM (SELECT s.queue_id FROM pgque.queue s
             WHERE s.queue_switch_step2 IS NULL AND s.queue_switch_step1 <> pg_current_xact_id()
               FOR NO KEY UPDATE SKIP LOCKED) AS switched
     WHERE q.queue_id = switched.queue_id;
    GET DIAGNOSTICS confirmed = ROW_COUNT;
    RETURN confirmed;
END $$;


-- Step 1 of all queues, then delayed events. What fails in a queue is reported and does not stop the others.
CREATE OR REPLACE FUNCTION pgque._maint_queues() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    operations integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rotation must run at isolation level read committed';
    END IF;
    FOREACH name IN ARRAY array(SELECT q.queue_name FROM pgque.queue q ORDER BY q.queue_id) LOOP
        BEGIN
            operations := operations + pgque.maint_rotate_tables_step1(name);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'maint: rotation of queue % failed: %', name, sqlerrm;
        END;
    END LOOP;
    RETURN operations + pgque.maint_deliver_delayed();
END $$;


-- One cycle of maintenance: the queues' own functions, rotation of all queues, and delayed events. Returns how much was
-- done.
--
-- See _call_hooks. Once the first has been at work nothing here depends on the search_path.
CREATE OR REPLACE FUNCTION pgque.maint() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    called integer := pgque._call_hooks(NULL);
BEGIN
    RETURN called OPERATOR(pg_catalog.+) pgque._maint_queues();
END $$;


-- What is to be maintained now, as PgQ's daemon asks for it: names of functions, each with the argument to call it with, or NULL for none.
-- Hooks are not among them: maint() calls them, with the rights of who attached them and not of who asks.
CREATE OR REPLACE FUNCTION pgque.maint_operations(OUT func_name text, OUT func_arg text) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'pgque.maint_rotate_tables_step1', q.queue_name FROM pgque.queue AS q
     WHERE q.queue_switch_step2 IS NOT NULL AND q.queue_switch_time + q.queue_rotation_period <= clock_timestamp()
    UNION ALL SELECT 'pgque.maint_rotate_tables_step2', NULL WHERE EXISTS (SELECT FROM pgque.queue AS q WHERE q.queue_switch_step2 IS NULL)
    UNION ALL SELECT 'pgque.maint_retry_events', NULL
    UNION ALL SELECT 'pgque.maint_deliver_delayed', NULL
$$;
