-- CREATE, ALTER and DROP EXTENSION of what the server installs are requests.

ALTER TABLE pgtrickle.pgt_requests DROP CONSTRAINT pgt_requests_kind_check, ADD CONSTRAINT pgt_requests_kind_check
    CHECK (kind IN ('create', 'alter', 'drop', 'refresh', 'resume', 'copy', 'extension'));
