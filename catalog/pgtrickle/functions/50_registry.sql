-- Writing the catalog: registering, altering and forgetting stream tables.


DROP FUNCTION IF EXISTS  -- of an earlier version
    pgtrickle._own_stream_table(bigint), pgtrickle._check_state(pgtrickle.pgt_stream_tables),
    pgtrickle._alert(text, pgtrickle.pgt_stream_tables, text);


-- The owner of a stream table that the caller may act for. Raises 42P01 if there is none, 42501 if he may not.
CREATE OR REPLACE FUNCTION pgtrickle._owner_of(pgt_id bigint) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st record;
BEGIN
    SELECT s.pgt_owner, s.pgt_name INTO st FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _owner_of.pgt_id;
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
    PERFORM pgtrickle._lock_name(parts[1], parts[2]);
    has_schema := to_regnamespace(schema) IS NOT NULL;
    is_taken := to_regclass(storage) IS NOT NULL;
    is_stream_table := false;
    IF is_taken THEN
        is_stream_table := EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = to_regclass(storage)::oid);
    END IF;
END $$;


-- Refuses DML on a stream table by anybody but a refresh.
-- It runs in each statement of a refresh, and of IMMEDIATE mode: a SET clause would cost more than all else in it.
CREATE OR REPLACE FUNCTION pgtrickle._guard() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(pg_catalog.current_setting('pgtrickle.maintenance', true), '') OPERATOR(pg_catalog.<>) 'on' THEN
        RAISE EXCEPTION USING ERRCODE := '42809',
            MESSAGE := pg_catalog.format('cannot change stream table "%s"', TG_TABLE_NAME),
            HINT := 'Change the tables its query reads; pgtrickle.refresh_stream_table() brings it up to date.';
    END IF;
    RETURN NULL;
END $$;


-- Refuses what the rows of a query might break, so that refreshes fail: constraints of a storage table, unique indexes, NOT NULL, and
-- parents or children. Its own are the key and the columns whose names are ours. Raises 42809.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_constraints(relid oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := (SELECT s.pgt_name
                  FROM pgtrickle.pgt_definitions s JOIN pg_trigger t ON t.tgrelid = s.pgt_relid AND t.tgname = 'pg_trickle_guard'
                  WHERE s.pgt_relid = relid);
    culprit text;
BEGIN
    IF name IS NULL OR current_setting('pgtrickle.maintenance', true) = 'on' THEN
        RETURN;
    END IF;
    SELECT found.what INTO culprit
    FROM (SELECT 1, format('foreign key "%s"', c.conname)
          FROM pg_constraint c WHERE c.conrelid = relid AND c.contype = 'f'
          UNION ALL
          SELECT 2, format('check constraint "%s"', c.conname)
          FROM pg_constraint c WHERE c.conrelid = relid AND c.contype = 'c'
          UNION ALL
          SELECT 3, format('%s "%s"', CASE WHEN i.indisexclusion THEN 'exclusion constraint' ELSE 'unique index' END, c.relname)
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
          WHERE i.indrelid = relid AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary
          UNION ALL
          SELECT 4, format('NOT NULL of column "%s"', a.attname)
          FROM pg_attribute a WHERE a.attrelid = relid AND a.attnum > 0 AND a.attnotnull AND a.attname !~ '^__pgt_'
          UNION ALL
          SELECT 5, format('parent or child "%s"', CASE relid WHEN h.inhparent THEN h.inhrelid ELSE h.inhparent END::regclass)
          FROM pg_inherits h WHERE relid IN (h.inhparent, h.inhrelid)) AS found(place, what)
    ORDER BY found.place LIMIT 1;
    IF culprit IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42809', MESSAGE = format('stream table "%s" cannot have %s', name, culprit),
            DETAIL = 'Its rows are those of its query: a refresh would fail where they break it.',
            HINT = 'Put it on the tables that the query reads. Indexes that are not unique are welcome.';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_constraints(oid) FROM PUBLIC;


-- Refuses DDL on a source that a stream table reads, where pg_trickle.block_source_ddl is on. Raises 2BP01.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_source_ddl(pgt_id bigint, source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgtrickle._setting('pg_trickle.block_source_ddl', 'off')::boolean
       AND current_setting('pgtrickle.maintenance', true) IS DISTINCT FROM 'on' THEN
        PERFORM pgtrickle._raise('2BP01', format('cannot alter or drop "%s" because a stream table reads it', pgtrickle._source_name(d)),
                                 format('Stream table "%s" reads what would change.', pgtrickle._qualified(s.pgt_relid)),
                                 'Drop or change the stream table first, or SET pg_trickle.block_source_ddl = off.')
        FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s ON s.pgt_id = d.pgt_id
        WHERE d.pgt_id = _refuse_source_ddl.pgt_id AND d.source_relid = source;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_source_ddl(bigint, oid) FROM PUBLIC;


-- Refuses to give a storage table (known by that guard: after pg_restore its OID may be another table's) other columns
-- than its query has, or to have a crash empty it. What was retyped still has the names. Raises 42809.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_alteration(relid oid, retyped boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    altered text;
BEGIN
    SELECT s.pgt_name INTO altered
    FROM pgtrickle.pgt_definitions s JOIN pg_trigger t ON t.tgrelid = s.pgt_relid AND t.tgname = 'pg_trickle_guard'
    WHERE s.pgt_relid = relid AND s.explain->'inputs' ? 'output' AND (
        retyped
        OR ARRAY(SELECT o.value->>'name' FROM jsonb_array_elements(s.explain->'inputs'->'output') WITH ORDINALITY o
                 ORDER BY o.ordinality)
           <> ARRAY(SELECT a.attname::text FROM pg_attribute a
                    WHERE a.attrelid = relid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname !~ '^__pgt_'
                    ORDER BY a.attnum));
    IF altered IS NOT NULL AND current_setting('pgtrickle.maintenance', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION USING ERRCODE = '42809', MESSAGE = format('cannot alter stream table "%s" in this way', altered),
            HINT = 'Its columns are those of its query. pgtrickle.alter_stream_table() gives it another one.';
    END IF;
    SELECT s.pgt_name INTO altered
    FROM pgtrickle.pgt_definitions s JOIN pg_trigger t ON t.tgrelid = s.pgt_relid AND t.tgname = 'pg_trickle_guard'
    JOIN pg_class c ON c.oid = s.pgt_relid
    WHERE s.pgt_relid = relid AND c.relpersistence = 'u';
    IF altered IS NOT NULL THEN
        PERFORM pgtrickle._raise('42809', format('stream table "%s" cannot be unlogged', altered),
                                 'PostgreSQL empties unlogged tables when it recovers from a crash, and tells nobody.',
                                 'Only the tables that it reads can be.');
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_alteration(oid, boolean) FROM PUBLIC;


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
    PERFORM pgtrickle._check_placed(relid, 'pg_trickle_guard');
END $$;


-- What a row of a stream table must be so that nothing that looks at all of them fails at it: owners write their own. Raises
-- 22023.
CREATE OR REPLACE FUNCTION pgtrickle._check_state(st pgtrickle.pgt_definitions) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._check_times(st.data_timestamp);
    IF st.consecutive_errors < 0 OR jsonb_typeof(st.explain) <> 'object' OR jsonb_typeof(st.plan_texts) <> 'object'
       OR jsonb_typeof(coalesce(nullif(st.explain->'inputs', 'null'), '{}')) <> 'object'
       OR jsonb_typeof(coalesce(nullif(st.explain->'inputs'->'output', 'null'), '[]')) <> 'array'
       OR jsonb_typeof(coalesce(nullif(st.function_hashes, ''), '{}')::jsonb) <> 'object'
    THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'invalid state of a stream table';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_state(pgtrickle.pgt_definitions) FROM PUBLIC;


-- Times that others can reckon with: finite, and not in the future by more than clocks differ. Raises 22023.
CREATE OR REPLACE FUNCTION pgtrickle._check_times(VARIADIC times timestamptz[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM unnest(times) AS t WHERE NOT isfinite(t) OR t > clock_timestamp() + interval '1 day') THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'invalid time of a stream table';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_times(timestamptz[]) FROM PUBLIC;


-- Register a table of the caller's as a stream table, and return its pgt_id. Keys of the argument, all of them
-- columns of pgt_stream_tables: pgt_relid (required), defining_query (required), original_query, canonical_query,
-- schedule, refresh_mode, requested_mode, engine, row_id_salt, functions_used, function_hashes, has_keyless_source,
-- explain, fallback_reason, diamond_consistency, diamond_schedule_policy, requested_cdc_mode, append_only; topk {"limit", "order_by",
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
    INSERT INTO pgtrickle.pgt_definitions (
        pgt_relid, pgt_name, pgt_schema, pgt_owner, defining_query, original_query, canonical_query, schedule,
        refresh_mode, requested_mode, engine, row_id_salt, functions_used, function_hashes, has_keyless_source, explain,
        fallback_reason, diamond_consistency, diamond_schedule_policy, requested_cdc_mode,
        topk_limit, topk_order_by, topk_offset, append_only, plan_texts)
    VALUES (
        storage.oid, storage.relname, storage.nspname, storage.relowner, definition->>'defining_query',
        coalesce(definition->>'original_query', definition->>'defining_query'), definition->>'canonical_query',
        pgtrickle._check_schedule(coalesce(definition->>'schedule', 'calculated')), coalesce(definition->>'refresh_mode', 'DIFFERENTIAL'),
        coalesce(definition->>'requested_mode', 'AUTO'), coalesce(definition->>'engine', 'auto'),
        coalesce((definition->>'row_id_salt')::bigint, 0),
        CASE WHEN jsonb_typeof(definition->'functions_used') = 'array'
             THEN ARRAY(SELECT jsonb_array_elements_text(definition->'functions_used')) END,
        definition->>'function_hashes', coalesce((definition->>'has_keyless_source')::boolean, false),
        coalesce(nullif(definition->'explain', 'null') - 'texts', '{}'), definition->>'fallback_reason',
        coalesce(definition->>'diamond_consistency', 'none'),
        coalesce(definition->>'diamond_schedule_policy', 'fastest'), definition->>'requested_cdc_mode',
        (definition->'topk'->>'limit')::int, definition->'topk'->>'order_by', (definition->'topk'->>'offset')::int,
        coalesce((definition->>'append_only')::boolean, false), coalesce(definition->'explain'->'texts', '{}'))
    RETURNING pgt_id INTO new_id;
    PERFORM pgtrickle._check_state(s) FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = new_id;
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
    UPDATE pgtrickle.pgt_dependencies d
    SET column_snapshot = d.column_snapshot || jsonb_build_object('known', pgtrickle._known_names(d.source_relid))
    WHERE d.pgt_id = _set_dependencies.pgt_id;
    PERFORM pgtrickle._settle_circle(_set_dependencies.pgt_id);
END $$;


-- Forget a stream table (its storage is not dropped here) and end capture that nobody else needs.
CREATE OR REPLACE FUNCTION pgtrickle._unregister(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    DELETE FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _unregister.pgt_id;
    PERFORM pgtrickle._untrack_sources();
END $$;


-- Drop a table with the rights of the caller, if there is one. DROP TABLE knows it by its name, which can be another's when
-- the lock is had: raises 40001 then, which undoes it.
CREATE OR REPLACE FUNCTION pgtrickle._drop_table(relid oid, and_dependents boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgtrickle._qualified(relid) IS NULL THEN
        RETURN;
    END IF;
    EXECUTE format('DROP TABLE %s %s', pgtrickle._qualified(relid), CASE WHEN and_dependents THEN 'CASCADE' END);
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = relid) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('relation with OID %s was renamed meanwhile', relid);
    END IF;
END $$;


-- Change columns of a stream table's row; keys that are absent stay as they are. Keys: schedule, refresh_mode,
-- requested_mode, status, consecutive_errors, needs_reinit, fallback_reason, explain, engine, row_id_salt,
-- canonical_query, defining_query, original_query, functions_used, function_hashes, has_keyless_source, auto_threshold,
-- is_populated, frontier, data_timestamp, requested_cdc_mode, diamond_consistency, diamond_schedule_policy, topk_limit,
-- topk_order_by, topk_offset, append_only.
CREATE OR REPLACE FUNCTION pgtrickle._set_state(pgt_id bigint, changes jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st pgtrickle.pgt_definitions;
    new_st pgtrickle.pgt_definitions;
    unknown text;
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    SELECT * INTO st FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _set_state.pgt_id;
    SELECT string_agg(key, ', ') INTO unknown FROM jsonb_object_keys(changes) AS key
    WHERE key NOT IN ('schedule', 'refresh_mode', 'requested_mode', 'status', 'consecutive_errors', 'needs_reinit',
        'fallback_reason', 'explain', 'engine', 'row_id_salt', 'canonical_query', 'defining_query', 'functions_used',
        'function_hashes', 'has_keyless_source', 'auto_threshold', 'is_populated', 'frontier', 'data_timestamp',
        'requested_cdc_mode', 'diamond_consistency', 'diamond_schedule_policy', 'original_query', 'topk_limit', 'topk_order_by',
        'topk_offset', 'append_only');
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('unknown state of a stream table: %s', unknown);
    END IF;
    new_st := jsonb_populate_record(st, changes - 'frontier');
    IF changes ? 'explain' THEN
        new_st.plan_texts := coalesce(new_st.explain->'texts', '{}');
        new_st.explain := new_st.explain - 'texts';
    END IF;
    IF changes ? 'schedule' THEN
        new_st.schedule := pgtrickle._check_schedule(new_st.schedule);
    END IF;
    PERFORM pgtrickle._check_state(new_st);
    UPDATE pgtrickle.pgt_definitions s
    SET (schedule, refresh_mode, requested_mode, status, consecutive_errors, needs_reinit, fallback_reason, explain,
         engine, row_id_salt, canonical_query, defining_query, functions_used, function_hashes, has_keyless_source,
         auto_threshold, is_populated, data_timestamp, requested_cdc_mode, diamond_consistency,
         diamond_schedule_policy, original_query, topk_limit, topk_order_by, topk_offset, append_only, plan_texts, frontier, updated_at)
      = (new_st.schedule, new_st.refresh_mode, new_st.requested_mode, new_st.status, new_st.consecutive_errors,
         new_st.needs_reinit, new_st.fallback_reason, new_st.explain, new_st.engine, new_st.row_id_salt,
         new_st.canonical_query, new_st.defining_query, new_st.functions_used, new_st.function_hashes,
         new_st.has_keyless_source, new_st.auto_threshold, new_st.is_populated, new_st.data_timestamp,
         new_st.requested_cdc_mode, new_st.diamond_consistency, new_st.diamond_schedule_policy, new_st.original_query,
         new_st.topk_limit, new_st.topk_order_by, new_st.topk_offset, new_st.append_only, new_st.plan_texts,
         CASE WHEN changes ? 'frontier' THEN pgtrickle._stamped(changes->'frontier') ELSE s.frontier END,
         clock_timestamp())
    WHERE s.pgt_id = st.pgt_id;
    IF new_st.status = 'SUSPENDED' AND st.status <> 'SUSPENDED' THEN
        PERFORM pgtrickle._alert('suspended', st, NULL);
    END IF;
END $$;


-- Tell whoever listens on pg_trickle_alert of something rare. (Never of a refresh, whose commit would wait for those of others:
-- 78_announcements.sql.)
CREATE OR REPLACE FUNCTION pgtrickle._alert(event text, st pgtrickle.pgt_definitions, reason text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_notify('pg_trickle_alert', jsonb_strip_nulls(jsonb_build_object(
        'event', event, 'pgt_schema', st.pgt_schema, 'pgt_name', st.pgt_name, 'reason', left(reason, 1000)))::text)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._alert(text, pgtrickle.pgt_definitions, text) FROM PUBLIC;
