-- Who needs which source captured: starting, extending, repairing and ending capture.


-- See to it that these columns of a source are captured, and that a role can read what is. Where that is so already no
-- table is locked; else the source is locked against writers until the transaction ends (the caller sets lock_timeout and
-- tries again). When that is a client decides: so where the session may not lock the source (_may_lock), HW005 is raised,
-- with what _capture_ahead takes as its detail. After that has been committed this is called again.
--
-- "keyed": its key is captured, too, by which a mirror tells rows apart. The role need not be able to read that, and does
-- not get it.
--
-- "late": who reads the changes can do so where they come from the write-ahead log, later than the source shows them
-- (44_wal_capture.sql). Where the source is captured so and he cannot, triggers take its place.
--
-- Returns {"installed": capture is new or had a gap, "extended": columns were added, "generation", "columns"}. After
-- "installed" or "extended" whoever wants the changes must start from a snapshot younger than this call: at REPEATABLE
-- READ in another transaction.
-- Raises 42501 if the role may not read the columns, 0A000 if the source cannot be captured.
DROP FUNCTION IF EXISTS pgtrickle._capture_source(oid, oid, text[], boolean, text);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._capture_source(
    owner oid, source oid, columns text[], keyed boolean, late boolean, hint text
) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    capture pgtrickle.pgt_captures;
    needed text[];
    all_columns text[];
    relations oid[];
    intact boolean;
    covered boolean;
    obstacle text;
    missing text;
    may_lock boolean := pgtrickle._may_lock(source);
    by_wal boolean;
    fits boolean;
    written boolean := false;  -- what this transaction has written is not decoded before it ends
BEGIN
    columns := ARRAY(SELECT DISTINCT name FROM unnest(coalesce(columns, '{}')) AS name ORDER BY name);
    obstacle := pgtrickle._capture_obstacle(source);
    IF obstacle IS NOT NULL THEN
        PERFORM pgtrickle._raise('0A000', 'cannot capture changes of table "' || coalesce(pgtrickle._qualified(source), source::text) || '"',
                                 obstacle, hint);
    END IF;
    SELECT name INTO missing FROM unnest(columns) AS name
    WHERE NOT EXISTS (SELECT FROM pg_attribute a
                      WHERE a.attrelid = source AND a.attname = name AND a.attnum > 0 AND NOT a.attisdropped);
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42703',
            MESSAGE = format('column "%s" of relation "%s" does not exist', missing, pgtrickle._qualified(source));
    ELSIF columns && ARRAY['__pgt_change_id', '__pgt_xid', '__pgt_w'] THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('cannot capture a column of "%s" whose name is reserved', pgtrickle._qualified(source)),
            DETAIL = 'Reserved names are "__pgt_change_id", "__pgt_xid" and "__pgt_w".';
    END IF;
    PERFORM pgtrickle._check_readable(owner, source, columns);
    PERFORM pgtrickle._share_source(source);
    -- All captures from the log wait for the lock of a buffer that they fill: nobody may keep it for long.
    may_lock := may_lock AND (pgtrickle._ends_soon() OR NOT EXISTS (
        SELECT FROM pgtrickle.pgt_captures c WHERE c.source_relid = source AND c.mode = 'WAL'));

    FOR attempt IN 1..2 LOOP
        needed := columns || CASE WHEN keyed THEN pgtrickle._row_key(source) END;
        SELECT * INTO capture FROM pgtrickle.pgt_captures c WHERE c.source_relid = source;
        relations := pgtrickle._relations(source);
        intact := capture.source_relid IS NOT NULL AND capture.relations = relations
                  AND capture.trigger_state = pgtrickle._trigger_state(source, relations)
                  AND capture.system = pgtrickle._system();
        by_wal := coalesce(capture.mode = 'WAL', false);
        fits := NOT by_wal OR late AND pgtrickle._wal_obstacle(source, needed) IS NULL;
        covered := intact AND fits AND capture.captured_columns @> needed
                   AND capture.fingerprint = pgtrickle._fingerprint(source, capture.captured_columns);
        EXIT WHEN covered OR attempt = 2 OR NOT may_lock;
        written := by_wal AND pgtrickle._has_written(relations);
        -- Only now is a lock needed. What was found without it is looked at again.
        EXECUTE format('LOCK TABLE %s IN %s MODE', pgtrickle._qualified(source),
                       CASE WHEN by_wal AND NOT (intact AND fits) THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END);
    END LOOP;

    IF NOT may_lock AND NOT (covered AND pgtrickle._buffer_granted(source, owner, columns)) THEN
        IF NOT covered THEN
            PERFORM pgtrickle._refuse_own_locks(source, relations, needed);
        END IF;
        PERFORM pgtrickle._ask_for_capture(owner, source, columns, keyed, false, late);
    ELSIF NOT covered THEN
        IF capture.source_relid IS NULL AND to_regclass('pgtrickle_changes.changes_' || source) IS NOT NULL
           AND current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'could not serialize access due to concurrent change capture';
        END IF;
        -- Columns that somebody else needs stay, unless they are gone.
        all_columns := ARRAY(
            SELECT a.attname::text FROM pg_attribute a
            WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
              AND a.attname = ANY (needed || coalesce(capture.captured_columns, '{}'))
            ORDER BY a.attnum);
        IF capture.system <> pgtrickle._system() THEN
            -- Its transaction ids are those of another cluster or time.
            EXECUTE format('TRUNCATE pgtrickle_changes.%I', 'changes_' || source);
        END IF;
        IF by_wal AND NOT (intact AND fits) THEN
            intact := pgtrickle._end_wal(source, intact AND NOT written);
        END IF;
        PERFORM pgtrickle._write_buffer(source, all_columns);
        IF NOT by_wal OR NOT (intact AND fits) THEN
            PERFORM pgtrickle._write_capture_functions(source, all_columns);
            PERFORM pgtrickle._pin_columns(source, all_columns);
        END IF;
        IF NOT (intact AND fits) THEN
            PERFORM pgtrickle._place_capture_triggers(source, relations);
            -- Partitions that have left since.
            PERFORM pgtrickle._drop_capture_triggers(source, gone)
            FROM unnest(capture.relations) AS gone WHERE NOT gone = ANY (relations);
        END IF;
        INSERT INTO pgtrickle.pgt_captures AS c (source_relid, captured_columns, fingerprint, relations, trigger_state, system)
        VALUES (source, all_columns, pgtrickle._fingerprint(source, all_columns), relations,
                pgtrickle._trigger_state(source, relations), pgtrickle._system())
        ON CONFLICT (source_relid) DO UPDATE
        SET captured_columns = excluded.captured_columns, fingerprint = excluded.fingerprint, relations = excluded.relations,
            trigger_state = excluded.trigger_state, system = excluded.system,
            generation = CASE WHEN intact THEN c.generation ELSE gen_random_uuid() END
        RETURNING * INTO capture;
    END IF;

    PERFORM pgtrickle._grant_buffer(source, owner, columns);
    RETURN jsonb_build_object('installed', NOT intact, 'extended', intact AND NOT covered,
                              'generation', capture.generation, 'columns', to_jsonb(capture.captured_columns));
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._capture_source(oid, oid, text[], boolean, boolean, text) FROM PUBLIC;


-- Raises HW005, with what is to be captured ahead for a role.
DROP FUNCTION IF EXISTS pgtrickle._ask_for_capture(oid, oid, text[], boolean, boolean);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._ask_for_capture(
    reader oid, source oid, columns text[], keyed boolean, emptying boolean, late boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HW005',
        MESSAGE = format('changes of table "%s" are not captured yet', pgtrickle._qualified(source)),
        DETAIL = jsonb_build_object('reader', reader::bigint, 'source', source::bigint, 'columns', to_jsonb(columns),
                                    'keyed', keyed, 'emptying', emptying, 'late', late,
                                    'one_snapshot', current_setting('transaction_isolation') <> 'read committed'),
        HINT = 'Connect through the server, which captures them in a transaction of its own.';
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._ask_for_capture(oid, oid, text[], boolean, boolean, boolean) FROM PUBLIC;


-- Raises 55006 if this transaction has locks, on the relations of a source or on its buffer, behind which another one that
-- captures these columns would wait for ever.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_own_locks(source oid, relations oid[], columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer oid := CASE WHEN NOT pgtrickle._buffer_fits(source, columns)
                       THEN to_regclass('pgtrickle_changes.changes_' || source)::oid END;
BEGIN
    IF EXISTS (SELECT FROM pg_locks l
               WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
                 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                 AND (l.relation = ANY (relations) AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
                      OR l.relation = buffer)) THEN
        RAISE EXCEPTION USING ERRCODE = '55006',
            MESSAGE = format('changes of table "%s" cannot be captured while this transaction uses it', pgtrickle._qualified(source)),
            HINT = 'Do it in a transaction of its own.';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_own_locks(oid, oid[], text[]) FROM PUBLIC;


-- Capture a source for the transaction of somebody who may not lock it: what _ask_for_capture says. For the engine, in a
-- transaction of its own. Returns {}, or {"locked": message} where a lock cannot be had soon. Until the other transaction
-- has the source's lock nothing keeps it captured: whoever asks asks again then. Raises 42501 and 0A000.
CREATE OR REPLACE FUNCTION pgtrickle._capture_ahead(wanted jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    source oid := (wanted->>'source')::oid;
BEGIN
    PERFORM pgtrickle._capture_source((wanted->>'reader')::oid, source, ARRAY(SELECT jsonb_array_elements_text(wanted->'columns')),
                                      (wanted->>'keyed')::boolean, coalesce((wanted->>'late')::boolean, true), NULL);
    IF (wanted->>'emptying')::boolean THEN
        PERFORM pgtrickle._capture_emptying(source);
    END IF;
    RETURN '{}';
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN jsonb_build_object('locked', SQLERRM);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._capture_ahead(jsonb) FROM PUBLIC;


-- The same for a stream table, with its dependency noted as it is now. Returns what _capture_source does: after
-- "installed" or "extended" it must be populated from a younger snapshot.
DROP FUNCTION IF EXISTS pgtrickle._track_source(bigint, oid, text[]);  -- its earlier signature
CREATE OR REPLACE FUNCTION pgtrickle._track_source(pgt_id bigint, source oid, columns text[], keyed boolean DEFAULT false)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    owner oid := pgtrickle._owner_of(pgt_id);
    sorted text[] := ARRAY(SELECT DISTINCT name FROM unnest(coalesce(columns, '{}')) AS name ORDER BY name);
    captured jsonb := pgtrickle._capture_source(owner, source, sorted, keyed, true, 'Use refresh_mode => ''FULL''.');
BEGIN
    PERFORM pgtrickle._note_dependency(pgt_id, source, sorted, (captured->>'generation')::uuid);
    PERFORM pgtrickle._check_wal_sources(pgt_id);
    RETURN captured;
END $$;


-- The same for several sources, an array of {"relid", "columns", "keyed"}, in the order of their OIDs, so that two of
-- these cannot deadlock. Returns whether any of them was not captured as it must be.
CREATE OR REPLACE FUNCTION pgtrickle._track_sources(pgt_id bigint, sources jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    tracked jsonb;
    fresh boolean := false;
    relid oid;
    columns text[];
    keyed boolean;
BEGIN
    FOR relid, columns, keyed IN
        SELECT (s->>'relid')::oid, ARRAY(SELECT jsonb_array_elements_text(s->'columns')), coalesce((s->>'keyed')::boolean, false)
        FROM jsonb_array_elements(sources) AS s ORDER BY 1
    LOOP
        tracked := pgtrickle._track_source(pgt_id, relid, columns, keyed);
        fresh := fresh OR (tracked->'installed')::boolean OR (tracked->'extended')::boolean;
    END LOOP;
    RETURN fresh;
END $$;


-- The same, as {"fresh": boolean}, without waiting long for a lock: where one cannot be had all of it is undone, all
-- locks are let go, and {"locked": message} is returned; or {"ahead": what _capture_ahead is to capture before}.
CREATE OR REPLACE FUNCTION pgtrickle._try_track_sources(pgt_id bigint, sources jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    wanted text;
BEGIN
    RETURN jsonb_build_object('fresh', pgtrickle._track_sources(pgt_id, sources));
EXCEPTION WHEN lock_not_available THEN
    RETURN jsonb_build_object('locked', SQLERRM);
WHEN SQLSTATE 'HW005' THEN
    GET STACKED DIAGNOSTICS wanted = PG_EXCEPTION_DETAIL;
    RETURN jsonb_build_object('ahead', wanted::jsonb);
END $$;


-- The name of a source; of one that was dropped the name that it had.
CREATE OR REPLACE FUNCTION pgtrickle._source_name(dependency pgtrickle.pgt_dependencies) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(pgtrickle._qualified(dependency.source_relid),
                    concat_ws('.', quote_ident(dependency.column_snapshot->>'schema'), quote_ident(dependency.column_snapshot->>'name')))
$$;


-- Write down what a stream table relies on in a source, as it is now. Without a generation the source is not captured.
CREATE OR REPLACE FUNCTION pgtrickle._note_dependency(pgt_id bigint, source oid, columns text[], generation uuid)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    snapshot jsonb := pgtrickle._column_snapshot(_note_dependency.source, _note_dependency.columns)
                      || jsonb_build_object('known', pgtrickle._known_names(_note_dependency.source));
    -- Of an earlier version's capture, which is gone, triggers follow.
    mode text := CASE WHEN _note_dependency.generation IS NOT NULL THEN coalesce(
        (SELECT k.mode FROM pgtrickle.pgt_captures k WHERE k.source_relid = _note_dependency.source), 'TRIGGER') END;
    slot name := CASE WHEN mode = 'WAL' THEN pgtrickle._wal_slot() END;
BEGIN
    INSERT INTO pgtrickle.pgt_dependencies AS d (pgt_id, source_relid, source_type, columns_used, column_snapshot,
                                                 schema_fingerprint, cdc_mode, slot_name, capture_generation)
    VALUES (_note_dependency.pgt_id, _note_dependency.source, pgtrickle._source_type(_note_dependency.source),
            _note_dependency.columns, snapshot, pgtrickle._fingerprint(_note_dependency.source, _note_dependency.columns), mode, slot,
            _note_dependency.generation)
    ON CONFLICT (pgt_id, source_relid) DO UPDATE
    SET source_type = excluded.source_type, columns_used = excluded.columns_used,
        -- The text of the query is still the one that was written for these names.
        column_snapshot = excluded.column_snapshot || jsonb_build_object('known',
            coalesce(d.column_snapshot->'known', excluded.column_snapshot->'known')),
        schema_fingerprint = excluded.schema_fingerprint,
        cdc_mode = excluded.cdc_mode, slot_name = excluded.slot_name, capture_generation = excluded.capture_generation;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._note_dependency(bigint, oid, text[], uuid) FROM PUBLIC;


-- Raises 42501 unless a role may read these columns, all rows of them.
CREATE OR REPLACE FUNCTION pgtrickle._check_readable(owner oid, source oid, columns text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    obstacle text := pgtrickle._read_obstacle(owner, source, columns);
BEGIN
    IF obstacle IS NOT NULL THEN
        PERFORM pgtrickle._raise('42501', obstacle, NULL, CASE WHEN starts_with(obstacle, 'row-level security') THEN
            'A role that it does not apply to can own the stream table: the owner of the table, or one with BYPASSRLS.' END);
    END IF;
END $$;


-- Drop the capture triggers of a source from one relation, if the relation still exists.
CREATE OR REPLACE FUNCTION pgtrickle._drop_capture_triggers(source oid, relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    trigger_name name;
BEGIN
    FOR trigger_name IN
        SELECT t.tgname FROM pg_trigger t
        WHERE t.tgrelid = relation
          AND (t.tgname IN (SELECT c.name FROM pgtrickle._capture_triggers(source) c)
               OR t.tgname IN ('pg_trickle_pin_' || source, 'pg_trickle_cdc_emptied_' || source, 'pg_trickle_updates_' || source)
               OR (t.tgname IN ('~pg_trickle_count_' || source, '~pg_trickle_insert_' || source) AND t.tgparentid = 0))
    LOOP
        CONTINUE WHEN pgtrickle._qualified(relation) IS NULL;  -- it has been dropped meanwhile
        -- At once: DROP TRIGGER begins with a weaker lock, and two of them deadlock.
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', pgtrickle._qualified(relation));
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', trigger_name, pgtrickle._qualified(relation));
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_capture_triggers(oid, oid) FROM PUBLIC;


-- Remove the triggers, the functions and the buffer of a source.
CREATE OR REPLACE FUNCTION pgtrickle._drop_capture(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text;
BEGIN
    PERFORM pgtrickle._end_wal(source, false) FROM pgtrickle.pgt_captures c WHERE c.source_relid = source AND c.mode = 'WAL';
    PERFORM pgtrickle._drop_capture_triggers(source, relid)
    FROM pgtrickle.pgt_captures c, unnest(c.relations) AS relid
    WHERE c.source_relid = source;
    FOR target IN
        SELECT format('pgtrickle_changes.%I()', t.name) FROM pgtrickle._capture_triggers(source) t
        WHERE to_regprocedure(format('pgtrickle_changes.%I()', t.name)) IS NOT NULL
    LOOP
        EXECUTE 'DROP FUNCTION IF EXISTS ' || target;
    END LOOP;
    -- By name, and IF EXISTS: what another session has just dropped may still be looked up.
    IF to_regclass('pgtrickle_changes.changes_' || source) IS NOT NULL THEN
        EXECUTE format('DROP TABLE IF EXISTS pgtrickle_changes.%I', 'changes_' || source);
    END IF;
    DELETE FROM pgtrickle.pgt_crash_witnesses w WHERE w.source_relid = source;
    DELETE FROM pgtrickle.pgt_captures c WHERE c.source_relid = source;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_capture(oid) FROM PUBLIC;


-- Whether anybody needs the changes of a source: a stream table or a subscription.
CREATE OR REPLACE FUNCTION pgtrickle._is_followed(source oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = source AND d.cdc_mode IS NOT NULL)
        OR EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u
                   WHERE u.source_relid = source AND u.capture_generation IS NOT NULL)
$$;


-- End the capture of sources that nobody needs any more; returns how many were ended. A source that somebody
-- is just starting to use, or that is busy for half a second, is left for the next time; also whatever comes
-- after one that is busy, since those that were ended stay locked until the transaction ends. A session of a client's ends
-- what it may lock itself, the engine the rest.
CREATE OR REPLACE FUNCTION pgtrickle._untrack_sources() RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    c record;
    ended int := 0;
BEGIN
    FOR c IN
        SELECT k.source_relid FROM pgtrickle.pgt_captures k
        WHERE NOT pgtrickle._is_followed(k.source_relid) AND pgtrickle._may_lock(k.source_relid)
          AND (k.mode = 'TRIGGER' OR pgtrickle._ends_soon())
        ORDER BY k.source_relid
    LOOP
        CONTINUE WHEN NOT pgtrickle._own_source(c.source_relid);
        CONTINUE WHEN pgtrickle._is_followed(c.source_relid);
        BEGIN
            PERFORM pgtrickle._drop_capture(c.source_relid);
            ended := ended + 1;
            -- Whoever waits for what is locked now may be waited for here: who gives way must not be the writer, whom PostgreSQL
            -- would end after deadlock_timeout.
            PERFORM set_config('lock_timeout', '50ms', true);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN  -- with another one that ends them
            EXIT WHEN ended > 0;
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', '500ms', true);
    IF pgtrickle._caller() = to_regrole(quote_ident(current_user))::oid THEN
        PERFORM pgtrickle._drop_copies();
    END IF;
    PERFORM pgtrickle._revoke_buffers(false);
    RETURN ended;
END $$;
