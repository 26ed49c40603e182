-- What keeps the derived tables right: triggers on the movements, once for each statement.
--
-- Every writer of a cell locks its row in the first derived table (the cache; the years of a register of turnovers)
-- before any other, and the cells of a statement in the order of their keys. Whoever has passed the first table holds
-- all that it will ever need of the others, so that concurrent batches cannot deadlock.


-- One statement that adds rows to all derived tables. `rows` is what stands behind FROM: a relation with the columns
-- dim_hash, the dimensions, day (the first of the finest total), the resources with their signs, recorded_at and id.
-- `versions` is by how much a cell's version grows, an aggregate of the rows.
CREATE OR REPLACE FUNCTION accum_internal._upserts_sql(r @extschema@._registers, rows text, versions text DEFAULT '1')
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grain text;
    statement text;
    parts text[] := ARRAY['added AS MATERIALIZED (
        SELECT dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , sum(%1$I) AS %1$I}},
               max(recorded_at) AS recorded_at, (array_agg(id))[1] AS id,
               ' || versions || ' AS version
          FROM ' || rows || ' GROUP BY dim_hash, day{{dimensions ~ , %1$I}})'];
    first text := '
    INSERT INTO {{cache}} AS t (dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}},
                                last_movement_at, last_movement_id, version)
    SELECT dim_hash{{dimensions ~ , %1$I}}{{resources ~ , sum(%1$I)}}, max(recorded_at), (array_agg(id))[1],
           ' || CASE versions WHEN '1' THEN '1' ELSE 'sum(version)' END || '
      FROM added GROUP BY dim_hash{{dimensions ~ , %1$I}} ORDER BY dim_hash
    ON CONFLICT (dim_hash) DO UPDATE
       SET {{resources ~ %1$I = t.%1$I + excluded.%1$I, }}
           last_movement_at = excluded.last_movement_at, last_movement_id = excluded.last_movement_id,
           version = t.version + excluded.version
     WHERE {{same_cell}}';
BEGIN
    FOREACH grain IN ARRAY accum_internal._grains(r.totals_period) LOOP
        statement := '
    INSERT INTO {{' || grain || '}} AS t (dim_hash, period{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
    SELECT dim_hash, ' || CASE
            WHEN grain = r.totals_period THEN 'day{{dimensions ~ , %1$I}}{{resources ~ , %1$I}} FROM added'
            ELSE format('date_trunc(%L, day::timestamp)::date', grain) || '{{dimensions ~ , %1$I}}
           {{resources ~ , sum(%1$I)}} FROM added GROUP BY 1, 2{{dimensions ~ , %1$I}}' END || '
     ORDER BY 1, 2
    ON CONFLICT (dim_hash, period) DO UPDATE
       SET {{resources ~ %1$I = t.%1$I + excluded.%1$I ~ , }}
     WHERE {{same_cell}}';
        IF r.kind = 'turnover' AND grain = 'year' THEN
            first := statement;
        ELSE
            parts := parts || format('to_%s AS (%s)', grain, statement);
        END IF;
    END LOOP;
    RETURN accum_internal._fill(r, 'WITH ' || array_to_string(parts, ', ') || first);
END $$;


-- The same as a part of a trigger function, which in high-write mode puts the rows aside instead.
CREATE OR REPLACE FUNCTION accum_internal._apply_sql(r @extschema@._registers, rows text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF r.high_write THEN
        RETURN accum_internal._delta_apply_sql(r, rows);
    END IF;
    RETURN accum_internal._upserts_sql(r, rows) || ';';
END $$;


-- What `_upserts_sql` takes, from a relation of movements, with a sign.
CREATE OR REPLACE FUNCTION accum_internal._signed_sql(r @extschema@._registers, movements text, sign text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._fill(r, 'SELECT m.dim_hash{{dimensions ~ , m.%1$I}}, {{bucket ~ m.period}} AS day
               {{resources ~ , ' || sign || ' m.%1$I AS %1$I}}, m.recorded_at, m.id FROM ' || movements || ' AS m')
$$;


-- A statement that locks the cells of removed movements and of those about to be posted in their place, in the one
-- order: what a repost will need is locked before it changes anything.
CREATE OR REPLACE FUNCTION accum_internal._lock_sql(r @extschema@._registers) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    period text := CASE r.kind WHEN 'turnover' THEN 'period, ' ELSE '' END;
    year text := 'date_trunc(''year'', %s AT TIME ZONE ''UTC'')::date AS period, ';
BEGIN
    RETURN accum_internal._fill(r, '
    INSERT INTO {{' || CASE r.kind WHEN 'turnover' THEN 'year' ELSE 'cache' END || '}} AS t ('
        || period || 'dim_hash{{dimensions ~ , %1$I}}'
        || CASE r.kind WHEN 'balance' THEN ', last_movement_at, last_movement_id' ELSE '' END || ')
    SELECT cells.*' || CASE r.kind WHEN 'balance' THEN ', now(), ''00000000-0000-0000-0000-000000000000''::uuid' ELSE '' END || '
      FROM (SELECT ' || CASE r.kind WHEN 'turnover' THEN format(year, 'd.period') ELSE '' END || 'd.dim_hash{{dimensions ~ , d.%1$I}}
              FROM deleted AS d
            UNION
            SELECT ' || CASE r.kind WHEN 'turnover' THEN format(year, 'n.period') ELSE '' END || '{{hash ~ n.%1$I}}{{dimensions ~ , n.%1$I}}
              FROM jsonb_populate_recordset(NULL::{{movements}}, current_setting(''pg_accumulator.repost'')::jsonb) AS n
           ) AS cells
     ORDER BY dim_hash' || CASE r.kind WHEN 'turnover' THEN ', period' ELSE '' END || '
    ON CONFLICT (dim_hash' || CASE r.kind WHEN 'turnover' THEN ', period' ELSE '' END || ') DO UPDATE
       SET dim_hash = t.dim_hash WHERE false;');
END $$;


-- Raises 428C9: a movement was inserted with another hash than that of its dimensions.
CREATE OR REPLACE FUNCTION accum_internal._refuse_hash() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'dim_hash is computed from the dimensions and cannot be given another value' USING ERRCODE = '428C9';
END $$;


-- What happens after an INSERT. A single movement, the most frequent case, needs no sorting and adding up.
CREATE OR REPLACE FUNCTION accum_internal._insert_body(r @extschema@._registers) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text;
    single text := '';
BEGIN
    IF NOT r.high_write THEN
        FOREACH kind IN ARRAY accum_internal._derived(r) LOOP
            single := single || CASE kind WHEN 'cache' THEN '
        INSERT INTO {{cache}} AS t (dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}}, last_movement_at, last_movement_id, version)
        VALUES (_one.dim_hash{{dimensions ~ , _one.%1$I}}{{resources ~ , _one.%1$I}}, _one.recorded_at, _one.id, 1)
        ON CONFLICT (dim_hash) DO UPDATE
           SET {{resources ~ %1$I = t.%1$I + excluded.%1$I, }}
               last_movement_at = excluded.last_movement_at, last_movement_id = excluded.last_movement_id,
               version = t.version + 1
         WHERE {{same_cell}};'
            ELSE '
        INSERT INTO {{' || kind || '}} AS t (dim_hash, period{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
        VALUES (_one.dim_hash, ' || CASE kind WHEN r.totals_period THEN '_day'
                    ELSE format('date_trunc(%L, _day::timestamp)::date', kind) END || '
                {{dimensions ~ , _one.%1$I}}{{resources ~ , _one.%1$I}})
        ON CONFLICT (dim_hash, period) DO UPDATE
           SET {{resources ~ %1$I = t.%1$I + excluded.%1$I ~ , }}
         WHERE {{same_cell}};' END;
        END LOOP;
        -- One query reads the movement if there is but one, and its hash is right.
        single := '
    SELECT m.* INTO _one FROM inserted AS m WHERE NOT EXISTS (SELECT FROM inserted OFFSET 1) AND m.dim_hash = ({{hash ~ m.%1$I}});
    IF _one.dim_hash IS NOT NULL THEN
        _day := {{bucket ~ _one.period}};' || single || '
        RETURN NULL;
    END IF;';
    ELSE
        -- The statement itself finds out whether there is but one movement, whose hash is right; else it inserts nothing.
        single := '
    INSERT INTO {{named ~  ~ _balance_cache_delta}} (dim_hash{{dimensions ~ , %1$I}}, day{{resources ~ , %1$I}}, last_movement_at, last_movement_id)
    SELECT m.dim_hash{{dimensions ~ , m.%1$I}}, {{bucket ~ m.period}}{{resources ~ , m.%1$I}}, m.recorded_at, m.id
      FROM inserted AS m WHERE NOT EXISTS (SELECT FROM inserted OFFSET 1) AND m.dim_hash = ({{hash ~ m.%1$I}});
    IF FOUND THEN
        RETURN NULL;
    END IF;';
    END IF;
    RETURN '
DECLARE
    _one {{movements}};
    _day date;
BEGIN' || single || '
    ' || accum_internal._apply_sql(r, '(' || accum_internal._signed_sql(r, 'inserted', '') || '
        WHERE CASE WHEN m.dim_hash = ({{hash ~ m.%1$I}}) THEN true ELSE accum_internal._refuse_hash() END) AS rows') || '
    RETURN NULL;';
END $$;


-- The trigger functions of a register. They have the rights of its owner: who may insert movements need not be able to
-- write totals.
CREATE OR REPLACE FUNCTION accum_internal._create_trigger_functions(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    audited CONSTANT text := '
    INSERT INTO {{audit}} (audit_operation, audit_user, audit_session_user, id, recorded_at, recorder, period, movement_type,
                           dim_hash{{dimensions ~ , %1$I}}{{resources ~ , %1$I}})
    SELECT %s, coalesce(nullif(current_setting(''role''), ''none''), session_user), session_user,
           m.id, m.recorded_at, m.recorder, m.period, m.movement_type,
           m.dim_hash{{dimensions ~ , m.%1$I}}{{resources ~ , m.%1$I}} FROM deleted AS m;';
    reposting CONSTANT text := 'coalesce(current_setting(''pg_accumulator.repost'', true), '''') <> ''''';
    operation CONSTANT text := 'CASE coalesce(current_setting(''pg_accumulator.operation'', true), '''')
           WHEN ''unpost'' THEN ''unpost'' WHEN ''repost'' THEN ''repost'' ELSE ''delete'' END';
    -- How many rows a statement has updated, of which all must be in the transition tables. Those that a MERGE moves to another
    -- partition are not, which is a fault of PostgreSQL.
    updated CONSTANT text := quote_literal('pg_accumulator.updated_' || r.name);
    function record;
BEGIN
    FOR function IN
        SELECT * FROM (VALUES
            ('_hash', false, '
    NEW.dim_hash := {{hash ~ NEW.%1$I}};
    IF TG_OP = ''UPDATE'' THEN
        PERFORM set_config(' || updated || ', (coalesce(nullif(current_setting(' || updated || ', true), ''''), ''0'')::bigint + 1)::text, true);
    END IF;
    RETURN NEW;'),
            ('_insert', true, accum_internal._insert_body(r)),
            ('_delete', true, replace(audited, '%s', operation) || CASE WHEN r.high_write THEN '' ELSE '
    IF ' || reposting || ' THEN' || accum_internal._lock_sql(r) || '
    END IF;' END || '
    ' || accum_internal._apply_sql(r, '(' || accum_internal._signed_sql(r, 'deleted', '-') || ') AS rows') || '
    RETURN NULL;'),
            ('_update', true, '
    IF nullif(current_setting(' || updated || ', true), '''')::bigint > (SELECT count(*) FROM inserted) THEN
        RAISE EXCEPTION ''MERGE cannot move movements to another partition'' USING ERRCODE = ''0A000'',
            DETAIL = ''Triggers are not told of rows that it moves, so that totals and balances would not follow.'',
            HINT = ''Use UPDATE, or DELETE and INSERT.'';
    END IF;
    PERFORM set_config(' || updated || ', '''', true);' || replace(audited, '%s', '''update''') || '
    ' || accum_internal._apply_sql(r, '(' || accum_internal._signed_sql(r, 'deleted', '-') || ' UNION ALL '
                              || accum_internal._signed_sql(r, 'inserted', '') || ') AS rows') || '
    RETURN NULL;'),
            ('_truncate', true, E'\n    EXECUTE replace(' || quote_literal(accum_internal._fill(r,
                replace(replace(audited, '%s', '''truncate'''), 'FROM deleted', 'FROM ONLY @partition@')
                || E'\n    ' || accum_internal._apply_sql(r, '(' || accum_internal._signed_sql(r, 'ONLY @partition@', '-') || ') AS rows')))
                || ', ''@partition@'', TG_RELID::regclass::text);
    RETURN NULL;')
        ) AS f (name, definer, body)
    LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql %s
                        SET search_path = pg_catalog, pg_temp AS %L',
            accum_internal._name('_trg_' || r.name || function.name),
            CASE WHEN function.definer THEN 'SECURITY DEFINER SET pg_accumulator.writes = ''on''' ELSE '' END,
            E'\n#variable_conflict use_column'  -- a column may be called "new" or "found"
            || CASE function.name WHEN '_insert' THEN '' ELSE E'\nBEGIN' END || accum_internal._fill(r, function.body) || E'\nEND ');
        EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', accum_internal._name('_trg_' || r.name || function.name));
    END LOOP;
END $$;


-- The triggers of the movements. The hash is computed wherever it is not given; `_trg_<name>_insert` refuses a wrong
-- one. The condition is short since PostgreSQL reads it from its text for every statement.
CREATE OR REPLACE FUNCTION accum_internal._create_triggers(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE TRIGGER dim_hash BEFORE INSERT ON {{movements}} FOR EACH ROW
        WHEN (NEW.dim_hash IS NULL) EXECUTE FUNCTION {{named ~ _trg_ ~ _hash}}()');
    EXECUTE accum_internal._fill(r, 'CREATE OR REPLACE TRIGGER dim_hash_update BEFORE UPDATE ON {{movements}} FOR EACH ROW
        EXECUTE FUNCTION {{named ~ _trg_ ~ _hash}}()');
    PERFORM accum_internal._attach_triggers(r, accum_internal._name(r.name || '_movements')::regclass);
END $$;


-- The triggers that a partition needs as well: a statement that names it fires those of the partitioned table not.
-- TRUNCATE of the movements fires the triggers of the partitions.
CREATE OR REPLACE FUNCTION accum_internal._attach_triggers(r @extschema@._registers, relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE accum_internal._fill(r, format('
        CREATE OR REPLACE TRIGGER accumulate_insert AFTER INSERT ON %1$s REFERENCING NEW TABLE AS inserted
            FOR EACH STATEMENT EXECUTE FUNCTION {{named ~ _trg_ ~ _insert}}();
        CREATE OR REPLACE TRIGGER accumulate_update AFTER UPDATE ON %1$s
            REFERENCING OLD TABLE AS deleted NEW TABLE AS inserted
            FOR EACH STATEMENT EXECUTE FUNCTION {{named ~ _trg_ ~ _update}}();
        CREATE OR REPLACE TRIGGER accumulate_delete AFTER DELETE ON %1$s REFERENCING OLD TABLE AS deleted
            FOR EACH STATEMENT EXECUTE FUNCTION {{named ~ _trg_ ~ _delete}}()', relation));
    IF (SELECT c.relkind = 'r' FROM pg_class c WHERE c.oid = relation) THEN
        EXECUTE accum_internal._fill(r, format('CREATE OR REPLACE TRIGGER accumulate_truncate BEFORE TRUNCATE ON %s
            FOR EACH STATEMENT EXECUTE FUNCTION {{named ~ _trg_ ~ _truncate}}()', relation));
    END IF;
END $$;
