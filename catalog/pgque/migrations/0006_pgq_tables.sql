-- Tables as PgQ's are: columns, defaults, and what a direct UPDATE or DELETE of an administrator may do.

ALTER TABLE pgque.queue ADD COLUMN queue_per_tx_limit integer CHECK (queue_per_tx_limit > 0);

-- How much earlier the server's clock ticks is no longer a setting of queues: see functions/30_ticker.sql.
ALTER TABLE pgque.queue ALTER queue_ticker_max_lag SET DEFAULT '3 seconds';
UPDATE pgque.queue SET queue_ticker_max_lag = DEFAULT WHERE queue_ticker_max_lag = '1 millisecond';

-- What makes no sense. An earlier version's administrator may have written such a thing: it is the default. A period of 0 is
-- what scripts write that want ticks and rotation at each call.
UPDATE pgque.queue SET queue_ticker_max_count = DEFAULT WHERE queue_ticker_max_count <= 0;
UPDATE pgque.queue SET queue_ticker_max_lag = DEFAULT WHERE queue_ticker_max_lag < interval '0';
UPDATE pgque.queue SET queue_ticker_idle_period = DEFAULT WHERE queue_ticker_idle_period < interval '0';
UPDATE pgque.queue SET queue_rotation_period = DEFAULT WHERE queue_rotation_period < interval '0';
UPDATE pgque.queue SET queue_max_retries = DEFAULT WHERE queue_max_retries < 0;
ALTER TABLE pgque.queue
    ADD CONSTRAINT ticker_max_count_must_be_positive CHECK (queue_ticker_max_count > 0),
    ADD CONSTRAINT ticker_max_lag_must_not_be_negative CHECK (queue_ticker_max_lag >= interval '0'),
    ADD CONSTRAINT ticker_idle_period_must_not_be_negative CHECK (queue_ticker_idle_period >= interval '0'),
    ADD CONSTRAINT rotation_period_must_not_be_negative CHECK (queue_rotation_period >= interval '0'),
    ADD CONSTRAINT max_retries_must_not_be_negative CHECK (queue_max_retries >= 0);

-- Events that are to be sent later name their queue.
ALTER TABLE pgque.delayed_events ADD COLUMN de_queue_name text;
UPDATE pgque.delayed_events d SET de_queue_name = q.queue_name FROM pgque.queue q WHERE q.queue_id = d.de_queue_id;
ALTER TABLE pgque.delayed_events
    ALTER de_queue_name SET NOT NULL,
    ADD FOREIGN KEY (de_queue_name) REFERENCES pgque.queue (queue_name) ON UPDATE CASCADE ON DELETE CASCADE,
    DROP COLUMN de_queue_id;

-- Ticks that were asked for with force_next_tick(), and that the next call of ticker() makes. Who asks waits for nobody who
-- asks, too: so there may be several for a queue.
CREATE TABLE pgque.forced_tick (queue_id integer NOT NULL);
REVOKE ALL ON TABLE pgque.forced_tick FROM PUBLIC;

-- The row of a group has its position, its members have the batches.
UPDATE pgque.subscription SET sub_batch = NULL, sub_next_tick = NULL WHERE sub_role = 'coop_main' AND sub_batch IS NOT NULL;
ALTER TABLE pgque.subscription ADD CHECK (sub_role <> 'coop_main' OR sub_batch IS NULL);

-- A group that has lost its last member is a normal consumer.
UPDATE pgque.subscription g SET sub_role = 'normal'
 WHERE g.sub_role = 'coop_main' AND NOT EXISTS (SELECT FROM pgque.subscription m WHERE m.sub_main = g.sub_id);

-- Consumers that nobody is, but for those who have dead letters.
DELETE FROM pgque.consumer c
 WHERE NOT EXISTS (SELECT FROM pgque.subscription s WHERE s.sub_consumer = c.co_id)
   AND NOT EXISTS (SELECT FROM pgque.dead_letter d WHERE d.dl_consumer_id = c.co_id);
