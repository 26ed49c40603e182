-- Refreshes under way, seen from other sessions.
--
-- A refresh is one transaction, and what it writes nobody else sees. But its locks are seen: so it takes an advisory lock for each
-- phase that it enters, shared, without ever waiting, and holds it until the transaction ends. The first key is 0x48570000 with the
-- phase and what is attempted, the second the stream table.


-- Show that a refresh of a stream table enters a phase (1: waits for another one, 2: begins, 3: has Spark compute, 4: stores), and what
-- it is, once that is decided: DIFFERENTIAL, FULL or REINITIALIZE. The last of these counts.
CREATE OR REPLACE FUNCTION pgtrickle._note_progress(pgt_id bigint, phase int, action text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_try_advisory_xact_lock_shared(
        1213661184 + phase * 4 + coalesce(array_position(ARRAY['DIFFERENTIAL', 'FULL', 'REINITIALIZE'], action), 0),
        (pgt_id & 2147483647)::int);
END $$;


-- The refreshes under way of stream tables that the caller may read or acts for, or of all for members of pg_monitor. Anybody can take
-- an advisory lock: it only counts in a session whose login may act for the owner.
CREATE OR REPLACE FUNCTION pgtrickle._refreshes_under_way()
RETURNS TABLE (pgt_id bigint, pid int, code int) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.pgt_id, l.pid, max((l.classid::bigint - 1213661184)::int)
    FROM pg_locks l
    JOIN pgtrickle.pgt_definitions s ON (s.pgt_id & 2147483647) = l.objid::bigint
    JOIN pg_stat_get_activity(NULL) a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.mode = 'ShareLock' AND l.granted
      AND l.classid::bigint BETWEEN 1213661184 AND 1213661184 + 31
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.pgt_owner AND pg_has_role(a.usesysid, r.oid, 'MEMBER'))
      AND (coalesce(has_table_privilege(pgtrickle._caller(), s.pgt_relid, 'SELECT'), false)
           OR pg_has_role(pgtrickle._caller(), 'pg_monitor', 'USAGE')
           OR EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.pgt_owner AND pg_has_role(pgtrickle._caller(), r.oid, 'USAGE')))
    GROUP BY s.pgt_id, l.pid
$$;
