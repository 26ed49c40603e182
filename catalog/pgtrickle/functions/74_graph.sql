-- What reads what, for people.


-- What each stream table reads, as edges: from a stream table to one that it reads (source_id), or to another relation (NULL).
CREATE OR REPLACE VIEW pgtrickle.pgt_edges AS
SELECT d.pgt_id, d.source_relid, u.pgt_id AS source_id
FROM pgtrickle.pgt_dependencies d LEFT JOIN pgtrickle.pgt_stream_tables u ON u.pgt_relid = d.source_relid;
GRANT SELECT ON pgtrickle.pgt_edges TO PUBLIC;


-- All stream tables as trees: those that no other one reads, and beneath each what it reads, down to tables. One that several
-- others read stands beneath each of them. Where some read each other all of these are roots, and no path has any of them twice.
CREATE OR REPLACE FUNCTION pgtrickle.dependency_tree()
RETURNS TABLE (tree_line text, node text, node_type text, depth int, status text, refresh_mode text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE top AS (
        SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s
        WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = s.pgt_relid)
    ), reached AS (
        SELECT t.pgt_id FROM top t
        UNION SELECT e.source_id FROM reached r JOIN pgtrickle.pgt_edges e USING (pgt_id) WHERE e.source_id IS NOT NULL
    ), below AS (
        SELECT s.pgt_id, e.source_id FROM pgtrickle.pgt_stream_tables s JOIN pgtrickle.pgt_edges e USING (pgt_id)
        WHERE s.pgt_id NOT IN (SELECT r.pgt_id FROM reached r)
        UNION SELECT b.pgt_id, e.source_id FROM below b JOIN pgtrickle.pgt_edges e ON e.pgt_id = b.source_id
    ), tree AS (
        SELECT r.pgt_id, r.pgt_relid AS relid, 0 AS depth, '' AS stem, '' AS beneath, ARRAY[r.place] AS places, ARRAY[r.pgt_id] AS path
        FROM (SELECT s.pgt_id, s.pgt_relid, row_number() OVER (ORDER BY s.pgt_schema, s.pgt_name) AS place
              FROM pgtrickle.pgt_stream_tables s
              WHERE s.pgt_id IN (SELECT t.pgt_id FROM top t UNION ALL SELECT b.pgt_id FROM below b WHERE b.source_id = b.pgt_id)) AS r
        UNION ALL
        SELECT c.source_id, c.source_relid, t.depth + 1,
               t.beneath || CASE WHEN c.is_last THEN '└── ' ELSE '├── ' END,
               t.beneath || CASE WHEN c.is_last THEN '    ' ELSE '│   ' END,
               t.places || c.place, t.path || c.source_id
        FROM tree t CROSS JOIN LATERAL (
            -- As they were created, stream tables first.
            SELECT e.source_id, e.source_relid, row_number() OVER w AS place, lead(true) OVER w IS NULL AS is_last
            FROM pgtrickle.pgt_edges e
            WHERE e.pgt_id = t.pgt_id AND NOT coalesce(e.source_id = ANY (t.path), false)
            WINDOW w AS (ORDER BY e.source_id, e.source_relid)) AS c
    )
    SELECT t.stem || CASE WHEN s.pgt_id IS NULL THEN coalesce(n.name, format('(dropped, oid %s)', t.relid)) || ' [src]'
                          WHEN s.pgt_schema = 'public' THEN s.pgt_name ELSE s.pgt_schema || '.' || s.pgt_name END,
           CASE WHEN s.pgt_id IS NULL THEN coalesce(n.name, format('(dropped, oid %s)', t.relid))
                ELSE s.pgt_schema || '.' || s.pgt_name END,
           CASE WHEN s.pgt_id IS NULL THEN 'source_table' ELSE 'stream_table' END,
           t.depth, s.status, s.refresh_mode
    FROM tree t
    LEFT JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    CROSS JOIN LATERAL (SELECT pgtrickle._qualified(t.relid) AS name) AS n
    ORDER BY t.places
$$;


-- The diamonds among stream tables. A stream table is where paths meet if two of the relations that it reads are the same, or come
-- from the same one. Its group are it and the stream tables on these paths, without what both paths come through. Groups that
-- have a member in common are one. `epoch` counts how often members have been refreshed in one transaction.
CREATE OR REPLACE FUNCTION pgtrickle.diamond_groups()
RETURNS TABLE (group_id int4, member_name text, member_schema text, is_convergence bool, epoch int8,
               schedule_policy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE comes_from AS (  -- a relation and all that it comes from, itself among them
        SELECT DISTINCT e.source_relid AS relid, e.source_relid AS origin FROM pgtrickle.pgt_edges e
        UNION
        SELECT c.relid, e.source_relid
        FROM comes_from c JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid = c.origin JOIN pgtrickle.pgt_edges e USING (pgt_id)
    ), shared AS (  -- of the stream table pgt_id: two relations that it reads, and what both come from
        SELECT a.pgt_id, a.source_relid AS left_relid, b.source_relid AS right_relid, l.origin
        FROM pgtrickle.pgt_edges a
        JOIN pgtrickle.pgt_edges b ON b.pgt_id = a.pgt_id AND b.source_relid > a.source_relid
        JOIN comes_from l ON l.relid = a.source_relid
        JOIN comes_from r ON r.relid = b.source_relid AND r.origin = l.origin
    ), member AS (  -- of the diamond that meets in meeting_id
        SELECT DISTINCT h.pgt_id AS meeting_id, m.pgt_id
        FROM shared h
        JOIN comes_from f ON f.relid IN (h.left_relid, h.right_relid)
        JOIN comes_from down ON down.relid = f.origin AND down.origin = h.origin
        JOIN pgtrickle.pgt_stream_tables m ON m.pgt_relid = f.origin
        WHERE NOT EXISTS (SELECT FROM shared x WHERE x.pgt_id = h.pgt_id AND x.left_relid = h.left_relid
                                                 AND x.right_relid = h.right_relid AND x.origin = f.origin)
        UNION
        SELECT h.pgt_id, h.pgt_id FROM shared h
    ), joined AS (  -- diamonds that have members in common, directly or through others
        SELECT DISTINCT m.meeting_id, m.meeting_id AS other_id FROM member m
        UNION
        SELECT j.meeting_id, b.meeting_id
        FROM joined j JOIN member a ON a.meeting_id = j.other_id JOIN member b ON b.pgt_id = a.pgt_id
    ), grouped AS (
        SELECT DISTINCT m.pgt_id, first.meeting_id AS first_id
        FROM member m CROSS JOIN LATERAL (SELECT min(j.other_id) AS meeting_id FROM joined j WHERE j.meeting_id = m.meeting_id) AS first
    ), sized AS (
        SELECT g.*, count(*) OVER (PARTITION BY g.first_id) AS members FROM grouped g
    )
    SELECT dense_rank() OVER (ORDER BY g.first_id)::int4, s.pgt_name, s.pgt_schema, c.meets,
           sum(coalesce(e.epoch, 0)) OVER (PARTITION BY g.first_id)::int8,
           CASE WHEN bool_or(c.meets AND s.diamond_schedule_policy = 'slowest') OVER (PARTITION BY g.first_id) THEN 'slowest'
                ELSE 'fastest' END
    FROM sized g
    JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
    LEFT JOIN pgtrickle.pgt_unit_epochs e USING (pgt_id)
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM shared h WHERE h.pgt_id = g.pgt_id) AS meets) AS c
    WHERE g.members > 1
    ORDER BY 1, c.meets, s.pgt_schema, s.pgt_name
$$;


-- The stream tables that read each other in a circle, each circle as one row, and how many rounds it took to its fixed
-- point.
CREATE OR REPLACE FUNCTION pgtrickle.pgt_scc_status()
RETURNS TABLE (scc_id int4, member_count int4, members text[], last_iterations int4, last_converged_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.scc_id, count(*)::int4, array_agg(s.pgt_schema || '.' || s.pgt_name ORDER BY s.pgt_schema, s.pgt_name),
           max(s.last_fixpoint_iterations), max(s.last_refresh_at)
    FROM pgtrickle.pgt_stream_tables s
    WHERE s.scc_id IS NOT NULL
    GROUP BY s.scc_id
    ORDER BY s.scc_id
$$;
