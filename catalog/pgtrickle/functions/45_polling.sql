-- Foreign tables that are polled. Each stream table over one has a copy of its own, an ordinary captured table that its
-- plan reads in the foreign table's place: so whoever may not read the foreign table has no part in anybody's copy. A poll
-- changes the copy into what the foreign table is now, with the rights of the stream table's owner.


-- Make an empty copy of a foreign table for the stream tables of a role: of the columns that the role may read. Returns
-- {"schema", "name" (of the foreign table), "copy" (name of the table in pgtrickle_changes), "columns", "relid" (of the
-- foreign table)}. _note_polls must follow in the same transaction. Raises 42501.
CREATE OR REPLACE FUNCTION pgtrickle._create_copy(source oid, owner oid) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    title text := 'polled_' || source || '_' || substr(replace(gen_random_uuid()::text, '-', ''), 1, 12);
    columns text[];
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = source AND c.relkind = 'f') THEN
        RAISE EXCEPTION USING ERRCODE = '42809', MESSAGE = format('relation with OID %s is no foreign table', source);
    END IF;
    PERFORM pgtrickle._check_owner(owner, pgtrickle._qualified(source));
    PERFORM pgtrickle._check_readable(owner, source, '{}');
    columns := ARRAY(
        SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
          AND (has_table_privilege(owner, source, 'SELECT') OR has_column_privilege(owner, source, a.attnum, 'SELECT'))
        ORDER BY a.attnum);
    EXECUTE format('CREATE TABLE pgtrickle_changes.%I (%s)', title, (
        SELECT string_agg(format('%I %s%s', a.attname, format_type(a.atttypid, a.atttypmod),
                                 CASE WHEN a.attcollation <> 0 THEN format(' COLLATE %I.%I', n.nspname, c.collname) END),
                          ', ' ORDER BY a.attnum)
        FROM pg_attribute a
        LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
        WHERE a.attrelid = source AND a.attnum > 0 AND a.attname = ANY (columns) AND NOT a.attisdropped));
    IF EXISTS (SELECT FROM pg_attribute a
               JOIN pg_attribute b ON b.attrelid = to_regclass('pgtrickle_changes.' || title) AND b.attname = a.attname
               WHERE a.attrelid = source AND a.attnum > 0
                 AND (a.atttypid, a.atttypmod, a.attcollation) <> (b.atttypid, b.atttypmod, b.attcollation)) THEN
        RAISE EXCEPTION USING ERRCODE = '40001',
            MESSAGE = format('types of columns of "%s" were renamed meanwhile', pgtrickle._qualified(source));
    END IF;
    PERFORM pgtrickle._keep_out_of_statistics(to_regclass('pgtrickle_changes.' || title)::oid);
    EXECUTE format('GRANT SELECT, INSERT, DELETE ON pgtrickle_changes.%I TO %I', title,
                   (SELECT r.rolname FROM pg_roles r WHERE r.oid = owner));
    RETURN (SELECT jsonb_build_object('schema', n.nspname, 'name', c.relname, 'copy', title, 'columns', to_jsonb(columns),
                                      'relid', c.oid::bigint, 'copy_relid', to_regclass('pgtrickle_changes.' || title)::oid::bigint)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = source);
END $$;


-- Note what _create_copy returned as the polls of a stream table, and the foreign tables as what it depends on.
CREATE OR REPLACE FUNCTION pgtrickle._note_polls(pgt_id bigint, copies jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := pgtrickle._owner_of(pgt_id);
    copied record;
BEGIN
    -- Nothing but two names is believed: a role must not make somebody else's copy its own.
    FOR copied IN
        SELECT f.oid, n.nspname, f.relname, c.relname AS copy_name,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns
        FROM jsonb_array_elements(copies) AS e
        JOIN pg_class f ON f.oid = (e->>'relid')::oid AND f.relkind = 'f'
        JOIN pg_namespace n ON n.oid = f.relnamespace
        JOIN pg_class c ON c.relnamespace = 'pgtrickle_changes'::regnamespace AND c.relname = e->>'copy'
                       AND starts_with(c.relname, 'polled_' || f.oid || '_')
    LOOP
        PERFORM pgtrickle._check_readable(owner, copied.oid, copied.columns);
        INSERT INTO pgtrickle.pgt_polls (pgt_id, foreign_schema, foreign_name, copy_name, copied_columns, fingerprint)
        VALUES (_note_polls.pgt_id, copied.nspname, copied.relname, copied.copy_name, copied.columns,
                pgtrickle._fingerprint(copied.oid, copied.columns));
        PERFORM pgtrickle._note_dependency(_note_polls.pgt_id, copied.oid, copied.columns, NULL);
    END LOOP;
END $$;


-- Forget the polls of a stream table that gets another query. Its copies go when the transaction has committed.
CREATE OR REPLACE FUNCTION pgtrickle._forget_polls(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    DELETE FROM pgtrickle.pgt_polls p WHERE p.pgt_id = _forget_polls.pgt_id;
END $$;


-- The types of columns of a foreign table: an array of {"type", "plain" (below a domain, without modifier: an assignment
-- obeys a modifier, a cast cuts off by it), "array"}.
CREATE OR REPLACE FUNCTION pgtrickle._copied_types(relid oid, columns text[]) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('type', format_type(a.atttypid, a.atttypmod),
                                                 'plain', pgtrickle._plain_type(a.atttypid), 'array', t.typcategory = 'A')
                              ORDER BY u.place), '[]')
    FROM unnest(columns) WITH ORDINALITY AS u(name, place)
    JOIN pg_attribute a ON a.attrelid = relid AND a.attname = u.name
    JOIN pg_type t ON t.oid = a.atttypid
$$;


-- The type below a domain, without modifier, as SQL.
CREATE OR REPLACE FUNCTION pgtrickle._plain_type(typid oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base oid;
BEGIN
    SELECT t.typbasetype INTO base FROM pg_type t WHERE t.oid = typid AND t.typtype = 'd';
    RETURN CASE WHEN base IS NULL THEN format_type(typid, -1) ELSE pgtrickle._plain_type(base) END;
END $$;


-- Remember what the files of a lake table were when they were read; NULL if that is to be forgotten.
CREATE OR REPLACE FUNCTION pgtrickle._set_poll_files(pgt_id bigint, schema text, name text, files text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    UPDATE pgtrickle.pgt_polls p SET files = _set_poll_files.files
    WHERE p.pgt_id = _set_poll_files.pgt_id AND p.foreign_schema = schema AND p.foreign_name = name;
END $$;


-- Make the tables through which the files of a lake table come into its copy: pgtrickle_staging."<number>_texts", with every
-- column as text and two more, __pgt_file and __pgt_row, and "<number>_values", like the copy. Returns the number. They are to be
-- dropped in the same transaction (_end_lake_poll); those that are left go as those of dead servers do. They are not temporary
-- ones, or else the transaction could not be prepared for a commit in two phases. Raises 42P01.
CREATE OR REPLACE FUNCTION pgtrickle._begin_lake_poll(pgt_id bigint, copy text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    owner name := (SELECT r.rolname FROM pg_roles r WHERE r.oid = pgtrickle._owner_of(pgt_id));
    columns text[] := (SELECT p.copied_columns FROM pgtrickle.pgt_polls p
                       WHERE p.pgt_id = _begin_lake_poll.pgt_id AND p.copy_name = copy);
    number int := 1 + abs(hashtext(gen_random_uuid()::text)::bigint) % 999999999;
    texts text := format('pgtrickle_staging.%I', number || '_texts');
    values text := format('pgtrickle_staging.%I', number || '_values');
BEGIN
    IF columns IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('stream table %s has no copy "%s"', pgt_id, copy);
    END IF;
    EXECUTE format('CREATE UNLOGGED TABLE %s (%s)', texts, (
        SELECT string_agg(format('%I text', c), ', ') FROM unnest(columns || '{__pgt_file, __pgt_row}'::text[]) AS c));
    EXECUTE format('CREATE UNLOGGED TABLE %s (LIKE pgtrickle_changes.%I)', values, copy);
    PERFORM pgtrickle._keep_out_of_statistics(to_regclass(values)::oid);
    EXECUTE format('GRANT SELECT, INSERT ON %s, %s TO %I', texts, values, owner);
    RETURN number;
END $$;


-- Drop the tables of _begin_lake_poll, of a role that may put rows into them.
CREATE OR REPLACE FUNCTION pgtrickle._end_lake_poll(number int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    staging text;
BEGIN
    PERFORM pgtrickle._check_top_level();
    FOR staging IN
        SELECT format('pgtrickle_staging.%I', c.relname) FROM pg_class c
        WHERE c.relnamespace = 'pgtrickle_staging'::regnamespace AND c.relkind = 'r'
          AND c.relname IN (number || '_texts', number || '_values')
          AND has_table_privilege(pgtrickle._caller(), c.oid, 'INSERT')
    LOOP
        EXECUTE format('DROP TABLE %s', staging);
    END LOOP;
END $$;


-- What is to be polled for a stream table that is locked: an array of {"schema", "name", "relid", "copy", "columns",
-- "files", "server_options", "table_options", "wrapper"}. Two transactions that poll for one stream table do so one after
-- the other, or the second one fails (40001). Raises 42P01 if a foreign table is gone, 0A000 if it has other columns, 42501
-- if the owner may not read it.
CREATE OR REPLACE FUNCTION pgtrickle._polls(pgt_id bigint) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := pgtrickle._owner_of(pgt_id);
    p record;
    found jsonb := '[]';
BEGIN
    UPDATE pgtrickle.pgt_polls l SET polled_at = clock_timestamp() WHERE l.pgt_id = _polls.pgt_id;
    FOR p IN
        SELECT l.*, c.oid AS relid, s.srvoptions, t.ftoptions, w.fdwname, c.relkind
        FROM pgtrickle.pgt_polls l
        LEFT JOIN pg_namespace n ON n.nspname = l.foreign_schema
        LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = l.foreign_name AND c.relkind = 'f'
        LEFT JOIN pg_foreign_table t ON t.ftrelid = c.oid
        LEFT JOIN pg_foreign_server s ON s.oid = t.ftserver
        LEFT JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw
        WHERE l.pgt_id = _polls.pgt_id
        ORDER BY l.foreign_schema, l.foreign_name
    LOOP
        IF p.relid IS NULL THEN
            PERFORM pgtrickle._raise('42P01', format('foreign table "%s.%s" does not exist', p.foreign_schema, p.foreign_name),
                                     NULL, 'Drop the stream table, or create the foreign table again.');
        END IF;
        PERFORM pgtrickle._check_readable(owner, p.relid, p.copied_columns);
        IF p.fingerprint <> pgtrickle._fingerprint(p.relid, p.copied_columns) THEN
            PERFORM pgtrickle._raise('0A000', format('the columns of foreign table %s have changed', pgtrickle._qualified(p.relid)),
                                     NULL, 'Drop the stream table and create it again.');
        END IF;
        IF NOT has_table_privilege(owner, 'pgtrickle_changes.' || quote_ident(p.copy_name), 'SELECT, INSERT, DELETE') THEN
            EXECUTE format('GRANT SELECT, INSERT, DELETE ON pgtrickle_changes.%I TO %I', p.copy_name,
                           (SELECT r.rolname FROM pg_roles r WHERE r.oid = owner));
        END IF;
        found := found || jsonb_build_object(
            'schema', p.foreign_schema, 'name', p.foreign_name, 'relid', p.relid::bigint, 'copy', p.copy_name,
            'columns', to_jsonb(p.copied_columns), 'files', p.files,
            'types', pgtrickle._copied_types(p.relid, p.copied_columns), 'wrapper', p.fdwname,
            'server_options', (SELECT coalesce(jsonb_object_agg(o.option_name, o.option_value), '{}') FROM pg_options_to_table(p.srvoptions) o),
            'table_options', (SELECT coalesce(jsonb_object_agg(o.option_name, o.option_value), '{}') FROM pg_options_to_table(p.ftoptions) o));
    END LOOP;
    RETURN found;
END $$;


-- Run a poll's statement with the rights of the calling role. A foreign server that cannot be reached is not this
-- connection's failure: class 08 becomes HV00N.
CREATE OR REPLACE FUNCTION pgtrickle._poll(statement text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    message text;
    detail text;
BEGIN
    RETURN pgtrickle._run(statement, '{}');
EXCEPTION WHEN connection_exception THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
    RAISE EXCEPTION USING ERRCODE = 'HV00N', MESSAGE = message, DETAIL = coalesce(detail, '');
END $$;


-- The foreign table that a copy is of; NULL for other tables, and where it is gone.
CREATE OR REPLACE FUNCTION pgtrickle._copied_from(copy oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.oid
    FROM pg_class r
    JOIN pgtrickle.pgt_polls p ON p.copy_name = r.relname
    JOIN pg_namespace n ON n.nspname = p.foreign_schema
    JOIN pg_class f ON f.relnamespace = n.oid AND f.relname = p.foreign_name AND f.relkind = 'f'
    WHERE r.oid = copy AND r.relnamespace = 'pgtrickle_changes'::regnamespace
    LIMIT 1
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._copied_from(oid) FROM PUBLIC;


-- The copies that belong to no stream table.
CREATE OR REPLACE FUNCTION pgtrickle._lost_copies() RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.oid FROM pg_class r
    WHERE r.relnamespace = 'pgtrickle_changes'::regnamespace AND r.relkind = 'r' AND r.relname ~ '^polled_'
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_polls p WHERE p.copy_name = r.relname)
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = r.oid)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._lost_copies() FROM PUBLIC;


-- Drop them.
CREATE OR REPLACE FUNCTION pgtrickle._drop_copies() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    copy oid;
BEGIN
    FOR copy IN SELECT pgtrickle._lost_copies() LOOP
        PERFORM pgtrickle._drop_capture(copy);
        EXECUTE format('DROP TABLE IF EXISTS %s', pgtrickle._qualified(copy));
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_copies() FROM PUBLIC;


-- Take copies from roles that own the stream table no more, or may not read the foreign table. (_polls gives them back.)
CREATE OR REPLACE FUNCTION pgtrickle._revoke_copies() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
BEGIN
    FOR c IN
        SELECT DISTINCT p.copy_name, a.rolname
        FROM pgtrickle.pgt_polls p
        JOIN pg_class r ON r.relnamespace = 'pgtrickle_changes'::regnamespace AND r.relname = p.copy_name
        CROSS JOIN aclexplode(r.relacl) AS e
        JOIN pg_roles a ON a.oid = e.grantee AND a.oid <> r.relowner
        LEFT JOIN pg_namespace n ON n.nspname = p.foreign_schema
        LEFT JOIN pg_class f ON f.relnamespace = n.oid AND f.relname = p.foreign_name AND f.relkind = 'f'
        WHERE pgtrickle._may_lock(f.oid)
          AND (f.oid IS NULL OR pgtrickle._read_obstacle(a.oid, f.oid, p.copied_columns) IS NOT NULL
               OR NOT EXISTS (SELECT FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = p.pgt_id AND s.pgt_owner = a.oid))
    LOOP
        PERFORM set_config('pgtrickle.revoking', 'on', true);
        EXECUTE format('REVOKE ALL ON pgtrickle_changes.%I FROM %I', c.copy_name, c.rolname);
        PERFORM set_config('pgtrickle.revoking', '', true);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._revoke_copies() FROM PUBLIC;
