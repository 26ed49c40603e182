-- Gates: an operator keeps the scheduler from refreshing what reads a source, while that is loaded. Watermarks
-- (73_watermarks.sql) do so until sources that belong together are complete.
--
-- The scheduler asks _held_back for what it must leave alone, before it has a stream table refreshed, and again in the snapshot of
-- each refresh. So a gate counts for every refresh that can see what was loaded after it. Refreshes by hand do not ask.


-- The relation of a name along the session's search_path. Raises 22004, 42P01.
CREATE OR REPLACE FUNCTION pgtrickle._named_relation(name text) RETURNS oid LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE := '22004', MESSAGE := 'name of the source must not be null';
    ELSIF pg_catalog.to_regclass(name) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE := '42P01', MESSAGE := pg_catalog.format('relation "%s" does not exist', name);
    END IF;
    RETURN pg_catalog.to_regclass(name);
END $$;


-- Whether a role may keep stream tables from reading a source: its owner, and who may empty it (who has TRUNCATE may also lock it
-- against everybody). Whether a role may say up to when a source is complete: the same, and who may add rows to it.
CREATE OR REPLACE FUNCTION pgtrickle._may_signal(signal text, role text, source oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(
        pg_has_role(role, (SELECT c.relowner FROM pg_class c WHERE c.oid = source), 'USAGE')
        OR has_table_privilege(role, source, 'TRUNCATE')
        OR signal = 'advance' AND has_table_privilege(role, source, 'INSERT'), false)
$$;


-- Raises 22004 or 22023 for a signal without what it needs.
CREATE OR REPLACE FUNCTION pgtrickle._check_signal_values(s pgtrickle.pgt_source_signals) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing text := CASE WHEN s.signal = 'advance' AND s.watermark IS NULL THEN 'watermark'
                         WHEN s.signal IN ('group', 'ungroup') AND s.group_name IS NULL THEN 'name of the watermark group'
                         WHEN s.signal = 'group' AND s.tolerance_secs IS NULL THEN 'tolerance' END;
    wrong text := CASE WHEN s.signal = 'advance' AND NOT isfinite(s.watermark) THEN 'watermark must be finite'
                       WHEN s.signal IN ('group', 'ungroup') AND s.group_name = '' THEN 'name of the watermark group must not be empty'
                       WHEN s.signal = 'group' AND NOT s.tolerance_secs BETWEEN 0 AND 1e15
                           THEN 'tolerance must be a number of seconds that is not negative'
                       WHEN s.signal = 'group' AND (SELECT count(DISTINCT u) FROM unnest(s.source_relids) u) < 2
                           THEN format('watermark group "%s" needs at least two sources', s.group_name)
                       WHEN s.signal = 'group' AND (SELECT count(DISTINCT u) < count(u) FROM unnest(s.source_relids) u)
                           THEN format('watermark group "%s" names a source twice', s.group_name) END;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = format('%s must not be null', missing);
    ELSIF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = wrong;
    END IF;
END $$;


-- Runs for each signal with the rights of the role that gives it, and raises an error unless it may: 42501, 42809, 0A000.
CREATE OR REPLACE FUNCTION pgtrickle._check_signal() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source oid;
    kind "char";
    persistence "char";
BEGIN
    NEW.signalled_by := current_user;
    IF NEW.signal IN ('create refresh group', 'drop refresh group') THEN
        PERFORM pgtrickle._check_group_signal(NEW);
        RETURN NEW;
    END IF;
    PERFORM pgtrickle._check_signal_values(NEW);
    IF NEW.signal = 'ungroup' THEN
        SELECT g.source_relids INTO NEW.source_relids FROM pgtrickle._watermark_groups() g WHERE g.group_name = NEW.group_name;
    END IF;
    FOREACH source IN ARRAY coalesce(NEW.source_relids, '{}') LOOP
        SELECT c.relkind, c.relpersistence INTO kind, persistence FROM pg_class c WHERE c.oid = source;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('relation with OID %s does not exist', source);
        ELSIF kind NOT IN ('r', 'p', 'f', 'm', 'v') THEN
            RAISE EXCEPTION USING ERRCODE = '42809',
                MESSAGE = format('%s is no table, view, materialized view or foreign table', pgtrickle._qualified(source));
        ELSIF persistence = 't' THEN
            RAISE EXCEPTION USING ERRCODE = '0A000',
                MESSAGE = format('%s is temporary; no stream table can read it', pgtrickle._qualified(source));
        ELSIF NOT pgtrickle._may_signal(NEW.signal, current_user, source) THEN
            RAISE EXCEPTION USING ERRCODE = '42501',
                MESSAGE = format('permission denied for source %s', pgtrickle._qualified(source)),
                HINT = format('Its owner may do this, and who has %s on it.',
                              CASE NEW.signal WHEN 'advance' THEN 'INSERT or TRUNCATE' ELSE 'TRUNCATE' END);
        END IF;
    END LOOP;
    RETURN NEW;
END $$;


-- Runs after _check_signal with the server's rights, and does what the signal says.
CREATE OR REPLACE FUNCTION pgtrickle._take_signal() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source CONSTANT oid := NEW.source_relids[1];
    former timestamptz;
BEGIN
    PERFORM pgtrickle._keep_signals();
    CASE NEW.signal
    WHEN 'gate' THEN
        INSERT INTO pgtrickle.pgt_source_gates AS g (source_relid, gated, gated_at, gated_by, source_name, cluster)
        VALUES (source, true, now(), 'gate_source', pgtrickle._qualified(source), pgtrickle._cluster())
        ON CONFLICT (source_relid) DO UPDATE
        SET gated = true, gated_at = now(), ungated_at = NULL, gated_by = excluded.gated_by, source_name = excluded.source_name;
    WHEN 'ungate' THEN
        UPDATE pgtrickle.pgt_source_gates g SET gated = false, ungated_at = now()
        WHERE g.source_relid = source AND g.gated;
        IF NOT FOUND THEN
            PERFORM pgtrickle._notice('NOTICE', format('source %s is not gated', pgtrickle._qualified(source)), NULL);
        END IF;
    WHEN 'advance' THEN
        INSERT INTO pgtrickle.pgt_watermarks AS w (source_relid, watermark, updated_at, advanced_by, wal_lsn_at_advance,
                                                   source_name, cluster)
        VALUES (source, NEW.watermark, now(), NEW.signalled_by, pg_current_wal_insert_lsn()::text,
                pgtrickle._qualified(source), pgtrickle._cluster())
        ON CONFLICT (source_relid) DO UPDATE
        SET watermark = excluded.watermark, updated_at = excluded.updated_at, advanced_by = excluded.advanced_by,
            wal_lsn_at_advance = excluded.wal_lsn_at_advance
        WHERE excluded.watermark > w.watermark;
        IF NOT FOUND THEN
            SELECT w.watermark INTO former FROM pgtrickle.pgt_watermarks w WHERE w.source_relid = source;
            IF NEW.watermark < former THEN
                RAISE EXCEPTION USING ERRCODE = '22023',
                    MESSAGE = format('watermark of %s cannot go back from %s to %s', pgtrickle._qualified(source), former, NEW.watermark);
            END IF;
        END IF;
    WHEN 'group' THEN
        -- The scheduler looks at all groups: how many there can be depends on how many sources there are.
        IF EXISTS (SELECT FROM pgtrickle.pgt_watermark_groups g, unnest(g.source_relids) AS u(relid)
                   WHERE u.relid = ANY (NEW.source_relids) GROUP BY u.relid HAVING count(*) >= 100) THEN
            RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = 'a source can be in 100 watermark groups at most';
        END IF;
        INSERT INTO pgtrickle.pgt_watermark_groups (group_name, source_relids, tolerance_secs, source_names, cluster)
        VALUES (NEW.group_name, NEW.source_relids, NEW.tolerance_secs,
                pgtrickle._qualified_all(NEW.source_relids), pgtrickle._cluster())
        ON CONFLICT (group_name) DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('watermark group "%s" already exists', NEW.group_name);
        END IF;
    WHEN 'ungroup' THEN
        -- The rights on these sources have been checked, and on no others.
        DELETE FROM pgtrickle.pgt_watermark_groups g WHERE g.group_name = NEW.group_name AND g.source_relids <@ NEW.source_relids;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('watermark group "%s" does not exist', NEW.group_name);
        END IF;
    WHEN 'create refresh group', 'drop refresh group' THEN
        PERFORM pgtrickle._take_group_signal(NEW);
    ELSE
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('unknown signal "%s"', NEW.signal);
    END CASE;
    RETURN NULL;
END $$;

-- Nobody else can have it run for a table of his own.
REVOKE EXECUTE ON FUNCTION pgtrickle._take_signal() FROM PUBLIC;

DROP TRIGGER IF EXISTS a_check_signal ON pgtrickle.pgt_source_signals;
CREATE TRIGGER a_check_signal BEFORE INSERT ON pgtrickle.pgt_source_signals
    FOR EACH ROW EXECUTE FUNCTION pgtrickle._check_signal();
ALTER TABLE pgtrickle.pgt_source_signals ENABLE ALWAYS TRIGGER a_check_signal;
DROP TRIGGER IF EXISTS b_take_signal ON pgtrickle.pgt_source_signals;
CREATE TRIGGER b_take_signal BEFORE INSERT ON pgtrickle.pgt_source_signals
    FOR EACH ROW EXECUTE FUNCTION pgtrickle._take_signal();
ALTER TABLE pgtrickle.pgt_source_signals ENABLE ALWAYS TRIGGER b_take_signal;


-- Give a signal, with the caller's rights.
CREATE OR REPLACE FUNCTION pgtrickle._signal(
    signal text, sources oid[], watermark timestamptz DEFAULT NULL, group_name text DEFAULT NULL, tolerance_secs float8 DEFAULT NULL
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_source_signals (signal, source_relids, watermark, group_name, tolerance_secs)
    VALUES (signal, sources, watermark, group_name, tolerance_secs)
$$;


-- Keep the scheduler from refreshing what reads a source, until ungate_source. In the caller's transaction.
CREATE OR REPLACE FUNCTION pgtrickle.gate_source(source text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('gate', ARRAY[pgtrickle._named_relation(source)]);
END $$;


-- Take the gate of a source back. In the caller's transaction: what that has loaded is seen by the refresh that
-- follows, and by none before.
CREATE OR REPLACE FUNCTION pgtrickle.ungate_source(source text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('ungate', ARRAY[pgtrickle._named_relation(source)]);
END $$;


-- What is known of sources by OID is of another cluster or database, and goes on by name: a dump was restored. In two steps: one's
-- new OID can be another's old one.
CREATE OR REPLACE FUNCTION pgtrickle._adopt_restored_signals(here text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gates jsonb := (SELECT jsonb_agg(to_jsonb(g)) FROM pgtrickle.pgt_source_gates g WHERE g.cluster IS DISTINCT FROM here);
    watermarks jsonb := (SELECT jsonb_agg(to_jsonb(w)) FROM pgtrickle.pgt_watermarks w WHERE w.cluster IS DISTINCT FROM here);
BEGIN
    DELETE FROM pgtrickle.pgt_source_gates g WHERE g.cluster IS DISTINCT FROM here;
    DELETE FROM pgtrickle.pgt_watermarks w WHERE w.cluster IS DISTINCT FROM here;
    INSERT INTO pgtrickle.pgt_source_gates
    SELECT (jsonb_populate_record(g, jsonb_build_object('source_relid', to_regclass(g.source_name)::oid, 'cluster', here))).*
    FROM jsonb_populate_recordset(NULL::pgtrickle.pgt_source_gates, gates) AS g WHERE to_regclass(g.source_name) IS NOT NULL
    ON CONFLICT (source_relid) DO NOTHING;
    INSERT INTO pgtrickle.pgt_watermarks
    SELECT (jsonb_populate_record(w, jsonb_build_object('source_relid', to_regclass(w.source_name)::oid, 'cluster', here))).*
    FROM jsonb_populate_recordset(NULL::pgtrickle.pgt_watermarks, watermarks) AS w WHERE to_regclass(w.source_name) IS NOT NULL
    ON CONFLICT (source_relid) DO NOTHING;
    UPDATE pgtrickle.pgt_watermark_groups g
    SET source_relids = f.source_relids, source_names = pgtrickle._qualified_all(f.source_relids), cluster = here
    FROM pgtrickle._watermark_groups() f WHERE f.group_id = g.group_id AND g.cluster IS DISTINCT FROM here;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._adopt_restored_signals(text) FROM PUBLIC;


-- The names of relations, NULL for those that are gone.
CREATE OR REPLACE FUNCTION pgtrickle._qualified_all(relations oid[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY(SELECT pgtrickle._qualified(u.relid) FROM unnest(relations) WITH ORDINALITY AS u(relid, n) ORDER BY u.n)
$$;


-- Bring what is known of sources up to date: after a restore relations have other OIDs and are found by their names; those
-- that have been renamed are noted, those that are gone forgotten. A row that somebody just changes is left for the next time.
CREATE OR REPLACE FUNCTION pgtrickle._keep_signals() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here text;
BEGIN
    PERFORM pgtrickle._keep_refresh_groups();
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_source_gates) AND NOT EXISTS (SELECT FROM pgtrickle.pgt_watermarks)
       AND NOT EXISTS (SELECT FROM pgtrickle.pgt_watermark_groups) THEN
        RETURN;
    END IF;
    here := pgtrickle._cluster();
    IF EXISTS (SELECT FROM pgtrickle.pgt_source_gates g WHERE g.cluster IS DISTINCT FROM here)
       OR EXISTS (SELECT FROM pgtrickle.pgt_watermarks w WHERE w.cluster IS DISTINCT FROM here)
       OR EXISTS (SELECT FROM pgtrickle.pgt_watermark_groups g WHERE g.cluster IS DISTINCT FROM here) THEN
        PERFORM pgtrickle._adopt_restored_signals(here);
    END IF;
    WITH changed AS (
        SELECT g.source_relid AS relid FROM pgtrickle.pgt_source_gates g
        WHERE g.source_name IS DISTINCT FROM pgtrickle._qualified(g.source_relid)
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM pgtrickle.pgt_source_gates g USING changed c
        WHERE g.source_relid = c.relid AND pgtrickle._qualified(c.relid) IS NULL
    )
    UPDATE pgtrickle.pgt_source_gates g SET source_name = pgtrickle._qualified(c.relid)
    FROM changed c WHERE g.source_relid = c.relid AND pgtrickle._qualified(c.relid) IS NOT NULL;
    WITH changed AS (
        SELECT w.source_relid AS relid FROM pgtrickle.pgt_watermarks w
        WHERE w.source_name IS DISTINCT FROM pgtrickle._qualified(w.source_relid)
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM pgtrickle.pgt_watermarks w USING changed c
        WHERE w.source_relid = c.relid AND pgtrickle._qualified(c.relid) IS NULL
    )
    UPDATE pgtrickle.pgt_watermarks w SET source_name = pgtrickle._qualified(c.relid)
    FROM changed c WHERE w.source_relid = c.relid AND pgtrickle._qualified(c.relid) IS NOT NULL;
    WITH changed AS (
        SELECT g.group_id, ARRAY(SELECT u.relid FROM unnest(g.source_relids) WITH ORDINALITY AS u(relid, n)
                                 WHERE pgtrickle._qualified(u.relid) IS NOT NULL ORDER BY u.n) AS source_relids
        FROM pgtrickle.pgt_watermark_groups g
        WHERE g.source_names IS DISTINCT FROM pgtrickle._qualified_all(g.source_relids)
        FOR UPDATE SKIP LOCKED
    )
    UPDATE pgtrickle.pgt_watermark_groups g
    SET source_relids = c.source_relids, source_names = pgtrickle._qualified_all(c.source_relids)
    FROM changed c WHERE g.group_id = c.group_id;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._keep_signals() FROM PUBLIC;


-- The gates, with the relations that they are of here, also before _keep_signals has looked at what was restored.
CREATE OR REPLACE FUNCTION pgtrickle._gates()
RETURNS TABLE (source_relid oid, gated boolean, gated_at timestamptz, ungated_at timestamptz, gated_by text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN g.cluster = h.cluster THEN g.source_relid ELSE to_regclass(g.source_name)::oid END,
           g.gated, g.gated_at, g.ungated_at, g.gated_by
    FROM (SELECT pgtrickle._cluster() AS cluster OFFSET 0) AS h, pgtrickle.pgt_source_gates g
$$;


-- The stream tables that depend on each of these sources, directly or through others. A relation has rows in common with its
-- partitions and children at all levels, and with what it and these are partitions or children of; what reads one of them depends on
-- it, too. (Of a view both it and what is below it are sources.)
CREATE OR REPLACE FUNCTION pgtrickle._dependents(sources oid[]) RETURNS TABLE (source_relid oid, pgt_id bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE below AS (
        SELECT u.relid AS source, u.relid FROM unnest(sources) AS u(relid)
        UNION SELECT b.source, h.inhrelid FROM below b JOIN pg_inherits h ON h.inhparent = b.relid
    ), overlapping AS (
        SELECT b.source, b.relid FROM below b
        UNION SELECT o.source, h.inhparent FROM overlapping o JOIN pg_inherits h ON h.inhrelid = o.relid
    ), reader AS (
        SELECT o.source, s.pgt_id, s.pgt_relid
        FROM overlapping o
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = o.relid
        JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
        UNION
        SELECT r.source, s.pgt_id, s.pgt_relid
        FROM reader r
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = r.pgt_relid
        JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
    )
    SELECT r.source, r.pgt_id FROM reader r
$$;


-- The stream tables that the scheduler must not refresh now, and why.
CREATE OR REPLACE FUNCTION pgtrickle._held_back() RETURNS TABLE (pgt_id bigint, reason text)
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_source_gates g WHERE g.gated)
       AND NOT EXISTS (SELECT FROM pgtrickle.pgt_watermark_groups)
       AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE NOT s.is_populated) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH closed AS MATERIALIZED (
        SELECT g.source_relid, format('source %s is gated', pgtrickle._qualified(g.source_relid)) AS reason
        FROM pgtrickle._gates() g WHERE g.gated
        UNION ALL
        SELECT unnest(a.source_relids), format('watermark group "%s" is not aligned', a.group_name)
        FROM pgtrickle._alignment() a WHERE NOT a.aligned
        UNION ALL
        SELECT s.pgt_relid, format('stream table %s is not populated', pgtrickle._qualified(s.pgt_relid))
        FROM pgtrickle.pgt_stream_tables s WHERE NOT s.is_populated
    )
    SELECT d.pgt_id, string_agg(DISTINCT c.reason, '; ' ORDER BY c.reason)
    FROM pgtrickle._dependents(ARRAY(SELECT DISTINCT c.source_relid FROM closed c)) AS d JOIN closed c USING (source_relid)
    GROUP BY d.pgt_id;
END $$;


-- The sources that are gated or have been.
CREATE OR REPLACE FUNCTION pgtrickle.source_gates()
RETURNS TABLE (source_table text, schema_name text, gated boolean, gated_at timestamptz, ungated_at timestamptz,
               gated_by text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.relname::text, n.nspname::text, g.gated, g.gated_at, g.ungated_at, g.gated_by
    FROM pgtrickle._gates() g
    JOIN pg_class c ON c.oid = g.source_relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY 2, 1
$$;


-- The sources that are gated or have been, how long the gate is or was there, and what it keeps from being refreshed;
-- those that are gated first.
CREATE OR REPLACE FUNCTION pgtrickle.bootstrap_gate_status()
RETURNS TABLE (source_table text, schema_name text, gated boolean, gated_at timestamptz, ungated_at timestamptz,
               gated_by text, gate_duration interval, affected_stream_tables text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.relname::text, n.nspname::text, g.gated, g.gated_at, g.ungated_at, g.gated_by,
           CASE WHEN g.gated THEN now() ELSE g.ungated_at END - g.gated_at,
           coalesce((SELECT string_agg(s.pgt_schema || '.' || s.pgt_name, ', ' ORDER BY s.pgt_schema, s.pgt_name)
                     FROM pgtrickle._dependents(ARRAY[g.source_relid]) d JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
                     WHERE g.gated), '')
    FROM pgtrickle._gates() g
    JOIN pg_class c ON c.oid = g.source_relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY g.gated DESC, 1, 2
$$;
