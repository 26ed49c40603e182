-- Columns that a stream table was given for contents that it is to have. The transaction that fills them and gives them
-- their names removes these rows; where it has failed the columns are dropped (functions/67_beside.sql). No foreign key:
-- that transaction holds the stream table's row, and the columns are added by another one.
CREATE TABLE pgtrickle.pgt_columns_ahead (
    pgt_id bigint NOT NULL,
    column_name name NOT NULL CHECK (column_name OPERATOR(pg_catalog.~) '^__pgt_next_[0-9]+$'),
    PRIMARY KEY (pgt_id, column_name)
);
GRANT SELECT ON pgtrickle.pgt_columns_ahead TO PUBLIC;
