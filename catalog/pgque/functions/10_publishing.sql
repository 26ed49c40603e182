-- Publishing: send, send_batch, insert_event.
--
-- The public functions have the owner's rights and pin the search_path; the functions that begin with an underscore
-- have neither, since they are only called from those, and nobody else may execute them.


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


-- Many events with one INSERT.
CREATE OR REPLACE FUNCTION pgque.insert_event_bulk(queue_name text, ev_type text, ev_data_list text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF ev_data_list IS NULL THEN
        RAISE EXCEPTION 'payloads must not be null';
    END IF;
    IF cardinality(ev_data_list) = 0 THEN
        RETURN '{}';
    END IF;
    RETURN pgque._insert_events(queue_name, ev_type, ev_data_list);
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
