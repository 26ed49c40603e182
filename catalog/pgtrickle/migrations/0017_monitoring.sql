-- Refreshes that found no change, one after another, are one row of the history: the first refresh keeps its columns, and these
-- say how many followed it, when the last of them began and ended, and how long they took together.
ALTER TABLE pgtrickle.pgt_refresh_history
    ADD repeats          bigint NOT NULL DEFAULT 0,
    ADD last_start_time  timestamptz,
    ADD last_end_time    timestamptz,
    ADD repeats_duration interval;


-- What waits in the server for those who read a subscription, as its server has last reported it. Without a foreign key, which would
-- have the clock of all subscriptions wait for whoever just ends one: rows of those that are gone are removed with the next report.
-- That bytes wait tells that sources change, so it is not for everybody: see subscription_status().
CREATE TABLE pgtrickle.pgt_subscription_load (
    subscription_id bigint      NOT NULL PRIMARY KEY,
    clients         int         NOT NULL,
    waiting_bytes   bigint      NOT NULL,
    -- The time (mz_timestamp) of the oldest changes that no client has read, or that are yet to be computed. NULL: there are none.
    unread_since    bigint,
    reported_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
REVOKE ALL ON pgtrickle.pgt_subscription_load FROM PUBLIC;
