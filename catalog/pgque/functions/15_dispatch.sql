-- Which table an event is written to.
--
-- A statement that names its table in a variable is parsed and planned at every call, which costs twice as much as all
-- the rest of sending. So the two functions that insert events are generated, with a statement for each table of each
-- queue, and are generated anew when a queue is created or dropped. Beyond 64 queues the younger ones go the slow way.


-- One at a time creates or drops queues, until its transaction ends.
CREATE OR REPLACE FUNCTION pgque._lock_queues() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock('pgque.queue'::regclass::oid::integer, 0);
$$;


-- A decision between the tables of the queues with these ids, as a tree of IFs; `leaf` is a template for format() with
-- the queue's id and the table's number.
CREATE OR REPLACE FUNCTION pgque._decision(ids integer[], leaf text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    half integer := cardinality(ids) / 2;
BEGIN
    IF cardinality(ids) > 1 THEN
        RETURN format(E'IF id <= %s THEN\n%s\nELSE\n%s\nEND IF;', ids[half],
                      pgque._decision(ids[:half], leaf), pgque._decision(ids[half + 1:], leaf));
    END IF;
    RETURN format(E'IF id <> %s THEN known := false;\n', ids[1]) || (
        SELECT string_agg(format(E'ELSIF number = %s THEN\n%s', number, format(leaf, ids[1], number)), E'\n' ORDER BY number)
          FROM generate_series(0, 2) AS number) || E'\nEND IF;';
END $$;


-- Generate the functions that insert events.
CREATE OR REPLACE FUNCTION pgque._make_inserts() RETURNS void LANGUAGE plpgsql VOLATILE AS $make$
DECLARE
    ids integer[] := array(SELECT queue_id FROM pgque.queue WHERE queue_ntables = 3 ORDER BY queue_id LIMIT 64);
    found text := $found$
    SELECT q.queue_id, q.queue_cur_table, q.queue_disable_insert INTO id, number, disallowed
      FROM pgque.queue q WHERE q.queue_name = queue;
    IF id IS NULL THEN
        RAISE EXCEPTION 'queue not found: %', queue;
    ELSIF disallowed THEN
        RAISE EXCEPTION 'Insert into queue disallowed';
    END IF;
$found$;
    -- The transaction has an id before the event has one: see _late_events.
    variables text := $variables$
DECLARE
    xid xid8 := pg_current_xact_id();
    known boolean := true;
    id integer;
    number integer;
    disallowed boolean;
    name text;
$variables$;
    one text := $one$
        event := nextval('pgque.event_%1$s_id_seq'::regclass);
        INSERT INTO pgque.event_%1$s_%2$s (ev_id, ev_time, ev_txid, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
        VALUES (event, now(), xid, type, data, extra1, extra2, extra3, extra4);$one$;
    many text := $many$
        WITH inserted AS (
            INSERT INTO pgque.event_%1$s_%2$s (ev_id, ev_time, ev_txid, ev_type, ev_data)
            SELECT nextval('pgque.event_%1$s_id_seq'::regclass), now(), xid, type, payload FROM unnest(data) AS payload
            RETURNING ev_id)
        SELECT array_agg(ev_id) INTO events FROM inserted;$many$;
BEGIN
    EXECUTE $f$CREATE OR REPLACE FUNCTION pgque._insert_event(
        queue text, type text, data text, extra1 text, extra2 text, extra3 text, extra4 text, OUT event bigint
    ) LANGUAGE plpgsql VOLATILE AS $body$ $f$ || variables || 'BEGIN' || found || CASE WHEN ids = '{}' THEN 'known := false;'
        ELSE pgque._decision(ids, one) END || $f$
    IF NOT known THEN
        name := 'pgque.event_' || id;
        event := nextval((name || '_id_seq')::regclass);
        EXECUTE 'INSERT INTO ' || name || '_' || number ||
            ' (ev_id, ev_time, ev_txid, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)'
            ' VALUES ($1, now(), $2, $3, $4, $5, $6, $7, $8)'
            USING event, xid, type, data, extra1, extra2, extra3, extra4;
    END IF;
END $body$ $f$;
    EXECUTE $f$CREATE OR REPLACE FUNCTION pgque._insert_events(
        queue text, type text, data text[], OUT events bigint[]
    ) LANGUAGE plpgsql VOLATILE AS $body$ $f$ || variables || 'BEGIN' || found || CASE WHEN ids = '{}' THEN 'known := false;'
        ELSE pgque._decision(ids, many) END || $f$
    IF NOT known THEN
        name := 'pgque.event_' || id;
        EXECUTE 'WITH inserted AS (INSERT INTO ' || name || '_' || number ||
            ' (ev_id, ev_time, ev_txid, ev_type, ev_data) SELECT nextval($1), now(), $2, $3, payload'
            ' FROM unnest($4) AS payload RETURNING ev_id)'
            ' SELECT array_agg(ev_id) FROM inserted'
            INTO events USING (name || '_id_seq')::regclass, xid, type, data;
    END IF;
END $body$ $f$;
END $make$;

SELECT pgque._make_inserts();
