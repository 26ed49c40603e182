-- What the three triggers stand on: a row as text, its event, the arguments of a trigger.
--
-- The triggers run with the rights of the schema's owner, so that whoever may change the table need not be a producer.
-- Therefore values become text through the output functions of their types, which only superusers can make: never
-- through a cast, which the owner of a type may have written. Expressions in a trigger's arguments do run with these
-- rights, and see pg_catalog only: they are written by whoever may create such a trigger, that is pgque_admin.


-- The columns of a relation, in order. `quoted` for use in SQL; `base` is a domain's type; columns whose type is
-- PostgreSQL's own are `builtin`.
CREATE OR REPLACE FUNCTION pgque._row_columns(relation oid)
RETURNS TABLE (ordinal bigint, name text, quoted text, builtin boolean, generated boolean, identity boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE types AS (
        SELECT a.attnum, t.typbasetype, t.oid, t.typelem
          FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT d.attnum, t.typbasetype, t.oid, t.typelem
          FROM types d JOIN pg_type t ON t.oid = d.typbasetype
    )
    SELECT row_number() OVER (ORDER BY a.attnum), a.attname::text, quote_ident(a.attname),
           d.oid < 16384, a.attgenerated <> '', a.attidentity = 'a'
      FROM pg_attribute a JOIN types d ON d.attnum = a.attnum AND d.typbasetype = 0
     WHERE a.attrelid = relation
$$;


-- The values of a row in the order of its columns, as PostgreSQL prints them.
CREATE OR REPLACE FUNCTION pgque._row_texts(relation oid, value record) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    texts text[];
BEGIN
    EXECUTE (
        SELECT format('SELECT ARRAY[%s]::text[]', string_agg(
                   format('CASE WHEN num_nonnulls(($1).%1$s) = 1 THEN format(''%%s'', ($1).%1$s) END', c.quoted),
                   ', ' ORDER BY c.ordinal))
          FROM pgque._row_columns(relation) c
    ) INTO texts USING value;
    RETURN texts;
END $$;


-- The values of a row as JSON: numbers, booleans, arrays and JSON as such, times in ISO 8601, all else as a string.
CREATE OR REPLACE FUNCTION pgque._row_json(relation oid, value record, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result text;
BEGIN
    EXECUTE (
        SELECT format('SELECT concat(''{'', concat_ws('','', %s), ''}'')', string_agg(
                   format('%L || coalesce(%s, ''null'')', to_json(c.name) || ':',
                          format(CASE WHEN c.builtin THEN 'to_json(($1).%1$s)'
                                      ELSE 'CASE WHEN num_nonnulls(($1).%1$s) = 1 THEN to_json(format(''%%s'', ($1).%1$s)) END'
                                 END || '::text', c.quoted)),
                   ', ' ORDER BY c.ordinal))
          FROM pgque._row_columns(relation) c
         WHERE c.name = ANY (columns)
    ) INTO result USING value;
    RETURN coalesce(result, '{}');
END $$;


-- Percent-encoding as in PgQ: letters, digits, '_', '-' and '.' stand for themselves, a space is '+'.
CREATE OR REPLACE FUNCTION pgque._urlencode(value text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN value ~ '^[A-Za-z0-9_.-]*$' THEN value ELSE (
        SELECT string_agg(
                   CASE WHEN c ~ '[A-Za-z0-9_.-]' THEN c
                        WHEN c = ' ' THEN '+'
                        ELSE regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g') END,
                   '' ORDER BY n)
          FROM string_to_table(value, NULL) WITH ORDINALITY AS t (c, n)) END
$$;


-- A row's values as column=value pairs; a null is the column's name alone.
CREATE OR REPLACE FUNCTION pgque._row_urlencoded(names text[], texts text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(pgque._urlencode(name) || coalesce('=' || pgque._urlencode(value), ''), '&' ORDER BY n)
      FROM unnest(names, texts) WITH ORDINALITY AS t (name, value, n)
$$;


-- An expression of a trigger's argument over the columns of a row, as text.
CREATE OR REPLACE FUNCTION pgque._row_expression(expression text, value record) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result text;
BEGIN
    EXECUTE format('SELECT (%s)::text FROM (SELECT ($1).*) r', expression) INTO result USING value;
    RETURN result;
END $$;


-- The columns of a relation's primary key in its order; empty where there is none.
CREATE OR REPLACE FUNCTION pgque._primary_key(relation oid) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(a.attname::text ORDER BY k.n), '{}')
      FROM pg_index i
      CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
     WHERE i.indrelid = relation AND i.indisprimary
$$;


-- The arguments of a trigger by name: {"ignore": [..], "pkey": [..] or null, "skip": .., "backup": .., "deny": ..,
-- "fragments": .., "fields": {"when": expression, "ev_type": expression, ..}}. Raises 22023 for anything else.
CREATE OR REPLACE FUNCTION pgque._trigger_arguments(relation oid, arguments text[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result jsonb := '{"ignore": [], "pkey": null, "skip": false, "backup": false, "deny": false, "fragments": false, "fields": {}}';
    argument text;
    name text;
    value text;
    columns text[];
    unknown text;
BEGIN
    FOREACH argument IN ARRAY arguments LOOP
        name := split_part(argument, '=', 1);
        value := substr(argument, length(name) + 2);
        IF lower(argument) IN ('skip', 'backup', 'deny', 'fragments') THEN
            result := jsonb_set(result, ARRAY[lower(argument)], 'true');
        ELSIF argument LIKE 'ignore=%' OR argument LIKE 'pkey=%' THEN
            columns := ARRAY(SELECT btrim(c) FROM string_to_table(value, ',') AS t (c) WHERE btrim(c) <> '');
            SELECT c INTO unknown FROM unnest(columns) AS t (c)
             WHERE c NOT IN (SELECT r.name FROM pgque._row_columns(relation) r);
            IF FOUND THEN
                RAISE EXCEPTION USING ERRCODE = '42703',
                    MESSAGE = format('column "%s" in argument "%s" of the trigger does not exist in %s', unknown, argument, relation::regclass);
            END IF;
            result := jsonb_set(result, ARRAY[name], to_jsonb(columns));
        ELSIF argument ~ '^(when|ev_type|ev_data|ev_extra[1-4])=' THEN
            result := jsonb_set(result, ARRAY['fields', name], to_jsonb(value));
        ELSE
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('bad param: %s', argument),
                HINT = 'Arguments after the queue are SKIP, backup, deny, ignore=, pkey=, when=, ev_type=, ev_data=, ev_extra1= to ev_extra4=, and fragments for sqltriga.';
        END IF;
    END LOOP;
    RETURN result;
END $$;
