-- Leases, by which one of all servers is elected, and tables that are there to be locked: everybody may look, but no other
-- role has a right by which it could write a row or take a lock that is in the way.

-- Which session does what only one session may do at a time. It counts as long as that session lives.
CREATE TABLE pgtrickle.pgt_leases (
    name          text        NOT NULL PRIMARY KEY,
    pid           int         NOT NULL,
    backend_start timestamptz NOT NULL,
    -- The role that the session has logged in as.
    role          oid         NOT NULL
) WITH (fillfactor = 50);
REVOKE ALL ON pgtrickle.pgt_leases FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_leases TO PUBLIC;

-- A row for each source, whose lock says what is being done to its buffer. No row is ever updated.
CREATE TABLE pgtrickle.pgt_source_locks (source_relid oid NOT NULL PRIMARY KEY);
REVOKE ALL ON pgtrickle.pgt_source_locks FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_source_locks TO PUBLIC;
INSERT INTO pgtrickle.pgt_source_locks SELECT source_relid FROM pgtrickle.pgt_captures;

-- Names that are just being given to stream tables. Each row goes in the transaction in which it came.
CREATE UNLOGGED TABLE pgtrickle.pgt_name_locks (name text NOT NULL PRIMARY KEY);
REVOKE ALL ON pgtrickle.pgt_name_locks FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_name_locks TO PUBLIC;

-- Locked as a whole: by whoever takes a timestamp and its snapshot, and by whoever makes a function of a role.
CREATE TABLE pgtrickle.pgt_timeline_lock ();
REVOKE ALL ON pgtrickle.pgt_timeline_lock FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_timeline_lock TO PUBLIC;
CREATE TABLE pgtrickle.pgt_role_functions_lock ();
REVOKE ALL ON pgtrickle.pgt_role_functions_lock FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_role_functions_lock TO PUBLIC;
