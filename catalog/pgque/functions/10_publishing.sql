-- Publishing: send, send_batch, insert_event.
--
-- The public functions have the owner's rights and pin the search_path; the functions that begin with an underscore
-- have neither, since they are only called from those, and nobody else may execute them.


-- One event into the current table of a queue. The only dynamic statement is the insert itself. The transaction has an id
-- before the event has one: see _late_events.
CREATE OR REPLACE FUNCTION pgque._insert_event(
    queue text, type text, data text, extra1 text, extra2 text, extra3 text, extra4 text
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    target text;
    disallowed boolean;
    id bigint;
    xid xid8 := pg_current_xact_id();
BEGIN
    SELECT q.queue_data_pfx || '_' || q.queue_cur_table, q.queue_disable_insert, nextval(q.queue_event_seq::regclass)
      INTO target, disallowed, id
      FROM pgque.queue q WHERE q.queue_name = queue;
    IF target IS NULL THEN
        RAISE EXCEPTION 'queue not found: %', queue;
    END IF;
    IF disallowed THEN
        RAISE EXCEPTION 'Insert into queue disallowed';
    END IF;
    IF extra1 IS NULL AND extra2 IS NULL AND extra3 IS NULL AND extra4 IS NULL THEN
        EXECUTE 'INSERT INTO ' || target || ' (ev_id, ev_time, ev_type, ev_data) VALUES ($1, now(), $2, $3)'
            USING id, type, data;
    ELSE
        EXECUTE 'INSERT INTO ' || target || ' (ev_id, ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)'
            ' VALUES ($1, now(), $2, $3, $4, $5, $6, $7)' USING id, type, data, extra1, extra2, extra3, extra4;
    END IF;
    RETURN id;
END $$;


CREATE OR REPLACE FUNCTION pgque.insert_event(queue_name text, ev_type text, ev_data text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._insert_event(queue_name, ev_type, ev_data, NULL, NULL, NULL, NULL);
END $$;


CREATE OR REPLACE FUNCTION pgque.insert_event(
    queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text
) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._insert_event(queue_name, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4);
END $$;


-- Many events with one INSERT. The ids are drawn first, so that their order is the payloads' whatever the plan.
CREATE OR REPLACE FUNCTION pgque.insert_event_bulk(queue_name text, ev_type text, ev_data_list text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    queue pgque.queue;
    ids bigint[];
    xid xid8 := pg_current_xact_id();
BEGIN
    IF ev_data_list IS NULL THEN
        RAISE EXCEPTION 'payloads must not be null';
    END IF;
    IF cardinality(ev_data_list) = 0 THEN
        RETURN '{}';
    END IF;
    SELECT * INTO queue FROM pgque.queue q WHERE q.queue_name = insert_event_bulk.queue_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue not found: %', insert_event_bulk.queue_name;
    END IF;
    IF queue.queue_disable_insert THEN
        RAISE EXCEPTION 'Insert into queue disallowed';
    END IF;
    ids := array(SELECT nextval(queue.queue_event_seq::regclass) FROM generate_series(1, cardinality(ev_data_list)));
    EXECUTE 'INSERT INTO ' || queue.queue_data_pfx || '_' || queue.queue_cur_table ||
        ' (ev_id, ev_time, ev_type, ev_data) SELECT id, now(), $3, data FROM unnest($1, $2) AS event (id, data)'
        USING ids, ev_data_list, insert_event_bulk.ev_type;
    RETURN ids;
END $$;


CREATE OR REPLACE FUNCTION pgque.send(queue_name text, payload text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._insert_event(queue_name, 'default', payload, NULL, NULL, NULL, NULL);
END $$;


CREATE OR REPLACE FUNCTION pgque.send(queue_name text, payload jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._insert_event(queue_name, 'default', payload::text, NULL, NULL, NULL, NULL);
END $$;


CREATE OR REPLACE FUNCTION pgque.send(queue_name text, type_name text, payload text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._insert_event(queue_name, type_name, payload, NULL, NULL, NULL, NULL);
END $$;


CREATE OR REPLACE FUNCTION pgque.send(queue_name text, type_name text, payload jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque._insert_event(queue_name, type_name, payload::text, NULL, NULL, NULL, NULL);
END $$;


CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, payloads text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, 'default', payloads);
END $$;


CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, payloads jsonb[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, 'default', payloads::text[]);
END $$;


CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, type_name text, payloads text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, type_name, payloads);
END $$;


CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, type_name text, payloads jsonb[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, type_name, payloads::text[]);
END $$;
