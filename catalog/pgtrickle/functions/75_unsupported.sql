-- Functions of the reference that this version has not. They exist with their signatures, so that \df shows them and a
-- call is refused with 0A000 rather than with "function does not exist".

CREATE OR REPLACE FUNCTION pgtrickle.parallel_job_status(max_age_seconds int DEFAULT 300)
RETURNS TABLE (job_id bigint, unit_key text, unit_kind text, status text, member_count int, attempt_no int,
               scheduler_pid int, worker_pid int, enqueued_at timestamptz, started_at timestamptz,
               finished_at timestamptz, duration_ms float8) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._not_supported('parallel_job_status is', 'Look at pgtrickle.refresh_timeline().');
END $$;

CREATE OR REPLACE FUNCTION pgtrickle.pgt_scc_status()
RETURNS TABLE (scc_id int4, member_count int4, members text[], last_iterations int4, last_converged_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._not_supported('circular dependencies are');
END $$;


-- Refresh groups.
CREATE OR REPLACE FUNCTION pgtrickle.create_refresh_group(
    group_name text, members text[], isolation text DEFAULT 'read_committed'
) RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._not_supported('refresh groups are');
END $$;

CREATE OR REPLACE FUNCTION pgtrickle.drop_refresh_group(group_name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._not_supported('refresh groups are');
END $$;

CREATE OR REPLACE FUNCTION pgtrickle.refresh_groups()
RETURNS TABLE (group_id int, group_name text, member_oids oid[], isolation text, created_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._not_supported('refresh groups are');
END $$;
