-- Large results of Spark on their way into tables. A staging area is the tables "<number>_<part>" in pgtrickle_staging, all of
-- them made like "<number>_like", which stays empty; a lease of its number is held as long as somebody wants it
-- (engine/spark_staging). Where Spark's executors fill it, they log in as a role that is made for this area alone.

DROP FUNCTION IF EXISTS pgtrickle._staging_in_use(int);  -- of an earlier version


-- The role that fills an area from outside the server. Roles are the cluster's, areas a database's.
CREATE OR REPLACE FUNCTION pgtrickle._staging_writer(number int) RETURNS name
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('pgtrickle_staging_%s_%s', d.oid, number) FROM pg_database d WHERE d.datname = current_database()
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._staging_writer(int) FROM PUBLIC;


-- Make that role. It may log in for so many seconds at most; `verifier` is what SCRAM lets the server know of the password. It
-- has no rights but everybody's: the two functions below act for it. Returns its name. Raises 42501.
CREATE OR REPLACE FUNCTION pgtrickle._admit_staging_writer(number int, verifier text, seconds float8) RETURNS name
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' AS $$
DECLARE
    writer name := pgtrickle._staging_writer(number);
    own record;
BEGIN
    SELECT r.rolsuper, r.rolcreaterole INTO own FROM pg_roles r WHERE r.rolname = current_user;
    IF NOT (own.rolsuper OR own.rolcreaterole) THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('the server''s role "%s" may not create the roles that Spark''s executors log in as', current_user),
            HINT = format('ALTER ROLE %I CREATEROLE; or start the server without --spark-postgres.', current_user);
    END IF;
    EXECUTE format('CREATE ROLE %I LOGIN NOINHERIT PASSWORD %L VALID UNTIL %L', writer, verifier,
                   clock_timestamp() + make_interval(secs => seconds));
    IF NOT own.rolsuper THEN  -- or else its sessions could not be ended
        EXECUTE format('GRANT %I TO %I %s', writer, current_user,
                       CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'WITH INHERIT TRUE' END);
    END IF;
    IF NOT has_database_privilege(writer, current_database(), 'CONNECT') THEN
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), writer);
        IF NOT has_database_privilege(writer, current_database(), 'CONNECT') THEN
            RAISE EXCEPTION USING ERRCODE = '42501',
                MESSAGE = format('the server''s role "%s" may not let Spark''s executors connect to database "%s"',
                                 current_user, current_database()),
                HINT = format('GRANT CONNECT ON DATABASE %I TO %I WITH GRANT OPTION;', current_database(), current_user);
        END IF;
    END IF;
    RETURN writer;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._admit_staging_writer(int, text, float8) FROM PUBLIC;


-- Have nobody log in as that role any more. To be committed before the role is dropped.
CREATE OR REPLACE FUNCTION pgtrickle._bar_staging_writer(number int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('ALTER ROLE %I NOLOGIN', pgtrickle._staging_writer(number));
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._bar_staging_writer(int) FROM PUBLIC;


-- End the sessions of that role, and drop it. Parts that are not finished go with their sessions.
CREATE OR REPLACE FUNCTION pgtrickle._drop_staging_writer(number int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    writer name := pgtrickle._staging_writer(number);
BEGIN
    PERFORM pg_stat_clear_snapshot();
    PERFORM pg_terminate_backend(a.pid, 10000) FROM pg_stat_get_activity(NULL) a WHERE a.usesysid = to_regrole(quote_ident(writer))::oid;
    EXECUTE format('DROP OWNED BY %I', writer);
    EXECUTE format('DROP ROLE %I', writer);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_staging_writer(int) FROM PUBLIC;


-- Raises 42501 unless the session is that of an area's writer, and the area is in use.
CREATE OR REPLACE FUNCTION pgtrickle._check_staging_writer(number int, part text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (session_user = pgtrickle._staging_writer(number) AND part ~ '^[0-9a-f]{32}$'
        AND pgtrickle._lease_holder('staging ' || number) IS NOT NULL) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('part "%s" of staging area %s is not for role "%s", or not any more', part, number, session_user);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_staging_writer(int, text) FROM PUBLIC;


-- For the writer of an area: make a part of it, for COPY in the same transaction. `part` is 32 hexadecimal digits.
CREATE OR REPLACE FUNCTION pgtrickle._begin_staging_part(number int, part text) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := format('pgtrickle_staging.%I', number || '_' || part);
    pattern text := format('pgtrickle_staging.%I', number || '_like');
    owner name := (SELECT a.rolname FROM pg_class c JOIN pg_roles a ON a.oid = c.relowner WHERE c.oid = to_regclass(pattern));
BEGIN
    PERFORM pgtrickle._check_staging_writer(number, part);
    EXECUTE format('CREATE UNLOGGED TABLE %s (LIKE %s)', target, pattern);
    IF owner <> current_user THEN
        EXECUTE format('ALTER TABLE %s OWNER TO %I', target, owner);
    END IF;
    EXECUTE format('GRANT INSERT ON %s TO %I', target, session_user);
END $$;


-- For the writer of an area: nothing more comes into a part of it.
CREATE OR REPLACE FUNCTION pgtrickle._finish_staging_part(number int, part text) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := format('pgtrickle_staging.%I', number || '_' || part);
BEGIN
    PERFORM pgtrickle._check_staging_writer(number, part);
    EXECUTE format('ANALYZE %s', target);
    EXECUTE format('REVOKE ALL ON %s FROM %I', target, session_user);
END $$;


-- Drop the staging areas of refreshes whose server was killed, and their writers: nobody holds the lease of their number.
CREATE OR REPLACE FUNCTION pgtrickle._remove_staging_leftovers() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own_writers text := '^' || regexp_replace(pgtrickle._staging_writer(0), '0$', '([1-9][0-9]{0,8})$');
    leftover record;
BEGIN
    FOR leftover IN
        SELECT split_part(c.relname, '_', 1) AS number, format('DROP TABLE IF EXISTS pgtrickle_staging.%I', c.relname) AS drop_it
        FROM pg_class c
        WHERE c.relnamespace = 'pgtrickle_staging'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^[0-9]{1,10}_([0-9a-f]+|like|texts|values)$'
        UNION ALL
        SELECT substring(r.rolname FROM own_writers),
               format('SELECT pgtrickle._drop_staging_writer(%s)', substring(r.rolname FROM own_writers))
        FROM pg_roles r WHERE r.rolname ~ own_writers
    LOOP
        IF pgtrickle._take_lease('staging ' || leftover.number) THEN
            BEGIN
                EXECUTE leftover.drop_it;
            EXCEPTION WHEN insufficient_privilege OR dependent_objects_still_exist THEN
                NULL;  -- of another role than the server's
            END;
            DELETE FROM pgtrickle.pgt_leases l WHERE l.name = 'staging ' || leftover.number;
        END IF;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._remove_staging_leftovers() FROM PUBLIC;
