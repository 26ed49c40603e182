-- Stream tables that are refreshed together, and what is known of the scheduler's jobs.

-- A dump knows stream tables by their numbers in the catalog, roles by their names. member_oids follows.
ALTER TABLE pgtrickle.pgt_refresh_groups
    ADD member_ids bigint[] NOT NULL DEFAULT '{}', ADD created_by text;
ALTER TABLE pgtrickle.pgt_source_signals ADD isolation text;


-- How often stream tables have been refreshed together, noted with the first of them.
CREATE TABLE pgtrickle.pgt_unit_epochs (
    pgt_id bigint NOT NULL PRIMARY KEY REFERENCES pgtrickle.pgt_definitions ON DELETE CASCADE,
    epoch  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
GRANT SELECT ON pgtrickle.pgt_unit_epochs TO PUBLIC;


-- What a refresh was to the scheduler; NULL where somebody else has asked for it.
ALTER TABLE pgtrickle.pgt_refresh_history
    ADD job_enqueued_at   timestamptz,
    ADD job_attempt       int,
    ADD job_scheduler_pid int,
    ADD job_worker_pid    int,
    -- The unit, where it has several stream tables.
    ADD job_unit          text;


-- The jobs of the scheduler that are queued or running, as it has last noted: those that have been for a while.
CREATE TABLE pgtrickle.pgt_pending_jobs (
    enqueued_at   timestamptz NOT NULL PRIMARY KEY,
    unit_key      text        NOT NULL,
    attempt_no    int         NOT NULL,
    scheduler_pid int         NOT NULL,
    worker_pid    int,
    started_at    timestamptz
) WITH (fillfactor = 50);
GRANT SELECT ON pgtrickle.pgt_pending_jobs TO PUBLIC;
