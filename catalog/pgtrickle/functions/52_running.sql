-- Whose rights a query has: statements run with a role's rights, and leave nothing behind that serves them elsewhere.


-- Functions that belong to roles, see _runner. No role may look into this schema: the owner of a function can alter it,
-- if he can name it.
CREATE SCHEMA IF NOT EXISTS pgtrickle_roles;
REVOKE ALL ON SCHEMA pgtrickle_roles FROM PUBLIC;


-- A function in which statements run with a role's rights and nobody else's, made at the first call: in pgtrickle_roles,
-- `as_` or `rows_as_` and the role's OID. It belongs to the role: neither SET ROLE nor RESET ROLE work inside it, so a
-- function in a query cannot become the one who runs it. `settings` are SET clauses that it has beside the common ones.
CREATE OR REPLACE FUNCTION pgtrickle._role_function(
    owner oid, prefix text, arguments text, returns text, settings text, body text
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role name := (SELECT a.rolname FROM pg_roles a WHERE a.oid = owner);
    name text := prefix || owner;
    signature text := format('pgtrickle_roles.%I(%s)', name, arguments);
    common CONSTANT text := $set$
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
        SET geqo_effort = 2 $set$;
    -- What its present version has, and earlier ones lacked.
    newest CONSTANT text[] := ARRAY['geqo_effort=2'];
    superuser CONSTANT boolean := (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = current_user);
    present boolean;
BEGIN
    IF NOT pgtrickle._may_become(to_regrole(quote_ident(current_user))::oid, owner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('the server''s role "%s" must be a member of role "%s" to refresh its stream tables', current_user, role),
            HINT = format('GRANT %I TO %I;', role, current_user);
    END IF;
    SELECT p.proowner = owner AND p.proconfig @> newest AND p.prosrc = body INTO present
    FROM pg_proc p WHERE p.oid = to_regprocedure(signature);
    IF present IS NOT TRUE AND NOT superuser THEN
        -- The privileges of the schema are changed below. The lock stays until the transaction ends, which a client decides.
        LOCK TABLE pgtrickle.pgt_role_functions_lock IN EXCLUSIVE MODE;
        -- Somebody else may have made it while this one waited for the lock.
        SELECT p.proowner = owner AND p.proconfig @> newest AND p.prosrc = body INTO present
        FROM pg_proc p WHERE p.oid = to_regprocedure(signature);
    END IF;
    IF present IS NOT TRUE THEN
        IF present IS NOT NULL THEN
            EXECUTE format('DROP FUNCTION %s', signature);
        END IF;
        BEGIN
            EXECUTE format('CREATE FUNCTION %s RETURNS %s LANGUAGE plpgsql VOLATILE SECURITY DEFINER %s %s AS %L',
                           signature, returns, common, settings, body);
        EXCEPTION WHEN duplicate_function OR unique_violation THEN
            -- Made after the snapshot of this transaction, or after what is cached of the catalog was read, or at the same time.
            RETURN name;
        END;
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, current_user);
        IF superuser THEN
            EXECUTE format('ALTER FUNCTION %s OWNER TO %I', signature, role);
        ELSIF role <> current_user THEN
            -- A new owner must be able to create in the schema, for the moment of becoming the owner.
            EXECUTE format('GRANT CREATE ON SCHEMA pgtrickle_roles TO %I', role);
            EXECUTE format('ALTER FUNCTION %s OWNER TO %I', signature, role);
            EXECUTE format('REVOKE CREATE ON SCHEMA pgtrickle_roles FROM %I', role);
        END IF;
    END IF;
    RETURN name;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._role_function(oid, text, text, text, text, text) FROM PUBLIC;
DROP FUNCTION IF EXISTS pgtrickle._role_function(oid, text, text, text, text);  -- of an earlier version


-- The function of a role that runs a statement which returns one jsonb. Called by _run alone.
CREATE OR REPLACE FUNCTION pgtrickle._runner(owner oid) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._role_function(owner, 'as_', 'text, jsonb', 'jsonb', '', $body$
            DECLARE
                result jsonb;
            BEGIN
                -- Not a SET clause of the function: only a superuser could create one with a parameter of our own.
                PERFORM set_config('pgtrickle.maintenance', 'on', true);
                EXECUTE $1 INTO result USING $2;
                PERFORM set_config('pgtrickle.maintenance', 'off', true);
                IF session_user <> current_user THEN
                    PERFORM pgtrickle._fire_deferred();
                END IF;
                RETURN result;
            END $body$)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._runner(oid) FROM PUBLIC;


-- Have the triggers fire that a role's statement has deferred, before the role's function returns: those that are left to
-- the commit could set what the session keeps and, until PostgreSQL 18, run with the rights of whoever commits. A trigger could
-- put others off in turn. To do so it must write to a table that has such triggers; as long as any does, all is done once more.
CREATE OR REPLACE FUNCTION pgtrickle._fire_deferred() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    written bigint;
BEGIN
    FOR turn IN 1 .. 10 LOOP
        written := pgtrickle._deferrable_writes();
        SET CONSTRAINTS ALL IMMEDIATE;
        IF pgtrickle._deferrable_writes() = written THEN
            SET CONSTRAINTS pgtrickle.request_left DEFERRED;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'deferred triggers of the query go on deferring others';
END $$;


-- How many rows this transaction has written to tables with triggers that can be deferred. Constraints count, too: checking
-- one may call a function of the owner's.
CREATE OR REPLACE FUNCTION pgtrickle._deferrable_writes() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(t.tgrelid) + pg_stat_get_xact_tuples_updated(t.tgrelid)
                        + pg_stat_get_xact_tuples_deleted(t.tgrelid)), 0)::bigint
    FROM pg_trigger t WHERE t.tgdeferrable
$$;


-- After a statement with another role's rights: raises 42501 if its functions have left something behind in the session,
-- whose search_path is `path` now and had these _session_objects (NULL: it is the role's own session) and _session_locks (NULL:
-- they are not looked at) before. Where the statement is one that makes temporary relations these do not count. The error
-- undoes a search_path that was changed. The call itself must hold nothing that such a path could redirect.
CREATE OR REPLACE FUNCTION pgtrickle._check_left_behind(path text, known text[], locks jsonb, making boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present text[];
    left_behind text;
BEGIN
    IF path <> 'pg_catalog, pg_temp' THEN
        left_behind := 'search_path';
    END IF;
    IF known IS NOT NULL THEN
        present := pgtrickle._session_objects();
        IF NOT 'encoding ' || pg_client_encoding() = ANY (known) THEN
            left_behind := 'client_encoding';
        ELSIF present <> known AND NOT (making AND pgtrickle._but_relations(present) = pgtrickle._but_relations(known)) THEN
            left_behind := 'cursors, prepared statements or temporary objects';
        END IF;
        IF locks IS NOT NULL AND pgtrickle._restore_session(known, locks) THEN
            left_behind := coalesce(left_behind, 'advisory locks');
        END IF;
    END IF;
    IF left_behind IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('a function in the query changes the %s of the session', left_behind),
            HINT = 'Functions in a defining query must have no effects.';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_left_behind(text, text[], jsonb, boolean) FROM PUBLIC;
DROP FUNCTION IF EXISTS pgtrickle._check_left_behind(text, text[]);  -- of an earlier version


-- _session_objects without the temporary relations.
CREATE OR REPLACE FUNCTION pgtrickle._but_relations(objects text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(SELECT o FROM unnest(objects) AS o WHERE NOT starts_with(o, 'relation ') ORDER BY 1)
$$;


-- Run a statement that returns one jsonb ($1 in it is the parameters) with the rights of the calling role and nobody
-- else's. A session that refreshes a stream table of another role takes on that role first.
--
-- What the statement's functions leave behind in the session must not serve them once it has its own role back: a
-- search_path in which names mean something else, a cursor that is only read when the transaction commits, a prepared
-- statement under a name that the session uses, an advisory lock. It is an error, and undone, also where the statement fails.
-- (The server's own sessions keep no statement under a name, and are reset when they are given back.)
--
-- `making`: the statement makes temporary relations for its role. That is for what is undone before the session goes on, or for
-- sessions in which no other role's statements run.
DROP FUNCTION IF EXISTS pgtrickle._run(text, jsonb);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._run(statement text, parameters jsonb, making boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := pgtrickle._caller();
    foreign_session boolean := to_regrole(quote_ident(session_user))::oid <> caller;
    call text := format('SELECT pgtrickle_roles.%I($1, $2)', pgtrickle._runner(caller));
    known text[];
    locks jsonb;
    result jsonb;
BEGIN
    PERFORM pgtrickle._check_top_level();
    IF foreign_session THEN
        known := pgtrickle._session_objects();
    END IF;
    IF NOT foreign_session OR current_setting('headwater.engine', true) = 'on' THEN
        EXECUTE call INTO result USING statement, parameters;
    ELSE
        locks := pgtrickle._session_locks();
        BEGIN
            EXECUTE call INTO result USING statement, parameters;
        EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
            PERFORM pgtrickle._restore_session(known, locks);
            RAISE;
        END;
    END IF;
    PERFORM pgtrickle._check_left_behind(pg_catalog.current_setting('search_path'), known, locks, making);
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


-- What outlives a statement in a session and can hold code, or be found in the place of something else: prepared statements,
-- holdable cursors, temporary relations, types, functions and whatever else; and in what encoding texts are sent. (The other systems, which can be installed alone, have the same.)
CREATE OR REPLACE FUNCTION pgtrickle._session_objects() RETURNS text[]
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
-- holds it, so that nobody else can get it. (The other systems, which can be installed alone, have the same.)
CREATE OR REPLACE FUNCTION pgtrickle._session_locks() RETURNS jsonb
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
        key := pgtrickle._advisory_key(title);
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


-- The arguments of the functions that take or release a lock of _session_locks. (The other systems, which can be installed alone, have the same.)
CREATE OR REPLACE FUNCTION pgtrickle._advisory_key(title text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE split_part(title, ' ', 3)
           WHEN '1' THEN quote_literal(split_part(title, ' ', 1)::bigint << 32 | split_part(title, ' ', 2)::bigint) || '::bigint'
           ELSE format('%s, %s', split_part(title, ' ', 1)::oid::int, split_part(title, ' ', 2)::oid::int) END
$$;


-- Undo what no rollback does, given what was there before (_session_objects and _session_locks): take back prepared
-- statements and advisory locks of the session, and take again what it held. Whether any locks had changed. Raises 55P03 where
-- somebody else has got one meanwhile. (The other systems, which can be installed alone, have the same.)
CREATE OR REPLACE FUNCTION pgtrickle._restore_session(known text[], locks jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = error AS $$
DECLARE
    present jsonb := pgtrickle._session_locks();
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
            EXECUTE format('SELECT pg_advisory_unlock%s(%s)', suffix, pgtrickle._advisory_key(title));
        END LOOP;
        FOR n IN coalesce((present->>title)::int, 0) + 1 .. coalesce((locks->>title)::int, 0) LOOP
            EXECUTE format('SELECT pg_try_advisory_lock%s(%s)', suffix, pgtrickle._advisory_key(title)) INTO taken;
            IF NOT taken THEN
                RAISE EXCEPTION USING ERRCODE = '55P03',
                    MESSAGE = format('an advisory lock of the session (%s) was released by another role''s code, and is now held by others',
                                     pgtrickle._advisory_key(title));
            END IF;
        END LOOP;
    END LOOP;
    RETURN true;
END $$;


-- Have the session listen to the channels that it has listened to so far, whatever its transaction has said about that.
CREATE OR REPLACE FUNCTION pgtrickle._listen_as_before() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    channel text;
BEGIN
    UNLISTEN *;
    FOR channel IN SELECT c FROM pg_listening_channels() AS c LOOP
        EXECUTE format('LISTEN %I', channel);
    END LOOP;
END $$;
