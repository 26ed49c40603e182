-- What the three triggers stand on: the columns of a table, its rows as text, their encodings.
--
-- Values become text through the output functions of their types, never through casts, which may be anybody's and say
-- anything.
-- These functions run once a row. So they are PL/pgSQL, which keeps its plans. Roles that send may execute them, since the
-- triggers have the rights of whoever changes a table: none has rights of its own.


-- A type, or what a domain is made of.
CREATE OR REPLACE FUNCTION pgque._base_type(type oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base oid;
BEGIN
    LOOP
        SELECT t.typbasetype INTO base FROM pg_type t WHERE t.oid = type AND t.typtype = 'd';
        EXIT WHEN NOT FOUND;
        type := base;
    END LOOP;
    RETURN type;
END $$;


-- The columns of a relation, in order. `generated`: 's' for stored, 'v' for virtual, else empty. `plain`: the text of all their values is, or is easily had from, that in JSON.
-- `builtin`: all their types are PostgreSQL's own.
CREATE OR REPLACE FUNCTION pgque._row_columns(
    relation oid, OUT names text[], OUT types oid[], OUT generated "char"[], OUT overriding boolean, OUT plain boolean,
    OUT builtin boolean
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}'), coalesce(array_agg(b.type ORDER BY a.attnum), '{}'),
           coalesce(array_agg(a.attgenerated ORDER BY a.attnum), '{}'), coalesce(bool_or(a.attidentity = 'a'), false),
           bool_and(b.type = ANY ('{bool,int2,int4,int8,oid,numeric,float4,float8,text,varchar,bpchar,name,uuid,bytea,date,time,'
                                  'timetz,interval,timestamp,timestamptz,inet,cidr,macaddr}'::regtype[])),
           bool_and(b.type < 16384)
      INTO names, types, generated, overriding, plain, builtin
      FROM pg_attribute a
      JOIN pg_type t ON t.oid = a.atttypid
      CROSS JOIN LATERAL (SELECT CASE t.typtype WHEN 'd' THEN pgque._base_type(t.oid) ELSE t.oid END AS type) b
     WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped;
END $$;


-- A row's values as PostgreSQL prints them, in the order of its columns.
CREATE OR REPLACE FUNCTION pgque._row_texts(value record, names text[], types oid[], plain boolean) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    image json;
    texts text[];
BEGIN
    IF NOT plain THEN
        EXECUTE (SELECT format('SELECT ARRAY[%s]::text[]',
                               string_agg(format('CASE WHEN num_nonnulls(($1).%1$I) = 1 THEN format(''%%s'', ($1).%1$I) END', n), ', '))
                   FROM unnest(names) AS n)
           INTO texts USING value;
        RETURN texts;
    END IF;
    EXECUTE 'SELECT row_to_json($1)' INTO image USING value;
    texts := ARRAY(SELECT j.value FROM json_each_text(image) AS j);
    FOR i IN 1 .. cardinality(texts) LOOP
        IF types[i] = 'bool'::regtype THEN
            texts[i] := left(texts[i], 1);
        ELSIF types[i] = 'timestamp'::regtype THEN
            texts[i] := replace(texts[i], 'T', ' ');
        ELSIF types[i] = 'timestamptz'::regtype THEN
            texts[i] := regexp_replace(replace(texts[i], 'T', ' '), '([+-]\d\d):00( BC)?$', '\1\2');
        END IF;
    END LOOP;
    RETURN texts;
END $$;


-- A row as a JSON object of the columns that are sent: numbers, booleans, arrays and JSON as such, times in ISO 8601, all
-- else, and whatever has a type of the user's, as a string.
CREATE OR REPLACE FUNCTION pgque._row_json(value record, names text[], types oid[], sent boolean[], builtin boolean) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    image json;
    result text;
BEGIN
    IF builtin THEN
        EXECUTE 'SELECT row_to_json($1)' INTO image USING value;
    ELSE
        EXECUTE (SELECT format('SELECT row_to_json(r) FROM (SELECT %s) r', string_agg(
                            format(CASE WHEN t < 16384 THEN '($1).%1$I'
                                        ELSE 'CASE WHEN num_nonnulls(($1).%1$I) = 1 THEN format(''%%s'', ($1).%1$I) END AS %1$I' END, n), ', '))
                   FROM unnest(names, types) AS c (n, t))
           INTO image USING value;
    END IF;
    IF true = ALL (sent) THEN
        RETURN image;
    END IF;
    SELECT '{' || string_agg(to_json(j.key) || ':' || j.value, ',' ORDER BY j.n) || '}' INTO result
      FROM json_each(image) WITH ORDINALITY AS j (key, value, n)
     WHERE sent[j.n];
    RETURN coalesce(result, '{}');
END $$;


-- Percent-encoding as in PgQ: letters, digits, '_', '-' and '.' stand for themselves, a space is '+'. It runs twice a column,
-- so it pins no search_path; every name in it says its schema.
CREATE OR REPLACE FUNCTION pgque._urlencode(value text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value OPERATOR(pg_catalog.!~) '[^A-Za-z0-9_.-]' THEN
        RETURN value;
    END IF;
    RETURN (SELECT pg_catalog.string_agg(
                CASE WHEN c OPERATOR(pg_catalog.~) '[A-Za-z0-9_.-]' THEN c
                     WHEN c OPERATOR(pg_catalog.=) ' ' THEN '+'
                     ELSE pg_catalog.regexp_replace(pg_catalog.encode(pg_catalog.convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g')
                END, '' ORDER BY n)
              FROM pg_catalog.string_to_table(value, NULL) WITH ORDINALITY AS t (c, n));
END $$;


-- The columns that are sent as column=value pairs; a null is the column's name alone.
CREATE OR REPLACE FUNCTION pgque._row_urlencoded(names text[], texts text[], sent boolean[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pairs text[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        IF sent[i] THEN
            pairs := pairs || (pgque._urlencode(names[i]) || coalesce('=' || pgque._urlencode(texts[i]), ''));
        END IF;
    END LOOP;
    RETURN array_to_string(pairs, '&');
END $$;


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
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(a.attname::text ORDER BY k.n), '{}')
              FROM pg_index i
              CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE i.indrelid = relation AND i.indisprimary);
END $$;
