-- Hooks: functions of users (queue_extra_maint) that maintenance calls with the queue's name.
--
-- A hook runs with the rights of the role that attached it (see _guard_queue, _hook_role), never with the server's: it is called
-- by a function that is made for this call and belongs to that role, in which neither SET ROLE nor RESET ROLE works. What a hook leaves
-- behind in the session must not serve it once the session has its own rights back: see _check_hook.


-- The name of a function or table as it stands in a statement: the first dot ends the schema, which is public without one.
CREATE OR REPLACE FUNCTION pgque.quote_fqname(i_name text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE strpos(i_name, '.') WHEN 0 THEN 'public.' || quote_ident(i_name)
            ELSE quote_ident(left(i_name, strpos(i_name, '.') - 1)) || '.' || quote_ident(substr(i_name, strpos(i_name, '.') + 1)) END;


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


-- With whose rights the hook of this name is to be called that a role has attached: that role's. Who may replace the hook
-- would get them; so if it is somebody else's, no superuser's, it must be SECURITY DEFINER, and is called with its owner's
-- rights. Raises an error where there is no such hook, or where it must not be called.
DROP FUNCTION IF EXISTS pgque._hook(text);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgque._hook_role(name text, attached_by regrole) RETURNS regrole
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target constant text := pgque.quote_fqname(name) || '(text)';
    hook pg_proc;
BEGIN
    SELECT p.* INTO hook FROM pg_proc p WHERE p.oid = to_regprocedure(target) AND p.prokind = 'f';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42883', MESSAGE = format('function %s does not exist', target),
            HINT = 'A hook is named with its schema, and has one argument of type text.';
    ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = attached_by
                         AND (NOT pgque._is_others(r.oid) OR pg_has_role(r.oid, to_regrole('pgque_admin'), 'USAGE'))) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', HINT = 'Set queue_extra_maint without it, then with it.',
            MESSAGE = format('the role that attached it, %s, may not administer queues', coalesce(attached_by::text, 'which is not known'));
    ELSIF hook.proowner = attached_by OR NOT pgque._is_others(hook.proowner) THEN
        RETURN attached_by;
    ELSIF NOT hook.prosecdef OR NOT has_function_privilege(attached_by, hook.oid, 'EXECUTE') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('role %s could make anything of it, which would run with the rights of role %s, which attached it',
                             hook.proowner::regrole, attached_by),
            HINT = 'Let its owner attach it, or make it SECURITY DEFINER and grant EXECUTE.';
    END IF;
    RETURN hook.proowner::regrole;
END $$;


-- Call one hook of a queue.
DROP FUNCTION IF EXISTS pgque._call_hook(text, text);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgque._call_hook(name text, attached_by regrole, queue text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target constant text := pgque.quote_fqname(name);
    owner constant text := pgque._hook_role(name, attached_by)::text;  -- quoted
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
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
       AND NOT has_schema_privilege(owner::regrole, 'pgque', 'CREATE') THEN
        -- A new owner must be able to create in the schema, for the moment of becoming the owner.
        EXECUTE format('GRANT CREATE ON SCHEMA pgque TO %s', owner);
        EXECUTE format('ALTER FUNCTION %s(text) OWNER TO %s', caller, owner);
        EXECUTE format('REVOKE CREATE ON SCHEMA pgque FROM %s', owner);
    ELSE
        EXECUTE format('ALTER FUNCTION %s(text) OWNER TO %s', caller, owner);
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
    roles regrole[];
    called integer := 0;
BEGIN
    SELECT array_agg(q.queue_name ORDER BY q.queue_id, h.number), array_agg(h.hook ORDER BY q.queue_id, h.number),
           array_agg(h.role ORDER BY q.queue_id, h.number)
      INTO names, hooks, roles
      FROM pgque.queue q, unnest(q.queue_extra_maint, q.queue_extra_maint_roles) WITH ORDINALITY AS h (hook, role, number)
     WHERE _call_hooks.queue IS NULL OR q.queue_name = _call_hooks.queue;
    IF hooks IS NULL THEN
        RETURN 0;
    END IF;
    FOR i IN 1 .. cardinality(hooks) LOOP
        BEGIN
            PERFORM pgque._call_hook(hooks[i], roles[i], names[i]);
            called := called + 1;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'maint: % of queue % failed: %', hooks[i], names[i], sqlerrm;
        END;
    END LOOP;
    PERFORM pg_catalog.set_config('search_path', (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'search_path'), false);
    RETURN called;
END $$;
