-- Registers that are there get the functions and indexes of this version. What an owner's code could take part in is done with his rights;
-- where the role that installs may not act as the owner, the register keeps the functions that it has.


-- A function of somebody's that has the name of one of ours could be called in its place. It keeps working for what has been
-- bound to it, under another name.
DO $$
DECLARE
    ours CONSTANT oid := (SELECT c.relowner FROM pg_class AS c WHERE c.oid = '@extschema@._registers'::regclass);
    other record;
BEGIN
    FOR other IN
        SELECT p.oid, p.oid::regprocedure AS signature, p.proname FROM pg_proc AS p
         WHERE p.pronamespace = '@extschema@'::regnamespace AND p.proowner <> ours
           AND (p.proname IN ('_force_delta_merge', '_maintenance_status') OR p.proname ~ '^register_(create|alter|drop|list|info|post|unpost|repost|verify|rebuild_totals|rebuild_cache|partitions|create_partitions|detach_partitions)$')
    LOOP
        EXECUTE format('ALTER ROUTINE %s RENAME TO %I', other.signature, left(other.proname, 40) || ' of ' || other.oid);
        RAISE WARNING 'routine % has the name of one of the registers'' and is renamed', other.signature;
    END LOOP;
END $$;


-- One register. What functions of it earlier versions had beside ours is dropped.
CREATE OR REPLACE FUNCTION accum_internal._upgrade_register(p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
    owner CONSTANT oid := accum_internal._owner_of(r);
    former regprocedure;
    kind text;
BEGIN
    IF to_regclass(accum_internal._name(accum_internal._former_key(r, 'year'))) IS NOT NULL THEN
        PERFORM accum_internal._upgrade_tables(r, owner);
    END IF;
    PERFORM accum_internal._create_functions(r);
    IF r.high_write THEN
        PERFORM accum_internal._create_delta_views(r);
    END IF;
    PERFORM accum_internal._index_period(r, grain) FROM unnest(accum_internal._grains(r.totals_period)) AS grain;
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP  -- guards that had a condition
        IF EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = accum_internal._stored_name(r, kind)::regclass
                      AND g.tgname = 'is_derived' AND g.tgqual IS NOT NULL) THEN
            PERFORM accum_internal._create_guard(r, kind);
        END IF;
    END LOOP;
    PERFORM accum_internal._give(r, owner);
    FOR former IN
        SELECT p.oid FROM unnest(string_to_array(accum_internal._fill(r, '{{named ~ _post_ ~ }}(jsonb); {{named ~ _unpost_ ~ }}({{recorder}});
                   {{named ~ _repost_ ~ }}({{recorder}}, jsonb); {{named ~ _balance_ ~ }}(jsonb, timestamptz); {{named ~ _recorded_ ~ }}(uuid)'), ';'))
               AS signature
          JOIN pg_proc AS p ON p.oid = to_regprocedure(signature) AND p.proowner = owner
    LOOP
        EXECUTE format('DROP FUNCTION %s', former);
    END LOOP;
END $$;


-- The key that a derived table had before it was the hash: with all dimensions.
CREATE OR REPLACE FUNCTION accum_internal._former_key(r @extschema@._registers, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (r).name || CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END || '_cell'
$$;


-- Tables of a version that had the dimensions in their keys, and in high-write mode the epoch in the buffer.
CREATE OR REPLACE FUNCTION accum_internal._upgrade_tables(r @extschema@._registers, owner oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text;
BEGIN
    EXECUTE accum_internal._fill(r, 'LOCK TABLE {{movements}} IN ACCESS EXCLUSIVE MODE');
    IF r.high_write THEN
        EXECUTE accum_internal._fill(r, 'LOCK TABLE {{named ~  ~ _balance_cache_epoch}} IN EXCLUSIVE MODE');
        EXECUTE accum_internal._fill(r, 'CREATE UNLOGGED TABLE {{named ~  ~ _balance_cache_alive}} (epoch uuid NOT NULL)');
        PERFORM accum_internal._give_table(accum_internal._fill(r, '{{named ~  ~ _balance_cache_alive}}')::regclass, owner);
    END IF;
    PERFORM accum_internal._as_owner(owner, 'SELECT pg_catalog.to_jsonb(accum_internal._upgrade_rows(accum_internal._register('
        '$1 OPERATOR(pg_catalog.->>) ''name''))::pg_catalog.text)', jsonb_build_object('name', r.name));
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        EXECUTE accum_internal._fill(r, 'ALTER TABLE {{' || kind || '}} DROP CONSTRAINT ')
            || quote_ident(accum_internal._former_key(r, kind));
        PERFORM accum_internal._create_key(r, kind);
        PERFORM accum_internal._create_guard(r, kind);
    END LOOP;
    IF r.high_write THEN
        EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE TRIGGER is_derived BEFORE TRUNCATE ON {{named ~  ~ _balance_cache_delta}}'
            ' FOR EACH STATEMENT EXECUTE FUNCTION accum_internal._refuse_direct_write({{name}})');
    END IF;
END $$;


-- What is in them, with the rights of their owner.
CREATE OR REPLACE FUNCTION accum_internal._upgrade_rows(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF r.high_write THEN
        EXECUTE accum_internal._fill(r, 'INSERT INTO {{named ~  ~ _balance_cache_alive}} '
            'SELECT last_movement_id FROM {{named ~  ~ _balance_cache_delta}} WHERE id = 0');
        EXECUTE accum_internal._fill(r, 'DELETE FROM {{named ~  ~ _balance_cache_delta}} WHERE id = 0');
    END IF;
    PERFORM accum_internal._rehash(r);
END $$;


DO $$
DECLARE
    register text;
    owner text;
    complete boolean := true;
    former regprocedure;
BEGIN
    FOR register, owner IN
        SELECT g.name, pg_get_userbyid(accum_internal._owner_of(g)) FROM @extschema@._registers AS g
         WHERE accum_internal._owner_of(g) IS NOT NULL ORDER BY g.name
    LOOP
        BEGIN
            PERFORM accum_internal._upgrade_register(register);
        EXCEPTION WHEN OTHERS THEN
            complete := false;
            RAISE WARNING 'functions of register "%" are those of an earlier version: %', register, SQLERRM
                USING HINT = format('Make them anew as role "%s": SELECT @extschema@.register_alter(%L);', owner, register);
        END;
    END LOOP;
    IF complete THEN
        -- What earlier versions had in the schema of registers.
        FOR former IN
            SELECT p.oid FROM pg_proc AS p
             WHERE p.pronamespace = '@extschema@'::regnamespace AND p.proname ~ '^_'
               AND p.proname NOT IN ('_force_delta_merge', '_maintenance_status', '_on_sql_drop')
               AND p.proowner = (SELECT c.relowner FROM pg_class AS c WHERE c.oid = '@extschema@._registers'::regclass)
               AND NOT EXISTS (SELECT FROM @extschema@._registers AS g WHERE p.oid = ANY (accum_internal._functions_of(g)))
        LOOP
            EXECUTE format('DROP FUNCTION IF EXISTS %s', former);
        END LOOP;
    END IF;
END $$;
