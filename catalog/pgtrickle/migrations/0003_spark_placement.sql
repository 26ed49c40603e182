-- What each executor has taken for a stream table's refreshes: {"FULL" | "DIFFERENTIAL": {"postgres" | "spark": {"ms_per_row",
-- "rows", "refreshes"}}}. And the place of large results that Spark's executors write: tables that only the owner of the
-- stream table can read, each for the time of one refresh.

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN executor_costs jsonb NOT NULL DEFAULT '{}';

CREATE SCHEMA IF NOT EXISTS pgtrickle_staging;
GRANT USAGE ON SCHEMA pgtrickle_staging TO PUBLIC;
