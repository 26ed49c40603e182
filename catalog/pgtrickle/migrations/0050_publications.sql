-- Publications: stream tables as Delta tables, where they are, and how far they have got.

ALTER TABLE pgtrickle.pgt_requests DROP CONSTRAINT pgt_requests_kind_check, ADD CONSTRAINT pgt_requests_kind_check
    CHECK (kind IN ('create', 'alter', 'drop', 'refresh', 'resume', 'copy', 'extension', 'statement', 'retain', 'publish'));

-- A stream table that is published. It follows the changes of its table like a subscription of a server of its own
-- (pgt_subscription_servers, with a negative number), whose frontier is what the Delta table is known to have: so they are
-- captured, and kept until they are there.
CREATE TABLE pgtrickle.pgt_published (
    publication_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pgt_id          bigint      NOT NULL REFERENCES pgtrickle.pgt_definitions ON DELETE CASCADE,
    format          text        NOT NULL CHECK (format IN ('delta')),
    location        text        NOT NULL UNIQUE,
    -- By which the Delta table is known as this publication's: the application of its transactions.
    generation      uuid        NOT NULL DEFAULT gen_random_uuid(),
    -- Who has asked for it, whose rights are asked for at each attempt.
    publisher       oid         NOT NULL,
    -- The cluster and the database that it belongs to: a copy of the database must not write to the same place.
    cluster         text        NOT NULL,
    server          int         REFERENCES pgtrickle.pgt_subscription_servers ON DELETE SET NULL,
    subscription_id bigint      REFERENCES pgtrickle.pgt_subscriptions ON DELETE SET NULL,
    -- The last version of the Delta table that is known, and what was last published with it.
    version         bigint,
    data_timestamp  timestamptz,
    published_at    timestamptz,
    error           text,
    failed_at       timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
CREATE INDEX pgt_published_pgt_id ON pgtrickle.pgt_published (pgt_id);

-- The transactions that have refreshed a published stream table, in the order in which they did, until all of its
-- publications have what they changed.
CREATE TABLE pgtrickle.pgt_published_refreshes (
    pgt_id         bigint      NOT NULL REFERENCES pgtrickle.pgt_definitions ON DELETE CASCADE,
    place          bigint      GENERATED ALWAYS AS IDENTITY,
    xid            xid8        NOT NULL,
    frontier       jsonb,
    data_timestamp timestamptz,
    refreshed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pgt_id, xid)
);
REVOKE ALL ON pgtrickle.pgt_published, pgtrickle.pgt_published_refreshes FROM PUBLIC;
