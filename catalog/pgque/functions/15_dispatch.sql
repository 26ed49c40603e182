-- Sending: which table an event is written to.
--
-- A statement that names its table in a variable is parsed and planned at every call, which costs twice as much as all
-- the rest of sending; to look for the queue costs as much as the insert. So the functions that send are generated, with
-- the queues' names and a statement for the table that each queue writes to at present. A trigger on the table of queues
-- generates them anew when a queue is created, dropped or switched to its next table. Whoever is still at work with older
-- ones does no harm: no table is emptied while it has events that somebody needs. Beyond 64 queues the younger ones go the
-- slow way, as do those with a limit for each transaction.


-- The table of a queue's events, or the one of its three that has this number, as it is written in a statement.
CREATE OR REPLACE FUNCTION pgque._event_table(id integer, number integer DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE RETURN 'pgque.event_' || id::text || coalesce('_' || number::text, '');


-- One at a time creates, drops or switches queues, until its transaction ends. False if `wait` is false and there is one.
-- The lock is a row of a table that nobody else may touch.
CREATE OR REPLACE FUNCTION pgque._lock_queues(wait boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF wait THEN
        PERFORM FROM pgque.mutex m WHERE m.queue_id = 0 FOR UPDATE;
    ELSE
        PERFORM FROM pgque.mutex m WHERE m.queue_id = 0 FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN FOUND;
END $$;


-- Count what a transaction sends to a queue that has a limit. The count is the transaction's own, and goes back with its
-- savepoints; a limit guards against mistakes, not against somebody who sets it anew.
CREATE OR REPLACE FUNCTION pgque._count_sent(this pgque.queue, number integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    counter constant text := 'pgque.sent_' || this.queue_id;
    sent integer := coalesce(nullif(current_setting(counter, true), ''), '0')::integer + number;
BEGIN
    IF sent > this.queue_per_tx_limit THEN
        RAISE EXCEPTION 'Queue ''%'' allows max % events from one TX', this.queue_name, this.queue_per_tx_limit;
    END IF;
    PERFORM set_config(counter, sent::text, true);
END $$;


-- The slow way, for any queue. The transaction has an id before the event has one: see _late_events.
CREATE OR REPLACE FUNCTION pgque._insert_events(
    queue text, type text, data text[], extra1 text, extra2 text, extra3 text, extra4 text
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    xid xid8 := pg_current_xact_id();
    this pgque.queue;
    events bigint[];
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue not found: %', queue;
    ELSIF this.queue_disable_insert THEN
        RAISE EXCEPTION 'Insert into queue disallowed';
    ELSIF this.queue_per_tx_limit IS NOT NULL THEN
        PERFORM pgque._count_sent(this, cardinality(data));
    END IF;
    EXECUTE 'WITH inserted AS (INSERT INTO ' || pgque._event_table(this.queue_id, this.queue_cur_table) ||
        ' (ev_id, ev_time, ev_txid, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)'
        ' SELECT nextval($1), now(), $2, $3, payload, $5, $6, $7, $8 FROM unnest($4) AS payload RETURNING ev_id)'
        ' SELECT array_agg(ev_id) FROM inserted'
        INTO events USING this.queue_event_seq::regclass, xid, type, data, extra1, extra2, extra3, extra4;
    RETURN events;
END $$;


-- A decision between queues, ordered by name, as a tree of IFs; `leaf` is a template for format() with a queue's name, its
-- id and the number of its table.
CREATE OR REPLACE FUNCTION pgque._decision(queues pgque.queue[], leaf text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    half integer := cardinality(queues) / 2;
BEGIN
    RETURN CASE cardinality(queues)
        WHEN 0 THEN ''
        WHEN 1 THEN format(E'IF queue_name = %1$L COLLATE "C" THEN' || leaf || E'\nEND IF;',
                           queues[1].queue_name, queues[1].queue_id, queues[1].queue_cur_table)
        ELSE format(E'IF queue_name <= %L COLLATE "C" THEN\n', queues[half].queue_name) || pgque._decision(queues[:half], leaf)
             || E'\nELSE\n' || pgque._decision(queues[half + 1:], leaf) || E'\nEND IF;' END;
END $$;


-- Generate the functions that send.
CREATE OR REPLACE FUNCTION pgque._make_inserts() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    queues pgque.queue[];
    name text;
    parameters text;
    type text;
    data text;
    extras text;
    begun constant text := $begun$
DECLARE
    xid xid8 := pg_current_xact_id();
    event bigint;
    events bigint[];
BEGIN
$begun$;
BEGIN
    PERFORM pgque._lock_queues(true);
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- What all sessions execute must not be made of an older snapshot, which may have a queue that is gone.
        PERFORM FROM pgque.queue FOR SHARE;
    END IF;
    queues := array(SELECT q FROM (SELECT * FROM pgque.queue
                            WHERE NOT queue_disable_insert AND queue_per_tx_limit IS NULL
                            ORDER BY queue_id LIMIT 64) AS q
                     ORDER BY q.queue_name COLLATE "C");
    FOR name, parameters, type, data, extras IN VALUES
        ('send', 'payload text', '''default''', 'payload', ''),
        ('send', 'payload jsonb', '''default''', 'payload::text', ''),
        ('send', 'type_name text, payload text', 'type_name', 'payload', ''),
        ('send', 'type_name text, payload jsonb', 'type_name', 'payload::text', ''),
        ('insert_event', 'ev_type text, ev_data text', 'ev_type', 'ev_data', ''),
        ('insert_event', 'ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text',
         'ev_type', 'ev_data', ', ev_extra1, ev_extra2, ev_extra3, ev_extra4')
    LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION pgque.%I(queue_name text, %s) RETURNS bigint LANGUAGE plpgsql VOLATILE '
                       'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L', name, parameters,
            begun || pgque._decision(queues, replace(replace(replace($leaf$
        event := nextval('pgque.event_%2$s_id_seq'::regclass);
        INSERT INTO pgque.event_%2$s_%3$s (ev_id, ev_time, ev_txid, ev_type, ev_data{extras})
        VALUES (event, now(), xid, {type}, {data}{extras});
        RETURN event;$leaf$, '{type}', type), '{data}', data), '{extras}', extras)) || format($end$
    events := pgque._insert_events(queue_name, %s, ARRAY[%s]%s);
    RETURN events[1];
END $end$, type, data, coalesce(nullif(extras, ''), ', NULL, NULL, NULL, NULL')));
    END LOOP;
    EXECUTE format('CREATE OR REPLACE FUNCTION pgque.insert_event_bulk(queue_name text, ev_type text, ev_data_list text[]) '
                   'RETURNS bigint[] LANGUAGE plpgsql VOLATILE '
                   'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L', begun || $checks$
    IF ev_data_list IS NULL THEN
        RAISE EXCEPTION 'payloads must not be null';
    ELSIF cardinality(ev_data_list) = 0 THEN
        RETURN '{}';
    END IF;
$checks$ || pgque._decision(queues, $leaf$
        WITH inserted AS (
            INSERT INTO pgque.event_%2$s_%3$s (ev_id, ev_time, ev_txid, ev_type, ev_data)
            SELECT nextval('pgque.event_%2$s_id_seq'::regclass), now(), xid, ev_type, payload
              FROM unnest(ev_data_list) AS payload
            RETURNING ev_id)
        SELECT array_agg(ev_id) INTO events FROM inserted;
        RETURN events;$leaf$) || $end$
    RETURN pgque._insert_events(queue_name, ev_type, ev_data_list, NULL, NULL, NULL, NULL);
END $end$);
END $make$;

SELECT pgque._make_inserts();


-- Also sees to it that each queue has the row by which its ticks are locked.
CREATE OR REPLACE FUNCTION pgque._queues_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgque._make_inserts();
    INSERT INTO pgque.mutex (queue_id)
    SELECT q.queue_id FROM pgque.queue q WHERE NOT EXISTS (SELECT FROM pgque.mutex m WHERE m.queue_id = q.queue_id);
    DELETE FROM pgque.mutex m
     WHERE m.queue_id <> 0 AND NOT EXISTS (SELECT FROM pgque.queue q WHERE q.queue_id = m.queue_id);
    DELETE FROM pgque.forced_tick f WHERE NOT EXISTS (SELECT FROM pgque.queue q WHERE q.queue_id = f.queue_id);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER queues_changed
    AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF queue_id, queue_name, queue_cur_table, queue_disable_insert,
       queue_per_tx_limit ON pgque.queue
    FOR EACH STATEMENT EXECUTE FUNCTION pgque._queues_changed();


COMMENT ON FUNCTION pgque.send(queue_name text, payload text) IS
    'Send an event of type ''default'' to a queue, in the caller''s transaction. Returns its id.';
COMMENT ON FUNCTION pgque.send(queue_name text, payload jsonb) IS
    'Send a JSON event of type ''default'' to a queue, in the caller''s transaction. Returns its id.';
COMMENT ON FUNCTION pgque.send(queue_name text, type_name text, payload text) IS
    'Send an event of a type to a queue, in the caller''s transaction. Returns its id.';
COMMENT ON FUNCTION pgque.send(queue_name text, type_name text, payload jsonb) IS
    'Send a JSON event of a type to a queue, in the caller''s transaction. Returns its id.';
COMMENT ON FUNCTION pgque.insert_event(queue_name text, ev_type text, ev_data text) IS
    'Send an event of a type to a queue, in the caller''s transaction. Returns its id.';
COMMENT ON FUNCTION pgque.insert_event(
    queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text
) IS 'Send an event of a type with further fields to a queue, in the caller''s transaction. Returns its id.';
COMMENT ON FUNCTION pgque.insert_event_bulk(queue_name text, ev_type text, ev_data_list text[]) IS
    'Send many events of a type to a queue with one statement. Returns their ids, in order.';
