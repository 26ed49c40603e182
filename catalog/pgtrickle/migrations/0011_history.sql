-- RETAIN HISTORY: which relations' changes are kept, and the snapshots that timestamps stand for.

ALTER TABLE pgtrickle.pgt_requests DROP CONSTRAINT pgt_requests_kind_check, ADD CONSTRAINT pgt_requests_kind_check
    CHECK (kind IN ('create', 'alter', 'drop', 'refresh', 'resume', 'copy', 'extension', 'statement', 'retain'));

-- What the database looked like at a timestamp. Written, where history is retained, before anybody learns of the timestamp.
CREATE TABLE pgtrickle.pgt_timeline (
    mz_timestamp bigint      NOT NULL PRIMARY KEY,
    snapshot     pg_snapshot NOT NULL,
    -- The cluster, its timeline and the database whose transaction ids these are.
    system       text        NOT NULL
);
GRANT SELECT ON pgtrickle.pgt_timeline TO PUBLIC;

-- Relations whose history is retained. Each follows its sources like a subscription of a server of its own, whose number
-- is negative and whose frontier lags behind by the period: so changes are captured, and stay in their buffers.
CREATE TABLE pgtrickle.pgt_history (
    relid           oid         NOT NULL PRIMARY KEY,
    period          interval    NOT NULL CHECK (period > '0'),
    server          int         REFERENCES pgtrickle.pgt_subscription_servers ON DELETE SET NULL,
    subscription_id bigint      REFERENCES pgtrickle.pgt_subscriptions ON DELETE SET NULL,
    -- The transaction in which capture was seen to: what came before is not held.
    followed_xid    xid8,
    -- The oldest timestamp whose snapshot is kept. NULL until changes are captured and a timestamp was given.
    held_from       bigint,
    -- Why nothing is held, or why what was held is not held any more.
    error           text,
    system          text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON pgtrickle.pgt_history TO PUBLIC;
CREATE SEQUENCE pgtrickle.pgt_history_seq AS int;
