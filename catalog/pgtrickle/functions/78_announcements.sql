-- What those are told who LISTEN: pg_trickle_alert, pgtrickle_refresh. (pg_trickle_cdc_transition: 44_wal_capture.sql.)


-- Tell of the refreshes that the history has since row `after`, and of those of its rows among `gaps`, on pgtrickle_refresh (and under
-- the name pg_trickle_refresh); and send `alerts` on pg_trickle_alert, which is also told what has failed or was computed anew.
-- Returns the rows that were found, as many as `most`, and the transactions that the statement saw under way: others have ended.
--
-- NOTIFY has commits wait for one another, in the whole cluster: that of a refresh never executes it. The scheduler calls this after
-- them, in a transaction that commits nothing else. No payload holds a value of a source, since anybody can listen.
DROP FUNCTION IF EXISTS pgtrickle._announce(bigint, bigint[], text[]);  -- of earlier versions
CREATE OR REPLACE FUNCTION pgtrickle._announce(
    after bigint, gaps bigint[], alerts text[], most bigint, OUT found bigint[], OUT oldest bigint, OUT next bigint
)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH refreshed AS MATERIALIZED (
        SELECT h.refresh_id, h.action, h.status, jsonb_strip_nulls(jsonb_build_object(
                   'event', CASE h.status WHEN 'FAILED' THEN 'refresh_failed' WHEN 'SKIPPED' THEN 'refresh_skipped'
                            ELSE 'refresh_completed' END,
                   'pgt_id', h.pgt_id, 'pgt_schema', s.pgt_schema, 'pgt_name', s.pgt_name, 'refresh_id', h.refresh_id,
                   'action', h.action, 'status', h.status, 'initiated_by', h.initiated_by, 'data_timestamp', h.data_timestamp,
                   'rows_inserted', h.rows_inserted, 'rows_updated', h.rows_updated, 'rows_deleted', h.rows_deleted,
                   'duration_ms', round((extract(epoch FROM h.end_time - h.start_time) * 1000)::numeric, 3),
                   'sqlstate', CASE WHEN h.status = 'FAILED' THEN split_part(h.error_message, ':', 1) END)) AS payload
        FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_definitions s USING (pgt_id)
        WHERE h.refresh_id > _announce.after OR h.refresh_id = ANY (_announce.gaps)
        ORDER BY h.refresh_id LIMIT _announce.most
    ), message(place, channel, payload) AS (
        SELECT 0, 'pg_trickle_alert', a FROM unnest(_announce.alerts) AS a
        UNION ALL
        SELECT r.refresh_id, c, r.payload::text
        FROM refreshed r CROSS JOIN unnest(ARRAY['pgtrickle_refresh', 'pg_trickle_refresh']) AS c
        WHERE r.action <> 'NO_DATA'
        UNION ALL
        SELECT r.refresh_id, 'pg_trickle_alert',
               (r.payload || CASE WHEN r.status = 'COMPLETED' THEN '{"event": "reinitialized"}' ELSE '{}' END::jsonb)::text
        FROM refreshed r
        WHERE r.status = 'FAILED' OR r.action = 'REINITIALIZE'
    ), sent AS MATERIALIZED (
        SELECT pg_notify(m.channel, m.payload) FROM (SELECT * FROM message ORDER BY place OFFSET 0) AS m
    )
    SELECT coalesce((SELECT array_agg(r.refresh_id) FROM refreshed r), '{}'), pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    WHERE (SELECT count(*) FROM sent) IS NOT NULL
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._announce(bigint, bigint[], text[], bigint) FROM PUBLIC;
