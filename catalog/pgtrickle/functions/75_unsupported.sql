-- Functions of the reference that this version has not. They exist with their signatures, so that \df shows them and a
-- call is refused with 0A000 rather than with "function does not exist".

CREATE OR REPLACE FUNCTION pgtrickle.pgt_scc_status()
RETURNS TABLE (scc_id int4, member_count int4, members text[], last_iterations int4, last_converged_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._not_supported('circular dependencies are');
END $$;
