-- The ticker: a tick is a snapshot, and what became visible since the tick before is a batch.
--
-- Snapshots of one queue's ticks must grow: whatever one tick has seen, the next has seen too. So a tick is made under
-- the queue's lock, and its snapshot is taken once the lock is held.


-- The present snapshot, with the calling transaction itself as not yet seen. pg_current_snapshot() leaves it out of
-- the list of those in progress, so that it would count as seen as soon as any later transaction has ended.
CREATE OR REPLACE FUNCTION pgque._snapshot() RETURNS pg_snapshot LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    present pg_snapshot := pg_current_snapshot();
    own xid8 := pg_current_xact_id_if_assigned();
BEGIN
    IF own IS NULL OR own >= pg_snapshot_xmax(present) THEN
        RETURN present;
    END IF;
    RETURN (SELECT concat_ws(':', least(own::text::numeric, pg_snapshot_xmin(present)::text::numeric),
                             pg_snapshot_xmax(present), string_agg(xid::text, ',' ORDER BY xid))::pg_snapshot
              FROM (SELECT own AS xid UNION SELECT pg_snapshot_xip(present)) AS open);
END $$;


-- Insert a tick of a queue and return its id. To be called under _lock_ticks. Ids follow one another (those of an
-- external ticker are given), so that a transaction whose snapshot is too old to see the last tick fails with a
-- serialization failure instead of taking an older snapshot for a newer one.
CREATE OR REPLACE FUNCTION pgque._insert_tick(id integer, wanted bigint, at timestamptz, seq bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last pgque.tick;
    counted bigint;
    made bigint;
BEGIN
    -- The count first, then the snapshot (in another statement): see _late_events.
    SELECT coalesce(seq, pg_sequence_last_value(q.queue_event_seq::regclass), 0) INTO counted
      FROM pgque.queue q WHERE q.queue_id = id;
    SELECT * INTO last FROM pgque.tick WHERE tick_queue = id ORDER BY tick_id DESC LIMIT 1;
    INSERT INTO pgque.tick (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
    SELECT id, coalesce(wanted, last.tick_id + 1, 1), at, pgque._snapshot(),
           greatest(counted, last.tick_event_seq)
        ON CONFLICT (tick_queue, tick_id) DO NOTHING
    RETURNING tick_id INTO made;
    IF made IS NOT NULL THEN
        PERFORM setval(q.queue_tick_seq::regclass, made) FROM pgque.queue q WHERE q.queue_id = id;
    END IF;
    RETURN made;
END $$;


-- One maker of ticks at a time for each queue, until its transaction ends. False if `wait` is false and there is one.
CREATE OR REPLACE FUNCTION pgque._lock_ticks(id integer, wait boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF wait THEN
        PERFORM pg_advisory_xact_lock('pgque.tick'::regclass::oid::integer, id);
        RETURN true;
    END IF;
    RETURN pg_try_advisory_xact_lock('pgque.tick'::regclass::oid::integer, id);
END $$;


-- Whether events that the last tick counted but did not see have been committed since, although no other event has been
-- sent. A sender has a transaction id before it draws an event id, and a tick reads the counter before it takes its
-- snapshot, so such an event's transaction is one that the last tick lists as in progress.
CREATE OR REPLACE FUNCTION pgque._late_events(data_table text, last_snapshot pg_snapshot) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    finished xid8[] := array(SELECT xid FROM pg_snapshot_xip(last_snapshot) AS xid
                              WHERE pg_visible_in_snapshot(xid, pg_current_snapshot()));
    late boolean;
BEGIN
    IF cardinality(finished) = 0 THEN
        RETURN false;
    END IF;
    EXECUTE 'SELECT EXISTS (SELECT FROM ' || data_table || ' WHERE ev_txid = ANY ($1))' INTO late USING finished;
    RETURN late;
END $$;


-- Queues for which a tick is due: those with ticker_max_count new events, or any new events and the last tick
-- ticker_max_lag ago, and idle ones at intervals that grow from a second to ticker_idle_period.
CREATE OR REPLACE FUNCTION pgque._due_queues(only_queue integer) RETURNS SETOF pgque.queue
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY
    SELECT q.*
      FROM pgque.queue q
      LEFT JOIN LATERAL (
            SELECT t.tick_id, t.tick_event_seq, clock_timestamp() - t.tick_time AS age, t.tick_time, t.tick_snapshot
              FROM pgque.tick t WHERE t.tick_queue = q.queue_id ORDER BY t.tick_id DESC LIMIT 1
      ) AS last ON true
     WHERE NOT q.queue_external_ticker AND NOT q.queue_ticker_paused
       AND (only_queue IS NULL OR q.queue_id = only_queue)
       AND CASE
            WHEN last.tick_id IS NULL THEN true
            WHEN coalesce(pg_sequence_last_value(q.queue_event_seq::regclass), 0) > last.tick_event_seq THEN
                pg_sequence_last_value(q.queue_event_seq::regclass) - last.tick_event_seq >= q.queue_ticker_max_count
                OR last.age >= q.queue_ticker_max_lag
            WHEN pg_snapshot_xmin(last.tick_snapshot) < pg_snapshot_xmax(last.tick_snapshot)
                 AND last.age >= q.queue_ticker_max_lag
                 AND pgque._late_events(q.queue_data_pfx, last.tick_snapshot) THEN true
            ELSE last.age >= least(q.queue_ticker_idle_period, greatest(interval '1 second', q.queue_ticker_max_lag,
                (SELECT (last.tick_time - t.tick_time) * 2 FROM pgque.tick t
                  WHERE t.tick_queue = q.queue_id AND t.tick_id < last.tick_id ORDER BY t.tick_id DESC LIMIT 1)))
           END
     ORDER BY q.queue_id;
END $$;


-- Make a tick of a queue, if one is due, under its lock; tell listeners if the tick has events.
CREATE OR REPLACE FUNCTION pgque._tick(id integer, wait boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    queue pgque.queue;
    before pgque.tick;
    made pgque.tick;
BEGIN
    IF NOT pgque._lock_ticks(id, wait) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO queue FROM pgque._due_queues(id);
    IF NOT FOUND THEN
        RETURN NULL;  -- another ticker was faster
    END IF;
    SELECT * INTO before FROM pgque.tick t WHERE t.tick_queue = id ORDER BY t.tick_id DESC LIMIT 1;
    made.tick_id := pgque._insert_tick(id, NULL, clock_timestamp(), NULL);
    SELECT * INTO made FROM pgque.tick t WHERE t.tick_queue = id AND t.tick_id = made.tick_id;
    IF made.tick_event_seq > before.tick_event_seq
       OR pg_snapshot_xmin(before.tick_snapshot) < pg_snapshot_xmax(before.tick_snapshot)
          AND pgque._late_events(queue.queue_data_pfx, before.tick_snapshot) THEN
        PERFORM pg_notify('pgque_' || queue.queue_name, made.tick_id::text);
    END IF;
    RETURN made.tick_id;
END $$;


CREATE OR REPLACE FUNCTION pgque.ticker() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id integer;
    ticked bigint := 0;
BEGIN
    FOR id IN SELECT queue_id FROM pgque._due_queues(NULL) LOOP
        IF pgque._tick(id, false) IS NOT NULL THEN
            ticked := ticked + 1;
        END IF;
    END LOOP;
    RETURN ticked;
END $$;


CREATE OR REPLACE FUNCTION pgque.ticker(queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue not found: %', queue;
    ELSIF this.queue_external_ticker THEN
        RAISE EXCEPTION 'This queue has external tick source.';
    ELSIF this.queue_ticker_paused THEN
        RAISE EXCEPTION 'Ticker has been paused for this queue';
    END IF;
    IF NOT EXISTS (SELECT FROM pgque._due_queues(this.queue_id)) THEN
        RETURN NULL;
    END IF;
    RETURN pgque._tick(this.queue_id, true);
END $$;


-- A tick from an external source.
CREATE OR REPLACE FUNCTION pgque.ticker(queue text, tick_id bigint, "timestamp" timestamptz, event_seq bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    this pgque.queue;
    last pgque.tick;
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue not found: %', queue;
    ELSIF NOT this.queue_external_ticker OR this.queue_ticker_paused THEN
        RAISE EXCEPTION 'queue not found or ticker not allowed: %', queue;
    END IF;
    IF tick_id IS NULL OR event_seq IS NULL THEN
        RAISE EXCEPTION 'tick_id and event_seq must not be null';
    END IF;
    PERFORM pgque._lock_ticks(this.queue_id, true);
    SELECT * INTO last FROM pgque.tick t WHERE t.tick_queue = this.queue_id ORDER BY t.tick_id DESC LIMIT 1;
    IF tick_id <= last.tick_id THEN
        RAISE EXCEPTION 'tick_id must increase: % is not above %', tick_id, last.tick_id;
    ELSIF event_seq < last.tick_event_seq THEN
        RAISE EXCEPTION 'event_seq must not move backwards: % is below %', event_seq, last.tick_event_seq;
    END IF;
    PERFORM pgque._insert_tick(this.queue_id, tick_id, coalesce("timestamp", clock_timestamp()), event_seq);
    IF event_seq > coalesce(pg_sequence_last_value(this.queue_event_seq::regclass), 0) THEN
        PERFORM setval(this.queue_event_seq::regclass, event_seq);
    END IF;
    IF event_seq > last.tick_event_seq THEN
        PERFORM pg_notify('pgque_' || this.queue_name, tick_id::text);
    END IF;
    RETURN tick_id;
END $$;


-- Make the next ticker() see a burst of events. The numbers are drawn one by one, since setval() beside senders could
-- give an id out twice.
CREATE OR REPLACE FUNCTION pgque.force_next_tick(queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
BEGIN
    SELECT * INTO this FROM pgque.queue q
     WHERE q.queue_name = queue AND NOT q.queue_external_ticker AND NOT q.queue_ticker_paused;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue not found or ticker not allowed: %', queue;
    END IF;
    PERFORM count(nextval(this.queue_event_seq::regclass))
       FROM generate_series(1, this.queue_ticker_max_count::bigint * 2 + 1000);
    RETURN (SELECT t.tick_id FROM pgque.tick t WHERE t.tick_queue = this.queue_id ORDER BY t.tick_id DESC LIMIT 1);
END $$;


CREATE OR REPLACE FUNCTION pgque.force_tick(queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.force_next_tick(queue);
END $$;
