-- Refreshes under way, as everybody may see them. (How they are noted: 58_progress.sql.)


-- One row a refresh that is under way. What a session does PostgreSQL shows to those who may see it (pg_read_all_stats, or the role
-- itself); of others' these columns are NULL. A stream table that is created in a transaction block is seen once that has committed.
CREATE OR REPLACE VIEW pgtrickle.pgt_stat_progress_refresh AS
SELECT u.pid, s.pgt_id, s.pgt_schema, s.pgt_name,
       CASE u.code % 4 WHEN 1 THEN 'DIFFERENTIAL' WHEN 2 THEN 'FULL' WHEN 3 THEN 'REINITIALIZE' END AS action,
       CASE u.code / 4 WHEN 1 THEN 'waiting for another refresh' WHEN 2 THEN 'starting' WHEN 3 THEN 'computing on Spark'
                       WHEN 4 THEN 'storing' END AS phase,
       NOT s.is_populated AS initial,
       a.xact_start AS transaction_start, a.query_start AS statement_start,
       clock_timestamp() - a.query_start AS statement_time,
       a.wait_event_type, a.wait_event,
       -- What it reads, as PostgreSQL's statistics have it; what it has written so far, with what was there before.
       (SELECT sum(greatest(c.reltuples, 0))::bigint
        FROM pgtrickle.pgt_dependencies d
        CROSS JOIN LATERAL unnest(coalesce(pgtrickle._relations(d.source_relid), ARRAY[d.source_relid])) AS r(relid)
        JOIN pg_class c ON c.oid = r.relid AND c.relkind <> 'p'
        WHERE d.pgt_id = s.pgt_id) AS source_rows,
       pgtrickle._table_bytes(s.pgt_relid) AS table_bytes,
       p.tuples_processed AS rows_copied, p.bytes_processed AS bytes_copied
FROM pgtrickle._refreshes_under_way() u
JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
LEFT JOIN pg_stat_activity a USING (pid)
LEFT JOIN pg_stat_progress_copy p USING (pid);
GRANT SELECT ON pgtrickle.pgt_stat_progress_refresh TO PUBLIC;
