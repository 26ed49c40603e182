-- Refreshes that found no change, one after another, are one row of the history: the first refresh keeps its columns, and these
-- say how many followed it, when the last of them began and ended, and how long they took together.
ALTER TABLE pgtrickle.pgt_refresh_history
    ADD repeats          bigint NOT NULL DEFAULT 0,
    ADD last_start_time  timestamptz,
    ADD last_end_time    timestamptz,
    ADD repeats_duration interval;
