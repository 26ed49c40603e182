-- What sqltriga says about a change: the statement that repeats it elsewhere.


-- INSERT, UPDATE or DELETE as text. An UPDATE names the changed columns only (where none changed: its key), and finds its
-- row by the old key. With `fragments` the part after the table's name, as PgQ writes it. Generated columns are left to
-- the table that receives them. Raises 42P10 for UPDATE and DELETE without a key.
CREATE OR REPLACE FUNCTION pgque._row_sql(
    op text, relation oid, target text, key text[], ignored text[], old_texts text[], new_texts text[], fragments boolean
) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text;
    news text;
    changes text;
    row_filter text;
    overriding boolean;
    conjunction text := CASE WHEN fragments THEN ' and ' ELSE ' AND ' END;
BEGIN
    IF op <> 'INSERT' AND cardinality(key) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = '42P10', MESSAGE = format('sqltriga: table %s has no primary key', target),
            HINT = 'Name columns that identify a row with the argument pkey=column[,column].';
    END IF;
    SELECT string_agg(c.quoted, ',' ORDER BY c.ordinal) FILTER (WHERE sent),
           string_agg(quote_nullable(new_texts[c.ordinal]), ',' ORDER BY c.ordinal) FILTER (WHERE sent),
           string_agg(format('%s=%s', c.quoted, quote_nullable(new_texts[c.ordinal])), ',' ORDER BY c.ordinal)
               FILTER (WHERE sent AND new_texts[c.ordinal] IS DISTINCT FROM old_texts[c.ordinal]),
           string_agg(CASE WHEN old_texts[c.ordinal] IS NULL THEN c.quoted || ' IS NULL'
                           ELSE format('%s=%L', c.quoted, old_texts[c.ordinal]) END, conjunction ORDER BY array_position(key, c.name))
               FILTER (WHERE c.name = ANY (key)),
           coalesce(bool_or(c.identity AND sent), false)
      INTO names, news, changes, row_filter, overriding
      FROM (SELECT r.*, NOT r.generated AND r.name <> ALL (ignored) AS sent FROM pgque._row_columns(relation) r) c;
    IF op = 'INSERT' THEN
        IF names IS NULL THEN
            RETURN CASE WHEN fragments THEN 'default values' ELSE format('INSERT INTO %s DEFAULT VALUES', target) END;
        END IF;
        RETURN CASE WHEN fragments THEN format('(%s) values (%s)', names, news)
                    ELSE format('INSERT INTO %s (%s)%s VALUES (%s)', target, names,
                                CASE WHEN overriding THEN ' OVERRIDING SYSTEM VALUE' ELSE '' END, news) END;
    ELSIF op = 'UPDATE' THEN
        changes := coalesce(changes, (SELECT format('%1$I=%1$I', key[1])));
        RETURN CASE WHEN fragments THEN format('%s where %s', changes, row_filter)
                    ELSE format('UPDATE %s SET %s WHERE %s', target, changes, row_filter) END;
    END IF;
    RETURN CASE WHEN fragments THEN row_filter ELSE format('DELETE FROM %s WHERE %s', target, row_filter) END;
END $$;
