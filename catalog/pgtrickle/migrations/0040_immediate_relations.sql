-- The tables that a stream table in IMMEDIATE mode has to do with.
-- Its sources, with their partitions and children, and its own.
ALTER TABLE pgtrickle.pgt_immediate ADD COLUMN relations oid[] NOT NULL DEFAULT '{}';
