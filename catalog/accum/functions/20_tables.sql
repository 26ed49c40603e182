-- The tables of a register.


-- A derived table: turnovers of one grain, or the cache.
CREATE OR REPLACE FUNCTION accum_internal._create_derived(r @extschema@._registers, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, '
        CREATE TABLE {{' || kind || '}} (
            dim_hash bigint NOT NULL,'
            || CASE kind WHEN 'cache' THEN '' ELSE 'period date NOT NULL,' END || '
            {{dimensions ~ %1$I %2$s, }}
            {{resources ~ %1$I %2$s NOT NULL DEFAULT 0 ~ , }}'
            || CASE kind WHEN 'cache' THEN ',
            last_movement_at timestamptz NOT NULL,
            last_movement_id uuid NOT NULL,
            version bigint NOT NULL DEFAULT 0' ELSE '' END || '
        ) WITH (fillfactor = 80)');
    PERFORM accum_internal._create_key(r, kind);
    PERFORM accum_internal._create_guard(r, kind);
    PERFORM accum_internal._index_period(r, kind);
    PERFORM accum_internal._index_dimensions(r, kind, r.dimensions);
END $$;


-- The index by which a past balance or turnover over all cells finds its months and days; years are few. Registers of
-- earlier versions get it by this, too.
CREATE OR REPLACE FUNCTION accum_internal._index_period(r @extschema@._registers, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    index CONSTANT text := (r).name || '_totals_' || kind || '_period';
BEGIN
    IF kind IN ('month', 'day') AND to_regclass(accum_internal._name(index)) IS NULL THEN
        EXECUTE accum_internal._fill(r, 'CREATE INDEX ' || quote_ident(index) || ' ON {{' || kind || '}} (period)');
    END IF;
END $$;


-- The indexes by which a balance or turnover over some dimensions finds its cells: one on all of them, and one on each
-- but the first.
CREATE OR REPLACE FUNCTION accum_internal._index_dimensions(r @extschema@._registers, kind text, dimensions jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    columns text;
BEGIN
    IF kind IN ('cache', 'year') THEN
        FOR columns IN
            SELECT CASE k.ordinality WHEN 1 THEN accum_internal._each(dimensions, '%1$I', ', ') ELSE quote_ident(k.name) END
              FROM jsonb_object_keys(dimensions) WITH ORDINALITY AS k (name)
        LOOP
            EXECUTE accum_internal._fill(r, 'CREATE INDEX ON {{' || kind || '}}') || format(' (%s)', columns);
        END LOOP;
    END IF;
END $$;


CREATE OR REPLACE FUNCTION accum_internal._key_name(r @extschema@._registers, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (r).name || CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END || '_pkey'
$$;


-- The key of a derived table: the hash of a cell. Whoever writes to a row makes sure that it is of the same cell, see {{same_cell}}.
CREATE OR REPLACE FUNCTION accum_internal._create_key(r @extschema@._registers, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'ALTER TABLE {{' || kind || '}} ADD CONSTRAINT ' || quote_ident(accum_internal._key_name(r, kind))
        || ' PRIMARY KEY (dim_hash' || CASE kind WHEN 'cache' THEN '' ELSE ', period' END || ')');
END $$;


-- Derived tables are written by functions that say so; nobody else's rows would be what the movements add up to.
--
-- The trigger has no condition, which PostgreSQL would read from its text for every statement: an upsert of one row would cost half as much
-- again. For the same reason its function has no search_path of its own until something is refused; so each name in it is qualified.
CREATE OR REPLACE FUNCTION accum_internal._create_guard(r @extschema@._registers, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE TRIGGER is_derived BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {{' || kind || '}} '
        'FOR EACH STATEMENT EXECUTE FUNCTION accum_internal._guard_derived({{name}})');
END $$;


CREATE OR REPLACE FUNCTION accum_internal._guard_derived() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('pg_accumulator.writes', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN NULL;
    END IF;
    PERFORM accum_internal._refuse_write(TG_RELID, TG_ARGV[0]);
END $$;


-- The same for views, and for tables that no function has to write to.
CREATE OR REPLACE FUNCTION accum_internal._refuse_direct_write() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM accum_internal._refuse_write(TG_RELID, TG_ARGV[0]);
END $$;


-- Raises 42809: what is derived is not written directly.
CREATE OR REPLACE FUNCTION accum_internal._refuse_write(relation oid, register text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'cannot change % directly', relation::regclass USING ERRCODE = '42809',
        DETAIL = format('It holds what the movements of register "%s" add up to.', register),
        HINT = format('Post movements, or cancel them: @extschema@.register_post(%1$L, …), @extschema@.register_unpost(%1$L, …). '
                      '@extschema@.register_rebuild_totals(%1$L) and @extschema@.register_rebuild_cache(%1$L) compute it anew.', register);
END $$;


-- The movements, and what has been taken out of them. Movements have no key by which a subscriber of logical replication could
-- find those that are deleted, but by all they are.
CREATE OR REPLACE FUNCTION accum_internal._create_movements(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    columns CONSTANT text := '
        id uuid NOT NULL%s,
        recorded_at timestamptz NOT NULL%s,
        recorder {{recorder}} NOT NULL,
        period timestamptz NOT NULL,
        movement_type text NOT NULL%s,
        dim_hash bigint NOT NULL
        {{dimensions ~ , %%1$I %%2$s}}
        {{resources ~ , %%1$I %%2$s NOT NULL}}';
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE TABLE {{movements}} ('
        || format(columns, ' DEFAULT gen_random_uuid()', ' DEFAULT now()', ' DEFAULT ''regular''')
        || ', CONSTRAINT is_finite CHECK (isfinite(period) AND ' || accum_internal._finite(r.resources)
        || ')) PARTITION BY RANGE (period)');
    EXECUTE accum_internal._fill(r, 'ALTER TABLE {{movements}} {{resources ~ ALTER %1$I SET DEFAULT 0 ~ , }}');
    EXECUTE accum_internal._fill(r, 'ALTER TABLE {{movements}} REPLICA IDENTITY FULL');
    EXECUTE accum_internal._fill(r, 'CREATE INDEX ON {{movements}} (dim_hash, period)');
    EXECUTE accum_internal._fill(r, 'CREATE INDEX ON {{movements}} (recorder)');
    EXECUTE accum_internal._fill(r, 'CREATE INDEX ON {{movements}} (period)');
    EXECUTE accum_internal._fill(r, 'CREATE TABLE {{audit}} (
            audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            audit_operation text NOT NULL,
            audit_at timestamptz NOT NULL DEFAULT now(),
            audit_user text NOT NULL,
            audit_session_user text NOT NULL,' || format(columns, '', '', '') || ')');
    EXECUTE accum_internal._fill(r, 'CREATE INDEX ON {{audit}} (recorder)');
END $$;


-- That no resource is infinite or NaN, of which no total could ever get rid. One constraint for all, since PostgreSQL
-- reads each one from its text for every statement.
CREATE OR REPLACE FUNCTION accum_internal._finite(resources jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(string_agg(CASE
               WHEN r.value LIKE 'numeric(%' THEN format('%I <> ''NaN''', r.key)
               ELSE format('%1$I > ''-Infinity'' AND %1$I < ''Infinity''', r.key) END, ' AND '), 'true')
      FROM jsonb_each_text(resources) AS r WHERE r.value NOT IN ('integer', 'bigint')
$$;
