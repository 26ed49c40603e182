-- Publishing many events at once. What inserts them, and send() and insert_event() for one, is generated: 15_dispatch.sql.
--
-- The public functions have the owner's rights and pin the search_path; the functions that begin with an underscore
-- have neither, since they are only called from those, and nobody else may execute them.


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
