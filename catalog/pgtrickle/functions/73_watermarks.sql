-- Watermarks: those who load sources say up to when each is complete, and what depends on sources of a group is refreshed while the
-- watermarks of the group are no further apart than it tolerates.


-- The watermarks, with the relations that they are of here, also before _keep_signals has looked at what was restored.
CREATE OR REPLACE FUNCTION pgtrickle._watermarks()
RETURNS TABLE (source_relid oid, watermark timestamptz, updated_at timestamptz, advanced_by text, wal_lsn text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN w.cluster = h.cluster THEN w.source_relid ELSE to_regclass(w.source_name)::oid END,
           w.watermark, w.updated_at, w.advanced_by, w.wal_lsn_at_advance
    FROM (SELECT pgtrickle._cluster() AS cluster OFFSET 0) AS h, pgtrickle.pgt_watermarks w
$$;


-- The groups, likewise, without sources that are gone.
CREATE OR REPLACE FUNCTION pgtrickle._watermark_groups()
RETURNS TABLE (group_id int, group_name text, source_relids oid[], tolerance_secs float8, created_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.group_id, g.group_name,
           ARRAY(SELECT c.oid
                 FROM unnest(g.source_relids, g.source_names) WITH ORDINALITY AS u(relid, name, n)
                 JOIN pg_class c ON c.oid = CASE WHEN g.cluster = h.cluster THEN u.relid ELSE to_regclass(u.name)::oid END
                 ORDER BY u.n),
           g.tolerance_secs, g.created_at
    FROM (SELECT pgtrickle._cluster() AS cluster OFFSET 0) AS h, pgtrickle.pgt_watermark_groups g
    ORDER BY g.group_name
$$;


-- The watermark groups, without sources that are gone.
CREATE OR REPLACE FUNCTION pgtrickle.watermark_groups()
RETURNS TABLE (group_id int, group_name text, source_relids oid[], tolerance_secs float8, created_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM pgtrickle._watermark_groups()
$$;


-- The groups, and how far their watermarks are apart. A group is aligned if each of its sources has a watermark, and these are no
-- further apart than it tolerates.
CREATE OR REPLACE FUNCTION pgtrickle._alignment()
RETURNS TABLE (group_name text, source_relids oid[], min_watermark timestamptz, max_watermark timestamptz, lag_secs float8,
               aligned boolean, sources_with_watermark int, sources_total int)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.group_name, g.source_relids, w.least, w.greatest, w.lag,
           w.number = w.total AND coalesce(w.lag <= g.tolerance_secs, false), w.number, w.total
    FROM pgtrickle._watermark_groups() g
    JOIN (SELECT n.group_id, min(m.watermark) AS least, max(m.watermark) AS greatest, count(m.watermark)::int AS number,
                 count(u.relid)::int AS total, extract(epoch FROM max(m.watermark) - min(m.watermark))::float8 AS lag
          FROM pgtrickle._watermark_groups() n
          LEFT JOIN LATERAL unnest(n.source_relids) AS u(relid) ON true
          LEFT JOIN pgtrickle._watermarks() m ON m.source_relid = u.relid
          GROUP BY n.group_id) AS w USING (group_id)
    ORDER BY g.group_name
$$;


-- Say that a source is complete up to a time, in the caller's transaction. Raises 22023 for a time before the one said last.
CREATE OR REPLACE FUNCTION pgtrickle.advance_watermark(source text, watermark timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('advance', ARRAY[pgtrickle._named_relation(source)], watermark);
END $$;


-- The relations of names along the session's search_path. Raises 22004, 42P01.
CREATE OR REPLACE FUNCTION pgtrickle._named_relations(names text[]) RETURNS oid[] LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN names IS NULL THEN ARRAY[pgtrickle._named_relation(NULL)]
                ELSE ARRAY(SELECT pgtrickle._named_relation(u.name)
                           FROM pg_catalog.unnest(names) WITH ORDINALITY AS u(name, n) ORDER BY u.n) END
$$;


-- Have what depends on any of these sources wait until their watermarks are no further apart than so many seconds. Returns the
-- number of the group. Raises 22023 for less than two sources, 42710 if the group exists.
CREATE OR REPLACE FUNCTION pgtrickle.create_watermark_group(
    group_name text, sources text[], tolerance_secs float8 DEFAULT 0
) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('group', pgtrickle._named_relations(sources), NULL, group_name, tolerance_secs);
    RETURN pgtrickle._group_id(group_name);
END $$;

CREATE OR REPLACE FUNCTION pgtrickle._group_id(name text) RETURNS int
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.group_id FROM pgtrickle.pgt_watermark_groups g WHERE g.group_name = name
$$;


-- Drop a group; watermarks stay. Raises 42704 if there is none.
CREATE OR REPLACE FUNCTION pgtrickle.drop_watermark_group(group_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._signal('ungroup', NULL, NULL, group_name);
END $$;


-- What has been said of sources.
CREATE OR REPLACE FUNCTION pgtrickle.watermarks()
RETURNS TABLE (source_table text, schema_name text, watermark timestamptz, updated_at timestamptz, advanced_by text,
               wal_lsn text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.relname::text, n.nspname::text, w.watermark, w.updated_at, w.advanced_by, w.wal_lsn
    FROM pgtrickle._watermarks() w
    JOIN pg_class c ON c.oid = w.source_relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY 2, 1
$$;


-- How far the watermarks of each group are apart now.
CREATE OR REPLACE FUNCTION pgtrickle.watermark_status()
RETURNS TABLE (group_name text, min_watermark timestamptz, max_watermark timestamptz, lag_secs float8, aligned boolean,
               sources_with_watermark int4, sources_total int4)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.group_name, a.min_watermark, a.max_watermark, a.lag_secs, a.aligned, a.sources_with_watermark, a.sources_total
    FROM pgtrickle._alignment() a
$$;
