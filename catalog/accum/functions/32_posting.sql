-- The functions by which a register's movements are posted, taken back and replaced. They have their caller's rights:
-- INSERT on the movements to post, SELECT and DELETE as well to unpost.


-- Fails with the first element and field of a batch that cannot be posted; slow, for batches that have failed. `fields`
-- are the fields and their types; of `resources` one is enough, and those of `optional` need not be there.
CREATE OR REPLACE FUNCTION accum_internal._explain_failure(p_data jsonb, fields jsonb, optional text[], resources text[]) RETURNS void
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
        IF NOT element ?| resources THEN
            RAISE EXCEPTION 'element % of the batch has no resource', position USING ERRCODE = '22023',
                HINT = format('One of %s is needed; the others are 0.', (SELECT string_agg(format('"%s"', k), ', ') FROM unnest(resources) AS k));
        END IF;
        FOR field, type IN SELECT * FROM jsonb_each_text(fields) LOOP
            IF NOT element ? field THEN
                CONTINUE WHEN field = ANY (optional || resources);
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


DROP FUNCTION IF EXISTS accum_internal._explain_failure(jsonb, jsonb, text[]);  -- of an earlier version


-- A template of 31_posting_templates.sql with its parts put in.
CREATE OR REPLACE FUNCTION accum_internal._posting_code(part text, parts jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    code text := accum_internal._posting_template(part);
    name text;
    value text;
BEGIN
    FOR name, value IN SELECT * FROM jsonb_each_text(parts) LOOP
        code := replace(code, '@' || name || '@', value);
    END LOOP;
    RETURN code;
END $$;


CREATE OR REPLACE FUNCTION accum_internal._create_posting_functions(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fields CONSTANT text := quote_literal(
        (SELECT coalesce(jsonb_object_agg(key, value || ' or null'), '{}') FROM jsonb_each_text(r.dimensions))
        || r.resources || jsonb_build_object('recorder', r.recorder_type, 'period', 'timestamptz'));
    texts CONSTANT text[] := ARRAY(SELECT d.key FROM jsonb_each_text(r.dimensions) AS d WHERE accum_internal._is_text(d.value));
    recorders CONSTANT text[] := CASE WHEN accum_internal._is_text(r.recorder_type) THEN '{recorder}' ELSE '{}' END;
    no_texts CONSTANT text := coalesce((
        SELECT string_agg(format(' OR jsonb_typeof(e.value -> %L) IN (''object'', ''array'')', t), '')
          FROM unnest(texts || recorders) AS t), '');
    -- What types let through and tables or indexes do not: amounts without an end, and texts that are too long.
    acceptable CONSTANT text := '@.period >= ''4713-01-01 00:00:00+00 BC'' AND @.period < ''infinity''' || (
        SELECT coalesce(string_agg(format(' AND @.%1$I > ''-Infinity'' AND @.%1$I < ''Infinity''', f.key), ''), '')
          FROM jsonb_each_text(r.resources) AS f WHERE f.value NOT IN ('integer', 'bigint')) || (
        SELECT coalesce(' AND ' || string_agg(format('coalesce(octet_length(@.%I), 0)', t), ' + ') || ' <= 2000', '')
          FROM unnest(texts) AS t)
        || CASE recorders WHEN '{}' THEN '' ELSE ' AND octet_length(coalesce(@.recorder, '''')) <= 2000' END;
    nothing CONSTANT text := quote_literal((SELECT jsonb_object_agg(f.key, 0) FROM jsonb_each_text(r.resources) AS f)) || '::jsonb';
    -- What both functions read, which differ in where the recorder is from.
    rows_parts CONSTANT jsonb := jsonb_build_object('no_texts', no_texts, 'acceptable', replace(acceptable, '@.', 'm.'));
    post CONSTANT text := accum_internal._posting_code('post', jsonb_build_object(
        'fields', fields,
        'post_one', accum_internal._posting_code('post_one', jsonb_build_object(
            'no_texts', replace(no_texts, 'e.value', 'p_data'), 'nothing', nothing, 'acceptable', replace(acceptable, '@.', '_one.'))),
        'read_rows', accum_internal._posting_code('read_rows', rows_parts || jsonb_build_object(
            'required', '''recorder'', ''period''{{dimensions ~ , %1$L}}', 'optional', quote_literal('{movement_type}'),
            'has_recorder', ' AND m.recorder IS NOT NULL ')),
        'insert_rows', accum_internal._posting_code('insert_rows', '{"recorder": "m.recorder", "type": "''regular''"}')));
    unpost CONSTANT text := accum_internal._posting_code('unpost', jsonb_build_object(
        'lock', accum_internal._posting_code('lock', '{"operation": "unpost"}')));
    repost CONSTANT text := accum_internal._posting_code('repost', jsonb_build_object(
        'fields', fields,
        'read_rows', accum_internal._posting_code('read_rows', rows_parts || jsonb_build_object(
            'required', '''period''{{dimensions ~ , %1$L}}', 'optional', quote_literal('{recorder,movement_type}'),
            'has_recorder', ' ')),
        'lock', accum_internal._posting_code('lock', '{"operation": "repost"}'),
        'insert_rows', accum_internal._posting_code('insert_rows', '{"recorder": "p_recorder", "type": "''adjustment''"}')));
    header text;
    code text;
BEGIN
    FOR header, code IN VALUES ('{{own ~ post}}(p_data jsonb)', post),
                               ('{{own ~ unpost}}(p_recorder {{recorder}})', unpost),
                               ('{{own ~ repost}}(p_recorder {{recorder}}, p_data jsonb)', repost)
    LOOP
        EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION ' || header || ' RETURNS integer
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS ') || quote_literal(accum_internal._fill(r, code));
    END LOOP;
END $$;
