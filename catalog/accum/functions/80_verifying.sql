-- Comparing the derived tables with the movements, and making them anew.


-- What a derived table ought to hold, as a query.
CREATE OR REPLACE FUNCTION accum_internal._expected_sql(r @extschema@._registers, kind text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, CASE kind
        WHEN 'cache' THEN '
        SELECT m.dim_hash{{dimensions ~ , m.%1$I}}{{resources ~ , sum(m.%1$I) AS %1$I}}, max(m.recorded_at) AS last_movement_at,
               (array_agg(m.id ORDER BY m.recorded_at DESC))[1] AS last_movement_id
          FROM ' || accum_internal._ever_recorded_sql(r, kind) || ' AS m GROUP BY m.dim_hash{{dimensions ~ , m.%1$I}}'
        ELSE '
        SELECT m.dim_hash, ' || accum_internal._bucket(kind, 'm.period') || ' AS period{{dimensions ~ , m.%1$I}}
               {{resources ~ , sum(m.%1$I) AS %1$I}}
          FROM ' || accum_internal._ever_recorded_sql(r, kind) || ' AS m GROUP BY 1, 2{{dimensions ~ , m.%1$I}}' END)
$$;


-- Whether two sums are the same. The order of additions shows in the last digits of floating point numbers.
CREATE OR REPLACE FUNCTION accum_internal._agree(resources jsonb, expected jsonb, actual jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT bool_and(CASE t.value
        WHEN 'double precision' THEN abs(e.value - a.value) <= 1e-9 * greatest(1, abs(e.value), abs(a.value))
        WHEN 'real' THEN abs(e.value - a.value) <= 1e-4 * greatest(1, abs(e.value), abs(a.value))
        ELSE e.value = a.value END)
      FROM jsonb_each_text(resources) AS t,
           LATERAL (SELECT coalesce((expected ->> t.key)::numeric, 0) AS value) AS e,
           LATERAL (SELECT (actual ->> t.key)::numeric AS value) AS a
$$;


-- Compare the cache and all totals with the movements: one row for each cell, and each period of a total. A cell of
-- which nothing is left need not be there.
CREATE OR REPLACE FUNCTION @extschema@.register_verify(p_name text)
RETURNS TABLE (check_type text, dim_hash bigint, period date, expected jsonb, actual jsonb, status text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
    kind text;
    period text;
    place text;
BEGIN
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        period := CASE kind WHEN 'cache' THEN 'NULL::date' ELSE 'period' END;
        place := CASE kind WHEN 'cache' THEN 'CACHE' ELSE 'TOTALS' END;
        RETURN QUERY EXECUTE accum_internal._fill(r, '
            WITH sums AS (
                SELECT true AS wanted, dim_hash, ' || period || ' AS period{{dimensions ~ , %1$I}},
                       jsonb_build_object({{resources ~ %1$L, %1$I ~ , }}) AS sum FROM (' || accum_internal._expected_sql(r, kind) || ') AS e
                UNION ALL
                SELECT false, dim_hash, ' || period || '{{dimensions ~ , %1$I}}, jsonb_build_object({{resources ~ %1$L, %1$I ~ , }})
                  FROM ' || CASE WHEN kind = 'cache' AND r.high_write
                       THEN accum_internal._fill(r, '(SELECT dim_hash{{dimensions ~ , %1$I}}{{resources ~ , sum(%1$I)::%2$s AS %1$I}} FROM {{own ~ current}} '
                                'GROUP BY dim_hash{{dimensions ~ , %1$I}}) AS balances')
                       ELSE accum_internal._source(r, kind) END || '
            ), sides AS (
                SELECT dim_hash, period{{dimensions ~ , %1$I}}, (array_agg(sum) FILTER (WHERE wanted))[1] AS expected,
                       (array_agg(sum) FILTER (WHERE NOT wanted))[1] AS actual
                  FROM sums GROUP BY dim_hash, period{{dimensions ~ , %1$I}}
            )
            SELECT $1, dim_hash, period, expected, actual, CASE
                       WHEN actual IS NULL THEN $2
                       WHEN accum_internal._agree($4, expected, actual) THEN ''OK''
                       WHEN expected IS NULL THEN $3
                       ELSE ''MISMATCH'' END
              FROM sides ORDER BY period{{dimensions ~ , %1$I}}')
        USING CASE kind WHEN 'cache' THEN 'balance_cache' ELSE 'totals_' || kind END, 'MISSING_IN_' || place, 'ORPHAN_IN_' || place,
              r.resources;
    END LOOP;
END $$;


-- Make a stored derived table, or what it has of one cell, equal to what the movements say, changing no row that is right. Returns how
-- many rows there should be.
CREATE OR REPLACE FUNCTION accum_internal._rebuild(r @extschema@._registers, kind text, cell bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET pg_accumulator.writes = 'on' AS $$
DECLARE
    rows bigint;
BEGIN
    EXECUTE accum_internal._fill(r, '
        WITH expected AS MATERIALIZED (SELECT * FROM (' || accum_internal._expected_sql(r, kind) || ') AS e'
                || CASE WHEN cell IS NULL THEN '' ELSE format(' WHERE e.dim_hash = %L', cell) END || '),
        removed AS (
            DELETE FROM {{' || kind || '}} AS t
             WHERE NOT EXISTS (SELECT FROM expected AS e WHERE e.dim_hash = t.dim_hash'
                || CASE kind WHEN 'cache' THEN '' ELSE ' AND e.period = t.period' END || ')'
                || CASE WHEN cell IS NULL THEN '' ELSE format(' AND t.dim_hash = %L', cell) END || '
        ), put AS (
            INSERT INTO {{' || kind || '}} AS t (dim_hash' || CASE kind WHEN 'cache' THEN '' ELSE ', period' END
                || '{{dimensions ~ , %1$I}}{{resources ~ , %1$I}}'
                || CASE kind WHEN 'cache' THEN ', last_movement_at, last_movement_id, version' ELSE '' END || ')
            SELECT e.*' || CASE kind WHEN 'cache' THEN ', 1' ELSE '' END || ' FROM expected AS e
            ON CONFLICT (dim_hash' || CASE kind WHEN 'cache' THEN '' ELSE ', period' END || ') DO UPDATE
               SET {{resources ~ %1$I = excluded.%1$I ~ , }}{{dimensions ~ , %1$I = excluded.%1$I}}'
                || CASE kind WHEN 'cache' THEN ', last_movement_at = excluded.last_movement_at,
                   last_movement_id = excluded.last_movement_id, version = t.version + 1' ELSE '' END || '
             WHERE ({{resources ~ t.%1$I ~ , }}{{dimensions ~ , t.%1$I}}) IS DISTINCT FROM ({{resources ~ excluded.%1$I ~ , }}{{dimensions ~ , excluded.%1$I}})
        )
        SELECT count(*) FROM expected') INTO rows;
    RETURN rows;
END $$;
DROP FUNCTION IF EXISTS accum_internal._rebuild(@extschema@._registers, text);  -- of an earlier version


-- Rebuild all totals from the movements; writers wait, readers do not. Returns how many rows there are.
CREATE OR REPLACE FUNCTION @extschema@.register_rebuild_totals(p_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
    kind text;
    rows bigint := 0;
BEGIN
    PERFORM accum_internal._settle(r);
    PERFORM accum_internal._forget_detached_totals(r);
    FOREACH kind IN ARRAY accum_internal._grains(r.totals_period) LOOP
        rows := rows + accum_internal._rebuild(r, kind);
    END LOOP;
    RETURN rows;
END $$;


-- Rebuild the cache from the movements, or the one cell of a hash, in the same way.
DROP FUNCTION IF EXISTS @extschema@.register_rebuild_cache(text);  -- of an earlier version
-- Rebuild the balances of a register from its totals and movements, all of them or those of one cell. Returns how many
-- rows there are.
CREATE OR REPLACE FUNCTION @extschema@.register_rebuild_cache(p_name text, p_dim_hash bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
BEGIN
    IF r.kind <> 'balance' THEN
        RAISE EXCEPTION 'register "%" has no balances', p_name USING ERRCODE = '42809';
    END IF;
    PERFORM accum_internal._settle(r);
    RETURN accum_internal._rebuild(r, 'cache', p_dim_hash);
END $$;


-- Give a register's rows the hashes of this version: earlier ones counted a date that is NULL, and had one hash for many large numbers.
-- To the register nothing has changed, so that its own triggers are not fired. The movements are locked.
CREATE OR REPLACE FUNCTION accum_internal._rehash(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET pg_accumulator.writes = 'on' AS $$
DECLARE
    hashed CONSTANT text := accum_internal._fill(r, ' SET dim_hash = {{hash ~ %1$I}} WHERE dim_hash <> {{hash ~ %1$I}}');
    relation text;
    changed bigint;
    others boolean := false;
BEGIN
    FOR relation IN
        SELECT to_regclass(name) FROM unnest(
            ARRAY(SELECT accum_internal._stored_name(r, kind) FROM unnest(accum_internal._derived(r)) AS kind)
            || string_to_array(accum_internal._fill(r, '{{named ~  ~ _balance_cache_delta}};{{named ~  ~ _detached}}'), ';')) AS name
         WHERE to_regclass(name) IS NOT NULL
    LOOP
        EXECUTE format('UPDATE %s', relation) || hashed;
        GET DIAGNOSTICS changed = ROW_COUNT;
        others := others OR changed > 0;
    END LOOP;
    IF others THEN
        EXECUTE accum_internal._fill(r, 'ALTER TABLE {{movements}} DISABLE TRIGGER dim_hash_update, DISABLE TRIGGER accumulate_update');
        EXECUTE accum_internal._fill(r, 'UPDATE {{movements}}') || hashed;
        EXECUTE accum_internal._fill(r, 'ALTER TABLE {{movements}} ENABLE TRIGGER dim_hash_update, ENABLE TRIGGER accumulate_update');
    END IF;
END $$;


-- Hold up writers of a register, with all they have written in the derived tables. Raises 40001 where the register is not what it was when
-- it was looked up.
CREATE OR REPLACE FUNCTION accum_internal._settle(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'LOCK TABLE {{movements}} IN SHARE ROW EXCLUSIVE MODE');
    IF accum_internal._register(r.name) IS DISTINCT FROM r THEN
        RAISE EXCEPTION 'register "%" has been altered meanwhile', r.name USING ERRCODE = '40001', HINT = 'Try again.';
    ELSIF r.high_write THEN
        PERFORM accum_internal._settle_delta_buffer(r);
    END IF;
END $$;
