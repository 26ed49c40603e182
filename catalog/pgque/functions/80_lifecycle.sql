-- The clock of queues: who ticks, how often, since when; start, stop, status, uninstall.
--
-- A Headwater server ticks, retries and rotates by itself, in every database that has queues, until stop(). Where no
-- server is connected and pg_cron is there, start() gives that work to pg_cron instead. A server leaves it alone then.


-- Whether a Headwater server is at work in this database: the session that ticks or the one that schedules holds its
-- lease, and does not hang. `ticking` tells the former. Leases stand in the schema of stream tables; where that is somebody else's, it is not asked.
CREATE OR REPLACE FUNCTION pgque._server(OUT present boolean, OUT ticking boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    present := false;
    ticking := false;
    IF (SELECT p.proowner FROM pg_proc p WHERE p.oid = to_regprocedure('pgtrickle._lease_beat(text)'))
       = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgque') THEN
        ticking := coalesce(pgtrickle._lease_beat('queue clock') < interval '15 seconds', false);
        present := ticking OR coalesce(pgtrickle._lease_beat('scheduler') < interval '15 seconds', false);
    END IF;
END $$;


-- Whether pg_cron can be called from here. What is called runs with the rights of the caller, whose jobs they are, so it
-- must belong to a superuser or to the caller, and so must the schema.
CREATE OR REPLACE FUNCTION pgque._has_cron() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) = 2
      FROM pg_proc p
      JOIN pg_namespace n ON n.oid = p.pronamespace
      JOIN pg_roles r ON r.oid = p.proowner
      JOIN pg_roles s ON s.oid = n.nspowner
     WHERE p.oid IN (to_regprocedure('cron.schedule(text,text,text)'), to_regprocedure('cron.unschedule(bigint)'))
       AND (r.rolsuper OR r.rolname = current_user) AND (s.rolsuper OR s.rolname = current_user)
$$;


-- For the server's clock: whether it is to tick, and how often. It is not after stop(), nor while pg_cron has the work.
CREATE OR REPLACE FUNCTION pgque._clock(OUT tick boolean, OUT tick_period_ms int)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT c.clock_stopped AND c.ticker_job_id IS NULL, c.tick_period_ms FROM pgque.config c
$$;


-- Starts the clock: the server's where there is one, else four jobs of pg_cron, which are the caller's. Jobs of an earlier start() are replaced.
-- Raises 55000 where there is neither.
CREATE OR REPLACE FUNCTION pgque.start() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    server boolean := (SELECT s.present FROM pgque._server() s);
BEGIN
    IF NOT server AND NOT pgque._has_cron() THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pg_cron is not installed, and no Headwater server is connected to this database',
            HINT = 'Serve this database with headwater, or CREATE EXTENSION pg_cron, or call pgque.ticker(), pgque.maint_retry_events(), pgque.maint() and pgque.maint_rotate_tables_step2() by other means.';
    END IF;
    PERFORM pgque.stop();
    UPDATE pgque.config SET clock_stopped = false;
    IF NOT server THEN
        UPDATE pgque.config SET
            ticker_job_id = cron.schedule('pgque_ticker'::text, '1 second'::text, 'CALL pgque.ticker_loop()'::text),
            retry_job_id = cron.schedule('pgque_retry_events'::text, '30 seconds'::text, 'SELECT pgque.maint_retry_events()'::text),
            maint_job_id = cron.schedule('pgque_maint'::text, '30 seconds'::text, 'SELECT pgque.maint()'::text),
            step2_job_id = cron.schedule('pgque_rotate_step2'::text, '10 seconds'::text, 'SELECT pgque.maint_rotate_tables_step2()'::text);
    END IF;
    NOTIFY pgque_clock;
END $$;


-- Stops the clock, whoever has it. Events are kept, and are delivered after the next start().
CREATE OR REPLACE FUNCTION pgque.stop() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    job bigint;
BEGIN
    IF pgque._has_cron() THEN
        FOR job IN SELECT unnest(ARRAY[c.ticker_job_id, c.retry_job_id, c.maint_job_id, c.step2_job_id]) FROM pgque.config c LOOP
            CONTINUE WHEN job IS NULL;
            BEGIN
                PERFORM cron.unschedule(job);
            EXCEPTION WHEN OTHERS THEN
                RAISE WARNING 'could not unschedule job % of pg_cron: %', job, SQLERRM;
            END;
        END LOOP;
    END IF;
    UPDATE pgque.config SET clock_stopped = true, ticker_job_id = NULL, retry_job_id = NULL, maint_job_id = NULL, step2_job_id = NULL;
    NOTIFY pgque_clock;
END $$;


-- Ticks for one second, every tick_period_ms, each tick in a transaction of its own: for pg_cron, which starts it each
-- second, or by hand. A tick that takes longer than the period delays the next, and is not made up for. A procedure that
-- commits cannot pin its search_path: so every name and operator says its schema.
CREATE OR REPLACE PROCEDURE pgque.ticker_loop()
LANGUAGE plpgsql AS $$
DECLARE
    begun pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    following pg_catalog.timestamptz := begun;
    finish CONSTANT pg_catalog.timestamptz := begun OPERATOR(pg_catalog.+) '1 second'::pg_catalog.interval;
    period pg_catalog.interval;
BEGIN
    LOOP
        PERFORM pgque._tick_early();
        COMMIT;
        SELECT pg_catalog.make_interval(secs => c.tick_period_ms::pg_catalog.float8 OPERATOR(pg_catalog./) 1000::pg_catalog.float8)
          INTO period FROM pgque.config AS c;
        following := following OPERATOR(pg_catalog.+) period;
        EXIT WHEN following OPERATOR(pg_catalog.>=) finish;
        IF pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<) following THEN
            COMMIT;
            PERFORM pg_catalog.pg_sleep(pg_catalog.date_part('epoch', following OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()));
            COMMIT;
        ELSE
            following := pg_catalog.clock_timestamp();
        END IF;
    END LOOP;
END $$;


-- Sets how often the clock ticks: a divisor of 1000, in milliseconds. Returns it. Holds from the next second on.
CREATE OR REPLACE FUNCTION pgque.set_tick_period_ms(ms integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF ms IS NULL OR ms NOT BETWEEN 1 AND 1000 OR 1000 % ms <> 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('tick_period_ms must be an exact divisor of 1000 between 1 and 1000, got %s', coalesce(ms::text, 'null'));
    END IF;
    UPDATE pgque.config SET tick_period_ms = ms;
    NOTIFY pgque_clock;
    RETURN ms;
END $$;


-- The version of what is installed.
CREATE OR REPLACE FUNCTION pgque.version() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT '@version@'
$$;


-- What makes ticks: 'scheduled' (a job of pg_cron), 'missing' (that job, but no pg_cron), 'stopped' (by pgque.stop()), 'running' (a
-- server), 'waiting' (a server that is about to), 'not running'.
CREATE OR REPLACE FUNCTION pgque._clock_state() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings pgque.config := (SELECT c FROM pgque.config c);
    server record;
BEGIN
    SELECT * INTO server FROM pgque._server();
    RETURN CASE WHEN settings.ticker_job_id IS NOT NULL THEN CASE WHEN pgque._has_cron() THEN 'scheduled' ELSE 'missing' END
                WHEN settings.clock_stopped THEN 'stopped'
                WHEN server.ticking THEN 'running'
                WHEN server.present THEN 'waiting'
                ELSE 'not running' END;
END $$;
REVOKE EXECUTE ON FUNCTION pgque._clock_state() FROM PUBLIC;


-- One row a component: what it is, and whether it works.
CREATE OR REPLACE FUNCTION pgque.status() RETURNS TABLE (component text, status text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings pgque.config := (SELECT c FROM pgque.config c);
    queues bigint := (SELECT count(*) FROM pgque.queue);
    clock CONSTANT text := pgque._clock_state();
    missing text[] := pgque._missing_roles();
BEGIN
    RETURN QUERY
    SELECT 'postgresql', 'ok', current_setting('server_version')
    UNION ALL
    SELECT 'pgque', 'ok', pgque.version()
    UNION ALL
    SELECT job.component, clock,
           CASE clock WHEN 'scheduled' THEN format('job %s of pg_cron, %s', job.id, job.period)
                      WHEN 'missing' THEN format('job %s of pg_cron, which is no longer there', job.id)
                      WHEN 'stopped' THEN 'by pgque.stop(); pgque.start() starts it'
                      WHEN 'running' THEN format('by the server, %s', job.period)
                      WHEN 'waiting' THEN CASE queues WHEN 0 THEN 'by the server, which waits for the first queue'
                                                      ELSE 'by the server, which is about to begin' END
                      ELSE 'no Headwater server is connected to this database; with pg_cron, pgque.start() schedules it' END
      FROM (VALUES ('ticker', settings.ticker_job_id, format('every %s ms', settings.tick_period_ms)),
                   ('retry_events', settings.retry_job_id, CASE clock WHEN 'running' THEN 'every second' ELSE 'every 30 s' END),
                   ('maintenance', settings.maint_job_id, 'every 30 s'),
                   ('rotate_step2', settings.step2_job_id, 'every 10 s')) AS job (component, id, period)
    UNION ALL
    SELECT 'queues', 'ok', queues::text
    UNION ALL
    SELECT 'consumers', 'ok', (SELECT count(*) FROM pgque.subscription s WHERE s.sub_role <> 'coop_member')::text
    UNION ALL
    SELECT 'roles', CASE cardinality(missing) WHEN 0 THEN 'ok' ELSE 'warning' END,
           CASE cardinality(missing) WHEN 0 THEN 'pgque_reader, pgque_writer, pgque_admin' ELSE array_to_string(missing, '; ') END;
END $$;


-- Removes everything but the roles, which belong to the whole cluster. The server is told not to install it again.
CREATE OR REPLACE FUNCTION pgque.uninstall() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgque.stop();
    IF (SELECT c.relowner FROM pg_class c WHERE c.oid = to_regclass('pgtrickle.pgt_uninstalled'))
       = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgque') THEN
        INSERT INTO pgtrickle.pgt_uninstalled (extension) VALUES ('pgque') ON CONFLICT (extension) DO NOTHING;
    END IF;
    DROP SCHEMA pgque CASCADE;
    RAISE NOTICE USING MESSAGE = 'queues have been removed from this database', HINT = 'CREATE EXTENSION pgque makes the schema anew.';
END $$;
