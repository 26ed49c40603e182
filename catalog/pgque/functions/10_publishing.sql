-- Publishing many events at once. What inserts them, and send() and insert_event() for one, is generated: 15_dispatch.sql.
--
-- Every function pins its search_path. Most public ones have the owner's rights; functions that begin with an underscore
-- are called from those alone, and are nobody's to execute, but for the few that 90_roles.sql lists.


-- Send many events of type 'default' to a queue with one statement; returns their ids, in order.
CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, payloads text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, 'default', payloads);
END $$;


-- Send many JSON events of type 'default' to a queue with one statement; returns their ids, in order.
CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, payloads jsonb[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, 'default', payloads::text[]);
END $$;


-- Send many events of a type to a queue with one statement; returns their ids, in order.
CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, type_name text, payloads text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, type_name, payloads);
END $$;


-- Send many JSON events of a type to a queue with one statement; returns their ids, in order.
CREATE OR REPLACE FUNCTION pgque.send_batch(queue_name text, type_name text, payloads jsonb[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.insert_event_bulk(queue_name, type_name, payloads::text[]);
END $$;
