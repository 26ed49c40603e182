-- Who may see what stream tables are computed from.


-- Whether the calling role may see the query of a stream table: it may read it, is its owner or a member of that, or is the role that
-- the server works as.
CREATE OR REPLACE FUNCTION pgtrickle._may_see_query(relid oid, owner oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(has_table_privilege(current_user, relid, 'SELECT'), false)
        OR EXISTS (SELECT FROM pg_roles r WHERE r.oid = owner AND pg_has_role(current_user, r.oid, 'MEMBER'))
        OR pg_has_role(current_user, (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgtrickle'), 'MEMBER')
$$;


-- One row a stream table, for everybody: what it is computed from is NULL for whom it is no business of.
--
-- The same rows as pgt_definitions, which nobody else can read. The texts of queries, and what is made of them, are for roles that
-- may read the stream table, that its owner is one of, or that the server works as; PostgreSQL asks for the role that reads.
-- Functions that work with the server's rights read and change the table: PostgreSQL plans that in a fraction of the time, and each
-- session plans anew.
CREATE OR REPLACE VIEW pgtrickle.pgt_stream_tables AS
SELECT s.pgt_id, s.pgt_relid, s.pgt_name, s.pgt_schema,
       CASE WHEN pgtrickle._may_see_query(s.pgt_relid, s.pgt_owner) THEN s.defining_query END AS defining_query,
       CASE WHEN pgtrickle._may_see_query(s.pgt_relid, s.pgt_owner) THEN s.original_query END AS original_query,
       s.schedule, s.refresh_mode, s.status, s.is_populated, s.data_timestamp, s.frontier, s.last_refresh_at,
       s.consecutive_errors, s.needs_reinit, s.auto_threshold, s.last_full_ms, s.functions_used, s.topk_limit,
       CASE WHEN pgtrickle._may_see_query(s.pgt_relid, s.pgt_owner) THEN s.topk_order_by END AS topk_order_by,
       s.topk_offset, s.diamond_consistency, s.diamond_schedule_policy, s.has_keyless_source, s.function_hashes, s.scc_id,
       s.last_fixpoint_iterations, s.created_at, s.updated_at, s.pgt_owner, s.requested_mode,
       CASE WHEN pgtrickle._may_see_query(s.pgt_relid, s.pgt_owner) THEN s.canonical_query END AS canonical_query,
       s.row_id_salt, s.engine,
       CASE WHEN pgtrickle._may_see_query(s.pgt_relid, s.pgt_owner) THEN s.explain ELSE '{}' END AS explain,
       s.fallback_reason, s.requested_cdc_mode, s.append_only,
       CASE WHEN pgtrickle._may_see_query(s.pgt_relid, s.pgt_owner) THEN s.plan_texts ELSE '{}' END AS plan_texts,
       s.executor_costs
FROM pgtrickle.pgt_definitions s;
GRANT SELECT ON pgtrickle.pgt_stream_tables TO PUBLIC;
