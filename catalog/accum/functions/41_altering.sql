-- Altering, dropping and describing registers.


-- Add dimensions or resources to a register, or switch its high-write mode. Movements so far have NULL in a new
-- dimension, and 0 in a new resource; since NULL is no part of a hash, no movement and no total changes. Only the keys
-- of the derived tables are built anew.
CREATE OR REPLACE FUNCTION @extschema@.register_alter(
    p_name text, add_dimensions jsonb DEFAULT NULL, add_resources jsonb DEFAULT NULL, high_write boolean DEFAULT NULL
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    old @extschema@._registers;
    new @extschema@._registers;
    plain @extschema@._registers;
    dimensions CONSTANT jsonb := @extschema@._columns('dimension', coalesce(add_dimensions, '{}'));
    resources CONSTANT jsonb := @extschema@._columns('resource', coalesce(add_resources, '{}'));
    name text;
BEGIN
    PERFORM @extschema@._claim(p_name);
    old := @extschema@._register(p_name);
    EXECUTE @extschema@._fill(old, 'LOCK TABLE {{movements}} IN ACCESS EXCLUSIVE MODE');
    FOR name IN SELECT k FROM jsonb_object_keys(dimensions || resources) AS k
                 WHERE old.dimensions ? k OR old.resources ? k LOOP
        RAISE EXCEPTION 'register "%" has a column "%" already', p_name, name USING ERRCODE = '42701';
    END LOOP;
    new := old;
    new.dimensions := old.dimensions || dimensions;
    new.resources := old.resources || resources;
    new.high_write := coalesce(high_write, old.high_write);
    PERFORM @extschema@._check_columns(new);
    UPDATE @extschema@._registers g
       SET dimensions = new.dimensions, resources = new.resources, high_write = new.high_write WHERE g.name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'must be owner of register "%"', p_name USING ERRCODE = '42501';
    END IF;
    IF old.high_write THEN
        PERFORM @extschema@._refuse_old_snapshot();
        PERFORM @extschema@._drop_delta_buffer(old);
    END IF;
    plain := new;
    plain.high_write := false;
    PERFORM @extschema@._add_columns(plain, dimensions, resources);
    IF new.high_write THEN
        PERFORM @extschema@._create_delta_buffer(new);
    END IF;
    IF dimensions <> '{}' THEN
        EXECUTE @extschema@._fill(old, 'DROP FUNCTION IF EXISTS {{named ~ _hash_}}({{dimensions ~ %2$s ~ , }})');
    END IF;
    PERFORM @extschema@._create_functions(new);
    PERFORM @extschema@._create_triggers(new);
END $$;


-- New columns in all tables of a register, which is written down with them already and not in high-write mode.
CREATE OR REPLACE FUNCTION @extschema@._add_columns(r @extschema@._registers, dimensions jsonb, resources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text;
    columns CONSTANT text := concat_ws(', ', nullif(@extschema@._each(dimensions, 'ADD COLUMN %1$I %2$s', ', '), ''),
        nullif(@extschema@._each(resources, 'ADD COLUMN %1$I %2$s NOT NULL DEFAULT 0', ', '), ''));
BEGIN
    IF columns = '' THEN
        RETURN;
    END IF;
    EXECUTE @extschema@._fill(r, 'ALTER TABLE {{movements}} ') || columns;
    EXECUTE @extschema@._fill(r, 'ALTER TABLE {{audit}} ') || columns;
    PERFORM @extschema@._extend_detached(r);
    IF resources <> '{}' THEN
        EXECUTE @extschema@._fill(r, 'ALTER TABLE {{movements}} DROP CONSTRAINT is_finite,
            ADD CONSTRAINT is_finite CHECK (isfinite(period) AND ') || @extschema@._finite(r.resources) || ') NOT VALID';
    END IF;
    FOREACH kind IN ARRAY @extschema@._derived(r) LOOP
        EXECUTE @extschema@._fill(r, 'ALTER TABLE {{' || kind || '}} ') || columns;
        IF dimensions <> '{}' THEN
            EXECUTE @extschema@._fill(r, 'ALTER TABLE {{' || kind || '}} DROP CONSTRAINT ')
                || quote_ident(@extschema@._key_name(r, kind));
            PERFORM @extschema@._create_key(r, kind);
            PERFORM @extschema@._index_dimensions(r, kind, dimensions);
        END IF;
    END LOOP;
END $$;


-- Drop a register with all that belongs to it; with its movements only if `force`.
CREATE OR REPLACE FUNCTION @extschema@.register_drop(p_name text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r @extschema@._registers;
    function text;
    relation text;
    used boolean;
BEGIN
    PERFORM @extschema@._claim(p_name);
    r := @extschema@._register(p_name);
    IF to_regclass(@extschema@._fill(r, '{{movements}}')) IS NOT NULL THEN
        EXECUTE @extschema@._fill(r, 'LOCK TABLE {{movements}} IN ACCESS EXCLUSIVE MODE');
        IF force IS NOT TRUE THEN
            PERFORM @extschema@._refuse_old_snapshot();
            EXECUTE @extschema@._fill(r, 'SELECT EXISTS (SELECT FROM {{movements}})') INTO used;
            IF used THEN
                RAISE EXCEPTION 'register "%" contains movements', p_name USING ERRCODE = '55000',
                    HINT = 'Use force := true to drop it with its movements.';
            END IF;
        END IF;
    END IF;
    DELETE FROM @extschema@._registers g WHERE g.name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'must be owner of register "%"', p_name USING ERRCODE = '42501';
    END IF;
    IF r.high_write THEN
        PERFORM @extschema@._discard_delta_buffer(r);
    END IF;
    PERFORM @extschema@._drop_quietly(@extschema@._fill(r, 'DROP TABLE IF EXISTS {{named ~  ~ _detached}}'));
    FOREACH relation IN ARRAY ARRAY['movements', 'audit'] || @extschema@._derived(r) LOOP
        PERFORM @extschema@._drop_quietly(@extschema@._fill(r, 'DROP TABLE IF EXISTS {{' || relation || '}}'));
    END LOOP;
    -- A partition that was detached by hand has triggers yet.
    FOR function IN
        SELECT p.oid::regprocedure || CASE p.prorettype WHEN 'trigger'::regtype THEN ' CASCADE' ELSE '' END
          FROM unnest(string_to_array(@extschema@._fill(r, '{{named ~ _hash_ ~ }}({{dimensions ~ %2$s ~ , }});
                   {{named ~ _post_ ~ }}(jsonb); {{named ~ _unpost_ ~ }}({{recorder}}); {{named ~ _repost_ ~ }}({{recorder}}, jsonb);
                   {{named ~ _trg_ ~ _hash}}(); {{named ~ _trg_ ~ _insert}}(); {{named ~ _trg_ ~ _update}}(); {{named ~ _trg_ ~ _delete}}();
                   {{named ~ _trg_ ~ _truncate}}(); {{named ~  ~ _balance}}(jsonb, timestamptz); {{named ~ _balance_ ~ }}(jsonb, timestamptz);
                   {{named ~  ~ _turnover}}(timestamptz, timestamptz, jsonb, jsonb);
                   {{named ~  ~ _movements}}({{recorder}}, timestamptz, timestamptz, jsonb, boolean);
                   {{named ~  ~ _balance_at_each}}(text, timestamptz, timestamptz, jsonb)'), ';')) AS signature
          JOIN pg_proc p ON p.oid = to_regprocedure(signature)
         WHERE pg_has_role(p.proowner, 'USAGE')
    LOOP
        PERFORM @extschema@._drop_quietly('DROP FUNCTION ' || function);
    END LOOP;
END $$;


CREATE OR REPLACE FUNCTION @extschema@._drop_quietly(statement text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
BEGIN
    EXECUTE statement;
END $$;


-- All registers. The movements of a register that the caller may not read are not counted.
CREATE OR REPLACE FUNCTION @extschema@.register_list()
RETURNS TABLE (name text, kind text, dimensions integer, resources integer, movements_count bigint, created_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.name, g.kind, (SELECT count(*)::integer FROM jsonb_object_keys(g.dimensions)),
           (SELECT count(*)::integer FROM jsonb_object_keys(g.resources)), @extschema@._count(g), g.created_at
      FROM @extschema@._registers g ORDER BY g.name
$$;


CREATE OR REPLACE FUNCTION @extschema@._count(r @extschema@._registers) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    movements CONSTANT regclass := to_regclass(@extschema@._name(r.name || '_movements'));
    result bigint;
BEGIN
    IF movements IS NOT NULL AND has_table_privilege(movements, 'SELECT') THEN
        EXECUTE format('SELECT count(*) FROM %s', movements) INTO result;
    END IF;
    RETURN result;
END $$;


-- All that is known of a register.
CREATE OR REPLACE FUNCTION @extschema@.register_info(p_name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := @extschema@._register(p_name);
BEGIN
    RETURN to_jsonb(r) || jsonb_build_object('movements_count', @extschema@._count(r));
END $$;
