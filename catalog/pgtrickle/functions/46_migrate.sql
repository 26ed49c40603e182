-- What is made while stream tables are used, brought up to date.


-- What the trigger functions of a source are, as far as this file's neighbours write them.
CREATE OR REPLACE FUNCTION pgtrickle._capture_digest(source oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(string_agg(concat_ws(' ', p.proname, p.prosrc, p.proconfig, p.prosecdef, p.prolang, p.proacl), ',' ORDER BY p.proname))
    FROM pg_proc p
    WHERE p.pronamespace = 'pgtrickle_changes'::regnamespace AND p.pronargs = 0
      AND p.proname IN (SELECT t.name FROM pgtrickle._capture_triggers(source) AS t)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._capture_digest(oid) FROM PUBLIC;


-- Write anew what capture is made of, for every source: the server does so when it installs a version, so that there is something to do
-- only where somebody else has been at it. One row for each stream table and captured source, and one without a stream table for a
-- source that subscriptions alone follow. "action" is "current"; "rewritten": what was captured before cannot be trusted, and the next
-- refresh computes the stream table anew; or "missing": the next refresh captures the source.
-- For the owner of the catalog, which is the server's role, and superusers.
CREATE OR REPLACE FUNCTION pgtrickle.migrate() RETURNS TABLE (stream_table text, source_table text, action text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    capture record;
    before text;
    rewritten oid[] := '{}';
BEGIN
    FOR capture IN
        SELECT k.source_relid, k.captured_columns FROM pgtrickle.pgt_captures k
        WHERE k.mode = 'TRIGGER' AND pgtrickle._qualified(k.source_relid) IS NOT NULL
          AND to_regclass('pgtrickle_changes.changes_' || k.source_relid) IS NOT NULL
        ORDER BY k.source_relid
    LOOP
        PERFORM pgtrickle._share_source(capture.source_relid);
        before := pgtrickle._capture_digest(capture.source_relid);
        PERFORM pgtrickle._write_capture_functions(
            capture.source_relid, pgtrickle._capturable(capture.source_relid, capture.captured_columns));
        IF before IS DISTINCT FROM pgtrickle._capture_digest(capture.source_relid) THEN
            UPDATE pgtrickle.pgt_captures k SET generation = gen_random_uuid() WHERE k.source_relid = capture.source_relid;
            rewritten := rewritten || capture.source_relid;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), pgtrickle._qualified(n.source_relid),
           CASE WHEN n.source_relid = ANY (rewritten) THEN 'rewritten'
                WHEN k.source_relid IS NULL
                  OR to_regclass('pgtrickle_changes.changes_' || k.source_relid) IS NULL THEN 'missing'
                ELSE 'current' END
    FROM (SELECT d.pgt_id, d.source_relid FROM pgtrickle.pgt_dependencies d WHERE d.cdc_mode IS NOT NULL
          UNION ALL
          SELECT NULL, c.source_relid FROM pgtrickle.pgt_captures c
          WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = c.source_relid)) AS n
    LEFT JOIN pgtrickle.pgt_definitions s ON s.pgt_id = n.pgt_id
    LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = n.source_relid
    ORDER BY 1, 2;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle.migrate() FROM PUBLIC;
