-- Hooks: functions of users (queue_extra_maint) that maintenance calls with the queue's name.
--
-- A hook runs with the rights of its owner and nobody else's, also its default arguments and whatever else belongs to the
-- call: it is called by a function that is made for this call and belongs to the hook's owner, in which neither SET ROLE
-- nor RESET ROLE works. What a hook leaves behind in the session must not serve it once the session has its own rights back:
-- see _check_hook.


-- How many rows this transaction has written to tables with triggers that can be deferred. Until PostgreSQL 18 such a
-- trigger runs with the rights of whoever commits; also what computes the indexes of deferrable constraints once more.
-- Foreign keys, which have rights of their own, do not count.
CREATE OR REPLACE FUNCTION pgque._deferrable_writes() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('server_version_num')::int >= 180000 THEN
        RETURN 0;
    ELSIF NOT current_setting('track_counts')::boolean THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'track_counts must be on: what other roles defer is not known otherwise';
    END IF;
    RETURN (SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(t.tgrelid) + pg_stat_get_xact_tuples_updated(t.tgrelid)
                                + pg_stat_get_xact_tuples_deleted(t.tgrelid)), 0)
            FROM pg_trigger t
            WHERE t.tgdeferrable AND (NOT t.tgisinternal OR t.tgfoid = 'unique_key_recheck'::regproc));
END $$;


-- After a hook: raises 42501 if it has left something behind. `path` is the session's search_path now, and `known` what
-- _session_objects() and _session_locks() were before.
DROP FUNCTION IF EXISTS pgque._check_hook(text, text[]);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgque._check_hook(path text, known text[], locks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    left_behind text;
BEGIN
    IF path <> 'pg_catalog, pg_temp' THEN
        left_behind := 'another search_path';
    ELSIF pgque._deferrable_writes() > 0 THEN
        left_behind := 'changes of tables with deferrable triggers';
    ELSIF pgque._session_objects() <> known THEN
        left_behind := 'cursors, prepared statements or temporary objects';
    END IF;
    IF pgque._restore_session(known, locks) THEN
        left_behind := coalesce(left_behind, 'advisory locks');
    END IF;
    IF left_behind IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('it leaves %s behind', left_behind);
    END IF;
END $$;


-- The hook of this name, which has a schema. Raises an error where there is none, or one that may not be called: it must
-- be offered to administrators with its owner's rights, and its owner must be one who may register it.
CREATE OR REPLACE FUNCTION pgque._hook(name text) RETURNS pg_proc
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hook pg_proc;
    admin oid := to_regrole('pgque_admin');
BEGIN
    SELECT p.* INTO hook
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE ARRAY[n.nspname, p.proname]::text[] = parse_ident(name)
       AND p.prokind = 'f' AND p.pronargs = 1 AND p.proargtypes[0] = 'text'::regtype AND p.provariadic = 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42883', MESSAGE = format('function %s(text) does not exist', name),
            HINT = 'A hook is named with its schema, and has one argument of type text.';
    ELSIF NOT hook.prosecdef OR admin IS NULL OR NOT has_function_privilege(admin, hook.oid, 'EXECUTE') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = 'it must be SECURITY DEFINER, and pgque_admin must be allowed to execute it';
    ELSIF NOT pg_has_role(hook.proowner, admin, 'USAGE')
          OR EXISTS (SELECT FROM pg_roles r WHERE r.oid = hook.proowner AND r.rolsuper)
          OR hook.proowner = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgque') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = 'it must belong to a member of pgque_admin that is neither a superuser nor the owner of schema pgque';
    END IF;
    RETURN hook;
END $$;


-- Call one hook of a queue.
CREATE OR REPLACE FUNCTION pgque._call_hook(name text, queue text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hook pg_proc := pgque._hook(name);
    target text := (SELECT format('%I.%I', n.nspname, hook.proname) FROM pg_namespace n WHERE n.oid = hook.pronamespace);
    owner text := pg_get_userbyid(hook.proowner);
    caller text := format('pgque.%I', '_calls_hook_' || pg_backend_pid());  -- seen by nobody else: it goes before the commit
    known text[];
    locks jsonb;
BEGIN
    IF pgque._deferrable_writes() > 0 THEN
        RAISE EXCEPTION USING ERRCODE = '55000',
            MESSAGE = 'the transaction has changed tables with deferrable triggers, which would run with its owner''s rights',
            HINT = 'Call pgque.maint() in a transaction of its own.';
    END IF;
    EXECUTE format('CREATE FUNCTION %s(text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp AS %L', caller, format('BEGIN PERFORM %s($1); END', target));
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        -- A new owner must be able to create in the schema, for the moment of becoming the owner.
        EXECUTE format('GRANT CREATE ON SCHEMA pgque TO %I', owner);
        EXECUTE format('ALTER FUNCTION %s(text) OWNER TO %I', caller, owner);
        EXECUTE format('REVOKE CREATE ON SCHEMA pgque FROM %I', owner);
    ELSE
        EXECUTE format('ALTER FUNCTION %s(text) OWNER TO %I', caller, owner);
    END IF;
    known := pgque._session_objects();
    locks := pgque._session_locks();
    BEGIN
        EXECUTE format('SELECT %s($1)', caller) USING queue;
    EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
        PERFORM pgque._restore_session(known, locks);
        RAISE;
    END;
    -- Nothing in this call can be redirected by a search_path.
    PERFORM pgque._check_hook(pg_catalog.current_setting('search_path'), known, locks);
    EXECUTE format('DROP FUNCTION %s(text)', caller);
END $$;


-- Call the hooks of a queue, or of all; returns how many have succeeded. One that fails is undone, reported, and stops
-- nothing. A hook may have set the session's search_path to one that holds only after this transaction, which cannot be
-- seen: so the session has its default one afterwards.
CREATE OR REPLACE FUNCTION pgque._call_hooks(queue text) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    hooks text[];
    called integer := 0;
BEGIN
    SELECT array_agg(q.queue_name ORDER BY q.queue_id, h.number), array_agg(h.hook ORDER BY q.queue_id, h.number)
      INTO names, hooks
      FROM pgque.queue q, unnest(q.queue_extra_maint) WITH ORDINALITY AS h (hook, number)
     WHERE _call_hooks.queue IS NULL OR q.queue_name = _call_hooks.queue;
    IF hooks IS NULL THEN
        RETURN 0;
    END IF;
    FOR i IN 1 .. cardinality(hooks) LOOP
        BEGIN
            PERFORM pgque._call_hook(hooks[i], names[i]);
            called := called + 1;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'maint: % of queue % failed: %', hooks[i], names[i], sqlerrm;
        END;
    END LOOP;
    PERFORM pg_catalog.set_config('search_path', (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'search_path'), false);
    RETURN called;
END $$;
