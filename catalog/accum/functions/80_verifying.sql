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
                  FROM ' || accum_internal._source(r, kind) || '
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


-- Make a stored derived table equal to what the movements say, changing no row that is right. Returns how many were
-- not.
CREATE OR REPLACE FUNCTION accum_internal._rebuild(r @extschema@._registers, kind text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed bigint;
BEGIN
    EXECUTE accum_internal._fill(r, '
        WITH expected AS MATERIALIZED (' || accum_internal._expected_sql(r, kind) || '),
        removed AS (
            DELETE FROM {{' || kind || '}} AS t
             WHERE NOT EXISTS (SELECT FROM expected AS e WHERE e.dim_hash = t.dim_hash'
                || CASE kind WHEN 'cache' THEN '' ELSE ' AND e.period = t.period' END || '
                               {{dimensions ~ AND e.%1$I IS NOT DISTINCT FROM t.%1$I}})
            RETURNING 1
        ), put AS (
            INSERT INTO {{' || kind || '}} AS t (dim_hash' || CASE kind WHEN 'cache' THEN '' ELSE ', period' END
                || '{{dimensions ~ , %1$I}}{{resources ~ , %1$I}}'
                || CASE kind WHEN 'cache' THEN ', last_movement_at, last_movement_id, version' ELSE '' END || ')
            SELECT e.*' || CASE kind WHEN 'cache' THEN ', 1' ELSE '' END || ' FROM expected AS e
            ON CONFLICT (dim_hash' || CASE kind WHEN 'cache' THEN '' ELSE ', period' END || '{{dimensions ~ , %1$I}}) DO UPDATE
               SET {{resources ~ %1$I = excluded.%1$I ~ , }}'
                || CASE kind WHEN 'cache' THEN ', last_movement_at = excluded.last_movement_at,
                   last_movement_id = excluded.last_movement_id, version = t.version + 1' ELSE '' END || '
             WHERE ({{resources ~ t.%1$I ~ , }}) IS DISTINCT FROM ({{resources ~ excluded.%1$I ~ , }})
            RETURNING 1
        )
        SELECT (SELECT count(*) FROM removed) + (SELECT count(*) FROM put)') INTO changed;
    RETURN changed;
END $$;


-- Rebuild all totals from the movements; writers wait, readers do not. Returns how many rows were wrong.
CREATE OR REPLACE FUNCTION @extschema@.register_rebuild_totals(p_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
    kind text;
    changed bigint := 0;
BEGIN
    PERFORM accum_internal._settle(r);
    PERFORM accum_internal._forget_detached_totals(r);
    FOREACH kind IN ARRAY accum_internal._grains(r.totals_period) LOOP
        changed := changed + accum_internal._rebuild(r, kind);
    END LOOP;
    RETURN changed;
END $$;


-- Rebuild the cache from the movements, in the same way.
CREATE OR REPLACE FUNCTION @extschema@.register_rebuild_cache(p_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
BEGIN
    IF r.kind <> 'balance' THEN
        RAISE EXCEPTION 'register "%" has no balances', p_name USING ERRCODE = '42809';
    END IF;
    PERFORM accum_internal._settle(r);
    RETURN accum_internal._rebuild(r, 'cache');
END $$;


-- Give the movements of a register the hashes of this version; earlier ones counted a date that is NULL. Each movement that changes
-- is in the audit, as after any UPDATE.
CREATE OR REPLACE FUNCTION accum_internal._rehash(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text;
    others boolean;
BEGIN
    EXECUTE accum_internal._fill(r, 'SELECT EXISTS (SELECT FROM '
        || accum_internal._source(r, CASE r.kind WHEN 'balance' THEN 'cache' ELSE 'year' END) || ' WHERE dim_hash <> {{hash ~ %1$I}})') INTO others;
    IF NOT others THEN
        RETURN;
    END IF;
    EXECUTE accum_internal._fill(r, 'UPDATE {{movements}} SET dim_hash = dim_hash WHERE dim_hash <> {{hash ~ %1$I}}');
    IF to_regclass(accum_internal._fill(r, '{{named ~  ~ _detached}}')) IS NOT NULL THEN
        EXECUTE accum_internal._fill(r, 'UPDATE {{named ~  ~ _detached}} SET dim_hash = {{hash ~ %1$I}}');
    END IF;
    PERFORM accum_internal._settle(r);
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        PERFORM accum_internal._rebuild(r, kind);
    END LOOP;
END $$;


-- Hold up writers of a register, with all they have written in the derived tables.
CREATE OR REPLACE FUNCTION accum_internal._settle(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'LOCK TABLE {{movements}} IN SHARE ROW EXCLUSIVE MODE');
    IF r.high_write THEN
        PERFORM accum_internal._settle_delta_buffer(r);
    END IF;
END $$;
