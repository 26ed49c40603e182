-- What a source looks like: its columns, its parts, whether its changes can be captured.


-- A relation and all its partitions or inheritance children, to any depth. Those that DETACH … CONCURRENTLY is just taking away are
-- none any more: no new snapshot reads them.
CREATE OR REPLACE FUNCTION pgtrickle._relations(source oid) RETURNS oid[]
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (WITH RECURSIVE tree(relid) AS (
        SELECT source
        UNION
        SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid AND NOT i.inhdetachpending
    )
    SELECT array_agg(relid ORDER BY relid) FROM tree);
END $$;


-- Whether a boolean option of a view is on, such as security_invoker, by its reloptions. They are kept as they were written,
-- and PostgreSQL takes whatever it takes for a boolean: "on", "TRUE", "1", "y", "tr".
CREATE OR REPLACE FUNCTION pgtrickle._view_option(reloptions text[], option text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT split_part(o, '=', 2)::boolean FROM unnest(reloptions) AS o WHERE split_part(o, '=', 1) = option), false)
$$;


-- TABLE, STREAM_TABLE, VIEW, MATVIEW or FOREIGN_TABLE; NULL for anything else.
CREATE OR REPLACE FUNCTION pgtrickle._source_type(source oid) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT CASE WHEN c.relkind IN ('r', 'p') AND s.pgt_id IS NOT NULL THEN 'STREAM_TABLE'
                WHEN c.relkind IN ('r', 'p') THEN 'TABLE'
                WHEN c.relkind = 'v' AND c.relnamespace = 'pg_catalog'::regnamespace THEN 'TABLE'  -- nothing to look into
                WHEN c.relkind = 'v' THEN 'VIEW'
                WHEN c.relkind = 'm' THEN 'MATVIEW'
                WHEN c.relkind = 'f' THEN 'FOREIGN_TABLE' END
    FROM pg_class c LEFT JOIN pgtrickle.pgt_definitions s ON s.pgt_relid = c.oid
    WHERE c.oid = source);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._source_type(oid) FROM PUBLIC;


-- Whether rows of any of some relations come by a subscription. PostgreSQL applies them without statement triggers.
CREATE OR REPLACE FUNCTION pgtrickle._is_replicated_into(relations oid[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_subscription_rel r WHERE r.srrelid = ANY (relations))
$$;


-- Why changes of a relation cannot be captured, or NULL if they can.
CREATE OR REPLACE FUNCTION pgtrickle._capture_obstacle(source oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r pg_class;
    title text := pgtrickle._qualified(source);
    other oid;
BEGIN
    SELECT * INTO r FROM pg_class WHERE oid = source;
    IF NOT FOUND THEN
        RETURN format('relation with OID %s does not exist', source);
    ELSIF r.relnamespace = 'pg_catalog'::regnamespace THEN
        RETURN format('"%s" is a system catalog', title);
    ELSIF r.relkind = 'm' THEN
        RETURN format('"%s" is a materialized view, which changes only when it is refreshed', title);
    ELSIF r.relkind = 'f' THEN
        RETURN format('"%s" is a foreign table, whose changes happen elsewhere', title);
    ELSIF r.relkind = 'v' THEN
        RETURN format('"%s" is a view', title);
    ELSIF r.relkind NOT IN ('r', 'p') THEN
        RETURN format('"%s" is not a table', title);
    ELSIF r.relpersistence = 't' THEN
        RETURN format('"%s" is a temporary table', title);
    ELSIF r.oid < 16384 OR r.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) THEN
        RETURN format('"%s" is a system catalog', title);
    ELSIF r.relnamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_changes'::regnamespace) THEN
        IF NOT (r.relnamespace = 'pgtrickle_changes'::regnamespace AND r.relname ~ '^polled_')
           AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = source) THEN
            RETURN format('"%s" belongs to the catalog of stream tables', title);
        END IF;
    END IF;
    IF pgtrickle._is_replicated_into(pgtrickle._relations(source)) THEN
        RETURN format('rows of "%s" come by logical replication, which fires no statement triggers', title);
    END IF;
    SELECT inhparent INTO other FROM pg_inherits WHERE inhrelid = source;
    IF FOUND THEN
        -- Changes made through the parent fire the parent's statement triggers alone.
        RETURN format('"%s" is a partition or child of "%s", through which it can be changed unseen',
                      title, pgtrickle._qualified(other));
    END IF;
    IF NOT r.relhassubclass THEN
        RETURN NULL;  -- What follows is about its partitions and children.
    END IF;
    SELECT c.oid INTO other FROM pg_class c
    WHERE c.oid = ANY (pgtrickle._relations(source)) AND c.relkind NOT IN ('r', 'p');
    IF FOUND THEN
        RETURN format('"%s" has the foreign partition "%s"', title, pgtrickle._qualified(other));
    END IF;
    SELECT h.inhparent INTO other FROM pg_inherits h
    WHERE h.inhrelid = ANY (pgtrickle._relations(source))
      AND NOT h.inhparent = ANY (pgtrickle._relations(source));
    IF FOUND THEN
        RETURN format('a child of "%s" is also a child of "%s", through which it can be changed unseen',
                      title, pgtrickle._qualified(other));
    END IF;
    -- Rows that come through the parent do not say which child's expression makes them.
    SELECT child.attrelid INTO other
    FROM pg_attribute a
    JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    JOIN pg_attribute child ON child.attrelid = ANY (pgtrickle._relations(source)) AND child.attname = a.attname
    JOIN pg_attrdef cd ON cd.adrelid = child.attrelid AND cd.adnum = child.attnum
    WHERE a.attrelid = source AND a.attgenerated = 'v'
      AND pg_get_expr(cd.adbin, cd.adrelid) <> pg_get_expr(d.adbin, d.adrelid);
    IF FOUND THEN
        RETURN format('"%s" generates a virtual column otherwise than "%s"', pgtrickle._qualified(other), title);
    END IF;
    RETURN NULL;
END $$;


-- The type below a domain. Buffers hold base types: a domain's NOT NULL must not refuse a marker row.
CREATE OR REPLACE FUNCTION pgtrickle._below_domains(INOUT typid oid, INOUT typmod int)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    below record;
BEGIN
    LOOP
        SELECT t.typbasetype, t.typtypmod INTO below FROM pg_type t WHERE t.oid = typid AND t.typtype = 'd';
        EXIT WHEN NOT FOUND;
        typid := below.typbasetype;
        typmod := below.typtypmod;
    END LOOP;
END $$;

-- The same as SQL.
CREATE OR REPLACE FUNCTION pgtrickle._base_type(typid oid, typmod int) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format_type(b.typid, b.typmod) FROM pgtrickle._below_domains(typid, typmod) AS b
$$;


-- Have ANALYZE pass over columns of range types of users: it calls a function of such a type (its subtype_diff) with the rights
-- of the owner of the table. For tables of the server's that hold values of users' tables.
CREATE OR REPLACE FUNCTION pgtrickle._keep_out_of_statistics(relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ignored name;
BEGIN
    FOR ignored IN
        SELECT a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND t.oid >= 16384
          AND t.typanalyze = ANY ('{range_typanalyze, multirange_typanalyze}'::regproc[]) AND a.attstattarget IS DISTINCT FROM 0
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', pgtrickle._qualified(relation), ignored);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._keep_out_of_statistics(oid) FROM PUBLIC;


-- Whether row-level security of a table is on, and forced on its owner: 'off', 'off, forced', 'on' or 'forced'.
CREATE OR REPLACE FUNCTION pgtrickle._rls_setting(source oid) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT CASE WHEN c.relrowsecurity AND c.relforcerowsecurity THEN 'forced' WHEN c.relrowsecurity THEN 'on'
                WHEN c.relforcerowsecurity THEN 'off, forced' ELSE 'off' END
    FROM pg_class c WHERE c.oid = source);
END $$;


-- Whether the uniqueness of an index holds at the end of each statement. A constraint that can be deferred need not hold before
-- its transaction ends; nor can that of a partitioned table, if that of one partition can, which PostgreSQL lets be attached. An
-- index that is not valid may be missing on partitions (ALTER TABLE ONLY … ADD PRIMARY KEY).
CREATE OR REPLACE FUNCTION pgtrickle._holds(index oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT i.indisunique AND i.indisvalid AND i.indimmediate AND NOT i.indisexclusion AND i.indpred IS NULL AND i.indexprs IS NULL
           AND (c.relkind <> 'I' OR NOT EXISTS (
                SELECT FROM pg_partition_tree(index) p JOIN pg_index t ON t.indexrelid = p.relid
                WHERE NOT (t.indisvalid AND t.indimmediate)))
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indexrelid = index);
END $$;


-- What a query relies on in a source, for people to read: {"schema", "name", "relkind", "rls",
-- "columns": {name: "type collation generation"}}, for the given columns.
CREATE OR REPLACE FUNCTION pgtrickle._column_snapshot(source oid, columns text[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT jsonb_build_object(
        'schema', n.nspname, 'name', c.relname, 'relkind', c.relkind, 'rls', pgtrickle._rls_setting(c.oid),
        'columns', (
            SELECT coalesce(jsonb_object_agg(a.attname, concat_ws(' ',
                       format_type(a.atttypid, a.atttypmod), nullif(a.attcollation, 0)::text,
                       CASE WHEN a.attgenerated <> ''
                            THEN a.attgenerated::text || md5(pg_get_expr(d.adbin, d.adrelid)) END)), '{}')
            FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (columns)))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = source);
END $$;


-- By which names a query knows a source, as long as its text stays what it is: {"schema", "name", "columns": [[number, name, type]],
-- "attributes" (how many columns there have ever been)}, all columns in their order.
CREATE OR REPLACE FUNCTION pgtrickle._known_names(source oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_object('schema', n.nspname, 'name', c.relname, 'attributes', c.relnatts, 'columns', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(a.attnum, a.attname, concat_ws(' ', a.atttypid, a.atttypmod, a.attcollation))
                             ORDER BY a.attnum), '[]')
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = source);
END $$;


-- Whether columns of a source that were known (_known_names) are renamed, retyped or gone. (An earlier version knew no types.)
CREATE OR REPLACE FUNCTION pgtrickle._columns_renamed(source oid, known jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jsonb_array_elements(known->'columns') AS k(found)
        LEFT JOIN pg_attribute a ON a.attrelid = source AND a.attnum = (k.found->>0)::int AND NOT a.attisdropped
        WHERE a.attname IS DISTINCT FROM k.found->>1
           OR concat_ws(' ', a.atttypid, a.atttypmod, a.attcollation) <> k.found->>2);
END $$;


-- The labels of enums and the attributes of composite types that some types are made of.
CREATE OR REPLACE FUNCTION pgtrickle._type_parts(types oid[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reached(typid) AS (
        SELECT unnest(types)
        UNION
        SELECT m.typid
        FROM reached r JOIN pg_type t ON t.oid = r.typid,
             LATERAL (SELECT t.typelem UNION ALL SELECT t.typbasetype UNION ALL
                      SELECT f.atttypid FROM pg_attribute f
                      WHERE f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped) AS m(typid)
        WHERE m.typid <> 0)
    SELECT concat(
        (SELECT string_agg(format(' %s %L', e.oid, e.enumlabel), ',' ORDER BY e.oid)
         FROM reached r JOIN pg_enum e ON e.enumtypid = r.typid),
        (SELECT string_agg(format(' %s %s %s %I', f.attrelid, f.attnum, f.atttypid, f.attname), ',' ORDER BY f.attrelid, f.attnum)
         FROM reached r JOIN pg_type t ON t.oid = r.typid AND t.typtype = 'c'
         JOIN pg_attribute f ON f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped))
$$;


-- SHA-256 of what the columns of a source and its primary key, or the text of a view and whose rights it has, are now. It
-- differs as soon as a column was dropped, also if there is another of its name, renamed, retyped, or is generated
-- otherwise, an enum has other labels or a composite type other attributes. (PL/pgSQL keeps its plans from call to call:
-- each refresh asks this.)
CREATE OR REPLACE FUNCTION pgtrickle._fingerprint(source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    description text;
    generated boolean;
    labelled boolean;
    kind "char";
    key text;
BEGIN
    SELECT string_agg(concat_ws(' ', a.attname, a.attnum, a.atttypid, a.atttypmod, a.attcollation, a.attgenerated), ',' ORDER BY a.attname),
           bool_or(a.attgenerated <> ''), bool_or(a.atttypid >= 16384), (SELECT c.relkind FROM pg_class c WHERE c.oid = source),
           (SELECT i.indkey::text FROM pg_index i
            WHERE i.indrelid = source AND i.indisprimary AND pgtrickle._holds(i.indexrelid))
    INTO description, generated, labelled, kind, key
    FROM pg_attribute a
    WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attnum > 0 AND NOT a.attisdropped;
    IF generated THEN
        description := description || (
            SELECT string_agg(pg_get_expr(d.adbin, d.adrelid), ',' ORDER BY a.attname)
            FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attgenerated <> '');
    END IF;
    -- Rows are known by what their values look like, which changes with the labels of enums.
    IF labelled THEN
        description := concat(description, pgtrickle._type_parts(ARRAY(
            SELECT a.atttypid FROM pg_attribute a
            WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attnum > 0 AND NOT a.attisdropped)));
    END IF;
    description := concat(description, ' key ', key);
    IF kind IN ('v', 'm') THEN
        description := concat(description, pg_get_viewdef(source),
                              (SELECT concat_ws(' ', c.relowner, c.reloptions) FROM pg_class c WHERE c.oid = source));
    END IF;
    RETURN encode(sha256(convert_to(coalesce(description, ''), 'UTF8')), 'hex');
END $$;


-- What a subscription reads: its statements know a source by its name, too, which may go to another relation.
CREATE OR REPLACE FUNCTION pgtrickle._reading(source oid, columns text[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._qualified(source) || ' ' || pgtrickle._fingerprint(source, columns)
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._reading(oid, text[]) FROM PUBLIC;


-- Why a role may not read some columns of a source as its defining query must, or NULL if it may.
CREATE OR REPLACE FUNCTION pgtrickle._read_obstacle(owner oid, source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing text;
    r record;
BEGIN
    SELECT c.relrowsecurity, c.relforcerowsecurity, c.relowner, c.relnamespace, c.relkind INTO r
    FROM pg_class c WHERE c.oid = source;
    IF NOT FOUND THEN
        RETURN format('relation with OID %s does not exist', source);
    ELSIF r.relkind = 'v' THEN
        RETURN NULL;  -- PostgreSQL checks it, and the rights of its owner below it, when the query runs.
    ELSIF NOT has_schema_privilege(owner, r.relnamespace, 'USAGE') THEN
        RETURN format('permission denied for schema %I', r.relnamespace::regnamespace);
    ELSIF NOT has_table_privilege(owner, source, 'SELECT') THEN
        SELECT string_agg(quote_ident(name), ', ') INTO missing
        FROM unnest(columns) AS name
        WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = source AND a.attname = name AND NOT a.attisdropped)
          AND NOT has_column_privilege(owner, source, name, 'SELECT');
        IF missing IS NOT NULL THEN
            RETURN format('permission denied for column %s of table %s', missing, pgtrickle._qualified(source));
        ELSIF cardinality(columns) = 0 AND NOT has_any_column_privilege(owner, source, 'SELECT') THEN
            RETURN format('permission denied for table %s', pgtrickle._qualified(source));
        END IF;
    END IF;
    IF r.relrowsecurity
       AND NOT EXISTS (SELECT FROM pg_roles a WHERE a.oid = owner AND (a.rolsuper OR a.rolbypassrls))
       AND NOT (pg_has_role(owner, r.relowner, 'USAGE') AND NOT r.relforcerowsecurity) THEN
        RETURN format('row-level security of table %s applies to role %I', pgtrickle._qualified(source),
                      (SELECT a.rolname FROM pg_roles a WHERE a.oid = owner));
    END IF;
    RETURN NULL;
END $$;


-- Whether values of a type can be hashed and grouped on, and whether equal values are always the same value
-- (not numeric: 1.0 = 1.00; not float: 0 = -0; not interval, jsonb, citext; text only where the collation is
-- deterministic; bpchar only where all values are padded to one length, that of the type modifier).
DROP FUNCTION IF EXISTS pgtrickle._type_traits(oid, oid);  -- its earlier signature
CREATE OR REPLACE FUNCTION pgtrickle._type_traits(typid oid, modifier integer, collation_id oid, OUT hashable boolean,
                                                  OUT faithful boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t pg_type;
BEGIN
    LOOP
        SELECT * INTO t FROM pg_type WHERE oid = typid;
        EXIT WHEN t.typtype <> 'd';
        typid := t.typbasetype;
        modifier := t.typtypmod;
    END LOOP;
    IF t.typcategory = 'A' AND t.typelem <> 0 THEN
        SELECT e.hashable, e.faithful INTO hashable, faithful
        FROM pgtrickle._type_traits(t.typelem, modifier, collation_id) e;
        RETURN;
    END IF;
    -- A type that can be hashed but not sorted (xid, cid, aclitem) is no key of a window.
    hashable := t.typtype IN ('e', 'r', 'm') OR t.oid = ANY (ARRAY['varchar', 'cidr', 'regclass', 'regtype']::regtype[])
        OR 2 = (SELECT count(DISTINCT m.amname) FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
                WHERE m.amname IN ('hash', 'btree') AND o.opcdefault AND o.opcintype = t.oid);
    faithful := t.typtype = 'e' OR t.oid = ANY (ARRAY['int2', 'int4', 'int8', 'oid', 'bool', 'date', 'time', 'timestamp',
                    'timestamptz', 'uuid', 'bytea', '"char"', 'money', 'macaddr', 'macaddr8', 'pg_lsn', 'xid8']::regtype[])
        OR (t.oid = ANY (ARRAY['text', 'varchar', 'name']::regtype[]) OR t.oid = 'bpchar'::regtype AND modifier > 0)
           AND coalesce((SELECT c.collisdeterministic FROM pg_collation c WHERE c.oid = collation_id), true);
END $$;


-- What values of a type are outside of PostgreSQL, where the type's name does not say it: the base type of a domain, "enum"
-- of an enum. NULL of other types.
CREATE OR REPLACE FUNCTION pgtrickle._carrier(typid oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE based(typid, typtype, declared) AS (
        SELECT t.oid, t.typtype, NULL::text FROM pg_type t WHERE t.oid = $1
        UNION ALL
        SELECT b.oid, b.typtype, format_type(t.typbasetype, t.typtypmod)
        FROM based d JOIN pg_type t ON t.oid = d.typid JOIN pg_type b ON b.oid = t.typbasetype
        WHERE d.typtype = 'd')
    SELECT CASE WHEN typtype = 'e' THEN 'enum' ELSE declared END FROM based WHERE typtype <> 'd'
$$;


-- The columns of a relation: [{name, type, not_null, hashable, faithful, generated, carrier}]. (The traits of the commonest
-- types are known without _type_traits: that is most of what it costs to look at a wide table.)
CREATE OR REPLACE FUNCTION pgtrickle._columns(relid oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    exact CONSTANT oid[] := ARRAY['int2', 'int4', 'int8', 'oid', 'bool', 'date', 'time', 'timestamp', 'timestamptz', 'uuid']::regtype[];
    inexact CONSTANT oid[] := ARRAY['numeric', 'float4', 'float8']::regtype[];
    words CONSTANT oid[] := ARRAY['text', 'varchar', 'bpchar']::regtype[];
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull,
                   'hashable', t.hashable, 'faithful', t.faithful, 'generated', a.attgenerated <> '')
                   || CASE WHEN t.carrier IS NULL THEN '{}' ELSE jsonb_build_object('carrier', t.carrier) END
               ORDER BY a.attnum), '[]')
        FROM pg_attribute a
        CROSS JOIN LATERAL (
            SELECT a.atttypid = ANY (exact || inexact) OR a.atttypid = ANY (words)
                   AND a.attcollation = 'pg_catalog."default"'::regcollation::oid AS known) k
        CROSS JOIN LATERAL (
            SELECT true AS hashable,
                   a.atttypid <> ALL (inexact) AND (a.atttypid <> 'bpchar'::regtype OR a.atttypmod > 0) AS faithful,
                   NULL::text AS carrier
            WHERE k.known
            UNION ALL
            SELECT o.hashable, o.faithful, pgtrickle._carrier(a.atttypid)
            FROM pgtrickle._type_traits(a.atttypid, a.atttypmod, a.attcollation) o
            WHERE NOT k.known) t
        WHERE a.attrelid = relid AND a.attnum > 0 AND NOT a.attisdropped);
END $$;


-- The columns by which the rows of a source can be told apart: its primary key, or else the shortest unique constraint over
-- columns that are NOT NULL (and no row breaks that: PostgreSQL 18 has constraints that are not validated). NULL if it has
-- none that holds, or children, whose rows no index of it knows. Indexes without a constraint do not count: while one is created a
-- transaction may be reading the rows of a time when there was no such key.
CREATE OR REPLACE FUNCTION pgtrickle._row_key(source oid) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.names
    FROM pg_class c, pg_constraint u, pg_index i,
         LATERAL (SELECT array_agg(a.attname::text ORDER BY n.place) AS names, bool_and(a.attnotnull) AS complete
                  FROM unnest(u.conkey) WITH ORDINALITY AS n(attnum, place)
                  LEFT JOIN pg_attribute a ON a.attrelid = u.conrelid AND a.attnum = n.attnum) AS k
    WHERE c.oid = source AND (c.relkind = 'p' OR NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid))
      AND u.conrelid = c.oid AND u.contype IN ('p', 'u') AND i.indexrelid = u.conindid AND pgtrickle._holds(i.indexrelid)
      AND k.complete
      AND NOT EXISTS (SELECT FROM pg_constraint v
                      WHERE v.conrelid = c.oid AND v.contype = 'n' AND NOT v.convalidated AND v.conkey[1] = ANY (u.conkey))
    ORDER BY u.contype, cardinality(u.conkey), u.conindid LIMIT 1
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._row_key(oid) FROM PUBLIC;


-- All the engine must know of relations: an array of {oid, schema, name, qualified, relkind, type, pgt_id, rows,
-- obstacle, key, columns}, in the order asked for.
CREATE OR REPLACE FUNCTION pgtrickle._source_info(relids oid[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'qualified', pgtrickle._qualified(c.oid),
            'relkind', c.relkind, 'type', pgtrickle._source_type(c.oid),
            'pgt_id', (SELECT s.pgt_id FROM pgtrickle.pgt_definitions s WHERE s.pgt_relid = c.oid),
            'rows', CASE WHEN c.relhassubclass THEN
                        (SELECT greatest(sum(greatest(l.reltuples, 0)), 0)::bigint FROM pg_class l
                         WHERE l.oid = ANY (pgtrickle._relations(c.oid)) AND l.relkind <> 'p')
                    ELSE greatest(c.reltuples, 0)::bigint END,
            'obstacle', pgtrickle._capture_obstacle(c.oid),
            'key', CASE WHEN c.relkind = 'p' OR NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid) THEN
                coalesce((SELECT jsonb_agg(a.attname ORDER BY k.place)
                          FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(attnum, place), pg_attribute a
                          WHERE i.indrelid = c.oid AND i.indisprimary AND pgtrickle._holds(i.indexrelid)
                            AND k.place <= i.indnkeyatts AND a.attrelid = c.oid AND a.attnum = k.attnum), '[]')
                ELSE '[]' END,
            'columns', pgtrickle._columns(c.oid)) ORDER BY r.place), '[]')
        FROM unnest(relids) WITH ORDINALITY AS r(relid, place)
        JOIN pg_class c ON c.oid = r.relid
        JOIN pg_namespace n ON n.oid = c.relnamespace);
END $$;
