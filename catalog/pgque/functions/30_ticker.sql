-- The ticker: a tick is a snapshot, and what became visible since the tick before is a batch.
--
-- Snapshots of one queue's ticks must grow: whatever one tick has seen, the next has seen too. So a tick is made under
-- the queue's lock, and its snapshot is taken once the lock is held.


-- The present snapshot, written so that it lists every transaction in progress that has an id before the caller's.
--
-- pg_current_snapshot() leaves out the calling transaction, which would count as seen as soon as a later one has ended,
-- and those after the last one that has ended, which are not seen anyway but cannot be told from those to come.
CREATE OR REPLACE FUNCTION pgque._snapshot() RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own numeric := pg_current_xact_id()::text::numeric;
    present pg_snapshot := pg_current_snapshot();
    upper numeric := pg_snapshot_xmax(present)::text::numeric;
BEGIN
    IF own - upper > 10000 THEN
        RETURN present;  -- subtransactions have used up ids; late events of such transactions wait for the next event
    END IF;
    RETURN (SELECT concat_ws(':', coalesce(min(xid), own), greatest(upper, own),
                             coalesce(string_agg(xid::text, ',' ORDER BY xid), ''))::pg_snapshot
              FROM (SELECT xip::text::numeric AS xid FROM pg_snapshot_xip(present) AS xip
                    UNION SELECT generate_series(upper, own - 1)
                    UNION SELECT own WHERE own < upper) AS in_progress);
END $$;


-- Whether events that the last tick counted but did not see have been committed since, although no other event has been
-- sent. A sender has a transaction id before it draws an event id, and a tick reads the counter, then gets a transaction
-- id, then takes its snapshot: so such an event's transaction is one that the last tick lists as in progress.
CREATE OR REPLACE FUNCTION pgque._late_events(data_table text, last_snapshot pg_snapshot) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
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


-- One maker of ticks at a time for each queue, until its transaction ends. False if `wait` is false and there is one, or
-- the queue has gone. The lock is a row of a table that nobody else may touch.
CREATE OR REPLACE FUNCTION pgque._lock_ticks(id integer, wait boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF wait THEN
        PERFORM FROM pgque.mutex m WHERE m.queue_id = id FOR UPDATE;
    ELSE
        PERFORM FROM pgque.mutex m WHERE m.queue_id = id FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF NOT pgque._is_at_home(id) THEN
        PERFORM pgque._adopt(id);
    END IF;
    RETURN true;
END $$;


-- Ticks that are due, of all queues or of some: where there are ticker_max_count new events, or any and the last tick
-- was ticker_max_lag ago; of idle queues at intervals that grow from a second to ticker_idle_period. One whose last tick
-- is to come is looked after: the clock was set back, see _follow_clock.
--
-- A clock that is `early` makes of the default of ticker_max_lag what it can: a tick at each of its rounds. Another value
-- is kept to. One that is not makes what force_next_tick() has asked for, even if a clock was faster, and the second tick of a
-- queue at once, as PgQ's does.
DROP FUNCTION IF EXISTS pgque._due_ticks(integer[]);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgque._due_ticks(only_queues integer[], early boolean) RETURNS SETOF pgque._due_tick
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT due.queue_id, due.queue_name, due.queue_tick_seq::regclass, coalesce(due.tick_id + 1, 1), due.counted,
           due.has_events
      FROM (SELECT q.*, last.*, count.counted, clock_timestamp() - last.tick_time AS age, limits.lag, limits.forced,
                   count.counted > last.tick_event_seq
                   OR pg_snapshot_xmin(last.tick_snapshot) < pg_snapshot_xmax(last.tick_snapshot)
                      AND clock_timestamp() - last.tick_time >= limits.lag
                      AND pgque._late_events(pgque._event_table(q.queue_id), last.tick_snapshot) AS has_events
              FROM pgque.queue q
             CROSS JOIN LATERAL (
                SELECT CASE WHEN early AND q.queue_ticker_max_lag = interval '3 seconds' THEN interval '1 millisecond'
                            ELSE q.queue_ticker_max_lag END,
                       NOT early AND EXISTS (SELECT FROM pgque.forced_tick f WHERE f.queue_id = q.queue_id)
             ) AS limits (lag, forced)
             CROSS JOIN LATERAL (SELECT coalesce(pg_sequence_last_value(q.queue_event_seq::regclass), 0)) AS count (counted)
              LEFT JOIN LATERAL (SELECT t.* FROM pgque.tick t WHERE t.tick_queue = q.queue_id
                                  ORDER BY t.tick_id DESC LIMIT 1) AS last ON true
             WHERE NOT q.queue_external_ticker AND NOT q.queue_ticker_paused
               AND (only_queues IS NULL OR q.queue_id = ANY (only_queues))) AS due
     WHERE CASE
            WHEN due.tick_id IS NULL OR due.forced OR due.age < interval '-1 second' THEN true
            WHEN due.has_events THEN
                due.counted - due.tick_event_seq >= due.queue_ticker_max_count OR due.age >= due.lag
            ELSE (SELECT gap.length IS NULL AND NOT early
                         OR due.age >= least(due.queue_ticker_idle_period, greatest(interval '1 second', due.lag, gap.length * 2))
                    FROM (SELECT (SELECT due.tick_time - t.tick_time FROM pgque.tick t
                                   WHERE t.tick_queue = due.queue_id AND t.tick_id < due.tick_id
                                   ORDER BY t.tick_id DESC LIMIT 1)) AS gap (length))
           END
     ORDER BY due.queue_id;
END $$;


-- Snapshots between a queue's last tick and a new one, where there are so many events that consumers want them in
-- portions: after the ticker has slept. A portion is 20 times ticker_max_count; transactions are not divided. What is
-- below a transaction id in the new snapshot is a snapshot, too, and grows with that id.
CREATE OR REPLACE FUNCTION pgque._portions(id integer, fresh pg_snapshot, counted bigint)
RETURNS TABLE (place bigint, upto pg_snapshot, seq bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last pgque.tick;
    portion bigint;
    data_table text;
BEGIN
    SELECT * INTO last FROM pgque.tick t WHERE t.tick_queue = id ORDER BY t.tick_id DESC LIMIT 1;
    SELECT q.queue_ticker_max_count::bigint * 20, pgque._event_table(id) INTO portion, data_table
      FROM pgque.queue q WHERE q.queue_id = id;
    IF NOT counted - last.tick_event_seq > portion THEN
        RETURN;
    END IF;
    RETURN QUERY EXECUTE
        'SELECT row_number() OVER (ORDER BY upper), concat_ws('':'', '
        '         coalesce((SELECT min(xid) FROM pg_snapshot_xip($1) AS xid WHERE xid < upper), upper), upper, '
        '         coalesce((SELECT string_agg(xid::text, '','' ORDER BY xid) '
        '                     FROM pg_snapshot_xip($1) AS xid WHERE xid < upper), ''''))::pg_snapshot, '
        '       least($5, $4 + max(place)) '
        '  FROM (SELECT ev_txid AS upper, row_number() OVER (ORDER BY ev_txid) - 1 AS place FROM ' || data_table ||
        '         WHERE ev_txid >= $2 AND pg_visible_in_snapshot(ev_txid, $1)) AS event '
        ' WHERE place > 0 AND place % $3 = 0 AND upper > $2 GROUP BY upper'
        USING fresh, pg_snapshot_xmax(last.tick_snapshot), portion, last.tick_event_seq, counted;
END $$;


-- Where the clock of the machine was set back (the last tick of a queue is to come), set back what waits for it, too: no
-- more time than that can have passed. So what was to happen in a minute happens in a minute. To be called under _lock_ticks.
CREATE OR REPLACE FUNCTION pgque._follow_clock(queues integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id integer;
    ahead interval;
BEGIN
    FOREACH id IN ARRAY queues LOOP
        SELECT t.tick_time - clock_timestamp() INTO ahead
          FROM pgque.tick t WHERE t.tick_queue = id ORDER BY t.tick_id DESC LIMIT 1;
        CONTINUE WHEN ahead IS NULL OR ahead <= interval '1 second' OR NOT isfinite(ahead);
        RAISE LOG 'queue %: the clock was set back by % or more', id, ahead;
        UPDATE pgque.tick t SET tick_time = t.tick_time - ahead WHERE t.tick_queue = id;
        UPDATE pgque.queue q SET queue_switch_time = q.queue_switch_time - ahead WHERE q.queue_id = id;
        UPDATE pgque.subscription s SET sub_active = s.sub_active - ahead WHERE s.sub_queue = id;
        UPDATE pgque.retry_queue r SET ev_retry_after = r.ev_retry_after - ahead
         WHERE r.ev_queue = id AND isfinite(r.ev_retry_after);
    END LOOP;
END $$;


-- Make the ticks of these queues that are due (`early`: see _due_ticks), with one snapshot, and tell listeners of those that have events. Tick
-- ids follow one another, so that a transaction whose own snapshot is too old to see the last tick fails with a
-- serialization failure instead of taking an older snapshot for a newer one.
DROP FUNCTION IF EXISTS pgque._make_ticks(integer[], boolean);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgque._make_ticks(queues integer[], wait boolean, early boolean) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked integer[] := '{}';
    id integer;
    due pgque._due_tick[];
    snapshot pg_snapshot;
    portions bigint;
BEGIN
    FOREACH id IN ARRAY queues LOOP
        -- Who has asked for a tick gets it, not one that somebody else is making.
        IF pgque._lock_ticks(id, wait OR NOT early AND EXISTS (SELECT FROM pgque.forced_tick f WHERE f.queue_id = id)) THEN
            locked := locked || id;
        END IF;
    END LOOP;
    PERFORM pgque._follow_clock(locked);
    due := array(SELECT d FROM pgque._due_ticks(locked, early) AS d);  -- again, now that nobody else can be faster
    IF cardinality(due) = 0 THEN
        RETURN;
    END IF;
    IF NOT early THEN
        DELETE FROM pgque.forced_tick f WHERE f.queue_id = ANY (locked);
    END IF;
    snapshot := pgque._snapshot();
    FOR number IN 1 .. cardinality(due) LOOP
        INSERT INTO pgque.tick (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
        SELECT due[number].queue_id, due[number].tick_id - 1 + p.place, clock_timestamp(), p.upto, p.seq
          FROM pgque._portions(due[number].queue_id, snapshot, due[number].counted) AS p
            ON CONFLICT (tick_queue, tick_id) DO NOTHING;
        GET DIAGNOSTICS portions = ROW_COUNT;
        due[number].tick_id := due[number].tick_id + portions;
    END LOOP;
    RETURN QUERY
    INSERT INTO pgque.tick AS t (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
    SELECT d.queue_id, d.tick_id, clock_timestamp(), snapshot, d.counted FROM unnest(due) AS d
        ON CONFLICT (tick_queue, tick_id) DO NOTHING
    RETURNING t.tick_id;
    PERFORM setval(d.tick_seq, d.tick_id) FROM unnest(due) AS d;
    -- A listener that stays in a transaction keeps PostgreSQL's queue of notifications from being emptied. A tick must not
    -- fail when it is full; who listens looks from time to time anyway.
    PERFORM pg_notify('pgque_' || d.queue_name, d.tick_id::text) FROM unnest(due) AS d
      WHERE d.has_events AND pg_notification_queue_usage() < 0.9;
END $$;


-- Make a tick of each queue for which one is due. Returns how many were made.
CREATE OR REPLACE FUNCTION pgque.ticker() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due integer[] := array(SELECT d.queue_id FROM pgque._due_ticks(NULL, false) AS d);
BEGIN
    IF cardinality(due) = 0 THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(*) FROM pgque._make_ticks(due, false, false));
END $$;


-- What a clock calls (the server's, and ticker_loop()) for all queues, or for one: see _due_ticks. Returns how many ticks.
CREATE OR REPLACE FUNCTION pgque._tick_early(queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    named constant integer[] := (SELECT ARRAY[q.queue_id] FROM pgque.queue q WHERE q.queue_name = queue);
    due constant integer[] := array(SELECT d.queue_id FROM pgque._due_ticks(named, true) AS d
                                     WHERE queue IS NULL OR d.queue_name = queue);
BEGIN
    IF cardinality(due) = 0 THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(*) FROM pgque._make_ticks(due, false, true));
END $$;


-- Make a tick of one queue, if one is due. Returns its number, or NULL.
CREATE OR REPLACE FUNCTION pgque.ticker(queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such queue';
    ELSIF this.queue_external_ticker THEN
        RAISE EXCEPTION 'This queue has external tick source.';
    ELSIF this.queue_ticker_paused THEN
        RAISE EXCEPTION 'Ticker has been paused for this queue';
    END IF;
    IF NOT EXISTS (SELECT FROM pgque._due_ticks(ARRAY[this.queue_id], false)) THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT made FROM pgque._make_ticks(ARRAY[this.queue_id], true, false) AS made);
END $$;


-- Insert a tick of a given id: the first of a queue, or one of an external source. To be called under _lock_ticks.
CREATE OR REPLACE FUNCTION pgque._insert_tick(id integer, wanted bigint, at timestamptz, seq bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pgque.tick (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
    VALUES (id, wanted, at, pgque._snapshot(), seq);
    PERFORM setval(q.queue_tick_seq::regclass, wanted) FROM pgque.queue q WHERE q.queue_id = id;
END $$;


-- Record a tick that an external source has made, for a queue with an external ticker.
CREATE OR REPLACE FUNCTION pgque.ticker(queue text, tick_id bigint, "timestamp" timestamptz, event_seq bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    this pgque.queue;
    last pgque.tick;
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue;
    IF NOT FOUND OR NOT this.queue_external_ticker OR this.queue_ticker_paused THEN
        RAISE EXCEPTION 'queue not found or ticker disabled: %', queue;
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


-- Have the next ticker() make a tick of a queue, whatever the time. Returns the last tick there is.
--
-- It is made to see a burst of events. The numbers are drawn one by one, since setval() beside senders could give an id
-- out twice.
CREATE OR REPLACE FUNCTION pgque.force_next_tick(queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
BEGIN
    SELECT * INTO this FROM pgque.queue q
     WHERE q.queue_name = queue AND NOT q.queue_external_ticker AND NOT q.queue_ticker_paused;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue not found or ticks not allowed: %', queue;
    END IF;
    INSERT INTO pgque.forced_tick (queue_id) SELECT this.queue_id
     WHERE NOT EXISTS (SELECT FROM pgque.forced_tick f WHERE f.queue_id = this.queue_id);
    PERFORM count(nextval(this.queue_event_seq::regclass))
       FROM generate_series(1, this.queue_ticker_max_count::bigint * 2 + 1000);
    RETURN (SELECT t.tick_id FROM pgque.tick t WHERE t.tick_queue = this.queue_id ORDER BY t.tick_id DESC LIMIT 1);
END $$;


-- Another name of force_next_tick.
CREATE OR REPLACE FUNCTION pgque.force_tick(queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.force_next_tick(queue);
END $$;
