-- Stream tables that triggers on their sources maintain (IMMEDIATE mode).
CREATE TABLE pgtrickle.pgt_immediate (
    pgt_id bigint NOT NULL PRIMARY KEY REFERENCES pgtrickle.pgt_definitions ON DELETE CASCADE,
    -- What the triggers and their functions were, when they were made: pgtrickle._immediate_state.
    state  text   NOT NULL,
    -- What a transaction that changes a source holds until its end: its rows, or the whole of it.
    lock   text   NOT NULL CHECK (lock IN ('rows', 'whole')),
    -- The tables that it has to do with: its sources, with their partitions and children, and its own.
    relations oid[] NOT NULL DEFAULT '{}'
);
GRANT SELECT ON pgtrickle.pgt_immediate TO PUBLIC;
