-- What the other functions stand on: who calls, settings, durations, names, and messages.
--
-- Every function pins its search_path, and is open to everybody unless it says otherwise. Functions whose name begins
-- with an underscore are the server's own; they check the caller's rights like any other.


-- The role that acts: the one chosen by SET ROLE, else the one that logged in. Inside a function with SECURITY DEFINER
-- the setting cannot be changed, so code that runs with a stream table's rights cannot become anybody else here.
CREATE OR REPLACE FUNCTION pgtrickle._caller() RETURNS oid
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_regrole(quote_ident(CASE current_setting('role') WHEN 'none' THEN session_user::text
                                                              ELSE current_setting('role') END))::oid
$$;


-- Whether every function under way is one of the server's, and the outermost one was called by a statement of the
-- session, not by a function. _caller() tells the session's role; it does not tell that a function with SECURITY DEFINER
-- runs with another role's rights. Every function shows in the context, one line or more for each level.
--
-- A name or a statement in the context can hold any text. But each level begins a line, with words that PostgreSQL puts
-- there. So no line is accepted but two: a PL/pgSQL function in the schema pgtrickle, and a statement of such a function.
-- The last line must be a function. (Of a name either both parts are quoted or none: "pgtrickle._f" is another
-- function. Both are quoted where quote_all_identifiers was on when the function was first called.)
CREATE OR REPLACE FUNCTION pgtrickle._is_top_level() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    context text;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF NOT starts_with(context, 'PL/pgSQL function ') THEN  -- lc_messages is another language
        context := pgtrickle._context_in_english();
    END IF;
    RETURN E'\n' || context ~ E'^(?:'
        '(?:\n(?:SQL statement|SQL expression|PL/pgSQL expression|PL/pgSQL assignment) "[^"\n]*")*'
        '\nPL/pgSQL function (?:pgtrickle\\.(?:_\\w+|refresh_stream_table)|"pgtrickle"\\."(?:_\\w+|refresh_stream_table)")'
        '\\([^\n]*\\) [^"\n]*)+$';
END $$;


-- The context in the language that _is_top_level reads. Only a superuser may set lc_messages for the time of a function:
-- where the server's role is one, superuser/92_messages.sql does so.
CREATE OR REPLACE FUNCTION pgtrickle._context_in_english() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    context text;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF NOT starts_with(context, 'PL/pgSQL function ') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('stream tables need messages in English, but lc_messages is "%s"', current_setting('lc_messages')),
            HINT = format('ALTER DATABASE %I SET lc_messages = ''C''; or have the server use a superuser.', current_database());
    END IF;
    RETURN context;
END $$;


-- Raises 42501 where PostgreSQL protects the session from what it runs: in the expression of an index that ANALYZE or autovacuum
-- computes, in a materialized view that is refreshed. It forbids DEALLOCATE there, here of a statement that nobody prepares.
-- (LISTEN and UNLISTEN are forbidden, too, but after them a transaction may not be prepared for a commit in two phases.)
CREATE OR REPLACE FUNCTION pgtrickle._check_unrestricted() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DEALLOCATE __pgt_top_level;
EXCEPTION WHEN invalid_sql_statement_name THEN
    NULL;  -- it is not forbidden
END $$;


-- Raises 42501 unless the session itself has called (_is_top_level). What runs where PostgreSQL protects the session from it
-- (_check_unrestricted) has the rights of the owner, and must not act for the session.
CREATE OR REPLACE FUNCTION pgtrickle._check_top_level() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgtrickle._is_top_level() THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = 'functions of the server must not be called by other functions or by maintenance commands';
    END IF;
    PERFORM pgtrickle._check_unrestricted();
END $$;


-- Whether a role may become another one by SET ROLE. A member need not be allowed to, from PostgreSQL 16 on; before, one
-- that does not inherit is refused, too.
CREATE OR REPLACE FUNCTION pgtrickle._may_become(member oid, role oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_has_role(member, role, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'USAGE' END)
$$;


-- Whether the caller may act for a role. To be called by functions with SECURITY DEFINER: there, current_user is the
-- role that installed this schema, which is the engine's own.
CREATE OR REPLACE FUNCTION pgtrickle._may_act_for(owner oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := pgtrickle._caller();
BEGIN
    PERFORM pgtrickle._check_top_level();
    -- Of a relation that is not there the owner is NULL.
    RETURN caller = to_regrole(quote_ident(current_user))::oid
        OR coalesce(owner IS NOT NULL AND pgtrickle._may_become(caller, owner), false);
END $$;


-- Seconds of a duration such as '30s', '5m' or '1h30m'; NULL for anything else, such as 'calculated' or cron.
CREATE OR REPLACE FUNCTION pgtrickle._duration_seconds(input text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN seconds <= 9223372036854775807 THEN seconds::bigint END
    FROM (SELECT sum(part[1]::numeric * CASE part[2] WHEN 's' THEN 1 WHEN 'm' THEN 60 WHEN 'h' THEN 3600
                                                    WHEN 'd' THEN 86400 ELSE 604800 END) AS seconds
          FROM regexp_matches(btrim(input), E'(\\d+)([smhdw])', 'g') AS part
          WHERE btrim(input) ~ E'^(\\d+[smhdw])+$' AND length(input) <= 100) AS sum
$$;


-- Seconds of a duration such as '30s', '5m' or '1h30m'; NULL for anything else, such as 'calculated' or cron.
CREATE OR REPLACE FUNCTION pgtrickle.parse_duration_seconds(input text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._duration_seconds(input)
$$;


-- Raise a message on this session, as if the statement had: level NOTICE, WARNING or INFO.
CREATE OR REPLACE FUNCTION pgtrickle._notice(level text, message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    hint := coalesce(hint, '');
    IF level = 'WARNING' AND hint <> '' THEN
        RAISE WARNING USING MESSAGE = message, HINT = hint;
    ELSIF level = 'WARNING' THEN
        RAISE WARNING USING MESSAGE = message;
    ELSIF level = 'INFO' AND hint <> '' THEN
        RAISE INFO USING MESSAGE = message, HINT = hint;
    ELSIF level = 'INFO' THEN
        RAISE INFO USING MESSAGE = message;
    ELSIF hint <> '' THEN
        RAISE NOTICE USING MESSAGE = message, HINT = hint;
    ELSE
        RAISE NOTICE USING MESSAGE = message;
    END IF;
END $$;


-- Raise an error on this session, with everything an error of PostgreSQL's own would have.
CREATE OR REPLACE FUNCTION pgtrickle._raise(sqlstate text, message text, detail text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(detail, '') <> '' AND coalesce(hint, '') <> '' THEN
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail, HINT = hint;
    ELSIF coalesce(detail, '') <> '' THEN
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail;
    ELSIF coalesce(hint, '') <> '' THEN
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, HINT = hint;
    END IF;
    RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message;
END $$;


-- A relation's name, always with its schema, quoted where it must be.
CREATE OR REPLACE FUNCTION pgtrickle._qualified(relid oid) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid = relid);
END $$;


-- The stream table of a name, qualified or not. An unqualified name is looked up along the given search_path (default:
-- the session's), then in "public"; so is one in the schema pgtrickle, where pg_trickle's examples have them and there are none.
-- Raises 42P01 if there is none, NULL if missing_ok. (With the server's rights, since everybody may see the names.)
CREATE OR REPLACE FUNCTION pgtrickle._resolve(name text, path text, missing_ok boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    parts text[];
    schemas text[];
    found_id bigint;
BEGIN
    PERFORM pgtrickle._check_name(name);
    parts := parse_ident(name);
    schemas := CASE WHEN cardinality(parts) = 2 AND parts[1] <> 'pgtrickle' THEN parts[1:1] ELSE pgtrickle._schemas_along(path) END;
    SELECT s.pgt_id INTO found_id
    FROM pgtrickle.pgt_definitions s
    WHERE s.pgt_schema = ANY (schemas) AND s.pgt_name = parts[cardinality(parts)]
    ORDER BY array_position(schemas, s.pgt_schema)
    LIMIT 1;
    IF found_id IS NULL AND NOT missing_ok THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table "%s" does not exist', name);
    END IF;
    RETURN found_id;
END $$;


-- The same along the session's own search_path. (No search_path is pinned here: it is what is asked for.)
CREATE OR REPLACE FUNCTION pgtrickle._resolve(name text) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT pgtrickle._resolve(name, pg_catalog.current_setting('search_path'))
$$;


-- The schemas of the stream tables with these names, along a search path; none for what the schema pgtrickle itself has.
CREATE OR REPLACE FUNCTION pgtrickle._schemas_of(names text[], path text) RETURNS TABLE (name text, schema text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    FOREACH name IN ARRAY names LOOP
        CONTINUE WHEN octet_length(name) NOT BETWEEN 1 AND 63
            OR EXISTS (SELECT FROM pg_class c WHERE c.relname = name AND c.relnamespace = 'pgtrickle'::regnamespace);
        schema := (SELECT s.pgt_schema FROM pgtrickle.pgt_stream_tables s
                   WHERE s.pgt_id = pgtrickle._resolve(quote_ident(name), path, true));
        IF schema IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;


DROP FUNCTION IF EXISTS pgtrickle._path_schemas(text);  -- of an earlier version


-- The schemas of a search_path setting in order, with "public" at the end.
CREATE OR REPLACE FUNCTION pgtrickle._schemas_along(path text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN e.schema = '$user' THEN pg_get_userbyid(pgtrickle._caller())::text ELSE e.schema END
        FROM regexp_matches(path, E'\\s*(?:"((?:[^"]|"")*)"|([^,]+))\\s*(?:,|$)', 'g') WITH ORDINALITY AS m(part, place),
             LATERAL (SELECT coalesce(replace(m.part[1], '""', '"'), lower(btrim(m.part[2]))) AS schema) AS e
        ORDER BY m.place) || 'public'::text;
END $$;


-- Raises 22004, 22023 or 42602 unless a name is one that a stream table can have.
CREATE OR REPLACE FUNCTION pgtrickle._check_name(name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
BEGIN
    BEGIN
        parts := parse_ident(name);
    EXCEPTION WHEN invalid_parameter_value THEN
        IF btrim(name) = '' THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'name of the stream table must not be empty';
        END IF;
        RAISE EXCEPTION USING ERRCODE = '42602', MESSAGE = format('invalid name syntax: "%s"', name),
            HINT = 'Quote a name that is no plain identifier, as in ''myschema."My table"''.';
    END;
    IF cardinality(parts) <= 2 AND octet_length(parts[cardinality(parts)]) <= 63 THEN
        RETURN;
    ELSIF name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'name of the stream table must not be null';
    ELSIF cardinality(parts) > 2 THEN
        RAISE EXCEPTION USING ERRCODE = '42601', MESSAGE = format('improper qualified name (too many dotted names): %s', name);
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42622', MESSAGE = format('name "%s" is too long', name),
        HINT = 'Names have at most 63 bytes.';
END $$;


-- This cluster, its timeline and this database: what transaction ids in a frontier refer to. They mean something else
-- after a restore, a promotion, or in a copy of the database.
CREATE OR REPLACE FUNCTION pgtrickle._system() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT system_identifier FROM pg_control_system()) || '.' ||
           CASE WHEN pg_is_in_recovery() THEN 'recovery'
                ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END || '.' ||
           (SELECT oid FROM pg_database WHERE datname = current_database())
$$;


-- A condition on a change (alias c, a row of a buffer) that holds if a frontier has not seen it. The arguments are SQL:
-- the frontier's snapshot, its own transaction, NULL where it had written nothing, and the last change that was seen of
-- that one. Why it is so sql/base/frontier.py says, which gives the same text.
CREATE OR REPLACE FUNCTION pgtrickle._unseen(
    snapshot text, own text DEFAULT 'NULL::pg_catalog.xid8', last text DEFAULT '0'
) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('CASE WHEN c."__pgt_xid" > GREATEST(%2$s, pg_catalog.pg_snapshot_xmax(%1$s)) THEN TRUE'
                  ' WHEN c."__pgt_xid" = %2$s THEN c."__pgt_change_id" > %3$s'
                  ' ELSE NOT pg_catalog.pg_visible_in_snapshot(c."__pgt_xid", %1$s) END', snapshot, own, last)
$$;
