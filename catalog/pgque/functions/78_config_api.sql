-- Shortcuts for settings of queues.


-- Creates a queue and sets its options, {"max_retries": 3, "ticker_max_lag": "1 second", ..}; null stands for a default.
-- Returns 1, or 0 where the queue existed, which is left as it is.
CREATE OR REPLACE FUNCTION pgque.create_queue(queue text, options jsonb) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    created integer;
BEGIN
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'options must be a JSON object';
    END IF;
    created := pgque.create_queue(queue);
    IF created = 1 THEN
        PERFORM pgque.set_queue_config(queue, o.key, o.value) FROM jsonb_each_text(options) o;
    END IF;
    RETURN created;
END $$;


-- Make no more ticks of a queue: what is sent waits until it is resumed.
CREATE OR REPLACE FUNCTION pgque.pause_queue(queue text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgque.set_queue_config(queue, 'ticker_paused', 'true');
END $$;


-- Make ticks of a queue again.
CREATE OR REPLACE FUNCTION pgque.resume_queue(queue text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgque.set_queue_config(queue, 'ticker_paused', 'false');
END $$;
