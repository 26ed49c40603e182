-- The second bracket of a refresh: what it leaves.


-- End a refresh, or note that one failed (then from a transaction of its own). Keys of the result, with defaults:
--   status (COMPLETED | FAILED | SKIPPED; required), action (NO_DATA | FULL | DIFFERENTIAL | REINITIALIZE | SKIP;
--   required unless FAILED: then it can be what the stream table's state asks for), seconds (that it has taken; since its transaction began), data_timestamp (transaction's; less where what was read
--   was older: _read_as_of), frontier (unchanged),
--   rows_inserted, rows_updated, rows_deleted, delta_row_count (0), merge_strategy_used, was_full_fallback (false),
--   error_message, initiated_by (SCHEDULER | MANUAL | INITIAL), executor, executor_reason,
--   last_full_ms, auto_threshold, is_populated, needs_reinit (after FULL and REINITIALIZE: false), row_id_salt, permanent (false: an
--   error that will not go away by itself sets status ERROR at once), record (true: write a history row),
--   job ({"enqueued" (microseconds since 1970), "attempt", "scheduler", "worker" (processes), "unit" (where it has several stream
--   tables)}; none), fixpoint_iteration (none), executor_costs (unchanged), memory (valid for this frontier; none), alert ({"event", "reason"} for those who listen on pg_trickle_alert; none).
-- Returns {"refresh_id", "status", "consecutive_errors"} of the stream table. After pg_trickle.max_consecutive_errors
-- (3) failures in a row it is SUSPENDED.
CREATE OR REPLACE FUNCTION pgtrickle._finish_refresh(pgt_id bigint, result jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st record;
    ok boolean := result->>'status' IS DISTINCT FROM 'FAILED';
    done boolean := result->>'status' = 'COMPLETED';
    errors int;
    new_status text;
    new_id bigint;
    -- All by this clock: the engine's may be another machine's.
    ended timestamptz := clock_timestamp();
    started timestamptz := CASE WHEN result ? 'seconds'
                                THEN ended - make_interval(secs => greatest(0, least((result->>'seconds')::float8, 1e7)))
                                ELSE now() END;
    as_of timestamptz := least((result->>'data_timestamp')::timestamptz, now());
    -- Until when the rows that are there now are as fresh as the schedule says.
    deadline timestamptz;
BEGIN
    -- Not the whole row: its long columns would be read for nothing.
    SELECT s.pgt_id, s.pgt_owner, s.pgt_name, s.status, s.consecutive_errors, s.data_timestamp, s.created_at, s.schedule,
           s.needs_reinit, s.is_populated, s.refresh_mode,
           s.is_populated AND NOT s.needs_reinit AND result->>'action' <> 'REINITIALIZE' AS follows INTO st
    FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _finish_refresh.pgt_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with ID %s does not exist', pgt_id);
    END IF;
    PERFORM pgtrickle._check_owner(st.pgt_owner, st.pgt_name);
    IF result->>'data_timestamp' IS NOT NULL THEN
        PERFORM pgtrickle._check_times((result->>'data_timestamp')::timestamptz);
    END IF;
    -- What has once been true of the rows stays so: they only become newer, unless they are those of another query.
    as_of := CASE WHEN st.follows AND as_of < now() THEN greatest(as_of, least(st.data_timestamp, now())) ELSE as_of END;
    deadline := pgtrickle._fresh_until(
        st.pgt_id, st.schedule, CASE WHEN done THEN as_of ELSE coalesce(st.data_timestamp, st.created_at) END);
    errors := CASE WHEN done THEN 0 WHEN ok THEN st.consecutive_errors ELSE st.consecutive_errors + 1 END;
    new_status := st.status;
    IF NOT ok AND errors >= pgtrickle._setting('pg_trickle.max_consecutive_errors', '3')::int THEN
        new_status := 'SUSPENDED';
    ELSIF NOT ok AND (result->>'permanent')::boolean THEN
        new_status := 'ERROR';
    ELSIF done AND st.status IN ('INITIALIZING', 'ERROR') THEN
        new_status := 'ACTIVE';
    END IF;
    UPDATE pgtrickle.pgt_definitions s
    SET frontier = CASE WHEN done AND result ? 'frontier'
                        THEN pgtrickle._stamped(result->'frontier') || jsonb_build_object('at', now()) ELSE s.frontier END,
        data_timestamp = CASE WHEN done THEN as_of ELSE s.data_timestamp END,
        last_refresh_at = CASE WHEN done THEN clock_timestamp() ELSE s.last_refresh_at END,
        status = new_status,
        consecutive_errors = errors,
        is_populated = CASE WHEN done THEN coalesce((result->>'is_populated')::boolean,
                                                    s.is_populated OR result->>'action' IN ('FULL', 'REINITIALIZE'))
                            ELSE s.is_populated END,
        needs_reinit = coalesce((result->>'needs_reinit')::boolean,
                                s.needs_reinit AND NOT (done AND result->>'action' IN ('FULL', 'REINITIALIZE'))),
        last_full_ms = coalesce((result->>'last_full_ms')::double precision, s.last_full_ms),
        auto_threshold = coalesce((result->>'auto_threshold')::double precision, s.auto_threshold),
        row_id_salt = coalesce((result->>'row_id_salt')::bigint, s.row_id_salt),
        executor_costs = coalesce(result->'executor_costs', s.executor_costs),
        plan_texts = CASE WHEN result ? 'texts' AND NOT s.plan_texts @> (result->'texts')
                          THEN s.plan_texts || (result->'texts') ELSE s.plan_texts END,
        updated_at = clock_timestamp()
    WHERE s.pgt_id = st.pgt_id;
    IF done AND result->>'action' <> 'NO_DATA' AND EXISTS (SELECT FROM pgtrickle.pgt_published) THEN
        PERFORM pgtrickle._note_for_publication(st.pgt_id);
    END IF;
    IF done AND result ? 'frontier' AND result ? 'memory' THEN
        INSERT INTO pgtrickle.pgt_memory AS m (pgt_id, frontier, memory)
        SELECT s.pgt_id, s.frontier, result->'memory' FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = st.pgt_id
        ON CONFLICT ON CONSTRAINT pgt_memory_pkey DO UPDATE SET frontier = excluded.frontier, memory = excluded.memory;
    END IF;
    IF NOT coalesce((result->>'record')::boolean, true) THEN
        NULL;
    ELSIF done AND result->>'action' = 'NO_DATA' AND NOT result ? 'error_message' THEN
        new_id := pgtrickle._record_no_data(
            st.pgt_id, as_of, started, ended, result->>'initiated_by',
            result->>'executor', result->>'executor_reason', deadline);
    ELSE
        INSERT INTO pgtrickle.pgt_refresh_history (
            pgt_id, data_timestamp, start_time, end_time, action, rows_inserted, rows_updated, rows_deleted,
            delta_row_count, merge_strategy_used, was_full_fallback, error_message, status, initiated_by,
            freshness_deadline, executor, executor_reason, job_enqueued_at, job_attempt, job_scheduler_pid, job_worker_pid,
            job_unit, fixpoint_iteration)
        VALUES (
            st.pgt_id, as_of, started, ended,
            coalesce(result->>'action', CASE WHEN ok THEN NULL WHEN st.needs_reinit THEN 'REINITIALIZE'
                                             WHEN st.is_populated AND st.refresh_mode <> 'FULL' THEN 'DIFFERENTIAL' ELSE 'FULL' END),
            coalesce((result->>'rows_inserted')::bigint, 0), coalesce((result->>'rows_updated')::bigint, 0),
            coalesce((result->>'rows_deleted')::bigint, 0), coalesce((result->>'delta_row_count')::bigint, 0),
            result->>'merge_strategy_used', coalesce((result->>'was_full_fallback')::boolean, false),
            result->>'error_message', result->>'status', result->>'initiated_by',
            deadline, result->>'executor', result->>'executor_reason',
            CASE WHEN result ? 'job' THEN pgtrickle._job_time((result->'job'->>'enqueued')::bigint) END, (result->'job'->>'attempt')::int,
            (result->'job'->>'scheduler')::int, (result->'job'->>'worker')::int, result->'job'->>'unit',
            (result->>'fixpoint_iteration')::int)
        RETURNING refresh_id INTO new_id;
    END IF;
    IF new_status = 'SUSPENDED' AND st.status <> 'SUSPENDED' THEN
        -- The SQLSTATE alone: anybody can listen, and a message can hold values of the sources.
        PERFORM pgtrickle._alert('auto_suspended', s, split_part(result->>'error_message', ':', 1))
        FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = st.pgt_id;
    END IF;
    IF result ? 'alert' THEN
        PERFORM pgtrickle._alert(result->'alert'->>'event', s, result->'alert'->>'reason')
        FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = st.pgt_id;
    END IF;
    RETURN jsonb_build_object('refresh_id', new_id, 'status', new_status, 'consecutive_errors', errors);
END $$;
