-- What a refresh finds of a stream table, by which it is decided.


-- The sources of a stream table: what is noted of each, and what it is now. `buffer` is NULL where nothing is captured.
-- `readable` and `intact` save calls of _read_obstacle and _capture_gap, which would say nothing.
CREATE OR REPLACE FUNCTION pgtrickle._refresh_sources(pgt_id bigint, owner oid) RETURNS TABLE (
    oid oid, source_type text, columns_used text[], schema_fingerprint text, cdc_mode text, capture_generation uuid,
    nspname name, relname name, relnatts smallint, reltuples real, relhassubclass boolean, known jsonb, named text,
    qualified text, generation uuid, relations oid[], trigger_state text, buffer oid, readable boolean, intact boolean
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.source_relid, p.source_type, p.columns_used, p.schema_fingerprint, p.cdc_mode, p.capture_generation,
           n.nspname, c.relname, c.relnatts, c.reltuples, c.relhassubclass, p.column_snapshot->'known',
           quote_ident(coalesce(p.column_snapshot->'known', p.column_snapshot)->>'schema') || '.'
           || quote_ident(coalesce(p.column_snapshot->'known', p.column_snapshot)->>'name'),
           quote_ident(n.nspname) || '.' || quote_ident(c.relname),
           k.generation, k.relations, k.trigger_state,
           CASE WHEN p.cdc_mode IS NOT NULL THEN to_regclass('pgtrickle_changes.changes_' || p.source_relid)::oid END,
           c.relkind <> 'v' AND NOT c.relrowsecurity AND has_schema_privilege($2, n.oid, 'USAGE')
           AND has_table_privilege($2, c.oid, 'SELECT'),
           k.generation = p.capture_generation AND NOT c.relhassubclass AND k.relations = ARRAY[p.source_relid]
           AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = p.source_relid)
           AND NOT EXISTS (SELECT FROM pg_subscription_rel r WHERE r.srrelid = p.source_relid)
           AND k.trigger_state = pgtrickle._trigger_state(p.source_relid, k.relations)
    FROM pgtrickle.pgt_dependencies p
    LEFT JOIN pg_class c ON c.oid = p.source_relid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = p.source_relid AND p.cdc_mode IS NOT NULL
    WHERE p.pgt_id = $1
    ORDER BY p.source_relid;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refresh_sources(bigint, oid) FROM PUBLIC;


-- Whether a source is not defined any more as it was when this was noted of it.
CREATE OR REPLACE FUNCTION pgtrickle._definition_changed(
    source oid, columns_used text[], fingerprint text, known jsonb, attributes smallint, refresh_mode text
) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- No columns are noted for a full refresh. Who reads all may read whole rows, which are of the table's type.
    RETURN fingerprint <> pgtrickle._fingerprint(source, columns_used)
           OR refresh_mode = 'FULL' AND pgtrickle._columns_renamed(source, known)
           OR attributes > (known->>'attributes')::int AND cardinality(columns_used) = jsonb_array_length(known->'columns');
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._definition_changed(oid, text[], text, jsonb, smallint, text) FROM PUBLIC;


-- How many changes in a buffer a frontier has not seen, up to most, and whether a TRUNCATE is among them. NULL where
-- there is no buffer or no frontier. Raises 40001 if the buffer has just been dropped.
CREATE OR REPLACE FUNCTION pgtrickle._pending_changes(
    buffer oid, snapshot pg_snapshot, xid xid8, change_id bigint, most int, OUT pending bigint, OUT truncated boolean
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size CONSTANT bigint := pg_relation_size(buffer);  -- NULL for one that is gone
BEGIN
    truncated := false;
    IF buffer IS NULL OR snapshot IS NULL THEN
        RETURN;
    ELSIF size = 0 THEN
        pending := 0;
        RETURN;
    ELSIF size IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the last stream table over a source is being dropped';
    END IF;
    EXECUTE format($q$
        SELECT count(*), coalesce(bool_or(w = 0), false)
        FROM (SELECT c."__pgt_w" AS w FROM %s c WHERE %s LIMIT %s) AS pending$q$,
        buffer::regclass, pgtrickle._unseen('$1', '$2', '$3'), most)
    INTO pending, truncated
    USING snapshot, xid, change_id;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._pending_changes(oid, pg_snapshot, xid8, bigint, int) FROM PUBLIC;


-- Whether a buffer holds a change that the frontier of a stream table has not seen. Raises as _pending_changes.
CREATE OR REPLACE FUNCTION pgtrickle._any_pending(pgt_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    d record;
BEGIN
    FOR d IN
        SELECT to_regclass('pgtrickle_changes.changes_' || p.source_relid)::oid AS buffer,
               (s.frontier->>'snapshot')::pg_snapshot AS snapshot, (s.frontier->>'xid')::xid8 AS xid,
               coalesce((s.frontier->>'change_id')::bigint, 0) AS change_id
        FROM pgtrickle.pgt_definitions s JOIN pgtrickle.pgt_dependencies p ON p.pgt_id = s.pgt_id
        WHERE s.pgt_id = $1 AND p.cdc_mode IS NOT NULL
        ORDER BY p.source_relid
    LOOP
        IF (pgtrickle._pending_changes(d.buffer, d.snapshot, d.xid, d.change_id, 1)).pending > 0 THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._any_pending(bigint) FROM PUBLIC;


-- Grant the owner of a stream table its rights on the buffers again, which may have been taken away (_revoke_buffers).
-- Returns what _capture_ahead is to grant, in another transaction.
CREATE OR REPLACE FUNCTION pgtrickle._grant_buffers(pgt_id bigint, owner oid) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ungranted jsonb := '[]';
    d record;
BEGIN
    FOR d IN
        SELECT p.source_relid, p.columns_used FROM pgtrickle.pgt_dependencies p
        WHERE p.pgt_id = $1 AND p.cdc_mode IS NOT NULL
          AND NOT pgtrickle._buffer_granted(p.source_relid, owner, p.columns_used)
    LOOP
        IF pgtrickle._may_lock(d.source_relid) OR pgtrickle._copied_from(d.source_relid) IS NOT NULL THEN
            PERFORM pgtrickle._grant_buffer(d.source_relid, owner, d.columns_used);
        ELSE
            ungranted := ungranted || jsonb_build_object(
                'reader', owner::bigint, 'source', d.source_relid::bigint, 'columns', to_jsonb(d.columns_used),
                'keyed', false, 'emptying', false);
        END IF;
    END LOOP;
    RETURN ungranted;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._grant_buffers(bigint, oid) FROM PUBLIC;


-- The settings that a refresh looks at. To ask _setting for each takes longer than to see, once, which have been set at all.
CREATE OR REPLACE FUNCTION pgtrickle._refresh_settings(polled boolean) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    stored CONSTANT text[] := pgtrickle._stored_settings();
BEGIN
    RETURN (
        SELECT jsonb_object_agg(k.key, CASE WHEN nullif(current_setting(k.name, true), '') IS NULL AND k.name <> ALL (stored)
                                            THEN k.fallback ELSE pgtrickle._setting(k.name, k.fallback) END)
        FROM (VALUES ('engine', 'pg_trickle.refresh_engine', 'auto'),
                     ('spark_min_rows', 'pg_trickle.spark_min_rows', '100000'),
                     ('max_change_ratio', 'pg_trickle.differential_max_change_ratio', '0.15'),
                     ('spark_failure_policy', 'pg_trickle.spark_failure_policy', 'retry'),
                     ('spark_timeout', 'pg_trickle.spark_timeout', '3600'),
                     ('spark_parallel_rows', 'pg_trickle.spark_parallel_rows', '1000000'),
                     ('merge_planner_hints', 'pg_trickle.merge_planner_hints', 'on'),
                     ('merge_work_mem_mb', 'pg_trickle.merge_work_mem_mb', '64')) AS k (key, name, fallback)
    ) || jsonb_build_object(
        'foreign_table_polling', CASE WHEN polled THEN pgtrickle._setting('pg_trickle.foreign_table_polling', 'off') ELSE 'off' END,
        'statement_timeout', (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::bigint::text);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refresh_settings(boolean) FROM PUBLIC;


-- What only a refresh that has something to do needs: the plan, the settings, and what earlier refreshes have left.
CREATE OR REPLACE FUNCTION pgtrickle._refresh_inputs(pgt_id bigint, polled boolean) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_object(
            'plan', encode(sha256(convert_to(concat(s.canonical_query, s.explain->'inputs'), 'UTF8')), 'hex'),
            'canonical_query', s.canonical_query, 'plan_format', coalesce((s.explain->'inputs'->>'format')::int, 0),
            'settings', pgtrickle._refresh_settings(polled),
            'executor_costs', s.executor_costs, 'append_only', s.append_only,
            'memory', (SELECT m.memory FROM pgtrickle.pgt_memory m WHERE m.pgt_id = s.pgt_id AND m.frontier = s.frontier))
        FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = $1);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refresh_inputs(bigint, boolean) FROM PUBLIC;


-- What a refresh of a locked stream table finds:
--   {"fresh" (there is nothing to do), "pgt_id", "relid", "schema", "name", "storage" (qualified), "owner" (role name),
--    "status", "refresh_mode", "requested_mode", "engine", "schedule", "caller" (role name),
--    "plan" (differs when what it is planned from does), "canonical_query" (these two empty where fresh),
--    "plan_format" (what the compiler was that planned it; not where fresh),
--    "settings": {"engine", "spark_min_rows", "max_change_ratio"} (not where fresh),
--    "memory" (what the last refresh has handed on, NULL if that is not valid; not where fresh),
--    "frontier", "row_id_salt", "is_populated", "needs_reinit", "consecutive_errors",
--    "has_keyless_source", "last_full_ms", "auto_threshold", "fallback_reason", "data_timestamp",
--    "broken": [why what has been captured since the frontier cannot be trusted],
--    "denied": [why the owner may not read a source],
--    "circle": [ids of the stream tables that read each other, if it is one of them],
--    "ungranted": [what _capture_ahead is to grant the owner before],
--    "stacked" (it reads another stream table), "read_as_of" (as of when what it reads is at the latest; NULL: now; only where most is more than 1),
--    "unseen" (at REPEATABLE READ: a source is captured from the write-ahead log, of which the transaction does not see all),
--    "polled" (foreign tables are to be polled first, which can bring changes),
--    "sources": [{"oid", "qualified", "schema", "name", "type", "captured", "columns", "pending", "truncated", "rows"}]}
-- pending counts buffer rows that the frontier has not seen, up to most; NULL where nothing is captured or there is no
-- frontier. truncated says that a TRUNCATE is among them. Where most is 1 the first change found ends it: {"fresh": false}.
CREATE OR REPLACE FUNCTION pgtrickle._refresh_context(pgt_id bigint, system text, most int) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    st record;
    sources jsonb := '[]';
    broken text[] := '{}';
    denied text[] := '{}';
    ungranted jsonb := '[]';
    reason text;
    gap text;
    d record;
    pending bigint;
    truncated boolean;
    fresh boolean;
    late boolean;
    awaited boolean := false;
    unseen boolean := false;  -- a source comes later than the transaction will ever see
    stacked boolean := false;  -- it reads another stream table
BEGIN
    IF most = 1 AND pgtrickle._any_pending(pgt_id) THEN
        RETURN '{"fresh": false}';
    END IF;
    -- Not the whole row: its long columns would be read for nothing.
    SELECT s.pgt_id, s.pgt_relid, s.pgt_schema, s.pgt_name, s.pgt_owner, s.status, s.refresh_mode, s.requested_mode,
           s.engine, s.schedule, s.frontier, s.row_id_salt, s.is_populated, s.needs_reinit, s.consecutive_errors,
           s.has_keyless_source, s.last_full_ms, s.auto_threshold, s.fallback_reason, s.data_timestamp, s.function_hashes, s.scc_id,
           (s.frontier->>'snapshot')::pg_snapshot AS snapshot, (s.frontier->>'xid')::xid8 AS xid,
           coalesce((s.frontier->>'change_id')::bigint, 0) AS change_id,
           EXISTS (SELECT FROM pgtrickle.pgt_polls l WHERE l.pgt_id = s.pgt_id) AS polled
    INTO st
    FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _refresh_context.pgt_id;
    fresh := st.is_populated AND NOT st.needs_reinit AND st.frontier IS NOT NULL
             AND NOT st.polled;  -- only a poll can tell
    IF st.frontier IS NOT NULL AND st.frontier->>'system' IS DISTINCT FROM system THEN
        broken := broken || format('the database was restored, copied or promoted (system %s, now %s)',
                                   st.frontier->>'system', system);
    END IF;
    IF st.function_hashes <> '{}' THEN
        reason := pgtrickle._changed_function(st.function_hashes);
        broken := CASE WHEN reason IS NULL THEN broken ELSE broken || reason END;
    END IF;
    IF st.refresh_mode = 'IMMEDIATE' THEN
        reason := pgtrickle._immediate_gap(pgt_id);
        broken := CASE WHEN reason IS NULL THEN broken ELSE broken || reason END;
    END IF;
    FOR d IN SELECT * FROM pgtrickle._refresh_sources(pgt_id, st.pgt_owner) LOOP
        stacked := stacked OR d.source_type = 'STREAM_TABLE';
        IF d.relname IS NULL THEN
            broken := broken || format('source with OID %s no longer exists', d.oid);
            CONTINUE;
        END IF;
        late := coalesce(starts_with(d.trigger_state, 'wal:'), false);
        gap := CASE WHEN d.cdc_mode IS NOT NULL AND d.intact IS NOT TRUE THEN
            pgtrickle._capture_gap(d.oid, d.generation IS NOT DISTINCT FROM d.capture_generation,
                                   d.relations, d.trigger_state, d.relhassubclass) END;
        IF late AND gap IS NULL THEN
            PERFORM pgtrickle._refuse_own_changes(d.oid);
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                unseen := true;
            ELSE
                awaited := awaited OR pgtrickle._await_wal();
                -- What was decoded just now may have ended the capture (_interrupt_wal).
                SELECT pgtrickle._capture_gap(d.oid, k.generation IS NOT DISTINCT FROM d.capture_generation,
                                              k.relations, k.trigger_state, d.relhassubclass) INTO gap
                FROM pgtrickle.pgt_captures k WHERE k.source_relid = d.oid;
            END IF;
        END IF;
        IF most = 1 AND NOT late THEN  -- it has been looked for above
            pending := CASE WHEN d.buffer IS NOT NULL AND st.snapshot IS NOT NULL THEN 0 END;
            truncated := false;
        ELSE
            SELECT c.pending, c.truncated INTO pending, truncated
            FROM pgtrickle._pending_changes(d.buffer, st.snapshot, st.xid, st.change_id, most) c;
        END IF;
        IF pending > 0 AND most = 1 THEN
            RETURN '{"fresh": false}';
        END IF;
        IF d.readable IS NOT TRUE AND d.cdc_mode IS NOT NULL  -- of others PostgreSQL says it when the query runs
           AND NOT (st.polled AND d.nspname = 'pgtrickle_changes') THEN  -- the poll asks who may read the foreign one
            reason := pgtrickle._read_obstacle(st.pgt_owner, d.oid, d.columns_used);
            IF reason IS NOT NULL THEN
                denied := denied || reason;
            END IF;
        END IF;
        IF pgtrickle._definition_changed(d.oid, d.columns_used, d.schema_fingerprint, d.known, d.relnatts, st.refresh_mode) THEN
            broken := broken || format('definition of %s has changed', d.qualified);
        END IF;
        -- The text of the query names its tables, their changes are known by OID.
        IF d.named <> d.qualified
           AND NOT (st.polled AND d.source_type = 'FOREIGN_TABLE' AND to_regclass(d.named) IS NULL) THEN
            broken := broken || format('%s was renamed to %s', d.named, d.qualified);
        END IF;
        IF st.polled AND d.source_type = 'FOREIGN_TABLE' THEN
            CONTINUE;  -- It is read in its copy.
        END IF;
        IF gap IS NOT NULL THEN
            broken := broken || gap;
            pending := NULL;
            truncated := false;
        END IF;
        fresh := fresh AND NOT coalesce(pending > 0, false) AND (d.cdc_mode IS NOT NULL OR d.source_type = 'VIEW')
                 AND NOT unseen;
        sources := sources || jsonb_build_object(
            'oid', d.oid::bigint, 'qualified', d.qualified, 'schema', d.nspname, 'name', d.relname,
            'type', d.source_type, 'captured', d.cdc_mode IS NOT NULL OR d.source_type = 'VIEW', 'columns', d.columns_used,
            'pending', pending, 'truncated', truncated, 'late', late,
            'rows', CASE WHEN d.relhassubclass THEN
                (SELECT sum(greatest(l.reltuples, 0)) FROM pg_class l
                 WHERE l.oid = ANY (pgtrickle._relations(d.oid)) AND l.relkind <> 'p')
                ELSE greatest(d.reltuples, 0)::bigint END);
    END LOOP;

    fresh := fresh AND broken = '{}' AND denied = '{}';
    IF NOT fresh AND broken = '{}' AND denied = '{}' THEN
        ungranted := pgtrickle._grant_buffers(pgt_id, st.pgt_owner);
    END IF;
    RETURN jsonb_build_object(
        'fresh', fresh, 'pgt_id', st.pgt_id, 'relid', st.pgt_relid::bigint, 'schema', st.pgt_schema, 'name', st.pgt_name,
        'storage', coalesce(pgtrickle._qualified(st.pgt_relid), ''),
        'owner', pg_get_userbyid(st.pgt_owner),
        'status', st.status, 'refresh_mode', st.refresh_mode, 'requested_mode', st.requested_mode, 'engine', st.engine,
        'schedule', st.schedule, 'caller', pg_get_userbyid(pgtrickle._caller()),
        'frontier', st.frontier, 'row_id_salt', st.row_id_salt,
        'is_populated', st.is_populated, 'needs_reinit', st.needs_reinit, 'consecutive_errors', st.consecutive_errors,
        'has_keyless_source', st.has_keyless_source, 'last_full_ms', st.last_full_ms,
        'auto_threshold', st.auto_threshold,
        'fallback_reason', st.fallback_reason, 'data_timestamp', st.data_timestamp,
        'broken', broken, 'denied', denied, 'ungranted', ungranted, 'sources', sources, 'polled', st.polled,
        'unseen', unseen, 'circle', pgtrickle._circle_members(st.scc_id), 'stacked', stacked, 'read_as_of', CASE WHEN most > 1 AND stacked OR st.scc_id IS NOT NULL THEN pgtrickle._read_as_of(pgt_id) END)
        -- Of a circle one that is up to date may have to be computed from nothing, since another one is not.
        || CASE WHEN fresh AND st.scc_id IS NULL THEN jsonb_build_object('plan', '', 'canonical_query', '')
                ELSE pgtrickle._refresh_inputs(pgt_id, st.polled) END;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refresh_context(bigint, text, int) FROM PUBLIC;
