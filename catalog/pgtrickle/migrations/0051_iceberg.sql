-- Publications as Iceberg tables, too.
ALTER TABLE pgtrickle.pgt_published DROP CONSTRAINT pgt_published_format_check,
    ADD CONSTRAINT pgt_published_format_check CHECK (format IN ('delta', 'iceberg'));
DROP FUNCTION IF EXISTS pgtrickle._publications();
