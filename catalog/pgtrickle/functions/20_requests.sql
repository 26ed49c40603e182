-- How a request for the engine is written down and taken up.
--
-- A public function (30_public.sql) checks its arguments and writes a row into pgt_requests. On a connection through
-- the server an INFO with SQLSTATE HW001 tells the relay, which has the engine carry the request out in the same
-- transaction, before the statement completes. INFO, since client_min_messages cannot suppress it. Should the
-- transaction commit all the same with the row still there, a deferred trigger stops it with HW002. A refresh that finds
-- nothing to do is answered here, without a request, and so can be had in a read-only transaction.


-- Runs for every new request, with the rights of whoever writes it, and makes it what it is: nothing but what is asked for
-- comes from outside. It raises 42501 unless the session itself asks. Elsewhere PostgreSQL works with another role's
-- rights, to protect the session from that role's code: in a function with SECURITY DEFINER, in the expression of an index
-- that ANALYZE or autovacuum computes, in a materialized view that is refreshed. A request made there would be carried out
-- with the session's rights or the server's.
CREATE OR REPLACE FUNCTION pgtrickle._request_made() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asking oid := to_regrole(quote_ident(current_user))::oid;
BEGIN
    IF asking IS DISTINCT FROM pgtrickle._caller() THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('cannot request "%s" of "%s" as role "%s" in a session of role "%s"', NEW.kind,
                             left(NEW.arguments->>'name', 200), current_user, pgtrickle._caller()::regrole),
            HINT = 'Requests are made by the session itself, not by functions with SECURITY DEFINER or maintenance commands.';
    END IF;
    PERFORM pgtrickle._check_unrestricted();
    IF octet_length(NEW.arguments::text) + octet_length(NEW.search_path) > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = format('request "%s" is too long', NEW.kind),
            DETAIL = 'It has more than 1 MB.';  -- the server reads it as a whole
    END IF;
    NEW.requested_by := asking;
    NEW.session_role := to_regrole(quote_ident(session_user))::oid;
    NEW.xid := pg_current_xact_id();
    NEW.requested_at := clock_timestamp();
    NEW.attempts := 0;
    NEW.error := NULL;
    NEW.error_state := NULL;
    RETURN NEW;
END $$;

-- Only where it is not there: who sends CREATE EXTENSION in a transaction block has written to the table, and waits for the scripts.
DO $$ BEGIN
IF NOT EXISTS (SELECT FROM pg_trigger t
               WHERE t.tgrelid = 'pgtrickle.pgt_requests'::regclass AND t.tgname = 'request_made' AND t.tgenabled = 'A'
                 AND t.tgtype = 7 AND t.tgfoid = 'pgtrickle._request_made()'::regprocedure) THEN
DROP TRIGGER IF EXISTS request_made ON pgtrickle.pgt_requests;
CREATE TRIGGER request_made BEFORE INSERT ON pgtrickle.pgt_requests
    FOR EACH ROW EXECUTE FUNCTION pgtrickle._request_made();
ALTER TABLE pgtrickle.pgt_requests ENABLE ALWAYS TRIGGER request_made;
END IF;
END $$;

-- Who may delete rows of a table may lock it against everybody. _finish_request deletes them.
REVOKE DELETE ON pgtrickle.pgt_requests FROM PUBLIC;


-- Write a request down. Runs with the caller's rights, so that the row is the caller's own.
CREATE OR REPLACE FUNCTION pgtrickle._request(kind text, arguments jsonb, path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    IF kind NOT IN ('copy', 'extension') THEN
        PERFORM pgtrickle._check_present();
    END IF;
    IF current_setting('transaction_read_only')::boolean THEN
        IF pg_is_in_recovery() THEN
            RAISE EXCEPTION USING ERRCODE = '25006',
                MESSAGE = 'cannot change stream tables on a hot standby', HINT = 'Connect to the primary.';
        END IF;
        IF kind = 'refresh' AND pgtrickle._nothing_to_refresh(arguments->>'name', path) THEN
            RETURN;
        END IF;
        PERFORM pgtrickle._raise('25006',
            CASE kind WHEN 'refresh' THEN format('cannot refresh stream table "%s" in a read-only transaction', arguments->>'name')
                      WHEN 'copy' THEN 'cannot execute COPY FROM in a read-only transaction'
                      WHEN 'extension' THEN format('cannot execute %s EXTENSION in a read-only transaction',
                                                   CASE arguments->>'action' WHEN 'create' THEN 'CREATE'
                                                        WHEN 'drop' THEN 'DROP' WHEN 'others' THEN 'DROP' ELSE 'ALTER' END)
                      WHEN 'statement' THEN format('cannot execute %s in a read-only transaction',
                                                   upper(substring(arguments->>'statement' FROM '^\w+(?: \w+)?')))
                      WHEN 'publish' THEN format('cannot publish "%s" in a read-only transaction', arguments->>'name')
                      WHEN 'retain' THEN format('cannot retain the history of "%s" in a read-only transaction',
                                                arguments->>'name')
                      ELSE format('cannot %s stream table "%s" in a read-only transaction', kind, arguments->>'name') END,
            CASE kind WHEN 'refresh' THEN 'It may have changes to take in.' END,
            'Use BEGIN READ WRITE, or SET default_transaction_read_only = off.');
    END IF;
    -- In a statement that is nothing but this call there is nothing that the refresh would have to come after.
    IF kind = 'refresh' AND current_query() ~* E'^\\s*select\\s+pgtrickle\\.refresh_stream_table\\s*\\([^()]*\\)[\\s;]*$'
       AND pgtrickle._nothing_to_refresh(arguments->>'name', path) THEN
        RETURN;
    END IF;
    INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path)
    VALUES (kind, jsonb_strip_nulls(arguments), path) RETURNING request_id INTO id;
    IF current_setting('headwater.relay', true) = 'on' THEN
        RAISE INFO USING ERRCODE = 'HW001', MESSAGE = id::text;
    ELSE
        RAISE NOTICE USING MESSAGE = format('request %s is carried out by the Headwater server after commit', id),
            HINT = 'Connect through the server to have it done at once. Failures show in pgtrickle.pgt_request_errors.';
    END IF;
END $$;


-- The requests of the current transaction, in the order they were made.
CREATE OR REPLACE FUNCTION pgtrickle._pending_requests()
RETURNS TABLE (request_id bigint, kind text, arguments text, search_path text, requested_by text)
LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
    SELECT q.request_id, q.kind, q.arguments::text, q.search_path, pg_get_userbyid(q.requested_by)::text
    FROM pgtrickle.pgt_requests q
    WHERE q.xid = pg_current_xact_id_if_assigned()
    ORDER BY q.request_id
$$;


-- Forget a request that has been carried out: one of this transaction, or one the engine has claimed.
CREATE OR REPLACE FUNCTION pgtrickle._finish_request(request_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := pgtrickle._caller();
    is_engine boolean := caller = to_regrole(quote_ident(current_user))::oid;
BEGIN
    PERFORM pgtrickle._check_top_level();
    DELETE FROM pgtrickle.pgt_requests q
    WHERE q.request_id = _finish_request.request_id
      AND (q.xid = pg_current_xact_id_if_assigned() OR is_engine OR pgtrickle._may_become(caller, q.requested_by));
END $$;


DROP FUNCTION IF EXISTS  -- of earlier versions
    pgtrickle._claim_stray_request(), pgtrickle._claim_stray_request(oid), pgtrickle._stray_roles();


-- The roles with requests that transactions have left behind by bypassing the server, who has waited longest first. For
-- the engine alone.
CREATE OR REPLACE FUNCTION pgtrickle._out_of_band_requesters() RETURNS bigint[]
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(w.requested_by::bigint ORDER BY w.first), '{}')
    FROM (SELECT q.requested_by, min(q.request_id) AS first
          FROM pgtrickle.pgt_requests q WHERE q.error IS NULL GROUP BY q.requested_by) AS w
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._out_of_band_requesters() FROM PUBLIC;


-- The oldest such request of a role, locked for this transaction. For the engine alone. Another server's claims are
-- skipped.
CREATE OR REPLACE FUNCTION pgtrickle._claim_out_of_band_request(role oid)
RETURNS TABLE (request_id bigint, kind text, arguments text, search_path text, requested_by text)
LANGUAGE sql VOLATILE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
    SELECT q.request_id, q.kind, q.arguments::text, q.search_path,
           (SELECT a.rolname::text FROM pg_roles a WHERE a.oid = q.requested_by)
    FROM pgtrickle.pgt_requests q
    WHERE q.requested_by = _claim_out_of_band_request.role AND q.error IS NULL
      AND q.xid IS DISTINCT FROM pg_current_xact_id_if_assigned()
    ORDER BY q.request_id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._claim_out_of_band_request(oid) FROM PUBLIC;


-- Note that a claimed request failed; it is not tried again. Of each role the last hundred that have failed are kept. For
-- the engine alone.
CREATE OR REPLACE FUNCTION pgtrickle._fail_request(request_id bigint, sqlstate text, message text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role oid;
BEGIN
    UPDATE pgtrickle.pgt_requests q
    SET attempts = q.attempts + 1, error_state = _fail_request.sqlstate, error = _fail_request.message
    WHERE q.request_id = _fail_request.request_id
    RETURNING q.requested_by INTO role;
    DELETE FROM pgtrickle.pgt_requests q
    WHERE q.requested_by = role AND q.error IS NOT NULL AND q.request_id <= (
        SELECT l.request_id FROM pgtrickle.pgt_requests l
        WHERE l.requested_by = role AND l.error IS NOT NULL ORDER BY l.request_id DESC OFFSET 100 LIMIT 1);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._fail_request(bigint, text, text) FROM PUBLIC;


-- Fires at commit. Through the server every request must have been carried out by then; the relay answers HW002 by
-- running the statement again inside a transaction of its own. Of those that bypass the server a thousand of each role
-- may wait: 53400. (Transactions that commit at the same moment do not count each other's.)
CREATE OR REPLACE FUNCTION pgtrickle._request_left() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT int := 1000;
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_requests q WHERE q.request_id = NEW.request_id) THEN
        RETURN NULL;
    ELSIF current_setting('headwater.relay', true) = 'on' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002',
            MESSAGE = 'about to commit without the request carried out',
            HINT = 'Run the statement inside a transaction block.';
    ELSIF EXISTS (SELECT FROM pgtrickle.pgt_requests q
                  WHERE q.requested_by = NEW.requested_by AND q.error IS NULL OFFSET most) THEN
        RAISE EXCEPTION USING ERRCODE = '53400',
            MESSAGE = format('more than %s requests of role "%s" wait for the Headwater server', most,
                             pg_get_userbyid(NEW.requested_by)),
            HINT = 'Connect through the server to have requests carried out at once.';
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._request_left() FROM PUBLIC;

-- A connection may set headwater.relay as it likes: its own requests are then refused or carried out later.
DO $$ BEGIN
IF NOT EXISTS (SELECT FROM pg_trigger t
               WHERE t.tgrelid = 'pgtrickle.pgt_requests'::regclass AND t.tgname = 'request_left' AND t.tgenabled = 'O'
                 AND t.tgtype = 5 AND t.tgdeferrable AND t.tginitdeferred
                 AND t.tgfoid = 'pgtrickle._request_left()'::regprocedure) THEN
DROP TRIGGER IF EXISTS request_left ON pgtrickle.pgt_requests;
CREATE CONSTRAINT TRIGGER request_left AFTER INSERT ON pgtrickle.pgt_requests
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgtrickle._request_left();
END IF;
END $$;
