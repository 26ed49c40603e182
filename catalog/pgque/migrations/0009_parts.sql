-- Oversized batches in parts.

-- A batch of more events than this is handed out in parts; null: never.
ALTER TABLE pgque.queue ADD COLUMN IF NOT EXISTS queue_max_batch_events int4 CHECK (queue_max_batch_events > 0);

-- The subscriptions that are within what lies between two ticks, and how far they are: a consumer, a group (the part that its
-- next member gets begins after `after_id`), a member with a part. `upto_id` is the end of the part that is handed out, null
-- where none is; `last_id` the last event of all.
CREATE TABLE IF NOT EXISTS pgque.batch_part (
    sub_id int4 PRIMARY KEY REFERENCES pgque.subscription (sub_id) ON DELETE CASCADE,
    prev_tick bigint NOT NULL,
    next_tick bigint NOT NULL,
    after_id bigint NOT NULL,
    upto_id bigint,
    last_id bigint NOT NULL
);

-- `role` is the subscription's, `part_size` the queue's max_batch_events, `at_home` as _is_at_home() has it.
ALTER TYPE pgque._batch_state
    ADD ATTRIBUTE after_id bigint,
    ADD ATTRIBUTE upto_id bigint,
    ADD ATTRIBUTE last_id bigint,
    ADD ATTRIBUTE part_size integer,
    ADD ATTRIBUTE role text,
    ADD ATTRIBUTE at_home boolean;
