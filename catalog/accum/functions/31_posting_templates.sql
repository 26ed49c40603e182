-- The code of the functions by which a register's movements are posted, taken back and replaced, as templates.


-- A template, by its name. {{...}} is what _fill puts in; @...@ is what _create_posting_functions does: @nothing@ is an object of all
-- resources with 0, which is what one is that is left out; _nothing is the same as a row.
CREATE OR REPLACE FUNCTION accum_internal._posting_template(part text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT CASE part


WHEN 'post' THEN $template$
#variable_conflict use_variable
DECLARE
    _fields CONSTANT jsonb := @fields@;
    _rows {{movements}}[];
    _nothing {{movements}};
    _complete boolean;
    _one {{movements}};
    _posted integer;
BEGIN
@post_one@
@read_rows@
@insert_rows@
    RETURN _posted;
END $template$


WHEN 'unpost' THEN $template$
#variable_conflict use_variable
DECLARE
    _removed integer;
BEGIN
@lock@
    DELETE FROM {{movements}} AS m WHERE m.recorder = p_recorder;
    GET DIAGNOSTICS _removed = ROW_COUNT;
    PERFORM set_config('pg_accumulator.operation', '', true);
    RETURN _removed;
END $template$


WHEN 'repost' THEN $template$
#variable_conflict use_variable
DECLARE
    _fields CONSTANT jsonb := @fields@;
    _rows {{movements}}[];
    _nothing {{movements}};
    _complete boolean;
    _posted integer;
BEGIN
@read_rows@
    IF EXISTS (SELECT FROM unnest(_rows) AS m WHERE m.recorder <> p_recorder) THEN
        RAISE EXCEPTION 'movements of another recorder than "%" cannot take its place', p_recorder USING ERRCODE = '22023';
    END IF;
@lock@
    PERFORM set_config('pg_accumulator.repost', (SELECT jsonb_agg(jsonb_build_object('period', m.period
        {{dimensions ~ , %1$L, m.%1$I}}))::text FROM unnest(_rows) AS m), true);
    DELETE FROM {{movements}} AS m WHERE m.recorder = p_recorder;
    PERFORM set_config('pg_accumulator.operation', '', true), set_config('pg_accumulator.repost', '', true);
@insert_rows@
    RETURN _posted;
END $template$


-- What makes `_rows` of `p_data`. It is done apart from the INSERT so that what it catches needs no subtransaction of
-- the INSERT's.
WHEN 'read_rows' THEN $template$    IF jsonb_typeof(p_data) = 'object' THEN
        p_data := jsonb_build_array(p_data);
    ELSIF jsonb_typeof(p_data) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'movements must be a JSON object or an array of JSON objects' USING ERRCODE = '22023';
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_array_elements(p_data) AS e
         WHERE NOT (e.value ?& ARRAY[@required@]::text[] AND e.value ?| ARRAY[{{resources ~ %1$L ~ , }}])
            OR e.value - ARRAY['recorder', 'period', 'movement_type'{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}] <> '{}'
@no_texts@
    ) THEN
        PERFORM accum_internal._explain_failure(p_data, _fields, @optional@, ARRAY[{{resources ~ %1$L ~ , }}]);
    END IF;
    {{resources ~ _nothing.%1$I := 0; }}
    BEGIN
        SELECT array_agg(m.*), bool_and(m.period IS NOT NULL@has_recorder@
                   AND coalesce(m.movement_type, 'regular') IN ('regular', 'adjustment', 'reversal')
                   {{resources ~ AND m.%1$I IS NOT NULL}} AND @acceptable@)
          INTO _rows, _complete
          FROM jsonb_populate_recordset(_nothing, p_data) AS m;
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cannot_coerce THEN
        PERFORM accum_internal._explain_failure(p_data, _fields, @optional@, ARRAY[{{resources ~ %1$L ~ , }}]);
        RAISE;
    END;
    IF NOT _complete THEN
        PERFORM accum_internal._explain_failure(p_data, _fields, @optional@, ARRAY[{{resources ~ %1$L ~ , }}]);
    END IF;$template$


WHEN 'insert_rows' THEN $template$    INSERT INTO {{movements}} (recorder, period, movement_type, dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
    SELECT @recorder@, m.period, coalesce(m.movement_type, @type@), {{hash ~ m.%1$I}}
           {{dimensions ~ , m.%1$I}}{{resources ~ , m.%1$I}}
      FROM unnest(_rows) AS m;
    GET DIAGNOSTICS _posted = ROW_COUNT;$template$


-- Both for one movement, which needs no query but the INSERT.
WHEN 'post_one' THEN $template$    IF jsonb_typeof(p_data) = 'object' THEN
        IF NOT (p_data ?& ARRAY['recorder', 'period'{{dimensions ~ , %1$L}}] AND p_data ?| ARRAY[{{resources ~ %1$L ~ , }}])
           OR p_data - ARRAY['recorder', 'period', 'movement_type'{{dimensions ~ , %1$L}}{{resources ~ , %1$L}}] <> '{}'
           @no_texts@
        THEN
            PERFORM accum_internal._explain_failure(jsonb_build_array(p_data), _fields, '{movement_type}', ARRAY[{{resources ~ %1$L ~ , }}]);
        END IF;
        BEGIN
            _one := jsonb_populate_record(NULL::{{movements}}, @nothing@ || p_data);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cannot_coerce THEN
            PERFORM accum_internal._explain_failure(jsonb_build_array(p_data), _fields, '{movement_type}', ARRAY[{{resources ~ %1$L ~ , }}]);
            RAISE;
        END;
        IF _one.recorder IS NULL OR _one.period IS NULL {{resources ~ OR _one.%1$I IS NULL}}
           OR NOT (@acceptable@)
           OR NOT coalesce(_one.movement_type, 'regular') IN ('regular', 'adjustment', 'reversal')
        THEN
            PERFORM accum_internal._explain_failure(jsonb_build_array(p_data), _fields, '{movement_type}', ARRAY[{{resources ~ %1$L ~ , }}]);
        END IF;
        INSERT INTO {{movements}} (recorder, period, movement_type, dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
        VALUES (_one.recorder, _one.period, coalesce(_one.movement_type, 'regular'), {{hash ~ _one.%1$I}}
                {{dimensions ~ , _one.%1$I}}{{resources ~ , _one.%1$I}});
        RETURN 1;
    END IF;$template$


WHEN 'lock' THEN $template$    IF p_recorder IS NULL THEN
        RAISE EXCEPTION 'recorder must not be null' USING ERRCODE = '22004';
    END IF;
    -- One document at a time; what another transaction has left is seen by the next statement.
    PERFORM accum_internal._call('lock', jsonb_build_object('name', {{name}}, 'recorder', hashtextextended(p_recorder::text, 0)));
    PERFORM set_config('pg_accumulator.operation', '@operation@', true);$template$


END $$;
