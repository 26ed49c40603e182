-- Writing the catalog: registering, altering and forgetting stream tables, and whose rights their queries have.


-- A stream table the caller may act for. Raises 42P01 if there is none, 42501 if he may not.
CREATE OR REPLACE FUNCTION pgtrickle._own_stream_table(pgt_id bigint) RETURNS pgtrickle.pgt_stream_tables
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st pgtrickle.pgt_stream_tables;
BEGIN
    SELECT * INTO st FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _own_stream_table.pgt_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with ID %s does not exist', pgt_id);
    END IF;
    PERFORM pgtrickle._check_owner(st.pgt_owner, st.pgt_name);
    RETURN st;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._own_stream_table(bigint) FROM PUBLIC;


-- The owner of a stream table that the caller may act for, with the same errors. (A whole row holds long columns, which
-- would be read for nothing.)
CREATE OR REPLACE FUNCTION pgtrickle._owner_of(pgt_id bigint) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st record;
BEGIN
    SELECT s.pgt_owner, s.pgt_name INTO st FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _owner_of.pgt_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with ID %s does not exist', pgt_id);
    END IF;
    PERFORM pgtrickle._check_owner(st.pgt_owner, st.pgt_name);
    RETURN st.pgt_owner;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._owner_of(bigint) FROM PUBLIC;


CREATE OR REPLACE FUNCTION pgtrickle._check_owner(owner oid, name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgtrickle._may_act_for(owner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('must be owner of stream table "%s"', name);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_owner(oid, text) FROM PUBLIC;


-- Functions that belong to roles, see _runner. No role may look into this schema: the owner of a function can alter it,
-- if he can name it.
CREATE SCHEMA IF NOT EXISTS pgtrickle_roles;
REVOKE ALL ON SCHEMA pgtrickle_roles FROM PUBLIC;


-- A function in which statements run with a role's rights and nobody else's, made at the first call: in pgtrickle_roles,
-- `as_` or `rows_as_` and the role's OID. It belongs to the role: neither SET ROLE nor RESET ROLE work inside it, so a
-- function in a query cannot become the one who runs it. `mark` is a setting that its present version has and earlier ones
-- lacked; `declared` is what follows its name and arguments.
CREATE OR REPLACE FUNCTION pgtrickle._role_function(owner oid, prefix text, arguments text, mark text, declared text)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role name := (SELECT a.rolname FROM pg_roles a WHERE a.oid = owner);
    name text := prefix || owner;
    signature text := format('pgtrickle_roles.%I(%s)', name, arguments);
    present boolean;
BEGIN
    IF NOT pg_has_role(current_user, owner, 'MEMBER') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('the server''s role "%s" must be a member of role "%s" to refresh its stream tables', current_user, role),
            HINT = format('GRANT %I TO %I;', role, current_user);
    END IF;
    SELECT p.proowner = owner AND p.proconfig @> ARRAY[mark] INTO present FROM pg_proc p WHERE p.oid = to_regprocedure(signature);
    IF present IS NOT TRUE THEN
        PERFORM pg_advisory_xact_lock(pgtrickle._source_lock_class() + 2, 0);
        -- Somebody else may have made it while this one waited for the lock.
        SELECT p.proowner = owner AND p.proconfig @> ARRAY[mark] INTO present FROM pg_proc p WHERE p.oid = to_regprocedure(signature);
    END IF;
    IF present IS NOT TRUE THEN
        IF present IS NOT NULL THEN
            EXECUTE format('DROP FUNCTION %s', signature);
        END IF;
        BEGIN
            EXECUTE format('CREATE FUNCTION %s %s', signature, declared);
        EXCEPTION WHEN duplicate_function THEN
            RETURN name;  -- made after the snapshot of this transaction, or after what is cached of the catalog was read
        END;
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, current_user);
        IF role <> current_user THEN
            -- A new owner must be able to create in the schema, for the moment of becoming the owner.
            EXECUTE format('GRANT CREATE ON SCHEMA pgtrickle_roles TO %I', role);
            EXECUTE format('ALTER FUNCTION %s OWNER TO %I', signature, role);
            EXECUTE format('REVOKE CREATE ON SCHEMA pgtrickle_roles FROM %I', role);
        END IF;
    END IF;
    RETURN name;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._role_function(oid, text, text, text, text) FROM PUBLIC;


-- The function of a role that runs a statement which returns one jsonb. Triggers the statement deferred fire before it
-- returns: their functions must not run with anybody else's rights either. Called by _run alone.
CREATE OR REPLACE FUNCTION pgtrickle._runner(owner oid) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._role_function(owner, 'as_', 'text, jsonb', 'geqo_effort=2', $fn$
            RETURNS jsonb
            LANGUAGE plpgsql VOLATILE SECURITY DEFINER
            SET search_path = pg_catalog, pg_temp
            SET row_security = off
            SET datestyle = 'ISO, YMD'
            SET timezone = 'UTC'
            SET intervalstyle = 'postgres'
            SET extra_float_digits = 1
            SET bytea_output = 'hex'
            SET from_collapse_limit = 11
            SET join_collapse_limit = 11
            -- A search through all orders of nine tables or more takes longer than the refresh.
            SET geqo_threshold = 9
            SET geqo_effort = 2
            AS $body$
            DECLARE
                result jsonb;
            BEGIN
                -- Not a SET clause of the function: only a superuser could create one with a parameter of our own.
                PERFORM set_config('pgtrickle.maintenance', 'on', true);
                EXECUTE $1 INTO result USING $2;
                PERFORM set_config('pgtrickle.maintenance', 'off', true);
                IF session_user <> current_user THEN
                    SET CONSTRAINTS ALL IMMEDIATE;
                    SET CONSTRAINTS pgtrickle.request_left DEFERRED;
                END IF;
                RETURN result;
            END $body$ $fn$)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._runner(oid) FROM PUBLIC;


-- After a statement with another role's rights: raises 42501 if its functions have left something behind in the session,
-- whose search_path is `path` now and had these _session_objects before (NULL: it is the role's own session). A search_path
-- that was changed is put back. Nothing in the call can be redirected by a search_path.
CREATE OR REPLACE FUNCTION pgtrickle._check_left_behind(path text, known text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    left_name text;
    left_behind text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF path <> 'pg_catalog, pg_temp' THEN
        left_behind := 'search_path';
    END IF;
    IF known IS NOT NULL AND pgtrickle._session_objects() <> known THEN
        left_behind := 'cursors or prepared statements';
        FOR left_name IN
            SELECT p.name FROM pg_prepared_statements p
            WHERE p.from_sql AND NOT format('%s %s', p.name, p.prepare_time) = ANY (known)
        LOOP
            EXECUTE format('DEALLOCATE %I', left_name);
        END LOOP;
    END IF;
    IF left_behind IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('a function in the query changes the %s of the session', left_behind),
            HINT = 'Functions in a defining query must have no effects.';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_left_behind(text, text[]) FROM PUBLIC;


-- Run a statement that returns one jsonb ($1 in it is the parameters) with the rights of the calling role and nobody
-- else's. A session that refreshes a stream table of another role takes on that role first.
--
-- What the statement's functions leave behind in the session must not serve them once it has its own role back: a
-- search_path in which names mean something else, a cursor that is only read when the transaction commits, a prepared
-- statement under a name that the session uses. It is an error, and undone.
CREATE OR REPLACE FUNCTION pgtrickle._run(statement text, parameters jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := pgtrickle._caller();
    foreign_session boolean := to_regrole(quote_ident(session_user))::oid <> caller;
    call text := format('SELECT pgtrickle_roles.%I($1, $2)', pgtrickle._runner(caller));
    known text[];
    result jsonb;
BEGIN
    PERFORM pgtrickle._check_top_level();
    IF foreign_session THEN
        known := pgtrickle._session_objects();
    END IF;
    EXECUTE call INTO result USING statement, parameters;
    PERFORM pgtrickle._check_left_behind(pg_catalog.current_setting('search_path'), known);
    RETURN result;
END $$;


-- _run for a statement that changes a storage table. Where it cannot be applied it is undone, and {"failed": SQLSTATE}
-- returned: two rows have one __pgt_row_id (23505), a source has changed whose changes were not read, or was truncated
-- (HW003), or, if data_errors, values cannot be computed (class 22).
CREATE OR REPLACE FUNCTION pgtrickle._apply(statement text, parameters jsonb, data_errors boolean) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result jsonb;
    details text;
BEGIN
    result := pgtrickle._run(statement, parameters);
    IF result @> '{"overlooked": true}' THEN
        RAISE SQLSTATE 'HW003';
    END IF;
    RETURN result;
EXCEPTION WHEN SQLSTATE 'HW003' THEN
    RETURN jsonb_build_object('failed', SQLSTATE);
WHEN unique_violation OR data_exception THEN
    GET STACKED DIAGNOSTICS details = PG_EXCEPTION_DETAIL;
    IF SQLSTATE = '23505' AND position('__pgt_row_id' IN details) > 0 OR starts_with(SQLSTATE, '22') AND data_errors THEN
        RETURN jsonb_build_object('failed', SQLSTATE);
    END IF;
    RAISE;
END $$;


-- _apply for a differential refresh. A merge join is never needed where most relations hold a handful of changes, and to
-- look into it takes an eighth of the time that planning takes.
CREATE OR REPLACE FUNCTION pgtrickle._apply_changes(statement text, parameters jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_mergejoin = off AS $$
BEGIN
    RETURN pgtrickle._apply(statement, parameters, true);
END $$;


-- For use inside _run: execute the statements of {"statements": []} one after the other.
CREATE OR REPLACE FUNCTION pgtrickle._execute(parameters jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN SELECT jsonb_array_elements_text(parameters->'statements') LOOP
        EXECUTE statement;
    END LOOP;
END $$;


-- What outlives a statement in a session and holds code: prepared statements and holdable cursors.
CREATE OR REPLACE FUNCTION pgtrickle._session_objects() RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(SELECT format('%s %s', p.name, p.prepare_time) FROM pg_prepared_statements p
                 UNION ALL
                 SELECT format('%s %s', c.name, c.creation_time) FROM pg_cursors c WHERE c.is_holdable
                 ORDER BY 1)
$$;


-- What is there under the name of a stream table to be created: the parts of the name, `public` where no schema is said
-- (and nothing else if there are more than two); whether the schema, such a relation, and such a stream table exist. The
-- name is locked, and only then looked up: of two sessions that create it at once the second finds what the first made.
CREATE OR REPLACE FUNCTION pgtrickle._creation_target(
    name text, OUT parts text[], OUT has_schema boolean, OUT is_taken boolean, OUT is_stream_table boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    schema text;
    storage text;
BEGIN
    parts := parse_ident(name);
    IF cardinality(parts) > 2 THEN
        RETURN;
    ELSIF cardinality(parts) = 1 THEN
        parts := ARRAY['public'] || parts;
    END IF;
    schema := format('"%s"', replace(parts[1], '"', '""'));
    storage := format('%s."%s"', schema, replace(parts[2], '"', '""'));
    PERFORM pg_advisory_xact_lock(hashtextextended('pgtrickle ' || storage, 0));
    has_schema := to_regnamespace(schema) IS NOT NULL;
    is_taken := to_regclass(storage) IS NOT NULL;
    is_stream_table := EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = to_regclass(storage)::oid);
END $$;


-- Refuses DML on a stream table by anybody but a refresh.
CREATE OR REPLACE FUNCTION pgtrickle._guard() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('pgtrickle.maintenance', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION USING ERRCODE = '42809',
            MESSAGE = format('cannot change stream table "%s"', TG_TABLE_NAME),
            HINT = 'Change the tables its query reads; pgtrickle.refresh_stream_table() brings it up to date.';
    END IF;
    RETURN NULL;
END $$;


-- Put that guard on a storage table of the caller's.
CREATE OR REPLACE FUNCTION pgtrickle._install_guard(relid oid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = relid);
BEGIN
    IF owner IS NULL OR NOT pgtrickle._may_act_for(owner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('must be owner of table %s', pgtrickle._qualified(relid));
    END IF;
    EXECUTE format('CREATE OR REPLACE TRIGGER pg_trickle_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard()', pgtrickle._qualified(relid));
END $$;


-- Register a table of the caller's as a stream table, and return its pgt_id. Keys of the argument, all of them
-- columns of pgt_stream_tables: pgt_relid (required), defining_query (required), original_query, canonical_query,
-- schedule, refresh_mode, requested_mode, engine, row_id_salt, functions_used, function_hashes, has_keyless_source,
-- explain, fallback_reason, diamond_consistency, diamond_schedule_policy, requested_cdc_mode; topk {"limit", "order_by",
-- "offset"}; and dependencies, an array of {"relid", "columns"}: the sources, not captured until _track_source is called.
CREATE OR REPLACE FUNCTION pgtrickle._register(definition jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    storage record;
    new_id bigint;
    source record;
BEGIN
    SELECT c.oid, c.relname, c.relowner, n.nspname INTO storage
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = (definition->>'pgt_relid')::oid AND c.relkind = 'r';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = format('table with OID %s does not exist', definition->>'pgt_relid');
    ELSIF NOT pgtrickle._may_act_for(storage.relowner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('must be owner of table %s', storage.relname);
    END IF;
    INSERT INTO pgtrickle.pgt_stream_tables (
        pgt_relid, pgt_name, pgt_schema, pgt_owner, defining_query, original_query, canonical_query, schedule,
        refresh_mode, requested_mode, engine, row_id_salt, functions_used, function_hashes, has_keyless_source, explain,
        fallback_reason, diamond_consistency, diamond_schedule_policy, requested_cdc_mode,
        topk_limit, topk_order_by, topk_offset, plan_texts)
    VALUES (
        storage.oid, storage.relname, storage.nspname, storage.relowner, definition->>'defining_query',
        coalesce(definition->>'original_query', definition->>'defining_query'), definition->>'canonical_query',
        coalesce(definition->>'schedule', 'calculated'), coalesce(definition->>'refresh_mode', 'DIFFERENTIAL'),
        coalesce(definition->>'requested_mode', 'AUTO'), coalesce(definition->>'engine', 'auto'),
        coalesce((definition->>'row_id_salt')::bigint, 0),
        CASE WHEN jsonb_typeof(definition->'functions_used') = 'array'
             THEN ARRAY(SELECT jsonb_array_elements_text(definition->'functions_used')) END,
        definition->>'function_hashes', coalesce((definition->>'has_keyless_source')::boolean, false),
        coalesce(nullif(definition->'explain', 'null') - 'texts', '{}'), definition->>'fallback_reason',
        coalesce(definition->>'diamond_consistency', 'none'),
        coalesce(definition->>'diamond_schedule_policy', 'fastest'), definition->>'requested_cdc_mode',
        (definition->'topk'->>'limit')::int, definition->'topk'->>'order_by', (definition->'topk'->>'offset')::int,
        coalesce(definition->'explain'->'texts', '{}'))
    RETURNING pgt_id INTO new_id;
    FOR source IN
        SELECT (d->>'relid')::oid AS relid, ARRAY(SELECT jsonb_array_elements_text(d->'columns')) AS columns
        FROM jsonb_array_elements(coalesce(nullif(definition->'dependencies', 'null'), '[]')) AS d
    LOOP
        PERFORM pgtrickle._note_dependency(new_id, source.relid, source.columns, NULL);
    END LOOP;
    RETURN new_id;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION USING ERRCODE = '42P07',
        MESSAGE = format('stream table "%s" already exists', storage.relname);
END $$;


-- Replace what a stream table depends on: an array of {"relid", "columns"}. Sources that stay captured stay so; those
-- that are gone are forgotten. To be followed by _track_source for what is to be captured.
CREATE OR REPLACE FUNCTION pgtrickle._set_dependencies(pgt_id bigint, sources jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM pgtrickle._owner_of(_set_dependencies.pgt_id);
    DELETE FROM pgtrickle.pgt_dependencies d
    WHERE d.pgt_id = _set_dependencies.pgt_id
      AND NOT EXISTS (SELECT FROM jsonb_array_elements(sources) s WHERE (s->>'relid')::oid = d.source_relid);
    PERFORM pgtrickle._note_dependency(
        _set_dependencies.pgt_id, (s->>'relid')::oid, ARRAY(SELECT jsonb_array_elements_text(s->'columns')),
        -- What cannot be captured any more is no longer relied on.
        (SELECT d.capture_generation FROM pgtrickle.pgt_dependencies d
         WHERE d.pgt_id = _set_dependencies.pgt_id AND d.source_relid = (s->>'relid')::oid
           AND pgtrickle._capture_obstacle(d.source_relid) IS NULL))
    FROM jsonb_array_elements(sources) AS s;
END $$;


-- Forget a stream table (its storage is not dropped here) and end capture that nobody else needs.
CREATE OR REPLACE FUNCTION pgtrickle._unregister(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    DELETE FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _unregister.pgt_id;
    PERFORM pgtrickle._untrack_sources();
END $$;


-- Change columns of a stream table's row; keys that are absent stay as they are. Keys: schedule, refresh_mode,
-- requested_mode, status, consecutive_errors, needs_reinit, fallback_reason, explain, engine, row_id_salt,
-- canonical_query, defining_query, functions_used, function_hashes, has_keyless_source, auto_threshold, is_populated,
-- frontier, data_timestamp, requested_cdc_mode, diamond_consistency, diamond_schedule_policy.
CREATE OR REPLACE FUNCTION pgtrickle._set_state(pgt_id bigint, changes jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st pgtrickle.pgt_stream_tables := pgtrickle._own_stream_table(pgt_id);
    new_st pgtrickle.pgt_stream_tables;
    unknown text;
BEGIN
    SELECT string_agg(key, ', ') INTO unknown FROM jsonb_object_keys(changes) AS key
    WHERE key NOT IN ('schedule', 'refresh_mode', 'requested_mode', 'status', 'consecutive_errors', 'needs_reinit',
        'fallback_reason', 'explain', 'engine', 'row_id_salt', 'canonical_query', 'defining_query', 'functions_used',
        'function_hashes', 'has_keyless_source', 'auto_threshold', 'is_populated', 'frontier', 'data_timestamp',
        'requested_cdc_mode', 'diamond_consistency', 'diamond_schedule_policy');
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('unknown state of a stream table: %s', unknown);
    END IF;
    new_st := jsonb_populate_record(st, changes - 'frontier');
    IF changes ? 'explain' THEN
        new_st.plan_texts := coalesce(new_st.explain->'texts', '{}');
        new_st.explain := new_st.explain - 'texts';
    END IF;
    UPDATE pgtrickle.pgt_stream_tables s
    SET (schedule, refresh_mode, requested_mode, status, consecutive_errors, needs_reinit, fallback_reason, explain,
         engine, row_id_salt, canonical_query, defining_query, functions_used, function_hashes, has_keyless_source,
         auto_threshold, is_populated, data_timestamp, requested_cdc_mode, diamond_consistency,
         diamond_schedule_policy, plan_texts, frontier, updated_at)
      = (new_st.schedule, new_st.refresh_mode, new_st.requested_mode, new_st.status, new_st.consecutive_errors,
         new_st.needs_reinit, new_st.fallback_reason, new_st.explain, new_st.engine, new_st.row_id_salt,
         new_st.canonical_query, new_st.defining_query, new_st.functions_used, new_st.function_hashes,
         new_st.has_keyless_source, new_st.auto_threshold, new_st.is_populated, new_st.data_timestamp,
         new_st.requested_cdc_mode, new_st.diamond_consistency, new_st.diamond_schedule_policy, new_st.plan_texts,
         CASE WHEN changes ? 'frontier' THEN pgtrickle._stamped(changes->'frontier') ELSE s.frontier END,
         clock_timestamp())
    WHERE s.pgt_id = st.pgt_id;
    IF new_st.status = 'SUSPENDED' AND st.status <> 'SUSPENDED' THEN
        PERFORM pgtrickle._alert('suspended', st, NULL);
    END IF;
END $$;


-- Tell whoever listens on pg_trickle_alert of something rare. (Never of a refresh: NOTIFY serialises commits.)
CREATE OR REPLACE FUNCTION pgtrickle._alert(event text, st pgtrickle.pgt_stream_tables, reason text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_notify('pg_trickle_alert', jsonb_strip_nulls(jsonb_build_object(
        'event', event, 'pgt_schema', st.pgt_schema, 'pgt_name', st.pgt_name, 'reason', left(reason, 1000)))::text)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._alert(text, pgtrickle.pgt_stream_tables, text) FROM PUBLIC;
