-- Queues: create, drop, configure.


-- Create a queue. Returns 1, or 0 where it exists.
--
-- The channel `pgque_<queue>` must fit into an identifier.
CREATE OR REPLACE FUNCTION pgque.create_queue(queue text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    id integer;
    parent text;
BEGIN
    IF queue IS NULL THEN
        RAISE EXCEPTION 'Invalid NULL value';
    ELSIF queue = '' THEN
        RAISE EXCEPTION 'queue name must not be empty';
    END IF;
    IF octet_length(convert_to(queue, 'UTF8')) > 57 THEN
        RAISE EXCEPTION 'queue name is too long: % bytes, at most 57 are allowed', octet_length(convert_to(queue, 'UTF8'));
    END IF;
    IF EXISTS (SELECT FROM pgque.queue q WHERE q.queue_name = queue) THEN
        RETURN 0;
    END IF;
    PERFORM pgque._lock_queues(true);
    INSERT INTO pgque.queue (queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_tick_seq, queue_cluster)
    SELECT n, queue, 'pgque.event_' || n, 'pgque.event_' || n || '_id_seq', 'pgque.event_' || n || '_tick_seq',
           (SELECT c.system_identifier FROM pg_control_system() AS c)
      FROM (SELECT nextval('pgque.queue_queue_id_seq') AS n) AS number
     WHERE NOT EXISTS (SELECT FROM pgque.queue q WHERE q.queue_name = queue)
        ON CONFLICT (queue_name) DO NOTHING
    RETURNING queue_id INTO id;
    IF id IS NULL THEN
        RETURN 0;
    END IF;
    parent := 'event_' || id;
    EXECUTE format('CREATE SEQUENCE pgque.%I', parent || '_id_seq');
    EXECUTE format('CREATE SEQUENCE pgque.%I', parent || '_tick_seq');
    EXECUTE format('CREATE TABLE pgque.%I () INHERITS (pgque.event_template)', parent);
    FOR number IN 0..2 LOOP
        -- Only ever inserted into and truncated: there is nothing for autovacuum to do.
        EXECUTE format('CREATE TABLE pgque.%I () INHERITS (pgque.%I) '
                       'WITH (fillfactor = 100, autovacuum_enabled = off, toast.autovacuum_enabled = off)',
                       parent || '_' || number, parent);
        EXECUTE format('ALTER TABLE pgque.%I ALTER ev_txid SET DEFAULT pg_current_xact_id()', parent || '_' || number);
        EXECUTE format('CREATE INDEX %I ON pgque.%I (ev_txid)', parent || '_' || number || '_txid_idx',
                       parent || '_' || number);
    END LOOP;
    PERFORM pgque._grant_queue(id);
    PERFORM pgque._insert_tick(id, 1, now(), 0);
    RETURN 1;
END $$;


-- The table that a queue's events are written to, until it rotates: for COPY by an administrator.
CREATE OR REPLACE FUNCTION pgque.current_event_table(queue text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Event queue not found';
    ELSIF this.queue_disable_insert AND current_setting('session_replication_role') <> 'replica' THEN
        RAISE EXCEPTION 'Writing to queue disabled';
    END IF;
    RETURN pgque._event_table(this.queue_id, this.queue_cur_table);
END $$;


-- Drop a queue with its events. Raises an error where it has consumers, unless force takes these with it. Returns 1.
CREATE OR REPLACE FUNCTION pgque.drop_queue(queue text, force bool) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this pgque.queue;
    consumers integer[];
BEGIN
    SELECT * INTO this FROM pgque.queue q WHERE q.queue_name = queue FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'No such event queue';
    END IF;
    -- Whoever reads or writes these tables is waited for before other queues are concerned.
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', pgque._event_table(this.queue_id));
    PERFORM pgque._lock_queues(true);
    consumers := array(SELECT s.sub_consumer FROM pgque.subscription s WHERE s.sub_queue = this.queue_id);
    IF force THEN
        DELETE FROM pgque.retry_queue WHERE ev_queue = this.queue_id;
        DELETE FROM pgque.subscription WHERE sub_queue = this.queue_id;
    ELSIF cardinality(consumers) > 0 THEN
        RAISE EXCEPTION 'cannot drop queue, consumers still attached';
    END IF;
    consumers := consumers || array(SELECT d.dl_consumer_id FROM pgque.dead_letter d WHERE d.dl_queue_id = this.queue_id);
    EXECUTE format('DROP TABLE pgque.%I, pgque.%I, pgque.%I, pgque.%I', 'event_' || this.queue_id || '_0',
                   'event_' || this.queue_id || '_1', 'event_' || this.queue_id || '_2', 'event_' || this.queue_id);
    EXECUTE format('DROP SEQUENCE pgque.%I', 'event_' || this.queue_id || '_id_seq');
    EXECUTE format('DROP SEQUENCE pgque.%I', 'event_' || this.queue_id || '_tick_seq');
    DELETE FROM pgque.queue WHERE queue_id = this.queue_id;
    PERFORM pgque._forget_consumers(consumers);
    RETURN 1;
END $$;


-- Drop a queue that has no consumers, with its events. Returns 1.
CREATE OR REPLACE FUNCTION pgque.drop_queue(queue text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgque.drop_queue(queue, false);
END $$;


-- Set one parameter of a queue; NULL gives it back its default. Returns 1.
CREATE OR REPLACE FUNCTION pgque.set_queue_config(queue text, param text, value text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text;
    changed bigint;
BEGIN
    IF queue IS NULL OR param IS NULL THEN
        RAISE EXCEPTION 'Invalid NULL value';
    ELSIF NOT EXISTS (SELECT FROM pgque.queue q WHERE q.queue_name = queue) THEN
        RAISE EXCEPTION 'No such event queue';
    END IF;
    kind := CASE
        WHEN param IN ('ticker_max_count', 'max_retries', 'max_batch_events') THEN 'integer'
        WHEN param IN ('ticker_max_lag', 'ticker_idle_period', 'rotation_period') THEN 'interval'
        WHEN param IN ('ticker_paused', 'external_ticker') THEN 'boolean'
    END;
    IF kind IS NULL THEN
        RAISE EXCEPTION 'cannot change parameter "%"', param
            USING HINT = 'Parameters are ticker_max_count, ticker_max_lag, ticker_idle_period, ticker_paused, '
                         'rotation_period, external_ticker, max_retries and max_batch_events.';
    END IF;
    IF value IS NULL THEN
        EXECUTE format('UPDATE pgque.queue SET %I = DEFAULT WHERE queue_name = $1', 'queue_' || param) USING queue;
    ELSE
        IF param = 'max_retries' AND value::integer < 0 THEN
            RAISE EXCEPTION 'max_retries must be >= 0';
        ELSIF param IN ('ticker_max_count', 'max_batch_events') AND value::integer <= 0 OR kind = 'interval' AND value::interval <= interval '0' THEN
            RAISE EXCEPTION '% must be positive', param;
        END IF;
        EXECUTE format('UPDATE pgque.queue SET %I = $2::%s WHERE queue_name = $1', 'queue_' || param, kind) USING queue, value;
    END IF;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed = 0 THEN
        RAISE EXCEPTION 'No such event queue';
    END IF;
    RETURN 1;
END $$;
