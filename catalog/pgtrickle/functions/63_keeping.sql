-- Who may read what is captured, and what is captured at all: looked after by the engine, every second.


-- What decides who may read the captured changes of the sources, in short: it differs when anything of it has changed. Not all
-- of it can be seen by event triggers: roles and their memberships belong to the cluster, and DROP OWNED tells nothing.
CREATE OR REPLACE FUNCTION pgtrickle._rights_state() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(concat_ws(' ',
        (SELECT concat_ws(' ', count(*), sum(hashtextextended(concat_ws(' ', m.xmin, m.roleid, m.member, m.grantor), 0))) FROM pg_auth_members m),
        (SELECT concat_ws(' ', count(*), sum(hashtextextended(concat_ws(' ', r.oid, r.rolsuper, r.rolinherit, r.rolbypassrls), 0)))
         FROM pg_roles r),
        (SELECT sum(hashtextextended(concat_ws(' ', c.oid, c.relowner, c.relacl, c.relrowsecurity, c.relforcerowsecurity,
                                               n.oid, n.nspowner, n.nspacl,
                                               (SELECT string_agg(concat(a.attnum, a.attacl), ' ' ORDER BY a.attnum)
                                                FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL)), 0))
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid IN (SELECT k.source_relid FROM pgtrickle.pgt_captures k
                         UNION ALL SELECT d.source_relid FROM pgtrickle.pgt_dependencies d
                                   JOIN pgtrickle.pgt_definitions s USING (pgt_id)
                                   WHERE d.source_type = 'FOREIGN_TABLE' OR s.refresh_mode = 'IMMEDIATE')),
        (SELECT sum(hashtextextended(concat_ws(' ', d.source_relid, s.pgt_owner), 0))
         FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s USING (pgt_id))))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._rights_state() FROM PUBLIC;


-- Take captured changes from those who may not read them any more, if anything has changed since a _rights_state (`seen`;
-- NULL: look in any case), and end captures that nobody needs. Returns the state now, NULL if something was busy and is left
-- for the next time. For the engine, in a transaction of its own.
CREATE OR REPLACE FUNCTION pgtrickle._keep_captures(seen text) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    state text := pgtrickle._rights_state();
BEGIN
    IF state IS DISTINCT FROM seen THEN
        IF NOT (pgtrickle._revoke_buffers(false) AND pgtrickle._leave_immediate_without_rights(false)) THEN
            state := NULL;
        END IF;
    END IF;
    RETURN state;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._keep_captures(text) FROM PUBLIC;
