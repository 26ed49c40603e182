-- Queues that have been restored into another cluster, from a dump or by pg_upgrade.
--
-- Ticks are snapshots, and events carry transaction ids. In another cluster ids begin elsewhere: new events would seem to
-- be older than the last tick, and would never be in a batch. So a queue remembers its cluster, and before anything is
-- made of its ticks in another one they are numbered anew, with the events that each of them was the first to see.
-- Consumers stay where they are: ticks keep their ids. A timeline needs no such care: whatever a server that has been
-- promoted or recovered to a point in time has of a queue, it has of all its transactions.


-- What this cluster is called by. For a session it is a constant, which PostgreSQL computes when it plans a statement: to read it takes a
-- twentieth of the time of a small batch. Not for an index, nor for anything else that is stored.
CREATE OR REPLACE FUNCTION pgque._cluster() RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN (SELECT c.system_identifier FROM pg_control_system() AS c);


-- Whether a queue's transaction ids are this cluster's.
CREATE OR REPLACE FUNCTION pgque._is_at_home(id integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT q.queue_cluster FROM pgque.queue q WHERE q.queue_id = id)
           IS NOT DISTINCT FROM pgque._cluster();
END $$;


-- For each transaction that has events in the table, the number of the first of these snapshots, which grow, that sees
-- it; one more than there are if none does.
CREATE OR REPLACE FUNCTION pgque._first_seen(data_table text, snapshots pg_snapshot[])
RETURNS TABLE (xid xid8, number integer) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    past integer := 1;
BEGIN
    FOR xid IN EXECUTE 'SELECT DISTINCT ev_txid FROM ' || data_table || ' ORDER BY 1' LOOP
        WHILE past <= cardinality(snapshots) AND pg_snapshot_xmax(snapshots[past]) <= xid LOOP
            past := past + 1;
        END LOOP;
        number := past;
        WHILE number <= cardinality(snapshots) AND NOT pg_visible_in_snapshot(xid, snapshots[number]) LOOP
            number := number + 1;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END $$;


-- Make a queue's ticks and events mean here what they meant where they come from; nothing to do for a queue that is at
-- home. To be called under _lock_ticks.
--
-- Transaction ids below the one that brought the ticks here are nobody's who could still send, so the numbers are taken
-- from there. Where they do not suffice, ticks at which no consumer stands are left out, the
-- empty ones, then the oldest: some batches become one.
CREATE OR REPLACE FUNCTION pgque._adopt(id integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
    data_table constant text := pgque._event_table(id);
    first constant bigint := 3;  -- the first that is a transaction's
    home bigint;
    room bigint;
    standing bigint[];
    ticks bigint[];
    snapshots pg_snapshot[];
    counted bigint;
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_id = id FOR NO KEY UPDATE;
    IF NOT FOUND OR pgque._is_at_home(id) THEN
        RETURN;
    END IF;
    SELECT min(t.xmin::text::bigint), max(t.tick_event_seq), array_agg(t.tick_id ORDER BY t.tick_id),
           array_agg(t.tick_snapshot ORDER BY t.tick_id)
      INTO home, counted, ticks, snapshots
      FROM pgque.tick t WHERE t.tick_queue = id;
    room := home - first - 1;
    IF cardinality(ticks) > room THEN
        standing := array(SELECT tick FROM unnest(ticks) AS tick
                           WHERE tick = ticks[cardinality(ticks)]
                              OR EXISTS (SELECT FROM pgque.subscription s
                                          WHERE s.sub_queue = id AND tick IN (s.sub_last_tick, s.sub_next_tick))
                              OR EXISTS (SELECT FROM pgque.slot l JOIN pgque.subscription s USING (sub_id)
                                          WHERE s.sub_queue = id AND tick IN (l.last_tick, l.next_tick)));
        DELETE FROM pgque.tick t
         WHERE t.tick_queue = id AND t.tick_id <> ALL (standing)
           AND t.tick_id NOT IN (SELECT DISTINCT ticks[f.number] FROM pgque._first_seen(data_table, snapshots) AS f
                                  WHERE f.number <= cardinality(ticks) AND ticks[f.number] <> ALL (standing)
                                  ORDER BY 1 DESC LIMIT greatest(0, room - cardinality(standing)));
        SELECT array_agg(t.tick_id ORDER BY t.tick_id), array_agg(t.tick_snapshot ORDER BY t.tick_id) INTO ticks, snapshots
          FROM pgque.tick t WHERE t.tick_queue = id;
    END IF;
    IF cardinality(ticks) > room THEN
        RAISE EXCEPTION USING ERRCODE = '55000',
            MESSAGE = format('queue "%s" cannot be used here: its consumers stand at %s different ticks, and this cluster had used %s transaction ids when it was restored',
                             this.queue_name, cardinality(ticks), home),
            HINT = 'Restore it into a cluster that has been used for longer.';
    END IF;
    -- The ticker reads the counter, then takes the snapshot: of a high number are events sent here since, and a few that
    -- the last tick saw all the same. Those have transaction ids of the other cluster; if by chance they look like this
    -- one's, their event is given once more rather than not at all.
    EXECUTE 'UPDATE ' || data_table || ' AS e SET ev_txid = ($1 - 1 + CASE WHEN e.ev_id > $2 AND e.ev_txid >= $3 '
            'THEN $5 ELSE f.number END)::text::xid8 FROM pgque._first_seen($6, $4) AS f WHERE f.xid = e.ev_txid'
        USING first, counted, home::text::xid8, snapshots, cardinality(ticks) + 1, data_table;
    UPDATE pgque.tick t SET tick_snapshot = format('%1$s:%1$s:', first + n.number)::pg_snapshot
      FROM unnest(ticks) WITH ORDINALITY AS n (tick_id, number) WHERE t.tick_queue = id AND t.tick_id = n.tick_id;
    UPDATE pgque.queue q
       SET queue_cluster = (SELECT c.system_identifier FROM pg_control_system() AS c),
           queue_switch_step1 = pg_current_xact_id(), queue_switch_step2 = pg_current_xact_id()
     WHERE q.queue_id = id;
    PERFORM nextval(this.queue_event_seq::regclass);  -- so that a tick is due
    RAISE LOG 'queue "%" has come from another cluster: its ticks and events have new transaction ids', this.queue_name;
END $$;
