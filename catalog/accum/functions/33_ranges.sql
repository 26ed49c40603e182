-- Sums over a range of time: which totals and which movements make them up.


-- A range of time [since, until), NULL for no bound, cut into years, months and days (in UTC) of which there are
-- totals, as coarse as possible but not above `coarsest`, and what is left at its ends, for which movements must be
-- read.
CREATE OR REPLACE FUNCTION accum_internal._segments(
    totals_period text, since timestamptz, until timestamptz, coarsest text DEFAULT 'year'
) RETURNS TABLE (grain text, first timestamp, behind timestamp)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Before 4713 BC there is nothing, nor a whole year in PostgreSQL.
    low timestamp := CASE WHEN since >= '4713-01-01 00:00:00+00 BC' THEN since AT TIME ZONE 'UTC' ELSE '-infinity' END;
    high timestamp := coalesce(until AT TIME ZONE 'UTC', 'infinity');
    finer text := 'movements';
    grains CONSTANT text[] := '{movements,day,month,year}';
    inner_low timestamp;
    inner_high timestamp;
    step interval;
BEGIN
    FOREACH grain IN ARRAY CASE totals_period WHEN 'day' THEN '{day,month,year}' WHEN 'month' THEN '{month,year}'
                                              ELSE '{year}' END::text[] LOOP
        step := ('1 ' || grain)::interval;
        inner_low := date_trunc(grain, low);
        IF inner_low < low THEN
            EXIT WHEN inner_low > timestamp '294276-12-31 23:59:59.999999' - step;  -- the last one there is
            inner_low := inner_low + step;
        END IF;
        inner_high := date_trunc(grain, high);
        EXIT WHEN inner_low >= inner_high OR array_position(grains, grain) > array_position(grains, coarsest);
        IF low < inner_low THEN
            RETURN QUERY SELECT finer, low, inner_low;
        END IF;
        IF inner_high < high THEN
            RETURN QUERY SELECT finer, inner_high, high;
        END IF;
        low := inner_low;
        high := inner_high;
        finer := grain;
    END LOOP;
    IF low < high THEN
        RETURN QUERY SELECT finer, low, high;
    END IF;
END $$;


-- All time before a moment, cut in the same way but so that as few totals as possible are read: each cut is where the nearest
-- period begins, and what was added too much behind the moment is taken off again. The 20th of November is the
-- whole year without December and without the last ten days of November.
CREATE OR REPLACE FUNCTION accum_internal._segments_before(totals_period text, until timestamptz)
RETURNS TABLE (grain text, first timestamp, behind timestamp, sign text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamp := CASE WHEN until >= '4713-01-01 00:00:00+00 BC' THEN until AT TIME ZONE 'UTC' ELSE '-infinity' END;
    cut timestamp := '-infinity';
    nearest timestamp;
BEGIN
    FOREACH grain IN ARRAY accum_internal._grains(totals_period) || '{movements}'::text[] LOOP
        nearest := moment;
        IF grain <> 'movements' AND isfinite(moment) THEN
            nearest := date_trunc(grain, moment);
            IF moment < '294276-01-01' AND moment - nearest > nearest + ('1 ' || grain)::interval - moment THEN
                nearest := nearest + ('1 ' || grain)::interval;
            END IF;
        END IF;
        IF nearest > cut THEN
            RETURN QUERY SELECT grain, cut, nearest, '';
        ELSIF nearest < cut THEN
            RETURN QUERY SELECT grain, nearest, cut, '-';
        END IF;
        cut := nearest;
    END LOOP;
END $$;


-- A moment as every setting of DateStyle reads it.
CREATE OR REPLACE FUNCTION accum_internal._moment(moment timestamp) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_char(moment, 'YYYY-MM-DD HH24:MI:SS.US"+00" AD')
$$;


-- The moment behind a range that a user has ended with `until`: a date (midnight of the session's time zone) means the
-- whole day, any other moment is itself the last one. NULL where there is no moment behind it.
CREATE OR REPLACE FUNCTION accum_internal._behind(until timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN until = 'infinity' THEN NULL
                WHEN until < '4713-01-01 00:00:00+00 BC' THEN '-infinity'  -- nothing is before
                WHEN until >= '294276-12-31 00:00:00+00' AND until = date_trunc('day', until) THEN NULL
                WHEN until = '294276-12-31 23:59:59.999999+00' THEN NULL
                WHEN until = date_trunc('day', until) THEN until + interval '1 day'
                ELSE until + interval '1 microsecond' END
$$;


-- Conditions on the dimensions that a user has given, each with AND before it: an object of names and values, where
-- null means IS NULL. Where all are given the hash is one of them, and the others are no conditions of an index: that of the key finds
-- the cell's periods.
CREATE OR REPLACE FUNCTION accum_internal._filter(register text, dimensions jsonb, given jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result text := '';
    name text;
    value text;
    type text;
BEGIN
    IF given IS NULL OR jsonb_typeof(given) = 'null' THEN
        RETURN '';
    ELSIF jsonb_typeof(given) <> 'object' THEN
        RAISE EXCEPTION 'dimensions must be a JSON object of names and values' USING ERRCODE = '22023';
    END IF;
    FOR name, value IN SELECT * FROM jsonb_each_text(given) LOOP
        type := dimensions ->> name;
        IF type IS NULL THEN
            RAISE EXCEPTION 'register "%" has no dimension "%"', register, name USING ERRCODE = '42703';
        END IF;
        BEGIN
            PERFORM CASE type WHEN 'integer' THEN value::integer::text WHEN 'bigint' THEN value::bigint::text
                    WHEN 'smallint' THEN value::smallint::text WHEN 'uuid' THEN value::uuid::text
                    WHEN 'date' THEN value::date::text WHEN 'boolean' THEN value::boolean::text END;
        EXCEPTION WHEN data_exception THEN
            RAISE EXCEPTION 'invalid value of dimension "%": %', name, SQLERRM USING ERRCODE = SQLSTATE;
        END;
        type := CASE WHEN type LIKE 'character varying%' THEN 'text' ELSE type END;
        result := result || CASE WHEN value IS NULL THEN format(' AND t.%I IS NULL', name)
                                 ELSE format(' AND t.%I = %L::%s', name, value, type) END;
    END LOOP;
    IF given ?& ARRAY(SELECT jsonb_object_keys(dimensions)) THEN
        result := format(' AND t.dim_hash = (%s) AND (true%s) IS TRUE', accum_internal._hash_of(
            dimensions, '(' || replace(quote_literal(given), '%', '%%') || '::jsonb ->> %1$L)::%2$s'), result);
    END IF;
    RETURN result;
END $$;


-- A query for the movements of a range, added up: rows of the dimensions in `kept` and all resources, from as few rows
-- as there are; with `bucket`, a unit of time, also the first day of the one that each row belongs to. `sources` gives,
-- for "movements" and each grain, what stands behind FROM.
--
-- One sum of all time before a moment takes away again what it has added too much, where numbers allow that: not floating
-- point ones, which would not come back to what they were, nor those whose number of digits may grow.
CREATE OR REPLACE FUNCTION accum_internal._range_sql(
    register text, totals_period text, dimensions jsonb, resources jsonb, sources jsonb,
    given jsonb, kept jsonb, since timestamptz, until timestamptz,
    coarsest text DEFAULT 'year', bucket text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    filter CONSTANT text := accum_internal._filter(register, dimensions, given);
    subtracting CONSTANT boolean := since IS NULL AND until IS NOT NULL AND kept = '{}' AND bucket IS NULL
        AND NOT EXISTS (SELECT FROM jsonb_each_text(resources) AS r WHERE r.value IN ('numeric', 'double precision', 'real'));
    cells text := '';
    parts text[] := '{}';
    segment record;
BEGIN
    IF filter <> '' AND NOT given ?& ARRAY(SELECT jsonb_object_keys(dimensions)) THEN
        -- The totals of a year are few and have an index on each dimension; the others have none but the hash. As an array
        -- the hashes are looked up there, where a join would often be planned as a scan of everything.
        -- What they are filtered by then must not be a condition of the index on (dim_hash, period, dimensions): for the dimensions
        -- left out, PostgreSQL 18 would reckon with so many skips that it reads whole periods instead.
        cells := format(' AND t.dim_hash = ANY (ARRAY(SELECT t.dim_hash FROM %s AS t WHERE true%s)) AND (true%2$s) IS TRUE',
                        sources ->> 'year', filter);
    END IF;
    FOR segment IN
        SELECT * FROM (
            SELECT s.*, '' AS sign FROM accum_internal._segments(totals_period, since, until, coarsest) AS s WHERE NOT subtracting
            UNION ALL SELECT * FROM accum_internal._segments_before(totals_period, until) WHERE subtracting) AS every
         ORDER BY every.grain <> 'movements'  -- whoever locks a register's tables begins with the movements, see _lock_tables
    LOOP
        parts := parts || format('SELECT %s%s%s FROM %s AS t WHERE true%s%s%s',
            CASE WHEN bucket IS NOT NULL THEN format('date_trunc(%L, t.period)::date AS _bucket, ', bucket) ELSE '' END,
            accum_internal._each(kept, 't.%1$I, '),
            accum_internal._each(resources, CASE WHEN subtracting THEN segment.sign || ' t.%1$I::numeric AS %1$I' ELSE 't.%1$I' END, ', '),
            sources ->> segment.grain,
            CASE WHEN segment.first > '-infinity' THEN format(' AND t.period >= %L::%s', accum_internal._moment(segment.first),
                CASE segment.grain WHEN 'movements' THEN 'timestamptz' ELSE 'date' END) ELSE '' END,
            CASE WHEN segment.behind < 'infinity' THEN format(' AND t.period < %L::%s', accum_internal._moment(segment.behind),
                CASE segment.grain WHEN 'movements' THEN 'timestamptz' ELSE 'date' END) ELSE '' END,
            CASE WHEN segment.grain = 'year' OR cells = '' THEN filter ELSE cells END);
    END LOOP;
    IF parts = '{}' THEN
        parts := ARRAY[format('SELECT %s%s%s FROM %s AS t WHERE false',
                              CASE WHEN bucket IS NOT NULL THEN 't.period AS _bucket, ' ELSE '' END, accum_internal._each(kept, 't.%1$I, '),
                              accum_internal._each(resources, 't.%1$I', ', '), sources ->> 'year')];
    END IF;
    RETURN array_to_string(parts, ' UNION ALL ');
END $$;
