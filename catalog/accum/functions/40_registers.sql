-- Creating registers.


-- Create a register with its tables, indexes, partitions, triggers and functions. They belong to the caller, who needs INSERT on the list
-- of registers. Its columns are in the order in which they are written here; a jsonb has forgotten that.
CREATE OR REPLACE FUNCTION @extschema@.register_create(
    name text, dimensions text, resources text, kind text DEFAULT 'balance', totals_period text DEFAULT 'day',
    partition_by text DEFAULT 'month', high_write boolean DEFAULT false, recorder_type text DEFAULT 'text'
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._create(name, dimensions::jsonb, resources::jsonb, kind, totals_period, partition_by, high_write, recorder_type,
                                  accum_internal._written_order(dimensions) || accum_internal._written_order(resources))
$$;

-- Create a register whose dimensions and resources are declared as jsonb, which has forgotten in what order they were
-- written.
CREATE OR REPLACE FUNCTION @extschema@.register_create(
    name text, dimensions jsonb, resources jsonb, kind text DEFAULT 'balance', totals_period text DEFAULT 'day',
    partition_by text DEFAULT 'month', high_write boolean DEFAULT false, recorder_type text DEFAULT 'text'
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._create(name, dimensions, resources, kind, totals_period, partition_by, high_write, recorder_type, NULL)
$$;

CREATE OR REPLACE FUNCTION accum_internal._create(
    name text, dimensions jsonb, resources jsonb, kind text, totals_period text, partition_by text, high_write boolean, recorder_type text,
    column_order text[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    r @extschema@._registers;
BEGIN
    PERFORM accum_internal._check_name(name);
    PERFORM accum_internal._check_new(current_user, name);
    PERFORM accum_internal._check_recorder_type(recorder_type);
    r.name := name;
    r.dimensions := dimensions;
    r.resources := resources;
    r.kind := kind;
    r.totals_period := totals_period;
    r.partition_by := partition_by;
    r.high_write := coalesce(high_write, false);
    r.recorder_type := recorder_type;
    r.column_order := column_order;
    PERFORM accum_internal._call('create', to_jsonb(r));
END $$;


CREATE OR REPLACE FUNCTION accum_internal._check_name(register text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF register IS NULL OR register !~ E'^(?!\\d)\\w+$' OR octet_length(register) > 40 THEN
        RAISE EXCEPTION 'invalid name of a register: %', coalesce('"' || register || '"', 'null') USING ERRCODE = '42602',
            HINT = 'Names consist of letters, digits and underscores, do not begin with a digit, and have at most 40 bytes.';
    END IF;
END $$;


-- Fails if a role may not create a register of a name.
CREATE OR REPLACE FUNCTION accum_internal._check_new(caller name, register text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM @extschema@._registers AS g WHERE g.name = register) THEN
        RAISE EXCEPTION 'register "%" already exists', register USING ERRCODE = '42710';
    ELSIF NOT has_table_privilege(caller, '@extschema@._registers'::regclass, 'INSERT')
      AND NOT has_schema_privilege(caller, '@extschema@'::regnamespace, 'CREATE')
    THEN
        RAISE EXCEPTION 'permission denied to create a register in schema @extschema@' USING ERRCODE = '42501',
            HINT = format('GRANT INSERT ON @extschema@._registers TO %I;', caller);
    END IF;
END $$;


-- The same with the rights of the server's role, for the caller. All is checked again.
CREATE OR REPLACE FUNCTION accum_internal._put_register(caller name, arguments jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r @extschema@._registers := jsonb_populate_record(NULL::@extschema@._registers, arguments - 'movements' - 'created_at');
    declared @extschema@._registers := r;
    derived text;
    taken regprocedure;
BEGIN
    PERFORM accum_internal._check_name(r.name);
    PERFORM accum_internal._one_of('kind', r.kind, '{balance,turnover}');
    PERFORM accum_internal._one_of('totals_period', r.totals_period, '{day,month,year}');
    PERFORM accum_internal._one_of('partition_by', r.partition_by, '{day,month,quarter,year}');
    PERFORM accum_internal._check_new(caller, r.name);
    r.dimensions := accum_internal._columns('dimension', r.dimensions);
    r.resources := accum_internal._columns('resource', r.resources);
    PERFORM accum_internal._check_new_names('dimension', r.dimensions), accum_internal._check_new_names('resource', r.resources),
            accum_internal._check_columns(r);
    IF r.dimensions = '{}' THEN
        RAISE EXCEPTION 'a register needs at least one dimension' USING ERRCODE = '22023';
    END IF;
    r.recorder_type := accum_internal._recorder_type(r.recorder_type);
    r.created_at := now();
    IF NOT has_type_privilege(caller, to_regtype(r.recorder_type)::oid, 'USAGE') THEN
        RAISE EXCEPTION 'permission denied for type %', r.recorder_type USING ERRCODE = '42501';
    END IF;
    -- One at a time makes a register of a name; who waits then sees what the other has done.
    declared.created_at := r.created_at;
    INSERT INTO @extschema@._registers SELECT declared.* ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'register "%" already exists', r.name USING ERRCODE = '42710';
    END IF;
    FOREACH taken IN ARRAY accum_internal._functions_of(r) LOOP
        RAISE EXCEPTION 'function % already exists', taken USING ERRCODE = '42723';
    END LOOP;
    PERFORM accum_internal._create_movements(r);
    r.movements := accum_internal._name(r.name || '_movements');
    UPDATE @extschema@._registers AS g SET movements = r.movements WHERE g.name = r.name;
    FOREACH derived IN ARRAY accum_internal._derived(r) LOOP
        PERFORM accum_internal._create_derived(r, derived);
    END LOOP;
    IF r.high_write THEN
        PERFORM accum_internal._create_delta_buffer(r);
    END IF;
    PERFORM accum_internal._create_functions(r);
    PERFORM accum_internal._create_triggers(r);
    PERFORM accum_internal._create_default_partition(r);
    PERFORM accum_internal._give(r, to_regrole(quote_ident(caller)));
    PERFORM accum_internal._keep_partitions(r, accum_internal._setting('partitions_ahead'));
END $$;


CREATE OR REPLACE FUNCTION accum_internal._one_of(argument text, value text, choices text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL OR NOT value = ANY (choices) THEN
        RAISE EXCEPTION 'invalid value for %: %', argument, coalesce('"' || value || '"', 'null') USING ERRCODE = '22023',
            HINT = format('It is one of %s.', array_to_string(choices, ', '));
    END IF;
END $$;


-- The type of a recorder, as it is written anywhere. Types outside pg_catalog are given with their schema.
CREATE OR REPLACE FUNCTION accum_internal._recorder_type(type text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts CONSTANT text[] := regexp_match(btrim(type), E'^(.*?)(\\(\\s*\\d+\\s*(?:,\\s*\\d+\\s*)?\\))?$');
    found CONSTANT regtype := to_regtype(parts[1]);
BEGIN
    IF found IS NULL OR (SELECT t.typtype = 'p' FROM pg_type t WHERE t.oid = found) THEN
        RAISE EXCEPTION 'type % of the recorder does not exist', coalesce('"' || type || '"', 'null') USING ERRCODE = '42704',
            HINT = 'A type that is not PostgreSQL''s own is named with its schema.';
    ELSIF (SELECT pg_is_other_temp_schema(t.typnamespace) OR t.typnamespace = pg_my_temp_schema() FROM pg_type t WHERE t.oid = found) THEN
        RAISE EXCEPTION 'type % of the recorder is a temporary one', found USING ERRCODE = '42P16';
    END IF;
    RETURN format_type(found, NULL) || coalesce(parts[2], '');
END $$;


-- Fails if a type that a user has given cannot be that of a recorder, by which movements are found.
CREATE OR REPLACE FUNCTION accum_internal._check_recorder_type(type text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT FROM (VALUES (NULL::%s)) AS t (recorder) ORDER BY recorder', accum_internal._recorder_type(type));
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
CREATE OR REPLACE FUNCTION accum_internal._check_columns(r @extschema@._registers) RETURNS void
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
            DETAIL = 'Cells are found by an index on all dimensions; an index has at most 32 columns.';
    ELSIF dimensions + resources > 50 THEN
        RAISE EXCEPTION 'a register has at most 50 dimensions and resources, not %', dimensions + resources USING ERRCODE = '54011',
            DETAIL = 'A turnover is an object with all of them; a function that makes one has at most 100 arguments.';
    END IF;
    FOR name IN SELECT k FROM jsonb_object_keys(r.dimensions) AS k WHERE r.resources ? k LOOP
        RAISE EXCEPTION '"%" is both a dimension and a resource', name USING ERRCODE = '42701';
    END LOOP;
END $$;


-- All functions of a register, made anew by the server's role; those that are new are not the owner's yet. That of the hash is another one
-- when there are new dimensions.
CREATE OR REPLACE FUNCTION accum_internal._create_functions(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{named ~ _hash_}}({{dimensions ~ %1$I %2$s ~ , }}) RETURNS bigint
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS ')
        || quote_literal('SELECT ' || replace(
            accum_internal._hash_of(r.dimensions, '@.%1$I'), '@.', quote_ident('_hash_' || r.name) || '.'));
    PERFORM accum_internal._create_trigger_functions(r);
    PERFORM accum_internal._create_posting_functions(r);
    PERFORM accum_internal._create_reading_functions(r);
END $$;
