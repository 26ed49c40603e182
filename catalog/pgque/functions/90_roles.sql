-- Three roles, and who may call what. PUBLIC has nothing.
--
-- pgque_reader consumes, pgque_writer produces, and neither includes the other; pgque_admin is both, and manages.
-- Functions here run with the rights of the schema's owner, often a superuser. So administrators may do everything but
-- what would run code of theirs in there: no triggers on these tables, no functions in this schema that could be taken
-- for one of ours. Names of tables that go into statements are not theirs to choose, either (0002_guards.sql).
-- Roles are the cluster's: who installs may find them, or may lack the right to create them. Then all but the missing
-- roles' grants works, and _missing_roles() says what to do.


-- What the roles lack, in words; empty where all is as it should be.
CREATE OR REPLACE FUNCTION pgque._missing_roles() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(w.warning ORDER BY w.warning), '{}')
      FROM (
        SELECT format('role %s does not exist, since role "%s" lacks CREATEROLE: create it, then call pgque._install_roles()',
                      r.name, pg_get_userbyid(n.nspowner)) AS warning
          FROM unnest(ARRAY['pgque_reader', 'pgque_writer', 'pgque_admin']) AS r (name), pg_namespace n
         WHERE n.nspname = 'pgque' AND to_regrole(r.name) IS NULL
        UNION ALL
        SELECT format('role pgque_admin is no member of role %1$s, which role "%2$s" may not change: GRANT %1$s TO pgque_admin',
                      r.name, pg_get_userbyid(n.nspowner))
          FROM unnest(ARRAY['pgque_reader', 'pgque_writer']) AS r (name), pg_namespace n
         WHERE n.nspname = 'pgque' AND to_regrole(r.name) IS NOT NULL AND to_regrole('pgque_admin') IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_auth_members m
                            WHERE m.roleid = to_regrole(r.name) AND m.member = to_regrole('pgque_admin'))
      ) w
$$;


-- Executes a GRANT or REVOKE to a role, if there is such a role.
CREATE OR REPLACE FUNCTION pgque._grant(role text, statement text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF to_regrole(role) IS NOT NULL THEN
        EXECUTE statement;
    END IF;
END $$;


-- What a queue's own tables and sequences allow: readers read, administrators do all.
CREATE OR REPLACE FUNCTION pgque._grant_queue(id integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tables text := (SELECT string_agg(format('pgque.%I', 'event_' || id || s), ', ') FROM unnest(ARRAY['', '_0', '_1', '_2']) s);
BEGIN
    PERFORM pgque._grant('pgque_reader', format('GRANT SELECT ON %s TO pgque_reader', tables)),
            pgque._grant('pgque_admin', format('GRANT ALL ON %s TO pgque_admin', tables)),
            pgque._grant('pgque_admin', format('REVOKE TRIGGER ON %s FROM pgque_admin', tables)),
            pgque._grant('pgque_admin', format('GRANT ALL ON SEQUENCE pgque.%I, pgque.%I TO pgque_admin',
                                               'event_' || id || '_id_seq', 'event_' || id || '_tick_seq'));
END $$;


-- Creates the roles that are missing, and grants them what they have. Can be repeated. Returns _missing_roles().
CREATE OR REPLACE FUNCTION pgque._install_roles() RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    tables text;
    sequences text;
    routines text;
    types text;
BEGIN
    FOREACH name IN ARRAY ARRAY['pgque_reader', 'pgque_writer', 'pgque_admin'] LOOP
        CONTINUE WHEN to_regrole(name) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN
            NULL;  -- somebody else was faster, in another database, or _missing_roles() will tell
        END;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['pgque_reader', 'pgque_writer'] LOOP
        CONTINUE WHEN to_regrole(name) IS NULL OR to_regrole('pgque_admin') IS NULL
                   OR EXISTS (SELECT FROM pg_auth_members m
                               WHERE m.roleid = to_regrole(name) AND m.member = to_regrole('pgque_admin'));
        BEGIN
            EXECUTE format('GRANT %I TO pgque_admin', name);
        EXCEPTION WHEN unique_violation OR insufficient_privilege THEN
            NULL;
        END;
    END LOOP;

    -- An administrator may have made objects here, which are the administrator's.
    SELECT string_agg(c.oid::regclass::text, ', ') FILTER (WHERE c.relkind IN ('r', 'p', 'v')),
           string_agg(c.oid::regclass::text, ', ') FILTER (WHERE c.relkind = 'S')
      INTO tables, sequences
      FROM pg_class c WHERE c.relnamespace = 'pgque'::regnamespace AND pg_has_role(c.relowner, 'USAGE');
    SELECT string_agg(p.oid::regprocedure::text, ', ') INTO routines
      FROM pg_proc p WHERE p.pronamespace = 'pgque'::regnamespace AND p.prokind IN ('f', 'p') AND pg_has_role(p.proowner, 'USAGE');
    SELECT string_agg(t.oid::regtype::text, ', ') INTO types
      FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.typnamespace = 'pgque'::regnamespace AND c.relkind = 'c' AND pg_has_role(t.typowner, 'USAGE');

    REVOKE ALL ON SCHEMA pgque FROM PUBLIC;
    EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', types);
    EXECUTE format('REVOKE ALL ON TABLE %s FROM PUBLIC', tables);
    EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM PUBLIC', sequences);
    EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', routines);

    PERFORM pgque._grant('pgque_reader', 'GRANT USAGE ON SCHEMA pgque TO pgque_reader'),
            pgque._grant('pgque_reader', 'GRANT USAGE ON TYPE pgque.message TO pgque_reader'),
            pgque._grant('pgque_reader', format('GRANT SELECT ON TABLE %s TO pgque_reader', tables)),
            pgque._grant('pgque_reader', 'GRANT EXECUTE ON FUNCTION
                pgque.get_queue_info(), pgque.get_queue_info(text),
                pgque.get_consumer_info(), pgque.get_consumer_info(text), pgque.get_consumer_info(text, text),
                pgque.get_batch_info(bigint), pgque.version(), pgque.dlq_inspect(text, int),
                pgque.register_consumer(text, text), pgque.register_consumer_at(text, text, bigint),
                pgque.unregister_consumer(text, text),
                pgque.next_batch(text, text), pgque.next_batch_info(text, text),
                pgque.next_batch_custom(text, text, interval, int4, interval),
                pgque.get_batch_events(bigint), pgque.finish_batch(bigint),
                pgque.event_retry(bigint, bigint, timestamptz), pgque.event_retry(bigint, bigint, integer),
                pgque.subscribe(text, text), pgque.unsubscribe(text, text),
                pgque.receive(text, text, int), pgque.ack(bigint), pgque.nack(bigint, pgque.message, interval, text),
                pgque.register_subconsumer(text, text, text, boolean), pgque.unregister_subconsumer(text, text, text, int),
                pgque.subscribe_subconsumer(text, text, text, boolean), pgque.unsubscribe_subconsumer(text, text, text, int),
                pgque.next_batch(text, text, text, interval),
                pgque.next_batch_custom(text, text, text, interval, int4, interval, interval),
                pgque.receive_coop(text, text, text, int, interval), pgque.touch_subconsumer(text, text, text)
                TO pgque_reader');

    PERFORM pgque._grant('pgque_writer', 'GRANT USAGE ON SCHEMA pgque TO pgque_writer'),
            pgque._grant('pgque_writer', 'GRANT EXECUTE ON FUNCTION
                pgque.insert_event(text, text, text), pgque.insert_event(text, text, text, text, text, text, text),
                pgque.send(text, jsonb), pgque.send(text, text), pgque.send(text, text, jsonb), pgque.send(text, text, text),
                pgque.send_batch(text, jsonb[]), pgque.send_batch(text, text[]),
                pgque.send_batch(text, text, jsonb[]), pgque.send_batch(text, text, text[]),
                pgque.dlq_replay(bigint), pgque.dlq_replay_all(text)
                TO pgque_writer'),
            -- What the triggers are made of. None of these has rights of its own.
            pgque._grant('pgque_writer', 'GRANT EXECUTE ON FUNCTION
                pgque._check_trigger(text, text, text, int),
                pgque._trigger_event(text, text, text[], text, oid, text[], record, record),
                pgque._listed_columns(text, text[], oid), pgque._row_columns(oid), pgque._base_type(oid), pgque._primary_key(oid),
                pgque._row_texts(record, text[], oid[], boolean), pgque._row_json(record, text[], oid[], boolean[], boolean),
                pgque._row_urlencoded(text[], text[], boolean[]), pgque._urlencode(text), pgque._row_expression(text, record),
                pgque._row_sql(text, text, text[], text[], boolean[], boolean, text[], text[], boolean)
                TO pgque_writer');

    PERFORM pgque._grant('pgque_admin', 'REVOKE CREATE ON SCHEMA pgque FROM pgque_admin'),
            pgque._grant('pgque_admin', 'GRANT USAGE ON SCHEMA pgque TO pgque_admin'),
            pgque._grant('pgque_admin', format('GRANT ALL ON TYPE %s TO pgque_admin', types)),
            pgque._grant('pgque_admin', format('GRANT ALL ON TABLE %s TO pgque_admin', tables)),
            pgque._grant('pgque_admin', format('REVOKE TRIGGER ON TABLE %s FROM pgque_admin', tables)),
            pgque._grant('pgque_admin', format('GRANT ALL ON SEQUENCE %s TO pgque_admin', sequences)),
            pgque._grant('pgque_admin', format('GRANT EXECUTE ON ROUTINE %s TO pgque_admin', routines)),
            pgque._grant('pgque_admin', 'REVOKE ALL ON FUNCTION pgque.uninstall(), pgque.insert_event_bulk(text, text, text[]) FROM pgque_admin');
    RETURN pgque._missing_roles();
END $$;


DO $$
DECLARE
    warning text;
BEGIN
    FOREACH warning IN ARRAY pgque._install_roles() LOOP
        RAISE WARNING '%', warning;
    END LOOP;
END $$;
