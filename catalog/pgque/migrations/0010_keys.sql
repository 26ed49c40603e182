-- Groups whose members get disjoint keys.

-- The groups that have a key: the name of one of the events' columns, or a JSON path into ev_data.
CREATE TABLE IF NOT EXISTS pgque.ordering (
    sub_id int4 PRIMARY KEY REFERENCES pgque.subscription (sub_id) ON DELETE CASCADE,
    key text NOT NULL
);

-- Keys are hashed into slots. Each has a place of its own: a tick, and within what lies before `next_tick` the last event of
-- the part that is done. It belongs to the member that has it in a batch.
CREATE TABLE IF NOT EXISTS pgque.slot (
    sub_id int4 NOT NULL REFERENCES pgque.ordering (sub_id) ON DELETE CASCADE,
    slot int4 NOT NULL,
    last_tick bigint NOT NULL,
    next_tick bigint,
    after_id bigint,
    last_id bigint,
    holder int4 REFERENCES pgque.subscription (sub_id) ON DELETE SET NULL,
    PRIMARY KEY (sub_id, slot)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS slot_holder_idx ON pgque.slot (holder) WHERE holder IS NOT NULL;

-- Events that are to be given again to such a group, and those of the same key that wait behind them. `place` is the batch
-- in which the event was kept back: by it, then by ev_id, a key's events are in order. `batch` is the active batch that has it,
-- which keeps it if `kept`, and gives it again at `again_at`; `origin` the same batch if it has it from its ticks.
CREATE TABLE IF NOT EXISTS pgque.held_event (
    owner int4 NOT NULL REFERENCES pgque.ordering (sub_id) ON DELETE CASCADE,
    slot int4 NOT NULL,
    key text,
    place bigint NOT NULL,
    due timestamptz NOT NULL DEFAULT '-infinity',
    batch bigint,
    origin bigint,
    kept boolean NOT NULL DEFAULT false,
    again_at timestamptz,
    announced boolean NOT NULL DEFAULT false,
    LIKE pgque.event_template,
    PRIMARY KEY (owner, ev_id)
);
ALTER TABLE pgque.held_event ALTER ev_txid DROP NOT NULL, ALTER ev_txid DROP DEFAULT;
CREATE INDEX IF NOT EXISTS held_event_slot_idx ON pgque.held_event (owner, slot, key, place, ev_id);
CREATE INDEX IF NOT EXISTS held_event_batch_idx ON pgque.held_event (batch) WHERE batch IS NOT NULL;
CREATE INDEX IF NOT EXISTS held_event_due_idx ON pgque.held_event (due) WHERE batch IS NULL AND NOT announced;

-- A member's batch of some slots, in parts or not.
ALTER TABLE pgque.batch_part
    ADD COLUMN IF NOT EXISTS slots integer[],
    ALTER after_id DROP NOT NULL,
    ALTER last_id DROP NOT NULL;

ALTER TYPE pgque._batch_state
    ADD ATTRIBUTE slots integer[],
    ADD ATTRIBUTE key text;
