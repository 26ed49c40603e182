-- Foreign tables that are polled: each stream table over one has a copy of it, whose changes are captured.

-- The foreign table by its name, as the defining query has it; the copy is a table in pgtrickle_changes.
CREATE TABLE pgtrickle.pgt_polls (
    pgt_id         bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    foreign_schema text   NOT NULL,
    foreign_name   text   NOT NULL,
    copy_name      text   NOT NULL UNIQUE,
    copied_columns text[] NOT NULL,
    -- What these columns were when the copy was made.
    fingerprint    text   NOT NULL,
    -- Of a lake table: what its files were when they were last read.
    files          text,
    polled_at      timestamptz,
    PRIMARY KEY (pgt_id, foreign_schema, foreign_name)
);
GRANT SELECT ON pgtrickle.pgt_polls TO PUBLIC;
