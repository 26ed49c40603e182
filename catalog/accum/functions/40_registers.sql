-- Creating, altering, dropping and describing registers.


-- Create a register with its tables, indexes, partitions, triggers and functions. They belong to the caller, who needs
-- CREATE on this schema.
CREATE OR REPLACE FUNCTION @extschema@.register_create(
    name text, dimensions jsonb, resources jsonb, kind text DEFAULT 'balance', totals_period text DEFAULT 'day',
    partition_by text DEFAULT 'month', high_write boolean DEFAULT false, recorder_type text DEFAULT 'text'
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    r @extschema@._registers;
    derived text;
BEGIN
    IF name IS NULL OR name !~ '^\w+$' OR octet_length(name) > 40 THEN
        RAISE EXCEPTION 'invalid name of a register: %', coalesce('"' || name || '"', 'null') USING ERRCODE = '42602',
            HINT = 'Names consist of letters, digits and underscores, at most 40 bytes.';
    END IF;
    PERFORM @extschema@._one_of('kind', kind, '{balance,turnover}');
    PERFORM @extschema@._one_of('totals_period', totals_period, '{day,month,year}');
    PERFORM @extschema@._one_of('partition_by', partition_by, '{day,month,quarter,year}');
    PERFORM @extschema@._claim(name);
    IF EXISTS (SELECT FROM @extschema@._registers g WHERE g.name = name) THEN
        RAISE EXCEPTION 'register "%" already exists', name USING ERRCODE = '42710';
    ELSIF NOT has_schema_privilege('@extschema@'::regnamespace, 'CREATE') THEN
        RAISE EXCEPTION 'permission denied to create a register in schema @extschema@' USING ERRCODE = '42501',
            HINT = format('GRANT CREATE ON SCHEMA @extschema@ TO %I;', current_user);
    END IF;
    PERFORM @extschema@._check_recorder_type(recorder_type);
    r := ROW(name, kind, @extschema@._columns('dimension', dimensions), @extschema@._columns('resource', resources),
             totals_period, partition_by, coalesce(high_write, false), @extschema@._recorder_type(recorder_type), now());
    PERFORM @extschema@._check_columns(r);
    PERFORM @extschema@._create_movements(r);
    FOREACH derived IN ARRAY @extschema@._derived(r) LOOP
        PERFORM @extschema@._create_derived(r, derived);
    END LOOP;
    INSERT INTO @extschema@._registers SELECT r.*;
    IF r.high_write THEN
        PERFORM @extschema@._create_delta_buffer(r);
    END IF;
    PERFORM @extschema@._create_functions(r);
    PERFORM @extschema@._create_triggers(r);
    PERFORM @extschema@._create_partitions_for(r);
END $$;


-- One at a time makes, alters or drops a register of a name; who waits then sees what the other has done.
CREATE OR REPLACE FUNCTION @extschema@._claim(name text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_advisory_xact_lock('@extschema@._registers'::regclass::oid::int, hashtext(name))
$$;


CREATE OR REPLACE FUNCTION @extschema@._one_of(argument text, value text, choices text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL OR NOT value = ANY (choices) THEN
        RAISE EXCEPTION 'invalid value for %: %', argument, coalesce('"' || value || '"', 'null') USING ERRCODE = '22023',
            HINT = format('It is one of %s.', array_to_string(choices, ', '));
    END IF;
END $$;


-- The type of a recorder, as it is written anywhere. Types outside pg_catalog are given with their schema.
CREATE OR REPLACE FUNCTION @extschema@._recorder_type(type text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts CONSTANT text[] := regexp_match(btrim(type), '^(.*?)(\(\s*\d+\s*(?:,\s*\d+\s*)?\))?$');
    found CONSTANT regtype := to_regtype(parts[1]);
BEGIN
    IF found IS NULL OR (SELECT t.typtype = 'p' FROM pg_type t WHERE t.oid = found) THEN
        RAISE EXCEPTION 'type % of the recorder does not exist', coalesce('"' || type || '"', 'null') USING ERRCODE = '42704',
            HINT = 'A type that is not PostgreSQL''s own is named with its schema.';
    END IF;
    RETURN format_type(found, NULL) || coalesce(parts[2], '');
END $$;


-- Fails if a type that a user has given cannot be that of a recorder, by which movements are found.
CREATE OR REPLACE FUNCTION @extschema@._check_recorder_type(type text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT FROM (VALUES (NULL::%s)) AS t (recorder) ORDER BY recorder', @extschema@._recorder_type(type));
EXCEPTION
    WHEN undefined_function THEN
        RAISE EXCEPTION 'type "%" of the recorder has no order, so that no index could find movements by it', type
            USING ERRCODE = '22023', HINT = 'Use text, or another type that ORDER BY can sort.';
    WHEN syntax_error OR data_exception THEN
        RAISE EXCEPTION 'type "%" of the recorder is no type', type USING ERRCODE = '22023', DETAIL = SQLERRM;
    WHEN integrity_constraint_violation THEN
        NULL;  -- a domain that is not null
END $$;


-- Fails if the columns do not make a register.
CREATE OR REPLACE FUNCTION @extschema@._check_columns(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dimensions CONSTANT bigint := (SELECT count(*) FROM jsonb_object_keys(r.dimensions));
    resources CONSTANT bigint := (SELECT count(*) FROM jsonb_object_keys(r.resources));
    name text;
BEGIN
    IF r.resources = '{}' THEN
        RAISE EXCEPTION 'a register needs at least one resource' USING ERRCODE = '22023';
    ELSIF dimensions > 30 THEN
        RAISE EXCEPTION 'a register has at most 30 dimensions, not %', dimensions USING ERRCODE = '54011',
            DETAIL = 'A cell is found by an index on its hash, the period and all dimensions; an index has at most 32 columns.';
    ELSIF dimensions + resources > 50 THEN
        RAISE EXCEPTION 'a register has at most 50 dimensions and resources, not %', dimensions + resources USING ERRCODE = '54011',
            DETAIL = 'A turnover is an object with all of them; a function that makes one has at most 100 arguments.';
    END IF;
    FOR name IN SELECT k FROM jsonb_object_keys(r.dimensions) AS k WHERE r.resources ? k LOOP
        RAISE EXCEPTION '"%" is both a dimension and a resource', name USING ERRCODE = '42701';
    END LOOP;
END $$;


-- All functions of a register, made anew. That of the hash is another one when there are new dimensions.
CREATE OR REPLACE FUNCTION @extschema@._create_functions(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE @extschema@._fill(r, 'CREATE OR REPLACE FUNCTION {{named ~ _hash_}}({{dimensions ~ %1$I %2$s ~ , }}) RETURNS bigint
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS ')
        || quote_literal('SELECT ' || replace(
            @extschema@._hash_of(r.dimensions, '@.%1$I'), '@.', quote_ident('_hash_' || r.name) || '.'));
    PERFORM @extschema@._give(r, 'FUNCTION', @extschema@._fill(r, '{{named ~ _hash_ ~ }}({{dimensions ~ %2$s ~ , }})'));
    PERFORM @extschema@._create_trigger_functions(r);
    PERFORM @extschema@._create_posting_functions(r);
    PERFORM @extschema@._create_reading_functions(r);
END $$;
