-- Requests of connections that bypass the server are carried out role by role.

CREATE INDEX pgt_requests_requested_by ON pgtrickle.pgt_requests (requested_by, request_id);
