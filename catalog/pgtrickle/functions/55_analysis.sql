-- What PostgreSQL's own analysis says about a query: its canonical text, its columns, what it reads and calls.
--
-- The query becomes a view, is looked at, and the view is undone: that costs less than to drop it. It is no temporary view
-- where it need not be: a transaction that has touched anything temporary can't be prepared for a commit in two phases.


DROP FUNCTION IF EXISTS pgtrickle._analyse(text, text, text);  -- what an earlier version did with it


-- A schema in which the calling role may create a view, the first one; NULL if there is none.
CREATE OR REPLACE FUNCTION pgtrickle._schema_for_views() RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.oid FROM pg_namespace n
    WHERE n.nspname !~ '^pg_' AND n.oid <> 'information_schema'::regnamespace
      AND has_schema_privilege(pgtrickle._caller(), n.oid, 'CREATE')
    ORDER BY n.oid LIMIT 1
$$;


-- Have the calling role make a view of a query, under a name that nobody can know before; the view's OID. `temporary`: for a
-- query that reads something temporary, and for a role that may create nothing else.
--
-- Analysing can run code of users: the text of a constant whose type contains a domain goes through the domain's CHECK. So it
-- is done inside _run, with the role's rights. Dates are read in the session's own order, times in its zone.
CREATE OR REPLACE FUNCTION pgtrickle._make_view(query text, path text, schema oid, temporary boolean) RETURNS oid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := '__pgt_definition_' || replace(gen_random_uuid()::text, '-', '');
    view CONSTANT jsonb := jsonb_build_object(
        'name', name, 'query', query, 'path', path, 'temporary', temporary,
        'schema', (SELECT n.nspname FROM pg_namespace n WHERE n.oid = schema),
        'datestyle', current_setting('DateStyle'), 'timezone', current_setting('TimeZone'));
    relid oid;
    forgotten text;
BEGIN
    FOR forgotten IN SELECT p.name FROM pg_prepared_statements p WHERE p.name ~ '^__pgt_definition_[0-9a-f]{32}$' LOOP
        EXECUTE format('DEALLOCATE %I', forgotten);  -- of an analysis that was cancelled
    END LOOP;
    PERFORM pgtrickle._run('SELECT pg_catalog.to_jsonb(pgtrickle._create_view($1)::pg_catalog.text)', view, making => temporary);
    SELECT c.oid INTO STRICT relid FROM pg_class c
    WHERE c.relname = name AND c.relkind = 'v'
      AND c.relnamespace = CASE WHEN temporary THEN pg_my_temp_schema() ELSE schema END;
    RETURN relid;
END $$;


-- The parts that are asked for of {"definition" (pg_get_viewdef under an empty search_path), "columns" (as in
-- _source_info), "dependencies" (as in _view_sources), "functions" (as in _view_functions), "types" (as in
-- _column_types), "layout" (as in _layout), "operators" (all of them, as one text)}. Names in the query are looked up along path. Where errors are
-- told, an error in the query is returned, as {"failed": SQLSTATE, "message"}; otherwise it is raised.
CREATE OR REPLACE FUNCTION pgtrickle._analysed(query text, path text, parts text[], errors_told boolean) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    result jsonb := '{}';
    schema CONSTANT oid := pgtrickle._schema_for_views();
    temporary boolean := schema IS NULL;
    relid oid;
    finished boolean := false;
BEGIN
    LOOP
        -- The session's schema for temporary objects is part of every search_path here: if it came and went with the view,
        -- every plan in the session would be made anew, twice.
        IF temporary AND pg_my_temp_schema() = 0 THEN
            CREATE TEMPORARY VIEW __pgt_definition AS SELECT 1 AS one;
            DROP VIEW pg_temp.__pgt_definition;
        END IF;
        BEGIN
            relid := pgtrickle._make_view(query, path, schema, temporary);
            IF 'definition' = ANY (parts) THEN
                result := result || jsonb_build_object('definition', rtrim(btrim(pg_get_viewdef(relid)), ';'));
            END IF;
            IF 'columns' = ANY (parts) THEN
                result := result || jsonb_build_object('columns', pgtrickle._columns(relid));
            END IF;
            IF 'dependencies' = ANY (parts) THEN
                result := result || jsonb_build_object('dependencies', pgtrickle._view_sources(relid));
            END IF;
            IF 'functions' = ANY (parts) THEN
                result := result || jsonb_build_object('functions', pgtrickle._view_functions(relid));
            END IF;
            IF 'types' = ANY (parts) THEN
                result := result || jsonb_build_object('types', pgtrickle._column_types(relid));
            END IF;
            IF 'layout' = ANY (parts) THEN
                result := result || jsonb_build_object('layout', pgtrickle._layout(relid));
            END IF;
            IF 'operators' = ANY (parts) THEN
                result := result || jsonb_build_object('operators', pgtrickle._view_operators(relid));
            END IF;
            finished := true;
            RAISE SQLSTATE 'HW004';
        EXCEPTION WHEN OTHERS THEN
            EXIT WHEN finished;
            IF SQLSTATE = '42P16' AND NOT temporary THEN
                -- It reads a temporary relation, perhaps: then the view can only be a temporary one.
                temporary := true;
                CONTINUE;
            END IF;
            -- Not: what has nothing to do with the query, such as a deadlock, a full disk, a server that is shut down.
            IF NOT errors_told OR substr(SQLSTATE, 1, 2) IN ('08', '40', '53', '55', '57', '58', 'XX') THEN
                RAISE;
            END IF;
            RETURN jsonb_build_object('failed', SQLSTATE, 'message', SQLERRM);
        END;
    END LOOP;
    RETURN result;
END $$;


-- The columns of a relation as the protocol describes them, and the functions that make text of their values: an array of
-- [name, type OID, length of the type, type modifier, the output function, the type or, of a domain, what it is made of (both
-- qualified)].
CREATE OR REPLACE FUNCTION pgtrickle._column_types(relid oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_array(
        a.attname, a.atttypid::bigint, t.typlen, a.atttypmod, format('%I.%I', n.nspname, p.proname),
        format('%I."%s"', y.nspname, replace(b.typname, '"', '""'))) ORDER BY a.attnum), '[]')
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_proc p ON p.oid = t.typoutput
    JOIN pg_namespace n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL (
        WITH RECURSIVE made_of(type, base) AS (
            SELECT t.oid, t.typbasetype
            UNION ALL SELECT d.oid, d.typbasetype FROM made_of m JOIN pg_type d ON d.oid = m.base)
        SELECT o.typname, o.typnamespace FROM made_of m JOIN pg_type o ON o.oid = m.type WHERE m.base = 0) AS b
    JOIN pg_namespace y ON y.oid = b.typnamespace
    WHERE a.attrelid = relid AND a.attnum > 0 AND NOT a.attisdropped
$$;


-- The columns of a relation as ALTER TABLE … ADD COLUMN takes them: an array of [name, type and collation].
CREATE OR REPLACE FUNCTION pgtrickle._layout(relid oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_array(a.attname, concat_ws(' COLLATE ', format_type(a.atttypid, a.atttypmod), (
        SELECT format('%I.%I', n.nspname, c.collname) FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
        WHERE c.oid = a.attcollation AND c.oid <> t.typcollation))) ORDER BY a.attnum), '[]')
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = relid AND a.attnum > 0 AND NOT a.attisdropped
$$;


-- For use inside _run: the view of a query, {"name", "query", "path", "schema", "temporary", "datestyle", "timezone"}.
CREATE OR REPLACE FUNCTION pgtrickle._create_view(definition jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET timezone = 'UTC' AS $$
DECLARE
    name CONSTANT text := quote_ident(definition->>'name');
    -- In parentheses, only one statement is one; in these a word that begins no statement is the one complained of. No rollback
    -- takes it back where a cancel comes between: under one name for all it would stand in the way of the next.
    preparing CONSTANT text := concat('PREPARE ', name, E' AS\nWITH query AS (', definition->>'query', E'\n) SELECT * FROM query');
    forgetting CONSTANT text := concat('DEALLOCATE ', name);
    creating CONSTANT text := concat(
        CASE WHEN (definition->>'temporary')::boolean THEN 'CREATE TEMPORARY VIEW ' ELSE format('CREATE VIEW %I.', definition->>'schema') END,
        name, E' AS\n', definition->>'query', E'\n');
BEGIN
    PERFORM set_config('DateStyle', definition->>'datestyle', true);
    PERFORM set_config('TimeZone', definition->>'timezone', true);
    PERFORM set_config('search_path', definition->>'path', true);
    -- From here on no name or operator must be looked up along the role's path but those of the query.
    EXECUTE preparing;
    EXECUTE forgetting;
    -- Or else PostgreSQL gives notice of a view that can only be a temporary one. This is undone with the view.
    PERFORM pg_catalog.set_config('client_min_messages', 'error', true);
    EXECUTE creating;
END $$;


-- The relations, and their columns, in the rewrite rule of a view. It does not depend on system catalogs, which cannot be
-- dropped: they are looked for in its node tree, and no columns of theirs are told.
CREATE OR REPLACE FUNCTION pgtrickle._rule_relations(rule oid, OUT refobjid oid, OUT refobjsubid integer) RETURNS SETOF record
LANGUAGE sql STABLE ROWS 4 SET search_path = pg_catalog, pg_temp AS $$
    SELECT d.refobjid, d.refobjsubid
    FROM pg_depend d
    WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = rule AND d.refclassid = 'pg_class'::regclass
    UNION ALL
    SELECT c.oid, 0
    FROM pg_rewrite r, string_to_table(r.ev_action::text, ' :') AS text, pg_class c
    WHERE r.oid = rule AND starts_with(text, 'relid ') AND c.oid = split_part(text, ' ', 2)::oid
      AND c.relnamespace = 'pg_catalog'::regnamespace
$$;


-- The relations a view reads: views, and what they read in turn, down to what stores rows. An array of what _source_info
-- says of each, with "used" (the columns), "readers" (the OIDs of the roles whose rights to it PostgreSQL asks for), of a view
-- "text", and of what a view reads "denied": why the caller may not read it himself, as he need not. A column that a view over a view does not use is still counted: capturing a column too many
-- is harmless.
CREATE OR REPLACE FUNCTION pgtrickle._view_sources(view_relid oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relids oid[];
    used jsonb;
    denied jsonb;
    readers jsonb;
BEGIN
    WITH RECURSIVE read(relid, attnum, inside, reader) AS (
        SELECT d.refobjid, d.refobjsubid, false, pgtrickle._caller()
        FROM pg_rewrite r, pgtrickle._rule_relations(r.oid) AS d
        WHERE r.ev_class = view_relid AND d.refobjid <> r.ev_class
      UNION
        SELECT d.refobjid, d.refobjsubid, true,
               CASE WHEN pgtrickle._view_option(c.reloptions, 'security_invoker') THEN v.reader ELSE c.relowner END
        FROM read v
        JOIN pg_class c ON c.oid = v.relid AND c.relkind = 'v' AND c.relnamespace <> 'pg_catalog'::regnamespace
        JOIN pg_rewrite r ON r.ev_class = v.relid, pgtrickle._rule_relations(r.oid) AS d
        WHERE d.refobjid <> r.ev_class
    ), relations AS (
        SELECT r.relid, ARRAY(SELECT DISTINCT name FROM unnest(array_agg(a.attname::text) FILTER (WHERE a.attnum > 0)) AS name) AS columns,
               bool_or(r.inside) AS inside, array_agg(DISTINCT r.reader::bigint) AS readers
        FROM read r
        JOIN pg_class c ON c.oid = r.relid AND c.relkind IN ('r', 'p', 'm', 'f', 'v')
        LEFT JOIN pg_attribute a ON a.attrelid = r.relid AND a.attnum = r.attnum
        GROUP BY r.relid
    )
    SELECT coalesce(array_agg(n.relid ORDER BY n.relid), '{}'), jsonb_object_agg(n.relid, n.columns),
           jsonb_object_agg(n.relid, pgtrickle._read_obstacle(pgtrickle._caller(), n.relid, n.columns))
           FILTER (WHERE n.inside),
           jsonb_object_agg(n.relid, n.readers)
    INTO relids, used, denied, readers
    FROM relations n;
    RETURN (
        SELECT coalesce(jsonb_agg(info || jsonb_build_object(
                   'used', used->(info->>'oid'), 'denied', denied->>(info->>'oid'), 'readers', readers->(info->>'oid'),
                   'text', CASE info->>'relkind' WHEN 'v'
                           THEN rtrim(btrim(pg_get_viewdef((info->>'oid')::oid)), ';') END) ORDER BY place), '[]')
        FROM jsonb_array_elements(pgtrickle._source_info(relids)) WITH ORDINALITY AS i(info, place));
END $$;


-- The functions that a view calls, and the views in it: an array of [schema, name, volatility, user-defined, kind,
-- signature, hash of the body].
--
-- A view's dependencies do not name built-in functions, so the node tree of the rewrite rule is read: every function,
-- the function of every operator, aggregates and window functions. Casts through text (COERCEVIAIO) call the output
-- function of one type and the input function of the other, either of which can be stable (timestamptz); the node
-- names only the result's type, so a cast through text to a type with a stable input function counts as stable.
-- CURRENT_DATE and its like are nodes of their own, and stable.
--
-- (Some functions of thousands, by their OIDs: without hash joins none of the catalogs is read as a whole.)
CREATE OR REPLACE FUNCTION pgtrickle._view_functions(view_relid oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN (
    WITH RECURSIVE views(relid) AS (
        SELECT view_relid
      UNION
        SELECT d.refobjid
        FROM views v
        JOIN pg_rewrite r ON r.ev_class = v.relid
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        JOIN pg_class c ON c.oid = d.refobjid AND c.relkind = 'v'
        WHERE d.refclassid = 'pg_class'::regclass
    ), rule(tree) AS MATERIALIZED (
        SELECT r.ev_action::text FROM views v JOIN pg_rewrite r ON r.ev_class = v.relid
    ), field(name, value) AS MATERIALIZED (  -- not by regular expressions: the tree is long
        SELECT split_part(text, ' ', 1), text FROM rule, string_to_table(tree, ' :') AS text
        WHERE starts_with(text, 'funcid ') OR starts_with(text, 'opno') OR starts_with(text, 'aggfnoid ')
           OR starts_with(text, 'winfnoid ') OR starts_with(text, 'eqop ') OR starts_with(text, 'sortop ')
    ), mentioned(node, oid) AS (
        SELECT name, substring(value FROM E' (\\d+)')::oid FROM field WHERE name <> 'opnos'
      UNION
        SELECT 'opno', each[1]::oid FROM field, regexp_matches(value, E'\\d+', 'g') AS each WHERE name = 'opnos'
    ), called(oid) AS (
        SELECT oid FROM mentioned WHERE node IN ('funcid', 'aggfnoid', 'winfnoid')
      UNION
        SELECT step
        FROM mentioned m
        JOIN pg_aggregate a ON a.aggfnoid = m.oid AND a.aggfnoid::oid >= 16384,
        unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::oid[]) AS step
        WHERE m.node IN ('aggfnoid', 'winfnoid') AND step <> 0
      UNION
        SELECT o.oprcode::oid FROM mentioned m JOIN pg_operator o ON o.oid = m.oid
        WHERE m.node IN ('opno', 'eqop', 'sortop')
      UNION
        SELECT t.typinput::oid
        FROM rule, regexp_matches(tree, ':resulttype (\d+) :resultcollid', 'g') AS m
        JOIN pg_type t ON t.oid = m[1]::oid
        WHERE position('{COERCEVIAIO ' IN tree) > 0
    ), checking(oid) AS (  -- Whatever a domain's CHECK calls, it does not change the value: its volatility is no matter.
        SELECT DISTINCT f.oid
        FROM rule, regexp_matches(tree, ':resulttype (\d+) :resulttypmod -?\d+ :resultcollid \d+ :coercionformat', 'g') AS m,
             pgtrickle._domain_functions(m[1]::oid) AS f
        WHERE position('{COERCETODOMAIN ' IN tree) > 0
      EXCEPT
        SELECT oid FROM called
    ), functions AS (
        SELECT n.nspname::text AS schema, p.proname::text AS name, p.provolatile::text AS volatility,
               p.oid >= 16384 AS user_defined,
               CASE p.prokind WHEN 'a' THEN 'aggregate' WHEN 'w' THEN 'window'
                              ELSE CASE WHEN p.proretset THEN 'set' ELSE '' END END AS kind,
               CASE WHEN p.oid >= 16384 THEN pgtrickle._signature(p.oid) END AS signature,
               CASE WHEN p.oid >= 16384 THEN pgtrickle._body_hash(p.oid) ELSE '' END AS body_hash
        FROM called c
        JOIN pg_proc p ON p.oid = c.oid
        JOIN pg_namespace n ON n.oid = p.pronamespace
      UNION ALL
        SELECT n.nspname::text, p.proname::text, 'i', true, '', pgtrickle._signature(p.oid), pgtrickle._body_hash(p.oid)
        FROM checking c
        JOIN pg_proc p ON p.oid = c.oid AND p.oid >= 16384
        JOIN pg_namespace n ON n.oid = p.pronamespace
      UNION ALL
        SELECT 'pg_catalog', 'CURRENT_TIMESTAMP, CURRENT_USER or their like', 's', false, '', NULL, ''
        FROM rule WHERE tree LIKE '%{SQLVALUEFUNCTION %'
    )
    SELECT coalesce(jsonb_agg(jsonb_build_array(f.schema, f.name, f.volatility, f.user_defined, f.kind, f.signature,
                                                f.body_hash) ORDER BY f.schema, f.name), '[]')
    FROM functions f);
END $$;


-- The operators of a view in order, as one text: two queries that have different ones do not mean the same.
CREATE OR REPLACE FUNCTION pgtrickle._view_operators(view_relid oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(string_agg(concat(m[1], m[2]), ' ' ORDER BY concat(m[1], m[2])), '')
            FROM pg_rewrite r, regexp_matches(r.ev_action::text, ':(?:opno (\d+)|opnos \(o ([\d ]+)\))', 'g') AS m
            WHERE r.ev_class = view_relid);
END $$;
