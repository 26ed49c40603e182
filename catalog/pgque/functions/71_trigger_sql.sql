-- What sqltriga says about a change: the statement that repeats it elsewhere.


-- INSERT, UPDATE or DELETE as text. An UPDATE names the changed columns only (where none changed: its key), and finds its
-- row by the old key. With `fragments` the part after the table's name, as PgQ writes it. Raises 42P10 for UPDATE and
-- DELETE without a key.
CREATE OR REPLACE FUNCTION pgque._row_sql(
    op text, target text, key text[], names text[], sent boolean[], overriding boolean, old_texts text[], new_texts text[],
    fragments boolean
) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    columns text[] := '{}';
    news text[] := '{}';
    row_filter text[] := '{}';
    conditions text;
    position int;
BEGIN
    IF op <> 'INSERT' THEN
        IF cardinality(key) = 0 THEN
            RAISE EXCEPTION USING ERRCODE = '42P10', MESSAGE = format('sqltriga: table %s has no primary key', target),
                HINT = 'Name columns that identify a row with the argument pkey=column[,column].';
        END IF;
        FOR i IN 1 .. cardinality(key) LOOP
            position := array_position(names, key[i]);
            row_filter := row_filter || (quote_ident(key[i]) || coalesce('=' || quote_literal(old_texts[position]), ' IS NULL'));
        END LOOP;
        conditions := array_to_string(row_filter, CASE WHEN fragments THEN ' and ' ELSE ' AND ' END);
        IF op = 'DELETE' THEN
            RETURN CASE WHEN fragments THEN conditions ELSE format('DELETE FROM %s WHERE %s', target, conditions) END;
        END IF;
    END IF;
    FOR i IN 1 .. cardinality(names) LOOP
        IF sent[i] AND (op = 'INSERT' OR new_texts[i] IS DISTINCT FROM old_texts[i]) THEN
            columns := columns || quote_ident(names[i]);
            news := news || quote_nullable(new_texts[i]);
        END IF;
    END LOOP;
    IF op = 'INSERT' THEN
        IF cardinality(columns) = 0 THEN
            RETURN CASE WHEN fragments THEN 'default values' ELSE format('INSERT INTO %s DEFAULT VALUES', target) END;
        END IF;
        RETURN format(CASE WHEN fragments THEN '(%2$s) values (%4$s)' ELSE 'INSERT INTO %s (%s)%s VALUES (%s)' END, target,
                      array_to_string(columns, ','), CASE WHEN overriding THEN ' OVERRIDING SYSTEM VALUE' ELSE '' END,
                      array_to_string(news, ','));
    END IF;
    IF cardinality(columns) = 0 THEN
        columns := ARRAY[quote_ident(key[1])];
        news := columns;
    END IF;
    RETURN format(CASE WHEN fragments THEN '%2$s where %3$s' ELSE 'UPDATE %s SET %s WHERE %s' END, target,
                  (SELECT string_agg(c || '=' || v, ',' ORDER BY n) FROM unnest(columns, news) WITH ORDINALITY AS t (c, v, n)),
                  conditions);
END $$;
