-- Whose rights a query has: statements run with a role's rights, and leave nothing behind that serves them elsewhere.


-- Functions that belong to roles, see _runner. No role may look into this schema: the owner of a function can alter it,
-- if he can name it.
CREATE SCHEMA IF NOT EXISTS pgtrickle_roles;
REVOKE ALL ON SCHEMA pgtrickle_roles FROM PUBLIC;


-- The SET clauses of functions that run parts of a query, so that they do the same in every session.
CREATE OR REPLACE FUNCTION pgtrickle._pinned_clauses() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._rights_clauses() || $set$
        SET datestyle = 'ISO, YMD'
        SET timezone = 'UTC'
        SET intervalstyle = 'postgres'
        SET extra_float_digits = 1
        SET bytea_output = 'hex' $set$
$$;


-- Those of them by which a function does what it is meant to do, and no more.
CREATE OR REPLACE FUNCTION pgtrickle._rights_clauses() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT $set$
        SET search_path = pg_catalog, pg_temp
        SET row_security = off $set$
$$;


-- Those of functions that plan: PostgreSQL plans what joins many tables as if it joined few.
CREATE OR REPLACE FUNCTION pgtrickle._planning_clauses() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT $set$
        SET from_collapse_limit = 11
        SET join_collapse_limit = 11
        -- A search through all orders of nine tables or more takes longer than the refresh.
        SET geqo_threshold = 9
        SET geqo_effort = 2 $set$
$$;


-- Make a function of the server's that of another role. Where the server is no superuser the caller has
-- pgt_role_functions_lock, since the privileges of the schema are changed for a moment.
CREATE OR REPLACE FUNCTION pgtrickle._give_function(signature text, owner oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role name := (SELECT a.rolname FROM pg_roles a WHERE a.oid = owner);
    place name := (SELECT n.nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                   WHERE p.oid = signature::regprocedure);
BEGIN
    IF (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = current_user) THEN
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', signature, role);
    ELSIF role <> current_user THEN
        -- A new owner must be able to create in the schema, for the moment of becoming the owner.
        EXECUTE format('GRANT CREATE ON SCHEMA %I TO %I', place, role);
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', signature, role);
        EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %I', place, role);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._give_function(text, oid) FROM PUBLIC;


-- A function in which statements run with a role's rights and nobody else's, made at the first call: in pgtrickle_roles,
-- `as_` or `rows_as_` and the role's OID. It belongs to the role: neither SET ROLE nor RESET ROLE work inside it, so a
-- function in a query cannot become the one who runs it. `settings` are SET clauses that it has beside the common ones.
CREATE OR REPLACE FUNCTION pgtrickle._role_function(
    owner oid, prefix text, arguments text, returns text, settings text, body text
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := prefix || owner;
    signature text := format('pgtrickle_roles.%I(%s)', name, arguments);
    -- What its present version has, and earlier ones lacked.
    newest CONSTANT text[] := ARRAY['geqo_effort=2'];
    present boolean;
BEGIN
    IF NOT pgtrickle._may_become(to_regrole(quote_ident(current_user))::oid, owner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('the server''s role "%s" must be a member of role "%s" to refresh its stream tables',
                             current_user, pg_get_userbyid(owner)),
            HINT = format('GRANT %I TO %I;', pg_get_userbyid(owner), current_user);
    END IF;
    SELECT p.proowner = owner AND p.proconfig @> newest AND p.prosrc = body INTO present
    FROM pg_proc p WHERE p.oid = to_regprocedure(signature);
    IF present THEN
        RETURN name;
    ELSIF NOT (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = current_user) THEN
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
                           signature, returns,
                           pgtrickle._pinned_clauses() || pgtrickle._planning_clauses(), settings, body);
        EXCEPTION WHEN duplicate_function OR unique_violation THEN
            -- Made after the snapshot of this transaction, or after what is cached of the catalog was read, or at the same time.
            RETURN name;
        END;
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, current_user);
        PERFORM pgtrickle._give_function(signature, owner);
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


-- For use inside _run: the rows of a query ($1 in it is the parameters), computed as a statement of its own, with the snapshot of
-- the one that calls: so by several processes where PostgreSQL finds that worth it, although that one changes a table.
CREATE OR REPLACE FUNCTION pgtrickle._query_rows(query text, parameters jsonb) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE query USING parameters;
END $$;


-- Whether _query_rows is to compute a query over these sources: NULL where PostgreSQL would plan it for one process, or where it
-- cannot be planned, which whoever runs it hears. Else the columns of its storage table by name, each as its type and as a
-- list of column definitions has it. A plan is made only where there is a table that several processes would read.
CREATE OR REPLACE FUNCTION pgtrickle._apart(storage bigint, sources bigint[], query text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    explained text := 'EXPLAIN (FORMAT JSON) ' || query;
    planned jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(sources) AS s(oid), unnest(pgtrickle._relations(s.oid::oid)) AS r(oid)
                   WHERE pg_relation_size(r.oid) >= pg_size_bytes(current_setting('min_parallel_table_scan_size'))) THEN
        RETURN NULL;
    END IF;
    planned := pgtrickle._run(explained, '{}');  -- as _is_top_level wants it: without a quote or a second line
    -- Quotes within a value are not written like those around it.
    IF position('"Node Type": "Gather' IN planned::text) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT jsonb_object_agg(a.attname, jsonb_build_array(
            format_type(a.atttypid, -1),
            format_type(a.atttypid, -1) || CASE WHEN a.attcollation <> t.typcollation
                                                THEN (SELECT format(' COLLATE %I.%I', n.nspname, c.collname)
                                                      FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
                                                      WHERE c.oid = a.attcollation) ELSE '' END))
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = storage::oid AND a.attnum > 0 AND NOT a.attisdropped);
EXCEPTION WHEN data_exception OR undefined_table OR undefined_function OR undefined_object OR undefined_column
    OR invalid_schema_name THEN
    RETURN NULL;
END $$;


-- _run for a statement that changes a storage table. Where it cannot be applied it is undone, and {"failed": SQLSTATE}
-- returned: two rows have one __pgt_row_id (23505), a source has changed whose changes were not read, or was truncated
-- (HW003), or, if data_errors, values cannot be computed (class 22).
CREATE OR REPLACE FUNCTION pgtrickle._apply(statement text, parameters jsonb, data_errors boolean) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result jsonb;
    details text;
    tip text;
    culprit text;
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
WHEN undefined_table OR undefined_function OR undefined_object OR undefined_column OR invalid_schema_name THEN
    GET STACKED DIAGNOSTICS tip = PG_EXCEPTION_HINT, culprit = PG_EXCEPTION_CONTEXT;
    -- The innermost function that is not one of ours, such as that of a trigger on the storage table.
    culprit := substring(culprit FROM E'(?:^|\\n)PL/pgSQL function ((?!"?pgtrickle)[^\\n(]+\\([^\\n)]*\\))');
    IF culprit IS NULL THEN
        RAISE;
    END IF;
    RAISE EXCEPTION USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM, HINT = concat_ws(' ', nullif(tip, ''), format(
        'In a refresh, functions run with the search_path "pg_catalog, pg_temp". Name the schemas in function %s, or ALTER FUNCTION %s '
        'SET search_path.', culprit, culprit));
END $$;


-- _apply for a differential refresh. A merge join is never needed where most relations hold a handful of changes, and to
-- look into it takes an eighth of the time that planning takes.
CREATE OR REPLACE FUNCTION pgtrickle._apply_changes(statement text, parameters jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_mergejoin = off AS $$
BEGIN
    RETURN pgtrickle._apply(statement, parameters, true);
END $$;


-- _apply_changes with a work_mem, in kilobytes, of its own.
CREATE OR REPLACE FUNCTION pgtrickle._apply_with_memory(statement text, parameters jsonb, kilobytes bigint) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_mergejoin = off SET work_mem = '64MB' AS $$
BEGIN
    PERFORM set_config('work_mem', kilobytes || 'kB', true);  -- until this function ends
    RETURN pgtrickle._apply(statement, parameters, true);
END $$;


-- _apply_changes for many of them: with so many megabytes of work_mem where the session has less.
CREATE OR REPLACE FUNCTION pgtrickle._apply_many_changes(statement text, parameters jsonb, megabytes int) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgtrickle._apply_with_memory(statement, parameters,
        greatest(pg_size_bytes(current_setting('work_mem')) / 1024, megabytes * 1024::bigint));
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
