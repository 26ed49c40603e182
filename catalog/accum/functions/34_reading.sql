-- The functions that read a register. They have their caller's rights.


-- The documented name of a derived table, which in high-write mode is a view that knows what has not been merged yet.
CREATE OR REPLACE FUNCTION accum_internal._source(r @extschema@._registers, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._name((r).name || CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END)
$$;


-- Where the balances of all cells are, those of one cell in one row or several: in high-write mode with what is pending, which the table of
-- balances does not have.
CREATE OR REPLACE FUNCTION accum_internal._balances(r @extschema@._registers) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN (r).high_write THEN accum_internal._own_name((r).name, 'current') ELSE accum_internal._source(r, 'cache') END
$$;


-- All that `_range_sql` may read of a register.
CREATE OR REPLACE FUNCTION accum_internal._sources(r @extschema@._registers) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_object_agg(g, accum_internal._source(r, g)) || jsonb_build_object('movements', accum_internal._fill(r, '{{movements}}'))
      FROM unnest(accum_internal._grains((r).totals_period)) AS g
$$;


CREATE OR REPLACE FUNCTION accum_internal._create_reading_functions(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known CONSTANT text := format('%L, %L, %L::jsonb, %L::jsonb, %L::jsonb', r.name, r.totals_period, r.dimensions, r.resources,
                                  accum_internal._sources(r));
    header CONSTANT text := ' LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS ';
    summed CONSTANT text := accum_internal._fill(r, '{{resources ~ %1$L, coalesce(sum(t.%1$I), 0::%2$s) ~ , }}');
BEGIN
    IF r.kind = 'balance' THEN
        PERFORM accum_internal._create_balance_at_each(r, known, header);
        PERFORM accum_internal._create_balance(r);
        EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{own ~ balance}}(dimensions jsonb, at_date timestamptz)
            RETURNS jsonb') || header
            || quote_literal(accum_internal._fill(r, replace('
#variable_conflict use_variable
DECLARE
    _result jsonb;
BEGIN
    EXECUTE ''SELECT jsonb_build_object(@summed@) FROM ('' || CASE
        WHEN at_date IS NULL THEN ''SELECT * FROM ' || accum_internal._balances(r) || ' AS t WHERE true''
            || accum_internal._filter(' || quote_literal(r.name) || ', ' || quote_literal(r.dimensions) || ', dimensions)
        ELSE accum_internal._range_sql(' || known || ', dimensions, ''{}'', NULL, accum_internal._behind(at_date)) END || '') AS t'' INTO _result;
    RETURN _result;
END ', '@summed@', replace(summed, '''', ''''''))));
    END IF;
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{named ~  ~ _turnover}}(
        from_date timestamptz DEFAULT NULL, to_date timestamptz DEFAULT NULL, dimensions jsonb DEFAULT NULL,
        group_by jsonb DEFAULT NULL) RETURNS SETOF jsonb') || header || quote_literal('
#variable_conflict use_variable
DECLARE
    _kept CONSTANT jsonb := accum_internal._groups(' || quote_literal(r.name) || ', ' || quote_literal(r.dimensions) || ', group_by);
    _names CONSTANT text := accum_internal._in_order(group_by);
BEGIN
    RETURN QUERY EXECUTE ''SELECT jsonb_build_object('' || accum_internal._each(_kept, ''%1$L, t.%1$I, '')
        || ' || quote_literal(summed) || ' || '') FROM (''
        || accum_internal._range_sql(' || known || ', dimensions, _kept, from_date, accum_internal._behind(to_date)) || '') AS t''
        || CASE WHEN _names <> '''' THEN '' GROUP BY '' || _names || '' ORDER BY '' || _names ELSE '''' END;
END ');
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{named ~  ~ _movements}}(
        p_recorder {{recorder}} DEFAULT NULL, from_date timestamptz DEFAULT NULL, to_date timestamptz DEFAULT NULL,
        dimensions jsonb DEFAULT NULL, include_audit boolean DEFAULT false) RETURNS SETOF jsonb') || header
        || quote_literal(accum_internal._fill(r, '
#variable_conflict use_variable
DECLARE
    _filter CONSTANT text := accum_internal._filter(' || quote_literal(r.name) || ', ' || quote_literal(r.dimensions) || ', dimensions)
        || CASE WHEN p_recorder IS NOT NULL THEN '' AND t.recorder = $1'' ELSE '''' END
        || CASE WHEN from_date IS NOT NULL THEN '' AND t.period >= $2'' ELSE '''' END
        || CASE WHEN accum_internal._behind(to_date) IS NOT NULL THEN '' AND t.period < $3'' ELSE '''' END;
BEGIN
    RETURN QUERY EXECUTE ''SELECT to_jsonb(t.*) FROM (SELECT * FROM {{movements}} AS t WHERE true'' || _filter
        || '' ORDER BY t.period, t.recorded_at, t.id) AS t'' USING p_recorder, from_date, accum_internal._behind(to_date);
    IF include_audit THEN
        RETURN QUERY EXECUTE ''SELECT to_jsonb(t.*) FROM (SELECT * FROM {{audit}} AS t WHERE true'' || _filter
            || '' ORDER BY t.audit_id) AS t'' USING p_recorder, from_date, accum_internal._behind(to_date);
    END IF;
END '));
END $$;


-- The balance. That of one cell now is the most frequent question: it is answered here, by one look-up, and so is that of all cells. The
-- function has no search_path of its own, since setting one costs as much as the answer; so each name in it is qualified.
--
-- In high-write mode the values of a cell are computed first: into a view that is a security barrier PostgreSQL takes a condition only if
-- nothing in it could tell of rows that are hidden, and reading JSON could. It would make a plan for the values of each call, which was five
-- sixths of the time.
CREATE OR REPLACE FUNCTION accum_internal._create_balance(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given CONSTANT text := '(dimensions OPERATOR(pg_catalog.->>) %1$L)::%2$s';
    variables text;
    assignments text;
    condition text := 't.dim_hash OPERATOR(pg_catalog.=) ({{hash ~ ' || given || '}})
                   {{arguments ~ AND (t.%1$I OPERATOR(pg_catalog.=) ' || given || '
                    OR t.%1$I IS NULL AND (dimensions OPERATOR(pg_catalog.->>) %1$L) IS NULL)}}';
BEGIN
    IF r.high_write THEN
        SELECT string_agg(format('_value_%s %s; ', d.ordinality, d.value), ''),
               string_agg(format('_value_%3$s := ' || given || '; ', d.key, d.value, d.ordinality), '') || '_hash := {{hash ~ ' || given || '}};',
               't.dim_hash OPERATOR(pg_catalog.=) _hash' || string_agg(format(
                   ' AND (t.%1$I OPERATOR(pg_catalog.=) _value_%2$s OR t.%1$I IS NULL AND _value_%2$s IS NULL)', d.key, d.ordinality), '')
          INTO variables, assignments, condition
          FROM jsonb_each_text(accum_internal._qualified(r.dimensions)) WITH ORDINALITY AS d;
    END IF;
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{named ~  ~ _balance}}(
        dimensions jsonb DEFAULT NULL, at_date timestamptz DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql STABLE AS ')
        || quote_literal(accum_internal._fill(r, '
#variable_conflict use_variable
DECLARE
    _result pg_catalog.jsonb;
    _hash pg_catalog.int8;
    ' || coalesce(variables, '') || '
BEGIN
    IF at_date IS NULL AND coalesce(dimensions, ''{}''::pg_catalog.jsonb) OPERATOR(pg_catalog.=) ''{}''::pg_catalog.jsonb THEN
        SELECT pg_catalog.jsonb_build_object({{amounts ~ %1$L, coalesce(pg_catalog.sum(t.%1$I), 0::%2$s) ~ , }}) INTO _result
          FROM ' || accum_internal._balances(r) || ' AS t;
        RETURN _result;
    ELSIF at_date IS NULL AND pg_catalog.jsonb_typeof(dimensions) OPERATOR(pg_catalog.=) ''object''
       AND dimensions OPERATOR(pg_catalog.?&) ARRAY[{{dimensions ~ %1$L ~ , }}]::pg_catalog.text[]
       AND (dimensions OPERATOR(pg_catalog.-) ARRAY[{{dimensions ~ %1$L ~ , }}]::pg_catalog.text[])
           OPERATOR(pg_catalog.=) ''{}''::pg_catalog.jsonb
    THEN
        BEGIN
            ' || coalesce(assignments, '') || '
            SELECT pg_catalog.jsonb_build_object(' || accum_internal._fill(r, CASE WHEN r.high_write
                     THEN '{{amounts ~ %1$L, coalesce(pg_catalog.sum(t.%1$I), 0::%2$s) ~ , }}' ELSE '{{resources ~ %1$L, t.%1$I ~ , }}' END)
                || ') INTO _result
              FROM ' || accum_internal._balances(r) || ' AS t
             WHERE ' || condition || ';
            RETURN coalesce(_result, pg_catalog.jsonb_build_object({{amounts ~ %1$L, 0::%2$s ~ , }}));
        EXCEPTION WHEN data_exception THEN
            NULL;  -- {{own ~ balance}} says what is wrong
        END;
    END IF;
    RETURN {{own ~ balance}}(dimensions, at_date);
END '));
END $$;


-- The running balance at the end of each day, month, quarter or year of the session's time zone: the ledger. Where those are not
-- the days of UTC, for which there are totals, the movements of the range are read.
CREATE OR REPLACE FUNCTION accum_internal._create_balance_at_each(r @extschema@._registers, known text, header text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE FUNCTION {{named ~  ~ _balance_at_each}}(
        period text DEFAULT ''month'', from_date timestamptz DEFAULT NULL, to_date timestamptz DEFAULT NULL,
        dimensions jsonb DEFAULT NULL) RETURNS TABLE (period_start date, turnover jsonb, balance jsonb)')
        || header || quote_literal(accum_internal._fill(r, '
#variable_conflict use_variable
DECLARE
    _first timestamptz;
    _last timestamptz := date_trunc(period, coalesce(to_date, now()));
    _step interval;
    _coarsest text := CASE period WHEN ''quarter'' THEN ''month'' ELSE period END;
BEGIN
    PERFORM accum_internal._one_of(''period'', period, ''{day,month,quarter,year}'');
    IF NOT isfinite(from_date) OR NOT isfinite(to_date) THEN
        RAISE EXCEPTION ''a series of balances must have two ends'' USING ERRCODE = ''22023'';
    END IF;
    _step := accum_internal._partition_length(period);
    _first := date_trunc(period, coalesce(from_date, (SELECT min(m.period) FROM {{movements}} AS m), now()));
    IF EXISTS (SELECT FROM generate_series(_first, _last + _step, _step) AS b
                WHERE b AT TIME ZONE ''UTC'' <> date_trunc(period, b AT TIME ZONE ''UTC'')) THEN
        _coarsest := ''movements'';
    END IF;
    RETURN QUERY EXECUTE
        ''WITH opening AS (SELECT {{resources ~ coalesce(sum(t.%1$I), 0::%2$s) AS %1$I ~ , }} FROM (''
            || accum_internal._range_sql(' || known || ', dimensions, ''{}'', NULL, _first) || '') AS t),
        moved AS (SELECT t._bucket{{resources ~ , sum(t.%1$I) AS %1$I}} FROM (''
            || accum_internal._range_sql(' || known || ', dimensions, ''{}'', _first, _last + _step, _coarsest, period) || '') AS t
                   GROUP BY t._bucket)
        SELECT b._start::date, jsonb_build_object({{resources ~ ''''%1$s'''', coalesce(m.%1$I, 0::%2$s) ~ , }}),
               jsonb_build_object({{resources ~ ''''%1$s'''', o.%1$I + coalesce(sum(m.%1$I) OVER w, 0::%2$s) ~ , }})
          FROM generate_series($1, $2, $3) AS b (_start) CROSS JOIN opening AS o LEFT JOIN moved AS m ON m._bucket = b._start::date
        WINDOW w AS (ORDER BY b._start) ORDER BY b._start'' USING _first, _last, _step;
END '));
END $$;


-- The dimensions by which turnovers are grouped, as columns, in the order in which they were given.
CREATE OR REPLACE FUNCTION accum_internal._in_order(group_by jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(string_agg(format('t.%I', g.name), ', ' ORDER BY g.ordinality), '')
      FROM jsonb_array_elements_text(CASE jsonb_typeof(group_by) WHEN 'array' THEN group_by WHEN 'string' THEN jsonb_build_array(group_by)
                                                                 ELSE '[]' END) WITH ORDINALITY AS g (name)
$$;


-- The dimensions by which turnovers are grouped, with their types.
CREATE OR REPLACE FUNCTION accum_internal._groups(register text, dimensions jsonb, group_by jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result jsonb := '{}';
    name text;
BEGIN
    IF group_by IS NULL OR jsonb_typeof(group_by) = 'null' THEN
        RETURN result;
    ELSIF jsonb_typeof(group_by) NOT IN ('array', 'string') THEN
        RAISE EXCEPTION 'group_by must be a JSON array of dimensions' USING ERRCODE = '22023';
    END IF;
    FOR name IN SELECT * FROM jsonb_array_elements_text(
        CASE jsonb_typeof(group_by) WHEN 'string' THEN jsonb_build_array(group_by) ELSE group_by END)
    LOOP
        IF NOT coalesce(dimensions ? name, false) THEN
            RAISE EXCEPTION 'register "%" has no dimension "%"', register, name USING ERRCODE = '42703';
        END IF;
        result := result || jsonb_build_object(name, dimensions -> name);
    END LOOP;
    RETURN result;
END $$;
