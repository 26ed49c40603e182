-- Stream tables that are refreshed together: refresh groups, and what the scheduler's workers have done with them.
--
-- What makes a unit the scheduler decides (engine/scheduling/units.py). Groups are made and dropped by signals, as gates are
-- (72_gates.sql), so every function can do it.


-- Raises 42501 unless the calling role has the rights of the owners of all these stream tables, and of those that would be
-- refreshed with them since they stand between two of them.
CREATE OR REPLACE FUNCTION pgtrickle._check_group_owner(members oid[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    foreign_one record;
BEGIN
    WITH RECURSIVE below AS (
        SELECT u.relid FROM unnest(members) AS u(relid)
        UNION SELECT s.pgt_relid
        FROM below b JOIN pgtrickle.pgt_dependencies d ON d.source_relid = b.relid JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    ), above AS (
        SELECT u.relid FROM unnest(members) AS u(relid)
        UNION SELECT d.source_relid
        FROM above a JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid = a.relid JOIN pgtrickle.pgt_dependencies d USING (pgt_id)
    )
    SELECT s.pgt_schema, s.pgt_name, s.pgt_relid = ANY (members) AS is_member INTO foreign_one
    FROM pgtrickle.pgt_stream_tables s
    WHERE s.pgt_relid IN (SELECT b.relid FROM below b) AND s.pgt_relid IN (SELECT a.relid FROM above a)
      AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.pgt_owner AND pg_has_role(current_user, r.oid, 'USAGE'))
    ORDER BY s.pgt_relid <> ALL (members), s.pgt_id LIMIT 1;
    IF FOUND THEN
        PERFORM pgtrickle._raise('42501',
            format('must be owner of stream table "%s.%s"', foreign_one.pgt_schema, foreign_one.pgt_name),
            CASE WHEN NOT foreign_one.is_member
                 THEN 'It stands between members of the group, and would be refreshed with them.' END, NULL);
    END IF;
END $$;


-- Raises an error unless the calling role may make or drop a refresh group: 0A000, 22004, 22023, 42P01, 42501, 42704.
CREATE OR REPLACE FUNCTION pgtrickle._check_group_signal(s pgtrickle.pgt_source_signals) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present record;
    missing oid;
    wrong text;
BEGIN
    IF s.group_name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'name of the refresh group must not be null';
    ELSIF s.signal = 'drop refresh group' THEN
        SELECT g.member_oids, g.created_by INTO present FROM pgtrickle._refresh_groups() g WHERE g.group_name = s.group_name;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('refresh group "%s" does not exist', s.group_name);
        ELSIF NOT coalesce(pg_has_role(current_user, present.created_by, 'USAGE'), false) THEN
            PERFORM pgtrickle._check_group_owner(present.member_oids);
        END IF;
        RETURN;
    ELSIF s.source_relids IS NULL OR array_position(s.source_relids, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'members of the refresh group must not be null';
    ELSIF s.isolation IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'isolation level of the refresh group must not be null';
    END IF;
    wrong := CASE WHEN s.group_name = '' THEN 'name of the refresh group must not be empty'
                  WHEN s.isolation NOT IN ('read_committed', 'repeatable_read')
                      THEN format('invalid isolation level "%s"', s.isolation)
                  WHEN (SELECT count(DISTINCT u) < count(u) FROM unnest(s.source_relids) u)
                      THEN format('refresh group "%s" names a stream table twice', s.group_name)
                  WHEN cardinality(s.source_relids) < 2
                      THEN format('refresh group "%s" needs at least two stream tables', s.group_name) END;
    IF wrong IS NOT NULL THEN
        PERFORM pgtrickle._raise('22023', wrong, NULL,
            CASE WHEN starts_with(wrong, 'invalid') THEN 'Valid values are ''read_committed'' and ''repeatable_read''.' END);
    END IF;
    SELECT u.relid INTO missing FROM unnest(s.source_relids) AS u(relid)
    WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables t WHERE t.pgt_relid = u.relid);
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table with OID %s does not exist', missing);
    END IF;
    PERFORM pgtrickle._check_group_owner(s.source_relids);
    SELECT t.pgt_relid INTO missing FROM pgtrickle.pgt_stream_tables t
    WHERE t.pgt_relid = ANY (s.source_relids) AND t.engine = 'spark' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('stream table %s cannot be refreshed together with others on Spark', pgtrickle._qualified(missing)),
            HINT = 'What Spark reads is read by other transactions. Create it with another engine.';
    END IF;
END $$;


-- Make or drop a refresh group, after _check_group_signal, with the server's rights. Raises 42710.
CREATE OR REPLACE FUNCTION pgtrickle._take_group_signal(s pgtrickle.pgt_source_signals) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken record;
BEGIN
    IF s.signal = 'drop refresh group' THEN
        DELETE FROM pgtrickle.pgt_refresh_groups g WHERE g.group_name = s.group_name;
        RETURN;
    END IF;
    -- Of two that are made at once with a member in common the second must see the first.
    LOCK TABLE pgtrickle.pgt_refresh_groups IN SHARE ROW EXCLUSIVE MODE;
    SELECT g.group_name, pgtrickle._qualified(u.relid) AS member INTO taken
    FROM pgtrickle._refresh_groups() g CROSS JOIN LATERAL unnest(g.member_oids) AS u(relid)
    WHERE g.group_name = s.group_name OR u.relid = ANY (s.source_relids)
    ORDER BY g.group_name <> s.group_name LIMIT 1;
    IF taken.group_name = s.group_name THEN
        RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('refresh group "%s" already exists', s.group_name);
    ELSIF taken.group_name IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42710',
            MESSAGE = format('stream table %s is a member of refresh group "%s"', taken.member, taken.group_name),
            HINT = 'A stream table can be in one group only.';
    END IF;
    INSERT INTO pgtrickle.pgt_refresh_groups (group_name, member_oids, isolation, member_ids, created_by)
    VALUES (s.group_name, s.source_relids, s.isolation,
            ARRAY(SELECT t.pgt_id FROM unnest(s.source_relids) WITH ORDINALITY AS u(relid, n)
                  JOIN pgtrickle.pgt_definitions t ON t.pgt_relid = u.relid ORDER BY u.n), s.signalled_by);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._take_group_signal(pgtrickle.pgt_source_signals) FROM PUBLIC;


-- The groups with the members that there are. A stream table that is dropped has left its group, and a group that all have left is
-- none.
CREATE OR REPLACE FUNCTION pgtrickle._refresh_groups()
RETURNS TABLE (group_id int, group_name text, member_oids oid[], isolation text, created_at timestamptz, created_by oid,
               member_ids bigint[])
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_refresh_groups) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT g.group_id, g.group_name, m.oids, g.isolation, g.created_at, to_regrole(quote_ident(g.created_by))::oid, m.ids
    FROM pgtrickle.pgt_refresh_groups g
    CROSS JOIN LATERAL (
        SELECT array_agg(s.pgt_relid ORDER BY u.n) AS oids, array_agg(s.pgt_id ORDER BY u.n) AS ids
        FROM unnest(g.member_ids) WITH ORDINALITY AS u(pgt_id, n) JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)) AS m
    WHERE m.oids IS NOT NULL;
END $$;


-- Each stream table that is in a group, with what the scheduler wants to know of it.
CREATE OR REPLACE FUNCTION pgtrickle._group_members()
RETURNS TABLE (relid oid, group_id int, isolation text, group_owner oid)
LANGUAGE sql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
    SELECT DISTINCT ON (u.relid) u.relid, g.group_id, g.isolation, g.created_by
    FROM pgtrickle._refresh_groups() g CROSS JOIN LATERAL unnest(g.member_oids) AS u(relid)
    ORDER BY u.relid, g.group_id
$$;


-- Bring the groups up to date: see _keep_signals, which calls it. A group that somebody just drops is left for the next time.
CREATE OR REPLACE FUNCTION pgtrickle._keep_refresh_groups() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_refresh_groups) THEN
        RETURN;
    END IF;
    WITH gone AS (
        SELECT g.group_id FROM pgtrickle.pgt_refresh_groups g
        WHERE g.group_id NOT IN (SELECT p.group_id FROM pgtrickle._refresh_groups() p) FOR UPDATE SKIP LOCKED
    )
    DELETE FROM pgtrickle.pgt_refresh_groups g USING gone WHERE g.group_id = gone.group_id;
    WITH changed AS (
        SELECT g.group_id, p.member_oids, p.member_ids
        FROM pgtrickle.pgt_refresh_groups g JOIN pgtrickle._refresh_groups() p USING (group_id)
        WHERE (g.member_oids, g.member_ids) IS DISTINCT FROM (p.member_oids, p.member_ids) FOR UPDATE OF g SKIP LOCKED
    )
    UPDATE pgtrickle.pgt_refresh_groups g SET member_oids = c.member_oids, member_ids = c.member_ids
    FROM changed c WHERE g.group_id = c.group_id;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._keep_refresh_groups() FROM PUBLIC;


-- The storage tables of stream tables by their names, along the session's search_path. Raises 22004, 42P01.
CREATE OR REPLACE FUNCTION pgtrickle._named_stream_tables(names text[]) RETURNS oid[] LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN names IS NOT NULL
                THEN ARRAY(SELECT pgtrickle._storage_of(pgtrickle._resolve(u.name))
                           FROM pg_catalog.unnest(names) WITH ORDINALITY AS u(name, n) ORDER BY u.n) END
$$;

CREATE OR REPLACE FUNCTION pgtrickle._storage_of(pgt_id bigint) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.pgt_relid FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = _storage_of.pgt_id
$$;


-- Give a signal of a refresh group, with the caller's rights.
CREATE OR REPLACE FUNCTION pgtrickle._group_signal(
    signal text, group_name text, members oid[] DEFAULT NULL, isolation text DEFAULT NULL
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_source_signals (signal, group_name, source_relids, isolation)
    VALUES (signal, group_name, members, lower(isolation))
$$;

CREATE OR REPLACE FUNCTION pgtrickle._refresh_group_id(name text) RETURNS int
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.group_id FROM pgtrickle.pgt_refresh_groups g WHERE g.group_name = name
$$;


-- Have stream tables refreshed in one transaction from now on; returns the number of the group. With 'repeatable_read' all of them see
-- their sources as of one moment, whatever that costs; with 'read_committed' unless a source is captured from the write-ahead
-- log. In the caller's transaction. Raises 22023 for less than two members, 42710 if the group exists or a member is in another one.
CREATE OR REPLACE FUNCTION pgtrickle.create_refresh_group(
    group_name text, members text[], isolation text DEFAULT 'read_committed'
) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._group_signal('create refresh group', group_name, pgtrickle._named_stream_tables(members), isolation);
    RETURN pgtrickle._refresh_group_id(group_name);
END $$;


-- Have the members of a group refreshed one by one again. Raises 42704 if there is none.
CREATE OR REPLACE FUNCTION pgtrickle.drop_refresh_group(group_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._group_signal('drop refresh group', group_name);
END $$;


-- The refresh groups, each with its members and its isolation.
CREATE OR REPLACE FUNCTION pgtrickle.refresh_groups()
RETURNS TABLE (group_id int, group_name text, member_oids oid[], isolation text, created_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.group_id, g.group_name, g.member_oids, g.isolation, g.created_at
    FROM pgtrickle._refresh_groups() g ORDER BY g.group_name
$$;


-- A time that is given in microseconds since 1970.
CREATE OR REPLACE FUNCTION pgtrickle._job_time(microseconds bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_timestamp(0) + microseconds * interval '1 microsecond'
$$;


-- Lock stream tables that are refreshed together, until the transaction ends. Raises 55P03 where one is being refreshed or changed, or is
-- gone. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._lock_members(members bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked int;
BEGIN
    SELECT count(*) INTO locked
    FROM (SELECT FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = ANY (members) FOR UPDATE SKIP LOCKED) AS found;
    IF locked < cardinality(members) THEN
        RAISE EXCEPTION USING ERRCODE = '55P03',
            MESSAGE = 'a stream table that is to be refreshed with others is being refreshed or changed';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._lock_members(bigint[]) FROM PUBLIC;


-- Claim a turn for stream tables that are refreshed together, until the session's advisory locks are released: who refreshes or
-- changes one of them by hand gives way (_give_way). It waits for nobody. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._claim_turn(members bigint[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_try_advisory_lock_shared(1213661216, (u.pgt_id & 2147483647)::int) FROM unnest(members) AS u(pgt_id)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._claim_turn(bigint[]) FROM PUBLIC;


-- Whether a session of the scheduler's role claims a turn for a stream table. Anybody can take an advisory lock: of others it does not
-- count. Locks are seen whatever the transaction's snapshot is.
CREATE OR REPLACE FUNCTION pgtrickle._is_claimed(pgt_id bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key CONSTANT int := (pgt_id & 2147483647)::int;
BEGIN
    -- Most often nobody has it, which costs less to find out than to look through all locks.
    IF pg_try_advisory_lock(1213661216, key) THEN
        PERFORM pg_advisory_unlock(1213661216, key);
        RETURN false;
    END IF;
    PERFORM pg_stat_clear_snapshot();
    RETURN EXISTS (
        SELECT FROM pg_locks l CROSS JOIN LATERAL pg_stat_get_activity(l.pid) AS a
        WHERE l.locktype = 'advisory' AND l.classid = 1213661216 AND l.objid = key::oid AND l.objsubid = 2 AND l.granted
          AND l.mode = 'ShareLock' AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND a.usesysid = (SELECT h.role FROM pgtrickle.pgt_leases h WHERE h.name = 'scheduler'));
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._is_claimed(bigint) FROM PUBLIC;


-- Before a stream table is locked by hand: wait while a turn is claimed for it, a minute at most, and no longer than the caller waits
-- for locks. Nothing is locked that others could wait for, so this is no part of a deadlock; and who has locked another stream
-- table in the same transaction, which may be what the turn waits for, goes on.
CREATE OR REPLACE FUNCTION pgtrickle._give_way(pgt_id bigint, name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    patience interval := current_setting('lock_timeout')::interval;
    told boolean := false;
BEGIN
    patience := CASE WHEN patience > '0' THEN least(patience, '1 minute') ELSE '1 minute' END;
    IF EXISTS (
        -- See _note_progress: one has been locked for a refresh or a change.
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.objsubid = 2 AND l.mode = 'ShareLock'
          AND l.classid::bigint BETWEEN 1213661184 + 8 AND 1213661184 + 31)
    THEN
        RETURN;
    END IF;
    WHILE clock_timestamp() < began + patience AND pgtrickle._is_claimed(pgt_id) LOOP
        IF NOT told AND clock_timestamp() > began + interval '1 second' THEN
            told := true;
            RAISE NOTICE USING MESSAGE = format('waiting for the scheduler, which refreshes stream table "%s" together with others', name);
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._give_way(bigint, text) FROM PUBLIC;


-- Count that stream tables have been refreshed together, the first of which is this one. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._count_epoch(first bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_unit_epochs AS e (pgt_id, epoch) VALUES (first, 1)
    ON CONFLICT (pgt_id) DO UPDATE SET epoch = e.epoch + 1
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._count_epoch(bigint) FROM PUBLIC;


-- The scheduler's jobs that ended after a time, as the history has them, and those that are queued or running, as it has last noted. A
-- refresh that found nothing is no job. What failed is shown to everybody, why is in the history.
CREATE OR REPLACE FUNCTION pgtrickle._scheduler_jobs(since timestamptz)
RETURNS TABLE (job_id bigint, unit_key text, unit_kind text, status text, member_count int, attempt_no int, scheduler_pid int,
               worker_pid int, enqueued_at timestamptz, started_at timestamptz, finished_at timestamptz, duration_ms float8)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH finished AS (
        SELECT coalesce(min(h.job_unit), 's:' || min(h.pgt_id)) AS unit_key,
               CASE WHEN bool_or(h.status = 'FAILED') THEN 'FAILED' ELSE 'SUCCEEDED' END AS status, min(h.job_attempt) AS attempt_no,
               min(h.job_scheduler_pid) AS scheduler_pid, min(h.job_worker_pid) AS worker_pid,
               h.job_enqueued_at AS enqueued_at, min(h.start_time) AS started_at, max(h.end_time) AS finished_at
        FROM pgtrickle.pgt_refresh_history h
        WHERE h.job_enqueued_at IS NOT NULL
          AND h.start_time >= since - make_interval(secs => greatest(86400, pgtrickle._seconds('pg_trickle.refresh_timeout', 7200)))
        GROUP BY h.job_enqueued_at
    ), jobs AS (
        SELECT f.* FROM finished f WHERE f.finished_at >= since
        UNION ALL
        SELECT p.unit_key, CASE WHEN p.started_at IS NULL THEN 'QUEUED' ELSE 'RUNNING' END, p.attempt_no, p.scheduler_pid,
               p.worker_pid, p.enqueued_at, p.started_at, NULL
        FROM pgtrickle.pgt_pending_jobs p
        WHERE p.scheduler_pid = pgtrickle._lease_holder('scheduler')
          AND NOT EXISTS (SELECT FROM finished f WHERE f.enqueued_at = p.enqueued_at)
    )
    SELECT (extract(epoch FROM j.enqueued_at) * 1000000)::bigint, j.unit_key,
           CASE WHEN starts_with(j.unit_key, 's:') THEN 'singleton' ELSE 'atomic_group' END, j.status,
           cardinality(string_to_array(j.unit_key, ',')), j.attempt_no, j.scheduler_pid, j.worker_pid, j.enqueued_at, j.started_at,
           j.finished_at, (extract(epoch FROM j.finished_at - j.started_at) * 1000)::float8
    FROM jobs j
$$;


-- All of them.
CREATE OR REPLACE VIEW pgtrickle.pgt_scheduler_jobs AS
SELECT * FROM pgtrickle._scheduler_jobs('-infinity');
GRANT SELECT ON pgtrickle.pgt_scheduler_jobs TO PUBLIC;


-- The scheduler's jobs: what is queued or running, and what has ended within so many seconds; the latest first.
CREATE OR REPLACE FUNCTION pgtrickle.parallel_job_status(max_age_seconds int DEFAULT 300)
RETURNS TABLE (job_id bigint, unit_key text, unit_kind text, status text, member_count int, attempt_no int,
               scheduler_pid int, worker_pid int, enqueued_at timestamptz, started_at timestamptz,
               finished_at timestamptz, duration_ms float8)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM pgtrickle._scheduler_jobs(clock_timestamp() - make_interval(secs => max_age_seconds)) j ORDER BY j.job_id DESC
$$;


-- Note the jobs that are queued or running, all of them: an array of {"enqueued", "started" (microseconds since 1970), "unit",
-- "attempt", "scheduler", "worker"}. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._note_jobs(jobs jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgtrickle.pgt_pending_jobs;
    INSERT INTO pgtrickle.pgt_pending_jobs (enqueued_at, unit_key, attempt_no, scheduler_pid, worker_pid, started_at)
    SELECT pgtrickle._job_time(j.enqueued), j.unit, j.attempt, j.scheduler, j.worker, pgtrickle._job_time(j.started)
    FROM jsonb_to_recordset(jobs) AS j(enqueued bigint, started bigint, unit text, attempt int, scheduler int, worker int);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._note_jobs(jsonb) FROM PUBLIC;
