-- High-write mode: what is posted is appended to an unlogged buffer, so that writers of one cell do not wait for each
-- other, and is merged into the stored totals and balances later.
--
-- Each derived table of such a register is stored as `<table>_stored`, and a view has its place. Those of the totals are what is
-- stored plus what is pending, in one snapshot, and so is accum_internal."<name>.current", from which balances are read. That of
-- the balance cache is what has been merged, with a row of zeros for a cell that is only pending.
--
-- The buffer is `<name>_balance_cache_delta`. PostgreSQL empties unlogged tables when it recovers from a crash. Therefore another
-- one, `<name>_balance_cache_alive`, holds the epoch that `<name>_balance_cache_epoch` holds, which is logged. While that row is
-- missing, what is stored is not to be believed: the views compute from the movements, until the register is repaired.
--
-- Merges and repairs of a register exclude each other by a lock on the table of its epoch. Writers wait for neither.


-- The columns of one of a register's tables, in their order, each as an expression: `resource` for a resource, with its
-- name as %1$I and its type as %2$s, and what `others` says for the name of any other column, else the column itself.
CREATE OR REPLACE FUNCTION accum_internal._expressions(r @extschema@._registers, relation regclass, resource text, others jsonb)
RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(CASE WHEN (r).resources ? a.attname THEN format(resource, a.attname, format_type(a.atttypid, a.atttypmod))
                           ELSE coalesce(others ->> a.attname, quote_ident(a.attname)) END
                      || ' AS ' || quote_ident(a.attname), ', ' ORDER BY a.attnum)
      FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
$$;


-- A table of movements, added up by cell and day, as rows of the buffer.
CREATE OR REPLACE FUNCTION accum_internal._recorded_in_sql(r @extschema@._registers, movements text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, 'SELECT dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , sum(%1$I)::%2$s AS %1$I}}, '
        'count(*) AS version, max(recorded_at) AS last_movement_at, (array_agg(id))[1] AS last_movement_id '
        'FROM (SELECT *, {{bucket ~ period}} AS day FROM ' || movements || ') AS m '
        'GROUP BY dim_hash{{dimensions ~ , %1$I}}, day')
$$;


-- All that has ever been recorded, added up: the movements, and those in partitions that have been detached. `day` is
-- NULL for what totals do not reflect any more.
CREATE OR REPLACE FUNCTION accum_internal._recorded_sql(r @extschema@._registers) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._recorded_in_sql(r, accum_internal._fill(r, '{{movements}}'))
        || CASE WHEN to_regclass(accum_internal._fill(r, '{{named ~  ~ _detached}}')) IS NULL THEN '' ELSE accum_internal._fill(r,
           ' UNION ALL SELECT dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , %1$I}}, '
           'version, last_movement_at, last_movement_id FROM {{named ~  ~ _detached}}') END
$$;


-- What a trigger does in high-write mode with the rows of a statement, instead of updating derived tables.
CREATE OR REPLACE FUNCTION accum_internal._delta_apply_sql(r @extschema@._registers, rows text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, '
    INSERT INTO {{named ~  ~ _balance_cache_delta}} (dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , %1$I}}, last_movement_at, last_movement_id)
    SELECT dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , sum(%1$I)}}, max(recorded_at), (array_agg(id))[1]
      FROM ' || rows || ' GROUP BY dim_hash{{dimensions ~ , %1$I}}, day;')
$$;


-- Whether the buffer has been there since the epoch began, as an SQL expression.
CREATE OR REPLACE FUNCTION accum_internal._alive_sql(r @extschema@._registers) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, 'coalesce((SELECT e.epoch FROM {{named ~  ~ _balance_cache_epoch}} AS e) '
        '= (SELECT a.epoch FROM {{named ~  ~ _balance_cache_alive}} AS a), false)')
$$;

-- NULL where the register has no buffer any more. Who has looked holds no lock: it will take others first.
CREATE OR REPLACE FUNCTION accum_internal._is_alive(r @extschema@._registers) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    alive boolean;
BEGIN
    EXECUTE 'SELECT ' || accum_internal._alive_sql(r) INTO alive;
    RAISE EXCEPTION SQLSTATE 'HW001';
EXCEPTION
    WHEN SQLSTATE 'HW001' THEN RETURN alive;
    WHEN undefined_table THEN RETURN NULL;
END $$;


-- Lock the epoch. Returns whether the register is still what it was before that, and in high-write mode.
CREATE OR REPLACE FUNCTION accum_internal._lock_epoch(r @extschema@._registers) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = on AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'LOCK TABLE {{named ~  ~ _balance_cache_epoch}} IN EXCLUSIVE MODE');
    RETURN accum_internal._register(r.name) IS NOT DISTINCT FROM r;
EXCEPTION WHEN undefined_table THEN
    RETURN false;
END $$;


-- By how much versions grow when a buffer has been lost: more than anybody can have seen there, so that no version comes twice.
CREATE OR REPLACE FUNCTION accum_internal._lost_versions() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1000000000 $$;


-- The view that has the place of a table of totals: stored and pending, or after a crash recorded, added up by cell. It is
-- planned for what is common: what computes from the movements is behind a function.
CREATE OR REPLACE FUNCTION accum_internal._derived_view_sql(r @extschema@._registers, kind text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    alive CONSTANT text := accum_internal._alive_sql(r);
    cell CONSTANT text := 'dim_hash{{dimensions ~ , %1$I}}, period';
    rest CONSTANT text := '{{resources ~ , %1$I}}';
    pending CONSTANT text := 'dim_hash{{dimensions ~ , %1$I}}' || CASE kind WHEN r.totals_period THEN ', day AS period'
                             ELSE format(', date_trunc(%L, day::timestamp)::date AS period', kind) END || rest;
BEGIN
    RETURN 'CREATE OR REPLACE VIEW ' || accum_internal._source(r, kind) || ' AS SELECT '
        || accum_internal._expressions(r, to_regclass(accum_internal._stored_name(r, kind)), 'sum(%1$I)::%2$s', '{}')
        || accum_internal._fill(r, ' FROM (SELECT ' || cell || rest || ' FROM (SELECT ' || cell || rest || ' FROM {{' || kind || '}}'
        || ' UNION ALL SELECT ' || pending || ' FROM {{named ~  ~ _balance_cache_delta}}) AS counted WHERE ' || alive
        || ' UNION ALL SELECT ' || pending || ' FROM {{own ~ recorded}}((SELECT epoch FROM {{named ~  ~ _balance_cache_epoch}}))'
        || ' WHERE NOT ' || alive || ' AND day IS NOT NULL) AS every GROUP BY ' || cell);
END $$;


-- The view that has the place of the balance cache: what has been merged, and zeros for cells of which nothing has been.
CREATE OR REPLACE FUNCTION accum_internal._cache_view_sql(r @extschema@._registers) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'CREATE OR REPLACE VIEW ' || accum_internal._source(r, 'cache') || ' AS SELECT '
        || accum_internal._expressions(r, to_regclass(accum_internal._stored_name(r, 'cache')), '%1$I', '{}')
        || accum_internal._fill(r, ' FROM {{cache}} UNION ALL SELECT ')
        || accum_internal._expressions(r, to_regclass(accum_internal._stored_name(r, 'cache')), '0::%2$s', jsonb_build_object(
               'version', '0::bigint', 'last_movement_at', 'max(last_movement_at)',
               'last_movement_id', '(array_agg(last_movement_id ORDER BY last_movement_at DESC))[1]'))
        || accum_internal._fill(r, ' FROM {{named ~  ~ _balance_cache_delta}} AS d '
               'WHERE NOT EXISTS (SELECT FROM {{cache}} AS t WHERE t.dim_hash = d.dim_hash) GROUP BY dim_hash{{dimensions ~ , %1$I}}')
$$;


-- The view from which balances are read, as rows to be added up. Who may read the balance cache may read it. Conditions that hold for all rows
-- or for none stand in each branch, where they are found out before its rows are read; around them they would cost a step for each row.
CREATE OR REPLACE FUNCTION accum_internal._current_view_sql(r @extschema@._registers) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, replace(replace(replace('CREATE OR REPLACE VIEW {{own ~ current}} WITH (security_barrier) AS '
        'SELECT @columns@ FROM {{cache}} WHERE @alive@ AND @readable@ '
        'UNION ALL SELECT @columns@ FROM {{named ~  ~ _balance_cache_delta}} WHERE @alive@ AND @readable@ '
        'UNION ALL SELECT @columns@ FROM {{own ~ recorded}}((SELECT epoch FROM {{named ~  ~ _balance_cache_epoch}})) '
        'WHERE NOT @alive@ AND @readable@', '@columns@', 'dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}}'),
        '@alive@', accum_internal._alive_sql(r)),
        '@readable@', 'accum_internal._may_read(' || quote_literal(accum_internal._source(r, 'cache')) || ')'))
$$;


-- Raises 42501 unless who asks may read a relation.
CREATE OR REPLACE FUNCTION accum_internal._may_read(relation text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_table_privilege(relation, 'SELECT') THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'permission denied for %', relation USING ERRCODE = '42501';
END $$;


-- Move the right to read, which others have on a table, to what takes its place.
CREATE OR REPLACE FUNCTION accum_internal._move_grants(source regclass, target regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entry record;
    grantee text;
BEGIN
    FOR entry IN
        SELECT '' AS columns, a.grantee, a.is_grantable FROM pg_class c, aclexplode(c.relacl) AS a
         WHERE c.oid = source AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
        UNION ALL
        SELECT format('(%I)', t.attname), a.grantee, a.is_grantable FROM pg_attribute t, aclexplode(t.attacl) AS a
         WHERE t.attrelid = source AND t.attnum > 0 AND NOT t.attisdropped AND a.privilege_type = 'SELECT'
    LOOP
        grantee := CASE entry.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(entry.grantee)) END;
        EXECUTE format('GRANT SELECT %s ON TABLE %s TO %s%s', entry.columns, target, grantee,
                       CASE WHEN entry.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
        EXECUTE format('REVOKE SELECT %s ON TABLE %s FROM %s CASCADE', entry.columns, source, grantee);
    END LOOP;
END $$;


-- Make what reads the buffer: the function that computes from the movements, with versions as _repair_delta_buffer will
-- store them, and the views. The function has the owner's rights, since who reads a view needs none on the movements; its argument is what
-- only the views can read.
CREATE OR REPLACE FUNCTION accum_internal._create_delta_views(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    buffer text := accum_internal._fill(r, '{{named ~  ~ _balance_cache_delta}}');
    recorded text := accum_internal._fill(r, '{{own ~ recorded}}');
    kind text;
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION %s(epoch uuid) RETURNS SETOF %s LANGUAGE plpgsql STABLE PARALLEL SAFE '
                   'SECURITY DEFINER SET search_path = pg_catalog, pg_temp ROWS 1 COST 1 AS %L',
        recorded, buffer, format('
BEGIN
    IF epoch IS DISTINCT FROM (SELECT e.epoch FROM %s AS e) THEN
        RAISE EXCEPTION USING ERRCODE = ''42501'', MESSAGE = ''permission denied for register "%s"'';
    END IF;
    RETURN QUERY SELECT %s FROM (%s) AS recorded;
END ', accum_internal._fill(r, '{{named ~  ~ _balance_cache_epoch}}'), r.name,
            accum_internal._expressions(r, buffer::regclass, '%1$I', '{"id": "0::bigint", "created_at": "now()"}'),
            accum_internal._recorded_sql(r) || CASE r.kind WHEN 'balance' THEN accum_internal._fill(r,
                ' UNION ALL SELECT dim_hash{{dimensions ~ , %1$I}}, NULL::date{{resources ~ , 0::%2$s}}, version + accum_internal._lost_versions(), '
                'last_movement_at, last_movement_id FROM {{cache}}') ELSE '' END));
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        EXECUTE CASE kind WHEN 'cache' THEN accum_internal._cache_view_sql(r) ELSE accum_internal._derived_view_sql(r, kind) END;
        EXECUTE accum_internal._fill(r, replace('
            CREATE OR REPLACE TRIGGER is_derived_row INSTEAD OF INSERT OR UPDATE OR DELETE ON @view@
                FOR EACH ROW EXECUTE FUNCTION accum_internal._refuse_direct_write({{name}});
            CREATE OR REPLACE TRIGGER is_derived BEFORE INSERT OR UPDATE OR DELETE ON @view@
                FOR EACH STATEMENT EXECUTE FUNCTION accum_internal._refuse_direct_write({{name}})', '@view@', accum_internal._source(r, kind)));
    END LOOP;
    IF r.kind = 'balance' THEN
        EXECUTE accum_internal._current_view_sql(r);
        EXECUTE accum_internal._fill(r, 'GRANT SELECT ON {{own ~ current}} TO PUBLIC');
    END IF;
END $$;


-- Begin an epoch: from now on what is stored and what is pending are everything that has been recorded.
CREATE OR REPLACE FUNCTION accum_internal._begin_epoch(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'DELETE FROM {{named ~  ~ _balance_cache_alive}}');
    EXECUTE accum_internal._fill(r, 'WITH begun AS (UPDATE {{named ~  ~ _balance_cache_epoch}} SET epoch = gen_random_uuid() RETURNING epoch) '
        'INSERT INTO {{named ~  ~ _balance_cache_alive}} SELECT epoch FROM begun');
END $$;


-- Views, rules and triggers on a derived table would go on with the stored table, which is only a part of the truth.
CREATE OR REPLACE FUNCTION accum_internal._refuse_dependents(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dependents text;
BEGIN
    SELECT string_agg(DISTINCT format('%s depends on table %s', coalesce(pg_describe_object('pg_class'::regclass, w.ev_class, 0),
                                                                        pg_describe_object(d.classid, d.objid, 0)), d.refobjid::regclass), E'\n')
      INTO dependents
      FROM unnest(accum_internal._derived(r)) AS kind
      JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.deptype IN ('n', 'a')
                      AND d.refobjid = to_regclass(accum_internal._source(r, kind))
      LEFT JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
     WHERE d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_publication_rel'::regclass)
       -- Triggers of this schema's, and the view from which balances are read.
       AND NOT (d.classid = 'pg_trigger'::regclass AND EXISTS (
               SELECT FROM pg_trigger AS g JOIN pg_proc AS p ON p.oid = g.tgfoid
                WHERE g.oid = d.objid AND p.pronamespace = 'accum_internal'::regnamespace))
       AND (w.ev_class = to_regclass(accum_internal._own_name(r.name, 'current'))) IS NOT TRUE;
    IF dependents IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '2BP01',
            MESSAGE = format('cannot change high_write of register "%s" because other objects depend on its tables', r.name),
            DETAIL = dependents,
            HINT = 'Drop them, and create them again afterwards.';
    END IF;
END $$;


-- Turn a register to high-write mode: derived tables become stored ones, with views in their place. Called with the
-- register's new row, before its functions are generated.
CREATE OR REPLACE FUNCTION accum_internal._create_delta_buffer(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer text := accum_internal._fill(r, '{{named ~  ~ _balance_cache_delta}}');
    epoch text := accum_internal._fill(r, '{{named ~  ~ _balance_cache_epoch}}');
    kind text;
BEGIN
    EXECUTE accum_internal._fill(r, 'LOCK TABLE {{movements}} IN SHARE ROW EXCLUSIVE MODE');
    PERFORM accum_internal._refuse_dependents(r);
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        IF to_regclass(accum_internal._source(r, kind)) IS NOT NULL THEN  -- register_create has named it as it is stored
            EXECUTE format('ALTER TABLE %s RENAME TO %I', accum_internal._source(r, kind),
                           r.name || CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END || '_stored');
        END IF;
    END LOOP;
    EXECUTE accum_internal._fill(r, 'CREATE UNLOGGED TABLE ' || buffer || ' (
        id bigserial PRIMARY KEY, dim_hash bigint NOT NULL{{dimensions ~ , %1$I %2$s}}, day date{{resources ~ , %1$I %2$s NOT NULL DEFAULT 0}},
        version bigint NOT NULL DEFAULT 1, last_movement_at timestamptz, last_movement_id uuid, created_at timestamptz NOT NULL DEFAULT now())');
    EXECUTE format('CREATE INDEX ON %s (dim_hash)', buffer);
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE TRIGGER is_derived BEFORE TRUNCATE ON ' || buffer
        || ' FOR EACH STATEMENT EXECUTE FUNCTION accum_internal._refuse_direct_write({{name}})');
    EXECUTE format('CREATE TABLE %s (epoch uuid NOT NULL)', epoch);
    EXECUTE accum_internal._fill(r, 'CREATE UNLOGGED TABLE {{named ~  ~ _balance_cache_alive}} (epoch uuid NOT NULL)');
    EXECUTE format('INSERT INTO %s VALUES (gen_random_uuid())', epoch);
    PERFORM accum_internal._begin_epoch(r);
    PERFORM accum_internal._create_delta_views(r);
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        PERFORM accum_internal._move_grants(accum_internal._stored_name(r, kind)::regclass, accum_internal._source(r, kind)::regclass);
    END LOOP;
END $$;


-- Turn a register from high-write mode: the stored tables take their places again, into which everything has been merged. Called with
-- the register's old row, before its functions are generated.
CREATE OR REPLACE FUNCTION accum_internal._drop_delta_buffer(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    kind text;
BEGIN
    PERFORM set_config('pg_accumulator.altered', r.name, true);
    EXECUTE accum_internal._fill(r, 'DROP VIEW IF EXISTS {{own ~ current}}');
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        PERFORM accum_internal._move_grants(accum_internal._source(r, kind)::regclass, accum_internal._stored_name(r, kind)::regclass);
        EXECUTE format('DROP VIEW %s', accum_internal._source(r, kind));
    END LOOP;
    FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
        EXECUTE format('ALTER TABLE %s RENAME TO %I', accum_internal._stored_name(r, kind),
                       r.name || CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END);
    END LOOP;
    PERFORM accum_internal._discard_delta_buffer(r), set_config('pg_accumulator.altered', '', true);
END $$;


-- Remove the buffer with what is in it, and all that reads it.
CREATE OR REPLACE FUNCTION accum_internal._discard_delta_buffer(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'DROP FUNCTION IF EXISTS {{own ~ recorded}}(uuid) CASCADE');
    EXECUTE accum_internal._fill(r, 'DROP TABLE IF EXISTS {{named ~  ~ _balance_cache_delta}}, {{named ~  ~ _balance_cache_alive}}, '
        '{{named ~  ~ _balance_cache_epoch}} CASCADE');
END $$;


-- Rows of the buffer as `_upserts_sql` takes them.
CREATE OR REPLACE FUNCTION accum_internal._as_movements_sql(r @extschema@._registers, rows text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, '(SELECT dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , %1$I}}, last_movement_at AS recorded_at, '
        'last_movement_id AS id, version FROM ' || rows || ') AS rows')
$$;


-- Add pending rows that are old enough to what is stored, and remove them; the oldest first, and not more than a number.
-- Those that are to come were there before the clock was set back.
-- Returns how many; NULL where the register has been altered meanwhile. One that has lost its buffer is repaired first.
CREATE OR REPLACE FUNCTION accum_internal._merge_deltas(r @extschema@._registers, max_age interval, batch_size bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off SET pg_accumulator.writes = 'on' AS $$
DECLARE
    buffer text := accum_internal._fill(r, '{{named ~  ~ _balance_cache_delta}}');
    consumed bigint[];
BEGIN
    IF NOT accum_internal._is_alive(r) THEN
        PERFORM accum_internal._repair_delta_buffer(r);
    END IF;
    IF NOT accum_internal._lock_epoch(r) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM %s WHERE created_at <= now() - $1 OR created_at > now() ORDER BY id LIMIT $2) AS oldest',
                   buffer) INTO consumed USING max_age, batch_size;
    IF consumed IS NULL THEN
        RETURN 0;
    END IF;
    EXECUTE accum_internal._upserts_sql(r, accum_internal._as_movements_sql(r, buffer || ' WHERE id = ANY ($1)'), 'sum(version)') USING consumed;
    EXECUTE format('DELETE FROM %s WHERE id = ANY ($1)', buffer) USING consumed;
    RETURN cardinality(consumed);
END $$;


-- Merge everything, while writers are locked out. Raises 40001 where the register is not what it was when it was looked up.
CREATE OR REPLACE FUNCTION accum_internal._settle_delta_buffer(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF accum_internal._merge_deltas(r, '0', NULL) IS NULL THEN
        RAISE EXCEPTION 'register "%" has been altered meanwhile', r.name USING ERRCODE = '40001', HINT = 'Try again.';
    END IF;
END $$;


-- Compute what is stored anew from what has been recorded, and begin an epoch.
--
-- A transaction's movements and its rows of the buffer are visible to the same snapshots. So in REPEATABLE READ nobody is
-- locked out: what others commit meanwhile stays pending. In READ COMMITTED each statement has a snapshot of its own, and
-- writers have to wait. Prepared transactions may be older than the crash that has emptied the buffer, while their
-- movements are still to come: they must end first.
CREATE OR REPLACE FUNCTION accum_internal._repair_delta_buffer(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off SET pg_accumulator.writes = 'on' AS $$
DECLARE
    movements text := accum_internal._fill(r, '{{movements}}');
    recorded text := '(' || accum_internal._recorded_sql(r) || ') AS recorded';
    kind text;
BEGIN
    EXECUTE format('LOCK TABLE %s IN %s MODE', movements, CASE current_setting('transaction_isolation')
        WHEN 'read committed' THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS SHARE' END);
    IF NOT accum_internal._lock_epoch(r) OR accum_internal._is_alive(r) THEN
        RETURN;
    ELSIF current_setting('transaction_isolation') <> 'read committed' AND EXISTS (SELECT FROM pg_locks l
                   WHERE l.pid IS NULL AND l.locktype = 'relation'
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                     AND l.relation IN (SELECT t.relid FROM pg_partition_tree(movements::regclass) t))
    THEN
        RAISE EXCEPTION USING ERRCODE = '55P03',
            MESSAGE = format('register "%s" cannot be repaired while a prepared transaction uses it', r.name),
            HINT = 'COMMIT PREPARED or ROLLBACK PREPARED; see pg_prepared_xacts.';
    END IF;
    EXECUTE accum_internal._fill(r, 'DELETE FROM {{named ~  ~ _balance_cache_delta}}');
    FOREACH kind IN ARRAY accum_internal._grains(r.totals_period) LOOP
        EXECUTE 'DELETE FROM ' || accum_internal._stored_name(r, kind);
    END LOOP;
    IF r.kind = 'balance' THEN
        EXECUTE accum_internal._fill(r, 'UPDATE {{cache}} SET {{resources ~ %1$I = 0, }} version = version + accum_internal._lost_versions()');
    END IF;
    EXECUTE accum_internal._upserts_sql(r, accum_internal._as_movements_sql(r, recorded || ' WHERE day IS NOT NULL'), 'sum(version)');
    IF r.kind = 'balance' AND position('_detached' IN recorded) > 0 THEN
        EXECUTE accum_internal._fill(r, '
            UPDATE {{cache}} AS t SET {{resources ~ %1$I = t.%1$I + d.%1$I, }} version = t.version + d.version
              FROM (SELECT dim_hash{{dimensions ~ , %1$I}}{{resources ~ , sum(%1$I) AS %1$I}}, sum(version) AS version
                      FROM {{named ~  ~ _detached}} WHERE day IS NULL GROUP BY dim_hash{{dimensions ~ , %1$I}}) AS d
             WHERE t.dim_hash = d.dim_hash{{dimensions ~  AND t.%1$I IS NOT DISTINCT FROM d.%1$I}}');
    END IF;
    PERFORM accum_internal._begin_epoch(r);
END $$;


-- Merge what is pending in all registers that belong to the caller, now: rows that are at least p_max_age old, and of each
-- register not more than p_batch_size. Returns how many rows.
--
-- An owner's triggers may be on the tables of a register. A superuser, who owns everything, is not to run them by a
-- call that names nobody.
CREATE OR REPLACE FUNCTION @extschema@._force_delta_merge(p_max_age interval DEFAULT '0 seconds', p_batch_size integer DEFAULT 1000000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    register text;
    owner name;
    merged bigint := 0;
BEGIN
    FOR register, owner IN
        SELECT g.name, pg_get_userbyid(accum_internal._owner_of(g)) FROM @extschema@._registers AS g
         WHERE g.high_write AND pg_has_role(accum_internal._owner_of(g), 'USAGE') ORDER BY g.name
    LOOP
        IF owner <> current_user AND (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = current_user) THEN
            RAISE WARNING USING MESSAGE = format('pending rows of register "%s" are left to the server', register),
                DETAIL = format('The register belongs to role "%s".', owner),
                HINT = format('SET ROLE %I, and call this function again.', owner);
        ELSE
            merged := merged + coalesce(accum_internal._merge_deltas(accum_internal._register(register), p_max_age, p_batch_size), 0);
        END IF;
    END LOOP;
    RETURN merged;
END $$;
