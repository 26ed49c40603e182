-- COPY from files that Spark reads is an engine request, too.
ALTER TABLE pgtrickle.pgt_requests DROP CONSTRAINT pgt_requests_kind_check;
ALTER TABLE pgtrickle.pgt_requests ADD CONSTRAINT pgt_requests_kind_check
    CHECK (kind IN ('create', 'alter', 'drop', 'refresh', 'resume', 'copy'));
