-- Gates: an operator keeps the scheduler from refreshing what reads a source, while that is loaded.
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


-- Runs for each signal with the rights of the role that gives it, and raises an error unless it may: 42501, 42809, 0A000.
CREATE OR REPLACE FUNCTION pgtrickle._check_signal() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source oid;
    kind "char";
    persistence "char";
BEGIN
    NEW.signalled_by := current_user;
    IF NEW.signal = 'ungroup' THEN
        SELECT g.source_relids INTO NEW.source_relids
        FROM pgtrickle.pgt_watermark_groups g WHERE g.group_name = NEW.group_name;
    END IF;
    FOREACH source IN ARRAY coalesce(NEW.source_relids, '{}') LOOP
        SELECT c.relkind, c.relpersistence INTO kind, persistence FROM pg_class c WHERE c.oid = source;
        IF NOT FOUND THEN
            CONTINUE WHEN NEW.signal = 'ungroup';
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
CREATE OR REPLACE FUNCTION pgtrickle._signal(signal text, sources oid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_source_signals (signal, source_relids) VALUES (signal, sources)
$$;


-- Keep the scheduler from refreshing what reads a source, until ungate_source. In the caller's transaction.
CREATE OR REPLACE FUNCTION pgtrickle.gate_source(source text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('gate', ARRAY[pgtrickle._named_relation(source)]);
END $$;


-- Take the gate back. In the caller's transaction: what that has loaded is seen by the refresh that follows, and by none before.
CREATE OR REPLACE FUNCTION pgtrickle.ungate_source(source text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('ungate', ARRAY[pgtrickle._named_relation(source)]);
END $$;


-- Bring what is known of sources up to date: after a restore relations have other OIDs and are found by their names; those
-- that have been renamed are noted, those that are gone forgotten. A row that somebody just changes is left for the next time.
CREATE OR REPLACE FUNCTION pgtrickle._keep_signals() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here text;
    gates jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_source_gates) THEN
        RETURN;
    END IF;
    here := pgtrickle._cluster();
    IF EXISTS (SELECT FROM pgtrickle.pgt_source_gates g WHERE g.cluster IS DISTINCT FROM here) THEN
        -- In two steps: one's new OID can be another's old one.
        gates := (SELECT jsonb_agg(to_jsonb(g)) FROM pgtrickle.pgt_source_gates g WHERE g.cluster IS DISTINCT FROM here);
        DELETE FROM pgtrickle.pgt_source_gates g WHERE g.cluster IS DISTINCT FROM here;
        INSERT INTO pgtrickle.pgt_source_gates (source_relid, gated, gated_at, ungated_at, gated_by, source_name, cluster)
        SELECT to_regclass(r.source_name), r.gated, r.gated_at, r.ungated_at, r.gated_by, r.source_name, here
        FROM jsonb_populate_recordset(NULL::pgtrickle.pgt_source_gates, gates) AS r WHERE to_regclass(r.source_name) IS NOT NULL
        ON CONFLICT (source_relid) DO NOTHING;
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


-- The relations with rows in common with one: it, its partitions and children at all levels, and what these are partitions or
-- children of. (Of a view both it and what is below it are sources.)
CREATE OR REPLACE FUNCTION pgtrickle._overlapping(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE below AS (
        SELECT relation AS relid
        UNION SELECT h.inhrelid FROM below b JOIN pg_inherits h ON h.inhparent = b.relid
    ), above AS (
        SELECT b.relid FROM below b
        UNION SELECT h.inhparent FROM above a JOIN pg_inherits h ON h.inhrelid = a.relid
    )
    SELECT a.relid FROM above a
$$;


-- The stream tables that depend on a source, directly or through others.
CREATE OR REPLACE FUNCTION pgtrickle._dependents(source oid) RETURNS TABLE (pgt_id bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reader AS (
        SELECT s.pgt_id, s.pgt_relid
        FROM pgtrickle._overlapping(source) AS o(relid)
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = o.relid
        JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
        UNION
        SELECT s.pgt_id, s.pgt_relid
        FROM reader r
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = r.pgt_relid
        JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
    )
    SELECT DISTINCT r.pgt_id FROM reader r
$$;


-- The stream tables that the scheduler must not refresh now, and why.
CREATE OR REPLACE FUNCTION pgtrickle._held_back() RETURNS TABLE (pgt_id bigint, reason text)
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_source_gates g WHERE g.gated) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT d.pgt_id, string_agg(h.reason, '; ' ORDER BY h.reason)
    FROM (SELECT g.source_relid, format('source %s is gated', pgtrickle._qualified(g.source_relid)) AS reason
          FROM pgtrickle._gates() g WHERE g.gated) AS h
    CROSS JOIN LATERAL pgtrickle._dependents(h.source_relid) AS d
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


-- The same, with how long the gate is or was there, and what it keeps from being refreshed; those that are gated first.
CREATE OR REPLACE FUNCTION pgtrickle.bootstrap_gate_status()
RETURNS TABLE (source_table text, schema_name text, gated boolean, gated_at timestamptz, ungated_at timestamptz,
               gated_by text, gate_duration interval, affected_stream_tables text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.relname::text, n.nspname::text, g.gated, g.gated_at, g.ungated_at, g.gated_by,
           CASE WHEN g.gated THEN now() ELSE g.ungated_at END - g.gated_at,
           coalesce((SELECT string_agg(s.pgt_schema || '.' || s.pgt_name, ', ' ORDER BY s.pgt_schema, s.pgt_name)
                     FROM pgtrickle._dependents(g.source_relid) d JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
                     WHERE g.gated), '')
    FROM pgtrickle._gates() g
    JOIN pg_class c ON c.oid = g.source_relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY g.gated DESC, 1, 2
$$;
