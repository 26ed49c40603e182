-- Three roles, and who may call what. PUBLIC has nothing.
--
-- pgque_reader consumes, pgque_writer produces, and neither includes the other; pgque_admin is both, and manages.
-- Functions here run with the rights of the schema's owner, often a superuser. So administrators may do everything but
-- what would run code of theirs in there: no triggers on these tables, no foreign keys to them (whose checks may call an
-- implicit cast of theirs with the rights of this schema's owner), and in this schema nothing but functions that cannot be
-- taken for one of ours, as long as an event trigger of a superuser's sees to that (superuser/90_names.sql). Names of tables that go into statements are not theirs to choose, either (0002_guards.sql).
-- Functions that begin with an underscore are the server's. Those that a public function without rights of its own calls
-- are granted with it, and have no rights of their own, either.
-- Roles are the cluster's: who installs may find them, or may lack the right to create them. Then all but the missing
-- roles' grants works, and _missing_roles() says what to do.


-- Why a role that exists must not be granted anything before somebody has looked at it: someone decides over it who is
-- neither a superuser nor the owner of this schema, and would have by it what the role has. Null where there is no such
-- reason, or the role has been granted the use of this schema before.
CREATE OR REPLACE FUNCTION pgque._role_objection(role text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN EXISTS (SELECT FROM aclexplode(n.nspacl) AS a WHERE a.grantee = r.oid AND a.privilege_type = 'USAGE') THEN NULL
        WHEN r.rolcanlogin OR r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls THEN
            'can log in or has attributes'
        WHEN EXISTS (SELECT FROM pg_auth_members m
                       JOIN pg_roles decides ON decides.oid = m.grantor OR m.admin_option AND decides.oid = m.member
                      WHERE m.roleid = r.oid AND NOT decides.rolsuper AND decides.oid <> n.nspowner) THEN
            'has members of somebody else''s choice'
        WHEN EXISTS (SELECT FROM pg_shdepend d
                      WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = r.oid AND d.deptype = 'o') THEN
            'owns objects'
        END
      FROM pg_namespace n, pg_roles r WHERE n.nspname = 'pgque' AND r.rolname = role
$$;


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
        SELECT format('role %s was there before and %s: look at it, then call pgque._install_roles(adopt => true)',
                      r.name, pgque._role_objection(r.name))
          FROM unnest(ARRAY['pgque_reader', 'pgque_writer', 'pgque_admin']) AS r (name)
         WHERE pgque._role_objection(r.name) IS NOT NULL
        UNION ALL
        SELECT format('role pgque_admin is no member of role %1$s, which role "%2$s" may not change: GRANT %1$s TO pgque_admin',
                      r.name, pg_get_userbyid(n.nspowner))
          FROM unnest(ARRAY['pgque_reader', 'pgque_writer']) AS r (name), pg_namespace n
         WHERE n.nspname = 'pgque' AND to_regrole(r.name) IS NOT NULL AND to_regrole('pgque_admin') IS NOT NULL
           AND num_nulls(pgque._role_objection(r.name), pgque._role_objection('pgque_admin')) = 2
           AND NOT EXISTS (SELECT FROM pg_auth_members m
                            WHERE m.roleid = to_regrole(r.name) AND m.member = to_regrole('pgque_admin'))
      ) w
$$;


-- Executes a GRANT or REVOKE to a role, if there is such a role and nothing is to be said against it.
CREATE OR REPLACE FUNCTION pgque._grant(role text, statement text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF to_regrole(role) IS NOT NULL AND pgque._role_objection(role) IS NULL THEN
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
            pgque._grant('pgque_admin', format('REVOKE TRIGGER, REFERENCES ON %s FROM pgque_admin', tables)),
            pgque._grant('pgque_admin', format('GRANT ALL ON SEQUENCE pgque.%I, pgque.%I TO pgque_admin',
                                               'event_' || id || '_id_seq', 'event_' || id || '_tick_seq'));
END $$;


-- Lets administrators create functions in this schema, where their names are checked.
CREATE OR REPLACE FUNCTION pgque._grant_create() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger e JOIN pg_roles r ON r.oid = e.evtowner
                WHERE e.evtname = 'pgque_names' AND e.evtfoid = to_regproc('pgque._on_names')
                  AND e.evtenabled = 'A' AND e.evttags IS NULL AND r.rolsuper) THEN
        PERFORM pgque._grant('pgque_admin', 'GRANT CREATE ON SCHEMA pgque TO pgque_admin'),
                pgque._grant('pgque_admin', 'GRANT EXECUTE ON FUNCTION pgque._name_objection(oid) TO pgque_admin');
    END IF;
END $$;


-- Creates the roles that are missing, and grants them what they have. Can be repeated. Returns _missing_roles(). With
-- `adopt`, also roles that are somebody else's, see _role_objection.
DROP FUNCTION IF EXISTS pgque._install_roles();  -- of an earlier version
CREATE OR REPLACE FUNCTION pgque._install_roles(adopt boolean DEFAULT false) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    tables text;
    sequences text;
    routines text;
    internals text;
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
    -- Nobody else creates in this schema.
    FOR name IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
                  FROM pg_namespace n, aclexplode(n.nspacl) AS a
                 WHERE n.nspname = 'pgque' AND a.grantee <> n.nspowner AND a.privilege_type = 'CREATE' LOOP
        EXECUTE format('REVOKE CREATE ON SCHEMA pgque FROM %s CASCADE', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['pgque_reader', 'pgque_writer', 'pgque_admin'] LOOP
        IF to_regrole(name) IS NOT NULL AND (adopt OR pgque._role_objection(name) IS NULL) THEN
            EXECUTE format('GRANT USAGE ON SCHEMA pgque TO %I', name);
        END IF;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['pgque_reader', 'pgque_writer'] LOOP
        CONTINUE WHEN to_regrole(name) IS NULL OR to_regrole('pgque_admin') IS NULL
                   OR num_nulls(pgque._role_objection(name), pgque._role_objection('pgque_admin')) < 2
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
      FROM pg_class c
     WHERE c.relnamespace = 'pgque'::regnamespace AND c.relname NOT IN ('mutex', 'forced_tick') AND pg_has_role(c.relowner, 'USAGE');
    SELECT string_agg(p.oid::regprocedure::text, ', ') FILTER (WHERE p.proname !~ '^_'),
           string_agg(p.oid::regprocedure::text, ', ') FILTER (WHERE p.proname ~ '^_')
      INTO routines, internals
      FROM pg_proc p WHERE p.pronamespace = 'pgque'::regnamespace AND p.prokind IN ('f', 'p') AND pg_has_role(p.proowner, 'USAGE');
    SELECT string_agg(t.oid::regtype::text, ', ') INTO types
      FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.typnamespace = 'pgque'::regnamespace AND c.relkind = 'c' AND pg_has_role(t.typowner, 'USAGE');

    REVOKE ALL ON SCHEMA pgque FROM PUBLIC;
    EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', types);
    EXECUTE format('REVOKE ALL ON TABLE %s FROM PUBLIC', tables);
    EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM PUBLIC', sequences);
    EXECUTE format('REVOKE ALL ON ROUTINE %s, %s FROM PUBLIC', routines, internals);
    FOREACH name IN ARRAY ARRAY['pgque_reader', 'pgque_writer', 'pgque_admin'] LOOP
        PERFORM pgque._grant(name, format('REVOKE ALL ON ROUTINE %s FROM %I', internals, name));
    END LOOP;

    PERFORM pgque._grant('pgque_reader', 'GRANT USAGE ON TYPE pgque.message TO pgque_reader'),
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

    PERFORM pgque._grant('pgque_writer', 'GRANT EXECUTE ON FUNCTION
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

    PERFORM pgque._grant('pgque_admin', format('REVOKE ALL ON TYPE %s FROM pgque_admin', types)),
            pgque._grant('pgque_admin', 'GRANT ALL ON TYPE pgque.message TO pgque_admin'),
            pgque._grant('pgque_admin', format('GRANT ALL ON TABLE %s TO pgque_admin', tables)),
            pgque._grant('pgque_admin', format('REVOKE TRIGGER, REFERENCES ON TABLE %s FROM pgque_admin', tables)),
            -- What has been installed decides what the next version does.
            pgque._grant('pgque_admin', 'REVOKE ALL ON TABLE pgque.schema_version FROM pgque_admin'),
            pgque._grant('pgque_admin', 'GRANT SELECT ON TABLE pgque.schema_version TO pgque_admin'),
            pgque._grant('pgque_admin', format('GRANT ALL ON SEQUENCE %s TO pgque_admin', sequences)),
            pgque._grant('pgque_admin', format('GRANT EXECUTE ON ROUTINE %s TO pgque_admin', routines)),
            pgque._grant('pgque_admin', 'REVOKE ALL ON FUNCTION pgque.uninstall(), pgque.insert_event_bulk(text, text, text[]) FROM pgque_admin'),
            -- What start(), stop(), ticker_loop(), cursors and the tables' guards are made of, which have the caller's rights.
            pgque._grant('pgque_admin', 'GRANT EXECUTE ON FUNCTION pgque._server(), pgque._has_cron(), pgque._cursor_query(bigint),
                pgque._json_key(text, jsonpath), pgque._event_slot(text, bigint), pgque._slots(), pgque._tick_early(text),
                pgque._is_own_role(), pgque._refuse(text, text)
                TO pgque_admin');
    PERFORM pgque._grant_create();
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
