-- Each refresh writes a new version of its stream table's row. What no refresh changes (queries, plans) is kept beside the
-- table, so that the versions are small: where somebody keeps a snapshot for hours, all of them stay.
ALTER TABLE pgtrickle.pgt_stream_tables SET (toast_tuple_target = 128);
ALTER TABLE pgtrickle.pgt_stream_tables ALTER frontier SET STORAGE MAIN, ALTER executor_costs SET STORAGE MAIN;
