-- Altering, dropping and describing registers.


-- Add dimensions or resources to a register, or switch its high-write mode. Movements so far have NULL in a new
-- dimension, and 0 in a new resource; since NULL is no part of a hash, no movement and no total changes. New columns come in the
-- order in which they are written.
DO $$
BEGIN
    IF (SELECT p.pronargdefaults = 3 FROM pg_proc AS p
         WHERE p.oid = to_regprocedure('@extschema@.register_alter(text, jsonb, jsonb, boolean)')) THEN
        DROP FUNCTION @extschema@.register_alter(text, jsonb, jsonb, boolean);  -- of an earlier version
    END IF;
END $$;
-- Add dimensions and resources to a register, declared as JSON text, or change whether it is written by many.
CREATE OR REPLACE FUNCTION @extschema@.register_alter(
    p_name text, add_dimensions text DEFAULT NULL, add_resources text DEFAULT NULL, high_write boolean DEFAULT NULL
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._alter(p_name, add_dimensions::jsonb, add_resources::jsonb, high_write,
                                 accum_internal._written_order(add_dimensions) || accum_internal._written_order(add_resources))
$$;

-- Add dimensions and resources to a register, declared as jsonb, or change whether it is written by many.
--
-- With new resources alone it is another function, since there are no two of the same defaults.
CREATE OR REPLACE FUNCTION @extschema@.register_alter(
    p_name text, add_dimensions jsonb, add_resources jsonb DEFAULT NULL, high_write boolean DEFAULT NULL
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._alter(p_name, add_dimensions, add_resources, high_write, NULL)
$$;

-- Add resources to a register, declared as jsonb.
CREATE OR REPLACE FUNCTION @extschema@.register_alter(add_resources jsonb, p_name text, high_write boolean DEFAULT NULL)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._alter(p_name, NULL, add_resources, high_write, NULL)
$$;

CREATE OR REPLACE FUNCTION accum_internal._alter(
    p_name text, dimensions jsonb, resources jsonb, high_write boolean, column_order text[]
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._call('alter', jsonb_build_object(
        'name', p_name, 'dimensions', coalesce(dimensions, '{}'), 'resources', coalesce(resources, '{}'), 'high_write', high_write,
        'column_order', column_order))
$$;


-- The same with the rights of the server's role, for the caller.
CREATE OR REPLACE FUNCTION accum_internal._alter_register(caller name, arguments jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    register CONSTANT text := arguments ->> 'name';
    dimensions CONSTANT jsonb := accum_internal._columns('dimension', arguments -> 'dimensions');
    resources CONSTANT jsonb := accum_internal._columns('resource', arguments -> 'resources');
    owner CONSTANT oid := accum_internal._claim(caller, register);
    old CONSTANT @extschema@._registers := accum_internal._register(register);
    new @extschema@._registers := old;
    plain @extschema@._registers;
    duplicate text;
BEGIN
    PERFORM accum_internal._lock_tables(old);
    FOR duplicate IN SELECT k FROM jsonb_object_keys(dimensions || resources) AS k
                      WHERE old.dimensions ? k OR old.resources ? k LOOP
        RAISE EXCEPTION 'register "%" has a column "%" already', register, duplicate USING ERRCODE = '42701';
    END LOOP;
    new.dimensions := old.dimensions || dimensions;
    new.resources := old.resources || resources;
    new.high_write := coalesce((arguments ->> 'high_write')::boolean, old.high_write);
    new.column_order := coalesce(old.column_order, ARRAY(SELECT jsonb_object_keys(old.dimensions)) || ARRAY(SELECT jsonb_object_keys(old.resources)))
        || CASE WHEN arguments -> 'column_order' <> 'null' THEN ARRAY(SELECT jsonb_array_elements_text(arguments -> 'column_order'))
                ELSE ARRAY(SELECT jsonb_object_keys(dimensions)) || ARRAY(SELECT jsonb_object_keys(resources)) END;
    PERFORM accum_internal._check_new_names('dimension', dimensions), accum_internal._check_new_names('resource', resources),
            accum_internal._check_columns(new);
    IF old.high_write THEN
        PERFORM accum_internal._refuse_old_snapshot();
        PERFORM accum_internal._as_owner(owner, 'SELECT pg_catalog.to_jsonb(accum_internal._settle_delta_buffer('
            'pg_catalog.jsonb_populate_record(NULL::@extschema@._registers, $1)))', to_jsonb(old));
    END IF;
    UPDATE @extschema@._registers AS g
       SET dimensions = g.dimensions || (arguments -> 'dimensions'), resources = g.resources || (arguments -> 'resources'),
           high_write = new.high_write, column_order = new.column_order WHERE g.name = register;
    IF old.high_write THEN
        PERFORM accum_internal._drop_delta_buffer(old);
    END IF;
    plain := new;
    plain.high_write := false;
    PERFORM accum_internal._add_columns(plain, dimensions, resources);
    IF new.high_write THEN
        PERFORM accum_internal._create_delta_buffer(new);
    END IF;
    IF dimensions <> '{}' THEN
        PERFORM set_config('pg_accumulator.altered', register, true);
        EXECUTE accum_internal._fill(old, 'DROP FUNCTION IF EXISTS {{named ~ _hash_}}({{dimensions ~ %2$s ~ , }})');
        PERFORM set_config('pg_accumulator.altered', '', true);
    END IF;
    PERFORM accum_internal._create_functions(new);
    PERFORM accum_internal._create_triggers(new);
    PERFORM accum_internal._give(new, owner);
END $$;


-- New columns in all tables of a register, which is written down with them already and not in high-write mode.
CREATE OR REPLACE FUNCTION accum_internal._add_columns(r @extschema@._registers, dimensions jsonb, resources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text;
    columns CONSTANT text := concat_ws(', ', nullif(accum_internal._each(dimensions, 'ADD COLUMN %1$I %2$s', ', ', r.column_order), ''),
        nullif(accum_internal._each(resources, 'ADD COLUMN %1$I %2$s NOT NULL DEFAULT 0', ', ', r.column_order), ''));
BEGIN
    IF columns = '' THEN
        RETURN;
    END IF;
    EXECUTE accum_internal._fill(r, 'ALTER TABLE {{movements}} ') || columns;
    EXECUTE accum_internal._fill(r, 'ALTER TABLE {{audit}} ') || columns;
    PERFORM accum_internal._extend_detached(r);
    IF resources <> '{}' THEN
        EXECUTE accum_internal._fill(r, 'ALTER TABLE {{movements}} DROP CONSTRAINT is_finite,
            ADD CONSTRAINT is_finite CHECK (isfinite(period) AND ') || accum_internal._finite(r.resources) || ') NOT VALID';
    END IF;
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        EXECUTE accum_internal._fill(r, 'ALTER TABLE {{' || kind || '}} ') || columns;
        PERFORM accum_internal._index_dimensions(r, kind, dimensions);
    END LOOP;
END $$;


-- Drop a register with all that belongs to it; with its movements only if `force`.
CREATE OR REPLACE FUNCTION @extschema@.register_drop(p_name text, force boolean DEFAULT false) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._call('drop', jsonb_build_object('name', p_name, 'force', force));
$$;


-- The same with the rights of the server's role, for the caller. Of what has a name of the register's, only the owner's is dropped;
-- partitions that have been detached are the register's, too. Of a register of another installation nothing is but its row.
CREATE OR REPLACE FUNCTION accum_internal._drop_register(caller name, arguments jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    register CONSTANT text := arguments ->> 'name';
    owner CONSTANT oid := accum_internal._claim(caller, register);
    r CONSTANT @extschema@._registers := accum_internal._listed(register);
    detached CONSTANT regclass[] := accum_internal._detached_partitions(r, caller);
    function text;
    relation text;
BEGIN
    IF owner IS NOT NULL THEN
        PERFORM accum_internal._lock_tables(r);
        IF (arguments -> 'force') IS DISTINCT FROM 'true' THEN
            PERFORM accum_internal._refuse_old_snapshot();
            FOREACH relation IN ARRAY detached || r.movements LOOP
                IF accum_internal._as_owner(owner, format('SELECT pg_catalog.to_jsonb(EXISTS (SELECT FROM %s))', relation), NULL) = 'true' THEN
                    RAISE EXCEPTION 'register "%" contains movements', register USING ERRCODE = '55000',
                        DETAIL = format('They are in %s.', relation),
                        HINT = 'Use force := true to drop it with its movements. Detached partitions that you want to keep are renamed before.';
                END IF;
            END LOOP;
        END IF;
    END IF;
    DELETE FROM @extschema@._registers AS g WHERE g.name = register;
    IF r.movements IS NULL THEN
        RETURN;  -- another installation's: this one has made none of what has its name
    END IF;
    IF r.high_write AND owner IS NOT NULL THEN
        PERFORM accum_internal._discard_delta_buffer(r);
    END IF;
    FOR relation IN
        SELECT c.oid::regclass
          FROM unnest(detached::text[] || ARRAY[accum_internal._fill(r, '{{named ~  ~ _detached}}'), accum_internal._fill(r, '{{movements}}'),
                            accum_internal._fill(r, '{{audit}}')]
                      || ARRAY(SELECT accum_internal._stored_name(r, kind) FROM unnest(accum_internal._derived(r)) AS kind)) AS name
          JOIN pg_class AS c ON c.oid = to_regclass(name) AND pg_has_role(caller, c.relowner, 'USAGE') AND c.relkind IN ('r', 'p')
    LOOP
        PERFORM accum_internal._drop_quietly('DROP TABLE ' || relation);
    END LOOP;
    -- A partition that was detached by hand has triggers yet.
    FOR function IN
        SELECT p.oid::regprocedure || CASE p.prorettype WHEN 'trigger'::regtype THEN ' CASCADE' ELSE '' END
          FROM pg_proc AS p WHERE p.oid = ANY (accum_internal._functions_of(r)) AND pg_has_role(caller, p.proowner, 'USAGE')
    LOOP
        PERFORM accum_internal._drop_quietly('DROP FUNCTION ' || function);
    END LOOP;
END $$;


-- Tables that were partitions of a register and have kept their names, of those that a role has.
CREATE OR REPLACE FUNCTION accum_internal._detached_partitions(r @extschema@._registers, caller name) RETURNS regclass[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(c.oid::regclass ORDER BY c.relname), '{}') FROM pg_class AS c
     WHERE c.relnamespace = '@extschema@'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
       AND accum_internal._is_partition(r, c.relname) AND pg_has_role(caller, c.relowner, 'USAGE')
$$;


CREATE OR REPLACE FUNCTION accum_internal._drop_quietly(statement text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
BEGIN
    EXECUTE statement;
END $$;


-- All registers. The movements of a register that the caller may not read are not counted.
CREATE OR REPLACE FUNCTION @extschema@.register_list()
RETURNS TABLE (name text, kind text, dimensions integer, resources integer, movements_count bigint, created_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.name, g.kind, (SELECT count(*)::integer FROM jsonb_object_keys(g.dimensions)),
           (SELECT count(*)::integer FROM jsonb_object_keys(g.resources)), accum_internal._count(g), g.created_at
      FROM @extschema@._registers g ORDER BY g.name
$$;


-- How many movements a register has, as far as it is there still and the caller may read them all; else NULL. The owner of a
-- table decides what is computed when it is read: conditions of policies, expressions of indexes. So it is read with his rights.
CREATE OR REPLACE FUNCTION accum_internal._count(r @extschema@._registers) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner CONSTANT oid := accum_internal._owner_of(r);
    result bigint;
BEGIN
    IF owner = accum_internal._me() THEN
        EXECUTE format('SELECT count(*) FROM %s', r.movements) INTO result;
    ELSIF owner IS NOT NULL AND has_table_privilege(r.movements, 'SELECT') AND NOT row_security_active(r.movements) THEN
        result := accum_internal._count_as_owner(r.name);
    END IF;
    RETURN result;
EXCEPTION WHEN undefined_table OR syntax_error THEN
    RETURN NULL;  -- dropped meanwhile: a table that is gone has its OID for a name
END $$;


-- The same by the server's role, for all that the session's roles may read. Whatever the owner's code has done is undone, and an error of his
-- does not keep others from looking at the list.
CREATE OR REPLACE FUNCTION accum_internal._count_as_owner(p_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r @extschema@._registers;
    owner oid;
    result bigint;
BEGIN
    SELECT * INTO r FROM @extschema@._registers AS g WHERE g.name = p_name;
    owner := accum_internal._owner_of(r);
    IF owner IS NULL OR NOT EXISTS (
        SELECT FROM pg_roles AS a WHERE a.rolname IN (session_user, current_setting('role')) AND has_table_privilege(a.oid, r.movements, 'SELECT')
           AND (a.rolsuper OR a.rolbypassrls OR pg_has_role(a.oid, owner, 'USAGE')
                OR NOT (SELECT c.relrowsecurity FROM pg_class AS c WHERE c.oid = r.movements)))
    THEN
        RETURN NULL;
    END IF;
    BEGIN
        result := accum_internal._as_owner(owner, format('SELECT pg_catalog.to_jsonb(pg_catalog.count(*)) FROM %s', r.movements), NULL);
        RAISE EXCEPTION SQLSTATE 'HW001';
    EXCEPTION
        WHEN SQLSTATE 'HW001' THEN NULL;
        WHEN OTHERS THEN result := NULL;
    END;
    RETURN result;
END $$;


-- All that is known of a register, as it has been declared.
CREATE OR REPLACE FUNCTION @extschema@.register_info(p_name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._listed(p_name);
BEGIN
    RETURN (SELECT to_jsonb(g) - 'movements' - 'column_order' FROM @extschema@._registers AS g WHERE g.name = p_name) || jsonb_build_object(
        'movements_count', accum_internal._count(r),
        'tables', jsonb_build_object('movements', accum_internal._fill(r, '{{movements}}')) || (
            SELECT jsonb_object_agg(CASE kind WHEN 'cache' THEN 'balance_cache' ELSE 'totals_' || kind END, accum_internal._source(r, kind))
              FROM unnest(accum_internal._derived(r)) AS kind));
END $$;
