-- Subscriptions: the clock, what is captured for them, what they may read, and their rows.


DROP FUNCTION IF EXISTS pgtrickle._timeline_lock();  -- of an earlier version, which used advisory locks
DROP FUNCTION IF EXISTS pgtrickle._subscription_lock_class();


-- The next timestamp: the time in milliseconds since the epoch, but not later than target (NULL: whatever it is), and
-- always later than the one after the last, at which a progress message may have said that the last is closed. It belongs to the snapshot of the transaction, which is returned, too.
-- The first query of a REPEATABLE READ transaction that holds pgt_timeline_lock: so of two timestamps the later one sees more,
-- whichever servers they were given to.
CREATE OR REPLACE FUNCTION pgtrickle._tick(target bigint, OUT mz_timestamp bigint, OUT snapshot text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT setval('pgtrickle.pgt_timeline_seq',
                  greatest(q.last_value + 2, least(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, target)))
    INTO mz_timestamp FROM pgtrickle.pgt_timeline_seq q;
    snapshot := pg_current_snapshot()::text;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._tick(bigint) FROM PUBLIC;


-- The function of a role that reads rows of a table of the role's, each as a row of the same type as a given one.
CREATE OR REPLACE FUNCTION pgtrickle._reader(owner oid) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._role_function(owner, 'reads_as_', 'text, anyelement', 'SETOF anyelement', '',
                                    $body$ BEGIN RETURN QUERY EXECUTE $1; END $body$)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._reader(oid) FROM PUBLIC;


-- Fires before TRUNCATE on a source, or a part of it, that a subscription reads: its rows are deletions. Stream tables
-- have a marker instead. A transaction that cannot see yet what is captured must not go on.
--
-- The table is read with its owner's rights: to plan a query over it evaluates expressions of its indexes and statistics.
-- What comes back are rows of the buffer's own type, so nothing is converted where they are stored.
CREATE OR REPLACE FUNCTION pgtrickle._on_emptied() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    source oid := TG_ARGV[0]::oid;
    buffer text := format('pgtrickle_changes.%I', 'changes_' || source);
    captured text[] := (SELECT c.captured_columns FROM pgtrickle.pgt_captures c WHERE c.source_relid = source);
    reader text := pgtrickle._reader((SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID));
    readings text;
    targets text;
BEGIN
    IF captured IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'could not serialize access due to concurrent change capture';
    END IF;
    SELECT string_agg(format('%s::%s', CASE WHEN a.attname = ANY (captured) THEN format('t.%I', a.attname) ELSE 'NULL' END,
                             format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum),
           coalesce(string_agg(', ' || quote_ident(a.attname), '' ORDER BY a.attnum) FILTER (WHERE a.attname = ANY (captured)), '')
    INTO readings, targets
    FROM pg_attribute a WHERE a.attrelid = buffer::regclass AND a.attnum > 0 AND NOT a.attisdropped;
    EXECUTE format('INSERT INTO %1$s ("__pgt_change_id", "__pgt_xid", "__pgt_w"%2$s) '
                   'SELECT (SELECT nextval(''pgtrickle_changes.change_id_seq'')), (SELECT pg_current_xact_id()), -1%2$s '
                   'FROM pgtrickle_roles.%3$I($1, NULL::%1$s)', buffer, targets, reader)
    USING format('SELECT %s FROM ONLY %s AS t', readings, pgtrickle._qualified(TG_RELID));
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_emptied() FROM PUBLIC;


-- Whether TRUNCATE of a source, in all its parts, is captured row by row.
CREATE OR REPLACE FUNCTION pgtrickle._captures_emptying(source oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (
        SELECT FROM unnest(pgtrickle._relations(source)) AS relation
        WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = relation AND t.tgenabled = 'A'
                          AND t.tgname = ('pg_trickle_cdc_emptied_' || source)::name))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._captures_emptying(oid) FROM PUBLIC;


-- Have TRUNCATE of a source captured row by row. Where it is not yet, the source is locked.
CREATE OR REPLACE FUNCTION pgtrickle._capture_emptying(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation oid;
    trigger_name text := 'pg_trickle_cdc_emptied_' || source;
BEGIN
    FOREACH relation IN ARRAY pgtrickle._relations(source) LOOP
        PERFORM pgtrickle._reader((SELECT c.relowner FROM pg_class c WHERE c.oid = relation));  -- made here, not by a TRUNCATE
        CONTINUE WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = relation AND t.tgname = trigger_name AND t.tgenabled = 'A');
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE TRUNCATE ON %s FOR EACH STATEMENT '
                       'EXECUTE FUNCTION pgtrickle._on_emptied(%L)', trigger_name, pgtrickle._qualified(relation), source);
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', pgtrickle._qualified(relation), trigger_name);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._capture_emptying(oid) FROM PUBLIC;


-- Register a subscription of a server, {"subscriber", "runs_as" (roles' OIDs), "function_hashes", "sources": [{"relid",
-- "columns", "readers" (roles who must be allowed to), "captured" (it stores rows)}]}, and have what it reads captured. Must be committed before it takes
-- its first snapshot. Where a lock cannot be had soon all is undone and {"locked": message} is returned, or {"ahead": what
-- _capture_ahead is to capture before}, else {"id"}.
-- Raises 42501 and 0A000 as _capture_source does.
CREATE OR REPLACE FUNCTION pgtrickle._subscribe(server int, definition jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    id bigint;
    s record;
    generation uuid;
    wanted text;
BEGIN
    -- Made here: a snapshot that is older than it would not see it, and could not make it either.
    PERFORM pgtrickle._row_runner((definition->>'runs_as')::oid);
    INSERT INTO pgtrickle.pgt_subscriptions (server, subscriber, runs_as, function_hashes)
    VALUES (_subscribe.server, (definition->>'subscriber')::oid, (definition->>'runs_as')::oid,
            coalesce(definition->'function_hashes', '{}'))
    RETURNING subscription_id INTO id;
    FOR s IN
        SELECT (e->>'relid')::oid AS relid, ARRAY(SELECT jsonb_array_elements_text(e->'columns') ORDER BY 1) AS columns,
               ARRAY(SELECT jsonb_array_elements_text(e->'readers')::oid) AS readers, (e->>'captured')::boolean AS captured
        FROM jsonb_array_elements(definition->'sources') AS e ORDER BY 1
    LOOP
        -- First: what roles without a subscription can read of a buffer is taken from them at the next ALTER TABLE.
        INSERT INTO pgtrickle.pgt_subscription_sources
        SELECT id, s.relid, s.columns, reader, pgtrickle._reading(s.relid, s.columns), NULL
        FROM unnest(s.readers) AS reader;
        IF s.captured THEN
            generation := (pgtrickle._capture_source((definition->>'runs_as')::oid, s.relid, s.columns, false, false, NULL)
                           ->>'generation')::uuid;
            IF pgtrickle._may_lock(s.relid) THEN
                PERFORM pgtrickle._capture_emptying(s.relid);
            ELSIF NOT pgtrickle._captures_emptying(s.relid) THEN
                PERFORM pgtrickle._ask_for_capture((definition->>'runs_as')::oid, s.relid, s.columns, false, true, false);
            END IF;
            UPDATE pgtrickle.pgt_subscription_sources u SET capture_generation = generation
            WHERE u.subscription_id = id AND u.source_relid = s.relid;
        END IF;
    END LOOP;
    RETURN jsonb_build_object('id', id);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN jsonb_build_object('locked', SQLERRM);
WHEN SQLSTATE 'HW005' THEN
    GET STACKED DIAGNOSTICS wanted = PG_EXCEPTION_DETAIL;
    RETURN jsonb_build_object('ahead', wanted::jsonb);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._subscribe(int, jsonb) FROM PUBLIC;


-- End captures that nobody needs any more. What is locked is left for the next call.
DROP FUNCTION IF EXISTS pgtrickle._unsubscribe(bigint[]);  -- its earlier name
CREATE OR REPLACE FUNCTION pgtrickle._end_captures() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    t record;
    source oid;
    ended int;
BEGIN
    IF EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE k.system <> pgtrickle._system()) THEN
        -- After a restore what captures changes is of tables that have other OIDs now.
        BEGIN
            PERFORM pgtrickle._adopt_restored();
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            RETURN;
        END;
    END IF;
    ended := pgtrickle._untrack_sources();
    IF ended > 0 THEN
        RETURN;  -- what has been ended is locked until the transaction ends: nothing else is waited for
    END IF;
    PERFORM pgtrickle._drop_unused_immediate();
    FOR t IN
        SELECT g.tgrelid, g.tgname FROM pg_trigger g
        WHERE g.tgfoid = 'pgtrickle._on_emptied()'::regprocedure
          AND NOT EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u
                          WHERE 'pg_trickle_cdc_emptied_' || u.source_relid = g.tgname)
    LOOP
        CONTINUE WHEN pgtrickle._qualified(t.tgrelid) IS NULL; -- the table has been dropped meanwhile
        source := substr(t.tgname, length('pg_trickle_cdc_emptied_') + 1)::oid;
        CONTINUE WHEN NOT pgtrickle._own_source(source)  -- somebody is just starting to need it
                      AND EXISTS (SELECT FROM pgtrickle.pgt_source_locks l WHERE l.source_relid = source);
        BEGIN
            EXECUTE format('DROP TRIGGER %I ON %s', t.tgname, pgtrickle._qualified(t.tgrelid));
            ended := ended + 1;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            EXIT WHEN ended > 0;  -- what has been ended is locked until the transaction ends
        WHEN undefined_object OR undefined_table THEN
            NULL;
        END;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._end_captures() FROM PUBLIC;


-- Whether captures, triggers or copies are left that no subscription and no stream table needs.
CREATE OR REPLACE FUNCTION pgtrickle._unfollowed() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE NOT pgtrickle._is_followed(k.source_relid))
        OR EXISTS (SELECT FROM pg_trigger g
                   WHERE g.tgfoid = 'pgtrickle._on_emptied()'::regprocedure
                     AND NOT EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u
                                     WHERE 'pg_trickle_cdc_emptied_' || u.source_relid = g.tgname))
        OR EXISTS (SELECT FROM pgtrickle._lost_copies())
        OR EXISTS (SELECT FROM pgtrickle._unused_immediate())
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._unfollowed() FROM PUBLIC;


-- Forget the subscriptions of servers that have gone. Returns how many servers those were.
CREATE OR REPLACE FUNCTION pgtrickle._remove_lost_subscriptions() RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone int[];
BEGIN
    SELECT array_agg(v.server) INTO gone FROM pgtrickle.pgt_subscription_servers v
    WHERE v.server > 0 AND pgtrickle._lease_holder('subscriptions ' || v.server) IS NULL;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM pgtrickle.pgt_subscription_servers v WHERE v.server = ANY (gone);
    DELETE FROM pgtrickle.pgt_leases l WHERE l.name IN (SELECT 'subscriptions ' || v FROM unnest(gone) AS v);
    PERFORM pgtrickle._end_captures();
    RETURN cardinality(gone);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._remove_lost_subscriptions() FROM PUBLIC;


-- Why a role may not read some columns of a table or view, or NULL if it may. (_read_obstacle leaves views to PostgreSQL,
-- which asks when the query runs; a subscription's query runs with the view already put in its place.)
CREATE OR REPLACE FUNCTION pgtrickle._subscriber_obstacle(reader oid, source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    SELECT c.relkind, c.relnamespace INTO r FROM pg_class c WHERE c.oid = source;
    IF r.relkind IS DISTINCT FROM 'v' THEN
        RETURN pgtrickle._read_obstacle(reader, source, columns);
    ELSIF NOT has_schema_privilege(reader, r.relnamespace, 'USAGE') THEN
        RETURN format('permission denied for schema %I', r.relnamespace::regnamespace);
    ELSIF NOT has_table_privilege(reader, source, 'SELECT') AND (
        cardinality(columns) = 0 AND NOT has_any_column_privilege(reader, source, 'SELECT')
        OR EXISTS (SELECT FROM unnest(columns) AS name
                   WHERE EXISTS (SELECT FROM pg_attribute a
                                 WHERE a.attrelid = source AND a.attname = name AND NOT a.attisdropped)
                     AND NOT has_column_privilege(reader, source, name, 'SELECT'))) THEN
        RETURN format('permission denied for view %s', pgtrickle._qualified(source));
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._subscriber_obstacle(oid, oid, text[]) FROM PUBLIC;


-- Why a subscription cannot go on that reads a source so, or nothing: the source has changed, what was captured of it cannot
-- be trusted, or it may not be read any more.
CREATE OR REPLACE FUNCTION pgtrickle._reading_obstacle(
    source oid, columns text[], reader oid, fingerprint text, generation uuid, OUT code text, OUT message text
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k pgtrickle.pgt_captures;
BEGIN
    IF pgtrickle._qualified(source) IS NULL THEN
        code := '55000';
        message := 'a relation that the subscription reads was dropped';
    ELSIF fingerprint IS DISTINCT FROM pgtrickle._reading(source, columns) THEN
        code := '55000';
        message := format('definition of "%s" has changed', pgtrickle._qualified(source));
    ELSIF generation IS NOT NULL THEN
        SELECT * INTO k FROM pgtrickle.pgt_captures c WHERE c.source_relid = source;
        message := pgtrickle._capture_gap(
            source, k.generation IS NOT DISTINCT FROM generation, k.relations, k.trigger_state,
            (SELECT c.relhassubclass FROM pg_class c WHERE c.oid = source));
        code := CASE WHEN message IS NOT NULL THEN '55000' END;
    END IF;
    IF code IS NULL THEN
        message := pgtrickle._subscriber_obstacle(reader, source, columns);
        code := CASE WHEN message IS NOT NULL THEN '42501' END;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._reading_obstacle(oid, text[], oid, text, uuid) FROM PUBLIC;


DROP FUNCTION IF EXISTS pgtrickle._subscription_obstacle(bigint);  -- what an earlier version asked of each

-- Those of some subscriptions that cannot go on, and why. What many of them read in the same way is looked at once.
CREATE OR REPLACE FUNCTION pgtrickle._subscription_obstacles(ids bigint[])
RETURNS TABLE (id bigint, code text, message text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH readings AS MATERIALIZED (
        SELECT u.source_relid, u.columns_used, u.reader, u.schema_fingerprint, u.capture_generation,
               array_agg(u.subscription_id) AS readers
        FROM pgtrickle.pgt_subscription_sources u
        WHERE u.subscription_id = ANY (ids)
        GROUP BY 1, 2, 3, 4, 5
    ), functions AS MATERIALIZED (
        SELECT s.function_hashes, array_agg(s.subscription_id) AS readers
        FROM pgtrickle.pgt_subscriptions s
        WHERE s.subscription_id = ANY (ids) AND s.function_hashes <> '{}'
        GROUP BY 1
    ), found AS (
        SELECT unnest(r.readers) AS id, r.source_relid AS place, o.code, o.message
        FROM readings r
        CROSS JOIN LATERAL pgtrickle._reading_obstacle(r.source_relid, r.columns_used, r.reader, r.schema_fingerprint,
                                                       r.capture_generation) AS o
        WHERE o.code IS NOT NULL
        UNION ALL
        SELECT unnest(f.readers), NULL, '55000', c.message
        FROM functions f CROSS JOIN LATERAL pgtrickle._changed_function(f.function_hashes::text) AS c(message)
        WHERE c.message IS NOT NULL
        UNION ALL
        SELECT i, 0, '42704', pgtrickle._absence() FROM unnest(ids) AS i WHERE pgtrickle._absence() IS NOT NULL
    )
    SELECT DISTINCT ON (o.id) o.id, o.code, o.message FROM found o ORDER BY o.id, o.place NULLS LAST, o.code
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._subscription_obstacles(bigint[]) FROM PUBLIC;


-- Have tables stay what they are for the transaction's snapshot, until it ends. False if one has been emptied or rewritten
-- since the snapshot was taken, which does not see that the rows it should see are gone, or is just being. Nobody waits.
CREATE OR REPLACE FUNCTION pgtrickle._hold_sources(sources oid[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source oid;
BEGIN
    FOREACH source IN ARRAY sources LOOP
        EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE NOWAIT', pgtrickle._qualified(source));
    END LOOP;
    -- The function tells what is, the query what the snapshot sees.
    RETURN NOT EXISTS (SELECT FROM unnest(sources) AS s, unnest(pgtrickle._relations(s)) AS r
                       JOIN pg_class c ON c.oid = r
                       WHERE c.relkind = 'r' AND pg_relation_filenode(c.oid) IS DISTINCT FROM c.relfilenode);
EXCEPTION WHEN lock_not_available OR deadlock_detected OR undefined_table OR syntax_error THEN
    RETURN false;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._hold_sources(oid[]) FROM PUBLIC;


-- Those of some captured sources that have changed since a snapshot, or whose capture is gone; and those that somebody has
-- locked who is just changing what is captured of them: nobody waits.
CREATE OR REPLACE FUNCTION pgtrickle._changed_sources(
    sources bigint[], seen pg_snapshot, OUT source bigint, OUT is_locked boolean
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found boolean;
BEGIN
    FOREACH source IN ARRAY sources LOOP
        is_locked := false;
        BEGIN
            EXECUTE format('LOCK TABLE pgtrickle_changes.%I IN ACCESS SHARE MODE NOWAIT', 'changes_' || source);
            EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE %s)',
                           'changes_' || source, pgtrickle._unseen('$1'))
            INTO found USING seen;
        EXCEPTION WHEN lock_not_available THEN
            is_locked := true;
        WHEN undefined_table THEN
            found := true;
        END;
        IF found OR is_locked THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._changed_sources(bigint[], pg_snapshot) FROM PUBLIC;


-- A number that is a setting (_setting).
CREATE OR REPLACE FUNCTION pgtrickle._seconds(name text, fallback double precision) RETURNS double precision
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgtrickle._setting(name, fallback::text)::double precision;
END $$;


-- What there is to be done for subscriptions that have seen a snapshot: for each that cannot go on the reason, and for each
-- that has changes the sources that do, and whether all of its sources are held (_hold_sources). All are looked at if
-- thorough, else those with changes.
CREATE OR REPLACE FUNCTION pgtrickle._subscription_news(
    ids bigint[], seen pg_snapshot, thorough boolean,
    OUT id bigint, OUT changed bigint[], OUT held boolean, OUT code text, OUT message text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pending oid[] := '{}';
    affected bigint[];
    lost oid[] := '{}';
    source oid;
    found boolean;
BEGIN
    FOR source IN
        SELECT DISTINCT u.source_relid FROM pgtrickle.pgt_subscription_sources u
        WHERE u.subscription_id = ANY (ids) AND u.capture_generation IS NOT NULL
    LOOP
        IF to_regclass('pgtrickle_changes.changes_' || source) IS NULL THEN
            thorough := true;
            CONTINUE;
        END IF;
        EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I c WHERE %s)',
                       'changes_' || source, pgtrickle._unseen('$1'))
        INTO found USING seen;
        IF found THEN
            pending := pending || source;
        END IF;
    END LOOP;
    affected := ARRAY(SELECT DISTINCT u.subscription_id FROM pgtrickle.pgt_subscription_sources u
                      WHERE u.subscription_id = ANY (ids) AND u.source_relid = ANY (pending));
    FOR source IN
        SELECT DISTINCT u.source_relid FROM pgtrickle.pgt_subscription_sources u
        WHERE u.subscription_id = ANY (affected) AND u.capture_generation IS NOT NULL ORDER BY 1
    LOOP
        IF NOT pgtrickle._hold_sources(ARRAY[source]) THEN
            lost := lost || source;
        END IF;
    END LOOP;
    RETURN QUERY
        SELECT s.subscription_id, s.changed, s.held, o.code, o.message
        FROM (SELECT u.subscription_id,
                     array_agg(DISTINCT u.source_relid::bigint) FILTER (WHERE u.source_relid = ANY (pending)) AS changed,
                     NOT bool_or(u.source_relid = ANY (lost)) AS held
              FROM pgtrickle.pgt_subscription_sources u
              WHERE u.subscription_id = ANY (CASE WHEN thorough THEN ids ELSE affected END)
              GROUP BY u.subscription_id) AS s
        LEFT JOIN pgtrickle._subscription_obstacles(CASE WHEN thorough THEN ids ELSE affected END) AS o
            ON o.id = s.subscription_id
        WHERE o.code IS NOT NULL OR s.changed IS NOT NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._subscription_news(bigint[], pg_snapshot, boolean) FROM PUBLIC;


-- The function of a role that runs a query which returns rows, see _role_function. The settings are the reader's, for the
-- time of the query: how values become text, and what a time zone is. Called by _rows alone.
CREATE OR REPLACE FUNCTION pgtrickle._row_runner(owner oid) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._role_function(owner, 'rows_as_', 'text, jsonb, jsonb', 'SETOF record', $set$
            SET lc_monetary = 'C'
            SET xmlbinary = 'base64'
            SET enable_mergejoin = on
            SET jit = off $set$, $body$
            BEGIN
                PERFORM set_config(s.key, s.value, true) FROM jsonb_each_text($3) AS s
                WHERE lower(s.key) = ANY (ARRAY['datestyle', 'timezone', 'intervalstyle', 'extra_float_digits', 'bytea_output',
                                                'lc_monetary', 'xmlbinary', 'enable_mergejoin']);
                RETURN QUERY EXECUTE $1 USING $2;
                IF session_user <> current_user THEN
                    PERFORM pgtrickle._fire_deferred();
                END IF;
            END $body$)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._row_runner(oid) FROM PUBLIC;


-- The rows of a query ($1 in it is the parameters), whose columns have these names and types, with the rights of the calling
-- role and nobody else's: see _run.
CREATE OR REPLACE FUNCTION pgtrickle._rows(query text, parameters jsonb, settings jsonb, names text[], types regtype[])
RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := pgtrickle._caller();
    foreign_session boolean := to_regrole(quote_ident(session_user))::oid <> caller;
    call text := format('SELECT * FROM pgtrickle_roles.%I($1, $2, $3) AS r(%s)', pgtrickle._row_runner(caller),
                        (SELECT string_agg(format('%I %s', n.name, format_type(n.type, -1)), ', ' ORDER BY n.place)
                         FROM unnest(names, types) WITH ORDINALITY AS n(name, type, place)));
    known text[];
    encoding CONSTANT text := pg_client_encoding();
BEGIN
    PERFORM pgtrickle._check_top_level();
    IF foreign_session THEN
        known := pgtrickle._session_objects();
    END IF;
    RETURN QUERY EXECUTE call USING query, parameters, settings;
    PERFORM pgtrickle._check_left_behind(pg_catalog.current_setting('search_path'), known, NULL, false);
    IF pg_client_encoding() <> encoding THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a function in the query changes the client_encoding of the session',
            HINT = 'Functions in a defining query must have no effects.';
    END IF;
END $$;


-- What SUBSCRIBE follows: how many clients follow it, the bytes that wait in the server for them, and since when the
-- oldest changes wait that are not read (0: everything is read). As servers report it, every second. NULL where one has
-- not yet. Whoever has the rights of the subscriber, or of pg_monitor, sees a subscription.
CREATE OR REPLACE FUNCTION pgtrickle.subscription_status()
RETURNS TABLE (subscription_id bigint, reads text, subscriber text, started_at timestamptz, clients int, waiting_bytes bigint,
               lag interval)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.subscription_id,
           (SELECT string_agg(DISTINCT pgtrickle._qualified(u.source_relid), ', ') FROM pgtrickle.pgt_subscription_sources u
            WHERE u.subscription_id = s.subscription_id),
           a.rolname::text, s.started_at, l.clients, l.waiting_bytes,
           CASE WHEN l.unread_since IS NULL THEN l.reported_at - l.reported_at
                ELSE greatest(clock_timestamp() - to_timestamp(l.unread_since / 1000.0), '0') END
    FROM pgtrickle.pgt_subscriptions s
    LEFT JOIN pgtrickle.pgt_subscription_load l ON l.subscription_id = s.subscription_id
    LEFT JOIN pg_roles a ON a.oid = s.subscriber
    WHERE s.server > 0  -- those below keep history
      AND (pg_has_role(pgtrickle._caller(), s.subscriber, 'USAGE') OR pg_has_role(pgtrickle._caller(), 'pg_monitor', 'USAGE')
           OR pgtrickle._caller() = to_regrole(quote_ident(current_user))::oid)
    ORDER BY s.subscription_id
$$;
