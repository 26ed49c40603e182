-- CREATE, ALTER and DROP EXTENSION of what the server installs, and its version.


-- The version of what is installed, which is that of Headwater: what \dx shows, and pgque.version().
CREATE OR REPLACE FUNCTION pgtrickle.version() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT '@version@'
$$;


DROP FUNCTION IF EXISTS pgtrickle._request_extension(text, text, boolean, boolean, text);  -- of an earlier version


-- Request that such a statement be carried out. The server sends this in its place. `action` is create, update, move, members, drop
-- or others (ours are dropped together with extensions that are not), `guarded` is IF [NOT] EXISTS.
CREATE OR REPLACE FUNCTION pgtrickle._request_extension(
    action text, name text, guarded boolean, cascade boolean, schema text, version text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request('extension', pg_catalog.jsonb_build_object('action', action, 'name', name,
        'guarded', guarded, 'cascade', cascade, 'schema', schema, 'version', version), pg_catalog.current_setting('search_path'));
END $$;


DROP FUNCTION IF EXISTS pgtrickle._dependents(text);


-- What outside some schemas needs something inside: triggers, views, functions, columns.
CREATE OR REPLACE FUNCTION pgtrickle._dependent_objects(schemas text[]) RETURNS TABLE (classid oid, objid oid, objsubid int)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH own AS (SELECT n.oid, n.nspname FROM pg_namespace AS n WHERE n.nspname = ANY (schemas)), members AS (
        SELECT 'pg_class'::regclass AS classid, oid FROM pg_class WHERE relnamespace IN (SELECT oid FROM own)
        UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace IN (SELECT oid FROM own)
        UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typnamespace IN (SELECT oid FROM own)
    ), dependents AS (
        SELECT DISTINCT d.classid, d.objid, d.objsubid FROM pg_depend d
          JOIN members m ON m.classid = d.refclassid AND m.oid = d.refobjid
         WHERE d.deptype = 'n' AND d.classid <> 'pg_event_trigger'::regclass
    )
    SELECT d.classid, d.objid, d.objsubid
      FROM dependents d
      LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
      LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
      LEFT JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
      LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
      LEFT JOIN pg_policy p ON d.classid = 'pg_policy'::regclass AND p.oid = d.objid
      LEFT JOIN pg_class c ON c.oid = coalesce(t.tgrelid, r.ev_class, a.adrelid, k.conrelid, p.polrelid,
                                               CASE WHEN d.classid = 'pg_class'::regclass THEN d.objid END)
     WHERE coalesce(c.relnamespace::regnamespace::text, (pg_identify_object(d.classid, d.objid, 0)).schema, '')
           <> ALL (SELECT quote_ident(nspname) FROM own)
$$;


CREATE OR REPLACE FUNCTION pgtrickle._dependents(VARIADIC schemas text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(pg_describe_object(d.classid, d.objid, d.objsubid) ORDER BY d.classid, d.objid), '{}')
      FROM pgtrickle._dependent_objects(schemas) d
$$;


-- DROP EXTENSION pg_trickle leaves the schemas, with the tables and the functions that begin with an underscore: the server needs
-- them for queues, registers and for CREATE EXTENSION itself. Nothing of what users call or have made is left, and
-- pgt_uninstalled has a row, by which servers know not to make it again. Captures that cannot be ended at once, since somebody has
-- their source locked, and the replication slot, which no rollback brings back, are ended by the servers, as always.


-- What is said where pg_trickle has been dropped, NULL where it has not. The system catalogs tell at once, in every snapshot.
CREATE OR REPLACE FUNCTION pgtrickle._absence() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'extension "pg_trickle" does not exist: it has been dropped from this database'
     WHERE to_regprocedure('pgtrickle.version()') IS NULL
$$;


-- Raises 42704 where pg_trickle has been dropped.
CREATE OR REPLACE FUNCTION pgtrickle._check_present() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgtrickle._absence() IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = pgtrickle._absence(),
            HINT = 'CREATE EXTENSION pg_trickle makes it anew.';
    END IF;
END $$;


-- Whoever adds what users have waits for a DROP EXTENSION that is under way, and finds it done (_lock_contents).
CREATE OR REPLACE FUNCTION pgtrickle._on_content() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._check_present();
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_definitions EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_load_generators EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_history EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_subscriptions EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_published EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_source_gates EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_watermarks EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_watermark_groups EXECUTE FUNCTION pgtrickle._on_content();
CREATE OR REPLACE TRIGGER content_added BEFORE INSERT ON pgtrickle.pgt_refresh_groups EXECUTE FUNCTION pgtrickle._on_content();


-- Wait for refreshes and for whoever is making or changing something, and have them wait until the transaction ends.
CREATE OR REPLACE FUNCTION pgtrickle._lock_contents() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE pgtrickle.pgt_definitions, pgtrickle.pgt_load_generators, pgtrickle.pgt_history, pgtrickle.pgt_subscriptions,
        pgtrickle.pgt_source_gates, pgtrickle.pgt_watermarks, pgtrickle.pgt_watermark_groups, pgtrickle.pgt_refresh_groups,
        pgtrickle.pgt_published
        IN EXCLUSIVE MODE;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._lock_contents() FROM PUBLIC;


-- What users have that needs pg_trickle: stream tables, sources, histories, and what of theirs depends on its objects. (Triggers that do are
-- those of capture.)
CREATE OR REPLACE FUNCTION pgtrickle._contents() RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH mine AS (
        SELECT 1 AS place, 'stream table ' AS title, s.pgt_relid AS relid FROM pgtrickle.pgt_definitions s
        UNION ALL SELECT 2, 'source ', g.source_relid FROM pgtrickle.pgt_load_generators g WHERE pgtrickle._is_source(g.source_relid)
        UNION ALL SELECT 3, 'history of ', h.relid FROM pgtrickle.pgt_history h
    )
    SELECT coalesce(array_agg(found.name ORDER BY found.place, found.name), '{}') FROM (
        SELECT m.place, m.title || pgtrickle._qualified(m.relid) FROM mine m WHERE pgtrickle._qualified(m.relid) IS NOT NULL
        UNION ALL
        SELECT 4, pg_describe_object(d.classid, d.objid, d.objsubid)
          FROM pgtrickle._dependent_objects(pgtrickle._own_schemas()) d
         WHERE d.classid <> 'pg_trigger'::regclass AND d.objid NOT IN (SELECT m.relid FROM mine m)
    ) AS found(place, name)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._contents() FROM PUBLIC;


CREATE OR REPLACE FUNCTION pgtrickle._own_schemas() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY['pgtrickle', 'pgtrickle_changes', 'pgtrickle_roles', 'pgtrickle_staging']
$$;


-- Drop what _contents has, with the rights of the caller, and forget everything else that stands in the catalog. The caller has
-- _lock_contents.
CREATE OR REPLACE FUNCTION pgtrickle._drop_contents() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relations oid[] := ARRAY(SELECT s.pgt_relid FROM pgtrickle.pgt_definitions s ORDER BY s.pgt_id DESC)
        || ARRAY(SELECT g.source_relid FROM pgtrickle.pgt_load_generators g WHERE pgtrickle._is_source(g.source_relid));
    id bigint;
    relation oid;
BEGIN
    PERFORM set_config('pgtrickle.maintenance', 'on', true);
    FOR relation IN SELECT h.relid FROM pgtrickle.pgt_history h ORDER BY h.relid LOOP
        PERFORM pgtrickle._forget_history_sources(relation);
    END LOOP;
    DELETE FROM pgtrickle.pgt_history;
    FOR id IN SELECT s.pgt_id FROM pgtrickle.pgt_definitions s ORDER BY s.pgt_id DESC LOOP
        PERFORM pgtrickle._unregister(id);
    END LOOP;
    DELETE FROM pgtrickle.pgt_load_generators;
    FOREACH relation IN ARRAY relations LOOP
        PERFORM pgtrickle._drop_table(relation, true);
    END LOOP;
    PERFORM set_config('pgtrickle.maintenance', 'off', true);
    DELETE FROM pgtrickle.pgt_source_gates;
    DELETE FROM pgtrickle.pgt_watermarks;
    DELETE FROM pgtrickle.pgt_watermark_groups;
    DELETE FROM pgtrickle.pgt_refresh_groups;
    DELETE FROM pgtrickle.pgt_refresh_history;
    DELETE FROM pgtrickle.pgt_requests q WHERE q.xid IS DISTINCT FROM pg_current_xact_id_if_assigned();
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_contents() FROM PUBLIC;


-- Drop what users of pg_trickle call and read, its event triggers, and the functions that belong to other roles, with the rights of
-- the caller; and, where that is said, what of users' depends on anything in its schemas. Raises 2BP01.
CREATE OR REPLACE FUNCTION pgtrickle._drop_interface(and_dependents boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    how CONSTANT text := CASE WHEN and_dependents THEN 'CASCADE' ELSE 'RESTRICT' END;
    command text;
BEGIN
    -- One statement for all of a kind, which may depend on one another.
    FOREACH command IN ARRAY
        ARRAY(SELECT format('DROP EVENT TRIGGER %I', e.evtname)
                FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid WHERE p.pronamespace = 'pgtrickle'::regnamespace)
        || ARRAY(SELECT format('DROP VIEW %s %s', string_agg(c.oid::regclass::text, ', '), how)
                   FROM pg_class c
                  WHERE c.relnamespace = 'pgtrickle'::regnamespace AND c.relkind = 'v' AND c.relname <> 'pgt_stream_tables'
                 HAVING count(*) > 0)
        || ARRAY(SELECT format('DROP ROUTINE %s %s', string_agg(p.oid::regprocedure::text, ', '), how)
                   FROM pg_proc p
                  WHERE p.pronamespace = 'pgtrickle'::regnamespace AND NOT starts_with(p.proname, '_')
                     OR p.pronamespace = 'pgtrickle_roles'::regnamespace
                 HAVING count(*) > 0)
    LOOP
        EXECUTE command;
    END LOOP;
    IF and_dependents THEN
        PERFORM pgtrickle._drop_dependents();
    END IF;
    -- What is left is what is to be there (catalog/integrity.py).
    UPDATE pgtrickle.pgt_schema_version v
    SET objects = (SELECT jsonb_agg(o) FROM jsonb_array_elements(v.objects) AS o
                   WHERE CASE o->>'kind' WHEN 'function' THEN to_regprocedure(o->>'name') IS NOT NULL
                                         WHEN 'view' THEN to_regclass(o->>'name') IS NOT NULL
                                         ELSE o->>'kind' <> 'event trigger' END)
    WHERE v.version = 'functions' AND jsonb_typeof(v.objects) = 'array';
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_interface(boolean) FROM PUBLIC;


-- Drop what of users' depends on what stays in the schemas, such as views over a table there.
CREATE OR REPLACE FUNCTION pgtrickle._drop_dependents() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    d record;
    command text;
BEGIN
    -- One by one: others may go with it.
    LOOP
        SELECT o.*, i.type, c.relkind, c.oid AS relid INTO d
          FROM pgtrickle._dependent_objects(pgtrickle._own_schemas()) o
         CROSS JOIN LATERAL pg_identify_object(o.classid, o.objid, o.objsubid) AS i
          LEFT JOIN pg_rewrite r ON o.classid = 'pg_rewrite'::regclass AND r.oid = o.objid
          LEFT JOIN pg_class c ON c.oid = r.ev_class
         WHERE o.classid <> 'pg_trigger'::regclass
         ORDER BY o.classid, o.objid LIMIT 1;
        EXIT WHEN NOT FOUND;
        command := CASE WHEN d.relkind = 'v' THEN format('DROP VIEW %s CASCADE', d.relid::regclass)
                        WHEN d.relkind = 'm' THEN format('DROP MATERIALIZED VIEW %s CASCADE', d.relid::regclass)
                        WHEN d.type IN ('function', 'procedure', 'aggregate')
                            THEN format('DROP ROUTINE %s CASCADE', d.objid::regprocedure) END;
        IF command IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '2BP01',
                MESSAGE = 'cannot drop extension pg_trickle because other objects depend on it',
                DETAIL = format('%s depends on what the server goes on to need.', pg_describe_object(d.classid, d.objid, d.objsubid)),
                HINT = 'Drop it by a statement of its own.';
        END IF;
        EXECUTE command;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_dependents() FROM PUBLIC;
