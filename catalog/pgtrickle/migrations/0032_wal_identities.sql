-- What the REPLICA IDENTITY of each table was that is captured from the write-ahead log, by its OID.
ALTER TABLE pgtrickle.pgt_captures ADD COLUMN former_identities jsonb;
-- In the place of former_identity, which knew of one table and is not used any more.
UPDATE pgtrickle.pgt_captures SET former_identities = jsonb_build_object(source_relid::text, former_identity)
WHERE former_identity IS NOT NULL;
