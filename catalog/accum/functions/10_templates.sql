-- What the tables and functions of a register are made of: names, types, templates.
--
-- What users call is in the schema of registers; all that only functions call is in accum_internal, in which nobody else can create.
-- No string here holds a backslash but as E'': what it is without depends on a setting that a caller may change.
--
-- The code of a register is made from templates, in which {{...}} stands for its names and lists of its columns, each
-- quoted here. Templates are filled in one pass, so that nothing in a name is ever taken for a part of a template.


-- One piece of text for each column: the pattern with %1$I the name and %2$s the type. They are in the order of `positions`; jsonb has
-- an order of its own, which is that of columns that are not there.
CREATE OR REPLACE FUNCTION accum_internal._each(columns jsonb, pattern text, separator text DEFAULT '', positions text[] DEFAULT NULL)
RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(string_agg(format(pattern, c.key, c.value), separator ORDER BY array_position(positions, c.key), c.ordinality), '')
      FROM jsonb_each_text(columns) WITH ORDINALITY AS c
$$;
DROP FUNCTION IF EXISTS accum_internal._each(jsonb, text, text);  -- of an earlier version


-- The names of declared columns in the order in which they are written. What is no object is refused by _columns.
CREATE OR REPLACE FUNCTION accum_internal._written_order(declared text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE json_typeof(declared::json) WHEN 'object' THEN ARRAY(SELECT json_object_keys(declared::json)) ELSE '{}' END
$$;


-- Raises 42602 for names that no register is given any more; there may be some that have them.
CREATE OR REPLACE FUNCTION accum_internal._check_new_names(role text, declared jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT k FROM jsonb_object_keys(declared) AS k WHERE k ~ E'^\\d' LOOP
        RAISE EXCEPTION 'invalid name of a %: "%"', role, name USING ERRCODE = '42602',
            HINT = 'Names begin with a letter.';
    END LOOP;
END $$;


-- A name in this schema, as an identifier.
CREATE OR REPLACE FUNCTION accum_internal._name(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT '@extschema@.' || quote_ident(name) $$;


-- What is made for a register in accum_internal, as an identifier. No other function there has a dot in its name.
CREATE OR REPLACE FUNCTION accum_internal._own_name(register text, purpose text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT 'accum_internal.' || quote_ident(register || '.' || purpose) $$;


-- The canonical name of the type of a dimension or a resource, NULL if it is not supported.
CREATE OR REPLACE FUNCTION accum_internal._column_type(role text, type text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts CONSTANT text[] := regexp_match(lower(btrim(type)), E'^([a-z0-9 ]+?)\\s*(?:\\(\\s*(\\d{1,8})\\s*(?:,\\s*(-?\\d{1,4})\\s*)?\\))?$');
    base CONSTANT text := regexp_replace(parts[1], E'\\s+', ' ', 'g');
    modified CONSTANT boolean := parts[2] IS NOT NULL;
BEGIN
    RETURN CASE
        WHEN modified AND (NOT parts[2]::int BETWEEN 1 AND CASE role WHEN 'resource' THEN 1000 ELSE 10485760 END
                           OR NOT coalesce(parts[3]::int, 0) BETWEEN -1000 AND 1000) THEN NULL
        WHEN base IN ('numeric', 'decimal') AND role = 'resource' THEN
            'numeric' || CASE WHEN modified THEN format('(%s,%s)', parts[2], coalesce(parts[3], '0')) ELSE '' END
        WHEN base IN ('varchar', 'character varying') AND role = 'dimension' AND parts[3] IS NULL THEN
            'character varying' || CASE WHEN modified THEN format('(%s)', parts[2]) ELSE '' END
        WHEN modified THEN NULL
        WHEN base IN ('int', 'integer', 'int4') THEN 'integer'
        WHEN base IN ('bigint', 'int8') THEN 'bigint'
        WHEN role = 'resource' THEN CASE
            WHEN base IN ('double precision', 'float8', 'float') THEN 'double precision'
            WHEN base IN ('real', 'float4') THEN 'real' END
        WHEN base IN ('smallint', 'int2') THEN 'smallint'
        WHEN base IN ('boolean', 'bool') THEN 'boolean'
        WHEN base IN ('text', 'uuid', 'date') THEN base
    END;
END $$;


-- Whether a type, in its canonical name, is text of any or a given length. JSON's objects and arrays would be taken for such texts, too.
CREATE OR REPLACE FUNCTION accum_internal._is_text(type text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT type ~ E'^(text|character varying(\\(\\d+\\))?)$' $$;


-- The columns that a user has declared, with canonical types.
CREATE OR REPLACE FUNCTION accum_internal._columns(role text, declared jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result jsonb := '{}';
    name text;
    type text;
    canonical text;
BEGIN
    IF declared IS NULL OR jsonb_typeof(declared) <> 'object' THEN
        RAISE EXCEPTION '%s must be a JSON object of names and types', role USING ERRCODE = '22023',
            HINT = format('Write %ss := ''{"name": "type", ...}''.', role);
    END IF;
    FOR name, type IN SELECT * FROM jsonb_each_text(declared) LOOP
        IF name !~ E'^\\w+$' OR octet_length(name) > 63 THEN
            RAISE EXCEPTION 'invalid name of a %: "%"', role, name USING ERRCODE = '42602',
                HINT = 'Names consist of letters, digits and underscores, at most 63 bytes.';
        ELSIF name IN ('id', 'recorded_at', 'recorder', 'period', 'movement_type', 'dim_hash', 'last_movement_at',
                       'last_movement_id', 'version', 'tableoid', 'ctid', 'xmin', 'xmax', 'cmin', 'cmax', 'day', 'created_at',
                       'p_data', 'p_recorder') OR name LIKE E'audit\\_%' OR name LIKE E'\\_%' THEN
            RAISE EXCEPTION 'name of % "%" is reserved', role, name USING ERRCODE = '42939';
        END IF;
        canonical := accum_internal._column_type(role, type);
        IF canonical IS NULL THEN
            RAISE EXCEPTION 'type "%" of % "%" is not supported', coalesce(type, 'null'), role, name USING ERRCODE = '22023',
                HINT = CASE role
                    WHEN 'dimension' THEN 'Use int, bigint, smallint, text, varchar(n), uuid, date or boolean.'
                    ELSE 'Use numeric(p,s), integer, bigint, double precision or real.' END;
        END IF;
        result := result || jsonb_build_object(name, canonical);
    END LOOP;
    RETURN result;
END $$;


-- Columns whose types are written so that no search_path can change what they mean, and without a length, since a cast
-- would cut a value off that is too long to be there.
CREATE OR REPLACE FUNCTION accum_internal._qualified(columns jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_object_agg(c.key, 'pg_catalog.' || CASE
               WHEN c.value LIKE 'character varying%' THEN 'text'
               ELSE CASE c.value WHEN 'integer' THEN 'int4' WHEN 'bigint' THEN 'int8' WHEN 'smallint' THEN 'int2'
                                 WHEN 'double precision' THEN 'float8' WHEN 'real' THEN 'float4' WHEN 'boolean' THEN 'bool'
                                 ELSE c.value END END), '{}')
      FROM jsonb_each_text(columns) AS c
$$;


-- The hash of a cell: 64 bits, over the dimensions that are not NULL, so that a dimension added later, NULL in all
-- movements so far, changes no hash. `pattern` is how a value is written, with %1$I the name and %2$s the type.
--
-- PostgreSQL's hash of a bigint is one of 32 bits, so that two large ones easily have the same: those are hashed as texts.
CREATE OR REPLACE FUNCTION accum_internal._hash_of(dimensions jsonb, pattern text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(string_agg(format('coalesce(' || replace(CASE d.value
               WHEN 'pg_catalog.text' THEN 'pg_catalog.hashtextextended((@)::pg_catalog.text COLLATE pg_catalog."C", %3$L::pg_catalog.int8)'
               WHEN 'pg_catalog.uuid' THEN 'pg_catalog.uuid_hash_extended(@, %3$L::pg_catalog.int8)'
               WHEN 'pg_catalog.date' THEN 'pg_catalog.hash_array_extended(CASE WHEN @ IS NOT NULL THEN ARRAY[@] END, %3$L::pg_catalog.int8)'
               WHEN 'pg_catalog.bool' THEN 'pg_catalog.hashint8extended((@)::pg_catalog.int4::pg_catalog.int8, %3$L::pg_catalog.int8)'
               WHEN 'pg_catalog.int8' THEN 'CASE WHEN @ OPERATOR(pg_catalog.>=) ''-2147483648''::pg_catalog.int8 '
                   'AND @ OPERATOR(pg_catalog.<=) ''2147483647''::pg_catalog.int8 '
                   'THEN pg_catalog.hashint8extended(@, %3$L::pg_catalog.int8) '
                   'ELSE pg_catalog.hashtextextended((@)::pg_catalog.text COLLATE pg_catalog."C", %3$L::pg_catalog.int8) END'
               ELSE 'pg_catalog.hashint8extended(@, %3$L::pg_catalog.int8)' END, '@', pattern) || ', 0)',
               d.key, d.value, hashtextextended(d.key COLLATE "C", 0)), ' OPERATOR(pg_catalog.#) ' ORDER BY d.ordinality), '0::pg_catalog.int8')
      FROM jsonb_each_text(accum_internal._qualified(dimensions)) WITH ORDINALITY AS d
$$;


-- Raises 42704, since there is no register of this name.
CREATE OR REPLACE FUNCTION accum_internal._no_register(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION 'name of the register must not be null' USING ERRCODE = '22004';
    ELSIF EXISTS (SELECT FROM @extschema@._registers AS g WHERE g.name = name AND g.movements IS NULL) THEN
        RAISE EXCEPTION 'register "%" was made by another installation', name USING ERRCODE = '55000',
            DETAIL = 'Its row was loaded into the list of registers. Tables of its name are not the register''s.',
            HINT = format('Move these tables to another schema, SELECT @extschema@.register_drop(%L), which drops none of them, create the '
                          'register and insert their movements into it.', name);
    END IF;
    RAISE EXCEPTION 'register "%" does not exist', name USING ERRCODE = '42704';
END $$;


-- A register as it is written down, its columns checked again. Raises 42704.
CREATE OR REPLACE FUNCTION accum_internal._listed(p_name text) RETURNS @extschema@._registers
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r @extschema@._registers;
BEGIN
    SELECT * INTO r FROM @extschema@._registers g WHERE g.name = p_name;
    IF NOT FOUND THEN
        PERFORM accum_internal._no_register(p_name);
    END IF;
    r.dimensions := accum_internal._columns('dimension', r.dimensions);
    r.resources := accum_internal._columns('resource', r.resources);
    r.recorder_type := accum_internal._recorder_type(r.recorder_type);
    RETURN r;
END $$;


-- A register whose tables are where they were made, and its owner's. What is found by their names is never somebody else's. Raises
-- 42704, and 55000 where they are not, or where the row of the list comes from another installation: tables that this one has not made
-- have other columns, keys and triggers.
CREATE OR REPLACE FUNCTION accum_internal._register(p_name text) RETURNS @extschema@._registers
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._listed(p_name);
    owner CONSTANT oid := accum_internal._owner_of(r);
    stranger text;
BEGIN
    IF r.movements IS NULL THEN
        PERFORM accum_internal._no_register(p_name);
    ELSIF owner IS NULL THEN
        RAISE EXCEPTION 'register "%" has lost its tables', p_name USING ERRCODE = '55000',
            HINT = format('SELECT @extschema@.register_drop(%L) removes what is left of it.', p_name);
    END IF;
    SELECT accum_internal._name(c.relname) INTO stranger FROM pg_class AS c
     WHERE c.relnamespace = '@extschema@'::regnamespace AND c.relname = ANY (accum_internal._relations_of(r)) AND c.relowner <> owner;
    IF FOUND THEN
        RAISE EXCEPTION '% is in the way of register "%", whose owner it does not belong to', stranger, p_name USING ERRCODE = '55000';
    END IF;
    RETURN r;
END $$;


-- The owner of a register, NULL where its table of movements is not where it was made.
CREATE OR REPLACE FUNCTION accum_internal._owner_of(r @extschema@._registers) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.relowner FROM pg_class AS c
     WHERE c.oid = (r).movements AND c.relkind = 'p' AND c.relnamespace = '@extschema@'::regnamespace AND c.relname = (r).name || '_movements'
$$;


-- The name of a derived table as it is stored. In high-write mode the documented name is that of a view.
CREATE OR REPLACE FUNCTION accum_internal._stored_name(r @extschema@._registers, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._name((r).name || CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END
                             || CASE WHEN (r).high_write THEN '_stored' ELSE '' END)
$$;


-- The totals that a register keeps, the coarsest first.
CREATE OR REPLACE FUNCTION accum_internal._grains(totals_period text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE totals_period WHEN 'day' THEN '{year,month,day}' WHEN 'month' THEN '{year,month}' ELSE '{year}' END::text[]
$$;


-- The derived tables of a register.
CREATE OR REPLACE FUNCTION accum_internal._derived(r @extschema@._registers) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE (r).kind WHEN 'balance' THEN '{cache}'::text[] ELSE '{}' END || accum_internal._grains((r).totals_period)
$$;


-- The first day, in UTC, of the finest total that a moment belongs to.
CREATE OR REPLACE FUNCTION accum_internal._bucket(totals_period text, moment text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE totals_period WHEN 'day' THEN format('(%s AT TIME ZONE ''UTC'')::date', moment)
           ELSE format('date_trunc(%L, %s AT TIME ZONE ''UTC'')::date', totals_period, moment) END
$$;


-- Raises 23505: there is one row for a hash, and another cell has it.
CREATE OR REPLACE FUNCTION accum_internal._refuse_collision(register text, dim_hash bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'two cells of register "%" have the hash %', register, dim_hash USING ERRCODE = '23505',
        HINT = 'Change the value of one of the dimensions.';
END $$;


-- A template, filled for a register: {{movements}} and {{audit}} are tables, and so are {{cache}}, {{year}}, {{month}}
-- and {{day}}, as they are stored; {{name}} is the register's name as a literal and {{recorder}} the type of its
-- recorder; {{named ~ _trg_ ~ }} is what is named as the register, between the two texts, and {{own ~ post}} what it has in
-- accum_internal; {{dimensions ~ pattern ~ separator}} and {{resources ~ ...}} are lists of columns, {{arguments ~ ...}} and
-- {{amounts ~ ...}} the same with their types as `_qualified` writes them, {{bucket ~ moment}} the first day of the finest total, {{hash ~ pattern}} the hash;
-- {{same_cell}} is true where an upsert has met the row of its cell.
CREATE OR REPLACE FUNCTION accum_internal._fill(r @extschema@._registers, template text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result text := '';
    rest text := template;
    opened int;
    part text[];
BEGIN
    LOOP
        opened := position('{{' IN rest);
        EXIT WHEN coalesce(opened, 0) = 0;
        result := result || left(rest, opened - 1);
        rest := substr(rest, opened + 2);
        part := string_to_array(left(rest, position('}}' IN rest) - 1), ' ~ ');
        rest := substr(rest, position('}}' IN rest) + 2);
        result := result || CASE part[1]
            WHEN 'dimensions' THEN accum_internal._each(r.dimensions, part[2], coalesce(part[3], ' '), r.column_order)
            WHEN 'arguments' THEN accum_internal._each(accum_internal._qualified(r.dimensions), part[2], coalesce(part[3], ' '), r.column_order)
            WHEN 'amounts' THEN accum_internal._each(accum_internal._qualified(r.resources), part[2], coalesce(part[3], ' '), r.column_order)
            WHEN 'resources' THEN accum_internal._each(r.resources, part[2], coalesce(part[3], ' '), r.column_order)
            WHEN 'same_cell' THEN 'CASE WHEN ' || coalesce(nullif(accum_internal._each(
                r.dimensions, 't.%1$I IS NOT DISTINCT FROM excluded.%1$I', ' AND '), ''), 'true')
                || ' THEN true ELSE accum_internal._refuse_collision(' || quote_literal(r.name) || ', t.dim_hash) END'
            WHEN 'hash' THEN accum_internal._hash_of(r.dimensions, part[2])
            WHEN 'bucket' THEN accum_internal._bucket(r.totals_period, part[2])
            WHEN 'name' THEN quote_literal(r.name)
            WHEN 'recorder' THEN r.recorder_type
            WHEN 'named' THEN accum_internal._name(part[2] || r.name || coalesce(part[3], ''))
            WHEN 'own' THEN accum_internal._own_name(r.name, part[2])
            WHEN 'movements' THEN accum_internal._name(r.name || '_movements')
            WHEN 'audit' THEN accum_internal._name(r.name || '_movements_audit')
            WHEN 'cache' THEN accum_internal._stored_name(r, 'cache')
            WHEN 'year' THEN accum_internal._stored_name(r, 'year')
            WHEN 'month' THEN accum_internal._stored_name(r, 'month')
            WHEN 'day' THEN accum_internal._stored_name(r, 'day')
            ELSE quote_ident('unknown part of a template: ' || part[1]) END;
    END LOOP;
    RETURN result || rest;
END $$;


-- Raises 25001 where statements do not see what others have committed before a lock was had: a table that is then taken
-- apart would lose it.
CREATE OR REPLACE FUNCTION accum_internal._refuse_old_snapshot() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = '25001',
            MESSAGE = format('cannot change the tables of a register in a transaction of isolation level %s',
                             current_setting('transaction_isolation')),
            DETAIL = 'Movements that others have committed since it began would be lost.',
            HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $$;
