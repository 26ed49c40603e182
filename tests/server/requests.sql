-- As much of the catalog as the relay needs: request functions, the request table, the trigger that guards the commit.
CREATE SCHEMA pgtrickle;
GRANT USAGE ON SCHEMA pgtrickle TO PUBLIC;
CREATE TABLE pgtrickle.pgt_requests (
    request_id bigint GENERATED ALWAYS AS IDENTITY, kind text, name text, query text,
    xid xid8 DEFAULT pg_current_xact_id());
GRANT ALL ON pgtrickle.pgt_requests TO PUBLIC;

CREATE FUNCTION pgtrickle._request(kind text, name text, query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE id bigint;
BEGIN
    INSERT INTO pgtrickle.pgt_requests (kind, name, query) VALUES (kind, name, query) RETURNING request_id INTO id;
    RAISE INFO USING ERRCODE = 'HW001', MESSAGE = id::text;
    RETURN id;
END $$;

CREATE FUNCTION pgtrickle.create_stream_table(name text, query text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM pgtrickle._request('create', name, query); END $$;
CREATE FUNCTION pgtrickle.drop_stream_table(name text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN PERFORM pgtrickle._request('drop', name, NULL); RETURN true; END $$;

-- Functions of the user's that do not name it in the statement.
CREATE FUNCTION public.make(name text, query text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN PERFORM pgtrickle.create_stream_table(name, query); RETURN name; END $$;

CREATE FUNCTION pgtrickle._guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('headwater.relay', true) = 'on'
       AND EXISTS (SELECT FROM pgtrickle.pgt_requests q WHERE q.request_id = NEW.request_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', MESSAGE = 'about to commit without the request carried out';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard AFTER INSERT ON pgtrickle.pgt_requests
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgtrickle._guard();

CREATE FUNCTION pgtrickle._raise(sqlstate text, message text, detail text, hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, DETAIL = coalesce(detail, ''), HINT = coalesce(hint, '');
END $$;
CREATE FUNCTION pgtrickle._notice(message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE USING MESSAGE = message; END $$;
