-- A row for each captured source that is unlogged. It is unlogged as well: PostgreSQL empties both when it recovers from a
-- crash, and that the row is missing, or another one, is all that tells of it.
CREATE UNLOGGED TABLE pgtrickle.pgt_crash_witnesses (
    source_relid oid  NOT NULL PRIMARY KEY,
    witness      uuid NOT NULL DEFAULT gen_random_uuid()
);
REVOKE ALL ON pgtrickle.pgt_crash_witnesses FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_crash_witnesses TO PUBLIC;
