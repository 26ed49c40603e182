-- Reading a batch: for each queue a function whose plan is kept.
--
-- To plan a query over a queue's tables takes longer than to read a small batch. So each queue has a function
-- `_read_<id>`, whose statement is planned once in a session. What _batch_query() says for a whole batch, it does.


-- Make the function of a queue. Its arguments: the snapshots of the two ticks, the subscription whose retries are wanted,
-- and how many events at most, null for all.
CREATE OR REPLACE FUNCTION pgque._make_reader(id integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    name text := format('pgque._read_%s(pg_snapshot, pg_snapshot, integer, bigint)', id);
BEGIN
    EXECUTE format($function$
CREATE OR REPLACE FUNCTION pgque._read_%s(prev pg_snapshot, next pg_snapshot, owner integer, most bigint)
RETURNS SETOF pgque.event_template LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET work_mem = '64MB' SET plan_cache_mode = force_generic_plan AS $body$
DECLARE
    lower xid8 := pg_snapshot_xmax(prev);
    upper xid8 := pg_snapshot_xmax(next);
    still_open xid8[] := array(SELECT xid FROM pg_snapshot_xip(next) AS xid WHERE xid >= lower);
    finished xid8[] := array(SELECT xid FROM pg_snapshot_xip(prev) AS xid WHERE pg_visible_in_snapshot(xid, next));
BEGIN
    RETURN QUERY
    SELECT * FROM %2$s WHERE ev_txid >= lower AND ev_txid < upper AND ev_txid <> ALL (still_open)
                         AND (ev_owner IS NULL OR ev_owner = owner)
    UNION ALL
    SELECT * FROM %2$s WHERE ev_txid = ANY (finished) AND (ev_owner IS NULL OR ev_owner = owner)
    ORDER BY ev_id LIMIT most;
END $body$
$function$, id, pgque._event_table(id));
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
END $make$;


-- A queue has its function as long as it is there.
CREATE OR REPLACE FUNCTION pgque._reader_follows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM pgque._make_reader(NEW.queue_id);
    ELSE
        EXECUTE format('DROP FUNCTION IF EXISTS pgque._read_%s(pg_snapshot, pg_snapshot, integer, bigint)', OLD.queue_id);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER queue_has_reader AFTER INSERT OR DELETE ON pgque.queue
    FOR EACH ROW EXECUTE FUNCTION pgque._reader_follows();

SELECT pgque._make_reader(q.queue_id) FROM pgque.queue q;


-- Where a batch's events are found, ordered, as it stands after FROM: $1 and $2 are the snapshots of its ticks, $3 its owner,
-- $4 how many events at most.
CREATE OR REPLACE FUNCTION pgque._batch_source(batch pgque._batch_state) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF batch.upto_id IS NULL AND batch.slots IS NULL THEN
        RETURN 'pgque._read_' || batch.queue_id || '($1, $2, $3, $4)';
    END IF;
    RETURN '(' || pgque._in_order(batch) || ' LIMIT $4)';
END $$;
