-- What code of other roles can leave behind in a session, and how it is undone. Each system has these functions in the schema of
-- its internals, since each can be installed alone.


-- What outlives a statement in a session and can hold code, or be found in the place of something else: prepared statements,
-- holdable cursors, temporary relations, types, functions and whatever else; and in what encoding texts are sent.
CREATE OR REPLACE FUNCTION @internal@._session_objects() RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(SELECT format('encoding %s', pg_client_encoding())
                 UNION ALL SELECT format('prepared %s %s', p.name, p.prepare_time) FROM pg_prepared_statements p
                 UNION ALL SELECT format('cursor %s %s', c.name, c.creation_time) FROM pg_cursors c WHERE c.is_holdable
                 UNION ALL SELECT format('relation %s', r.oid) FROM pg_class r
                           WHERE pg_my_temp_schema() <> 0 AND r.relnamespace = pg_my_temp_schema()
                 UNION ALL SELECT format('type %s', t.oid) FROM pg_type t
                           WHERE pg_my_temp_schema() <> 0 AND t.typnamespace = pg_my_temp_schema() AND t.typtype NOT IN ('b', 'c')
                 UNION ALL SELECT format('other %s %s', d.classid, d.objid) FROM pg_depend d
                           WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()
                             AND d.classid NOT IN ('pg_class'::regclass, 'pg_type'::regclass)
                 ORDER BY 1)
$$;


-- The advisory locks that the session itself holds, as opposed to its transaction: {"class, object, kind, mode": how often}.
-- pg_locks does not tell, so each is released until nothing is left, and taken as often again. Meanwhile the transaction
-- holds it, so that nobody else can get it.
CREATE OR REPLACE FUNCTION @internal@._session_locks() RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = error AS $$
DECLARE
    result jsonb := '{}';
    title text;
    suffix text;
    key text;
    held integer;
    released boolean;
BEGIN
    FOR title IN
        SELECT format('%s %s %s %s', l.classid, l.objid, l.objsubid, l.mode) FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    LOOP
        held := 0;
        suffix := CASE WHEN title LIKE '% ShareLock' THEN '_shared' ELSE '' END;
        key := @internal@._advisory_key(title);
        BEGIN
            EXECUTE format('SELECT pg_advisory_xact_lock%s(%s)', suffix, key);
            LOOP
                EXECUTE format('SELECT pg_advisory_unlock%s(%s)', suffix, key) INTO released;
                EXIT WHEN NOT released;
                held := held + 1;
            END LOOP;
            FOR n IN 1 .. held LOOP
                EXECUTE format('SELECT pg_advisory_lock%s(%s)', suffix, key);
            END LOOP;
            RAISE SQLSTATE 'HW004';  -- so that the transaction holds it no longer
        EXCEPTION WHEN SQLSTATE 'HW004' THEN
            IF held > 0 THEN
                result := result || jsonb_build_object(title, held);
            END IF;
        END;
    END LOOP;
    RETURN result;
END $$;


-- The arguments of the functions that take or release a lock of _session_locks.
CREATE OR REPLACE FUNCTION @internal@._advisory_key(title text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE split_part(title, ' ', 3)
           WHEN '1' THEN quote_literal(split_part(title, ' ', 1)::bigint << 32 | split_part(title, ' ', 2)::bigint) || '::bigint'
           ELSE format('%s, %s', split_part(title, ' ', 1)::oid::int, split_part(title, ' ', 2)::oid::int) END
$$;


-- Undo what no rollback does, given what was there before (_session_objects and _session_locks): take back prepared
-- statements and advisory locks of the session, and take again what it held. Whether any locks had changed. Raises 55P03 where
-- somebody else has got one meanwhile.
CREATE OR REPLACE FUNCTION @internal@._restore_session(known text[], locks jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = error AS $$
DECLARE
    present jsonb := @internal@._session_locks();
    title text;
    suffix text;
    taken boolean;
BEGIN
    FOR title IN
        SELECT p.name FROM pg_prepared_statements p
        WHERE p.from_sql AND format('prepared %s %s', p.name, p.prepare_time) <> ALL (known)
    LOOP
        EXECUTE format('DEALLOCATE %I', title);
    END LOOP;
    IF present = locks THEN
        RETURN false;
    END IF;
    FOR title IN SELECT k FROM jsonb_object_keys(present || locks) AS k LOOP
        suffix := CASE WHEN title LIKE '% ShareLock' THEN '_shared' ELSE '' END;
        FOR n IN coalesce((locks->>title)::int, 0) + 1 .. coalesce((present->>title)::int, 0) LOOP
            EXECUTE format('SELECT pg_advisory_unlock%s(%s)', suffix, @internal@._advisory_key(title));
        END LOOP;
        FOR n IN coalesce((present->>title)::int, 0) + 1 .. coalesce((locks->>title)::int, 0) LOOP
            EXECUTE format('SELECT pg_try_advisory_lock%s(%s)', suffix, @internal@._advisory_key(title)) INTO taken;
            IF NOT taken THEN
                RAISE EXCEPTION USING ERRCODE = '55P03',
                    MESSAGE = format('an advisory lock of the session (%s) was released by another role''s code, and is now held by others',
                                     @internal@._advisory_key(title));
            END IF;
        END LOOP;
    END LOOP;
    RETURN true;
END $$;
