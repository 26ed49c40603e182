-- Where the captured changes stand, whether they are all, and what is removed once everybody has seen it.


-- Why the capture of a source has missed or may have missed changes, or NULL.
CREATE OR REPLACE FUNCTION pgtrickle._capture_gap(
    source oid, same_generation boolean, relations oid[], trigger_state text, has_children boolean
) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state text;
BEGIN
    IF relations IS NULL THEN
        RETURN format('changes of %s are not captured', pgtrickle._qualified(source));
    ELSIF NOT same_generation THEN
        RETURN format('capture of %s was interrupted', pgtrickle._qualified(source));
    ELSIF (has_children OR cardinality(relations) > 1) AND relations <> pgtrickle._relations(source) THEN
        RETURN format('partitions of %s were added or removed', pgtrickle._qualified(source));
    END IF;
    state := pgtrickle._trigger_state(source, relations);
    IF trigger_state <> state AND starts_with(state, 'wal:') THEN
        RETURN format('capture of %s from the write-ahead log was interrupted', pgtrickle._qualified(source));
    ELSIF split_part(trigger_state, '@', 1) <> split_part(state, '@', 1) THEN
        RETURN format('capture triggers of %s were dropped or disabled', pgtrickle._qualified(source));
    ELSIF trigger_state <> state THEN
        RETURN format('unlogged table %s may have lost rows in a crash of PostgreSQL', pgtrickle._qualified(source));
    ELSIF EXISTS (SELECT FROM pg_inherits h
                  WHERE h.inhrelid = ANY (relations) AND NOT h.inhparent = ANY (relations)) THEN
        RETURN format('%s became a partition or child of another table', pgtrickle._qualified(source));
    ELSIF pgtrickle._is_replicated_into(relations) THEN
        RETURN format('rows of %s come by logical replication', pgtrickle._qualified(source));
    END IF;
    RETURN NULL;
END $$;


-- Whether a source has changed since a snapshot. NULL if its changes are not captured. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._changed_since(source oid, snapshot text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_captures c WHERE c.source_relid = source) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE %s)',
                   'changes_' || source, pgtrickle._unseen('$1'))
    INTO changed USING snapshot::pg_snapshot;
    RETURN changed;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._changed_since(oid, text) FROM PUBLIC;


-- Where the database's changes stand: the number of the last captured statement, and whether every transaction that
-- captured anything up to it has ended. As long as the number stands still after that, nothing has changed.
-- A transaction keeps its lock on the buffer, taken before its statement is numbered, until it has committed visibly;
-- so locks are looked at after the number is read. (Snapshots do not tell: a transaction in progress whose id is the
-- newest is in none of them.)
CREATE OR REPLACE FUNCTION pgtrickle._change_position(OUT change_position bigint, OUT settled boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO change_position FROM pgtrickle_changes.change_id_seq;
    SELECT NOT EXISTS (
        SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND (c.relnamespace = 'pgtrickle_changes'::regnamespace OR c.oid = 'pgtrickle.pgt_wal_progress'::regclass)) INTO settled;
END $$;


-- The stream tables that a committed change may wait for: one in the buffer of what they read that their frontier has not seen, or it
-- is not known. A buffer that is locked counts as changed. For the engine.
--
-- Who asks again says up to which number of captured statements all had ended when it asked before (_change_position), and what the
-- answer was: buffers with nothing since then are not looked at, unless what was found then reads them.
DROP FUNCTION IF EXISTS pgtrickle._changed_stream_tables();  -- of earlier versions
CREATE OR REPLACE FUNCTION pgtrickle._changed_stream_tables(since bigint DEFAULT -1, former bigint[] DEFAULT '{}')
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms' AS $$
DECLARE
    source oid;
    looked_at boolean;
BEGIN
    -- What rests on no capture, or on another one than there is: only a refresh can tell.
    RETURN QUERY
    SELECT d.pgt_id
    FROM pgtrickle.pgt_dependencies d
    JOIN pgtrickle.pgt_definitions s USING (pgt_id)
    LEFT JOIN pgtrickle.pgt_captures c USING (source_relid)
    WHERE d.cdc_mode IS NOT NULL
      AND (c.source_relid IS NULL OR d.capture_generation IS DISTINCT FROM c.generation OR s.frontier->>'snapshot' IS NULL);
    FOR source, looked_at IN
        SELECT c.source_relid, since < 0 OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d
                                                    WHERE d.pgt_id = ANY (former) AND d.source_relid = c.source_relid)
        FROM pgtrickle.pgt_captures c
    LOOP
        BEGIN
            CONTINUE WHEN pg_relation_size(to_regclass(format('pgtrickle_changes.%I', 'changes_' || source))) = 0;
            IF NOT looked_at THEN
                EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE c.__pgt_change_id > $1)', 'changes_' || source)
                INTO looked_at USING since;
                CONTINUE WHEN NOT looked_at;
            END IF;
            RETURN QUERY EXECUTE format(
                'SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s USING (pgt_id)'
                ' WHERE d.source_relid = $1 AND EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE %s)',
                'changes_' || source,
                pgtrickle._unseen('(s.frontier->>''snapshot'')::pg_snapshot', '(s.frontier->>''xid'')::xid8',
                                  'coalesce((s.frontier->>''change_id'')::bigint, 0)'))
            USING source;
        EXCEPTION WHEN lock_not_available OR undefined_table THEN
            RETURN QUERY SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = source;
        END;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._changed_stream_tables(bigint, bigint[]) FROM PUBLIC;


-- Remove changes that every stream table, subscription and mirror has seen; returns how many buffers lost rows. Nothing is removed from a
-- buffer with a consumer that has no frontier yet, or that somebody is just starting to read. Where all would go and
-- nobody is at the buffer it is truncated (pg_trickle.cleanup_use_truncate), which unlike DELETE leaves nothing to vacuum.
-- What somebody has locked is left for the next call. For the engine, in a READ COMMITTED transaction of its own.
CREATE OR REPLACE FUNCTION pgtrickle._cleanup_buffers() RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    c record;
    unseen text;
    found boolean;
    emptied boolean;
    removed bigint;
    cleaned int := 0;
    use_truncate boolean := pgtrickle._setting('pg_trickle.cleanup_use_truncate', 'on')::boolean;
BEGIN
    PERFORM pgtrickle._release_mirrors();
    PERFORM pgtrickle._remove_lost_subscriptions();
    PERFORM pgtrickle._keep_signals();
    FOR c IN SELECT k.source_relid, 'changes_' || k.source_relid AS buffer
             FROM pgtrickle.pgt_captures k ORDER BY k.source_relid LOOP
        BEGIN
            EXECUTE format('LOCK TABLE pgtrickle_changes.%I IN ACCESS SHARE MODE NOWAIT', c.buffer);
            EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I)', c.buffer) INTO found;
        EXCEPTION WHEN undefined_table OR lock_not_available THEN
            found := false;  -- its last consumer has gone or is going
        END;
        CONTINUE WHEN NOT found;
        CONTINUE WHEN NOT pgtrickle._own_source(c.source_relid);
        -- With the lock held: no consumer is being added, so these are all.
        SELECT CASE WHEN bool_and(f.snapshot IS NOT NULL) THEN string_agg(DISTINCT pgtrickle._unseen(
                   format('%L::pg_snapshot', f.snapshot), format('%L::xid8', f.xid),
                   format('%L::bigint', coalesce(f.change_id, '0'))
               ), ' OR ') END INTO unseen
        FROM (SELECT s.frontier->>'snapshot' AS snapshot, s.frontier->>'xid' AS xid, s.frontier->>'change_id' AS change_id
              FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s USING (pgt_id)
              WHERE d.source_relid = c.source_relid AND d.cdc_mode IS NOT NULL
              UNION ALL
              SELECT v.frontier::text, NULL, NULL
              FROM pgtrickle.pgt_subscription_sources u
              JOIN pgtrickle.pgt_subscriptions b USING (subscription_id)
              JOIN pgtrickle.pgt_subscription_servers v USING (server)
              WHERE u.source_relid = c.source_relid AND u.capture_generation IS NOT NULL) AS f;
        CONTINUE WHEN unseen IS NULL;
        SELECT concat_ws(' OR ', unseen, string_agg(pgtrickle._unseen(format('%L::pg_snapshot', m.frontier)), ' OR '))
        INTO unseen
        FROM pgtrickle.pgt_mirrors m WHERE m.source_relid = c.source_relid;
        emptied := false;
        IF use_truncate THEN
            EXECUTE format('SELECT NOT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE %s)', c.buffer, unseen)
            INTO emptied;
            IF emptied THEN
                BEGIN  -- its locks are given back where it does not come to that
                    EXECUTE format('LOCK TABLE pgtrickle_changes.%I IN ACCESS EXCLUSIVE MODE NOWAIT', c.buffer);
                    -- Writers are gone and kept out: look again before all is thrown away.
                    EXECUTE format('SELECT NOT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE %s)', c.buffer, unseen)
                    INTO emptied;
                    IF emptied THEN
                        EXECUTE format('TRUNCATE pgtrickle_changes.%I', c.buffer);
                    END IF;
                EXCEPTION WHEN lock_not_available THEN
                    emptied := false;
                END;
            END IF;
        END IF;
        BEGIN
            IF NOT emptied THEN
                EXECUTE format('DELETE FROM pgtrickle_changes.%I c WHERE NOT (%s)', c.buffer, unseen);
                GET DIAGNOSTICS removed = ROW_COUNT;
                CONTINUE WHEN removed = 0;
            END IF;
            UPDATE pgtrickle.pgt_captures k SET last_cleaned_xid = pg_snapshot_xmin(pg_current_snapshot())
            WHERE k.source_relid = c.source_relid;
            cleaned := cleaned + 1;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN cleaned;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._cleanup_buffers() FROM PUBLIC;


-- Remove history older than pg_trickle.history_retention_days (30), and all but the latest pg_trickle.history_max_rows (50 000)
-- of each stream table; 0 keeps all. At most 5 000 rows a call, so that no transaction is long, and none that somebody has locked:
-- returns how many. The latest refresh of each stream table stays. Requests that have failed go after a week. For the engine,
-- now and then, until there is no more to remove.
CREATE OR REPLACE FUNCTION pgtrickle._prune_history() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch CONSTANT int := 5000;
    days int := pgtrickle._setting('pg_trickle.history_retention_days', '30')::int;
    most bigint := pgtrickle._setting('pg_trickle.history_max_rows', '50000')::bigint;
    old bigint[] := '{}';
    removed bigint;
BEGIN
    PERFORM pgtrickle._remove_staging_leftovers();
    PERFORM pgtrickle._remove_lost_leases();
    PERFORM pgtrickle._tidy_source_locks();
    PERFORM pgtrickle._drop_copies();
    PERFORM pgtrickle._revoke_buffers(false);  -- of roles that left a group: no event trigger sees that
    DELETE FROM pgtrickle.pgt_requests q WHERE q.error IS NOT NULL AND q.requested_at < now() - interval '7 days';
    IF days > 0 THEN
        old := ARRAY(SELECT h.refresh_id FROM pgtrickle.pgt_refresh_history h
                     WHERE h.start_time < now() - make_interval(days => days)
                       AND coalesce(h.last_end_time, h.start_time) < now() - make_interval(days => days)
                       AND h.refresh_id < (SELECT max(l.refresh_id) FROM pgtrickle.pgt_refresh_history l WHERE l.pgt_id = h.pgt_id)
                     ORDER BY h.start_time LIMIT batch);
    END IF;
    IF most > 0 AND cardinality(old) < batch THEN
        old := old || ARRAY(
            SELECT h.refresh_id
            FROM pgtrickle.pgt_definitions s
            CROSS JOIN LATERAL (SELECT l.refresh_id FROM pgtrickle.pgt_refresh_history l WHERE l.pgt_id = s.pgt_id
                                ORDER BY l.refresh_id DESC OFFSET most LIMIT 1) AS first
            CROSS JOIN LATERAL (SELECT l.refresh_id FROM pgtrickle.pgt_refresh_history l
                                WHERE l.pgt_id = s.pgt_id AND l.refresh_id <= first.refresh_id
                                ORDER BY l.refresh_id LIMIT batch) AS h
            LIMIT batch - cardinality(old));
    END IF;
    DELETE FROM pgtrickle.pgt_refresh_history d WHERE d.refresh_id IN (
        SELECT h.refresh_id FROM pgtrickle.pgt_refresh_history h WHERE h.refresh_id = ANY (old) FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._prune_history() FROM PUBLIC;
