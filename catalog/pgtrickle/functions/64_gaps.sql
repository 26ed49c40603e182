-- Stream tables that nothing wakes: what they read is not what it was, and no captured change says so.


-- The stream tables whose capture has a gap, or one of whose sources or functions has changed or is gone: what a refresh would find
-- broken (_refresh_context). In one snapshot, that of the statement that calls it.
CREATE OR REPLACE FUNCTION pgtrickle._with_gaps() RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    gaps CONSTANT oid[] := ARRAY(
        SELECT k.source_relid
        FROM pgtrickle.pgt_captures k JOIN pg_class c ON c.oid = k.source_relid
        WHERE k.trigger_state <> pgtrickle._trigger_state(k.source_relid, k.relations)
           OR (c.relhassubclass OR cardinality(k.relations) > 1) AND k.relations <> pgtrickle._relations(k.source_relid)
           OR pgtrickle._is_replicated_into(k.relations));
BEGIN
    RETURN QUERY
    SELECT m.pgt_id FROM pgtrickle.pgt_definitions m
    WHERE m.is_populated AND NOT m.needs_reinit AND m.status = 'ACTIVE' AND (
        m.refresh_mode = 'IMMEDIATE' AND pgtrickle._immediate_gap(m.pgt_id) IS NOT NULL OR
        EXISTS (SELECT FROM pgtrickle.pgt_dependencies d LEFT JOIN pgtrickle.pgt_captures k USING (source_relid)
                WHERE d.pgt_id = m.pgt_id AND d.cdc_mode IS NOT NULL
                  AND (d.source_relid = ANY (gaps) OR k.generation IS DISTINCT FROM d.capture_generation))
        OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d LEFT JOIN pg_class c ON c.oid = d.source_relid
                   WHERE d.pgt_id = m.pgt_id AND (c.oid IS NULL OR pgtrickle._definition_changed(
                       d.source_relid, d.columns_used, d.schema_fingerprint, d.column_snapshot->'known', c.relnatts,
                       m.refresh_mode)))
        OR m.function_hashes <> '{}' AND pgtrickle._changed_function(m.function_hashes) IS NOT NULL);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._with_gaps() FROM PUBLIC;


-- Mark these, so that the next look of the scheduler finds them due; returns how many. The
-- event trigger has marked most of them already. This is for what it does not see: DDL with event_triggers = off, or where the
-- engine's role may not create event triggers; partitions that were created or dropped; functions. What is just being refreshed
-- is left for the next time. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._mark_gaps() RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET lock_timeout = '100ms' AS $$
DECLARE
    broken bigint[];
    marked int;
    system CONSTANT text := pgtrickle._system();
BEGIN
    -- What was restored goes on by name. A refresh sees to it as well, but takes that back where a gate keeps it from its work.
    IF EXISTS (SELECT FROM pgtrickle.pgt_definitions s WHERE s.frontier->>'system' <> system) THEN
        BEGIN
            PERFORM pgtrickle._adopt_restored();
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- somebody is at it
        END;
    END IF;
    -- What could not be maintained by triggers, and can be by now, is tried again.
    UPDATE pgtrickle.pgt_definitions s SET fallback_reason = NULL, updated_at = clock_timestamp()
    WHERE s.pgt_id IN (
        SELECT m.pgt_id FROM pgtrickle.pgt_definitions m
        WHERE m.requested_mode = 'IMMEDIATE' AND m.refresh_mode <> 'IMMEDIATE' AND m.is_populated AND m.status = 'ACTIVE'
          AND m.fallback_reason IS NOT NULL AND pgtrickle._why_not_immediate(m.pgt_id) IS NULL
        FOR UPDATE OF m SKIP LOCKED);
    broken := ARRAY(SELECT g.pgt_id FROM pgtrickle._with_gaps() AS g(pgt_id));
    IF cardinality(broken) = 0 THEN
        RETURN 0;
    END IF;
    -- One that was repaired and has become IMMEDIATE since it was looked at would be so no longer, for no reason. Whoever does that has
    -- its row, so once that is locked it is looked at again, by a new snapshot: PostgreSQL would compare the new row with the old catalog.
    broken := ARRAY(SELECT m.pgt_id FROM pgtrickle.pgt_definitions m WHERE m.pgt_id = ANY (broken) FOR UPDATE SKIP LOCKED);
    UPDATE pgtrickle.pgt_definitions s SET needs_reinit = true, updated_at = clock_timestamp()
    WHERE s.pgt_id = ANY (broken) AND s.pgt_id IN (SELECT pgtrickle._with_gaps());
    GET DIAGNOSTICS marked = ROW_COUNT;
    RETURN marked;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._mark_gaps() FROM PUBLIC;
