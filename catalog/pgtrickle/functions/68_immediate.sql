-- IMMEDIATE mode: triggers on the sources of a stream table that maintain it, within the statements that change these.
--
-- What they do the compiler has written (sql/immediate). Of a stream table with the number 7 there are, in pgtrickle_roles, functions
-- immediate_7_1() and so on, one for each source, and immediate_7_hold(), which belong to the stream table's owner and run with his
-- rights: he could alter them, and have them run with the rights of whoever writes to a source, if he could name them. In
-- pgtrickle_changes there are a function immediate_7_left(), which these call, and a table immediate_7, in which changes are put down that
-- cannot be applied at once. Its row with source 0 is what a transaction locks that has changed the result, and one with source -1
-- says that there is something which has to be applied before the transaction ends.


-- Triggers of a stream table on a source, in the order in which they fire. Numbers of one length make that order the same on every
-- source.
-- From `rows` on they are those of partitioned sources (_write_immediate_counts): a trigger `rows` comes after others, which may keep
-- a row from being updated.
CREATE OR REPLACE FUNCTION pgtrickle._immediate_triggers(pgt_id bigint, OUT part text, OUT event text, OUT name text)
RETURNS SETOF record
LANGUAGE sql IMMUTABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT v.part, v.event,
           format('%spg_trickle_immediate_%s_%s', CASE v.part WHEN 'rows' THEN '~' ELSE '' END, lpad(pgt_id::text, 12, '0'), v.part)
    FROM (VALUES ('begin', NULL), ('hold', NULL), ('insert', 'INSERT'), ('update', 'UPDATE'), ('delete', 'DELETE'),
                 ('truncate', 'TRUNCATE'), ('rows', NULL), ('inserts', NULL), ('updates', NULL), ('moved', NULL)) AS v(part, event)
$$;


-- The tables that have the triggers of a stream table: its sources, with their partitions and children.
CREATE OR REPLACE FUNCTION pgtrickle._immediate_relations(pgt_id bigint, OUT source oid, OUT relation oid) RETURNS SETOF record
LANGUAGE sql STABLE ROWS 4 SET search_path = pg_catalog, pg_temp AS $$
    SELECT d.source_relid, r.relid
    FROM pgtrickle.pgt_dependencies d, unnest(pgtrickle._relations(d.source_relid)) AS r(relid)
    WHERE d.pgt_id = _immediate_relations.pgt_id AND d.source_type <> 'VIEW'
$$;


-- The types of users that the functions of a stream table mention, but for those of tables: which takes long to find out.
DROP FUNCTION IF EXISTS pgtrickle._mentioned_types(bigint), pgtrickle._immediate_state(bigint);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._types_mentioned(pgt_id bigint) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(
        SELECT t.oid FROM pg_type t
        WHERE t.oid >= 16384 AND t.typelem = 0
          AND (t.typrelid = 0 OR (SELECT c.relkind FROM pg_class c WHERE c.oid = t.typrelid) = 'c')
          AND EXISTS (SELECT FROM pg_proc p
                      WHERE p.pronamespace IN ('pgtrickle_roles'::regnamespace, 'pgtrickle_changes'::regnamespace)
                        AND p.proname ~ format('^immediate_%s_', _types_mentioned.pgt_id)
                        AND strpos(p.prosrc, btrim(quote_ident(t.typname), '"')) > 0)
        ORDER BY t.oid)
$$;


-- What the triggers of a stream table are now, with their functions; the tables that have them; the names that the functions mention, with
-- the labels and attributes of types; and these types. One that was disabled and enabled again is another.
CREATE OR REPLACE FUNCTION pgtrickle._immediate_state(pgt_id bigint, types oid[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH place AS (SELECT * FROM pgtrickle._immediate_relations(_immediate_state.pgt_id))
    SELECT concat_ws('/',
        (SELECT count(*) || ':' || md5(coalesce(string_agg(concat_ws(' ', t.oid, t.xmin, t.tgenabled, p.xmin), ',' ORDER BY t.oid), ''))
         FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
         WHERE t.tgrelid IN (SELECT l.relation FROM place l)
           AND t.tgname IN (SELECT n.name FROM pgtrickle._immediate_triggers(_immediate_state.pgt_id) n)),
        (SELECT md5(coalesce(string_agg(l.relation::text, ',' ORDER BY l.relation), '')) FROM place l),
        (SELECT md5(concat_ws(',', pgtrickle._qualified((SELECT s.pgt_relid FROM pgtrickle.pgt_definitions s
                                                         WHERE s.pgt_id = _immediate_state.pgt_id)),
                              string_agg(DISTINCT pgtrickle._qualified(l.source), ','),
                              (SELECT string_agg(format('%I.%I', n.nspname, t.typname) || pgtrickle._type_parts(ARRAY[t.oid]), ','
                                                 ORDER BY t.oid)
                               FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
                               WHERE t.oid = ANY (types)))) FROM place l),
        array_to_string(types, ','))
$$;


-- Why a source of a stream table of some role cannot have these triggers, NULL where it can. The columns are those that are read of it.
CREATE OR REPLACE FUNCTION pgtrickle._immediate_obstacle(source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unlogged oid;
    title text := pgtrickle._qualified(source);
    obstacle text := pgtrickle._capture_obstacle(source);
    virtual name;
BEGIN
    IF obstacle IS NOT NULL THEN
        RETURN obstacle;
    END IF;
    SELECT c.oid INTO unlogged FROM pg_class c WHERE c.oid = ANY (pgtrickle._relations(source)) AND c.relpersistence = 'u';
    IF FOUND THEN
        RETURN format('"%s" is unlogged: PostgreSQL empties it when it recovers from a crash, and tells no trigger',
                      pgtrickle._qualified(unlogged));
    END IF;
    SELECT a.attname INTO virtual FROM pg_attribute a
    WHERE a.attrelid = source AND a.attgenerated = 'v' AND a.attname = ANY (columns) LIMIT 1;
    RETURN CASE WHEN virtual IS NOT NULL THEN format('column "%s" of "%s" is a virtual generated one', virtual, title) END;
END $$;


-- What a role lacks to have such triggers on a source, NULL where it lacks nothing.
CREATE OR REPLACE FUNCTION pgtrickle._immediate_denial(owner oid, source oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('role "%s" has no privilege TRIGGER', pg_get_userbyid(owner))
    WHERE NOT has_table_privilege(owner, source, 'TRIGGER')
$$;


-- Why triggers cannot maintain a stream table whose query allows it, NULL where they can.
CREATE OR REPLACE FUNCTION pgtrickle._why_not_immediate(pgt_id bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT o.reason
    FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s USING (pgt_id)
    CROSS JOIN LATERAL (SELECT coalesce(
        pgtrickle._immediate_obstacle(d.source_relid, d.columns_used),
        format('permission denied for table %s: ', pgtrickle._qualified(d.source_relid))
        || pgtrickle._immediate_denial(s.pgt_owner, d.source_relid),
        pgtrickle._read_obstacle(s.pgt_owner, d.source_relid, d.columns_used))) AS o(reason)
    WHERE d.pgt_id = _why_not_immediate.pgt_id AND d.source_type <> 'VIEW' AND o.reason IS NOT NULL
    UNION ALL
    SELECT coalesce(pgtrickle._read_obstacle(s.pgt_owner, s.pgt_relid, '{}'),
                    (SELECT format('permission denied for table %s', pgtrickle._qualified(s.pgt_relid))
                     WHERE NOT (has_table_privilege(s.pgt_owner, s.pgt_relid, 'INSERT')
                                AND has_table_privilege(s.pgt_owner, s.pgt_relid, 'UPDATE')
                                AND has_table_privilege(s.pgt_owner, s.pgt_relid, 'DELETE'))))
    FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _why_not_immediate.pgt_id
    LIMIT 1
$$;


-- Why the triggers of a stream table do not maintain it as they did when they were made, NULL where they do.
CREATE OR REPLACE FUNCTION pgtrickle._immediate_gap(pgt_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made text[] := string_to_array((SELECT i.state FROM pgtrickle.pgt_immediate i WHERE i.pgt_id = _immediate_gap.pgt_id), '/');
    state text[] := string_to_array(
        pgtrickle._immediate_state(pgt_id, coalesce(string_to_array(made[4], ',')::oid[], '{}')), '/');
BEGIN
    IF state[2] IS DISTINCT FROM made[2] THEN
        RETURN 'a table that it reads, or a partition or child of one, was added or removed';
    ELSIF state[3] IS DISTINCT FROM made[3] THEN
        RETURN 'it, or a table or type that it reads, was renamed or altered';
    ELSIF state[1] IS DISTINCT FROM made[1] THEN
        RETURN 'a trigger that maintains it was dropped, disabled or changed';
    END IF;
    RETURN coalesce(
        (SELECT format('definition of %s has changed', pgtrickle._source_name(d))
         FROM pgtrickle.pgt_dependencies d LEFT JOIN pg_class c ON c.oid = d.source_relid
         WHERE d.pgt_id = _immediate_gap.pgt_id
           AND (d.schema_fingerprint <> pgtrickle._fingerprint(d.source_relid, d.columns_used)
                -- Who reads all columns may read whole rows.
                OR c.relnatts > (d.column_snapshot->'known'->>'attributes')::int
                   AND cardinality(d.columns_used) = jsonb_array_length(d.column_snapshot->'known'->'columns')) LIMIT 1),
        (SELECT pgtrickle._changed_function(s.function_hashes) FROM pgtrickle.pgt_definitions s
         WHERE s.pgt_id = _immediate_gap.pgt_id AND s.function_hashes <> '{}'),
        pgtrickle._why_not_immediate(pgt_id));
END $$;


-- Mark the stream tables that triggers maintain, or have maintained, no longer as they should: of those that have to do with any of some
-- tables, or of all.
CREATE OR REPLACE FUNCTION pgtrickle._mark_immediate(altered oid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE pgtrickle.pgt_definitions s SET needs_reinit = true, updated_at = clock_timestamp()
    FROM pgtrickle.pgt_immediate i
    WHERE i.pgt_id = s.pgt_id AND s.refresh_mode = 'IMMEDIATE' AND (altered IS NULL OR i.relations && altered)
      AND pgtrickle._immediate_gap(s.pgt_id) IS NOT NULL
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._mark_immediate(oid[]) FROM PUBLIC;


-- Raises 0A000 where a source of a stream table cannot have triggers that maintain it, 42501 where its owner may not make them.
CREATE OR REPLACE FUNCTION pgtrickle._check_immediate(pgt_id bigint) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := pgtrickle._owner_of(pgt_id);
    d record;
BEGIN
    IF (SELECT s.requested_cdc_mode = 'wal' FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _check_immediate.pgt_id) THEN
        PERFORM pgtrickle._raise('0A000', 'cdc_mode => ''wal'' is not supported in IMMEDIATE mode',
            'What is decoded from the write-ahead log comes after the statement that has made it.',
            'Use cdc_mode => ''auto'' or ''trigger'', or refresh_mode => ''DIFFERENTIAL''.');
    ELSIF NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies p WHERE p.pgt_id = _check_immediate.pgt_id AND p.source_type <> 'VIEW') THEN
        PERFORM pgtrickle._raise('0A000', 'this query is not supported in IMMEDIATE mode', 'It reads no table.',
                                 'Use refresh_mode => ''FULL''.');
    END IF;
    FOR d IN SELECT p.source_relid, o.obstacle, pgtrickle._immediate_denial(owner, p.source_relid) AS denial
             FROM pgtrickle.pgt_dependencies p
             CROSS JOIN LATERAL pgtrickle._immediate_obstacle(p.source_relid, p.columns_used) AS o(obstacle)
             WHERE p.pgt_id = _check_immediate.pgt_id AND p.source_type <> 'VIEW' ORDER BY p.source_relid LOOP
        IF d.obstacle IS NOT NULL THEN
            PERFORM pgtrickle._raise('0A000', 'this query is not supported in IMMEDIATE mode', d.obstacle,
                                     'Use refresh_mode => ''DIFFERENTIAL'' with a schedule of ''on commit''.');
        ELSIF d.denial IS NOT NULL THEN
            PERFORM pgtrickle._raise('42501', format('permission denied for table %s', pgtrickle._qualified(d.source_relid)),
                format('In IMMEDIATE mode statements that change the table run the query of role "%s".', pg_get_userbyid(owner)),
                format('GRANT TRIGGER ON %s TO %I;', pgtrickle._qualified(d.source_relid), pg_get_userbyid(owner)));
        END IF;
    END LOOP;
END $$;


-- Lock the sources of a stream table against writers, until the transaction ends: {}, or {"locked": message} where that cannot be had
-- soon. Who has these locks sees, by a new snapshot, all changes that were made before.
CREATE OR REPLACE FUNCTION pgtrickle._try_lock_sources(pgt_id bigint) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    d record;
BEGIN
    PERFORM pgtrickle._check_immediate(pgt_id);
    FOR d IN SELECT p.source_relid FROM pgtrickle.pgt_dependencies p
             WHERE p.pgt_id = _try_lock_sources.pgt_id AND p.source_type <> 'VIEW' ORDER BY p.source_relid LOOP
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', pgtrickle._qualified(d.source_relid));
    END LOOP;
    RETURN '{}';
EXCEPTION WHEN lock_not_available THEN
    RETURN jsonb_build_object('locked', SQLERRM);
END $$;


-- Before a stream table that has such triggers is computed anew: lock the tables that have them against writers, until the transaction
-- ends. Nobody is then in the midst of a statement whose triggers maintain it still. Returns what _try_lock_sources does.
CREATE OR REPLACE FUNCTION pgtrickle._try_flush_immediate(pgt_id bigint) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    t record;
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    IF to_regprocedure(format('pgtrickle_changes.%I()', format('immediate_%s_left', pgt_id))) IS NULL THEN
        RETURN '{}';
    END IF;
    FOR t IN SELECT g.tgrelid FROM pg_trigger g
             WHERE g.tgname IN (SELECT n.name FROM pgtrickle._immediate_triggers(pgt_id) n WHERE n.part = 'begin') ORDER BY 1 LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', pgtrickle._qualified(t.tgrelid));
    END LOOP;
    RETURN '{}';
EXCEPTION WHEN lock_not_available THEN
    RETURN jsonb_build_object('locked', SQLERRM);
END $$;


-- A function of a stream table's, with the rights of its owner and these settings: a trigger function, or one that trigger functions call.
DROP FUNCTION IF EXISTS pgtrickle._write_immediate_function(text, text, text, oid, boolean);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._write_immediate_function(name text, returns text, body text, owner oid, clauses text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_trigger boolean := returns = 'trigger';
    signature text := format('%I.%I()', CASE WHEN is_trigger THEN 'pgtrickle_roles' ELSE 'pgtrickle_changes' END, name);
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION %s RETURNS %s LANGUAGE plpgsql VOLATILE %s AS %L',
                   signature, returns, CASE WHEN is_trigger THEN 'SECURITY DEFINER ' ELSE '' END || clauses, body);
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
    IF is_trigger THEN
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, current_user);
        PERFORM pgtrickle._give_function(signature, owner);
    ELSE
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, pg_get_userbyid(owner));
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_immediate_function(text, text, text, oid, text) FROM PUBLIC;


-- At the end of a transaction: raises 55000 if it has put changes down that were not applied. That is so if it has changed what counts its
-- statements (pgtrickle.begun_N), which anybody can.
CREATE OR REPLACE FUNCTION pgtrickle._check_applied() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint := substr(tg_table_name, length('immediate_') + 1)::bigint;
    overlooked boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I AS p WHERE p.source <> 0)', tg_table_schema, tg_table_name) INTO overlooked;
    IF NOT overlooked OR NOT EXISTS (SELECT FROM pgtrickle.pgt_immediate i WHERE i.pgt_id = id) THEN
        RETURN NULL;
    END IF;
    IF pg_trigger_depth() > 1 THEN
        -- SET CONSTRAINTS has this called in the middle of a statement, which will apply them.
        EXECUTE format('SET CONSTRAINTS %I.%I DEFERRED', tg_table_schema, tg_name);
        EXECUTE format('INSERT INTO %I.%I (source) VALUES (-1)', tg_table_schema, tg_table_name);
        RETURN NULL;
    END IF;
    PERFORM pgtrickle._raise_miscounted(id);
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_applied() FROM PUBLIC;


-- The table in which changes are put down: a column for each of those that are read of a source, of its type below domains.
CREATE OR REPLACE FUNCTION pgtrickle._write_immediate_table(pgt_id bigint, sources jsonb, owner oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    put_down text := format('pgtrickle_changes.%I', 'immediate_' || pgt_id);
    columns text;
BEGIN
    SELECT string_agg(format(', %I %s%s', format('c%s_%s', s.value->>'number', c.place), pgtrickle._base_type(a.atttypid, a.atttypmod),
                             (SELECT format(' COLLATE %I.%I', n.nspname, l.collname)
                              FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace
                              WHERE l.oid = a.attcollation AND l.collname <> 'default')), '')
    INTO columns
    FROM jsonb_array_elements(sources) AS s
    CROSS JOIN LATERAL jsonb_array_elements_text(s.value->'columns') WITH ORDINALITY AS c(name, place)
    JOIN pg_attribute a ON a.attrelid = (s.value->>'oid')::oid AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped;
    EXECUTE format('CREATE TABLE %s (source smallint NOT NULL, "__pgt_w" smallint, holder xid8%s)', put_down, columns);
    EXECUTE format('COMMENT ON TABLE %s IS %L', put_down, 'Changes that IMMEDIATE mode has put down within a statement.');
    EXECUTE format('CREATE INDEX ON %s (source)', put_down);
    EXECUTE format('INSERT INTO %s (source, holder) VALUES (0, ''0'')', put_down);
    EXECUTE format('CREATE CONSTRAINT TRIGGER %I AFTER INSERT ON %s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW '
                   'WHEN (NEW.source OPERATOR(pg_catalog.=) -1) EXECUTE FUNCTION pgtrickle._check_applied()',
                   format('immediate_%s_applied', pgt_id), put_down);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', put_down, pg_get_userbyid(owner));
    PERFORM pgtrickle._keep_out_of_statistics(put_down::regclass::oid);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_immediate_table(bigint, jsonb, oid) FROM PUBLIC;


-- A statement that changes a source begins: count it, until the trigger after it counts it down.
-- It runs before each statement: qualified names cost nothing, a SET clause or a PERFORM as much as all else in it.
CREATE OR REPLACE FUNCTION pgtrickle._begin_immediate() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    counter CONSTANT pg_catalog.text := 'pgtrickle.begun_' OPERATOR(pg_catalog.||) tg_argv[0];
    begun pg_catalog.text := coalesce(pg_catalog.current_setting(counter, true), '');
BEGIN
    IF begun OPERATOR(pg_catalog.=) '' THEN
        begun := '0';
    END IF;
    begun := pg_catalog.set_config(counter, (begun::pg_catalog.int4 OPERATOR(pg_catalog.+) 1)::pg_catalog.text, true);
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._begin_immediate() FROM PUBLIC;


-- Put the triggers of a stream table on a source, or a partition or child of it, in force whatever session_replication_role says. Through
-- a parent its own triggers fire alone.
CREATE OR REPLACE FUNCTION pgtrickle._write_immediate_triggers(pgt_id bigint, relation oid, number int, columns text[], holds boolean)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(relation);
    named text := (SELECT string_agg(quote_ident(c), ', ') FROM unnest(columns) AS c);
    enabled text;
    t record;
BEGIN
    FOR t IN SELECT * FROM pgtrickle._immediate_triggers(pgt_id) n
             WHERE n.event IS NOT NULL OR n.part = 'begin' OR n.part = 'hold' AND (holds OR named IS NOT NULL) LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %s', t.name,
            CASE t.part WHEN 'begin' THEN CASE WHEN holds THEN 'BEFORE UPDATE' ELSE 'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE' END
                        WHEN 'hold' THEN 'BEFORE ' || concat_ws(' OR ', CASE WHEN holds THEN 'INSERT OR DELETE OR TRUNCATE' END,
                                                                'UPDATE OF ' || named)
                        ELSE 'AFTER ' || t.event END,
            target,
            CASE t.part WHEN 'insert' THEN 'REFERENCING NEW TABLE AS __pgt_new'
                        WHEN 'delete' THEN 'REFERENCING OLD TABLE AS __pgt_old'
                        WHEN 'update' THEN 'REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new' ELSE '' END,
            CASE t.part WHEN 'begin' THEN format('pgtrickle._begin_immediate(%L)', pgt_id)
                        WHEN 'hold' THEN format('pgtrickle_roles.%I()', format('immediate_%s_hold', pgt_id))
                        ELSE format('pgtrickle_roles.%I()', format('immediate_%s_%s', pgt_id, number)) END);
        PERFORM pgtrickle._check_placed(relation, t.name);
        enabled := concat_ws(', ', enabled, format('ENABLE ALWAYS TRIGGER %I', t.name));
    END LOOP;
    -- In one command: after each of them all that has triggers on the table is looked at.
    EXECUTE format('ALTER TABLE ONLY %s %s', target, enabled);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_immediate_triggers(bigint, oid, int, text[], boolean) FROM PUBLIC;


-- For a partitioned source: the transition tables of MERGE lack rows that it moves to another partition, and hold wrong ones. See
-- _count_updates and _see_inserts, which captures do with.
CREATE OR REPLACE FUNCTION pgtrickle._write_immediate_counts(pgt_id bigint, source oid, relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(relation);
    counter text := format('%s_%s', pgt_id, source);
    t record;
BEGIN
    FOR t IN SELECT * FROM pgtrickle._immediate_triggers(pgt_id) n
             WHERE n.part IN ('updates', 'moved') OR n.part IN ('rows', 'inserts') AND relation = source LOOP
        IF t.part = 'rows' THEN
            PERFORM pgtrickle._count_rows(t.name, source, counter, 'pgtrickle._pin()');
        ELSIF t.part = 'inserts' THEN
            PERFORM pgtrickle._see_inserts(t.name, source, 'pgtrickle._pin()');
        ELSE
            EXECUTE format('CREATE OR REPLACE TRIGGER %I %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %s', t.name,
                CASE t.part WHEN 'moved' THEN 'AFTER UPDATE' ELSE 'BEFORE UPDATE' END, target,
                CASE t.part WHEN 'moved' THEN 'REFERENCING OLD TABLE AS __pgt_old' ELSE '' END,
                CASE t.part WHEN 'moved' THEN format('pgtrickle._check_moved(%L, %L)', counter, source)
                            ELSE format('pgtrickle._begin_moving(%L)', counter) END);
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', target, t.name);
        END IF;
        PERFORM pgtrickle._check_placed(relation, t.name);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_immediate_counts(bigint, oid, oid) FROM PUBLIC;

-- The functions of these triggers: their arguments are the counter and the OID of the source.
CREATE OR REPLACE FUNCTION pgtrickle._begin_moving() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._begin_update(tg_argv[0]);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._check_moved() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._check_updated(tg_argv[0], tg_argv[1]::oid, (SELECT count(*) FROM __pgt_old));
    RETURN NULL;
END $$;


-- Lock what maintains a stream table, but for some triggers, as dropping it does: its tables, and then the table of its own. At once, since
-- DROP TRIGGER begins with a weaker lock, and two of them deadlock.
CREATE OR REPLACE FUNCTION pgtrickle._lock_immediate(pgt_id bigint, kept name[] DEFAULT '{}', but_for oid[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT DISTINCT g.tgrelid FROM pgtrickle._placed_immediate(pgt_id, kept, but_for) g ORDER BY 1 LOOP
        CONTINUE WHEN pgtrickle._qualified(t.tgrelid) IS NULL;  -- it has been dropped meanwhile
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', pgtrickle._qualified(t.tgrelid));
    END LOOP;
    IF to_regclass(format('pgtrickle_changes.%I', 'immediate_' || pgt_id)) IS NOT NULL THEN
        EXECUTE format('LOCK TABLE pgtrickle_changes.%I IN ACCESS EXCLUSIVE MODE', 'immediate_' || pgt_id);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._lock_immediate(bigint, name[], oid[]) FROM PUBLIC;

-- The triggers of a stream table that there are, but for some on some tables.
CREATE OR REPLACE FUNCTION pgtrickle._placed_immediate(pgt_id bigint, kept name[], but_for oid[], OUT tgrelid oid, OUT tgname name)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.tgrelid, g.tgname FROM pg_trigger g
    WHERE g.tgname IN (SELECT n.name FROM pgtrickle._immediate_triggers(pgt_id) n) AND g.tgparentid = 0
      AND NOT (g.tgname = ANY (kept) AND g.tgrelid = ANY (but_for))
    ORDER BY 1, 2
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._placed_immediate(bigint, name[], oid[]) FROM PUBLIC;


-- Remove what maintains a stream table, but for some triggers. Locks the tables of the others.
CREATE OR REPLACE FUNCTION pgtrickle._drop_immediate(pgt_id bigint, kept name[] DEFAULT '{}', but_for oid[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    PERFORM pgtrickle._lock_immediate(pgt_id, kept, but_for);
    FOR t IN SELECT * FROM pgtrickle._placed_immediate(pgt_id, kept, but_for) LOOP
        CONTINUE WHEN pgtrickle._qualified(t.tgrelid) IS NULL;
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', t.tgname, pgtrickle._qualified(t.tgrelid));
    END LOOP;
    FOR t IN SELECT p.oid::regprocedure AS signature FROM pg_proc p
             WHERE p.pronamespace IN ('pgtrickle_changes'::regnamespace, 'pgtrickle_roles'::regnamespace)
               AND p.proname ~ format('^immediate_%s_', pgt_id)
               AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgfoid = p.oid) LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS %s', t.signature);
    END LOOP;
    IF to_regclass(format('pgtrickle_changes.%I', 'immediate_' || pgt_id)) IS NOT NULL THEN
        EXECUTE format('DROP TABLE IF EXISTS pgtrickle_changes.%I', 'immediate_' || pgt_id);
    END IF;
    DELETE FROM pgtrickle.pgt_immediate i WHERE i.pgt_id = _drop_immediate.pgt_id;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_immediate(bigint, name[], oid[]) FROM PUBLIC;


-- The numbers of stream tables that have triggers, and are neither maintained by them nor just about to be.
CREATE OR REPLACE FUNCTION pgtrickle._unused_immediate() RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.pgt_id
    FROM pg_proc p CROSS JOIN LATERAL (SELECT split_part(p.proname, '_', 2)::bigint) AS f(pgt_id)
    WHERE p.pronamespace = 'pgtrickle_changes'::regnamespace AND p.proname ~ '^immediate_[0-9]+_left$'
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_immediate i WHERE i.pgt_id = f.pgt_id)
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_definitions s
                      WHERE s.pgt_id = f.pgt_id AND s.requested_mode = 'IMMEDIATE' AND s.status = 'ACTIVE' AND s.fallback_reason IS NULL)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._unused_immediate() FROM PUBLIC;


-- Remove what these have. Where a table is busy for longer than a moment it is left for the next time, so that a writer who waits for what
-- is locked already is not the one who has to give way; and whoever had it locked may have made
-- the stream table IMMEDIATE meanwhile.
CREATE OR REPLACE FUNCTION pgtrickle._drop_unused_immediate() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    unused bigint;
BEGIN
    FOR unused IN SELECT * FROM pgtrickle._unused_immediate() LOOP
        BEGIN
            PERFORM pgtrickle._lock_immediate(unused);
            IF unused IN (SELECT * FROM pgtrickle._unused_immediate()) THEN
                PERFORM pgtrickle._drop_immediate(unused);
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            RETURN;
        WHEN undefined_table THEN
            NULL;  -- another one that removes them was faster
        END;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_unused_immediate() FROM PUBLIC;


-- Have triggers maintain a stream table from now on: {"lock", "sources": [{"oid", "number", "columns", "body"}], "left", "hold"} are the
-- bodies of functions, which run with the rights of its owner, {"formats", "many"} what settings they need. The caller has locked the sources, and the stream table holds what
-- its query gives. Its sources are no longer captured for it: who looks after captures ends those that nobody needs, in a transaction that
-- has no lock on them yet. A stronger lock than the one held here could deadlock with whoever creates another stream table.
CREATE OR REPLACE FUNCTION pgtrickle._install_immediate(pgt_id bigint, program jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    owner oid := pgtrickle._owner_of(pgt_id);
    holds boolean := program->>'lock' = 'whole';
    planning CONSTANT text := pgtrickle._planning_clauses() || 'SET enable_mergejoin = off SET jit = off';
    relations CONSTANT oid[] := ARRAY(SELECT r.relation FROM pgtrickle._immediate_relations(pgt_id) r ORDER BY 1);
    relation oid;
    s record;
BEGIN
    PERFORM pgtrickle._check_immediate(pgt_id);
    IF NOT (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = current_user) THEN
        LOCK TABLE pgtrickle.pgt_role_functions_lock IN EXCLUSIVE MODE;
    END IF;
    -- What stays is replaced, which locks no reader of the sources out.
    PERFORM pgtrickle._drop_immediate(
        pgt_id, ARRAY(SELECT t.name FROM pgtrickle._immediate_triggers(pgt_id) t), relations);
    PERFORM pgtrickle._write_immediate_table(pgt_id, program->'sources', owner);
    PERFORM pgtrickle._write_immediate_function(format('immediate_%s_left', pgt_id), 'void', program->>'left', owner, planning);
    PERFORM pgtrickle._write_immediate_function(format('immediate_%s_hold', pgt_id), 'trigger', program->>'hold', owner, pgtrickle._rights_clauses());
    FOR s IN SELECT (e->>'oid')::oid AS source, (e->>'number')::int AS number, e->>'body' AS body,
                    ARRAY(SELECT jsonb_array_elements_text(e->'columns')) AS columns
             FROM jsonb_array_elements(program->'sources') AS e ORDER BY 1 LOOP
        IF NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d
                       WHERE d.pgt_id = pgt_id AND d.source_relid = s.source AND d.source_type <> 'VIEW') THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('stream table with ID %s does not read %s', pgt_id, s.source);
        END IF;
        PERFORM pgtrickle._write_immediate_function(
            format('immediate_%s_%s', pgt_id, s.number), 'trigger', s.body, owner,
            CASE WHEN (program->>'formats')::boolean THEN pgtrickle._pinned_clauses() ELSE pgtrickle._rights_clauses() END
            || CASE WHEN NOT holds THEN ''
                    WHEN (program->>'many')::boolean THEN planning ELSE 'SET enable_mergejoin = off SET jit = off' END);
        FOREACH relation IN ARRAY pgtrickle._relations(s.source) LOOP
            PERFORM pgtrickle._write_immediate_triggers(pgt_id, relation, s.number, s.columns, holds);
            IF (SELECT c.relkind FROM pg_class c WHERE c.oid = s.source) = 'p' THEN
                PERFORM pgtrickle._write_immediate_counts(pgt_id, s.source, relation);
            END IF;
        END LOOP;
    END LOOP;
    UPDATE pgtrickle.pgt_dependencies d SET cdc_mode = NULL, slot_name = NULL, capture_generation = NULL WHERE d.pgt_id = pgt_id;
    UPDATE pgtrickle.pgt_definitions d
    SET refresh_mode = 'IMMEDIATE', schedule = NULL, fallback_reason = NULL, updated_at = clock_timestamp()
    WHERE d.pgt_id = pgt_id;
    -- What the triggers have counted in this transaction that were there before.
    PERFORM set_config('pgtrickle.begun_' || pgt_id, '', true), set_config('pgtrickle.left_' || pgt_id, '', true);
    INSERT INTO pgtrickle.pgt_immediate (pgt_id, state, lock, relations)
    SELECT pgt_id, pgtrickle._immediate_state(pgt_id, pgtrickle._types_mentioned(pgt_id)), program->>'lock', relations || d.pgt_relid
    FROM pgtrickle.pgt_definitions d WHERE d.pgt_id = pgt_id;
END $$;


-- Have a stream table no longer be maintained by triggers. It is computed anew when it is next refreshed.
CREATE OR REPLACE FUNCTION pgtrickle._end_immediate(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    UPDATE pgtrickle.pgt_definitions d SET needs_reinit = true, updated_at = clock_timestamp()
    WHERE d.pgt_id = _end_immediate.pgt_id AND d.refresh_mode = 'IMMEDIATE';
END $$;


-- Have the triggers of a stream table do nothing from now on. They stay where they are: their tables may be locked by others.
CREATE OR REPLACE FUNCTION pgtrickle._disarm_immediate(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS signature FROM pg_proc p
             WHERE p.pronamespace = 'pgtrickle_roles'::regnamespace AND p.proname ~ format('^immediate_%s_([0-9]+|hold)$', pgt_id) LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION %s RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                       'SET search_path = pg_catalog, pg_temp AS %L', f.signature, 'BEGIN RETURN NULL; END');
    END LOOP;
    DELETE FROM pgtrickle.pgt_immediate i WHERE i.pgt_id = _disarm_immediate.pgt_id;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._disarm_immediate(bigint) FROM PUBLIC;


-- The same of one that is as it should be, whose sources the caller has locked: what is captured of them from then on is what it lacks. False
-- where it must be computed anew.
CREATE OR REPLACE FUNCTION pgtrickle._release_immediate(pgt_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_definitions d
                   WHERE d.pgt_id = _release_immediate.pgt_id AND d.refresh_mode = 'IMMEDIATE' AND d.is_populated AND NOT d.needs_reinit)
       OR pgtrickle._immediate_gap(pgt_id) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pgtrickle._disarm_immediate(pgt_id);
    UPDATE pgtrickle.pgt_definitions d
    SET refresh_mode = 'DIFFERENTIAL', updated_at = clock_timestamp(), data_timestamp = clock_timestamp(),
        frontier = pgtrickle._stamped(jsonb_build_object(
            'snapshot', pg_current_snapshot()::text, 'xid', pg_current_xact_id_if_assigned()::text,
            'change_id', (SELECT p.change_position FROM pgtrickle._change_position() p))) || jsonb_build_object('at', clock_timestamp())
    WHERE d.pgt_id = _release_immediate.pgt_id;
    RETURN true;
END $$;


-- What cannot be maintained as it is, since something else has become of its sources, is refreshed by the server until it can be
-- maintained again.
CREATE OR REPLACE FUNCTION pgtrickle._leave_immediate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._disarm_immediate(OLD.pgt_id);
    IF tg_op = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.refresh_mode := 'DIFFERENTIAL';
    NEW.needs_reinit := true;
    RETURN NEW;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._leave_immediate() FROM PUBLIC;
CREATE OR REPLACE TRIGGER leave_immediate BEFORE UPDATE ON pgtrickle.pgt_definitions FOR EACH ROW
    WHEN (OLD.refresh_mode = 'IMMEDIATE' AND NEW.refresh_mode = 'IMMEDIATE' AND (NEW.needs_reinit OR NEW.status <> 'ACTIVE'))
    EXECUTE FUNCTION pgtrickle._leave_immediate();
CREATE OR REPLACE TRIGGER drop_immediate BEFORE DELETE ON pgtrickle.pgt_definitions FOR EACH ROW
    WHEN (OLD.refresh_mode = 'IMMEDIATE')
    EXECUTE FUNCTION pgtrickle._leave_immediate();


-- For the functions of a stream table: raise what has gone wrong, and undo the statement that has changed a source.
CREATE OR REPLACE FUNCTION pgtrickle._raise_missing(pgt_id bigint, missing bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._raise('XX001', format('%s rows are missing in stream table "%s"', missing,
                                             (SELECT s.pgt_name FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _raise_missing.pgt_id)),
                             'It is not what its query gives, so the change of a table that it reads cannot be applied to it.',
                             'pgtrickle.refresh_stream_table() computes it anew.');
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._raise_collision(pgt_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._raise('XX001', format('two rows of stream table "%s" have one "__pgt_row_id"',
                                             (SELECT s.pgt_name FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _raise_collision.pgt_id)),
                             NULL, 'pgtrickle.refresh_stream_table() tells them apart.');
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._raise_serialization() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'could not serialize access due to concurrent update';
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._raise_miscounted(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._raise('55000', format('changes of this transaction were not applied to stream table "%s"',
                                             (SELECT s.pgt_name FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _raise_miscounted.pgt_id)),
                             format('The setting "pgtrickle.begun_%s" counts the statements that are under way.', pgt_id),
                             format('Do not set "pgtrickle.begun_%s" or "pgtrickle.left_%s".', pgt_id, pgt_id));
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._raise_left_behind() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._raise('42501', 'a function in the query changes the search_path of the session', NULL,
                             'Functions in a defining query must have no effects.');
END $$;


-- Count the rounds of a recursion: conditions that mention no row, of which PostgreSQL looks at the second one once in each round. For
-- that they may not be VOLATILE, though they do not give the same answer each time. The last round is the one that finds nothing.
CREATE OR REPLACE FUNCTION pgtrickle._begin_rounds(recursion text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('pgtrickle.rounds_' || recursion, '0', true);
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._next_round(recursion text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    counter CONSTANT text := 'pgtrickle.rounds_' || recursion;
    rounds CONSTANT bigint := coalesce(nullif(current_setting(counter, true), ''), '0')::bigint + 1;
    most CONSTANT bigint := pgtrickle._setting('pg_trickle.ivm_recursive_max_depth', '100')::bigint;
BEGIN
    IF most > 0 AND rounds > most + 1 THEN
        PERFORM pgtrickle._raise('54000', format('the statement changes a recursion to a depth of more than %s', most),
            'An IMMEDIATE stream table follows it within the statement. UNION ALL has no end where the data have a cycle.',
            'Where they are only deep, SET pg_trickle.ivm_recursive_max_depth higher, or 0 for no limit. For data with '
            'cycles write the query with UNION, or with CYCLE.');
    END IF;
    PERFORM set_config(counter, rounds::text, true);
    RETURN true;
END $$;


-- Those whose owners have lost what it takes to be maintained by triggers: these would fail, and with them every statement that changes a
-- source. What somebody else has locked is left for the next time, unless it is waited for.
CREATE OR REPLACE FUNCTION pgtrickle._leave_immediate_without_rights(waits boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
    complete boolean := true;
BEGIN
    FOR s IN
        SELECT m.pgt_id FROM pgtrickle.pgt_definitions m
        WHERE m.refresh_mode = 'IMMEDIATE' AND NOT m.needs_reinit AND (
            pgtrickle._why_not_immediate(m.pgt_id) IS NOT NULL
            OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d
                       WHERE d.pgt_id = m.pgt_id AND d.source_type = 'VIEW'
                         AND NOT has_any_column_privilege(m.pgt_owner, d.source_relid, 'SELECT')))
        ORDER BY m.pgt_id
    LOOP
        IF NOT waits THEN
            PERFORM FROM pgtrickle.pgt_definitions m WHERE m.pgt_id = s.pgt_id FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                complete := false;
                CONTINUE;
            END IF;
        END IF;
        UPDATE pgtrickle.pgt_definitions m SET needs_reinit = true, updated_at = clock_timestamp() WHERE m.pgt_id = s.pgt_id;
    END LOOP;
    RETURN complete;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._leave_immediate_without_rights(boolean) FROM PUBLIC;
