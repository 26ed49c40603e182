-- Load generators: tables to which the engine adds a row per tick (CREATE SOURCE … FROM LOAD GENERATOR COUNTER).


-- Request that a statement be carried out which PostgreSQL has no grammar for. The server sends this in its place.
CREATE OR REPLACE FUNCTION pgtrickle._request_statement(statement text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request('statement', pg_catalog.jsonb_build_object('statement', statement),
        pg_catalog.current_setting('search_path'));
END $$;


-- This cluster and this database, whatever the timeline.
CREATE OR REPLACE FUNCTION pgtrickle._cluster() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT system_identifier FROM pg_control_system()) || '.' ||
           (SELECT oid FROM pg_database WHERE datname = current_database())
$$;


-- Make a new table of the caller's a source. Raises 22007, 22023, 42501.
CREATE OR REPLACE FUNCTION pgtrickle._register_source(source oid, tick_interval text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid;
    period interval := coalesce(_register_source.tick_interval, '1 second')::interval;
BEGIN
    SELECT c.relowner INTO owner FROM pg_class c WHERE c.oid = source AND c.relkind = 'r' AND c.relpersistence <> 't';
    IF owner IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P16', MESSAGE = 'cannot create a temporary source';
    ELSIF NOT pgtrickle._may_act_for(owner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('must be owner of table %s', pgtrickle._qualified(source));
    ELSIF period <= '0' OR NOT isfinite(period) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'TICK INTERVAL must be positive';
    END IF;
    -- The OID may have been another source's, which was dropped unseen.
    INSERT INTO pgtrickle.pgt_load_generators (source_relid, tick_interval, system)
    VALUES (source, period, pgtrickle._cluster())
    ON CONFLICT (source_relid) DO UPDATE
    SET tick_interval = excluded.tick_interval, system = excluded.system, last_value = 0, last_tick_at = NULL,
        error = NULL, created_at = now();
END $$;


-- Whether a relation is a source. (Not by its OID alone: see pgt_load_generators.system.)
CREATE OR REPLACE FUNCTION pgtrickle._is_source(source oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_load_generators g JOIN pg_class c ON c.oid = g.source_relid
                   WHERE g.source_relid = source AND g.system = pgtrickle._cluster())
$$;


-- Sources and their tick intervals in seconds, after forgetting those whose table is gone. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._live_sources() RETURNS TABLE (source bigint, seconds float8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pgtrickle.pgt_load_generators g
               WHERE g.system <> pgtrickle._cluster() OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.source_relid)) THEN
        DELETE FROM pgtrickle.pgt_load_generators g
        WHERE g.system <> pgtrickle._cluster() OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.source_relid);
    END IF;
    RETURN QUERY
        SELECT g.source_relid::bigint, extract(epoch FROM g.tick_interval)::float8
        FROM pgtrickle.pgt_load_generators g ORDER BY g.source_relid;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._live_sources() FROM PUBLIC;


-- Begin a tick: count so many values on. Returns the owner, whose rights the insert needs, the statement for
-- pgtrickle._run, and its parameters; nothing if the source is gone. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._begin_tick(source oid, ticks bigint)
RETURNS TABLE (owner text, statement text, parameters text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
BEGIN
    UPDATE pgtrickle.pgt_load_generators g
    SET last_value = g.last_value + ticks, last_tick_at = clock_timestamp(), error = NULL
    WHERE g.source_relid = source RETURNING g.last_value INTO last;
    RETURN QUERY
        SELECT a.rolname::text,
               format('WITH ticked AS (INSERT INTO %s (counter) SELECT n FROM generate_series('
                      '($1->>''first'')::bigint, ($1->>''last'')::bigint) AS n RETURNING 1) '
                      'SELECT to_jsonb(count(*)) FROM ticked', pgtrickle._qualified(c.oid)),
               jsonb_build_object('first', last - ticks + 1, 'last', last)::text
        FROM pg_class c JOIN pg_roles a ON a.oid = c.relowner WHERE c.oid = source AND last IS NOT NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._begin_tick(oid, bigint) FROM PUBLIC;


-- Note why a tick failed. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._fail_tick(source oid, message text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE pgtrickle.pgt_load_generators g SET error = message WHERE g.source_relid = source
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._fail_tick(oid, text) FROM PUBLIC;


-- The sources that generate rows by themselves, and how they are doing.
CREATE OR REPLACE FUNCTION pgtrickle.source_status()
RETURNS TABLE (name text, owner text, generator text, tick_interval interval, last_value bigint, last_tick_at timestamptz,
               error text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._qualified(c.oid), a.rolname::text, g.generator, g.tick_interval, g.last_value, g.last_tick_at, g.error
    FROM pgtrickle.pgt_load_generators g JOIN pg_class c ON c.oid = g.source_relid JOIN pg_roles a ON a.oid = c.relowner
    WHERE g.system = pgtrickle._cluster()
    ORDER BY 1
$$;
