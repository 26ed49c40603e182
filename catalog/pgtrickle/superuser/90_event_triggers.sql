-- Event triggers: what DDL on sources and storage tables does to stream tables. Only a superuser can create them.
-- Without them a refresh finds out by itself, but a column must not be dropped or retyped while it is captured.


-- After DDL: triggers that maintain a stream table in IMMEDIATE mode do so no longer where it is not what it was made for. What alters
-- a table is about its partitions and children, and those that it has become one of. What is about no table may be about any.
CREATE OR REPLACE FUNCTION pgtrickle._follow_immediate() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    altered oid[];
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_immediate) THEN
        RETURN;
    END IF;
    WITH RECURSIVE above(relid) AS (
        SELECT e.objid FROM pg_event_trigger_ddl_commands() e WHERE e.classid = 'pg_class'::regclass
        UNION
        SELECT h.inhparent FROM above a JOIN pg_inherits h ON h.inhrelid = a.relid)
    SELECT array_agg(r) INTO altered FROM above a, unnest(pgtrickle._relations(a.relid)) AS r;
    PERFORM pgtrickle._mark_immediate(CASE WHEN NOT EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() e
        WHERE e.command_tag IN ('ALTER SCHEMA', 'ALTER TYPE', 'ALTER DOMAIN')) THEN coalesce(altered, '{}') END);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._follow_immediate() FROM PUBLIC;


-- After DROP: the tables that have lost a trigger that maintains a stream table.
CREATE OR REPLACE FUNCTION pgtrickle._lost_triggers() RETURNS oid[]
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(SELECT to_regclass(format('%I.%I', o.address_names[1], o.address_names[2]))::oid
                 FROM pg_event_trigger_dropped_objects() o
                 WHERE o.object_type = 'trigger' AND o.address_names[3] LIKE '%pg\_trickle\_immediate\_%')
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._lost_triggers() FROM PUBLIC;


-- After DDL. Where a captured column is gone, has another type or is generated otherwise, the trigger functions are
-- rewritten at once, in the same transaction, or every write to the table would fail. The buffer is left as it is: to lock it here, with the
-- source already locked, could deadlock with a refresh.
CREATE OR REPLACE FUNCTION pgtrickle._on_ddl_end() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    capture record;
    kept text[];
    altered oid[];
BEGIN
    PERFORM pgtrickle._keep_signals();  -- a source may have another name
    PERFORM pgtrickle._follow_immediate();
    -- Nothing temporary is a source, or can be read by one. And most tables are neither sources nor stream tables, nor
    -- have partitions or children, which could be; nor is a new view a source. Rights count to tables and what is in a schema.
    IF NOT EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() e
        WHERE e.schema_name IS DISTINCT FROM 'pg_temp'
          AND (e.command_tag <> 'REVOKE' OR lower(e.object_type) IN ('table', 'schema'))
          AND (e.command_tag NOT IN ('ALTER TABLE', 'CREATE VIEW') OR e.classid <> 'pg_class'::regclass
               OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = e.objid)
               OR EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE e.objid = ANY (k.relations))
               OR EXISTS (SELECT FROM pgtrickle.pgt_definitions s WHERE s.pgt_relid = e.objid)
               OR EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = e.objid))
    ) THEN
        RETURN;
    END IF;
    -- What alters a table alters its children, and what alters a type the tables of that type.
    altered := ARRAY(
        SELECT unnest(pgtrickle._relations(r.oid))
        FROM pg_event_trigger_ddl_commands() e
        CROSS JOIN LATERAL (SELECT e.objid AS oid
                            UNION ALL
                            SELECT c.oid FROM pg_class c JOIN pg_type t ON t.oid = c.reloftype
                            WHERE e.command_tag = 'ALTER TYPE' AND t.typrelid = e.objid) AS r
        WHERE e.classid = 'pg_class'::regclass);
    FOR capture IN
        SELECT k.source_relid, k.captured_columns, k.fingerprint
        FROM pgtrickle.pgt_captures k WHERE k.relations && altered
    LOOP
        IF capture.fingerprint <> pgtrickle._fingerprint(capture.source_relid, capture.captured_columns) THEN
            kept := pgtrickle._capturable(capture.source_relid, capture.captured_columns);
            PERFORM pgtrickle._write_capture_functions(capture.source_relid, kept);
            UPDATE pgtrickle.pgt_captures k
            SET captured_columns = kept, fingerprint = pgtrickle._fingerprint(k.source_relid, kept)
            WHERE k.source_relid = capture.source_relid;
        END IF;
    END LOOP;
    -- With a new generated column PostgreSQL would refuse UPDATE and DELETE of what is published with old rows. What this
    -- transaction has written before is not decoded yet.
    PERFORM pgtrickle._capture_by_triggers(k, pgtrickle._end_wal(k.source_relid, false))
    FROM pgtrickle.pgt_captures k
    WHERE k.mode = 'WAL' AND k.relations && altered AND pgtrickle._wal_identity_obstacle(k.relations) IS NOT NULL;
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() e
               WHERE e.command_tag = 'REVOKE' AND lower(e.object_type) IN ('table', 'schema')
                  OR e.command_tag = 'ALTER TABLE'
                     AND e.objid IN (SELECT unnest(k.relations) FROM pgtrickle.pgt_captures k)) THEN
        PERFORM pgtrickle._revoke_buffers(true);
    END IF;
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() e
               WHERE e.command_tag = 'REVOKE' AND lower(e.object_type) IN ('table', 'schema')
                  OR e.command_tag = 'ALTER TABLE'
                     AND e.objid IN (SELECT d.source_relid FROM pgtrickle.pgt_dependencies d)) THEN
        PERFORM pgtrickle._leave_immediate_without_rights(true);
    END IF;
    PERFORM pgtrickle._refuse_source_ddl(s.pgt_id, d.source_relid)
    FROM pg_event_trigger_ddl_commands() e
    JOIN pgtrickle.pgt_dependencies d ON d.source_relid = e.objid
    JOIN pgtrickle.pgt_definitions s ON s.pgt_id = d.pgt_id
    WHERE e.command_tag IN ('ALTER TABLE', 'ALTER VIEW', 'CREATE VIEW')
      AND d.schema_fingerprint <> pgtrickle._fingerprint(d.source_relid, d.columns_used);
    -- A table's partitions, columns, policies or capture triggers, which are ENABLE ALWAYS: reinitialise what reads it.
    UPDATE pgtrickle.pgt_definitions s
    SET needs_reinit = true, updated_at = clock_timestamp()
    FROM (
        SELECT DISTINCT d.pgt_id
        FROM pg_event_trigger_ddl_commands() e
        JOIN pgtrickle.pgt_dependencies d
          ON d.source_relid = e.objid
          OR d.source_relid = (SELECT p.polrelid FROM pg_policy p WHERE e.classid = 'pg_policy'::regclass AND p.oid = e.objid)
          OR EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE k.source_relid = d.source_relid AND e.objid = ANY (k.relations))
          -- It, or a partition of it, has come to belong to another table, through which it can be changed unseen.
          OR EXISTS (SELECT FROM pgtrickle.pgt_captures k JOIN pg_inherits h ON h.inhrelid = ANY (k.relations)
                     WHERE k.source_relid = d.source_relid AND h.inhparent = e.objid)
        LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = d.source_relid
        WHERE e.command_tag IN ('CREATE POLICY', 'ALTER POLICY')
           OR e.command_tag IN ('ALTER TABLE', 'CREATE VIEW', 'ALTER VIEW')
              AND (d.schema_fingerprint IS DISTINCT FROM
                       pgtrickle._fingerprint(d.source_relid, d.columns_used)
                   OR k.relations <> pgtrickle._relations(d.source_relid)
                   OR EXISTS (SELECT FROM pg_inherits h
                              WHERE h.inhrelid = ANY (k.relations) AND NOT h.inhparent = ANY (k.relations))
                   OR pgtrickle._rls_setting(d.source_relid) IS DISTINCT FROM d.column_snapshot->>'rls'
                   OR k.trigger_state <> pgtrickle._trigger_state(k.source_relid, k.relations)
                      AND EXISTS (SELECT FROM pg_trigger t
                                  WHERE t.tgrelid = ANY (k.relations) AND t.tgenabled <> 'A'
                                    AND t.tgname ~ '^(pg_trickle_cdc|pg_trickle_updates|~pg_trickle_count|~pg_trickle_insert)_'))
    ) AS affected
    WHERE s.pgt_id = affected.pgt_id AND NOT s.needs_reinit;
    PERFORM pgtrickle._refuse_alteration(e.objid)
    FROM pg_event_trigger_ddl_commands() e WHERE e.classid = 'pg_class'::regclass;
    PERFORM pgtrickle._refuse_constraints(relid) FROM unnest(altered) AS relid;
    -- A storage table that was renamed or given to another owner, or moved to another schema, or the schema was renamed.
    UPDATE pgtrickle.pgt_definitions s
    SET pgt_name = c.relname, pgt_schema = n.nspname, pgt_owner = c.relowner,
        needs_reinit = s.needs_reinit OR s.pgt_owner <> c.relowner, updated_at = clock_timestamp()
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = s.pgt_relid
      AND EXISTS (SELECT FROM pg_event_trigger_ddl_commands() e
                  WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid
                     OR e.classid = 'pg_namespace'::regclass AND e.objid = n.oid)
      AND (s.pgt_name, s.pgt_schema, s.pgt_owner) IS DISTINCT FROM (c.relname::text, n.nspname::text, c.relowner);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_ddl_end() FROM PUBLIC;


-- A trigger, a rule or an index comes: not on a stream table, if a refresh could fall over it.
CREATE OR REPLACE FUNCTION pgtrickle._on_trigger() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._refuse_interference(s.pgt_relid)
    FROM pgtrickle.pgt_definitions s
    WHERE s.pgt_relid IN (SELECT t.tgrelid FROM pg_event_trigger_ddl_commands() e JOIN pg_trigger t ON t.oid = e.objid
                          WHERE e.classid = 'pg_trigger'::regclass
                          UNION ALL
                          SELECT r.ev_class FROM pg_event_trigger_ddl_commands() e JOIN pg_rewrite r ON r.oid = e.objid
                          WHERE e.classid = 'pg_rewrite'::regclass);
    PERFORM pgtrickle._refuse_constraints(i.indrelid)
    FROM pg_event_trigger_ddl_commands() e JOIN pg_index i ON i.indexrelid = e.objid
    WHERE e.classid = 'pg_class'::regclass AND e.command_tag = 'CREATE INDEX';
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_trigger() FROM PUBLIC;


-- A table comes to refer to a stream table, whose rows a refresh takes out and puts in again as it likes, or to inherit from it.
CREATE OR REPLACE FUNCTION pgtrickle._on_reference() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reference record;
BEGIN
    SELECT c.conname, s.pgt_name INTO reference
    FROM pg_event_trigger_ddl_commands() e
    JOIN pg_constraint c ON c.conrelid = e.objid AND c.contype = 'f'
    JOIN pgtrickle.pgt_definitions s ON s.pgt_relid = c.confrelid
    WHERE e.classid = 'pg_class'::regclass
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42809',
            MESSAGE = format('foreign key "%s" cannot reference stream table "%s"', reference.conname, reference.pgt_name),
            HINT = 'Refreshes would fail. Reference the tables that the stream table is computed from.';
    END IF;
    PERFORM pgtrickle._refuse_constraints(h.inhparent)
    FROM pg_event_trigger_ddl_commands() e JOIN pg_inherits h ON h.inhrelid = e.objid
    WHERE e.classid = 'pg_class'::regclass;
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() e JOIN pg_inherits h ON h.inhrelid = e.objid
               WHERE e.command_tag <> 'ALTER TABLE') THEN
        PERFORM pgtrickle._follow_immediate();  -- a partition or child of a source
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_reference() FROM PUBLIC;


-- A table is rewritten: ALTER COLUMN … TYPE … USING, reason 4, may change every value without a trigger's notice.
CREATE OR REPLACE FUNCTION pgtrickle._on_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_event_trigger_table_rewrite_reason() & 4 <> 0 THEN
        PERFORM pgtrickle._refuse_alteration(pg_event_trigger_table_rewrite_oid(), true);
        -- A captured column that looks as before, but whose description this transaction has written, has other values.
        UPDATE pgtrickle.pgt_captures k SET generation = gen_random_uuid()
        WHERE pg_event_trigger_table_rewrite_oid() = ANY (k.relations)
          AND k.fingerprint = pgtrickle._fingerprint(k.source_relid, k.captured_columns)
          AND EXISTS (SELECT FROM pg_attribute a
                      WHERE a.attrelid = pg_event_trigger_table_rewrite_oid() AND a.attname = ANY (k.captured_columns)
                        AND age(a.xmin) <= age(pg_current_xact_id()::xid));
    END IF;
    UPDATE pgtrickle.pgt_definitions s
    SET needs_reinit = true, updated_at = clock_timestamp()
    FROM pgtrickle.pgt_dependencies d LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = d.source_relid
    WHERE d.pgt_id = s.pgt_id AND NOT s.needs_reinit
      AND (d.source_relid = pg_event_trigger_table_rewrite_oid()
           OR pg_event_trigger_table_rewrite_oid() = ANY (k.relations)
           OR EXISTS (SELECT FROM pgtrickle.pgt_immediate i
                      WHERE i.pgt_id = s.pgt_id AND pg_event_trigger_table_rewrite_oid() = ANY (i.relations)));
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_rewrite() FROM PUBLIC;


-- After DROP. A storage table that is gone takes its stream table along; a source that is gone stops its readers; a
-- dropped policy has them reinitialised.
CREATE OR REPLACE FUNCTION pgtrickle._on_sql_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone oid[] := ARRAY(SELECT o.objid FROM pg_event_trigger_dropped_objects() o
                        WHERE o.classid = 'pg_class'::regclass AND o.objsubid = 0 AND NOT o.is_temporary
                          AND o.object_type IN ('table', 'view', 'materialized view', 'foreign table'));
    policies text[] := ARRAY(SELECT o.address_names[1] || '.' || o.address_names[2]
                             FROM pg_event_trigger_dropped_objects() o WHERE o.object_type = 'policy');
BEGIN
    PERFORM pgtrickle._refuse_alteration(o.objid, true)
    FROM pg_event_trigger_dropped_objects() o
    WHERE o.object_type = 'table column' AND o.address_names[3] ~ '^__pgt_';
    IF cardinality(policies) > 0 THEN
        UPDATE pgtrickle.pgt_definitions s SET needs_reinit = true, updated_at = clock_timestamp()
        FROM pgtrickle.pgt_dependencies d
        WHERE d.pgt_id = s.pgt_id
          AND (d.column_snapshot->>'schema') || '.' || (d.column_snapshot->>'name') = ANY (policies);
    END IF;
    PERFORM pgtrickle._mark_immediate(gone || pgtrickle._lost_triggers());
    IF cardinality(gone) = 0 THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_event_trigger_dropped_objects() o WHERE o.schema_name = 'pgtrickle') THEN
        PERFORM pgtrickle._keep_signals();
    END IF;
    DELETE FROM pgtrickle.pgt_definitions s WHERE s.pgt_relid = ANY (gone);
    PERFORM pgtrickle._refuse_source_ddl(d.pgt_id, d.source_relid)
    FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = ANY (gone);
    PERFORM pgtrickle._notice('NOTICE', format('stream table "%s" reads %s, which was dropped', pgtrickle._qualified(s.pgt_relid), r.names),
                              'It keeps its rows and cannot be refreshed. Drop it with pgtrickle.drop_stream_table(), or give it '
                              'another query.')
    FROM (SELECT d.pgt_id, string_agg(pgtrickle._source_name(d), ', ' ORDER BY d.source_relid) AS names
          FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = ANY (gone) GROUP BY d.pgt_id) AS r
    JOIN pgtrickle.pgt_definitions s ON s.pgt_id = r.pgt_id;
    UPDATE pgtrickle.pgt_definitions s
    SET status = 'ERROR', needs_reinit = true, updated_at = clock_timestamp(),
        fallback_reason = format('source %s.%s was dropped', d.column_snapshot->>'schema', d.column_snapshot->>'name')
    FROM pgtrickle.pgt_dependencies d
    WHERE d.pgt_id = s.pgt_id AND d.source_relid = ANY (gone);
    PERFORM pgtrickle._drop_capture(c.source_relid)
    FROM pgtrickle.pgt_captures c WHERE c.source_relid = ANY (gone);
    PERFORM pgtrickle._revoke_buffers(true);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_sql_drop() FROM PUBLIC;


-- A function has come, changed or gone, which the query of a stream table in IMMEDIATE mode may call, or a trigger that maintains it.
CREATE OR REPLACE FUNCTION pgtrickle._on_function() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF tg_event = 'sql_drop' THEN
        PERFORM pgtrickle._mark_immediate(pgtrickle._lost_triggers());
    END IF;
    IF tg_event = 'sql_drop' OR EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() e
        WHERE e.schema_name IS NULL OR e.schema_name NOT IN ('pgtrickle', 'pgtrickle_changes', 'pgtrickle_roles')) THEN
        UPDATE pgtrickle.pgt_definitions s SET needs_reinit = true, updated_at = clock_timestamp()
        WHERE s.refresh_mode = 'IMMEDIATE' AND s.function_hashes <> '{}' AND pgtrickle._changed_function(s.function_hashes) IS NOT NULL;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_function() FROM PUBLIC;


DROP EVENT TRIGGER IF EXISTS pg_trickle_ddl_tracker;
CREATE EVENT TRIGGER pg_trickle_ddl_tracker ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'ALTER DOMAIN', 'ALTER SCHEMA', 'ALTER VIEW', 'CREATE VIEW', 'CREATE POLICY', 'ALTER POLICY',
                 'REVOKE')
    EXECUTE FUNCTION pgtrickle._on_ddl_end();

DROP EVENT TRIGGER IF EXISTS pg_trickle_trigger_tracker;
CREATE EVENT TRIGGER pg_trickle_trigger_tracker ON ddl_command_end
    WHEN TAG IN ('CREATE TRIGGER', 'CREATE RULE', 'CREATE INDEX')
    EXECUTE FUNCTION pgtrickle._on_trigger();

DROP EVENT TRIGGER IF EXISTS pg_trickle_reference_tracker;
CREATE EVENT TRIGGER pg_trickle_reference_tracker ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE', 'CREATE SCHEMA')
    EXECUTE FUNCTION pgtrickle._on_reference();

DROP EVENT TRIGGER IF EXISTS pg_trickle_rewrite_tracker;
CREATE EVENT TRIGGER pg_trickle_rewrite_tracker ON table_rewrite
    WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'ALTER MATERIALIZED VIEW')
    EXECUTE FUNCTION pgtrickle._on_rewrite();

DROP EVENT TRIGGER IF EXISTS pg_trickle_drop_tracker;
CREATE EVENT TRIGGER pg_trickle_drop_tracker ON sql_drop
    WHEN TAG IN ('DROP TABLE', 'DROP VIEW', 'DROP MATERIALIZED VIEW', 'DROP FOREIGN TABLE', 'DROP SCHEMA', 'DROP OWNED',
                 'DROP POLICY', 'DROP TYPE', 'DROP EXTENSION', 'DROP TRIGGER', 'ALTER TABLE')
    EXECUTE FUNCTION pgtrickle._on_sql_drop();

DROP EVENT TRIGGER IF EXISTS pg_trickle_function_tracker;
CREATE EVENT TRIGGER pg_trickle_function_tracker ON ddl_command_end
    WHEN TAG IN ('CREATE FUNCTION', 'ALTER FUNCTION', 'ALTER ROUTINE', 'CREATE AGGREGATE', 'CREATE OPERATOR', 'CREATE CAST')
    EXECUTE FUNCTION pgtrickle._on_function();

DROP EVENT TRIGGER IF EXISTS pg_trickle_function_drop_tracker;
CREATE EVENT TRIGGER pg_trickle_function_drop_tracker ON sql_drop
    WHEN TAG IN ('DROP FUNCTION', 'DROP ROUTINE', 'DROP AGGREGATE', 'DROP OPERATOR', 'DROP CAST')
    EXECUTE FUNCTION pgtrickle._on_function();

-- Also where session_replication_role is replica.
ALTER EVENT TRIGGER pg_trickle_ddl_tracker ENABLE ALWAYS;
ALTER EVENT TRIGGER pg_trickle_trigger_tracker ENABLE ALWAYS;
ALTER EVENT TRIGGER pg_trickle_reference_tracker ENABLE ALWAYS;
ALTER EVENT TRIGGER pg_trickle_rewrite_tracker ENABLE ALWAYS;
ALTER EVENT TRIGGER pg_trickle_drop_tracker ENABLE ALWAYS;
ALTER EVENT TRIGGER pg_trickle_function_tracker ENABLE ALWAYS;
ALTER EVENT TRIGGER pg_trickle_function_drop_tracker ENABLE ALWAYS;
