-- Whose things are, and whose rights a statement has.


CREATE OR REPLACE FUNCTION accum_internal._me() RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT a.oid FROM pg_roles AS a WHERE a.rolname = current_user $$;


-- The functions that a register has, as they are named in DROP FUNCTION.
CREATE OR REPLACE FUNCTION accum_internal._signatures_of(r @extschema@._registers) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT regexp_split_to_array(accum_internal._fill(r, '{{named ~ _hash_ ~ }}({{dimensions ~ %2$s ~ , }});
               {{own ~ post}}(jsonb); {{own ~ unpost}}({{recorder}}); {{own ~ repost}}({{recorder}}, jsonb);
               {{named ~ _trg_ ~ _hash}}(); {{named ~ _trg_ ~ _insert}}(); {{named ~ _trg_ ~ _update}}(); {{named ~ _trg_ ~ _delete}}();
               {{named ~ _trg_ ~ _truncate}}(); {{named ~  ~ _turnover}}(timestamptz, timestamptz, jsonb, jsonb);
               {{named ~  ~ _movements}}({{recorder}}, timestamptz, timestamptz, jsonb, boolean)'
        || CASE (r).kind WHEN 'balance' THEN '; {{named ~  ~ _balance}}(jsonb, timestamptz); {{own ~ balance}}(jsonb, timestamptz);
               {{named ~  ~ _balance_at_each}}(text, timestamptz, timestamptz, jsonb)' ELSE '' END
        || CASE WHEN (r).high_write THEN '; {{own ~ recorded}}(uuid)' ELSE '' END), E';\\s*')
$$;


-- Those of them that there are. With a register's triggers they are its owner's.
CREATE OR REPLACE FUNCTION accum_internal._functions_of(r @extschema@._registers) RETURNS regprocedure[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(to_regprocedure(signature)), '{}') FROM unnest(accum_internal._signatures_of(r)) AS signature
     WHERE to_regprocedure(signature) IS NOT NULL
$$;


-- Let a role own what is in a schema, for as long as it takes to make it the owner: only a superuser's role can do without. Returns
-- whether there is something to take back.
CREATE OR REPLACE FUNCTION accum_internal._let_own(owner oid, schema name) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role CONSTANT name := pg_get_userbyid(owner);
BEGIN
    IF owner = accum_internal._me() OR (SELECT a.rolsuper FROM pg_roles AS a WHERE a.rolname = current_user) THEN
        RETURN false;
    ELSIF NOT pg_has_role(owner, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'USAGE' END) THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('the server''s role "%s" must be a member of role "%s" to make registers for it', current_user, role),
            HINT = format('GRANT %I TO %I;', role, current_user);
    ELSIF has_schema_privilege(owner, schema, 'CREATE') THEN
        RETURN false;
    END IF;
    LOCK TABLE accum_internal.ownership_changes IN EXCLUSIVE MODE;
    EXECUTE format('GRANT CREATE ON SCHEMA %I TO %I', schema, role);
    RETURN true;
END $$;


-- Give what the server's role has made for a register to the register's owner.
CREATE OR REPLACE FUNCTION accum_internal._give(r @extschema@._registers, owner oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role CONSTANT name := pg_get_userbyid(owner);
    schemas CONSTANT name[] := ARRAY[(SELECT n.nspname FROM pg_namespace AS n WHERE n.oid = '@extschema@'::regnamespace), 'accum_internal'];
    allowed name[] := '{}';
    schema name;
    statement text;
BEGIN
    IF owner = accum_internal._me() THEN
        RETURN;
    END IF;
    FOREACH schema IN ARRAY schemas LOOP
        IF accum_internal._let_own(owner, schema) THEN
            allowed := allowed || schema;
        END IF;
    END LOOP;
    FOR statement IN
        SELECT format('ALTER TABLE %s OWNER TO %I', c.oid::regclass, role)
          FROM pg_class AS c
         WHERE c.relowner = accum_internal._me() AND c.relkind IN ('r', 'p', 'v') AND c.oid IN (
                   SELECT to_regclass(accum_internal._name(n)) FROM unnest(accum_internal._relations_of(r)) AS n
                   UNION ALL SELECT to_regclass(accum_internal._own_name(r.name, 'current'))
                   UNION ALL SELECT t.relid FROM pg_partition_tree(r.movements) AS t)
        UNION ALL
        SELECT format('ALTER FUNCTION %s OWNER TO %I', p.oid::regprocedure, role)
          FROM pg_proc AS p WHERE p.oid = ANY (accum_internal._functions_of(r)) AND p.proowner = accum_internal._me()
    LOOP
        EXECUTE statement;
    END LOOP;
    FOREACH schema IN ARRAY allowed LOOP
        EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %I', schema, role);
    END LOOP;
END $$;


-- Give one new table to a role.
CREATE OR REPLACE FUNCTION accum_internal._give_table(relation regclass, owner oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    schema CONSTANT name := (SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = relation);
    allowed CONSTANT boolean := accum_internal._let_own(owner, schema);
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO %I', relation, pg_get_userbyid(owner));
    IF allowed THEN
        EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %I', schema, pg_get_userbyid(owner));
    END IF;
END $$;


-- Run a statement that returns one jsonb ($1 in it is the parameters) with the rights of a role and nobody else's, in a function
-- that belongs to the role: neither SET ROLE nor RESET ROLE work inside it, so that no function, trigger or constraint of
-- the role's can become the one who runs it.
--
-- What they leave behind in a session of somebody else's must not serve them there: a search_path in which names mean something else, a
-- prepared statement, an advisory lock, a temporary table, a trigger that has been put off. It is an error, and undone, also where
-- the statement fails.
CREATE OR REPLACE FUNCTION accum_internal._as_owner(owner oid, statement text, parameters jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    foreign_session CONSTANT boolean := to_regrole(quote_ident(session_user))::oid IS DISTINCT FROM owner;
    known CONSTANT text[] := CASE WHEN foreign_session THEN accum_internal._session_objects() END;
    locks CONSTANT jsonb := CASE WHEN foreign_session THEN accum_internal._session_locks() END;
    call CONSTANT text := format('SELECT %s($1, $2)', accum_internal._role_function(owner));
    result jsonb;
BEGIN
    IF NOT foreign_session THEN
        EXECUTE call INTO result USING statement, parameters;
    ELSE
        BEGIN
            EXECUTE call INTO result USING statement, parameters;
        EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
            PERFORM accum_internal._restore_session(known, locks);
            RAISE;
        END;
    END IF;
    -- Until this is done a search_path of the owner's may be in force: nothing in the call can be redirected by one.
    PERFORM accum_internal._check_left_behind(pg_catalog.current_setting('search_path'), owner, known, locks);
    RETURN result;
END $$;


-- After a role's code: raises 42501 if it has left another search_path, or (where known is not NULL) something else in the session,
-- which had these _session_objects and _session_locks before. The error undoes a search_path.
CREATE OR REPLACE FUNCTION accum_internal._check_left_behind(path text, owner oid, known text[], locks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed boolean := path <> 'pg_catalog, pg_temp';
BEGIN
    IF known IS NOT NULL THEN
        changed := accum_internal._session_objects() <> known OR changed;
        changed := accum_internal._restore_session(known, locks) OR changed;
    END IF;
    IF changed THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('code of role "%s" changes the session', pg_get_userbyid(owner)),
            DETAIL = 'A trigger, a constraint or an index on the tables of a register calls it.';
    END IF;
END $$;


DROP FUNCTION IF EXISTS accum_internal._prepared();  -- of an earlier version


-- The name of the function of a role, for _as_owner alone; made where it is missing.
CREATE OR REPLACE FUNCTION accum_internal._role_function(owner oid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name CONSTANT text := format('accum_roles.%I', 'as_' || owner);
    body CONSTANT text := '
DECLARE
    result jsonb;
BEGIN
    EXECUTE $1 INTO result USING $2;
    PERFORM accum_internal._fire_deferred();
    RETURN result;
END ';
    allowed boolean;
BEGIN
    IF accum_internal._is_role_function(to_regprocedure(name || '(text, jsonb)'), owner, body) THEN
        RETURN name;
    END IF;
    IF to_regprocedure(name || '(text, jsonb)') IS NOT NULL THEN  -- of a role that had this OID before
        EXECUTE format('DROP FUNCTION %s(text, jsonb)', name);
    END IF;
    BEGIN
        EXECUTE format('CREATE FUNCTION %s(text, jsonb) RETURNS jsonb LANGUAGE plpgsql VOLATILE SECURITY DEFINER
                        SET search_path = pg_catalog, pg_temp SET row_security = on AS %L', name, body);
    EXCEPTION WHEN duplicate_function OR unique_violation THEN
        RETURN name;  -- somebody else was faster
    END;
    EXECUTE format('REVOKE ALL ON FUNCTION %s(text, jsonb) FROM PUBLIC', name);
    IF owner <> accum_internal._me() THEN
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s(text, jsonb) TO %I', name, current_user);
        allowed := accum_internal._let_own(owner, 'accum_roles');
        EXECUTE format('ALTER FUNCTION %s(text, jsonb) OWNER TO %I', name, pg_get_userbyid(owner));
        IF allowed THEN
            EXECUTE format('REVOKE CREATE ON SCHEMA accum_roles FROM %I', pg_get_userbyid(owner));
        END IF;
    END IF;
    RETURN name;
END $$;


CREATE OR REPLACE FUNCTION accum_internal._is_role_function(function regprocedure, owner oid, body text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_proc AS p WHERE p.oid = function AND p.proowner = owner AND p.prosecdef AND p.prosrc = body)
$$;


-- Have the triggers fire that the role's statement has put off, before the role's function returns in a session of somebody else's:
-- until PostgreSQL 18 those that are left to the commit run with the rights of whoever commits. A trigger that puts
-- others off must write to a table that has such triggers; as long as any does, all is done once more.
CREATE OR REPLACE FUNCTION accum_internal._fire_deferred() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    written bigint;
BEGIN
    IF session_user = current_user OR current_setting('server_version_num')::int >= 180000 THEN
        RETURN;
    END IF;
    FOR turn IN 1 .. 10 LOOP
        written := accum_internal._deferrable_writes();
        SET CONSTRAINTS ALL IMMEDIATE;
        IF accum_internal._deferrable_writes() = written THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'deferred triggers on the tables of a register go on deferring others';
END $$;


-- How many rows this transaction has written to tables with triggers that can be deferred; those of constraints call functions, too.
CREATE OR REPLACE FUNCTION accum_internal._deferrable_writes() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(t.tgrelid) + pg_stat_get_xact_tuples_updated(t.tgrelid)
                        + pg_stat_get_xact_tuples_deleted(t.tgrelid)), 0)::bigint
      FROM pg_trigger AS t WHERE t.tgdeferrable
$$;
