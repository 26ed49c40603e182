-- What explain_st shows of a stream table's plan and no refresh reads: rewrites, rewritten_query, delta_sql.

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN plan_texts jsonb NOT NULL DEFAULT '{}';
