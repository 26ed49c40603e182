-- Whether all is well, check by check, and what the scheduler's workers are doing.


-- The scheduler's workers in this database: how many refresh a stream table now, how many jobs wait for one (as the scheduler has
-- seen last), and how many there may be; `parallel` tells that more than one stream table is refreshed at a time. Sessions are
-- known by their names, and by the role of the scheduler's: other roles can give theirs any name.
CREATE OR REPLACE FUNCTION pgtrickle._workers(OUT active int, OUT queued int, OUT most int, OUT parallel boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE a.application_name ~ '^headwater engine [0-9a-f]+: refresh$')::int,
           coalesce(max(substring(a.application_name FROM '^headwater engine [0-9a-f]+: scheduler -?[0-9]+ ([0-9]{1,9})$')::int)
                    FILTER (WHERE a.pid = s.scheduler), 0),
           greatest(1, least(32, s.workers))::int, s.mode <> 'off'
    FROM (SELECT pgtrickle._lease_holder('scheduler') AS scheduler,
                 pgtrickle._seconds('pg_trickle.max_concurrent_refreshes', 4) AS workers,
                 pgtrickle._setting('pg_trickle.parallel_refresh_mode', 'on') AS mode OFFSET 0) AS s
    LEFT JOIN pg_stat_get_activity(NULL) a
        ON a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND a.usesysid = (SELECT l.role FROM pgtrickle.pgt_leases l WHERE l.name = 'scheduler')
    GROUP BY s.workers, s.mode
$$;


-- The workers that refresh by schedule: each database has its own, so the limit of all is that of this one.
CREATE OR REPLACE FUNCTION pgtrickle.worker_pool_status()
RETURNS TABLE (active_workers int, max_workers int, per_db_cap int, parallel_mode text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN w.parallel THEN w.active ELSE 0 END, w.most, w.most, CASE WHEN w.parallel THEN 'on' ELSE 'off' END
    FROM pgtrickle._workers() w
$$;


-- Replication slots of captures, and the bytes of write-ahead log that each keeps.
CREATE OR REPLACE FUNCTION pgtrickle._slots() RETURNS TABLE (slot_name text, retained_bytes bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.slot_name::text,
           pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, r.restart_lsn)::bigint
    FROM pg_replication_slots r
    WHERE r.slot_name IN (SELECT c.slot_name FROM pgtrickle.pgt_captures c
                          UNION ALL SELECT d.slot_name FROM pgtrickle.pgt_dependencies d)
$$;


-- One row a check: what is wrong, if anything. Of changes that wait the caller sees what is his business.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    total CONSTANT bigint := (SELECT count(*) FROM pgtrickle.pgt_stream_tables);
    names text;
    w record;
    tokens int;
    threshold CONSTANT float8 := pgtrickle._seconds('pg_trickle.slot_lag_warning_threshold_mb', 100);
BEGIN
    check_name := 'scheduler_running';
    IF NOT pgtrickle._scheduler_running() THEN
        severity := 'ERROR';
        detail := 'no scheduler is at work in this database: nothing is refreshed by schedule';
    ELSIF pgtrickle._setting('pg_trickle.enabled', 'on') = 'off' THEN
        severity := 'WARN';
        detail := 'pg_trickle.enabled is off: nothing is refreshed by schedule';
    ELSE
        severity := 'OK';
        detail := 'the scheduler is at work';
    END IF;
    RETURN NEXT;

    check_name := 'error_tables';
    SELECT string_agg(format('%s.%s (%s)', s.pgt_schema, s.pgt_name, s.status), ', ' ORDER BY s.pgt_schema, s.pgt_name) INTO names
    FROM pgtrickle.pgt_stream_tables s WHERE s.status IN ('ERROR', 'SUSPENDED');
    severity := CASE WHEN names IS NULL THEN 'OK' ELSE 'ERROR' END;
    detail := coalesce('in error or suspended: ' || names, format('none of %s stream tables is in error or suspended', total));
    RETURN NEXT;

    check_name := 'stale_tables';
    SELECT string_agg(format('%s.%s%s', s.pgt_schema, s.pgt_name, ' (' || h.reason || ')'), ', ' ORDER BY s.pgt_schema, s.pgt_name) INTO names
    FROM pgtrickle._may_be_stale() AS m(pgt_id) JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    LEFT JOIN pgtrickle._held_back() h USING (pgt_id) WHERE pgtrickle._is_stale(m.pgt_id);
    severity := CASE WHEN names IS NULL THEN 'OK' ELSE 'WARN' END;
    detail := coalesce('older than their schedule: ' || names, 'no stream table lacks changes for longer than its schedule');
    RETURN NEXT;

    check_name := 'needs_reinit';
    SELECT string_agg(format('%s.%s', s.pgt_schema, s.pgt_name), ', ' ORDER BY s.pgt_schema, s.pgt_name) INTO names
    FROM pgtrickle.pgt_stream_tables s WHERE s.needs_reinit;
    severity := CASE WHEN names IS NULL THEN 'OK' ELSE 'WARN' END;
    detail := coalesce('to be computed anew: ' || names, 'no stream table is to be computed anew');
    RETURN NEXT;

    check_name := 'consecutive_errors';
    SELECT string_agg(format('%s.%s (%s)', s.pgt_schema, s.pgt_name, s.consecutive_errors), ', ' ORDER BY s.pgt_schema, s.pgt_name) INTO names
    FROM pgtrickle.pgt_stream_tables s WHERE s.consecutive_errors > 0;
    severity := CASE WHEN names IS NULL THEN 'OK' ELSE 'WARN' END;
    detail := coalesce('refreshes in a row that failed: ' || names, 'the last refresh of each stream table has not failed');
    RETURN NEXT;

    check_name := 'buffer_growth';
    SELECT string_agg(format('%s (%s rows for %s)', b.source_table, b.pending_rows, b.stream_table), ', '
                      ORDER BY b.source_table, b.stream_table) INTO names
    FROM pgtrickle.change_buffer_sizes() b WHERE b.pending_rows > 10000;
    severity := CASE WHEN names IS NULL THEN 'OK' ELSE 'WARN' END;
    detail := coalesce('more than 10000 changes wait: ' || names, 'no more than 10000 changes of a source wait for a stream table');
    RETURN NEXT;

    check_name := 'slot_lag';
    SELECT string_agg(format('%s (%s)', r.slot_name, pg_size_pretty(r.retained_bytes)), ', ' ORDER BY r.slot_name) INTO names
    FROM pgtrickle._slots() r WHERE r.retained_bytes > threshold * 1048576;
    severity := CASE WHEN names IS NULL THEN 'OK' ELSE 'WARN' END;
    detail := coalesce(format('slots that keep more than %s MB of write-ahead log: ', threshold) || names,
                       format('no slot of a capture keeps more than %s MB of write-ahead log', threshold));
    RETURN NEXT;

    -- Of several workers one is left to other owners: a single one has used up all before.
    SELECT * INTO w FROM pgtrickle._workers();
    tokens := CASE WHEN (SELECT count(DISTINCT s.pgt_owner) FROM pgtrickle.pgt_stream_tables s) > 1 THEN w.most
                   ELSE greatest(1, w.most - 1) END;
    check_name := 'worker_pool';
    severity := CASE WHEN w.parallel AND w.active >= tokens THEN 'WARN' ELSE 'OK' END;
    detail := CASE WHEN NOT w.parallel THEN 'pg_trickle.parallel_refresh_mode is off'
                   WHEN w.active >= tokens THEN format('all %s workers are refreshing', tokens)
                   ELSE format('%s of %s workers are refreshing', w.active, tokens) END;
    RETURN NEXT;

    check_name := 'job_queue';
    severity := CASE WHEN w.parallel AND w.queued > 10 THEN 'WARN' ELSE 'OK' END;
    detail := CASE WHEN w.parallel THEN format('%s jobs wait for a worker', w.queued) ELSE 'pg_trickle.parallel_refresh_mode is off' END;
    RETURN NEXT;
END $$;
