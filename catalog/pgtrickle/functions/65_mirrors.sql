-- What keeps the mirrors of sources and their change buffers together.


-- What a source and its capture are now. A mirror serves as long as "identity" stays the same: cluster, generation of the
-- capture, definitions of the captured columns, files of the table (a rewrite or TRUNCATE gives it others), key.
-- No row if the changes of the source are not captured completely.
--   "columns": {captured column: type}, in the table's order; of a domain the base type, of an enum text. Without generated
--              columns, which COPY of the table leaves out.
--   "cleaned": differs as soon as captured changes have been removed
--   "switched": how often the log has taken the place of triggers or the other way round
--   "late": the changes come from the write-ahead log, later than the table shows them (44_wal_capture.sql)
DROP FUNCTION IF EXISTS pgtrickle._mirrored_source(oid);  -- of an earlier version, which told less
CREATE OR REPLACE FUNCTION pgtrickle._mirrored_source(
    source oid, OUT identity text, OUT columns json, OUT cleaned text, OUT switched bigint, OUT late boolean
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT (jsonb_build_object(
               'system', pgtrickle._system(), 'generation', c.generation, 'fingerprint', c.fingerprint,
               'files', (SELECT string_agg(coalesce(pg_relation_filenode(r::regclass), 0)::text, ',' ORDER BY r)
                         FROM unnest(c.relations) AS r),
               'key', to_jsonb(pgtrickle._row_key(t.oid))))::text,
           (SELECT json_object_agg(a.attname, CASE k WHEN 'enum' THEN 'text'
                                              ELSE coalesce(k, format_type(a.atttypid, a.atttypmod)) END ORDER BY a.attnum)
            FROM pg_attribute a CROSS JOIN pgtrickle._carrier(a.atttypid) AS k
            WHERE a.attrelid = t.oid AND a.attname = ANY (c.captured_columns) AND a.attnum > 0 AND NOT a.attisdropped
              AND a.attgenerated = ''),
           c.xmin::text || c.ctid::text, c.switched, c.mode = 'WAL'
    FROM pgtrickle.pgt_captures c JOIN pg_class t ON t.oid = c.source_relid
    WHERE c.source_relid = _mirrored_source.source AND c.system = pgtrickle._system()
      AND c.relations = pgtrickle._relations(c.source_relid)
      AND c.trigger_state = pgtrickle._trigger_state(c.source_relid, c.relations)
      AND c.fingerprint = pgtrickle._fingerprint(c.source_relid, c.captured_columns);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._mirrored_source(oid) FROM PUBLIC;


-- Begin to keep, for a mirror that will hold the table as of a snapshot, what that snapshot has not seen. False if
-- something has been removed from the buffer since the snapshot was taken, which saw the capture as `cleaned`.
CREATE OR REPLACE FUNCTION pgtrickle._hold_for_mirror(mirror uuid, source oid, frontier pg_snapshot, cleaned text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    -- After a cleanup that is going on, and before the next.
    PERFORM pgtrickle._share_source(source);
    INSERT INTO pgtrickle.pgt_mirrors (mirror, source_relid, frontier, held_until)
    VALUES (mirror, source, frontier, clock_timestamp() + interval '1 hour');
    IF cleaned IS DISTINCT FROM (SELECT m.cleaned FROM pgtrickle._mirrored_source(source) m) THEN
        DELETE FROM pgtrickle.pgt_mirrors m WHERE m.mirror = mirror;
        RETURN false;
    END IF;
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._hold_for_mirror(uuid, oid, pg_snapshot, text) FROM PUBLIC;


-- A mirror has stored, as a version of its log, all changes that are visible in a snapshot. It holds the others for so many
-- seconds more. False if it had been let go of already.
CREATE OR REPLACE FUNCTION pgtrickle._mirror_has(mirror uuid, frontier pg_snapshot, log_version bigint, seconds double precision,
                                                 used boolean)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE pgtrickle.pgt_mirrors m
    SET frontier = coalesce(frontier, m.frontier), log_version = greatest(m.log_version, log_version),
        held_until = greatest(m.held_until, clock_timestamp() + make_interval(secs => seconds)),
        used_at = CASE WHEN used THEN clock_timestamp() ELSE m.used_at END
    WHERE m.mirror = mirror;
    RETURN FOUND;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._mirror_has(uuid, pg_snapshot, bigint, double precision, boolean) FROM PUBLIC;


-- Let go of mirrors that hold nothing any more: nobody has said in time that they still want it, or their source is not
-- captured any more. Their changes can go from the moment this commits.
CREATE OR REPLACE FUNCTION pgtrickle._release_mirrors() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgtrickle.pgt_mirrors m
    WHERE m.held_until < clock_timestamp()
       OR NOT EXISTS (SELECT FROM pgtrickle.pgt_captures c WHERE c.source_relid = m.source_relid);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._release_mirrors() FROM PUBLIC;
