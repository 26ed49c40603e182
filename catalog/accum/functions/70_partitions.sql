-- Partitions of a register's movements: by day, month, quarter or year of UTC, and one for what fits in none.


-- The beginning of the period to which a time belongs, and the length of such a period.
CREATE OR REPLACE FUNCTION accum_internal._partition_start(partition_by text, at timestamptz) RETURNS timestamp
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT date_trunc(partition_by, at AT TIME ZONE 'UTC')
$$;

CREATE OR REPLACE FUNCTION accum_internal._partition_length(partition_by text) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE partition_by WHEN 'quarter' THEN interval '3 months' ELSE ('1 ' || partition_by)::interval END
$$;


-- The name of the partition of a period: stock_movements_2026_04.
CREATE OR REPLACE FUNCTION accum_internal._partition_name(r @extschema@._registers, start timestamp) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.name || '_movements_' || to_char(start, CASE r.partition_by WHEN 'day' THEN 'YYYY_MM_DD' WHEN 'month' THEN 'YYYY_MM'
                                                                        WHEN 'quarter' THEN 'YYYY_"q"Q' ELSE 'YYYY' END)
$$;


-- Make the partition of one period, unless there is a table of that name. Returns whether it was made.
CREATE OR REPLACE FUNCTION accum_internal._make_partition(r @extschema@._registers, start timestamp) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._call('partition', jsonb_build_object('name', (r).name, 'start', start)) = 'true'
$$;


-- The same with the rights of the server's role, for the caller. It makes a table without columns; all else is done with the owner's
-- rights, since his checks and defaults go with it.
CREATE OR REPLACE FUNCTION accum_internal._put_partition(caller name, arguments jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner CONSTANT oid := accum_internal._checked_owner(caller, arguments ->> 'name');
    r CONSTANT @extschema@._registers := accum_internal._register(arguments ->> 'name');
    start CONSTANT timestamp := date_trunc(r.partition_by, (arguments ->> 'start')::timestamp);
    partition CONSTANT text := accum_internal._name(accum_internal._partition_name(r, start));
BEGIN
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE accum_internal._fill(r, 'LOCK TABLE ONLY {{movements}} IN SHARE UPDATE EXCLUSIVE MODE');
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;  -- somebody else was faster
    END IF;
    EXECUTE format('CREATE TABLE %s ()', partition);
    PERFORM accum_internal._give_table(partition::regclass, owner);
    PERFORM accum_internal._as_owner(owner, 'SELECT pg_catalog.to_jsonb(accum_internal._fill_partition('
        'accum_internal._register($1 OPERATOR(pg_catalog.->>) ''name''), '
        '($1 OPERATOR(pg_catalog.->>) ''start'')::pg_catalog.timestamp)::pg_catalog.text)', jsonb_build_object('name', r.name, 'start', start));
    RETURN true;
END $$;


-- Make a new table without columns the partition of a period.
--
-- It is made as a table by itself and then attached, which lets others read and write meanwhile. Rows of the period that
-- are in the default partition are moved into it. To the register they have not changed: no trigger fires for them.
-- (The bounds are written as text: abbreviations of time zones are not read by all versions as they were written.)
CREATE OR REPLACE FUNCTION accum_internal._fill_partition(r @extschema@._registers, start timestamp) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' AS $$
DECLARE
    movements regclass := accum_internal._name(r.name || '_movements');
    fallback regclass := accum_internal._name(r.name || '_movements_default');
    partition regclass := accum_internal._name(accum_internal._partition_name(r, start));
    lower timestamptz := start AT TIME ZONE 'UTC';
    upper timestamptz := (start + accum_internal._partition_length(r.partition_by)) AT TIME ZONE 'UTC';
    columns text;
    silence text;
    restore text;
    present boolean;
BEGIN
    EXECUTE accum_internal._like_sql(movements, partition);
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', partition);
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', fallback);
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE period >= $1 AND period < $2)', fallback) INTO present USING lower, upper;
    IF present THEN
        SELECT string_agg(quote_ident(a.attname), ', ') INTO columns FROM pg_attribute a
         WHERE a.attrelid = movements AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '';
        SELECT string_agg(format('ALTER TABLE %s DISABLE TRIGGER %I', fallback, t.tgname), '; '),
               string_agg(format('ALTER TABLE %s ENABLE %s TRIGGER %I', fallback,
                                 CASE t.tgenabled WHEN 'A' THEN 'ALWAYS' WHEN 'R' THEN 'REPLICA' ELSE '' END, t.tgname), '; ')
          INTO silence, restore
          FROM pg_trigger t WHERE t.tgrelid = fallback AND NOT t.tgisinternal AND t.tgenabled <> 'D';
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s WHERE period >= $1 AND period < $2', partition, columns, columns, fallback)
            USING lower, upper;
        IF silence IS NOT NULL THEN
            EXECUTE silence;
        END IF;
        EXECUTE format('DELETE FROM %s WHERE period >= $1 AND period < $2', fallback) USING lower, upper;
        IF restore IS NOT NULL THEN
            EXECUTE restore;
        END IF;
    END IF;
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', movements, partition, lower, upper);
    PERFORM accum_internal._attach_triggers(r, partition);
END $$;


-- The statement that gives a table without columns those of another one, with its defaults and checks. Indexes come by attaching it.
CREATE OR REPLACE FUNCTION accum_internal._like_sql(model regclass, target regclass) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('ALTER TABLE %s ', target) || string_agg(part, ', ')
      FROM (SELECT concat_ws(' ', 'ADD COLUMN', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
                       (SELECT 'COLLATE ' || a.attcollation::regcollation FROM pg_type AS t
                         WHERE t.oid = a.atttypid AND t.typcollation <> a.attcollation),
                       CASE WHEN a.attgenerated <> '' THEN format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(d.adbin, d.adrelid),
                                                                  CASE a.attgenerated WHEN 's' THEN 'STORED' ELSE 'VIRTUAL' END)
                            ELSE 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) END,
                       CASE WHEN a.attnotnull THEN 'NOT NULL' END)
              FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = model AND a.attnum > 0 AND NOT a.attisdropped
             UNION ALL
            SELECT format('ADD CONSTRAINT %I CHECK (%s)', k.conname, pg_get_expr(k.conbin, k.conrelid))
              FROM pg_constraint AS k WHERE k.conrelid = model AND k.contype = 'c') AS parts (part)
$$;


-- The partition for what fits in no other.
CREATE OR REPLACE FUNCTION accum_internal._create_default_partition(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fallback text := accum_internal._name(r.name || '_movements_default');
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE TABLE ' || fallback || ' PARTITION OF {{movements}} DEFAULT');
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', fallback);
    PERFORM accum_internal._attach_triggers(r, fallback::regclass);
END $$;


-- See to it that there are partitions for the present and a number of following periods. Returns how many were made.
CREATE OR REPLACE FUNCTION accum_internal._keep_partitions(r @extschema@._registers, ahead integer) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE accum_internal._make_partition(r, start))::integer
      FROM (SELECT accum_internal._partition_start(r.partition_by, now()) + n * accum_internal._partition_length(r.partition_by) AS start
              FROM generate_series(0, ahead) AS n ORDER BY n) AS period
$$;


-- Make partitions ahead of time: for the present and the next p_count periods, by default pg_accumulator.partitions_ahead.
CREATE OR REPLACE FUNCTION @extschema@.register_create_partitions(p_name text, p_count integer DEFAULT NULL) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$ SELECT accum_internal._create_ahead(p_name, p_count) $$;

CREATE OR REPLACE FUNCTION accum_internal._create_ahead(p_name text, p_count integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r @extschema@._registers := accum_internal._register(p_name);
BEGIN
    IF p_count < 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'number of partitions must not be negative',
            HINT = 'For periods in the past, give a negative interval.';
    ELSIF p_count > 1000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('cannot keep %s partitions ahead', p_count),
            HINT = 'Give at most 1000; what lies outside all partitions is kept in the default one.';
    END IF;
    RETURN accum_internal._keep_partitions(r, coalesce(p_count, accum_internal._setting('partitions_ahead')));
END $$;


-- Make the partitions of a register for all periods between now and an interval from now, which may be negative. What
-- is in the default partition is moved into those that are made.
CREATE OR REPLACE FUNCTION @extschema@.register_create_partitions(p_name text, p_interval interval) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$ SELECT accum_internal._create_until(p_name, p_interval) $$;

CREATE OR REPLACE FUNCTION accum_internal._create_until(p_name text, p_interval interval) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r @extschema@._registers := accum_internal._register(p_name);
    length CONSTANT interval := accum_internal._partition_length(r.partition_by);
    first timestamp;
    last timestamp;
    missing bigint;
BEGIN
    IF p_interval IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'interval must not be null';
    ELSIF p_interval < interval '-1000 years' OR p_interval > interval '1000 years' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('cannot make partitions for %s', p_interval),
            HINT = 'Give at most 1000 years; what lies outside all partitions is kept in the default one.';
    END IF;
    first := accum_internal._partition_start(r.partition_by, least(now(), now() + p_interval));
    last := accum_internal._partition_start(r.partition_by, greatest(now(), now() + p_interval));
    missing := (SELECT count(*) FROM generate_series(first, last, length) AS start
                 WHERE to_regclass(accum_internal._name(accum_internal._partition_name(r, start))) IS NULL);
    IF missing > 1000 THEN  -- each takes locks until the transaction ends, of which there are not more than some thousands
        RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = format('cannot make %s partitions at once', missing),
            HINT = 'At most 1000 are made by one call: give a shorter interval first, then longer ones.';
    END IF;
    RETURN (SELECT count(*) FILTER (WHERE accum_internal._make_partition(r, start)) FROM generate_series(first, last, length) AS start);
END $$;


-- Make partitions ahead of time, by a number of periods or an interval, for clients that bind parameters without types.
CREATE OR REPLACE FUNCTION @extschema@.register_create_partitions(p_name text, p_ahead text) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN coalesce(p_ahead, '0') ~ E'^\\s*[-+]?\\d+\\s*$' THEN accum_internal._create_ahead(p_name, p_ahead::integer)
                ELSE accum_internal._create_until(p_name, p_ahead::interval) END
$$;


-- The partitions of a register, in the order of their periods, with the movements in each; the last one is for what fits in none.
CREATE OR REPLACE FUNCTION @extschema@.register_partitions(p_name text)
RETURNS TABLE (partition_name text, lower_bound timestamptz, upper_bound timestamptz, row_count bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO, YMD' AS $$
#variable_conflict use_column
DECLARE
    r CONSTANT @extschema@._registers := accum_internal._register(p_name);
BEGIN
    RETURN QUERY EXECUTE accum_internal._fill(r, '
        SELECT c.relname::text, b.bounds[1]::timestamptz, b.bounds[2]::timestamptz, coalesce(m.rows, 0)
          FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
         CROSS JOIN regexp_match(pg_get_expr(c.relpartbound, c.oid), E''FROM \\(''''([^'''']+)''''\\) TO \\(''''([^'''']+)''''\\)'') AS b (bounds)
          LEFT JOIN (SELECT m.tableoid, count(*) AS rows FROM {{movements}} AS m GROUP BY m.tableoid) AS m ON m.tableoid = c.oid
         WHERE i.inhparent = $1 ORDER BY 2 NULLS LAST, 1') USING r.movements;
END $$;


-- Detach the partitions whose periods end before a day of UTC begins; they go on as tables by themselves. Totals and
-- balances go on reflecting what is in them. Returns how many.
CREATE OR REPLACE FUNCTION @extschema@.register_detach_partitions(p_name text, p_older_than date) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM accum_internal._register(p_name);
    IF p_older_than IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'date must not be null';
    END IF;
    RETURN accum_internal._call('detach', jsonb_build_object('name', p_name, 'older_than', p_older_than));
END $$;


-- The same with the rights of the server's role, for the caller. It makes a table of their sums; all else is done with the owner's rights.
CREATE OR REPLACE FUNCTION accum_internal._detach_partitions(caller name, arguments jsonb) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO, YMD' AS $$
DECLARE
    owner CONSTANT oid := accum_internal._claim(caller, arguments ->> 'name');
    r CONSTANT @extschema@._registers := accum_internal._register(arguments ->> 'name');
    kept CONSTANT text := accum_internal._fill(r, '{{named ~  ~ _detached}}');
    partition regclass;
    detached integer := 0;
BEGIN
    PERFORM accum_internal._refuse_old_snapshot();
    FOR partition IN
        SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = r.movements
           AND substring(pg_get_expr(c.relpartbound, c.oid) FROM E'TO \\(''([^'']+)''\\)')::timestamptz
               <= (arguments ->> 'older_than')::date::timestamptz
         ORDER BY c.relname
    LOOP
        IF to_regclass(kept) IS NULL THEN
            EXECUTE accum_internal._fill(r, 'CREATE TABLE ' || kept || ' (
                dim_hash bigint NOT NULL{{dimensions ~ , %1$I %2$s}}, day date{{resources ~ , %1$I %2$s NOT NULL DEFAULT 0}},
                version bigint NOT NULL, last_movement_at timestamptz, last_movement_id uuid)');
            IF r.high_write THEN
                PERFORM accum_internal._create_delta_views(r);
            END IF;
            PERFORM accum_internal._give(r, owner);
        END IF;
        PERFORM accum_internal._as_owner(owner, 'SELECT pg_catalog.to_jsonb(accum_internal._detach_partition('
            'accum_internal._register($1 OPERATOR(pg_catalog.->>) ''name''), '
            '($1 OPERATOR(pg_catalog.->>) ''partition'')::pg_catalog.regclass)::pg_catalog.text)',
            jsonb_build_object('name', r.name, 'partition', partition));
        detached := detached + 1;
    END LOOP;
    RETURN detached;
END $$;


-- Detach one partition. What is in it is added up by cell and day in `<name>_detached`, so that balances can be computed
-- anew without it.
CREATE OR REPLACE FUNCTION accum_internal._detach_partition(r @extschema@._registers, partition regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off SET client_min_messages = warning AS $$
DECLARE
    kept text := accum_internal._fill(r, '{{named ~  ~ _detached}}');
    own text;
BEGIN
    EXECUTE accum_internal._fill(r, format('ALTER TABLE {{movements}} DETACH PARTITION %s', partition));
    -- Triggers of this schema's functions would go on with totals and balances.
    FOR own IN
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, partition) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
         WHERE t.tgrelid = partition AND NOT t.tgisinternal AND p.oid = ANY (accum_internal._functions_of(r))
    LOOP
        EXECUTE own;
    END LOOP;
    PERFORM accum_internal._extend_detached(r);
    EXECUTE accum_internal._fill(r, 'INSERT INTO ' || kept || ' (dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , %1$I}}, '
        'version, last_movement_at, last_movement_id) ') || accum_internal._recorded_in_sql(r, partition::text);
END $$;


-- The columns of `<name>_detached` follow the register's.
CREATE OR REPLACE FUNCTION accum_internal._extend_detached(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'ALTER TABLE IF EXISTS {{named ~  ~ _detached}} ADD COLUMN IF NOT EXISTS dim_hash bigint'
        '{{dimensions ~ , ADD COLUMN IF NOT EXISTS %1$I %2$s}}{{resources ~ , ADD COLUMN IF NOT EXISTS %1$I %2$s NOT NULL DEFAULT 0}}');
END $$;


-- The movements that a derived table reflects, as a relation: also those that have been detached, added up.
CREATE OR REPLACE FUNCTION accum_internal._ever_recorded_sql(r @extschema@._registers, kind text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN to_regclass(accum_internal._fill(r, '{{named ~  ~ _detached}}')) IS NULL THEN accum_internal._fill(r, '{{movements}}')
           ELSE accum_internal._fill(r, '(
             SELECT id, recorded_at, period, dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}} FROM {{movements}}
             UNION ALL
             SELECT last_movement_id, last_movement_at, day::timestamp AT TIME ZONE ''UTC'', dim_hash
                    {{dimensions ~ , %1$I}}{{resources ~ , %1$I}}
               FROM {{named ~  ~ _detached}}' || CASE kind WHEN 'cache' THEN '' ELSE ' WHERE day IS NOT NULL' END || ')') END
$$;


-- From now on totals reflect only what is still in the register's partitions; balances go on reflecting everything.
CREATE OR REPLACE FUNCTION accum_internal._forget_detached_totals(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF to_regclass(accum_internal._fill(r, '{{named ~  ~ _detached}}')) IS NOT NULL THEN
        EXECUTE accum_internal._fill(r, 'UPDATE {{named ~  ~ _detached}} SET day = NULL WHERE day IS NOT NULL');
    END IF;
END $$;
