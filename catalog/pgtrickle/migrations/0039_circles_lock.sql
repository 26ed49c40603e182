-- Locked as a whole by whoever has another query read stream tables, while its transaction is committed.
CREATE TABLE pgtrickle.pgt_circles_lock ();
REVOKE ALL ON pgtrickle.pgt_circles_lock FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_circles_lock TO PUBLIC;
