-- Change capture: for each source a buffer and statement-level triggers that fill it.
--
-- A buffer row is one row image: "__pgt_w" is 1 for a row that came, -1 for one that went, 0 for TRUNCATE. It carries
-- the transaction that wrote it and the number of the statement. Only columns that somebody needs are kept.
--
-- Locks are taken in one order: that of the source (15_locks.sql), the source with its children, the buffer.

DROP FUNCTION IF EXISTS pgtrickle._source_lock_class();  -- of an earlier version, which used advisory locks
DROP FUNCTION IF EXISTS pgtrickle._source_lock_key(oid);


-- Names of the triggers of a source, by what they capture.
CREATE OR REPLACE FUNCTION pgtrickle._capture_triggers(source oid, OUT event text, OUT name text) RETURNS SETOF record
LANGUAGE sql IMMUTABLE ROWS 4 SET search_path = pg_catalog, pg_temp AS $$
    VALUES ('INSERT', 'pg_trickle_cdc_ins_' || source), ('UPDATE', 'pg_trickle_cdc_upd_' || source),
           ('DELETE', 'pg_trickle_cdc_del_' || source), ('TRUNCATE', 'pg_trickle_cdc_truncate_' || source)
$$;


-- Identity of the triggers that are in force on some relations of a source. A trigger that was disabled and enabled
-- again has a new row version, and so another identity: what happened in between was not captured. Of a source that is captured
-- from the write-ahead log, _wal_state. Where one of the
-- relations is unlogged, "@" and the witness that PostgreSQL has not emptied it since (_witness) follow.
CREATE OR REPLACE FUNCTION pgtrickle._trigger_state(source oid, relations oid[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state text;
    logged boolean;
    by_wal boolean;
BEGIN
    SELECT count(*) || ':' || md5(coalesce(string_agg(concat_ws(' ', t.oid, t.xmin, t.tgenabled), ',' ORDER BY t.oid), '')),
           NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (relations) AND c.relpersistence = 'u'),
           EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE k.source_relid = source AND k.mode = 'WAL')
    INTO state, logged, by_wal
    FROM pg_trigger t
    WHERE t.tgrelid = ANY (relations)
      AND t.tgname = ANY (ARRAY['pg_trickle_cdc_ins_' || source, 'pg_trickle_cdc_upd_' || source,
                                'pg_trickle_cdc_del_' || source, 'pg_trickle_cdc_truncate_' || source,
                                'pg_trickle_updates_' || source, '~pg_trickle_count_' || source, '~pg_trickle_insert_' || source]::name[]);
    IF by_wal THEN
        RETURN pgtrickle._wal_state(relations);
    ELSIF logged THEN
        RETURN state;
    ELSIF pg_is_in_recovery() THEN
        RETURN state || '@';  -- a standby has nothing of unlogged tables
    END IF;
    RETURN state || '@' || coalesce((SELECT w.witness::text FROM pgtrickle.pgt_crash_witnesses w WHERE w.source_relid = source), '');
END $$;


DROP FUNCTION IF EXISTS pgtrickle._any_unlogged(oid[]);  -- of an earlier version


-- Write down that a source, which is just locked, has not been emptied by PostgreSQL since now.
CREATE OR REPLACE FUNCTION pgtrickle._witness(source oid, relations oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (relations) AND c.relpersistence = 'u') THEN
        INSERT INTO pgtrickle.pgt_crash_witnesses (source_relid) VALUES (source)
        ON CONFLICT (source_relid) DO UPDATE SET witness = excluded.witness;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._witness(oid, oid[]) FROM PUBLIC;


-- How a captured column is read from a transition table with the given alias. A virtual generated column is NULL there:
-- PostgreSQL computes it for relations only, so its expression is used.
CREATE OR REPLACE FUNCTION pgtrickle._captured_value(source oid, column_name text, alias text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN a.attgenerated = 'v'
                THEN format('(%s)', (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                                     WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum))
                ELSE format('%I.%I', alias, column_name) END
    FROM pg_attribute a
    WHERE a.attrelid = source AND a.attname = column_name AND a.attnum > 0 AND NOT a.attisdropped
$$;


-- The value, which must be of the model's type: with any other this is an error, and not a cast. What is stored where a cast
-- could come about would be converted by a function of a user's, with the rights of whoever stores it. (PostgreSQL puts the
-- value in the place of the call, which costs nothing: so no search_path is pinned.)
CREATE OR REPLACE FUNCTION pgtrickle._of_type(model anyelement, value anyelement) RETURNS anyelement
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT value
$$;


-- What captured columns are that _of_type cannot know: MD5 of their types, domains among them, and of the expressions of
-- virtual ones.
CREATE OR REPLACE FUNCTION pgtrickle._captured_form(source oid, columns text[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(string_agg(concat_ws(' ', a.attname, a.atttypid, pgtrickle._captured_value(source, a.attname, 'n')),
                          ',' ORDER BY a.attname))
    FROM pg_attribute a
    WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attnum > 0 AND NOT a.attisdropped
$$;


-- Raises 55000 if captured columns are not any more what the trigger functions were written for. (They cannot change while a
-- statement changes the source's rows.)
CREATE OR REPLACE FUNCTION pgtrickle._check_form(source oid, columns text[], form text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF form IS DISTINCT FROM pgtrickle._captured_form(source, columns) THEN
        PERFORM pgtrickle._raise('55000', format('columns of "%s" have changed, whose changes are captured', pgtrickle._qualified(source)),
                                 NULL, 'The next refresh of a stream table that reads it captures them as they are now.');
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_form(oid, text[], text) FROM PUBLIC;


-- (Re)write the four trigger functions of a source for the given columns. The bodies hold no operator and no
-- unqualified name (transition tables come before any relation), so no search_path need be pinned at every call; it is
-- where expressions of virtual columns bring operators in. No value is converted on its way to the buffer: it is of the
-- buffer's type (_of_type), or of a domain over it or computed (_check_form). Number and transaction are asked for by
-- subqueries that run once, and only if there are rows. An update is two statements, since one over both images costs more
-- for each row.
--
-- (The bodies are not checked when they are written: that reads each of them once more.)
CREATE OR REPLACE FUNCTION pgtrickle._write_capture_functions(source oid, columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET check_function_bodies = off AS $$
DECLARE
    targets text;
    old_values text;
    new_values text;
    number text := 'pg_catalog.nextval(''pgtrickle_changes.change_id_seq''::pg_catalog.regclass)';
    same_number text;
    xid text := '(SELECT pg_catalog.pg_current_xact_id())';
    into_buffer text;
    pinned text := '';
    checked_form text := '';
    begun text := format(E'IF tg_when OPERATOR(pg_catalog.=) ''BEFORE'' THEN\n        PERFORM pgtrickle._begin_update(%L);\n'
                         '        RETURN NULL;\n    END IF;\n    ', source);
    checked text := format(E';\n    PERFORM pgtrickle._check_updated(%L, %L, (SELECT pg_catalog.count(*) FROM __pgt_old))', source, source);
    counted boolean := (SELECT c.relkind FROM pg_class c WHERE c.oid = source) = 'p';
    unlike boolean;
    virtual boolean;
    names text;
    r record;
BEGIN
    SELECT coalesce(string_agg(format(', %I', c.name), '' ORDER BY c.place), ''),
           coalesce(string_agg(concat(m.opened, pgtrickle._captured_value(source, c.name, 'o'), m.closed), '' ORDER BY c.place), ''),
           coalesce(string_agg(concat(m.opened, pgtrickle._captured_value(source, c.name, 'n'), m.closed), '' ORDER BY c.place), ''),
           bool_or(m.closed IS NULL), bool_or(a.attgenerated = 'v')
    INTO targets, old_values, new_values, unlike, virtual
    FROM unnest(columns) WITH ORDINALITY AS c(name, place)
    JOIN pg_attribute a ON a.attrelid = source AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    CROSS JOIN LATERAL (
        SELECT ', ' AS opened, NULL AS closed WHERE a.attgenerated = 'v' OR t.typtype = 'd'
        UNION ALL
        SELECT format(', pgtrickle._of_type((NULL::pgtrickle_changes.%I).%I, ', 'changes_' || source, c.name), ')'
        WHERE a.attgenerated <> 'v' AND t.typtype <> 'd') AS m;
    into_buffer := format('INSERT INTO pgtrickle_changes.%I ("__pgt_change_id", "__pgt_xid", "__pgt_w"%s)',
                          'changes_' || source, targets);
    -- FOUND by its full name, which no column can take from it: whether there was an old image, which had its number.
    same_number := format('CASE WHEN %I.found THEN pg_catalog.currval(''pgtrickle_changes.change_id_seq''::pg_catalog.regclass) '
                          'ELSE %s END', 'pg_trickle_cdc_upd_' || source, number);
    IF virtual THEN
        pinned := 'SET search_path = pg_catalog, pg_temp';
    END IF;
    IF unlike THEN
        checked_form := format(E'PERFORM pgtrickle._check_form(%L, %L, %L);\n    ', source, columns,
                               pgtrickle._captured_form(source, columns));
    END IF;
    FOR r IN
        SELECT t.event, t.name, CASE t.event
            WHEN 'INSERT' THEN format('%s%s SELECT (SELECT %s), %s, 1::pg_catalog.int2%s FROM __pgt_new n', checked_form,
                                      into_buffer, number, xid, new_values)
            WHEN 'DELETE' THEN format('%s%s SELECT (SELECT %s), %s, (-1)::pg_catalog.int2%s FROM __pgt_old o', checked_form,
                                      into_buffer, number, xid, old_values)
            WHEN 'UPDATE' THEN format(E'%s%s SELECT (SELECT %s), %s, (-1)::pg_catalog.int2%s FROM __pgt_old o;\n    '
                                      '%s SELECT (SELECT %s), %s, 1::pg_catalog.int2%s FROM __pgt_new n%s',
                                      concat(CASE WHEN counted THEN begun END, checked_form), into_buffer, number, xid, old_values,
                                      into_buffer, same_number, xid, new_values, CASE WHEN counted THEN checked END)
            ELSE format('INSERT INTO pgtrickle_changes.%I ("__pgt_change_id", "__pgt_w") '
                        'VALUES (%s, 0::pg_catalog.int2)', 'changes_' || source, number)
            END AS statement
        FROM pgtrickle._capture_triggers(source) t
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION pgtrickle_changes.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s AS %L',
            r.name, pinned, format(E'#variable_conflict use_column\nBEGIN\n    %s;\n    RETURN NULL;\nEND', r.statement));
        names := concat_ws(', ', names, format('pgtrickle_changes.%I()', r.name));
    END LOOP;
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', names);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_capture_functions(oid, text[]) FROM PUBLIC;


-- MERGE leaves rows that it moves to another partition out of the transition tables of its updates (up to PostgreSQL 18).
-- So the updates of a partitioned source are counted row by row, for _check_updated to compare. These triggers begin a count
-- for each statement, within others, and add to it: that is done by a condition, which takes far less time than a function.
CREATE OR REPLACE FUNCTION pgtrickle._count_updates(source oid, relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(relation);
    begin_name name := 'pg_trickle_updates_' || source;
    row_name name := '~pg_trickle_count_' || source;  -- after others, which may keep a row from being updated
    function_name text := format('pgtrickle_changes.%I()', 'pg_trickle_cdc_upd_' || source);
BEGIN
    EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE UPDATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s',
                   begin_name, target, function_name);
    EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', target, begin_name);
    IF relation = source THEN
        PERFORM pgtrickle._count_rows(row_name, source, source::text, function_name);
        PERFORM pgtrickle._see_inserts('~pg_trickle_insert_' || source, source, function_name);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._count_updates(oid, oid) FROM PUBLIC;

-- Put a trigger on a table and its partitions that adds to a counter for each updated row. Its function is never called.
CREATE OR REPLACE FUNCTION pgtrickle._count_rows(trigger_name name, source oid, counter text, function_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(source);
    counted text := quote_literal('pgtrickle.updated_' || counter);
BEGIN
    EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE UPDATE ON %s FOR EACH ROW WHEN (set_config(%s, '
                   '(coalesce(nullif(current_setting(%s, true), %L), %L)::bigint + 1)::text, true) IS NULL) '
                   'EXECUTE FUNCTION %s', trigger_name, target, counted, counted, '', '0', function_name);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', target, trigger_name);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._count_rows(name, oid, text, text) FROM PUBLIC;

-- A MERGE that inserts a row into a partition and then updates another one has the inserted row in the transition table of its
-- updates, in place of the updated one (up to PostgreSQL 18), unless the partition has a trigger for each row that comes before it is
-- inserted. This one does nothing. Its function is never called.
CREATE OR REPLACE FUNCTION pgtrickle._see_inserts(trigger_name name, source oid, function_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(source);
BEGIN
    EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON %s FOR EACH ROW WHEN (false) EXECUTE FUNCTION %s',
                   trigger_name, target, function_name);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', target, trigger_name);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._see_inserts(name, oid, text) FROM PUBLIC;

-- A statement begins to update rows: its count begins, and that of the statement around it waits.
DROP FUNCTION IF EXISTS pgtrickle._begin_update(oid), pgtrickle._check_updated(oid, bigint);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._begin_update(counter text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    counted text := 'pgtrickle.updated_' || counter;
    around text := 'pgtrickle.updating_' || counter;
BEGIN
    PERFORM set_config(around, concat(current_setting(counted, true), ' ', current_setting(around, true)), true),
            set_config(counted, '0', true);
END $$;

-- Raises 0A000 if a statement has updated more rows of a partitioned source than its transition tables have.
CREATE OR REPLACE FUNCTION pgtrickle._check_updated(counter text, source oid, captured bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    counted text := 'pgtrickle.updated_' || counter;
    around text := 'pgtrickle.updating_' || counter;
    outer_counts text := current_setting(around, true);
BEGIN
    IF nullif(current_setting(counted, true), '')::bigint > captured THEN
        PERFORM pgtrickle._raise('0A000', format('MERGE that moves rows of "%s" to other partitions is not supported',
            pgtrickle._qualified(source)), 'Changes of the table are captured, and PostgreSQL does not tell triggers of these.',
            'Use UPDATE, or DELETE and INSERT.');
    END IF;
    PERFORM set_config(counted, split_part(outer_counts, ' ', 1), true),
            set_config(around, substr(outer_counts, strpos(outer_counts, ' ') + 1), true);
END $$;

-- What an earlier version captures without these triggers is captured anew.
UPDATE pgtrickle.pgt_captures c SET trigger_state = '' FROM pg_catalog.pg_class r
WHERE r.oid = c.source_relid AND r.relkind = 'p' AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = r.oid AND t.tgname = ('~pg_trickle_insert_' || r.oid)::name);


-- After a trigger was put on a relation by its name, which can be another's meanwhile: the schema may have been renamed,
-- which no lock on the table prevents. Raises 40001 unless the trigger has come to that relation in this transaction's view.
CREATE OR REPLACE FUNCTION pgtrickle._check_placed(relation oid, trigger_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = relation AND t.tgname = trigger_name) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('relation with OID %s was renamed meanwhile', relation);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_placed(oid, text) FROM PUBLIC;


-- Put the triggers of a source on one of its relations, in force whatever session_replication_role says.
CREATE OR REPLACE FUNCTION pgtrickle._write_capture_triggers(source oid, relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
    target text := pgtrickle._qualified(relation);
    enabled text;
BEGIN
    FOR t IN SELECT * FROM pgtrickle._capture_triggers(source) LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s %s FOR EACH STATEMENT '
                       'EXECUTE FUNCTION pgtrickle_changes.%I()', t.name, t.event, target,
                       CASE t.event WHEN 'INSERT' THEN 'REFERENCING NEW TABLE AS __pgt_new'
                                    WHEN 'DELETE' THEN 'REFERENCING OLD TABLE AS __pgt_old'
                                    WHEN 'UPDATE' THEN 'REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new'
                                    ELSE '' END, t.name);
        PERFORM pgtrickle._check_placed(relation, t.name);
        enabled := concat_ws(', ', enabled, format('ENABLE ALWAYS TRIGGER %I', t.name));
    END LOOP;
    EXECUTE format('ALTER TABLE ONLY %s %s', target, enabled);  -- one statement: event triggers follow each
    IF (SELECT c.relkind FROM pg_class c WHERE c.oid = source) = 'p' THEN
        PERFORM pgtrickle._count_updates(source, relation);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_capture_triggers(oid, oid) FROM PUBLIC;


-- Put the triggers of a source, which is just locked, on all its relations.
CREATE OR REPLACE FUNCTION pgtrickle._place_capture_triggers(source oid, relations oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._witness(source, relations);
    PERFORM pgtrickle._write_capture_triggers(source, relation) FROM unnest(relations) AS relation;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._place_capture_triggers(oid, oid[]) FROM PUBLIC;


-- Never runs: the function of the trigger that pins captured columns.
CREATE OR REPLACE FUNCTION pgtrickle._pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NULL;
END $$;


-- Where no event trigger can follow DDL, keep captured columns from being dropped or retyped, which would make every
-- write to the table fail: a disabled trigger ON UPDATE OF those columns depends on them, as a view would.
CREATE OR REPLACE FUNCTION pgtrickle._pin_columns(source oid, columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(source);
    pin name := 'pg_trickle_pin_' || source;
BEGIN
    IF cardinality(columns) > 0 AND NOT EXISTS (
        SELECT FROM pg_event_trigger e WHERE e.evtname = 'pg_trickle_ddl_tracker' AND e.evtenabled <> 'D'
    ) THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE UPDATE OF %s ON %s FOR EACH STATEMENT '
                       'EXECUTE FUNCTION pgtrickle._pin()', pin,
                       (SELECT string_agg(quote_ident(name), ', ') FROM unnest(columns) AS name), target);
        EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER %I', target, pin);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._pin_columns(oid, text[]) FROM PUBLIC;


-- Make the buffer of a source hold the given columns with their present types. A column whose type has changed is
-- replaced: nobody can use what it holds. Raises 40001 where the name of a type has become that of another one meanwhile, whose
-- casts and checks would have the server's rights. Where a session wants its new tables to be is no matter: it might not be
-- allowed to.
CREATE OR REPLACE FUNCTION pgtrickle._write_buffer(source oid, columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    buffer_name text := 'changes_' || source;
    buffer oid := to_regclass('pgtrickle_changes.' || buffer_name)::oid;
    changes text[];
    c record;
BEGIN
    IF buffer IS NULL THEN
        EXECUTE format('CREATE TABLE pgtrickle_changes.%I ("__pgt_change_id" bigint NOT NULL, '
                       '"__pgt_xid" xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(), "__pgt_w" smallint NOT NULL)',
                       buffer_name);
        EXECUTE format('COMMENT ON TABLE pgtrickle_changes.%I IS %L', buffer_name,
                       'Changes of ' || pgtrickle._qualified(source) || ' for stream tables.');
        buffer := to_regclass('pgtrickle_changes.' || buffer_name)::oid;
    END IF;
    FOR c IN
        SELECT a.attname,
               pgtrickle._base_type(a.atttypid, a.atttypmod)
               || coalesce((SELECT format(' COLLATE %I.%I', n.nspname, l.collname)
                            FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace
                            WHERE l.oid = a.attcollation AND l.collname <> 'default'), '') AS type,
               b.attname IS NOT NULL AS present,
               pgtrickle._buffer_fits(source, ARRAY[u.name]) AS unchanged
        FROM unnest(columns) WITH ORDINALITY AS u(name, place)
        JOIN pg_attribute a ON a.attrelid = source AND a.attname = u.name AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attribute b ON b.attrelid = buffer AND b.attname = u.name AND NOT b.attisdropped
        ORDER BY u.place
    LOOP
        IF c.present AND NOT c.unchanged THEN
            changes := changes || format('DROP COLUMN %I', c.attname);
        END IF;
        IF NOT c.present OR NOT c.unchanged THEN
            changes := changes || format('ADD COLUMN %I %s', c.attname, c.type);
        END IF;
    END LOOP;
    IF changes IS NOT NULL THEN
        EXECUTE format('ALTER TABLE pgtrickle_changes.%I %s', buffer_name, array_to_string(changes, ', '));
        IF NOT pgtrickle._buffer_fits(source, columns) THEN
            RAISE EXCEPTION USING ERRCODE = '40001',
                MESSAGE = format('types of columns of "%s" were renamed meanwhile', pgtrickle._qualified(source));
        END IF;
        PERFORM pgtrickle._keep_out_of_statistics(buffer);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._write_buffer(oid, text[]) FROM PUBLIC;


-- Whether the buffer of a source holds the given columns with their present types.
CREATE OR REPLACE FUNCTION pgtrickle._buffer_fits(source oid, columns text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (
        SELECT FROM pg_attribute a
        CROSS JOIN LATERAL pgtrickle._below_domains(a.atttypid, a.atttypmod) AS t
        LEFT JOIN pg_attribute b ON b.attrelid = to_regclass('pgtrickle_changes.changes_' || source)
                                AND b.attname = a.attname AND NOT b.attisdropped
        WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (columns)
          AND (b.atttypid, b.atttypmod, b.attcollation) IS DISTINCT FROM (t.typid, t.typmod, a.attcollation))
$$;

-- Buffers that an earlier version has made.
SELECT pgtrickle._keep_out_of_statistics(c.oid) FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'pgtrickle_changes'::pg_catalog.regnamespace AND c.relkind = 'r';


-- Those of some captured columns of a source that it still has, and that the buffer can hold.
CREATE OR REPLACE FUNCTION pgtrickle._capturable(source oid, columns text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(SELECT c.name FROM unnest(columns) WITH ORDINALITY AS c(name, place)
                 JOIN pg_attribute a ON a.attrelid = source AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped
                 WHERE pgtrickle._buffer_fits(source, ARRAY[c.name]) ORDER BY c.place)
$$;


-- What an earlier version of this file captures with is brought up to date. Where columns have changed a repair follows.
SELECT pgtrickle._write_capture_functions(c.source_relid, pgtrickle._capturable(c.source_relid, c.captured_columns))
FROM pgtrickle.pgt_captures c JOIN pg_catalog.pg_class r ON r.oid = c.source_relid
WHERE to_regclass('pgtrickle_changes.changes_' || c.source_relid) IS NOT NULL;


-- Whether a role can read what it needs of a buffer.
CREATE OR REPLACE FUNCTION pgtrickle._buffer_granted(source oid, owner oid, columns text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (
        SELECT FROM unnest(columns || ARRAY['__pgt_change_id', '__pgt_xid', '__pgt_w']) AS name
        WHERE NOT has_column_privilege(owner, 'pgtrickle_changes.' || quote_ident('changes_' || source), name, 'SELECT'))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._buffer_granted(oid, oid, text[]) FROM PUBLIC;


-- Let a role read what it needs of a buffer. Writers of one relation's grants must not meet: they are put in a queue.
CREATE OR REPLACE FUNCTION pgtrickle._grant_buffer(source oid, owner oid, columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgtrickle._buffer_granted(source, owner, columns) THEN
        PERFORM pgtrickle._lock_privileges(source);
        EXECUTE format('GRANT SELECT (%s) ON pgtrickle_changes.%I TO %I',
                       (SELECT string_agg(quote_ident(name), ', ')
                        FROM unnest(columns || ARRAY['__pgt_change_id', '__pgt_xid', '__pgt_w']) AS name),
                       'changes_' || source, (SELECT rolname FROM pg_roles WHERE oid = owner));
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._grant_buffer(oid, oid, text[]) FROM PUBLIC;


-- Whether a role has a stream table over a source, or follows it.
CREATE OR REPLACE FUNCTION pgtrickle._is_reader(role oid, source oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s USING (pgt_id)
                   WHERE d.source_relid = source AND s.pgt_owner = role)
        OR EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u WHERE u.source_relid = source AND u.reader = role)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._is_reader(oid, oid) FROM PUBLIC;


-- Take buffers from roles that may not read them any more: whoever has no stream table over the source left and does not
-- follow it, or has lost the right to read these columns of it, or has row-level security in the way. Returns whether
-- nothing was left for the next time, since somebody is just starting to read the buffer or, unless it `waits`, since somebody
-- else is changing the privileges.
--
-- Who revokes stands in the way of others until the transaction ends: a session of a client's does so for sources that it
-- may lock, and where a right was lost; the engine for all, where nobody is just starting to read the buffer.
DROP FUNCTION IF EXISTS pgtrickle._revoke_buffers();  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._revoke_buffers(waits boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_engine CONSTANT boolean := pgtrickle._caller() = to_regrole(quote_ident(current_user))::oid;
    complete boolean := true;
    g record;
BEGIN
    IF current_setting('pgtrickle.revoking', true) = 'on' THEN
        RETURN true;  -- called by the event trigger of its own REVOKE
    END IF;
    FOR g IN
        SELECT k.source_relid AS source, r.oid AS role, r.rolname, o.lost, string_agg(quote_ident(a.attname), ', ') AS columns
        FROM pgtrickle.pgt_captures k
        JOIN pg_attribute a ON a.attrelid = to_regclass('pgtrickle_changes.changes_' || k.source_relid)
                           AND NOT a.attisdropped AND a.attacl IS NOT NULL
        CROSS JOIN aclexplode(a.attacl) AS e
        JOIN pg_roles r ON r.oid = e.grantee
        CROSS JOIN LATERAL (
            SELECT pgtrickle._read_obstacle(e.grantee, coalesce(pgtrickle._copied_from(k.source_relid), k.source_relid), CASE WHEN a.attname ~ '^__pgt_(change_id|xid|w)$'
                                            THEN '{}' ELSE ARRAY[a.attname::text] END) IS NOT NULL AS lost) AS o
        WHERE o.lost
           OR is_engine AND NOT pgtrickle._is_reader(e.grantee, k.source_relid)
        GROUP BY k.source_relid, r.oid, r.rolname, o.lost
        ORDER BY k.source_relid
    LOOP
        CONTINUE WHEN NOT pgtrickle._may_lock(g.source);
        IF g.lost AND waits THEN
            PERFORM pgtrickle._lock_privileges(g.source);
        ELSIF g.lost AND NOT pgtrickle._try_lock_privileges(g.source) OR NOT g.lost AND NOT pgtrickle._own_source(g.source) THEN
            complete := false;
            CONTINUE;
        END IF;
        CONTINUE WHEN NOT g.lost AND pgtrickle._is_reader(g.role, g.source);  -- since it was looked at
        PERFORM set_config('pgtrickle.revoking', 'on', true);
        EXECUTE format('REVOKE SELECT (%s) ON pgtrickle_changes.%I FROM %I', g.columns, 'changes_' || g.source, g.rolname);
        PERFORM set_config('pgtrickle.revoking', '', true);
    END LOOP;
    PERFORM pgtrickle._revoke_copies();
    RETURN complete;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._revoke_buffers(boolean) FROM PUBLIC;
