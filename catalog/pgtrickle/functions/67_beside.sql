-- Contents that a stream table is to have, computed while it is read. They go into columns that were added ahead, through a
-- view in which these have their names to be. In the end they get these names.


-- Note columns that are about to be added to a stream table, in the same transaction.
CREATE OR REPLACE FUNCTION pgtrickle._note_columns_ahead(pgt_id bigint, columns text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    INSERT INTO pgtrickle.pgt_columns_ahead SELECT _note_columns_ahead.pgt_id, c FROM unnest(columns) AS c;
END $$;


-- Whether the transaction has locked a stream table's table itself already: then nobody else can add a column. Or something
-- that would stand in the way of a change of these columns, such as a view, depends on one of them.
CREATE OR REPLACE FUNCTION pgtrickle._columns_held(relid oid, columns text[]) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation = relid)
        OR EXISTS (SELECT FROM pg_attribute a JOIN pg_depend d ON d.refobjsubid = a.attnum
                   WHERE a.attrelid = relid AND a.attname = ANY (columns) AND a.attnum > 0
                     AND d.refclassid = 'pg_class'::regclass AND d.refobjid = relid AND d.deptype = 'n')
$$;


-- A view of a stream table's table with these of its columns ([[column, name in the view], …]), to be written through with its
-- owner's rights. Returns its name, qualified.
CREATE OR REPLACE FUNCTION pgtrickle._view_beside(pgt_id bigint, columns jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    owner oid := pgtrickle._owner_of(pgt_id);
    storage text := (SELECT pgtrickle._qualified(s.pgt_relid) FROM pgtrickle.pgt_definitions s
                     WHERE s.pgt_id = _view_beside.pgt_id);
    title text := format('pgtrickle_staging.%I', 'beside_' || pgt_id);
BEGIN
    PERFORM pgtrickle._check_top_level();
    EXECUTE format('DROP VIEW IF EXISTS %s', title);
    EXECUTE format('CREATE VIEW %s WITH (security_invoker = true) AS SELECT %s FROM %s', title, (
        SELECT string_agg(format('%I AS %I', c.pair->>0, c.pair->>1), ', ' ORDER BY c.place)
        FROM jsonb_array_elements(columns) WITH ORDINALITY AS c(pair, place)), storage);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', title,
                   (SELECT r.rolname FROM pg_roles r WHERE r.oid = owner));
    RETURN title;
END $$;


-- Drop that view.
CREATE OR REPLACE FUNCTION pgtrickle._drop_beside(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    PERFORM pgtrickle._check_top_level();
    EXECUTE format('DROP VIEW IF EXISTS pgtrickle_staging.%I', 'beside_' || pgt_id);
    DELETE FROM pgtrickle.pgt_columns_ahead a WHERE a.pgt_id = _drop_beside.pgt_id;
END $$;


-- Drop the columns that were added ahead by transactions which have failed since. Whoever holds a stream table's row may
-- still be filling them.
CREATE OR REPLACE FUNCTION pgtrickle._drop_columns_ahead() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    st record;
    title name;
BEGIN
    FOR st IN
        SELECT a.pgt_id, s.pgt_relid, array_agg(a.column_name) AS columns
        FROM pgtrickle.pgt_columns_ahead a LEFT JOIN pgtrickle.pgt_definitions s ON s.pgt_id = a.pgt_id
        GROUP BY a.pgt_id, s.pgt_relid
    LOOP
        BEGIN
            PERFORM FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = st.pgt_id FOR UPDATE NOWAIT;
            PERFORM set_config('pgtrickle.maintenance', 'on', true);
            FOREACH title IN ARRAY CASE WHEN pgtrickle._qualified(st.pgt_relid) IS NULL THEN '{}' ELSE st.columns END LOOP
                EXECUTE format('ALTER TABLE %s DROP COLUMN IF EXISTS %I', pgtrickle._qualified(st.pgt_relid), title);
            END LOOP;
            PERFORM set_config('pgtrickle.maintenance', 'off', true);
            DELETE FROM pgtrickle.pgt_columns_ahead a WHERE a.pgt_id = st.pgt_id AND a.column_name = ANY (st.columns);
        EXCEPTION WHEN lock_not_available OR insufficient_privilege THEN
            NULL;
        END;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_columns_ahead() FROM PUBLIC;
