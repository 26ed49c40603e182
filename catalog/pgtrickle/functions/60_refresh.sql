-- The first bracket of a refresh: what it finds. The other one is in 61_finish_refresh.sql.


-- A frontier as it is stored: with the system its transaction ids belong to.
CREATE OR REPLACE FUNCTION pgtrickle._stamped(frontier jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN frontier->>'snapshot' IS NOT NULL THEN jsonb_build_object(
        -- Read as what they are: all tables' changes are cleaned up together, by everybody's frontiers.
        'snapshot', (frontier->>'snapshot')::pg_snapshot::text, 'xid', (frontier->>'xid')::xid8::text,
        'change_id', (frontier->>'change_id')::bigint) END || jsonb_build_object(
        'system', pgtrickle._system())
$$;


-- pg_restore gives every table a new OID, and what refers to OIDs goes on by name: storage tables (known by their guard),
-- sources, owners. Capture of tables that have other OIDs now is dropped; the repair that follows installs it anew.
-- A storage table that was not restored leaves an OID that no relation has.
CREATE OR REPLACE FUNCTION pgtrickle._adopt_restored() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    strayed bigint[];
    dependencies pgtrickle.pgt_dependencies[];
    lost oid;
    target regprocedure;
BEGIN
    strayed := ARRAY(
        SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s
        WHERE s.frontier->>'system' IS DISTINCT FROM pgtrickle._system() AND NOT EXISTS (
            SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_trigger t ON t.tgrelid = c.oid
            WHERE c.oid = s.pgt_relid AND c.relname = s.pgt_name AND n.nspname = s.pgt_schema
              AND t.tgname = 'pg_trickle_guard'));
    IF strayed <> '{}' THEN
        -- In two steps: one's new OID can be another's old one.
        UPDATE pgtrickle.pgt_stream_tables s SET pgt_relid = (4294967295 - s.pgt_id)::oid WHERE s.pgt_id = ANY (strayed);
        UPDATE pgtrickle.pgt_stream_tables s SET pgt_relid = c.oid, pgt_owner = c.relowner
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_trigger t ON t.tgrelid = c.oid
        WHERE s.pgt_id = ANY (strayed) AND c.relname = s.pgt_name AND n.nspname = s.pgt_schema
          AND t.tgname = 'pg_trickle_guard';
        dependencies := ARRAY(SELECT d FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = ANY (strayed));
        DELETE FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = ANY (strayed);
        INSERT INTO pgtrickle.pgt_dependencies
        SELECT (jsonb_populate_record(d, jsonb_build_object('source_relid', coalesce(c.oid, d.source_relid)))).*
        FROM unnest(dependencies) AS d
        LEFT JOIN pg_namespace n ON n.nspname = d.column_snapshot->>'schema'
        LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = d.column_snapshot->>'name';
    END IF;
    FOR lost IN
        SELECT k.source_relid FROM pgtrickle.pgt_captures k
        WHERE k.system <> pgtrickle._system() AND NOT EXISTS (
            SELECT FROM pg_trigger t
            WHERE t.tgrelid = k.source_relid AND t.tgname IN (SELECT c.name FROM pgtrickle._capture_triggers(k.source_relid) c))
    LOOP
        FOR target IN
            SELECT p.oid FROM pg_proc p
            WHERE p.pronamespace = 'pgtrickle_changes'::regnamespace
              AND p.proname IN (SELECT c.name FROM pgtrickle._capture_triggers(lost) c)
        LOOP
            EXECUTE format('DROP FUNCTION %s CASCADE', target);
        END LOOP;
        EXECUTE format('DROP TABLE IF EXISTS pgtrickle_changes.%I', 'changes_' || lost);
        DELETE FROM pgtrickle.pgt_captures k WHERE k.source_relid = lost;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._adopt_restored() FROM PUBLIC;


-- Refuse what would change or cancel, unseen, what a refresh does to a storage table: triggers before each row, rules,
-- policies that hold for its owner. Raises 55000.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_interference(relid oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    storage record;
    culprit text;
BEGIN
    SELECT c.relname, c.relhasrules, c.relhastriggers,
           c.relrowsecurity AND c.relforcerowsecurity AND NOT (o.rolsuper OR o.rolbypassrls) AS policies
      INTO storage FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner WHERE c.oid = relid;
    IF storage.relhastriggers THEN
        SELECT t.tgname INTO culprit FROM pg_trigger t
        WHERE t.tgrelid = relid AND t.tgtype::int & 3 = 3 AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal LIMIT 1;
        IF culprit IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
                'trigger "%s" on stream table "%s" could change or cancel what a refresh does', culprit, storage.relname),
                HINT = 'Triggers on a stream table must be AFTER, or FOR EACH STATEMENT.';
        END IF;
    END IF;
    IF storage.relhasrules THEN
        SELECT r.rulename INTO culprit FROM pg_rewrite r
        WHERE r.ev_class = relid AND r.ev_enabled IN ('O', 'A') LIMIT 1;
        IF culprit IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
                'rule "%s" on stream table "%s" could change or cancel what a refresh does', culprit, storage.relname);
        END IF;
    END IF;
    IF storage.policies THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
            'row-level security of stream table "%s" is forced on its owner, so that a refresh would not see all rows', storage.relname),
            HINT = format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY.', pgtrickle._qualified(relid));
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_interference(oid) FROM PUBLIC;


-- Begin a refresh: lock the stream table, check the caller, and say all the engine needs, in one call: what
-- _refresh_context returns. Where another refresh of it is running this one waits for its end, or unless wait raises
-- 55P03. Raises 40001 at REPEATABLE READ if the stream table has changed since the transaction's snapshot.
CREATE OR REPLACE FUNCTION pgtrickle._begin_refresh(pgt_id bigint, wait boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    st record;
    locked record;
    context jsonb;
    system text := pgtrickle._system();
BEGIN
    SELECT s.pgt_owner, s.pgt_name, s.pgt_relid, s.frontier->>'system' AS system INTO st
    FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _begin_refresh.pgt_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with ID %s does not exist', pgt_id);
    END IF;
    IF st.system <> system THEN
        PERFORM pgtrickle._adopt_restored();
        SELECT s.pgt_owner, s.pgt_relid INTO st.pgt_owner, st.pgt_relid
        FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _begin_refresh.pgt_id;
    END IF;
    PERFORM pgtrickle._check_owner(st.pgt_owner, st.pgt_name);
    IF NOT wait THEN
        -- The scheduler's look, which writes nothing where there is nothing to do: not even a lock on the row.
        context := pgtrickle._refresh_context(pgt_id, system, 1);
        IF (context->'fresh')::boolean AND NOT coalesce((context->'polled')::boolean, false) THEN
            RETURN context;
        END IF;
    END IF;
    -- Its row is the lock. Who has waited finds it as it is now, perhaps with another owner, or not at all.
    IF wait THEN
        SELECT s.pgt_owner, s.pgt_name, s.pgt_relid INTO locked
        FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _begin_refresh.pgt_id FOR UPDATE;
    ELSE
        SELECT s.pgt_owner, s.pgt_name, s.pgt_relid INTO locked
        FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _begin_refresh.pgt_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '55P03',
                MESSAGE = format('refresh of stream table "%s" is already running', st.pgt_name);
        END IF;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with ID %s does not exist', pgt_id);
    ELSIF locked.pgt_owner <> st.pgt_owner THEN
        PERFORM pgtrickle._check_owner(locked.pgt_owner, locked.pgt_name);
    END IF;
    PERFORM pgtrickle._refuse_interference(locked.pgt_relid);
    RETURN pgtrickle._refresh_context(pgt_id, system, 10000001);
END $$;


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
--    "ungranted": [what _capture_ahead is to grant the owner before],
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
    d record;
    pending bigint;
    truncated boolean;
    fresh boolean;
BEGIN
    -- Not the whole row: its long columns would be read for nothing.
    SELECT s.pgt_id, s.pgt_relid, s.pgt_schema, s.pgt_name, s.pgt_owner, s.status, s.refresh_mode, s.requested_mode,
           s.engine, s.schedule, s.frontier, s.row_id_salt, s.is_populated, s.needs_reinit, s.consecutive_errors,
           s.has_keyless_source, s.last_full_ms, s.auto_threshold, s.fallback_reason, s.data_timestamp, s.function_hashes,
           (s.frontier->>'snapshot')::pg_snapshot AS snapshot, (s.frontier->>'xid')::xid8 AS xid,
           coalesce((s.frontier->>'change_id')::bigint, 0) AS change_id,
           EXISTS (SELECT FROM pgtrickle.pgt_polls l WHERE l.pgt_id = s.pgt_id) AS polled
    INTO st
    FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _refresh_context.pgt_id;
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
    FOR d IN
        SELECT p.source_relid AS oid, p.source_type, p.columns_used, p.schema_fingerprint, p.cdc_mode,
               p.capture_generation, n.nspname, c.relname, c.relnatts, c.reltuples, c.relhassubclass,
               p.column_snapshot->'known' AS known,
               quote_ident(coalesce(p.column_snapshot->'known', p.column_snapshot)->>'schema') || '.'
               || quote_ident(coalesce(p.column_snapshot->'known', p.column_snapshot)->>'name') AS named,
               quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS qualified,
               k.generation, k.relations, k.trigger_state,
               to_regclass('pgtrickle_changes.changes_' || p.source_relid)::oid AS buffer,
               -- What _read_obstacle and _capture_gap would say nothing about: two calls less where all is well.
               c.relkind <> 'v' AND NOT c.relrowsecurity AND has_schema_privilege(st.pgt_owner, n.oid, 'USAGE')
               AND has_table_privilege(st.pgt_owner, c.oid, 'SELECT') AS readable,
               k.generation = p.capture_generation AND NOT c.relhassubclass AND k.relations = ARRAY[p.source_relid]
               AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = p.source_relid)
               AND k.trigger_state = pgtrickle._trigger_state(p.source_relid, k.relations) AS intact
        FROM pgtrickle.pgt_dependencies p
        LEFT JOIN pg_class c ON c.oid = p.source_relid
        LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = p.source_relid AND p.cdc_mode IS NOT NULL
        WHERE p.pgt_id = st.pgt_id
        ORDER BY p.source_relid
    LOOP
        pending := NULL;
        truncated := false;
        IF d.relname IS NULL THEN
            broken := broken || format('source with OID %s no longer exists', d.oid);
            CONTINUE;
        END IF;
        IF d.cdc_mode IS NULL OR d.buffer IS NULL OR st.frontier IS NULL THEN
            NULL;
        ELSIF pg_relation_size(d.buffer) = 0 THEN
            pending := 0;
        ELSE
            EXECUTE format($q$
                SELECT count(*), coalesce(bool_or(w = 0), false)
                FROM (SELECT c."__pgt_w" AS w FROM pgtrickle_changes.%I c
                      WHERE CASE WHEN c."__pgt_xid" > greatest($2, pg_snapshot_xmax($1)) THEN true
                                 WHEN c."__pgt_xid" = $2 THEN c."__pgt_change_id" > $3
                                 ELSE NOT pg_visible_in_snapshot(c."__pgt_xid", $1) END
                      LIMIT %s) AS pending$q$, 'changes_' || d.oid, most)
            INTO pending, truncated
            USING st.snapshot, st.xid, st.change_id;
            IF pending > 0 AND most = 1 THEN
                RETURN '{"fresh": false}';
            END IF;
        END IF;
        IF d.readable IS NOT TRUE AND d.cdc_mode IS NOT NULL  -- of others PostgreSQL says it when the query runs
           AND NOT (st.polled AND d.nspname = 'pgtrickle_changes') THEN  -- the poll asks who may read the foreign table
            reason := pgtrickle._read_obstacle(st.pgt_owner, d.oid, d.columns_used);
            IF reason IS NOT NULL THEN
                denied := denied || reason;
            END IF;
        END IF;
        -- No columns are noted for a full refresh. Who reads all of them may read whole rows, which are of the table's type.
        IF d.schema_fingerprint <> pgtrickle._fingerprint(d.oid, d.columns_used)
           OR st.refresh_mode = 'FULL' AND pgtrickle._columns_renamed(d.oid, d.known)
           OR d.relnatts > (d.known->>'attributes')::int AND cardinality(d.columns_used) = jsonb_array_length(d.known->'columns') THEN
            broken := broken || format('definition of %s has changed', d.qualified);
        END IF;
        -- The text of the query names its tables, their changes are known by OID.
        IF d.named <> d.qualified AND NOT (st.polled AND d.source_type = 'FOREIGN_TABLE' AND to_regclass(d.named) IS NULL) THEN
            broken := broken || format('%s was renamed to %s', d.named, d.qualified);
        END IF;
        IF st.polled AND d.source_type = 'FOREIGN_TABLE' THEN
            CONTINUE;  -- It is read in its copy.
        END IF;
        IF d.cdc_mode IS NOT NULL THEN
            reason := CASE WHEN d.intact IS NOT TRUE THEN
                pgtrickle._capture_gap(d.oid, d.generation IS NOT DISTINCT FROM d.capture_generation,
                                       d.relations, d.trigger_state, d.relhassubclass) END;
            IF reason IS NOT NULL THEN
                broken := broken || reason;
                pending := NULL;
                truncated := false;
            END IF;
        END IF;
        fresh := fresh AND NOT coalesce(pending > 0, false) AND (d.cdc_mode IS NOT NULL OR d.source_type = 'VIEW');
        sources := sources || jsonb_build_object(
            'oid', d.oid::bigint, 'qualified', d.qualified, 'schema', d.nspname, 'name', d.relname,
            'type', d.source_type, 'captured', d.cdc_mode IS NOT NULL OR d.source_type = 'VIEW', 'columns', d.columns_used,
            'pending', pending, 'truncated', truncated,
            'rows', CASE WHEN d.relhassubclass THEN
                (SELECT sum(greatest(l.reltuples, 0)) FROM pg_class l
                 WHERE l.oid = ANY (pgtrickle._relations(d.oid)) AND l.relkind <> 'p')
                ELSE greatest(d.reltuples, 0)::bigint END);
    END LOOP;

    fresh := fresh AND broken = '{}' AND denied = '{}';
    IF NOT fresh AND broken = '{}' AND denied = '{}' THEN
        -- The owner's rights on the buffers may have been taken away in the meantime (_revoke_buffers).
        FOR d IN
            SELECT p.source_relid, p.columns_used FROM pgtrickle.pgt_dependencies p
            WHERE p.pgt_id = st.pgt_id AND p.cdc_mode IS NOT NULL
              AND NOT pgtrickle._buffer_granted(p.source_relid, st.pgt_owner, p.columns_used)
        LOOP
            IF pgtrickle._may_lock(d.source_relid) OR pgtrickle._copied_from(d.source_relid) IS NOT NULL THEN
                PERFORM pgtrickle._grant_buffer(d.source_relid, st.pgt_owner, d.columns_used);
            ELSE
                ungranted := ungranted || jsonb_build_object(
                    'reader', st.pgt_owner::bigint, 'source', d.source_relid::bigint, 'columns', to_jsonb(d.columns_used),
                    'keyed', false, 'emptying', false);
            END IF;
        END LOOP;
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
        'broken', broken, 'denied', denied, 'ungranted', ungranted, 'sources', sources, 'polled', st.polled)
        || CASE WHEN fresh THEN jsonb_build_object('plan', '', 'canonical_query', '') ELSE
        (SELECT jsonb_build_object(
             'plan', encode(sha256(convert_to(concat(s.canonical_query, s.explain->'inputs'), 'UTF8')), 'hex'),
             'canonical_query', s.canonical_query, 'plan_format', coalesce((s.explain->'inputs'->>'format')::int, 0),
             'settings', jsonb_build_object(
                 'engine', pgtrickle._setting('pg_trickle.refresh_engine', 'auto'),
                 'spark_min_rows', pgtrickle._setting('pg_trickle.spark_min_rows', '100000'),
                 'max_change_ratio', pgtrickle._setting('pg_trickle.differential_max_change_ratio', '0.15'),
                 'spark_failure_policy', pgtrickle._setting('pg_trickle.spark_failure_policy', 'retry'),
                 'foreign_table_polling', CASE WHEN st.polled
                                          THEN pgtrickle._setting('pg_trickle.foreign_table_polling', 'off') ELSE 'off' END,
                 'statement_timeout', (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::bigint::text,
                 'spark_timeout', pgtrickle._setting('pg_trickle.spark_timeout', '3600'),
                 'spark_parallel_rows', pgtrickle._setting('pg_trickle.spark_parallel_rows', '1000000')),
             'executor_costs', s.executor_costs,
             'memory', (SELECT m.memory FROM pgtrickle.pgt_memory m
                        WHERE m.pgt_id = s.pgt_id AND m.frontier = s.frontier))
         FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = st.pgt_id) END;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refresh_context(bigint, text, int) FROM PUBLIC;


-- Record a refresh that found no change, and return the number of its row. Where the latest row of the stream table is of such a
-- refresh as well, asked for and explained in the same way, it counts this one too: a stream table that rests adds no rows to the
-- history. The caller holds the stream table's row.
CREATE OR REPLACE FUNCTION pgtrickle._record_no_data(
    pgt_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz,
    initiated_by text, executor text, executor_reason text, freshness_deadline timestamptz
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    recorded bigint;
BEGIN
    UPDATE pgtrickle.pgt_refresh_history h
    SET repeats = h.repeats + 1, last_start_time = $3, last_end_time = $4,
        repeats_duration = coalesce(h.repeats_duration, '0') + ($4 - $3)
    WHERE h.refresh_id = (SELECT max(l.refresh_id) FROM pgtrickle.pgt_refresh_history l WHERE l.pgt_id = $1)
      AND h.action = 'NO_DATA' AND h.status = 'COMPLETED' AND h.end_time IS NOT NULL
      AND h.initiated_by IS NOT DISTINCT FROM $5 AND h.executor IS NOT DISTINCT FROM $6
      AND h.executor_reason IS NOT DISTINCT FROM $7
    RETURNING h.refresh_id INTO recorded;
    IF NOT FOUND THEN
        INSERT INTO pgtrickle.pgt_refresh_history (
            pgt_id, data_timestamp, start_time, end_time, action, status, initiated_by, executor, executor_reason,
            freshness_deadline)
        VALUES ($1, $2, $3, $4, 'NO_DATA', 'COMPLETED', $5, $6, $7, $8)
        RETURNING refresh_id INTO recorded;
    END IF;
    RETURN recorded;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._record_no_data(bigint, timestamptz, timestamptz, timestamptz, text, text, text, timestamptz)
    FROM PUBLIC;


-- Where a stream table that a client asks to have refreshed is up to date, record that and return true. Where there is
-- anything else to do or to say, return false and leave it to the engine.
-- If the relay says that the transaction is its own and holds nothing else, the commit does not wait for the disk:
-- a crash loses a line of the history then. In a read-only transaction nothing is recorded.
CREATE OR REPLACE FUNCTION pgtrickle._nothing_to_refresh(name text, path text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    started timestamptz := clock_timestamp();
    st_id bigint := pgtrickle._resolve(name, path, true);
    st record;
    may_act boolean;
    read_only CONSTANT boolean := current_setting('transaction_read_only')::boolean;
BEGIN
    IF st_id IS NULL OR NOT pgtrickle._is_top_level() THEN
        RETURN false;
    END IF;
    SELECT s.pgt_owner, s.status INTO st FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = st_id;
    IF NOT FOUND OR st.status <> 'ACTIVE' THEN
        RETURN false;
    END IF;
    may_act := pgtrickle._may_act_for(st.pgt_owner);
    IF NOT may_act THEN
        RETURN false;
    END IF;
    -- Before any buffer is read: who drops the stream table holds this row, and waits for readers of its buffers. Who only
    -- reads does not want the row, and waits like any reader.
    IF NOT read_only THEN
        PERFORM FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = st_id AND s.status = 'ACTIVE' FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    IF NOT (pgtrickle._refresh_context(st_id, pgtrickle._system(), 1)->'fresh')::boolean THEN
        RETURN false;
    ELSIF read_only THEN
        RETURN true;
    END IF;
    UPDATE pgtrickle.pgt_stream_tables s
    SET data_timestamp = now(), last_refresh_at = clock_timestamp(), consecutive_errors = 0, updated_at = clock_timestamp()
    WHERE s.pgt_id = st_id;
    PERFORM pgtrickle._record_no_data(st_id, now(), started, clock_timestamp(), 'MANUAL', 'postgres',
                                      'no changes; nothing to compute', NULL);
    IF current_setting('headwater.alone', true) = 'on' THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    RETURN true;
END $$;
