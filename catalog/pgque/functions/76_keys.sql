-- Order by key: groups whose members get disjoint keys.
--
-- A group with a key hashes it into slots. A batch has the events of some slots between two ticks; while a member has it, these
-- slots are his, and nobody else's: their next events come after he has closed the batch. So the events of a key are handed out
-- one batch after the other, whoever the members are, and a batch that is taken over is handed out again from where its
-- slots stand.
--
-- An event that is to be given again keeps back the later ones of its key, those of the same batch and those of later ones:
-- they are held (`held_event`), and handed out together with it, in order, once it is due. Dead letters keep nothing back. Other
-- keys go on. Events without a key (null; not JSON) go anywhere, and keep nothing back.
--
-- Everything is decided under the lock of the group's row. Only closing a batch is done without: it moves slots that nobody else
-- touches.


-- How many slots a group has: more than it can sensibly have members.
CREATE OR REPLACE FUNCTION pgque._slots() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 64;


-- What a JSON path finds in an event, as text; null where it finds nothing, or the event is not JSON.
CREATE OR REPLACE FUNCTION pgque._json_key(data text, path jsonpath) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_path_query_first(data::jsonb, path, silent => true) #>> '{}';
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;


-- An event's key as an expression over its columns. Raises 22023 for what is none.
CREATE OR REPLACE FUNCTION pgque._key_expression(key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF key IN ('ev_type', 'ev_extra1', 'ev_extra2', 'ev_extra3', 'ev_extra4') THEN
        RETURN key;
    ELSIF key LIKE '$%' THEN
        RETURN format('pgque._json_key(ev_data, %L)', key::jsonpath);
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('"%s" is no key', key),
        HINT = 'A key is ev_type, ev_extra1 to ev_extra4, or a JSON path into ev_data, such as $.customer.';
END $$;


-- The slot of an event. Becomes part of the query.
CREATE OR REPLACE FUNCTION pgque._event_slot(key text, id bigint) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN (((coalesce(hashtextextended(key COLLATE "C", 0), id) % pgque._slots()) + pgque._slots()) % pgque._slots())::integer;


-- Events between a batch's ticks that belong to its slots, with `key` and `slot` beside their own columns.
CREATE OR REPLACE FUNCTION pgque._slot_query(batch pgque._batch_state) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer[] := batch.slots;
BEGIN
    batch.slots := NULL;
    RETURN format('SELECT * FROM (SELECT *, pgque._event_slot(key, ev_id) AS slot FROM (SELECT *, %s AS key FROM (%s) AS raw) AS keyed)'
                  ' AS placed WHERE slot = ANY (%L::integer[])',
                  pgque._key_expression(batch.key), pgque._batch_query(batch, '*'), wanted);
END $$;


-- The query of the events of a batch of slots, in order: those that were held, then those between its ticks that are not.
CREATE OR REPLACE FUNCTION pgque._keyed_query(batch pgque._batch_state, columns text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own constant text := 'ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4';
BEGIN
    RETURN format('SELECT %1$s FROM (SELECT %2$s, place FROM pgque.held_event h '
                  '  WHERE h.batch = %3$s AND h.origin IS DISTINCT FROM h.batch'
                  ' UNION ALL SELECT %2$s, NULL FROM (%4$s) AS e WHERE NOT EXISTS (SELECT FROM pgque.held_event h '
                  '  WHERE h.owner = %5$s AND h.ev_id = e.ev_id AND h.origin IS DISTINCT FROM %3$s)) AS event'
                  ' ORDER BY place, ev_id', columns, own, batch.batch_id, pgque._slot_query(batch), batch.owner);
END $$;


-- Give the members of a group disjoint keys: a column of the events, or a JSON path into ev_data; null ends it. Registers the
-- consumer if need be, and makes it a group. Raises 55000 unless everything that has been handed out is done with: what has
-- another key would be in another slot.
CREATE OR REPLACE FUNCTION pgque.set_ordering_key(queue text, consumer text, key text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    main pgque.subscription;
BEGIN
    PERFORM pgque._key_expression(key) WHERE key IS NOT NULL;
    PERFORM pgque._register_consumer(queue, consumer, NULL);
    main := pgque._coop_lock(queue, consumer);
    IF main.sub_role = 'coop_member' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('consumer "%s" is a subconsumer, whose group has the key', consumer);
    ELSIF main.sub_batch IS NOT NULL OR main.sub_next_tick IS NOT NULL
          OR EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = main.sub_id AND m.sub_batch IS NOT NULL)
          OR EXISTS (SELECT FROM pgque.held_event h WHERE h.owner = main.sub_id)
          OR (SELECT count(DISTINCT (s.last_tick, s.after_id)) FROM pgque.slot s WHERE s.sub_id = main.sub_id) > 1 THEN
        RAISE EXCEPTION USING ERRCODE = '55000',
            MESSAGE = format('consumer "%s" on queue "%s" has batches that are not finished', consumer, queue),
            HINT = 'Pause the ticker of the queue, and let the members finish.';
    END IF;
    UPDATE pgque.subscription s
       SET sub_last_tick = coalesce((SELECT max(l.last_tick) FROM pgque.slot l WHERE l.sub_id = s.sub_id), s.sub_last_tick),
           sub_role = CASE WHEN key IS NOT NULL OR EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = s.sub_id)
                           THEN 'coop_main' ELSE 'normal' END
     WHERE s.sub_id = main.sub_id RETURNING s.sub_last_tick INTO main.sub_last_tick;
    DELETE FROM pgque.ordering o WHERE o.sub_id = main.sub_id;
    INSERT INTO pgque.ordering (sub_id, key) SELECT main.sub_id, set_ordering_key.key WHERE set_ordering_key.key IS NOT NULL;
    INSERT INTO pgque.slot (sub_id, slot, last_tick)
    SELECT o.sub_id, n, main.sub_last_tick FROM pgque.ordering o, generate_series(0, pgque._slots() - 1) AS n
     WHERE o.sub_id = main.sub_id;
    RETURN 1;
END $$;


-- Where a group that is moved to a tick stands: nothing is held any more. Raises where a member has a batch.
CREATE OR REPLACE FUNCTION pgque._move_slots(main integer, tick bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pgque.slot s WHERE s.sub_id = main AND s.holder IS NOT NULL) THEN
        RAISE EXCEPTION 'cannot reposition a group while one of its members has an active batch';
    END IF;
    DELETE FROM pgque.held_event h WHERE h.owner = main;
    UPDATE pgque.slot s SET last_tick = tick, next_tick = NULL, after_id = NULL, last_id = NULL WHERE s.sub_id = main;
END $$;


-- The slots of a member are free again, at the place where they were.
CREATE OR REPLACE FUNCTION pgque._release_slots(member integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgque.slot s SET holder = NULL WHERE s.holder = member;
    DELETE FROM pgque.batch_part p WHERE p.sub_id = member;
END $$;


-- The slots for the next batch: of the free ones those that are furthest behind, so many that each member has its share of them
-- or of their events up to a tick, whichever is more. Slots that have none pass this tick at once. Null where none is left for a batch.
CREATE OR REPLACE FUNCTION pgque._choose_slots(batch pgque._batch_state, members bigint) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '64MB' AS $$
DECLARE
    chosen integer[];
    busy integer[];
BEGIN
    EXECUTE
        'WITH counted AS (SELECT slot, count(*) AS number FROM (' || pgque._slot_query(batch) || ') AS e GROUP BY slot), '
        'wanted AS (SELECT s AS slot, coalesce(c.number, 0) AS number FROM unnest($1) AS s LEFT JOIN counted c ON c.slot = s '
        '            WHERE c.number > 0 OR s = ANY ($2)), '
        'running AS (SELECT slot, sum(number) OVER (ORDER BY slot) AS upto, row_number() OVER (ORDER BY slot) AS place, '
        '                   sum(number) OVER () AS total, min(slot) OVER () AS first FROM wanted) '
        'SELECT array_agg(slot) FILTER (WHERE place = 1 OR upto <= $3 AND (slot * $4 / $5 = first * $4 / $5 OR upto <= ceil(total / $4))), array_agg(slot) '
        '  FROM running'
        INTO chosen, busy
        USING batch.slots, pgque._due_slots(batch.owner, batch.slots), coalesce(batch.part_size, 2147483647), members,
              pgque._slots();
    UPDATE pgque.slot s SET last_tick = batch.next_tick_id
     WHERE s.sub_id = batch.owner AND s.slot = ANY (batch.slots) AND s.last_tick < batch.next_tick_id
       AND s.slot <> ALL (coalesce(busy, '{}'));
    RETURN chosen;
END $$;


-- Those of a group's slots in which a held event is due that is the first of its key.
CREATE OR REPLACE FUNCTION pgque._due_slots(main integer, wanted integer[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgque.held_event h WHERE h.owner = main) THEN
        RETURN '{}';
    END IF;
    RETURN array(SELECT DISTINCT h.slot FROM pgque.held_event h
                  WHERE h.owner = main AND h.ev_id IN (SELECT pgque._due_keys(main, wanted)));
END $$;


-- The held events of slots that are to be handed out: of each key all, once its first one is due.
CREATE OR REPLACE FUNCTION pgque._due_keys(main integer, wanted integer[]) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT h.ev_id
      FROM (SELECT d.ev_id, first_value(d.due) OVER (PARTITION BY d.slot, d.key, CASE WHEN d.key IS NULL THEN d.ev_id END
                                                     ORDER BY d.place, d.ev_id) AS first_due
              FROM pgque.held_event d WHERE d.owner = main AND d.slot = ANY (wanted)) AS h
     WHERE h.first_due <= clock_timestamp();
END $$;


-- Hold what must wait of a new batch, and take into it what was held and is due. Returns whether it has any events.
CREATE OR REPLACE FUNCTION pgque._fill_keyed(batch pgque._batch_state) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '64MB' AS $$
DECLARE
    filled boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pgque.held_event h WHERE h.owner = batch.owner AND h.slot = ANY (batch.slots)) THEN
        RETURN true;
    END IF;
    -- Of a batch that was never closed: what it had from its ticks is there once more, what was held is as it was.
    DELETE FROM pgque.held_event h
     WHERE h.owner = batch.owner AND h.slot = ANY (batch.slots) AND h.batch IS NOT NULL AND h.origin = h.batch;
    UPDATE pgque.held_event h SET batch = NULL, kept = false, again_at = NULL
     WHERE h.owner = batch.owner AND h.slot = ANY (batch.slots) AND h.batch IS NOT NULL;
    EXECUTE 'INSERT INTO pgque.held_event (owner, slot, key, place, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, '
            '                              ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'SELECT $1, slot, key, $2, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, '
            '       ev_extra1, ev_extra2, ev_extra3, ev_extra4 FROM (' || pgque._slot_query(batch) || ') AS e '
            ' WHERE key IN (SELECT h.key FROM pgque.held_event h WHERE h.owner = $1 AND h.slot = ANY ($3)) '
            'ON CONFLICT DO NOTHING'
        USING batch.owner, batch.batch_id, batch.slots;
    UPDATE pgque.held_event h SET batch = _fill_keyed.batch.batch_id
     WHERE h.owner = _fill_keyed.batch.owner
       AND h.ev_id IN (SELECT pgque._due_keys(_fill_keyed.batch.owner, _fill_keyed.batch.slots));
    EXECUTE 'SELECT EXISTS (' || pgque._keyed_query(batch, '1') || ')' INTO filled;
    RETURN filled;
END $$;


-- The next batch of a group with a key for one of its members, whose row is locked like the group's; null where there is none.
-- What the caller asks of a batch it asks of all slots together.
CREATE OR REPLACE FUNCTION pgque._next_keyed(
    main pgque.subscription, member integer, min_lag interval, min_count integer, min_interval interval
) RETURNS pgque._batch_state LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state;
    members bigint := (SELECT count(*) FROM pgque.subscription s WHERE s.sub_main = main.sub_id);
BEGIN
    IF NOT pgque._is_at_home(main.sub_queue) THEN
        PERFORM pgque._lock_ticks(main.sub_queue, true);
    END IF;
    LOOP
        batch := pgque._free_slots(main, min_lag, min_count, min_interval);
        IF batch.slots IS NULL THEN
            EXIT;
        ELSIF batch.last_id IS NULL THEN
            batch.slots := pgque._choose_slots(batch, members);
            CONTINUE WHEN batch.slots IS NULL;
        END IF;
        IF cardinality(batch.slots) = 1 THEN
            batch := pgque._cut(batch);
        END IF;
        batch.batch_id := nextval('pgque.batch_id_seq'::regclass);
        UPDATE pgque.slot s SET holder = member WHERE s.sub_id = main.sub_id AND s.slot = ANY (batch.slots);
        INSERT INTO pgque.batch_part (sub_id, prev_tick, next_tick, after_id, upto_id, last_id, slots)
        VALUES (member, batch.prev_tick_id, batch.next_tick_id, batch.after_id, batch.upto_id, batch.last_id, batch.slots);
        EXIT WHEN pgque._fill_keyed(batch);
        PERFORM pgque._close_slots(member, batch.batch_id);  -- all of it has to wait
    END LOOP;
    UPDATE pgque.subscription s SET sub_last_tick = stands.tick, sub_active = clock_timestamp()
      FROM (SELECT min(l.last_tick) AS tick FROM pgque.slot l WHERE l.sub_id = main.sub_id) AS stands
     WHERE s.sub_id = main.sub_id AND s.sub_last_tick < stands.tick;
    RETURN batch;
END $$;


-- The free slots that are furthest behind, and what lies before them: up to the next tick, or nothing where held events are
-- due. Without slots where there is nothing to do.
CREATE OR REPLACE FUNCTION pgque._free_slots(
    main pgque.subscription, min_lag interval, min_count integer, min_interval interval
) RETURNS pgque._batch_state LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch pgque._batch_state;
    stands record;
    due integer[];
BEGIN
    SELECT s.last_tick, s.next_tick, s.after_id, s.last_id, array_agg(s.slot ORDER BY s.slot) AS slots INTO stands
      FROM pgque.slot s WHERE s.sub_id = main.sub_id AND s.holder IS NULL
     GROUP BY s.last_tick, s.next_tick, s.after_id, s.last_id, CASE WHEN s.last_id IS NOT NULL THEN s.slot END
     ORDER BY s.last_tick, s.after_id LIMIT 1;
    IF stands.slots IS NULL THEN
        RETURN NULL;
    ELSIF stands.next_tick IS NULL THEN
        stands.next_tick := pgque._find_tick(main.sub_queue, stands.last_tick, min_lag, min_count, min_interval);
    END IF;
    IF stands.next_tick IS NULL THEN
        due := pgque._due_slots(main.sub_id, stands.slots);
        IF cardinality(due) = 0 THEN
            RETURN NULL;
        END IF;
        stands.next_tick := stands.last_tick;
        stands.slots := due;
    END IF;
    SELECT NULL, q.queue_id, q.queue_name, pgque._event_table(q.queue_id), q.queue_max_retries,
           main.sub_id, main.sub_id, main.sub_consumer, NULL,
           prev.tick_id, next.tick_id, prev.tick_snapshot, next.tick_snapshot,
           stands.after_id, NULL, stands.last_id, q.queue_max_batch_events, main.sub_role, true, stands.slots, o.key
      INTO batch
      FROM pgque.queue q
      JOIN pgque.ordering o ON o.sub_id = main.sub_id
      JOIN pgque.tick prev ON prev.tick_queue = q.queue_id AND prev.tick_id = stands.last_tick
      JOIN pgque.tick next ON next.tick_queue = q.queue_id AND next.tick_id = stands.next_tick
     WHERE q.queue_id = main.sub_queue;
    RETURN batch;
END $$;


-- A member has closed its batch: its slots go on, and are free; what it has held becomes due at its time.
CREATE OR REPLACE FUNCTION pgque._close_slots(member integer, closed bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part pgque.batch_part;
BEGIN
    DELETE FROM pgque.batch_part p WHERE p.sub_id = member RETURNING * INTO part;
    IF part.upto_id < part.last_id THEN
        UPDATE pgque.slot s SET next_tick = part.next_tick, after_id = part.upto_id, last_id = part.last_id, holder = NULL
         WHERE s.holder = member;
    ELSE
        UPDATE pgque.slot s SET last_tick = part.next_tick, next_tick = NULL, after_id = NULL, last_id = NULL, holder = NULL
         WHERE s.holder = member;
    END IF;
    DELETE FROM pgque.held_event h WHERE h.batch = closed AND NOT h.kept;
    UPDATE pgque.held_event h
       SET batch = NULL, origin = NULL, kept = false, again_at = NULL, announced = false,
           due = coalesce(h.again_at, '-infinity'),
           ev_retry = CASE WHEN h.again_at IS NULL THEN h.ev_retry ELSE coalesce(h.ev_retry, 0) + 1 END
     WHERE h.batch = closed;
END $$;


-- Hold events of a batch: `picked` is a condition on its events. Those that have not been are given again at `at`, or, where that
-- is null, once those before them are done. Returns how many.
CREATE OR REPLACE FUNCTION pgque._hold(
    batch pgque._batch_state, at timestamptz, picked text, id bigint, most_retries integer
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '64MB' AS $$
DECLARE
    held bigint;
BEGIN
    EXECUTE 'WITH event AS (SELECT *, pgque._event_slot(key, ev_id) AS slot FROM (SELECT *, ' ||
            pgque._key_expression(batch.key) || ' AS key FROM (' || pgque._keyed_query(batch, 'ev_id, ev_time, ev_txid, ev_owner, '
            'ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, coalesce(place, $1) AS place') || ') AS b) AS k) '
            'INSERT INTO pgque.held_event AS h (owner, slot, key, place, batch, origin, kept, again_at, ev_id, ev_time, ev_txid, '
            '            ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'SELECT $2, slot, key, place, $1, $1, true, $3, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, '
            '       ev_extra1, ev_extra2, ev_extra3, ev_extra4 FROM event WHERE ' || picked ||
            ' ON CONFLICT (owner, ev_id) DO UPDATE SET kept = true, again_at = excluded.again_at '
            ' WHERE NOT h.kept OR h.again_at IS NULL AND excluded.again_at IS NOT NULL'
        USING batch.batch_id, batch.owner, at, id, most_retries;
    GET DIAGNOSTICS held = ROW_COUNT;
    RETURN held;
END $$;


-- Give an event of a batch of slots again, and hold the later ones of its key. 0 if this has been asked for already.
CREATE OR REPLACE FUNCTION pgque._retry_keyed(batch pgque._batch_state, event bigint, at timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held bigint := pgque._hold(batch, at, 'ev_id = $4', event, NULL);
BEGIN
    IF held > 0 THEN
        PERFORM pgque._hold(batch, NULL, '(key, slot) = (SELECT e.key, e.slot FROM event e WHERE e.ev_id = $4) '
                            'AND (place, ev_id) > (SELECT e.place, e.ev_id FROM event e WHERE e.ev_id = $4)', event, NULL);
    END IF;
    RETURN held;
END $$;


-- Every event of a batch of slots that has had fewer retries than `most`, null for all.
CREATE OR REPLACE FUNCTION pgque._retry_all_keyed(batch pgque._batch_state, at timestamptz, most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgque.held_event h
     WHERE h.batch = _retry_all_keyed.batch.batch_id AND h.origin = h.batch AND coalesce(h.ev_retry, 0) >= most;
    UPDATE pgque.held_event h SET kept = false, again_at = NULL
     WHERE h.batch = _retry_all_keyed.batch.batch_id AND coalesce(h.ev_retry, 0) >= most;
    RETURN pgque._hold(batch, at, '($5 IS NULL OR coalesce(ev_retry, 0) < $5)', NULL, most);
END $$;


-- An event of a batch of slots that is dead is not given again.
CREATE OR REPLACE FUNCTION pgque._forget_held(batch pgque._batch_state, event bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgque.held_event h WHERE h.owner = batch.owner AND h.ev_id = event AND h.origin = batch.batch_id;
    UPDATE pgque.held_event h SET kept = false, again_at = NULL
     WHERE h.owner = batch.owner AND h.ev_id = event AND h.batch = batch.batch_id;
END $$;


-- Have a tick made, which is announced, where held events have become due.
CREATE OR REPLACE FUNCTION pgque._announce_held() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    queues integer[];
BEGIN
    WITH due AS (
        SELECT d.owner, d.ev_id FROM pgque.held_event d
         WHERE d.due <= now() AND d.batch IS NULL AND NOT d.announced FOR UPDATE SKIP LOCKED
    ), told AS (
        UPDATE pgque.held_event h SET announced = true FROM due d WHERE h.owner = d.owner AND h.ev_id = d.ev_id RETURNING h.owner
    )
    SELECT array_agg(DISTINCT s.sub_queue) INTO queues FROM told t JOIN pgque.subscription s ON s.sub_id = t.owner;
    PERFORM nextval(q.queue_event_seq::regclass) FROM pgque.queue q WHERE q.queue_id = ANY (queues);
END $$;
