-- Locks that no other role can take: rows and tables to which nobody else has a right. An advisory lock would be free to all.


-- Whether a session still lives that logged in as a role. Of another role's session PostgreSQL may not show when it began:
-- then it is taken to be the one that was meant.
CREATE OR REPLACE FUNCTION pgtrickle._is_session(pid int, backend_start timestamptz, role oid) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_stat_get_activity(_is_session.pid) a
        WHERE a.usesysid = _is_session.role AND coalesce(a.backend_start = _is_session.backend_start, true)
          AND a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._is_session(int, timestamptz, oid) FROM PUBLIC;


-- The process of the session that holds a lease, NULL if none does.
CREATE OR REPLACE FUNCTION pgtrickle._lease_holder(name text) RETURNS int
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.pid FROM pgtrickle.pgt_leases l
    WHERE l.name = _lease_holder.name AND pgtrickle._is_session(l.pid, l.backend_start, l.role)
$$;


-- How long ago the holder of a lease has shown that it lives, zero while it is at work; NULL if none holds it. For people: servers
-- time each other by their own clocks.
CREATE OR REPLACE FUNCTION pgtrickle._lease_beat(name text) RETURNS interval
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN a.state LIKE 'idle%' THEN greatest(clock_timestamp() - a.state_change, '0') ELSE '0' END
    FROM pgtrickle.pgt_leases l, pg_stat_get_activity(l.pid) a
    WHERE l.name = _lease_beat.name AND pgtrickle._is_session(l.pid, l.backend_start, l.role)
$$;


-- Have this session hold a lease until it ends. False if another one holds it (unless it is `taken_over`), or on a standby.
-- To be called outside a transaction block.
CREATE OR REPLACE FUNCTION pgtrickle._take_lease(name text, taken_over boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_stat_clear_snapshot();
    IF pg_is_in_recovery() OR NOT taken_over AND pgtrickle._lease_holder(_take_lease.name) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- Of two that come at once the second waits for the first, and then sees its row.
    INSERT INTO pgtrickle.pgt_leases AS l (name, pid, backend_start, role)
    SELECT _take_lease.name, a.pid, a.backend_start, a.usesysid FROM pg_stat_get_activity(pg_backend_pid()) a
    ON CONFLICT (name) DO UPDATE
    SET pid = excluded.pid, backend_start = excluded.backend_start, role = excluded.role
    WHERE taken_over OR NOT pgtrickle._is_session(l.pid, l.backend_start, l.role);
    RETURN FOUND;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._take_lease(text, boolean) FROM PUBLIC;


-- Forget leases whose session has ended.
CREATE OR REPLACE FUNCTION pgtrickle._remove_lost_leases() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    DELETE FROM pgtrickle.pgt_leases l WHERE NOT pgtrickle._is_session(l.pid, l.backend_start, l.role);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._remove_lost_leases() FROM PUBLIC;


-- The lock of a source, until the transaction ends: somebody is starting to read its buffer. Many can hold it.
-- Raises 40001 at REPEATABLE READ where the row is younger than the snapshot.
CREATE OR REPLACE FUNCTION pgtrickle._share_source(source oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOOP
        PERFORM FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = source FOR KEY SHARE;
        EXIT WHEN FOUND;
        INSERT INTO pgtrickle.pgt_source_locks (source_relid) VALUES (source) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._share_source(oid) FROM PUBLIC;


-- The same for one alone: its buffer is emptied or dropped. False if anybody holds the lock.
CREATE OR REPLACE FUNCTION pgtrickle._own_source(source oid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = source FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._own_source(oid) FROM PUBLIC;


-- The lock under which the privileges of a source's buffer change: writers of one relation's privileges must not meet. Who
-- shares the source is not in the way.
CREATE OR REPLACE FUNCTION pgtrickle._lock_privileges(source oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._share_source(source);
    PERFORM FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = source FOR NO KEY UPDATE;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._lock_privileges(oid) FROM PUBLIC;


-- The same without waiting: false if somebody else has it.
CREATE OR REPLACE FUNCTION pgtrickle._try_lock_privileges(source oid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = source) THEN
        INSERT INTO pgtrickle.pgt_source_locks (source_relid) VALUES (source) ON CONFLICT DO NOTHING;
    END IF;
    PERFORM FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = source FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._try_lock_privileges(oid) FROM PUBLIC;


-- See to it that captured sources have a row to be locked, and that others have none.
CREATE OR REPLACE FUNCTION pgtrickle._tidy_source_locks() RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_source_locks (source_relid)
    SELECT k.source_relid FROM pgtrickle.pgt_captures k
    WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = k.source_relid)
    ON CONFLICT DO NOTHING;
    DELETE FROM pgtrickle.pgt_source_locks d WHERE d.source_relid IN (
        SELECT l.source_relid FROM pgtrickle.pgt_source_locks l
        WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE k.source_relid = l.source_relid)
        FOR UPDATE SKIP LOCKED)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._tidy_source_locks() FROM PUBLIC;


-- The lock of a name in a schema in which the caller may create, until the transaction ends. Whoever may not will not get
-- so far as to need it.
CREATE OR REPLACE FUNCTION pgtrickle._lock_name(schema text, name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key text := format('%I.%I', schema, name);
BEGIN
    IF has_schema_privilege(pgtrickle._caller(), to_regnamespace(quote_ident(schema))::oid, 'CREATE') THEN
        -- Whoever inserts the same row waits for the end of this transaction, and then finds none.
        INSERT INTO pgtrickle.pgt_name_locks AS l (name) VALUES (key);
        DELETE FROM pgtrickle.pgt_name_locks l WHERE l.name = key;
    END IF;
END $$;


-- Whether the session may take locks on a relation that keep others from it until its transaction ends: the engine may,
-- whose transactions are short, the relation's owner, and whoever could do so by LOCK TABLE. Where somebody else's changes
-- are to be captured the engine does it, see _capture_ahead. To be called by functions with SECURITY DEFINER.
CREATE OR REPLACE FUNCTION pgtrickle._may_lock(relation oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := pgtrickle._caller();
    rights CONSTANT text := 'UPDATE, DELETE, TRUNCATE'
        || CASE WHEN current_setting('server_version_num')::int >= 170000 THEN ', MAINTAIN' ELSE '' END;
BEGIN
    RETURN caller = to_regrole(quote_ident(current_user))::oid OR coalesce(
        (SELECT has_table_privilege(caller, c.oid, rights) OR pg_has_role(caller, c.relowner, 'USAGE')
         FROM pg_class c WHERE c.oid = relation), false);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._may_lock(oid) FROM PUBLIC;


-- Whether this transaction ends soon whatever a client does: it is the engine's, or the relay says that it holds one statement.
CREATE OR REPLACE FUNCTION pgtrickle._ends_soon() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._caller() = to_regrole(quote_ident(current_user))::oid AND current_setting('headwater.engine', true) IS NOT DISTINCT FROM 'on'
        OR current_setting('headwater.alone', true) IS NOT DISTINCT FROM 'on'
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._ends_soon() FROM PUBLIC;
