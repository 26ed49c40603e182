-- What the server's engine does for registers, by which settings, and when it last did.


-- The settings, with what is in force: as ALTER SYSTEM, ALTER DATABASE or the session says, or the default where nobody
-- says anything, or nothing that can be used; `problem` tells then. Times are in milliseconds.
--
-- A session keeps what ALTER DATABASE said when it began. The engine's own are old, and set nothing: there what is said
-- now comes first.
CREATE OR REPLACE VIEW @extschema@._config AS
WITH settings (name, fallback, least, most, unit, description) AS (VALUES
    ('background_workers', 1, 0, 8, NULL, 'Number of workers that merge and make partitions; 0: none.'),
    ('delta_merge_interval', 5000, 1, 2147483647, 'ms', 'Time between two merges of pending rows.'),
    ('delta_merge_delay', 2000, 0, 2147483647, 'ms', 'Pending rows are merged when they are that old.'),
    ('delta_merge_batch_size', 10000, 1, 2147483647, NULL, 'Pending rows of a register that one merge takes.'),
    ('partitions_ahead', 3, 0, 1000, NULL, 'Partitions that are kept ready for periods to come.'),
    ('maintenance_interval', 3600000, 1, 2147483647, 'ms', 'Time between two looks after partitions.')),
said AS (
    SELECT s.*, nullif(coalesce(
               CASE WHEN current_setting('headwater.engine', true) = 'on' THEN (
                   SELECT substr(entry, strpos(entry, '=') + 1) FROM pg_db_role_setting d, unnest(d.setconfig) AS entry
                    WHERE d.setrole = 0 AND d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
                      AND starts_with(lower(entry), 'pg_accumulator.' || s.name || '=')
                    ORDER BY d.setdatabase DESC LIMIT 1) END,
               current_setting('pg_accumulator.' || s.name, true)), '') AS value
      FROM settings s),
understood AS (
    SELECT s.*, part[1]::numeric * CASE lower(part[2]) WHEN 's' THEN 1000 WHEN 'min' THEN 60000 WHEN 'h' THEN 3600000
                                                      WHEN 'd' THEN 86400000 ELSE 1 END AS number
      FROM said s LEFT JOIN LATERAL regexp_match(s.value, CASE WHEN s.unit IS NULL THEN E'^\\s*(\\d{1,12})()\\s*$'
                                                              ELSE E'^\\s*(\\d{1,12})\\s*(ms|s|min|h|d|)\\s*$' END) AS part ON true)
SELECT 'pg_accumulator.' || name AS name,
       CASE WHEN number BETWEEN least AND most THEN number ELSE fallback END::integer AS setting,
       unit, fallback AS "default", least AS min_value, most AS max_value, description,
       CASE WHEN value IS NOT NULL AND (number BETWEEN least AND most) IS NOT TRUE
            THEN format('"%s" is not a number between %s and %s', value, least, most) END AS problem
  FROM understood;
GRANT SELECT ON @extschema@._config TO PUBLIC;


-- What is in force of one setting, named without its prefix.
CREATE OR REPLACE FUNCTION accum_internal._setting(setting text) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.setting FROM @extschema@._config c WHERE c.name = 'pg_accumulator.' || _setting.setting
$$;


-- What the engine looks at: each register with the role that works on it, and how far the buffer of one in high-write
-- mode has been written. Nothing of a register's own is read here, where that would be done with the engine's rights.
CREATE OR REPLACE FUNCTION accum_internal._maintained(
    OUT register text, OUT owner text, OUT high_write boolean, OUT written bigint
) RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.name, a.rolname, g.high_write,
           CASE WHEN has_sequence_privilege(s.oid, 'SELECT') THEN pg_sequence_last_value(s.oid) END
      FROM @extschema@._registers g
      JOIN pg_class m ON m.oid = g.movements AND accum_internal._owner_of(g) = m.relowner
      JOIN pg_roles a ON a.oid = m.relowner
      LEFT JOIN pg_class b ON g.high_write AND b.relnamespace = m.relnamespace AND b.relowner = m.relowner AND b.relname = g.name || '_balance_cache_delta'
      LEFT JOIN (pg_depend d JOIN pg_class s ON d.classid = 'pg_class'::regclass AND s.oid = d.objid AND s.relkind = 'S')
             ON d.refclassid = 'pg_class'::regclass AND d.refobjid = b.oid AND d.deptype = 'a'
     ORDER BY g.name
$$;


-- Whether the engine has anything to do: registers in high-write mode, or partitions to look after, and if not, after
-- how many seconds.
CREATE OR REPLACE FUNCTION accum_internal._maintenance_due(OUT workers integer, OUT merges boolean, OUT partitions_in float8)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._setting('background_workers'),
           EXISTS (SELECT FROM @extschema@._registers WHERE high_write),
           CASE WHEN EXISTS (SELECT FROM @extschema@._registers) THEN greatest(0, coalesce(
               (SELECT date_part('epoch', least(finished_at - now(), '0')) + accum_internal._setting('maintenance_interval') / 1000.0
                  FROM @extschema@._maintenance_runs WHERE task = 'partitions'), 0)) END
$$;


-- The engine's turn at a register in high-write mode, taken with the owner's rights: merge a batch. Returns how many rows,
-- and whether it has left any; or that the register must be repaired, in a transaction whose statements share a
-- snapshot, in which this does so.
CREATE OR REPLACE FUNCTION accum_internal._maintain_deltas(p_name text, p_delay integer, p_batch_size integer) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = on AS $$
DECLARE
    r @extschema@._registers := accum_internal._register(p_name);
    alive boolean;
    merged bigint := 0;
    rest boolean;
BEGIN
    IF r.high_write THEN
        alive := accum_internal._is_alive(r);
    END IF;
    IF alive THEN
        merged := accum_internal._merge_deltas(r, make_interval(secs => p_delay / 1000.0), p_batch_size);
    END IF;
    IF alive IS NULL OR merged IS NULL THEN  -- not in high-write mode any more
        RETURN '{"merged": 0, "rest": false}';
    ELSIF alive THEN
        NULL;
    ELSIF current_setting('transaction_isolation') = 'read committed' THEN
        RETURN '{"lost": true}';
    ELSE
        PERFORM accum_internal._repair_delta_buffer(r);
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', accum_internal._name(r.name || '_balance_cache_delta')) INTO rest;
    RETURN jsonb_build_object('merged', merged, 'rest', rest);
END $$;


-- The engine's turn at the partitions of a register, taken with the owner's rights. Returns how many were made.
CREATE OR REPLACE FUNCTION accum_internal._maintain_partitions(p_name text, p_ahead integer) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = on AS $$
    SELECT accum_internal._keep_partitions(accum_internal._register(p_name), p_ahead)
$$;


-- The engine has looked after all partitions.
CREATE OR REPLACE FUNCTION accum_internal._note_maintenance(p_task text, p_started timestamptz) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO @extschema@._maintenance_runs VALUES (p_task, p_started, clock_timestamp())
    ON CONFLICT (task) DO UPDATE SET started_at = excluded.started_at, finished_at = excluded.finished_at
$$;


-- The engine's workers in this database: those that are connected, and the one that only comes to look after partitions
-- (without a pid, waiting; started_at is then when it last came). It has rights of its own, since PostgreSQL shows what
-- a session does to its own role only.
CREATE OR REPLACE FUNCTION @extschema@._maintenance_status(
    OUT pid integer, OUT worker_name text, OUT state text, OUT query text, OUT started_at timestamptz
) RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH leader AS (
        SELECT a.pid, a.usesysid FROM pg_stat_activity a WHERE a.pid = accum_internal._leader()),
    workers AS (
        SELECT a.pid, split_part(a.application_name, ': ', 1) AS worker_name, coalesce(a.state, 'active') AS state,
               split_part(a.application_name, ': ', 2) AS task, a.backend_start
          FROM pg_stat_activity a, leader l
         WHERE a.datname = current_database() AND a.usesysid = l.usesysid AND a.application_name LIKE 'pg_accumulator maintenance %')
    SELECT w.pid, w.worker_name, w.state, coalesce(nullif(w.task, ''), 'delta merge'), w.backend_start FROM workers w
    UNION ALL
    SELECT NULL, 'pg_accumulator maintenance 0', 'waiting', m.task, m.started_at FROM @extschema@._maintenance_runs m
     WHERE NOT EXISTS (SELECT FROM workers)
       AND EXISTS (SELECT FROM @extschema@._registers) AND accum_internal._setting('background_workers') > 0
     ORDER BY 2
$$;


-- The process that leads the engine's workers here, NULL if there is none. Leases stand in the schema of stream tables; where
-- that is somebody else's, it is not asked.
CREATE OR REPLACE FUNCTION accum_internal._leader() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT p.proowner FROM pg_proc p WHERE p.oid = to_regprocedure('pgtrickle._lease_holder(text)'))
       = (SELECT a.oid FROM pg_roles a WHERE a.rolname = current_user) THEN
        RETURN pgtrickle._lease_holder('register maintenance');
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION accum_internal._leader() FROM PUBLIC;
DROP FUNCTION IF EXISTS @extschema@._election_lock();  -- of an earlier version, which used advisory locks
