-- Load generators (CREATE SOURCE), and the statements that PostgreSQL has no grammar for as requests.

ALTER TABLE pgtrickle.pgt_requests DROP CONSTRAINT pgt_requests_kind_check, ADD CONSTRAINT pgt_requests_kind_check
    CHECK (kind IN ('create', 'alter', 'drop', 'refresh', 'resume', 'copy', 'extension', 'statement'));


-- One row a source: a table that gains a row per tick while a server runs.
CREATE TABLE pgtrickle.pgt_load_generators (
    source_relid  oid         NOT NULL PRIMARY KEY,
    generator     text        NOT NULL DEFAULT 'COUNTER' CHECK (generator = 'COUNTER'),
    tick_interval interval    NOT NULL DEFAULT '1 second' CHECK (tick_interval > '0'),
    last_value    bigint      NOT NULL DEFAULT 0,
    last_tick_at  timestamptz,
    -- Of the last tick, if it failed.
    error         text,
    -- The cluster and the database it was created in: in a copy, the OID may be another table's.
    system        text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
GRANT SELECT ON pgtrickle.pgt_load_generators TO PUBLIC;
