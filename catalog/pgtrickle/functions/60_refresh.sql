-- The first bracket of a refresh. What it finds is in 59_refresh_context.sql, the other bracket in 61_finish_refresh.sql.


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
    misplaced bigint[];
    dependencies pgtrickle.pgt_dependencies[];
    lost oid;
    target regprocedure;
BEGIN
    misplaced := ARRAY(
        SELECT s.pgt_id FROM pgtrickle.pgt_definitions s
        WHERE s.frontier->>'system' IS DISTINCT FROM pgtrickle._system() AND NOT EXISTS (
            SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_trigger t ON t.tgrelid = c.oid
            WHERE c.oid = s.pgt_relid AND c.relname = s.pgt_name AND n.nspname = s.pgt_schema
              AND t.tgname = 'pg_trickle_guard'));
    IF misplaced <> '{}' THEN
        -- In two steps: one's new OID can be another's old one.
        UPDATE pgtrickle.pgt_definitions s SET pgt_relid = (4294967295 - s.pgt_id)::oid WHERE s.pgt_id = ANY (misplaced);
        UPDATE pgtrickle.pgt_definitions s SET pgt_relid = c.oid, pgt_owner = c.relowner
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_trigger t ON t.tgrelid = c.oid
        WHERE s.pgt_id = ANY (misplaced) AND c.relname = s.pgt_name AND n.nspname = s.pgt_schema
          AND t.tgname = 'pg_trickle_guard';
        dependencies := ARRAY(SELECT d FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = ANY (misplaced));
        DELETE FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = ANY (misplaced);
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
-- policies that hold for its owner; and that a crash empties it. Raises 55000.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_interference(relid oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    storage record;
    culprit text;
BEGIN
    SELECT c.relname, c.relhasrules, c.relhastriggers, c.relpersistence = 'u' AS unlogged,
           c.relrowsecurity AND c.relforcerowsecurity AS policies, c.relowner
      INTO storage FROM pg_class c WHERE c.oid = relid;
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
    IF storage.unlogged THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
            'stream table "%s" is unlogged: PostgreSQL would empty it when it recovers from a crash', storage.relname),
            HINT = format('ALTER TABLE %s SET LOGGED.', pgtrickle._qualified(relid));
    END IF;
    IF storage.policies AND NOT (SELECT o.rolsuper OR o.rolbypassrls FROM pg_roles o WHERE o.oid = storage.relowner) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
            'row-level security of stream table "%s" is forced on its owner, so that a refresh would not see all rows', storage.relname),
            HINT = format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY.', pgtrickle._qualified(relid));
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_interference(oid) FROM PUBLIC;


-- Wait a second for a stream table that another session refreshes or changes, and tell the client if that does not do. Its caller
-- waits on, for as long as it takes.
CREATE OR REPLACE FUNCTION pgtrickle._tell_of_wait(pgt_id bigint, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _tell_of_wait.pgt_id FOR UPDATE;
EXCEPTION WHEN lock_not_available THEN
    RAISE NOTICE USING MESSAGE = format('waiting for another session, which refreshes or changes stream table "%s"', name),
        HINT = 'See pgtrickle.pgt_stat_progress_refresh.';
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._tell_of_wait(bigint, text) FROM PUBLIC;


-- Tell the client which of the stream tables that one reads, directly or through others, lacked changes when it was refreshed: these
-- are not refreshed with it.
CREATE OR REPLACE FUNCTION pgtrickle._tell_of_upstream(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    behind text[];
    suspended text;
BEGIN
    SELECT array_agg(DISTINCT format('"%s.%s"', s.pgt_schema, s.pgt_name)),
           min(format('%s.%s', s.pgt_schema, s.pgt_name)) FILTER (WHERE s.status = 'SUSPENDED')
    INTO behind, suspended
    FROM pgtrickle._followed(_tell_of_upstream.pgt_id, 9223372036854775807) f JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    WHERE f.lacks AND f.pgt_id <> _tell_of_upstream.pgt_id;
    IF behind IS NOT NULL THEN
        RAISE NOTICE USING
            MESSAGE = format('upstream stream tables were not refreshed: %s', array_to_string(behind, ', ')),
            DETAIL = format('Stream table "%s" reads them as they are, and they lack changes of what they read.',
                            (SELECT s.pgt_name FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _tell_of_upstream.pgt_id)),
            HINT = CASE WHEN suspended IS NULL
                        THEN 'Refresh them before: pgtrickle.refresh_stream_table() refreshes the one that it names.'
                        ELSE format('Resume what is suspended: SELECT pgtrickle.resume_stream_table(%L);', suspended) END;
    END IF;
END $$;


-- Begin a refresh: lock the stream table, check the caller, and say all the engine needs, in one call: what
-- _refresh_context returns. Where another refresh of it is running this one waits for its end, or unless wait raises
-- 55P03; unless wait, "held_back" says why the scheduler must leave it alone, as far as the transaction sees. Raises 40001 at REPEATABLE READ if the stream table has changed since the transaction's snapshot.
CREATE OR REPLACE FUNCTION pgtrickle._begin_refresh(pgt_id bigint, wait boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    st record;
    locked record;
    context jsonb;
    system text := pgtrickle._system();
BEGIN
    SELECT s.pgt_owner, s.pgt_name, s.pgt_relid, s.scc_id, s.frontier->>'system' AS system,
           coalesce(s.xmax = pg_current_xact_id_if_assigned()::xid, false) AS has_it INTO st
    FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _begin_refresh.pgt_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with ID %s does not exist', pgt_id);
    END IF;
    IF st.system <> system THEN
        PERFORM pgtrickle._adopt_restored();
        SELECT s.pgt_owner, s.pgt_relid INTO st.pgt_owner, st.pgt_relid
        FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _begin_refresh.pgt_id;
    END IF;
    PERFORM pgtrickle._check_owner(st.pgt_owner, st.pgt_name);
    IF NOT wait THEN
        -- The scheduler's look, which writes nothing where there is nothing to do: not even a lock on the row.
        context := pgtrickle._refresh_context(pgt_id, system, 1);
        IF (context->'fresh')::boolean AND NOT coalesce((context->'polled')::boolean, false)
           OR (context->'unseen')::boolean THEN
            RETURN context;
        END IF;
    END IF;
    -- Its row is the lock. Who has waited finds it as it is now, perhaps with another owner, or not at all.
    IF wait THEN
        PERFORM pgtrickle._note_progress(pgt_id, 1);
        IF NOT st.has_it AND pgtrickle._is_claimed(pgt_id) THEN  -- it has it where _nothing_to_refresh found something
            PERFORM pgtrickle._give_way(pgt_id, st.pgt_name);
        END IF;
        IF st.scc_id IS NOT NULL THEN  -- in one order: who refreshes one of a circle refreshes all
            PERFORM FROM pgtrickle.pgt_definitions s WHERE s.scc_id = st.scc_id ORDER BY s.pgt_id FOR UPDATE;
        END IF;
        SELECT s.pgt_owner, s.pgt_name, s.pgt_relid INTO locked
        FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _begin_refresh.pgt_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            IF current_setting('lock_timeout') = '0' OR current_setting('lock_timeout')::interval > '1s' THEN
                PERFORM pgtrickle._tell_of_wait(pgt_id, st.pgt_name);
            END IF;
            SELECT s.pgt_owner, s.pgt_name, s.pgt_relid INTO locked
            FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _begin_refresh.pgt_id FOR UPDATE;
        END IF;
    ELSE
        SELECT s.pgt_owner, s.pgt_name, s.pgt_relid INTO locked
        FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _begin_refresh.pgt_id FOR UPDATE SKIP LOCKED;
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
    PERFORM pgtrickle._note_progress(pgt_id, 2);
    PERFORM pgtrickle._refuse_interference(locked.pgt_relid);
    context := pgtrickle._refresh_context(pgt_id, system, 10000001);
    IF NOT wait THEN
        -- Until the transaction ends: _workers counts the sessions of this name.
        PERFORM set_config('application_name', regexp_replace(current_setting('application_name'), ': refresh$', '') || ': refresh', true);
        context := context || jsonb_build_object('held_back', (SELECT h.reason FROM pgtrickle._held_back() h
                                                               WHERE h.pgt_id = _begin_refresh.pgt_id));
    END IF;
    RETURN context;
END $$;


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
    as_of timestamptz;
    context jsonb;
    read_only CONSTANT boolean := current_setting('transaction_read_only')::boolean;
BEGIN
    IF st_id IS NULL OR NOT pgtrickle._is_top_level() THEN
        RETURN false;
    END IF;
    SELECT s.pgt_owner, s.status, s.data_timestamp, s.schedule, s.scc_id INTO st FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = st_id;
    IF NOT FOUND OR st.status <> 'ACTIVE' OR st.scc_id IS NOT NULL THEN  -- others may have changes for it
        RETURN false;
    END IF;
    may_act := pgtrickle._may_act_for(st.pgt_owner);
    IF NOT may_act THEN
        RETURN false;
    END IF;
    -- Before any buffer is read: who drops the stream table holds this row, and waits for readers of its buffers. Who only
    -- reads does not want the row, and waits like any reader.
    IF NOT read_only THEN
        IF pgtrickle._is_claimed(st_id) THEN  -- the engine gives way
            RETURN false;
        END IF;
        PERFORM FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = st_id AND s.status = 'ACTIVE' FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    context := pgtrickle._refresh_context(st_id, pgtrickle._system(), 1);
    IF NOT (context->'fresh')::boolean THEN
        RETURN false;
    ELSIF read_only THEN
        RETURN true;
    END IF;
    IF (context->'stacked')::boolean THEN
        as_of := pgtrickle._read_as_of(st_id);
    END IF;
    IF as_of IS NULL THEN
        as_of := now();
    ELSE
        PERFORM pgtrickle._tell_of_upstream(st_id);
        as_of := least(greatest(as_of, st.data_timestamp), now());
    END IF;
    UPDATE pgtrickle.pgt_definitions s
    SET data_timestamp = as_of, last_refresh_at = clock_timestamp(), consecutive_errors = 0, updated_at = clock_timestamp()
    WHERE s.pgt_id = st_id;
    PERFORM pgtrickle._record_no_data(st_id, as_of, started, clock_timestamp(), 'MANUAL', 'postgres',
                                      'no changes; nothing to compute',
                                      pgtrickle._fresh_until(st_id, st.schedule, as_of));
    IF current_setting('headwater.alone', true) = 'on' THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    RETURN true;
END $$;
