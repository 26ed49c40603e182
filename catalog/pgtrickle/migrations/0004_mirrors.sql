-- Mirrors outside of the database that take what is captured: their changes are kept until they have them.

-- One row for each mirror of a source. A mirror has all changes that are visible in its frontier, and its log of changes
-- has had at least that version then; the others must stay until held_until. Who deletes the row lets go of them, and the
-- mirror is made anew when it is needed again.
CREATE TABLE pgtrickle.pgt_mirrors (
    mirror       uuid        NOT NULL PRIMARY KEY,
    source_relid oid         NOT NULL,
    frontier     pg_snapshot NOT NULL,
    log_version  bigint      NOT NULL DEFAULT 0,
    used_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    held_until   timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX pgt_mirrors_source ON pgtrickle.pgt_mirrors (source_relid);
GRANT SELECT ON pgtrickle.pgt_mirrors TO PUBLIC;
