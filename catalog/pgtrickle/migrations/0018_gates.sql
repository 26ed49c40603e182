-- Gates and watermarks of sources: what keeps the scheduler from refreshing.

-- A dump knows relations by their names alone. A row is of the relation with this OID in this cluster and database, and elsewhere
-- of the relation with this name.
ALTER TABLE pgtrickle.pgt_source_gates
    ADD source_name text, ADD cluster text;
ALTER TABLE pgtrickle.pgt_watermarks
    ADD source_name text, ADD cluster text;
ALTER TABLE pgtrickle.pgt_watermark_groups
    ADD source_names text[], ADD cluster text;

-- What is said about sources. No row stays in it: triggers check the rights of the role that inserts one, and do what it says.
-- So every function can say it, also one of a user's, and nobody has a right on the tables above by which they could be locked.
CREATE TABLE pgtrickle.pgt_source_signals (
    signal         text,
    source_relids  oid[],
    watermark      timestamptz,
    group_name     text,
    tolerance_secs double precision,
    signalled_by   text
);
GRANT SELECT, INSERT ON pgtrickle.pgt_source_signals TO PUBLIC;
