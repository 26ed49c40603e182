-- Publications: a stream table as a Delta or an Iceberg table that others read, a refresh a commit (engine/publish).
--
-- What the Delta table has stands in its own log: of what this catalog knows of it, it is never behind, and may be ahead. A
-- publication follows the changes of the stream table's table like a subscription of a server of its own (82_subscriptions.sql),
-- so that capture, cleanup and gaps need no other rules. Where nothing can be followed the contents are replaced by one commit.


-- Publish a stream table as a table of a format, 'delta' or 'iceberg', at a location, an absolute path or an object store's URI. Each
-- refresh is a commit. A request that the engine carries out. Raises 22023 for another format.
CREATE OR REPLACE FUNCTION pgtrickle.publish(name text, format text, location text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._check_name(name);
    PERFORM pgtrickle._check_publication(format, location);
    PERFORM pgtrickle._request('publish', pg_catalog.jsonb_build_object('name', name, 'format', pg_catalog.lower(format),
                                       'location', location),
        pg_catalog.current_setting('search_path'));
END $$;


-- End the publication of a stream table, at one location or at all. The files stay. A request that the engine carries out. Raises 42704
-- if there is none.
CREATE OR REPLACE FUNCTION pgtrickle.unpublish(name text, location text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._check_name(name);
    PERFORM pgtrickle._request('publish', pg_catalog.jsonb_build_object('name', name, 'location', location, 'ends', true),
        pg_catalog.current_setting('search_path'));
END $$;


CREATE OR REPLACE FUNCTION pgtrickle._check_publication(format text, location text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF format IS NULL OR location IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'format and location of a publication must not be null';
    ELSIF lower(format) NOT IN ('delta', 'iceberg') THEN
        PERFORM pgtrickle._unknown_value('format', format, '''delta'', ''iceberg''');
    ELSIF btrim(location) = '' OR length(location) > 1000 OR location ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'invalid location of a publication',
            HINT = 'A location is an absolute path, such as /srv/lake/totals, or an object store''s, such as s3://lake/totals.';
    END IF;
END $$;


-- Why a role may not write files with the server's rights for a stream table, or NULL if it may.
CREATE OR REPLACE FUNCTION pgtrickle._publisher_obstacle(publisher oid, pgt_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN a.oid IS NULL THEN 'the role that has published it does not exist any more'
                WHEN NOT pgtrickle._may_become(a.oid, s.pgt_owner)
                    THEN format('role "%s" must be owner of stream table "%s"', a.rolname, s.pgt_name)
                WHEN NOT pg_has_role(a.oid, 'pg_write_server_files', 'USAGE')
                    THEN format('role "%s" must be a member of pg_write_server_files', a.rolname) END
    FROM pgtrickle.pgt_definitions s LEFT JOIN pg_roles a ON a.oid = publisher
    WHERE s.pgt_id = _publisher_obstacle.pgt_id
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._publisher_obstacle(oid, bigint) FROM PUBLIC;


-- Raises 42501 unless the caller may publish a stream table.
CREATE OR REPLACE FUNCTION pgtrickle._check_publisher(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    obstacle text;
BEGIN
    PERFORM pgtrickle._owner_of(_check_publisher.pgt_id);
    obstacle := pgtrickle._publisher_obstacle(pgtrickle._caller(), _check_publisher.pgt_id);
    IF obstacle IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = obstacle,
            HINT = 'What is published is written with the rights of the server: GRANT pg_write_server_files TO the role.';
    END IF;
END $$;


-- Note that the caller publishes a stream table at a location; the columns that are published (_published_columns). The engine has
-- checked the location. Raises 42501; 42710 if something is published there.
CREATE OR REPLACE FUNCTION pgtrickle._publish(pgt_id bigint, format text, location text) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    PERFORM pgtrickle._check_publication(_publish.format, _publish.location);
    PERFORM pgtrickle._check_publisher(_publish.pgt_id);
    INSERT INTO pgtrickle.pgt_published (pgt_id, format, location, publisher, cluster)
    VALUES (_publish.pgt_id, _publish.format, _publish.location, pgtrickle._caller(), pgtrickle._cluster())
    ON CONFLICT DO NOTHING RETURNING publication_id INTO id;
    IF id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('something is published at "%s" already', location),
            HINT = 'See pgtrickle.pgt_publications.';
    END IF;
    RETURN pgtrickle._published_columns((SELECT s.pgt_relid FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _publish.pgt_id));
END $$;


-- See unpublish.
CREATE OR REPLACE FUNCTION pgtrickle._unpublish(pgt_id bigint, name text, location text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(_unpublish.pgt_id);
    DELETE FROM pgtrickle.pgt_published p
    WHERE p.pgt_id = _unpublish.pgt_id
      AND (_unpublish.location IS NULL OR rtrim(p.location, '/') = rtrim(_unpublish.location, '/'));
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('stream table "%s" is not published%s', name,
                                                                  coalesce(' at "' || location || '"', ''));
    END IF;
END $$;


-- Let go of the changes that were kept for a publication that has ended.
CREATE OR REPLACE FUNCTION pgtrickle._on_unpublished() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgtrickle.pgt_subscription_servers v WHERE v.server = OLD.server;
    DELETE FROM pgtrickle.pgt_published_refreshes r
    WHERE r.pgt_id = OLD.pgt_id AND NOT EXISTS (SELECT FROM pgtrickle.pgt_published p WHERE p.pgt_id = OLD.pgt_id);
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._on_unpublished() FROM PUBLIC;

CREATE OR REPLACE TRIGGER unpublished AFTER DELETE ON pgtrickle.pgt_published
    FOR EACH ROW EXECUTE FUNCTION pgtrickle._on_unpublished();


-- Whether anything is published.
CREATE OR REPLACE FUNCTION pgtrickle._publishes() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_published)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._publishes() FROM PUBLIC;


-- The columns of a stream table's table that are published, {name: type} in its order: what users see, and the row's id, by which
-- changed rows are found. Of a domain the base type, of an enum text.
CREATE OR REPLACE FUNCTION pgtrickle._published_columns(relation oid) RETURNS json
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_object_agg(a.attname, CASE k WHEN 'enum' THEN 'text' ELSE coalesce(k, format_type(a.atttypid, a.atttypmod)) END
                           ORDER BY a.attname = '__pgt_row_id', a.attnum)
    FROM pg_attribute a CROSS JOIN pgtrickle._carrier(a.atttypid) AS k
    WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attname = '__pgt_row_id' OR NOT starts_with(a.attname, '__pgt_'))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._published_columns(oid) FROM PUBLIC;


-- Why what a publication follows cannot be followed any more, or not yet; NULL if it can.
CREATE OR REPLACE FUNCTION pgtrickle._publication_gap(publication_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p record;
    message text;
BEGIN
    SELECT x.subscription_id, s.pgt_relid INTO p
    FROM pgtrickle.pgt_published x JOIN pgtrickle.pgt_definitions s USING (pgt_id)
    WHERE x.publication_id = _publication_gap.publication_id;
    IF p.subscription_id IS NULL THEN
        RETURN 'its changes are not captured for the publication';
    END IF;
    SELECT o.message INTO message FROM pgtrickle._subscription_obstacles(ARRAY[p.subscription_id]) o;
    IF message IS NOT NULL THEN
        RETURN message;
    ELSIF EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u JOIN pgtrickle.pgt_captures k USING (source_relid)
                  WHERE u.subscription_id = p.subscription_id AND k.system <> pgtrickle._system()) THEN
        RETURN 'the database was restored, or a standby promoted';
    ELSIF NOT EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u
                      WHERE u.subscription_id = p.subscription_id AND u.source_relid = p.pgt_relid
                        AND u.columns_used @> ARRAY(SELECT json_object_keys(pgtrickle._published_columns(p.pgt_relid)))) THEN
        RETURN 'columns were added';
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._publication_gap(bigint) FROM PUBLIC;


-- The publications of the database, for the engine: what is published where; `followed` and `frontier` (NULL: none yet) as the buffers are
-- kept for it; `version` of the Delta table that is known; `obstacle` says why nothing may be written; `is_overdue`: changes have waited for too long for a place that cannot be
-- written to.
CREATE OR REPLACE FUNCTION pgtrickle._publications(
    OUT publication_id bigint, OUT pgt_id bigint, OUT relid bigint, OUT schema text, OUT name text, OUT format text,
    OUT location text, OUT generation uuid, OUT followed bigint, OUT frontier text, OUT version bigint, OUT obstacle text, OUT is_overdue boolean, OUT has_failed boolean
) RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.publication_id, p.pgt_id, s.pgt_relid::bigint, s.pgt_schema, s.pgt_name, p.format, p.location,
           p.generation, p.subscription_id, v.frontier::text, p.version,
           coalesce(pgtrickle._publisher_obstacle(p.publisher, p.pgt_id),
                    CASE WHEN p.cluster <> pgtrickle._cluster()
                         THEN 'the publication is that of another database, of which this one is a copy' END),
           p.error IS NOT NULL AND p.subscription_id IS NOT NULL AND EXISTS (
               SELECT FROM pgtrickle.pgt_published_refreshes r
               WHERE r.pgt_id = p.pgt_id
                 AND r.refreshed_at < clock_timestamp() - make_interval(
                     secs => pgtrickle._seconds('pg_trickle.publish_hold_seconds', 3600))
                 AND (v.frontier IS NULL OR NOT pg_visible_in_snapshot(r.xid, v.frontier))),
           p.error IS NOT NULL
    FROM pgtrickle.pgt_published p
    JOIN pgtrickle.pgt_definitions s USING (pgt_id)
    LEFT JOIN pgtrickle.pgt_subscription_servers v USING (server)
    WHERE s.is_populated
    ORDER BY p.publication_id
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._publications() FROM PUBLIC;


-- Let go of the changes that are kept for a publication: it will have to begin anew. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._let_go_of_publication(publication_id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p record;
BEGIN
    SELECT x.server, x.pgt_id INTO p FROM pgtrickle.pgt_published x
    WHERE x.publication_id = _let_go_of_publication.publication_id FOR UPDATE;
    DELETE FROM pgtrickle.pgt_subscription_servers v WHERE v.server = p.server;
    DELETE FROM pgtrickle.pgt_published_refreshes r
    WHERE r.pgt_id = p.pgt_id
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_published x WHERE x.pgt_id = p.pgt_id AND x.subscription_id IS NOT NULL);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._let_go_of_publication(bigint) FROM PUBLIC;


-- Begin to follow the table of a published stream table anew. To be committed before the snapshot is taken of which it is copied.
-- {"locked": message} where a lock cannot be had soon, {"ahead": …} as _subscribe. For the engine. Raises 0A000, 42501 as _capture_source.
CREATE OR REPLACE FUNCTION pgtrickle._follow_for_publication(publication_id bigint) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p record;
    f record;
BEGIN
    PERFORM pgtrickle._let_go_of_publication(_follow_for_publication.publication_id);
    SELECT s.pgt_relid, c.relowner INTO p
    FROM pgtrickle.pgt_published x JOIN pgtrickle.pgt_definitions s USING (pgt_id) JOIN pg_class c ON c.oid = s.pgt_relid
    WHERE x.publication_id = _follow_for_publication.publication_id;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    SELECT * INTO f FROM pgtrickle._follow_without_client(p.relowner, jsonb_build_array(jsonb_build_object(
        'relid', p.pgt_relid::bigint, 'readers', jsonb_build_array(p.relowner::bigint), 'captured', true,
        'columns', (SELECT jsonb_agg(k) FROM json_object_keys(pgtrickle._published_columns(p.pgt_relid)) AS k))));
    IF f.server IS NOT NULL THEN
        UPDATE pgtrickle.pgt_published x SET server = f.server, subscription_id = (f.answer->>'id')::bigint
        WHERE x.publication_id = _follow_for_publication.publication_id;
    END IF;
    RETURN f.answer;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._follow_for_publication(bigint) FROM PUBLIC;


-- Note that this transaction has refreshed a stream table, if it is published: its changes are a commit of their own.
CREATE OR REPLACE FUNCTION pgtrickle._note_for_publication(pgt_id bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_published_refreshes AS r (pgt_id, xid, frontier, data_timestamp)
    SELECT s.pgt_id, pg_current_xact_id(), s.frontier, s.data_timestamp FROM pgtrickle.pgt_definitions s
    WHERE s.pgt_id = _note_for_publication.pgt_id
      AND EXISTS (SELECT FROM pgtrickle.pgt_published p WHERE p.pgt_id = s.pgt_id AND p.subscription_id IS NOT NULL)
    ON CONFLICT ON CONSTRAINT pgt_published_refreshes_pkey
    DO UPDATE SET frontier = excluded.frontier, data_timestamp = excluded.data_timestamp, refreshed_at = excluded.refreshed_at
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._note_for_publication(bigint) FROM PUBLIC;


-- A Delta table has what a snapshot sees, as of a version. False if the publication follows something else by now, or is over. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._has_published(
    publication_id bigint, followed bigint, frontier pg_snapshot, version bigint, data_timestamp timestamptz
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    p record;
BEGIN
    UPDATE pgtrickle.pgt_published x
    SET version = version, data_timestamp = data_timestamp, published_at = clock_timestamp(), error = NULL, failed_at = NULL
    WHERE x.publication_id = publication_id AND x.subscription_id = followed
    RETURNING x.server, x.pgt_id INTO p;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE pgtrickle.pgt_subscription_servers v SET frontier = frontier WHERE v.server = p.server;
    DELETE FROM pgtrickle.pgt_published_refreshes r
    WHERE r.pgt_id = p.pgt_id AND NOT EXISTS (
        SELECT FROM pgtrickle.pgt_published x JOIN pgtrickle.pgt_subscription_servers v USING (server)
        WHERE x.pgt_id = p.pgt_id AND (v.frontier IS NULL OR NOT pg_visible_in_snapshot(r.xid, v.frontier)));
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._has_published(bigint, bigint, pg_snapshot, bigint, timestamptz) FROM PUBLIC;


-- Note why a publication does not go on; with NULL that it does. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._fail_publication(publication_id bigint, message text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    UPDATE pgtrickle.pgt_published p
    SET error = left(message, 1000), failed_at = CASE WHEN message IS NOT NULL THEN clock_timestamp() END
    WHERE p.publication_id = _fail_publication.publication_id AND (p.error IS NOT NULL OR message IS NOT NULL)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._fail_publication(bigint, text) FROM PUBLIC;


-- What is not yet in the Delta table of a publication, as it is known: how many refreshes, NULL where none are kept for it; and since when
-- the first change of it waits, NULL if there is none. Of changes that no refresh has made, and of those that are not kept, only
-- this is known: that they came after it was written last.
CREATE OR REPLACE FUNCTION pgtrickle._unpublished(publication_id bigint, OUT refreshes bigint, OUT since timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN p.subscription_id IS NOT NULL THEN kept.refreshes END,
           CASE WHEN p.version IS NULL THEN p.created_at
                WHEN kept.refreshes > 0 THEN kept.since
                WHEN v.frontier IS NULL OR coalesce(pgtrickle._changed_since(s.pgt_relid, v.frontier::text), true)
                    THEN p.published_at END
    FROM pgtrickle.pgt_published p
    JOIN pgtrickle.pgt_definitions s USING (pgt_id)
    LEFT JOIN pgtrickle.pgt_subscription_servers v USING (server)
    CROSS JOIN LATERAL (
        SELECT count(*) AS refreshes, min(r.refreshed_at) AS since FROM pgtrickle.pgt_published_refreshes r
        WHERE r.pgt_id = p.pgt_id AND (v.frontier IS NULL OR NOT pg_visible_in_snapshot(r.xid, v.frontier))) AS kept
    WHERE p.publication_id = _unpublished.publication_id
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._unpublished(bigint) FROM PUBLIC;


-- What is published, for who has the rights of the stream table's owner or of pg_monitor.
CREATE OR REPLACE FUNCTION pgtrickle._publication_status()
RETURNS TABLE (pgt_schema text, pgt_name text, format text, location text, publisher text, state text, version bigint,
               data_timestamp timestamptz, published_at timestamptz, unpublished_refreshes bigint, lag interval,
               last_error text, last_error_at timestamptz, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.pgt_schema, s.pgt_name, p.format, p.location, a.rolname::text,
           CASE WHEN p.error IS NOT NULL THEN 'ERROR' WHEN p.version IS NULL THEN 'STARTING' ELSE 'ACTIVE' END,
           p.version, p.data_timestamp, p.published_at, u.refreshes,
           greatest(clock_timestamp() - u.since, '0'),
           p.error, p.failed_at, p.created_at
    FROM pgtrickle.pgt_published p
    JOIN pgtrickle.pgt_definitions s USING (pgt_id)
    LEFT JOIN pg_roles a ON a.oid = p.publisher
    CROSS JOIN LATERAL pgtrickle._unpublished(p.publication_id) AS u
    WHERE pg_has_role(pgtrickle._caller(), s.pgt_owner, 'USAGE') OR pg_has_role(pgtrickle._caller(), 'pg_monitor', 'USAGE')
       OR pgtrickle._caller() = to_regrole(quote_ident(current_user))::oid
    ORDER BY s.pgt_schema, s.pgt_name, p.location
$$;

CREATE OR REPLACE VIEW pgtrickle.pgt_publications AS SELECT * FROM pgtrickle._publication_status();
GRANT SELECT ON pgtrickle.pgt_publications TO PUBLIC;
