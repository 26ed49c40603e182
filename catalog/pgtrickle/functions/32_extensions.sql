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
CREATE OR REPLACE FUNCTION pgtrickle._dependents(VARIADIC schemas text[]) RETURNS text[]
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
    SELECT coalesce(array_agg(pg_describe_object(d.classid, d.objid, d.objsubid) ORDER BY d.classid, d.objid), '{}')
      FROM dependents d
      LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
      LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
      LEFT JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
      LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
      LEFT JOIN pg_policy p ON d.classid = 'pg_policy'::regclass AND p.oid = d.objid
      LEFT JOIN pg_class c ON c.oid = coalesce(t.tgrelid, r.ev_class, a.adrelid, k.conrelid, p.polrelid,
                                               CASE WHEN d.classid = 'pg_class'::regclass THEN d.objid END)
     WHERE coalesce(c.relnamespace::regnamespace::text, (pg_identify_object(d.classid, d.objid, 0)).schema, '') <> ALL (SELECT quote_ident(nspname) FROM own)
$$;
