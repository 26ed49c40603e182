-- The functions by which a register's movements are posted, taken back and replaced. They have their caller's rights:
-- INSERT on the movements to post, SELECT and DELETE as well to unpost.


-- Fails with the first element and field of a batch that cannot be posted; slow, for batches that have failed. `fields`
-- are the required fields and their types.
CREATE OR REPLACE FUNCTION accum_internal._explain_failure(p_data jsonb, fields jsonb, optional text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    texts CONSTANT text[] := ARRAY(SELECT f.key FROM jsonb_each_text(fields) AS f
                                    WHERE f.key <> 'recorder' AND accum_internal._is_text(replace(f.value, ' or null', '')));
    element jsonb;
    position bigint;
    field text;
    type text;
    is_dimension boolean;
    described text;
BEGIN
    FOR element, position IN SELECT e.value, e.ordinality FROM jsonb_array_elements(p_data) WITH ORDINALITY AS e LOOP
        IF jsonb_typeof(element) <> 'object' THEN
            RAISE EXCEPTION 'element % of the batch is not a JSON object', position USING ERRCODE = '22023';
        END IF;
        FOR field IN SELECT k FROM jsonb_object_keys(element) AS k WHERE NOT fields ? k AND NOT k = ANY (optional) LOOP
            RAISE EXCEPTION 'unknown field "%" in element % of the batch', field, position USING ERRCODE = '22023',
                HINT = format('The fields are %s.', (SELECT string_agg(format('"%s"', k), ', ')
                                                       FROM jsonb_object_keys(fields) AS k));
        END LOOP;
        IF NOT coalesce(element ->> 'movement_type', 'regular') IN ('regular', 'adjustment', 'reversal') THEN
            RAISE EXCEPTION 'invalid value of field "movement_type" in element % of the batch: "%"', position, element ->> 'movement_type'
                USING ERRCODE = '22023', HINT = 'It is one of regular, adjustment, reversal.';
        END IF;
        FOR field, type IN SELECT * FROM jsonb_each_text(fields) LOOP
            IF NOT element ? field AND NOT field = ANY (optional) THEN
                RAISE EXCEPTION 'field "%" is missing in element % of the batch', field, position USING ERRCODE = '22023';
            ELSIF element -> field = 'null' AND type NOT LIKE '% or null' THEN
                RAISE EXCEPTION 'field "%" is null in element % of the batch', field, position USING ERRCODE = '23502';
            END IF;
            is_dimension := type LIKE '% or null';
            type := regexp_replace(type, ' or null$', '');
            IF jsonb_typeof(element -> field) IN ('object', 'array') AND (field <> 'recorder' OR accum_internal._is_text(type)) THEN
                RAISE EXCEPTION 'invalid value of field "%" in element % of the batch: %', field, position, element -> field
                    USING ERRCODE = '22023';
            END IF;
            BEGIN
                EXECUTE format('SELECT x.v::text FROM jsonb_to_record($1) AS x (v %s)', type)
                   INTO described USING jsonb_build_object('v', element -> field);
            EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cannot_coerce THEN
                RAISE EXCEPTION 'invalid value of field "%" in element % of the batch: %', field, position, SQLERRM
                    USING ERRCODE = SQLSTATE;
            END;
            IF lower(described) IN ('nan', 'infinity', '-infinity') AND NOT is_dimension AND field <> 'recorder' THEN
                RAISE EXCEPTION 'invalid value of field "%" in element % of the batch: "%"', field, position, described
                    USING ERRCODE = '23514', HINT = 'Nothing could be added to it.';
            ELSIF field = 'period' AND described::timestamptz < '4713-01-01 00:00:00+00 BC' THEN
                RAISE EXCEPTION 'invalid value of field "period" in element % of the batch: "%"', position, described
                    USING ERRCODE = '22008', HINT = 'The first year is 4713 BC.';
            ELSIF field = 'recorder' AND octet_length(described) > 2000 THEN
                RAISE EXCEPTION 'value of field "recorder" in element % of the batch is too long', position USING ERRCODE = '54000',
                    DETAIL = format('It has %s bytes; an index takes 2000.', octet_length(described));
            END IF;
        END LOOP;
        IF (SELECT sum(octet_length(element ->> t)) FROM unnest(texts) AS t) > 2000 THEN
            SELECT t INTO field FROM unnest(texts) AS t ORDER BY octet_length(element ->> t) DESC NULLS LAST LIMIT 1;
            RAISE EXCEPTION 'value of field "%" in element % of the batch is too long', field, position USING ERRCODE = '54000',
                DETAIL = format('It has %s bytes; the texts of a cell have at most 2000 together, for the index by which it is found.',
                                octet_length(element ->> field));
        END IF;
    END LOOP;
END $$;


CREATE OR REPLACE FUNCTION accum_internal._create_posting_functions(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fields CONSTANT text := quote_literal(
        (SELECT coalesce(jsonb_object_agg(key, value || ' or null'), '{}') FROM jsonb_each_text(r.dimensions))
        || r.resources || jsonb_build_object('recorder', r.recorder_type, 'period', 'timestamptz'));
    texts CONSTANT text[] := ARRAY(SELECT d.key FROM jsonb_each_text(r.dimensions) AS d WHERE accum_internal._is_text(d.value));
    recorders CONSTANT text[] := CASE WHEN accum_internal._is_text(r.recorder_type) THEN '{recorder}' ELSE '{}' END;
    no_texts CONSTANT text := (
        SELECT string_agg(format(' OR jsonb_typeof(e.value -> %L) IN (''object'', ''array'')', t), '') FROM unnest(texts || recorders) AS t);
    -- What types let through and tables or indexes do not: amounts without an end, and texts that are too long.
    acceptable CONSTANT text := '@.period >= ''4713-01-01 00:00:00+00 BC'' AND @.period < ''infinity''' || (
        SELECT coalesce(string_agg(format(' AND @.%1$I > ''-Infinity'' AND @.%1$I < ''Infinity''', f.key), ''), '')
          FROM jsonb_each_text(r.resources) AS f WHERE f.value NOT IN ('integer', 'bigint')) || (
        SELECT coalesce(' AND ' || string_agg(format('coalesce(octet_length(@.%I), 0)', t), ' + ') || ' <= 2000', '') FROM unnest(texts) AS t)
        || CASE recorders WHEN '{}' THEN '' ELSE ' AND octet_length(coalesce(@.recorder, '''')) <= 2000' END;
    -- What makes `_rows` of `p_data`. It is done apart from the INSERT so that what it catches needs no subtransaction
    -- of the INSERT's.
    read_rows CONSTANT text := replace(replace('
    IF jsonb_typeof(p_data) = ''object'' THEN
        p_data := jsonb_build_array(p_data);
    ELSIF jsonb_typeof(p_data) IS DISTINCT FROM ''array'' THEN
        RAISE EXCEPTION ''movements must be a JSON object or an array of JSON objects'' USING ERRCODE = ''22023'';
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_array_elements(p_data) AS e
         WHERE NOT (e.value ?& ARRAY[@required@]::text[])
            OR e.value - ARRAY[''recorder'', ''period'', ''movement_type''{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}] <> ''{}''
@no_texts@
    ) THEN
        PERFORM accum_internal._explain_failure(p_data, _fields, @optional@);
    END IF;
    BEGIN
        SELECT array_agg(m.*), bool_and(m.period IS NOT NULL@recorder@
                   AND coalesce(m.movement_type, ''regular'') IN (''regular'', ''adjustment'', ''reversal'')
                   {{resources ~ AND m.%1$I IS NOT NULL}} AND @acceptable@)
          INTO _rows, _complete
          FROM jsonb_populate_recordset(NULL::{{movements}}, p_data) AS m;
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cannot_coerce THEN
        PERFORM accum_internal._explain_failure(p_data, _fields, @optional@);
        RAISE;
    END;
    IF NOT _complete THEN
        PERFORM accum_internal._explain_failure(p_data, _fields, @optional@);
    END IF;', '@no_texts@', coalesce(no_texts, '')), '@acceptable@', replace(acceptable, '@.', 'm.'));
    insert_rows CONSTANT text := '
    INSERT INTO {{movements}} (recorder, period, movement_type, dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
    SELECT @recorder@, m.period, coalesce(m.movement_type, @type@), {{hash ~ m.%1$I}}
           {{dimensions ~ , m.%1$I}}{{resources ~ , m.%1$I}}
      FROM unnest(_rows) AS m;
    GET DIAGNOSTICS _posted = ROW_COUNT;';
    -- The same for one movement, which needs no query but the INSERT.
    post_one CONSTANT text := '
    IF jsonb_typeof(p_data) = ''object'' THEN
        IF NOT p_data ?& ARRAY[''recorder'', ''period''{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}]
           OR p_data - ARRAY[''recorder'', ''period'', ''movement_type''{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}] <> ''{}''
           ' || replace(coalesce(no_texts, ''), 'e.value', 'p_data') || '
        THEN
            PERFORM accum_internal._explain_failure(jsonb_build_array(p_data), _fields, ''{movement_type}'');
        END IF;
        BEGIN
            _one := jsonb_populate_record(NULL::{{movements}}, p_data);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cannot_coerce THEN
            PERFORM accum_internal._explain_failure(jsonb_build_array(p_data), _fields, ''{movement_type}'');
            RAISE;
        END;
        IF _one.recorder IS NULL OR _one.period IS NULL {{resources ~ OR _one.%1$I IS NULL}}
           OR NOT (' || replace(acceptable, '@.', '_one.') || ')
           OR NOT coalesce(_one.movement_type, ''regular'') IN (''regular'', ''adjustment'', ''reversal'')
        THEN
            PERFORM accum_internal._explain_failure(jsonb_build_array(p_data), _fields, ''{movement_type}'');
        END IF;
        INSERT INTO {{movements}} (recorder, period, movement_type, dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
        VALUES (_one.recorder, _one.period, coalesce(_one.movement_type, ''regular''), {{hash ~ _one.%1$I}}
                {{dimensions ~ , _one.%1$I}}{{resources ~ , _one.%1$I}});
        RETURN 1;
    END IF;';
    locked CONSTANT text := '
    IF p_recorder IS NULL THEN
        RAISE EXCEPTION ''recorder must not be null'' USING ERRCODE = ''22004'';
    END IF;
    -- One document at a time; what another transaction has left is seen by the next statement.
    PERFORM accum_internal._call(''lock'', jsonb_build_object(''name'', {{name}}, ''recorder'', hashtextextended(p_recorder::text, 0)));
    PERFORM set_config(''pg_accumulator.operation'', ''@operation@'', true);';
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{own ~ post}}(p_data jsonb) RETURNS integer
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS ')
        || quote_literal(accum_internal._fill(r, '
#variable_conflict use_variable
DECLARE
    _fields CONSTANT jsonb := ' || fields || ';
    _rows {{movements}}[];
    _complete boolean;
    _one {{movements}};
    _posted integer;
BEGIN' || post_one || replace(replace(replace(read_rows,
            '@required@', '''recorder'', ''period''{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}'),
            '@optional@', '''{movement_type}'''),
            '@recorder@', ' AND m.recorder IS NOT NULL ')
        || replace(replace(insert_rows, '@recorder@', 'm.recorder'), '@type@', '''regular''') || '
    RETURN _posted;
END '));
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{own ~ unpost}}(p_recorder {{recorder}}) RETURNS integer
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS ')
        || quote_literal(accum_internal._fill(r, '
#variable_conflict use_variable
DECLARE
    _removed integer;
BEGIN' || replace(locked, '@operation@', 'unpost') || '
    DELETE FROM {{movements}} AS m WHERE m.recorder = p_recorder;
    GET DIAGNOSTICS _removed = ROW_COUNT;
    PERFORM set_config(''pg_accumulator.operation'', '''', true);
    RETURN _removed;
END '));
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{own ~ repost}}(p_recorder {{recorder}}, p_data jsonb)
        RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS ')
        || quote_literal(accum_internal._fill(r, '
#variable_conflict use_variable
DECLARE
    _fields CONSTANT jsonb := ' || fields || ';
    _rows {{movements}}[];
    _complete boolean;
    _posted integer;
BEGIN' || replace(replace(replace(read_rows,
            '@required@', '''period''{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}'),
            '@optional@', '''{recorder,movement_type}'''),
            '@recorder@', ' ') || '
    IF EXISTS (SELECT FROM unnest(_rows) AS m WHERE m.recorder <> p_recorder) THEN
        RAISE EXCEPTION ''movements of another recorder than "%" cannot take its place'', p_recorder USING ERRCODE = ''22023'';
    END IF;' || replace(locked, '@operation@', 'repost') || '
    PERFORM set_config(''pg_accumulator.repost'', (SELECT jsonb_agg(jsonb_build_object(''period'', m.period
        {{dimensions ~ , %1$L, m.%1$I}}))::text FROM unnest(_rows) AS m), true);
    DELETE FROM {{movements}} AS m WHERE m.recorder = p_recorder;
    PERFORM set_config(''pg_accumulator.operation'', '''', true), set_config(''pg_accumulator.repost'', '''', true);'
        || replace(replace(insert_rows, '@recorder@', 'p_recorder'), '@type@', '''adjustment''') || '
    RETURN _posted;
END '));
END $$;
