-- What one can ask about stream tables. All of it is plain SQL over the catalog.


-- Seconds after which a stream table is due: its own schedule, or for 'calculated' the shortest of those that read it,
-- directly or not, or else pg_trickle.default_schedule_seconds. NULL for cron, 0 in IMMEDIATE mode.
CREATE OR REPLACE FUNCTION pgtrickle._effective_seconds(pgt_id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reader AS (
        SELECT s.pgt_relid, s.schedule FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _effective_seconds.pgt_id
        UNION
        SELECT s.pgt_relid, s.schedule
        FROM reader r
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = r.pgt_relid
        JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
        WHERE r.schedule = 'calculated' OR r.schedule IS NULL
    )
    SELECT CASE WHEN (SELECT s.schedule IS NULL FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _effective_seconds.pgt_id) THEN 0
                WHEN (SELECT s.schedule FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _effective_seconds.pgt_id)
                     = 'calculated'
                THEN coalesce(min(pgtrickle._duration_seconds(schedule)),
                              pgtrickle._setting('pg_trickle.default_schedule_seconds', '1')::bigint)
                ELSE min(pgtrickle._duration_seconds(schedule)) FILTER (WHERE pgt_relid =
                         (SELECT s.pgt_relid FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _effective_seconds.pgt_id))
           END
    FROM reader
$$;


-- Until when rows as of some time are as fresh as a stream table's schedule says; NULL for cron, and where no clock will show that time.
CREATE OR REPLACE FUNCTION pgtrickle._fresh_until(pgt_id bigint, schedule text, as_of timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    seconds bigint := CASE WHEN schedule = 'calculated' THEN pgtrickle._effective_seconds(pgt_id)
                      ELSE pgtrickle._duration_seconds(schedule) END;
BEGIN
    RETURN CASE WHEN seconds < 100000000000 THEN as_of + make_interval(secs => seconds) END;
END $$;


-- Whether the caller may know that a source changes: who may read any of it, or has the rights of the owner of a stream table
-- that does, or of pg_monitor.
CREATE OR REPLACE FUNCTION pgtrickle._may_see_changes(source oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(has_any_column_privilege(pgtrickle._caller(), source, 'SELECT'), false)
        OR pg_has_role(pgtrickle._caller(), 'pg_monitor', 'USAGE')
        OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
                   WHERE d.source_relid = source AND pg_has_role(pgtrickle._caller(), s.pgt_owner, 'USAGE'))
$$;


-- Buffer rows of a source that a frontier has not seen; NULL where the source is not captured, there is no frontier, it is
-- not the caller's business, or somebody has locked the buffer, who may just be dropping the source: for that nobody waits.
CREATE OR REPLACE FUNCTION pgtrickle._pending(source oid, frontier jsonb) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms' AS $$
DECLARE
    pending bigint;
BEGIN
    IF frontier->>'snapshot' IS NULL OR NOT pgtrickle._may_see_changes(source)
       OR NOT EXISTS (SELECT FROM pgtrickle.pgt_captures c WHERE c.source_relid = source) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT count(*) FROM pgtrickle_changes.%I c WHERE %s',
                   'changes_' || source, pgtrickle._unseen('$1', '$2', '$3'))
    INTO pending
    USING (frontier->>'snapshot')::pg_snapshot, (frontier->>'xid')::xid8, coalesce((frontier->>'change_id')::bigint, 0);
    RETURN pending;
EXCEPTION WHEN lock_not_available OR undefined_table THEN
    RETURN NULL;
END $$;


-- The bytes of a table with its indexes; NULL where there is none, or somebody has locked it: for that nobody waits.
CREATE OR REPLACE FUNCTION pgtrickle._table_bytes(relation oid) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms' AS $$
BEGIN
    RETURN pg_total_relation_size(relation);
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END $$;


-- The bytes of a source's buffer; NULL where somebody has locked it.
CREATE OR REPLACE FUNCTION pgtrickle._buffer_bytes(source oid) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._table_bytes(to_regclass('pgtrickle_changes.changes_' || source))
$$;


-- Whether a source has changes, of those with numbers up to `most`, that a frontier has not seen. True where the source is not
-- captured, or there is no frontier; NULL where it is not the caller's business, or somebody has locked the buffer.
CREATE OR REPLACE FUNCTION pgtrickle._has_unseen(source oid, frontier jsonb, most bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms' AS $$
DECLARE
    unseen boolean;
BEGIN
    IF NOT pgtrickle._may_see_changes(source) THEN
        RETURN NULL;
    ELSIF frontier->>'snapshot' IS NULL OR NOT EXISTS (SELECT FROM pgtrickle.pgt_captures c WHERE c.source_relid = source) THEN
        RETURN true;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE c."__pgt_change_id" <= $4 AND %s)',
                   'changes_' || source, pgtrickle._unseen('$1', '$2', '$3'))
    INTO unseen
    USING (frontier->>'snapshot')::pg_snapshot, (frontier->>'xid')::xid8, coalesce((frontier->>'change_id')::bigint, 0), most;
    RETURN unseen;
EXCEPTION WHEN lock_not_available OR undefined_table THEN
    RETURN NULL;
END $$;


-- Whether a stream table lacks changes of what it reads itself, of those with numbers up to `most`, or is to be computed anew, or cannot
-- be any more. Of three values: true if so, else NULL if that is not known. The tables of a view are its sources, too: the view itself has none.
CREATE OR REPLACE FUNCTION pgtrickle._lacks_changes(pgt_id bigint, most bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.needs_reinit OR s.status = 'ERROR' OR s.refresh_mode <> 'IMMEDIATE' AND (
        SELECT CASE WHEN bool_or(c.changed) THEN true WHEN count(*) = count(c.changed) THEN false END
        FROM pgtrickle.pgt_dependencies d,
             LATERAL pgtrickle._has_unseen(d.source_relid, s.frontier, _lacks_changes.most) AS c(changed)
        WHERE d.pgt_id = s.pgt_id AND d.source_type <> 'VIEW')
    FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _lacks_changes.pgt_id
$$;


-- The elected scheduler: whether its session has lately looked for work, and the number up to which changes have been there for
-- two seconds at least, which is in the session's application_name. No row where none is elected.
CREATE OR REPLACE FUNCTION pgtrickle._scheduler(OUT looks boolean, OUT settled_position bigint) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(pgtrickle._lease_beat('scheduler') < interval '10 seconds', false),
           CASE WHEN a.application_name ~ '^headwater engine [0-9a-f]+: scheduler -?[0-9]{1,18}( [0-9]+)?$'
                THEN split_part(a.application_name, ' ', 5)::bigint END
    FROM pg_stat_get_activity(NULL) a
    WHERE a.pid = pgtrickle._lease_holder('scheduler')
$$;


-- Whether a server's scheduler is at work in this database.
CREATE OR REPLACE FUNCTION pgtrickle._scheduler_running() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT s.looks FROM pgtrickle._scheduler() s), false)
$$;


-- How far a stream table and those that it reads, directly or through others, have followed their sources: whether each lacks changes,
-- of those with numbers up to `most`, and as of when its rows are. What is read by one that lacks any is left out: its own rows say
-- already how old they are. NULL where that is not the caller's business, or the changes are being locked. What is not captured may
-- have changed at any time.
CREATE OR REPLACE FUNCTION pgtrickle._followed(pgt_id bigint, most bigint)
RETURNS TABLE (pgt_id bigint, lacks boolean, data_timestamp timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE followed(pgt_id, lacks, data_timestamp) AS (
        SELECT s.pgt_id, l.lacks, s.data_timestamp
        FROM pgtrickle.pgt_stream_tables s, LATERAL pgtrickle._lacks_changes(s.pgt_id, _followed.most) AS l(lacks)
        WHERE s.pgt_id = _followed.pgt_id
        UNION
        SELECT s.pgt_id, l.lacks, coalesce(s.data_timestamp, s.created_at)
        FROM followed f
        JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = f.pgt_id AND d.source_type = 'STREAM_TABLE'
        JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid = d.source_relid,
        LATERAL pgtrickle._lacks_changes(s.pgt_id, _followed.most) AS l(lacks)
        WHERE f.lacks IS NOT TRUE
    )
    SELECT * FROM followed
$$;


-- Whether rows as of some time are older than a stream table's own schedule allows, or it is not being refreshed.
CREATE OR REPLACE FUNCTION pgtrickle._is_overdue(pgt_id bigint, as_of timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.status IN ('SUSPENDED', 'ERROR')
        OR coalesce(extract(epoch FROM clock_timestamp() - _is_overdue.as_of) > pgtrickle._effective_seconds(s.pgt_id) + 2, false)
    FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _is_overdue.pgt_id
$$;


-- Whether a stream table is older than its schedule allows, by two seconds or more, in which a refresh that is due gets done. One
-- whose sources have not changed since it was refreshed is not, however long ago that was, nor one that they have only just made
-- out of date; but where no scheduler works, every change counts. One that has all changes of the stream tables that it reads is as
-- old as they are, which is not too old as long as their own schedules allow it. NULL for cron schedules, before the first refresh, and where the caller may not know, or the change is being locked.
CREATE OR REPLACE FUNCTION pgtrickle._is_stale(pgt_id bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN e.seconds IS NOT NULL THEN
               extract(epoch FROM clock_timestamp() - s.data_timestamp) > e.seconds + 2
               AND (-- Of three values: true if one is, else NULL if one is not known.
                    SELECT CASE WHEN bool_or(f.lacks AND extract(epoch FROM clock_timestamp() - f.data_timestamp) > e.seconds + 2
                                             AND (f.pgt_id = s.pgt_id OR pgtrickle._is_overdue(f.pgt_id, f.data_timestamp)))
                                THEN true
                                WHEN count(*) = count(f.lacks) THEN false END
                    FROM (SELECT coalesce((SELECT l.settled_position FROM pgtrickle._scheduler() l WHERE l.looks),
                                          9223372036854775807) AS most OFFSET 0) AS l,
                         LATERAL pgtrickle._followed(s.pgt_id, l.most) AS f)
           END
    FROM pgtrickle.pgt_stream_tables s, pgtrickle._effective_seconds(s.pgt_id) AS e(seconds)
    WHERE s.pgt_id = _is_stale.pgt_id
$$;


-- The stream tables that may be stale: all others rest, and are not, so that _is_stale need not be asked of each. Which these are tells of
-- what changes; who is not the engine, nor has the rights of pg_monitor, gets all.
CREATE OR REPLACE FUNCTION pgtrickle._may_be_stale() RETURNS SETOF bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE suspect AS (
        SELECT s.pgt_id, s.pgt_relid FROM pgtrickle.pgt_definitions s
        WHERE NOT (pgtrickle._caller() = to_regrole(quote_ident(current_user))::oid
                   OR pg_has_role(pgtrickle._caller(), 'pg_monitor', 'USAGE'))
           OR s.needs_reinit OR s.status <> 'ACTIVE'
           OR s.pgt_id IN (SELECT * FROM pgtrickle._changed_stream_tables())
           OR s.pgt_id IN (SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d WHERE d.cdc_mode IS NULL AND d.source_type <> 'VIEW')
        UNION
        SELECT s.pgt_id, s.pgt_relid
        FROM suspect u
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = u.pgt_relid
        JOIN pgtrickle.pgt_definitions s ON s.pgt_id = d.pgt_id
    )
    SELECT u.pgt_id FROM suspect u
$$;


-- As of when, at the latest, what a stream table reads can be said to be: NULL where that is now, since none of the stream tables among
-- it lacks changes. Else it is as of when the rows are of the one that is furthest behind, through however many others it is read.
-- To be asked before the sources are read: they only become newer. A circle, which is refreshed as one, reads what any member does. What is captured from the write-ahead log, or is not the
-- caller's business, may have changed already.
CREATE OR REPLACE FUNCTION pgtrickle._read_as_of(pgt_id bigint) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT min(f.data_timestamp)
    FROM pgtrickle.pgt_definitions t
    JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = ANY (coalesce(pgtrickle._circle_members(t.scc_id), ARRAY[t.pgt_id]))
    JOIN pgtrickle.pgt_definitions s ON s.pgt_relid = d.source_relid,
    LATERAL pgtrickle._followed(s.pgt_id, 9223372036854775807) AS f
    WHERE t.pgt_id = _read_as_of.pgt_id AND d.source_type = 'STREAM_TABLE' AND (s.scc_id = t.scc_id) IS NOT TRUE
      AND (f.lacks IS NOT FALSE
           OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies p JOIN pgtrickle.pgt_captures k USING (source_relid)
                      WHERE p.pgt_id = f.pgt_id AND p.cdc_mode IS NOT NULL AND k.mode = 'WAL'))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._read_as_of(bigint) FROM PUBLIC;


-- As of when the rows of a stream table are. What triggers maintain is up to date, as far as the stream tables are that it reads.
CREATE OR REPLACE FUNCTION pgtrickle._rows_as_of(pgt_id bigint) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN s.refresh_mode <> 'IMMEDIATE' OR s.needs_reinit THEN s.data_timestamp
                ELSE least(clock_timestamp(),
                           (SELECT min(f.data_timestamp) FROM pgtrickle._followed(s.pgt_id, 9223372036854775807) f
                            WHERE f.lacks IS NOT FALSE AND f.pgt_id <> s.pgt_id)) END
    FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _rows_as_of.pgt_id
$$;


-- The status of all stream tables: mode, schedule, errors, and how old their contents are.
CREATE OR REPLACE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (name text, status text, refresh_mode text, is_populated bool, consecutive_errors int, schedule text,
               data_timestamp timestamptz, staleness interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.pgt_schema || '.' || s.pgt_name, s.status, s.refresh_mode, s.is_populated, s.consecutive_errors, s.schedule,
           r.as_of, clock_timestamp() - r.as_of
    FROM pgtrickle.pgt_stream_tables s, pgtrickle._rows_as_of(s.pgt_id) AS r(as_of)
    ORDER BY s.pgt_schema, s.pgt_name
$$;


-- The last refreshes of one stream table, the latest first.
CREATE OR REPLACE FUNCTION pgtrickle._refresh_history(pgt_id bigint, max_rows int)
RETURNS TABLE (refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text,
               status text, rows_inserted bigint, rows_deleted bigint, duration_ms float8, error_message text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT h.refresh_id, h.data_timestamp, h.start_time, h.end_time, h.action, h.status, h.rows_inserted, h.rows_deleted,
           (extract(epoch FROM h.end_time - h.start_time) * 1000)::float8, h.error_message
    FROM pgtrickle.pgt_refresh_history h
    WHERE h.pgt_id = _refresh_history.pgt_id
    ORDER BY h.refresh_id DESC
    LIMIT max_rows
$$;

-- The last refreshes of a stream table, the latest first: what was done, how many rows changed, how long it took, why
-- it failed.
CREATE OR REPLACE FUNCTION pgtrickle.get_refresh_history(name text, max_rows int DEFAULT 20)
RETURNS TABLE (refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text,
               status text, rows_inserted bigint, rows_deleted bigint, duration_ms float8, error_message text)
LANGUAGE sql STABLE AS $$
    SELECT * FROM pgtrickle._refresh_history(pgtrickle._resolve(name), max_rows)
$$;


-- Seconds since the data of a stream table was current; NULL if it has never been refreshed.
CREATE OR REPLACE FUNCTION pgtrickle._staleness(pgt_id bigint) RETURNS float8
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT extract(epoch FROM clock_timestamp() - pgtrickle._rows_as_of(_staleness.pgt_id))::float8
$$;

-- Seconds since the moment that the contents of a stream table are of; NULL if it has never been populated.
CREATE OR REPLACE FUNCTION pgtrickle.get_staleness(name text) RETURNS float8
LANGUAGE sql STABLE AS $$
    SELECT pgtrickle._staleness(pgtrickle._resolve(name))
$$;


-- Seconds by which the rows of a stream table are behind what it reads: 0 where neither it nor a stream table that it reads lacks a
-- change, else how old the rows are. What may have changed without being seen counts as changed. NULL before the first refresh.
CREATE OR REPLACE FUNCTION pgtrickle._lag(pgt_id bigint) RETURNS float8
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN s.seconds IS NOT NULL AND NOT EXISTS (
                    SELECT FROM pgtrickle._followed(_lag.pgt_id, 9223372036854775807) f WHERE f.lacks IS NOT FALSE)
                THEN 0 ELSE s.seconds END
    FROM pgtrickle._staleness(_lag.pgt_id) AS s(seconds)
$$;


-- Seconds by which the rows of a stream table are behind their sources: 0 where nothing waits for it, however long ago it was
-- refreshed; else as get_staleness.
CREATE OR REPLACE FUNCTION pgtrickle.get_lag(name text) RETURNS float8
LANGUAGE sql STABLE AS $$
    SELECT pgtrickle._lag(pgtrickle._resolve(name))
$$;


-- The tables a stream table reads. cdc_mode is NULL where changes are not captured.
CREATE OR REPLACE FUNCTION pgtrickle._sources(pgt_id bigint)
RETURNS TABLE (source_table text, source_oid bigint, source_type text, cdc_mode text, columns_used text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._source_name(d) || CASE WHEN pgtrickle._qualified(d.source_relid) IS NULL THEN ' (dropped)' ELSE '' END,
           d.source_relid::bigint, lower(d.source_type), lower(d.cdc_mode),
           array_to_string(d.columns_used, ', ')
    FROM pgtrickle.pgt_dependencies d
    WHERE d.pgt_id = _sources.pgt_id
    ORDER BY 1
$$;

-- What a stream table reads: each relation, how it is captured, and the columns that the query uses.
CREATE OR REPLACE FUNCTION pgtrickle.list_sources(name text)
RETURNS TABLE (source_table text, source_oid bigint, source_type text, cdc_mode text, columns_used text)
LANGUAGE sql STABLE AS $$
    SELECT * FROM pgtrickle._sources(pgtrickle._resolve(name))
$$;


-- How a stream table is maintained: what its plan is, who executes it, and why it is not done otherwise. The plan is
-- what the engine noted in the column "explain": operator_tree, and under strategy further properties by name; and in
-- "plan_texts". The delta SQL is the statement of a refresh for which all sources have changed; Spark's SQL is that of the
-- last refreshes that it computed, in full and from changes.
CREATE OR REPLACE FUNCTION pgtrickle._explain(pgt_id bigint) RETURNS TABLE (property text, value text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH st AS (SELECT * FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _explain.pgt_id),
    latest AS (
        SELECT h.* FROM pgtrickle.pgt_refresh_history h
        WHERE h.pgt_id = _explain.pgt_id AND h.status <> 'SKIPPED'
        ORDER BY h.refresh_id DESC LIMIT 1
    ), live(place, property, value) AS (
        SELECT p.* FROM st, LATERAL (VALUES
            (1, 'Defining Query', st.defining_query),
            (2, 'Original Query', CASE WHEN st.original_query <> st.defining_query THEN st.original_query END),
            (3, 'Refresh Mode', st.refresh_mode),
            (3.5, 'Requested Mode', nullif(st.requested_mode, st.refresh_mode)),
            (4, 'Fallback Reason', st.fallback_reason),
            (4.3, 'Rewrites', (SELECT nullif(string_agg(step, E'\n' ORDER BY n), '') FROM jsonb_array_elements_text(
                CASE jsonb_typeof(st.plan_texts->'rewrites') WHEN 'array' THEN st.plan_texts->'rewrites' ELSE '[]' END)
                WITH ORDINALITY AS r(step, n))),
            (4.6, 'Rewritten Query', st.plan_texts->>'rewritten_query'),
            (5, 'Operator Tree', st.explain->>'operator_tree'),
            (5.5, 'TopK', CASE WHEN st.topk_order_by IS NOT NULL THEN concat_ws(' ', 'ORDER BY ' || st.topk_order_by,
                                    'LIMIT ' || st.topk_limit, 'OFFSET ' || st.topk_offset) END),
            (6, 'Source Tables', (SELECT string_agg(format('%s (oid=%s)', coalesce(pgtrickle._qualified(d.source_relid),
                                             'dropped'), d.source_relid), ', ' ORDER BY d.source_relid)
                                  FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = st.pgt_id)),
            (7, 'DVM Supported', CASE WHEN st.fallback_reason IS NULL THEN 'Yes' ELSE 'No' END),
            (8, 'Schedule', st.schedule || CASE WHEN st.schedule = 'calculated'
                    THEN format(' (%s s)', pgtrickle._effective_seconds(st.pgt_id)) ELSE '' END),
            (8.5, 'Lock', (SELECT CASE i.lock WHEN 'rows' THEN 'of the rows that a statement changes, until its transaction ends'
                                             ELSE 'of the stream table, until the transaction ends' END
                           FROM pgtrickle.pgt_immediate i WHERE i.pgt_id = st.pgt_id)),
            (9, 'Status', st.status),
            (10, 'Engine', st.engine)) AS p(place, property, value)
        UNION ALL
        SELECT p.* FROM latest, LATERAL (VALUES
            (11, 'Last Refresh', format('%s, %s, %s ms', latest.action, latest.status,
                    round(extract(epoch FROM coalesce(latest.last_end_time - latest.last_start_time,
                                                   latest.end_time - latest.start_time)) * 1000, 1))),
            (12, 'Last Executor', latest.executor
                || coalesce(' (' || nullif(latest.executor_reason, '') || ')', '')),
            (12.5, 'Executor Costs', (
                SELECT string_agg(format('%s on %s: %s ms for 1000 rows (%s refreshes of about %s rows)', k.key, e.key,
                                         round((e.value->>'ms_per_row')::numeric * 1000, 2), e.value->>'refreshes',
                                         round((e.value->>'rows')::numeric)), E'\n' ORDER BY k.key, e.key)
                FROM st, jsonb_each(st.executor_costs) k, jsonb_each(k.value) e)),
            (13, 'Last Error', latest.error_message)) AS p(place, property, value)
    ), everything AS (
        SELECT place, property, value FROM live
        UNION ALL
        SELECT 100 + row_number() OVER (ORDER BY e.key), 'Strategy: ' || e.key, e.value
        FROM st, jsonb_each_text(CASE jsonb_typeof(st.explain->'strategy') WHEN 'object' THEN st.explain->'strategy'
                                 ELSE '{}' END) e
        UNION ALL
        SELECT 900 + row_number() OVER (ORDER BY p.proname), format('Function %s', p.oid::regprocedure), p.prosrc
        FROM st JOIN pgtrickle.pgt_immediate i USING (pgt_id)
        JOIN pg_proc p ON p.pronamespace IN ('pgtrickle_roles'::regnamespace, 'pgtrickle_changes'::regnamespace)
                      AND p.proname ~ format('^immediate_%s_', i.pgt_id)
        WHERE st.defining_query IS NOT NULL  -- who may not see it sees none of these
        UNION ALL
        SELECT 1000, 'Delta SQL', st.plan_texts->>'delta_sql' FROM st
        UNION ALL
        SELECT 1001, 'Spark SQL', st.plan_texts->>'spark_sql' FROM st
        UNION ALL
        SELECT 1002, 'Spark Delta SQL', st.plan_texts->>'spark_delta_sql' FROM st
    )
    SELECT property, value FROM everything WHERE value IS NOT NULL ORDER BY place
$$;

-- How a stream table is maintained: its operators and their rules, what is captured, who computed the last refresh and
-- why.
CREATE OR REPLACE FUNCTION pgtrickle.explain_st(name text) RETURNS TABLE (property text, value text)
LANGUAGE sql STABLE AS $$
    SELECT * FROM pgtrickle._explain(pgtrickle._resolve(name))
$$;


-- The last refreshes of all stream tables, the latest first.
CREATE OR REPLACE FUNCTION pgtrickle.refresh_timeline(max_rows int DEFAULT 50)
RETURNS TABLE (start_time timestamptz, stream_table text, action text, status text, rows_inserted bigint,
               rows_deleted bigint, duration_ms float8, error_message text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT h.start_time, s.pgt_schema || '.' || s.pgt_name, h.action, h.status, h.rows_inserted, h.rows_deleted,
           (extract(epoch FROM h.end_time - h.start_time) * 1000)::float8, h.error_message
    FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    ORDER BY h.start_time DESC, h.refresh_id DESC
    LIMIT max_rows
$$;


-- Refreshes of each stream table, added up over the history that is kept.
CREATE OR REPLACE FUNCTION pgtrickle.st_refresh_stats()
RETURNS TABLE (pgt_name text, pgt_schema text, status text, refresh_mode text, is_populated bool,
               total_refreshes bigint, successful_refreshes bigint, failed_refreshes bigint,
               total_rows_inserted bigint, total_rows_deleted bigint, avg_duration_ms float8,
               last_refresh_action text, last_refresh_status text, last_refresh_at timestamptz, staleness_secs float8,
               stale bool)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.pgt_name, s.pgt_schema, s.status, s.refresh_mode, s.is_populated,
           t.total, t.completed, t.failed, t.inserted, t.deleted, t.avg_ms, l.action, l.status, s.last_refresh_at,
           pgtrickle._staleness(s.pgt_id), pgtrickle._is_stale(s.pgt_id)
    FROM pgtrickle.pgt_stream_tables s
    CROSS JOIN LATERAL (
        -- A row counts once for itself, and once for each refresh that repeated it.
        SELECT coalesce(sum(1 + h.repeats), 0)::bigint AS total,
               coalesce(sum(1 + h.repeats) FILTER (WHERE h.status = 'COMPLETED'), 0)::bigint AS completed,
               coalesce(sum(1 + h.repeats) FILTER (WHERE h.status = 'FAILED'), 0)::bigint AS failed,
               coalesce(sum(h.rows_inserted), 0)::bigint AS inserted,
               coalesce(sum(h.rows_deleted), 0)::bigint AS deleted,
               (sum(extract(epoch FROM h.end_time - h.start_time + coalesce(h.repeats_duration, '0')))
                    FILTER (WHERE h.status = 'COMPLETED')
                / sum(1 + h.repeats) FILTER (WHERE h.status = 'COMPLETED' AND h.end_time IS NOT NULL) * 1000)::float8
                   AS avg_ms
        FROM pgtrickle.pgt_refresh_history h WHERE h.pgt_id = s.pgt_id) t
    LEFT JOIN LATERAL (
        SELECT h.action, h.status FROM pgtrickle.pgt_refresh_history h
        WHERE h.pgt_id = s.pgt_id ORDER BY h.refresh_id DESC LIMIT 1) l ON true
    ORDER BY s.pgt_schema, s.pgt_name
$$;


-- Changes that wait for each stream table, by source.
CREATE OR REPLACE FUNCTION pgtrickle.change_buffer_sizes()
RETURNS TABLE (stream_table text, source_table text, source_oid bigint, cdc_mode text, pending_rows bigint,
               buffer_bytes bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.pgt_schema || '.' || s.pgt_name, pgtrickle._qualified(d.source_relid), d.source_relid::bigint,
           lower(d.cdc_mode), pgtrickle._pending(d.source_relid, s.frontier),
           pgtrickle._buffer_bytes(d.source_relid)
    FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    WHERE d.cdc_mode IS NOT NULL
    ORDER BY 1, 2
$$;


-- The triggers there should be, on every source and its partitions, and whether they are there and in force: those that capture
-- changes, and those of stream tables in IMMEDIATE mode.
CREATE OR REPLACE FUNCTION pgtrickle.trigger_inventory()
RETURNS TABLE (source_table text, source_oid bigint, trigger_name text, trigger_type text, present bool, enabled bool)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(pgtrickle._qualified(r.relid), c.name || ' (dropped)'), c.source_relid::bigint, e.name,
           CASE e.event WHEN 'TRUNCATE' THEN 'TRUNCATE' ELSE 'DML' END,
           t.oid IS NOT NULL, coalesce(t.tgenabled = 'A', false)
    FROM (SELECT k.source_relid, k.relations, NULL AS name, k.mode FROM pgtrickle.pgt_captures k
          UNION ALL
          -- Whose capture is gone, though somebody reads it: it was dropped.
          SELECT DISTINCT d.source_relid, ARRAY[d.source_relid], pgtrickle._source_name(d), 'TRIGGER'
          FROM pgtrickle.pgt_dependencies d LEFT JOIN pgtrickle.pgt_captures k USING (source_relid)
          WHERE d.cdc_mode IS NOT NULL AND k.source_relid IS NULL) AS c
    CROSS JOIN LATERAL unnest(coalesce(pgtrickle._relations(c.source_relid), c.relations)) AS r(relid)
    CROSS JOIN LATERAL pgtrickle._capture_triggers(c.source_relid) AS e
    LEFT JOIN pg_trigger t ON t.tgrelid = r.relid AND t.tgname = e.name
    WHERE c.mode = 'TRIGGER'
    UNION ALL
    SELECT pgtrickle._qualified(r.relation), r.source::bigint, e.name, CASE e.part WHEN 'truncate' THEN 'TRUNCATE' ELSE 'DML' END,
           t.oid IS NOT NULL, coalesce(t.tgenabled = 'A', false)
    FROM pgtrickle.pgt_immediate i
    CROSS JOIN LATERAL pgtrickle._immediate_relations(i.pgt_id) AS r
    JOIN pg_class k ON k.oid = r.source
    JOIN LATERAL pgtrickle._immediate_triggers(i.pgt_id) AS e
        ON e.event IS NOT NULL OR e.part = 'begin'
        OR e.part = 'hold' AND (i.lock = 'whole' OR EXISTS (
            SELECT FROM pgtrickle.pgt_dependencies d
            WHERE d.pgt_id = i.pgt_id AND d.source_relid = r.source AND d.columns_used <> '{}'))
        OR k.relkind = 'p' AND e.part IN ('rows', 'inserts', 'updates', 'moved')
    LEFT JOIN pg_trigger t ON t.tgrelid = r.relation AND t.tgname = e.name
    ORDER BY 2, 1, 3
$$;


-- Everything about every stream table, and whether it is up to date.
CREATE OR REPLACE VIEW pgtrickle.stream_tables_info AS
SELECT s.*, clock_timestamp() - pgtrickle._rows_as_of(s.pgt_id) AS staleness, pgtrickle._is_stale(s.pgt_id) AS stale
FROM pgtrickle.pgt_stream_tables s;
GRANT SELECT ON pgtrickle.stream_tables_info TO PUBLIC;


-- The same for monitoring: with the history added up, and how the sources are captured.
CREATE OR REPLACE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT s.pgt_id, s.pgt_schema, s.pgt_name, s.status, s.refresh_mode, r.as_of AS data_timestamp,
       clock_timestamp() - r.as_of AS staleness, t.stale,
       t.total_refreshes, t.successful_refreshes, t.failed_refreshes, t.total_rows_inserted, t.total_rows_deleted,
       t.avg_duration_ms, t.last_refresh_action, t.last_refresh_status, t.last_refresh_at,
       s.consecutive_errors, s.schedule, s.is_populated, s.needs_reinit,
       ARRAY(SELECT DISTINCT lower(d.cdc_mode) FROM pgtrickle.pgt_dependencies d
             WHERE d.pgt_id = s.pgt_id AND d.source_type IN ('TABLE', 'STREAM_TABLE') AND d.cdc_mode IS NOT NULL
             ORDER BY 1) AS cdc_modes,
       s.scc_id, s.last_fixpoint_iterations
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle.st_refresh_stats() t ON t.pgt_schema = s.pgt_schema AND t.pgt_name = s.pgt_name,
     pgtrickle._rows_as_of(s.pgt_id) AS r(as_of);
GRANT SELECT ON pgtrickle.pg_stat_stream_tables TO PUBLIC;


-- One row that says whether anything needs attention.
CREATE OR REPLACE VIEW pgtrickle.quick_health AS
SELECT total_stream_tables, error_tables, stale_tables, scheduler_running,
       CASE WHEN total_stream_tables = 0 THEN 'EMPTY'
            WHEN suspended > 0 THEN 'CRITICAL'
            WHEN error_tables > 0 OR stale_tables > 0 THEN 'WARNING'
            ELSE 'OK' END AS status
FROM (SELECT count(*) AS total_stream_tables,
             count(*) FILTER (WHERE s.status = 'ERROR' OR s.consecutive_errors > 0) AS error_tables,
             (SELECT count(*) FROM pgtrickle._may_be_stale() AS m(pgt_id) WHERE pgtrickle._is_stale(m.pgt_id)) AS stale_tables,
             -- One that pg_trickle.enabled = off keeps from its work notes no position.
             coalesce((SELECT e.looks AND e.settled_position IS NOT NULL FROM pgtrickle._scheduler() e), false) AS scheduler_running,
             count(*) FILTER (WHERE s.status = 'SUSPENDED') AS suspended
      FROM pgtrickle.pgt_stream_tables s) AS counts;
GRANT SELECT ON pgtrickle.quick_health TO PUBLIC;


-- How each source of each stream table is captured.
CREATE OR REPLACE VIEW pgtrickle.pgt_cdc_status AS
SELECT s.pgt_schema, s.pgt_name, d.source_relid, c.relname::text AS source_name, n.nspname::text AS source_schema,
       lower(d.cdc_mode) AS cdc_mode, d.slot_name,
       CASE WHEN d.cdc_mode = 'WAL' THEN (SELECT s.confirmed_flush_lsn FROM pg_get_replication_slots() s
                                          WHERE s.slot_name = d.slot_name) END AS decoder_confirmed_lsn, d.transition_started_at
FROM pgtrickle.pgt_dependencies d
JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
LEFT JOIN pg_class c ON c.oid = d.source_relid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.source_type IN ('TABLE', 'STREAM_TABLE') AND d.cdc_mode IS NOT NULL;
GRANT SELECT ON pgtrickle.pgt_cdc_status TO PUBLIC;


-- The message of an error can hold values of the sources ('invalid input syntax for type integer: "..."'), so a refresh
-- that failed is shown to the owner's role and to monitoring roles. Everybody sees the others.
ALTER TABLE pgtrickle.pgt_refresh_history ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS errors_of_ones_own ON pgtrickle.pgt_refresh_history;
CREATE POLICY errors_of_ones_own ON pgtrickle.pgt_refresh_history FOR SELECT
    USING (error_message IS NULL OR pg_has_role('pg_monitor', 'USAGE')
           OR EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s
                      WHERE s.pgt_id = pgt_refresh_history.pgt_id AND pg_has_role(s.pgt_owner, 'USAGE')));


-- Capture by source, with the stream tables that need it.
CREATE OR REPLACE VIEW pgtrickle.pgt_change_tracking AS
SELECT c.source_relid,
       c.slot_name,
       CASE WHEN c.mode = 'WAL' THEN (SELECT w.delivered_lsn FROM pgtrickle.pgt_wal_progress w) END AS last_consumed_lsn,
       ARRAY(SELECT d.pgt_id
             FROM pgtrickle.pgt_dependencies d
             WHERE d.source_relid = c.source_relid AND d.cdc_mode IS NOT NULL
             ORDER BY d.pgt_id) AS tracked_by_pgt_ids,
       c.captured_columns,
       c.generation,
       c.last_cleaned_xid,
       c.system
FROM pgtrickle.pgt_captures c;
GRANT SELECT ON pgtrickle.pgt_change_tracking TO PUBLIC;


-- Requests of connections that bypass the server, which could not be carried out. Everybody sees his own.
CREATE OR REPLACE VIEW pgtrickle.pgt_request_errors WITH (security_invoker = true) AS
SELECT request_id, kind, arguments, requested_by::regrole::text AS requested_by, requested_at, attempts,
       error_state, error
FROM pgtrickle.pgt_requests
WHERE error IS NOT NULL;
GRANT SELECT ON pgtrickle.pgt_request_errors TO PUBLIC;


-- The engine's own tables (stream tables, change buffers, queues), their bytes with indexes (NULL where one is locked), and how many
-- of their rows are dead, as PostgreSQL's statistics have it. The largest first.
CREATE OR REPLACE FUNCTION pgtrickle.engine_tables()
RETURNS TABLE (table_name text, total_bytes bigint, live_rows bigint, dead_rows bigint, last_vacuum timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.schemaname || '.' || t.relname, pgtrickle._table_bytes(t.relid), t.n_live_tup, t.n_dead_tup,
           greatest(t.last_vacuum, t.last_autovacuum)
    FROM pg_stat_all_tables t
    WHERE t.schemaname IN ('pgtrickle', 'pgtrickle_changes', 'pgque')
    ORDER BY 2 DESC NULLS FIRST, 1
$$;


-- Who keeps what transactions have replaced or deleted in this database from being removed, the oldest first: sessions and standbys,
-- prepared transactions, replication slots. `age` is in transactions; `of_catalogs` says that rows of PostgreSQL's catalogs alone are
-- kept. A session keeps them by its snapshot, or by being in a transaction that has written. Of sessions of others a caller who is not
-- of pg_read_all_stats sees the process alone, as in pg_stat_activity, and those not at all whose age he may not know.
CREATE OR REPLACE FUNCTION pgtrickle.xmin_holders()
RETURNS TABLE (kind text, pid int, name text, role text, since timestamptz, age int, of_catalogs bool)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT h.* FROM (
        SELECT CASE a.backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS kind, a.pid, a.application_name AS name,
               a.usename::text AS role, a.xact_start AS since, greatest(age(a.backend_xmin), age(a.backend_xid)) AS age, false
        FROM pg_stat_activity a
        WHERE (a.datname = current_database() OR a.backend_type = 'walsender') AND a.pid <> pg_backend_pid()
        UNION ALL
        SELECT 'prepared transaction', NULL, p.gid, p.owner::text, p.prepared, age(p.transaction), false
        FROM pg_prepared_xacts p
        WHERE p.database = current_database()
        UNION ALL
        SELECT 'replication slot', r.active_pid, r.slot_name::text, NULL, NULL,
               age(CASE WHEN v.of_catalogs THEN r.catalog_xmin ELSE r.xmin END), v.of_catalogs
        FROM pg_replication_slots r CROSS JOIN (VALUES (false), (true)) AS v(of_catalogs)) AS h
    WHERE h.age IS NOT NULL
    ORDER BY h.age DESC, h.kind, h.name
$$;
