-- Subscriptions: the clock of a database, who follows what, and how far its servers have read.

-- The last timestamp, in milliseconds since the epoch, that any subscription of the database was given.
CREATE SEQUENCE pgtrickle.pgt_timeline_seq AS bigint MINVALUE 0 START 0;
GRANT SELECT ON SEQUENCE pgtrickle.pgt_timeline_seq TO PUBLIC;

-- A server that evaluates subscriptions. While it lives it holds the advisory lock of its number. All its subscriptions
-- have seen what its frontier has.
CREATE TABLE pgtrickle.pgt_subscription_servers (
    server       int         NOT NULL PRIMARY KEY,
    frontier     pg_snapshot,
    mz_timestamp bigint,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
GRANT SELECT ON pgtrickle.pgt_subscription_servers TO PUBLIC;

-- A subscription that is evaluated, once for all clients that follow the same thing in the same way.
CREATE TABLE pgtrickle.pgt_subscriptions (
    subscription_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server          int         NOT NULL REFERENCES pgtrickle.pgt_subscription_servers ON DELETE CASCADE,
    subscriber      oid         NOT NULL,
    -- The role whose rights its query runs with: the subscriber's, or a view's owner.
    runs_as         oid         NOT NULL,
    -- {signature: hash} of the functions of users in the query.
    function_hashes jsonb       NOT NULL DEFAULT '{}',
    started_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX pgt_subscriptions_server ON pgtrickle.pgt_subscriptions (server);
GRANT SELECT ON pgtrickle.pgt_subscriptions TO PUBLIC;

-- What it reads: tables and views, what they were when it began, and whose rights to them PostgreSQL asks for.
CREATE TABLE pgtrickle.pgt_subscription_sources (
    subscription_id    bigint NOT NULL REFERENCES pgtrickle.pgt_subscriptions ON DELETE CASCADE,
    source_relid       oid    NOT NULL,
    columns_used       text[] NOT NULL,
    reader             oid    NOT NULL,
    schema_fingerprint text   NOT NULL,
    -- Of a table: the capture it relies on.
    capture_generation uuid,
    PRIMARY KEY (subscription_id, source_relid, reader)
);
CREATE INDEX pgt_subscription_sources_relid ON pgtrickle.pgt_subscription_sources (source_relid);
GRANT SELECT ON pgtrickle.pgt_subscription_sources TO PUBLIC;
