-- RETAIN HISTORY: changes of a relation are kept for a period, so that subscriptions can begin in the past (AS OF).
--
-- A timestamp stands for the snapshot of the latest row of pgt_timeline that is not later. What a relation looked like then
-- is what it looks like now, without the changes in the buffers of its sources that the snapshot does not see.


-- Milliseconds beyond the period for which buffers are kept: between a transaction's snapshot and its lock in _as_of nothing
-- that may be asked for must go.
CREATE OR REPLACE FUNCTION pgtrickle._history_grace() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 10000::bigint;


-- Retain the history of a relation for a period, or with NULL no longer. A request that the engine carries out.
CREATE OR REPLACE FUNCTION pgtrickle.retain_history(name text, period interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE := '22004', MESSAGE := 'name of the relation must not be null';
    END IF;
    PERFORM pgtrickle._request('retain', pg_catalog.jsonb_build_object('name', name, 'period', period::pg_catalog.text),
        pg_catalog.current_setting('search_path'));
END $$;


-- Relations whose history is retained, since when it is held, and how many changes that are (NULL for who may not know).
CREATE OR REPLACE FUNCTION pgtrickle.history_status()
RETURNS TABLE (name text, period interval, held_from bigint, held_since timestamptz, changes bigint, error text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    h record;
    u record;
    found bigint;
BEGIN
    FOR h IN
        SELECT * FROM pgtrickle.pgt_history x WHERE x.system = pgtrickle._cluster() ORDER BY pgtrickle._qualified(x.relid)
    LOOP
        name := pgtrickle._qualified(h.relid);
        CONTINUE WHEN name IS NULL;
        period := h.period;
        held_from := h.held_from;
        held_since := to_timestamp(h.held_from / 1000.0);
        error := h.error;
        changes := CASE WHEN pgtrickle._may_see_changes(h.relid) THEN 0 END;
        FOR u IN SELECT s.source_relid FROM pgtrickle.pgt_subscription_sources s
                 WHERE s.subscription_id = h.subscription_id AND s.capture_generation IS NOT NULL LOOP
            IF changes IS NOT NULL AND to_regclass('pgtrickle_changes.changes_' || u.source_relid) IS NOT NULL THEN
                EXECUTE format('SELECT count(*) FROM pgtrickle_changes.%I WHERE "__pgt_w" <> 0', 'changes_' || u.source_relid)
                INTO found;
                changes := changes + found;
            END IF;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END $$;


-- Whether ticks have to be noted.
CREATE OR REPLACE FUNCTION pgtrickle._retains_history() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_history)
$$;


-- Note the snapshot of a timestamp. To be committed before anybody learns of the timestamp: who asks for it again must get
-- this snapshot, and no earlier one.
CREATE OR REPLACE FUNCTION pgtrickle._note_tick(mz_timestamp bigint, snapshot text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_timeline (mz_timestamp, snapshot, system)
    VALUES (_note_tick.mz_timestamp, _note_tick.snapshot::pg_snapshot, pgtrickle._system())
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._note_tick(bigint, text) FROM PUBLIC;


-- What reads a relation reads, as _subscribe takes it: of a table all its columns, of a view what it uses of tables.
CREATE OR REPLACE FUNCTION pgtrickle._history_sources(relation oid, owner oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT c.relkind FROM pg_class c WHERE c.oid = relation) <> 'v' THEN
        RETURN jsonb_build_array(jsonb_build_object(
            'relid', relation::bigint, 'readers', jsonb_build_array(owner::bigint), 'captured', true, 'columns',
            (SELECT coalesce(jsonb_agg(a.attname ORDER BY a.attnum), '[]') FROM pg_attribute a
             WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped)));
    END IF;
    RETURN jsonb_build_array(jsonb_build_object('relid', relation::bigint, 'readers', jsonb_build_array(owner::bigint),
                                                'captured', false, 'columns', '[]'::jsonb))
        || coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'relid', s->'oid', 'readers', jsonb_build_array(owner::bigint), 'captured', s->>'relkind' <> 'v', 'columns',
                (SELECT coalesce(jsonb_agg(DISTINCT name), '[]') FROM (
                    SELECT jsonb_array_elements_text(s->'used')
                    UNION ALL SELECT unnest(pgtrickle._row_key((s->>'oid')::oid)) WHERE s->>'relkind' <> 'v') AS u(name)
                 WHERE pgtrickle._read_obstacle(owner, (s->>'oid')::oid, ARRAY[name]) IS NULL)))
            FROM jsonb_array_elements(pgtrickle._view_sources(relation)) AS s), '[]');
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._history_sources(oid, oid) FROM PUBLIC;


-- Begin to follow sources (as _subscribe takes them) with a role's rights, for what no client holds: like a subscription of a server of
-- its own, of a negative number. That, or NULL where _subscribe has put it off; and what _subscribe has said.
CREATE OR REPLACE FUNCTION pgtrickle._follow_without_client(role oid, sources jsonb, OUT server int, OUT answer jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number CONSTANT int := -nextval('pgtrickle.pgt_history_seq');
BEGIN
    INSERT INTO pgtrickle.pgt_subscription_servers (server) VALUES (number);
    answer := pgtrickle._subscribe(number, jsonb_build_object('subscriber', role::bigint, 'runs_as', role::bigint, 'sources', sources));
    IF answer ?| ARRAY['locked', 'ahead'] THEN
        DELETE FROM pgtrickle.pgt_subscription_servers v WHERE v.server = number;
    ELSE
        server := number;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._follow_without_client(oid, jsonb) FROM PUBLIC;


-- (Re)start following the sources of a retained relation: what was held is not held any more. {"locked": message} where a
-- lock cannot be had soon, {"ahead": …} as _subscribe. Raises 0A000, 42501 as _capture_source.
CREATE OR REPLACE FUNCTION pgtrickle._follow_for_history(relation oid) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = relation);
    f record;
BEGIN
    PERFORM pgtrickle._forget_history_sources(relation);
    SELECT * INTO f FROM pgtrickle._follow_without_client(owner, pgtrickle._history_sources(relation, owner));
    IF f.server IS NOT NULL THEN
        UPDATE pgtrickle.pgt_history h
        SET server = f.server, subscription_id = (f.answer->>'id')::bigint, followed_xid = pg_current_xact_id(),
            held_from = NULL, error = NULL
        WHERE h.relid = relation;
    END IF;
    RETURN f.answer;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._follow_for_history(oid) FROM PUBLIC;


-- Let go of the sources of a retained relation. Its own row is locked first, as _advance_history locks it.
CREATE OR REPLACE FUNCTION pgtrickle._forget_history_sources(relation oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    followed int;
BEGIN
    SELECT h.server INTO followed FROM pgtrickle.pgt_history h WHERE h.relid = relation FOR UPDATE;
    DELETE FROM pgtrickle.pgt_subscription_servers v WHERE v.server = followed;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._forget_history_sources(oid) FROM PUBLIC;


-- Retain the history of a relation of the caller's for a period (NULL: no longer). Returns {}, {"locked": message}, or
-- {"ahead": …} as _subscribe. Raises 42501, 42809, 22023, 0A000.
CREATE OR REPLACE FUNCTION pgtrickle._retain_history(relation oid, period interval) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    SELECT c.relowner, c.relkind INTO r FROM pg_class c WHERE c.oid = relation;
    IF NOT pgtrickle._may_act_for(r.relowner) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('must be owner of relation %s', pgtrickle._qualified(relation));
    ELSIF r.relkind NOT IN ('r', 'p', 'v') THEN
        PERFORM pgtrickle._raise('0A000', format('cannot retain the history of "%s"', pgtrickle._qualified(relation)),
                                 coalesce(pgtrickle._capture_obstacle(relation), 'It is not a table or view.'), NULL);
    ELSIF period <= '0' OR NOT isfinite(period) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'RETAIN HISTORY needs a positive period';
    END IF;
    IF period IS NULL THEN
        PERFORM pgtrickle._forget_history_sources(relation);
        DELETE FROM pgtrickle.pgt_history h WHERE h.relid = relation;
        RETURN '{}';
    END IF;
    INSERT INTO pgtrickle.pgt_history (relid, period, system) VALUES (relation, _retain_history.period, pgtrickle._cluster())
    ON CONFLICT (relid) DO UPDATE SET period = excluded.period, system = excluded.system;
    IF EXISTS (SELECT FROM pgtrickle.pgt_history h WHERE h.relid = relation AND h.subscription_id IS NOT NULL) THEN
        RETURN '{}';
    END IF;
    RETURN pgtrickle._follow_for_history(relation);
END $$;


-- Keep the history going: forget relations that are gone, start anew where changes may have been missed, let frontiers
-- follow the time, and remove timestamps that nobody can ask for. Returns the relations that must be followed anew
-- (_follow_for_history), each in a transaction of its own, and those of which changes may be removed. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._advance_history(OUT relid bigint, OUT is_broken boolean) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    h record;
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    here text := pgtrickle._system();
    broken text;
    kept record;
BEGIN
    FOR h IN
        SELECT x.*, floor(extract(epoch FROM x.period) * 1000)::bigint AS ms FROM pgtrickle.pgt_history x ORDER BY x.relid
        FOR UPDATE SKIP LOCKED
    LOOP
        IF h.system <> pgtrickle._cluster() OR pgtrickle._qualified(h.relid) IS NULL THEN
            PERFORM pgtrickle._forget_history_sources(h.relid);
            DELETE FROM pgtrickle.pgt_history x WHERE x.relid = h.relid;
            CONTINUE;
        END IF;
        broken := CASE WHEN h.subscription_id IS NULL THEN coalesce(h.error, 'changes are not captured')
                       ELSE (SELECT o.message FROM pgtrickle._subscription_obstacles(ARRAY[h.subscription_id]) o) END;
        IF broken IS NULL AND EXISTS (
            SELECT FROM pgtrickle.pgt_subscription_sources u JOIN pgtrickle.pgt_captures k USING (source_relid)
            WHERE u.subscription_id = h.subscription_id AND k.system <> here) THEN
            broken := 'the database was restored, or a standby promoted';
        END IF;
        IF broken IS NULL AND (SELECT c.relkind FROM pg_class c WHERE c.oid = h.relid) <> 'v' AND EXISTS (
            SELECT FROM pg_attribute a JOIN pgtrickle.pgt_subscription_sources u ON u.source_relid = a.attrelid
            WHERE u.subscription_id = h.subscription_id AND a.attnum > 0 AND NOT a.attisdropped
              AND NOT a.attname = ANY (u.columns_used)) THEN
            broken := 'columns were added';
        END IF;
        IF broken IS NOT NULL THEN
            UPDATE pgtrickle.pgt_history x SET held_from = NULL, error = broken WHERE x.relid = h.relid;
            relid := h.relid::bigint;
            is_broken := true;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT t.mz_timestamp, t.snapshot INTO kept FROM pgtrickle.pgt_timeline t
        WHERE t.system = here AND t.mz_timestamp <= now_ms - h.ms - pgtrickle._history_grace()
          AND pg_visible_in_snapshot(h.followed_xid, t.snapshot)
        ORDER BY t.mz_timestamp DESC LIMIT 1;
        IF kept.mz_timestamp IS NULL AND h.held_from IS NULL THEN
            SELECT t.mz_timestamp, t.snapshot INTO kept FROM pgtrickle.pgt_timeline t
            WHERE t.system = here AND pg_visible_in_snapshot(h.followed_xid, t.snapshot)
            ORDER BY t.mz_timestamp LIMIT 1;
        END IF;
        IF kept.mz_timestamp IS DISTINCT FROM h.held_from AND kept.mz_timestamp IS NOT NULL THEN
            UPDATE pgtrickle.pgt_history x SET held_from = kept.mz_timestamp WHERE x.relid = h.relid;
            UPDATE pgtrickle.pgt_subscription_servers v SET frontier = kept.snapshot, mz_timestamp = kept.mz_timestamp
            WHERE v.server = h.server;
            relid := h.relid::bigint;
            is_broken := false;
            RETURN NEXT;
        END IF;
    END LOOP;
    DELETE FROM pgtrickle.pgt_timeline t
    WHERE t.system <> here
       OR t.mz_timestamp < (SELECT coalesce(min(x.held_from), now_ms - max(extract(epoch FROM x.period) * 1000)::bigint
                                                              - pgtrickle._history_grace(), t.mz_timestamp + 1)
                            FROM pgtrickle.pgt_history x);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._advance_history() FROM PUBLIC;


-- The snapshot of a timestamp: that of the latest tick that is not later. NULL if there is none.
CREATE OR REPLACE FUNCTION pgtrickle._snapshot_at(moment bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.snapshot::text FROM pgtrickle.pgt_timeline t
    WHERE t.mz_timestamp <= moment AND t.system = pgtrickle._system()
    ORDER BY t.mz_timestamp DESC LIMIT 1
$$;


-- Which timestamp transactions have, of those in (after, until]: the first whose snapshot sees them. One that none sees has
-- the latter if there is `rest`: the caller sees it; otherwise it is left out.
CREATE OR REPLACE FUNCTION pgtrickle._dates(after bigint, until bigint, rest boolean, xids xid8[])
RETURNS TABLE (xid xid8, mz_timestamp bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ticks bigint[];
    snapshots pg_snapshot[];
    first int := 1;
    seeing int;
BEGIN
    SELECT array_agg(t.mz_timestamp ORDER BY t.mz_timestamp), array_agg(t.snapshot ORDER BY t.mz_timestamp)
    INTO ticks, snapshots FROM pgtrickle.pgt_timeline t
    WHERE t.system = pgtrickle._system() AND t.mz_timestamp > after AND t.mz_timestamp <= until;
    FOR xid IN SELECT DISTINCT x FROM unnest(xids) AS x ORDER BY x LOOP
        -- Snapshots grow with time, and so do these transactions: what is behind one's end is behind that of the next.
        WHILE pg_snapshot_xmax(snapshots[first]) <= xid LOOP
            first := first + 1;
        END LOOP;
        seeing := first;
        WHILE NOT pg_visible_in_snapshot(xid, snapshots[seeing]) LOOP
            seeing := seeing + 1;
        END LOOP;
        mz_timestamp := coalesce(ticks[seeing], CASE WHEN rest THEN until END);
        CONTINUE WHEN mz_timestamp IS NULL;
        RETURN NEXT;
    END LOOP;
END $$;


-- The oldest timestamp at which a subscription can begin: at which the changes of all its sources are held, as it captures
-- them and in all its columns. NULL if there is none; `lacking` is then a source without history.
CREATE OR REPLACE FUNCTION pgtrickle._held_from(subscription_id bigint, OUT held_from bigint, OUT lacking oid)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    u record;
BEGIN
    FOR u IN
        SELECT s.source_relid,
               -- Not clock_timestamp() - period: a relation's owner can give any period.
               min(greatest(h.held_from, floor((extract(epoch FROM clock_timestamp()) - extract(epoch FROM h.period)) * 1000)::bigint))
                   AS held
        FROM pgtrickle.pgt_subscription_sources s
        LEFT JOIN pgtrickle.pgt_subscription_sources x
               ON x.source_relid = s.source_relid AND x.capture_generation = s.capture_generation
              AND x.columns_used @> s.columns_used
              AND x.schema_fingerprint = pgtrickle._reading(x.source_relid, x.columns_used)
              AND EXISTS (SELECT FROM pgtrickle.pgt_captures k JOIN pg_class c ON c.oid = k.source_relid
                          WHERE k.source_relid = x.source_relid
                            AND pgtrickle._capture_gap(k.source_relid, k.generation = x.capture_generation, k.relations,
                                                       k.trigger_state, c.relhassubclass) IS NULL)
        -- One that is just beginning holds nothing, of which greatest() would take no notice.
        LEFT JOIN pgtrickle.pgt_history h
               ON h.subscription_id = x.subscription_id AND h.error IS NULL AND h.held_from IS NOT NULL
        WHERE s.subscription_id = _held_from.subscription_id AND s.capture_generation IS NOT NULL
        GROUP BY s.source_relid
        ORDER BY s.source_relid
    LOOP
        IF u.held IS NULL THEN
            held_from := NULL;
            lacking := u.source_relid;
            RETURN;
        END IF;
        held_from := greatest(held_from, u.held);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._held_from(bigint) FROM PUBLIC;


-- With which timestamp, and from which snapshot, a subscription begins that asks for one in the past: that one, or, if
-- at_least, the first later one that is held (NULL: none is, the subscription begins now). The buffers of its sources stay
-- as they are until the transaction ends; the caller calls this first of all in a transaction that sees the subscription.
-- Raises 22023 if the timestamp is not held.
CREATE OR REPLACE FUNCTION pgtrickle._as_of(
    subscription_id bigint, as_of bigint, at_least boolean, OUT mz_timestamp bigint, OUT snapshot text
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found record;
BEGIN
    PERFORM pgtrickle._share_source(s.source_relid)
    FROM (SELECT DISTINCT u.source_relid FROM pgtrickle.pgt_subscription_sources u
          WHERE u.subscription_id = _as_of.subscription_id AND u.capture_generation IS NOT NULL ORDER BY 1) AS s;
    SELECT * INTO found FROM pgtrickle._held_from(_as_of.subscription_id);
    IF found.lacking IS NULL AND (found.held_from IS NULL OR as_of >= found.held_from) THEN
        mz_timestamp := as_of;
    ELSIF at_least THEN
        mz_timestamp := found.held_from;
    ELSIF found.lacking IS NOT NULL THEN
        PERFORM pgtrickle._raise('22023', format('timestamp %s is not held', as_of),
            format('The history of "%s" is not retained, or not yet, or not in all columns that are read.',
                   pgtrickle._qualified(found.lacking)),
            'Retain it with ALTER … SET (RETAIN HISTORY FOR ''…''), or begin with AS OF AT LEAST.');
    ELSE
        PERFORM pgtrickle._raise('22023', format('timestamp %s is no longer held', as_of),
            format('The history begins at %s.', found.held_from),
            'Begin with AS OF AT LEAST, or without AS OF, and with a snapshot.');
    END IF;
    snapshot := pgtrickle._snapshot_at(mz_timestamp);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._as_of(bigint, bigint, boolean) FROM PUBLIC;


-- The sources of a subscription that is told of the past since a moment, after _as_of: the columns (none, if that is not held or
-- the reader has not the right) by which a source's rows can be told apart, and those that its indexes begin with. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._replayed_sources(
    subscription_id bigint, moment bigint, OUT relid bigint, OUT row_key text[], OUT searched text[]
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reader oid := (SELECT s.runs_as FROM pgtrickle.pgt_subscriptions s
                   WHERE s.subscription_id = _replayed_sources.subscription_id);
    u record;
BEGIN
    FOR u IN
        SELECT DISTINCT s.source_relid, s.capture_generation, s.columns_used FROM pgtrickle.pgt_subscription_sources s
        WHERE s.subscription_id = _replayed_sources.subscription_id AND s.capture_generation IS NOT NULL
    LOOP
        relid := u.source_relid::bigint;
        row_key := coalesce(pgtrickle._row_key(u.source_relid), '{}');
        IF pgtrickle._read_obstacle(reader, u.source_relid, row_key) IS NULL AND EXISTS (
            SELECT FROM pgtrickle.pgt_subscription_sources x
            JOIN pgtrickle.pgt_history h ON h.subscription_id = x.subscription_id AND h.error IS NULL
            WHERE x.source_relid = u.source_relid AND x.capture_generation = u.capture_generation
              AND x.columns_used @> (u.columns_used || row_key) AND h.held_from <= moment)
        THEN
            PERFORM pgtrickle._grant_buffer(u.source_relid, reader, row_key);
        ELSE
            row_key := '{}';
        END IF;
        searched := ARRAY(
            SELECT DISTINCT a.attname::text
            FROM pg_index i
            JOIN pg_opclass o ON o.oid = i.indclass[0] AND o.opcdefault
            JOIN pg_am m ON m.oid = o.opcmethod AND m.amname = 'btree'
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
            WHERE i.indrelid = u.source_relid AND i.indisvalid);
        RETURN NEXT;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._replayed_sources(bigint, bigint) FROM PUBLIC;


-- Note why a relation's history is not held. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._fail_history(relation oid, message text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    UPDATE pgtrickle.pgt_history h SET error = message, held_from = NULL WHERE h.relid = relation
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._fail_history(oid, text) FROM PUBLIC;
