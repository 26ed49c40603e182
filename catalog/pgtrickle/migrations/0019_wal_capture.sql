-- Capture from the write-ahead log (44_wal_capture.sql).

ALTER TABLE pgtrickle.pgt_captures
    -- By triggers on the source, or from the write-ahead log.
    ADD COLUMN mode            text   NOT NULL DEFAULT 'TRIGGER' CHECK (mode IN ('TRIGGER', 'WAL')),
    -- How often that has changed.
    ADD COLUMN switched        bigint NOT NULL DEFAULT 0,
    -- What ALTER TABLE … REPLICA IDENTITY is to be given when the log is not read any more.
    ADD COLUMN former_identity text,
    -- When triggers began to be exchanged for the log, and after a failure: why it failed, and until when it is let be.
    ADD COLUMN wal_started_at  timestamptz,
    ADD COLUMN wal_failure     text,
    ADD COLUMN wal_retry_at    timestamptz;


-- How far the write-ahead log is decoded into the buffers: one row, if it is.
CREATE TABLE pgtrickle.pgt_wal_progress (
    is_only       boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (is_only),
    -- Another one for each replication slot that is made: what the last one had not delivered is lost with it.
    slot_id       uuid    NOT NULL DEFAULT gen_random_uuid(),
    -- The number of the last delivery. Who does not see this row's version does not see its changes.
    change_id     bigint  NOT NULL,
    -- Transactions whose commit ends here or before have been delivered.
    delivered_lsn pg_lsn  NOT NULL DEFAULT '0/0'
);
GRANT SELECT ON pgtrickle.pgt_wal_progress TO PUBLIC;
