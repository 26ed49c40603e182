-- Change-data-capture by triggers: jsontriga, logutriga, sqltriga, compatible with PgQ's.
--
-- Arguments: the queue, then in any order
--   SKIP               in a BEFORE or INSTEAD OF trigger: the change itself is not made
--   backup             on UPDATE the old row goes to ev_extra2, in the format of ev_data (urlencoded for sqltriga)
--   deny               any change is refused
--   ignore=c1,c2       columns that are not sent; an UPDATE that changed nothing else is no event
--   pkey=c1,c2         the key, where it is not the primary key
--   when=EXPR          no event where this is not true
--   ev_type=EXPR ev_data=EXPR ev_extra1=EXPR .. ev_extra4=EXPR   override that field of the event
--   fragments          for sqltriga: PgQ's form, without the command and the table
-- Expressions see the columns of the row (the old one on DELETE), and pg_catalog only: qualify everything else.
--
-- As PgQ's, these triggers run with the rights of the role that changes the table, which must be a pgque_writer: whoever
-- writes an expression must not get the rights of this schema's owner by it.


-- The columns that an argument lists. Raises 42703 for one that there is not.
CREATE OR REPLACE FUNCTION pgque._listed_columns(argument text, names text[], relation oid) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    listed text[] := regexp_split_to_array(btrim(substr(argument, strpos(argument, '=') + 1)), '\s*,\s*');
    name text;
BEGIN
    FOREACH name IN ARRAY listed LOOP
        IF name <> ALL (names) THEN
            RAISE EXCEPTION USING ERRCODE = '42703',
                MESSAGE = format('column "%s" in argument "%s" of the trigger does not exist in %s', name, argument, relation::regclass);
        END IF;
    END LOOP;
    RETURN listed;
END $$;


-- Inserts the event of one change, unless the arguments say that there is none.
CREATE OR REPLACE FUNCTION pgque._trigger_event(
    format text, queue_name text, arguments text[], op text, relation oid, target text[], old_row record, new_row record
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    table_columns record := pgque._row_columns(relation);
    letter text := CASE op WHEN 'TRUNCATE' THEN 'R' ELSE left(op, 1) END;
    argument text;
    ignored text[] := '{}';
    key text[];
    backup boolean := false;
    fragments boolean := false;
    overrides text[] := '{}';
    field text;
    value text;
    sent boolean[] := '{}';
    changed boolean := false;
    changed_ignored boolean := false;
    old_texts text[];
    new_texts text[];
    ev_type text;
    ev_data text;
    extras text[] := ARRAY[array_to_string(target, '.'), NULL, NULL, NULL];
BEGIN
    FOREACH argument IN ARRAY arguments LOOP
        IF lower(argument) = 'deny' THEN
            RAISE EXCEPTION USING ERRCODE = '42501',
                MESSAGE = format('Table ''%s'' to queue ''%s'': change not allowed (%s)', extras[1], queue_name, op);
        ELSIF argument LIKE 'ignore=%' THEN
            ignored := pgque._listed_columns(argument, table_columns.names, relation);
        ELSIF argument LIKE 'pkey=%' THEN
            key := pgque._listed_columns(argument, table_columns.names, relation);
        ELSIF argument ~ '^(when|ev_type|ev_data|ev_extra[1-4])=' THEN
            overrides := overrides || argument;
        ELSIF lower(argument) = 'backup' THEN
            backup := true;
        ELSIF lower(argument) = 'fragments' THEN
            fragments := true;
        ELSIF lower(argument) <> 'skip' THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('bad param: %s', argument),
                HINT = 'Arguments after the queue are SKIP, backup, deny, ignore=, pkey=, when=, ev_type=, ev_data=, ev_extra1= to ev_extra4=, and fragments for sqltriga.';
        END IF;
    END LOOP;
    key := coalesce(key, pgque._primary_key(relation));

    IF op = 'TRUNCATE' THEN
        ev_data := '';
    ELSE
        FOR i IN 1 .. cardinality(table_columns.names) LOOP
            -- A virtual column has no value here, and SQL must not set a stored one.
            sent[i] := table_columns.names[i] <> ALL (ignored) AND table_columns.generated[i] <> 'v'
                       AND NOT (format = 'sql' AND table_columns.generated[i] = 's');
        END LOOP;
        IF op = 'UPDATE' AND (format <> 'json' OR ignored <> '{}') OR op = 'DELETE' AND format <> 'json' THEN
            old_texts := pgque._row_texts(old_row, table_columns.names, table_columns.types, table_columns.plain);
        END IF;
        IF op = 'UPDATE' AND (format <> 'json' OR ignored <> '{}') OR op = 'INSERT' AND format <> 'json' THEN
            new_texts := pgque._row_texts(new_row, table_columns.names, table_columns.types, table_columns.plain);
        END IF;
        IF op = 'UPDATE' AND ignored <> '{}' THEN
            FOR i IN 1 .. cardinality(table_columns.names) LOOP
                IF old_texts[i] IS DISTINCT FROM new_texts[i] THEN
                    changed := changed OR table_columns.names[i] <> ALL (ignored);
                    changed_ignored := changed_ignored OR table_columns.names[i] = ANY (ignored);
                END IF;
            END LOOP;
            IF changed_ignored AND NOT changed THEN
                RETURN;
            END IF;
        END IF;
        IF format = 'json' AND op = 'DELETE' THEN
            ev_data := pgque._row_json(old_row, table_columns.names, table_columns.types, sent, table_columns.builtin);
        ELSIF format = 'json' THEN
            ev_data := pgque._row_json(new_row, table_columns.names, table_columns.types, sent, table_columns.builtin);
        ELSIF format = 'url' THEN
            ev_data := pgque._row_urlencoded(table_columns.names, coalesce(new_texts, old_texts), sent);
        ELSE
            ev_data := pgque._row_sql(op, quote_ident(target[1]) || '.' || quote_ident(target[2]), key, table_columns.names, sent,
                                      table_columns.overriding, old_texts, new_texts, fragments);
        END IF;
        IF op = 'UPDATE' AND backup THEN
            extras[2] := CASE format
                WHEN 'json' THEN pgque._row_json(old_row, table_columns.names, table_columns.types, sent, table_columns.builtin)
                ELSE pgque._row_urlencoded(table_columns.names, old_texts, sent) END;
        END IF;
    END IF;
    ev_type := CASE format
        WHEN 'json' THEN format('{"op":"%s","table":%s,"pkey":%s}', op, to_json(target), to_json(key))
        WHEN 'url' THEN letter || CASE op WHEN 'TRUNCATE' THEN '' ELSE ':' || array_to_string(key, ',') END
        ELSE letter END;

    FOREACH argument IN ARRAY overrides LOOP
        field := split_part(argument, '=', 1);
        IF op = 'DELETE' THEN
            value := pgque._row_expression(substr(argument, length(field) + 2), old_row);
        ELSIF op = 'TRUNCATE' THEN
            EXECUTE 'SELECT (' || substr(argument, length(field) + 2) || ')::text' INTO value;
        ELSE
            value := pgque._row_expression(substr(argument, length(field) + 2), new_row);
        END IF;
        IF field = 'when' THEN
            IF NOT coalesce(value::boolean, false) THEN
                RETURN;
            END IF;
        ELSIF field = 'ev_type' THEN
            ev_type := value;
        ELSIF field = 'ev_data' THEN
            ev_data := value;
        ELSE
            extras[right(field, 1)::int] := value;
        END IF;
    END LOOP;
    PERFORM pgque.insert_event(queue_name, ev_type, ev_data, extras[1], extras[2], extras[3], extras[4]);
END $$;


-- Raises an error where a trigger cannot work as it has been created.
CREATE OR REPLACE FUNCTION pgque._check_trigger(name text, level text, op text, arguments int) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF arguments < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'Trigger needs queue name';
    ELSIF level = 'STATEMENT' AND op <> 'TRUNCATE' THEN
        RAISE EXCEPTION USING ERRCODE = '42P17', MESSAGE = format('trigger "%s" must be FOR EACH ROW', name);
    END IF;
END $$;


-- The three triggers, which differ in nothing but the format.
--
-- jsontriga sends rows as JSON: ev_type is {"op": .., "table": [schema, name], "pkey": [..]}, ev_data an object.
-- logutriga sends them URL-encoded: ev_type is I:, U: or D: and the key's columns, ev_data column=value pairs joined by
-- '&', where a null is the column's name alone.
-- sqltriga sends changes as SQL, ready to apply to a copy of the table: ev_type is I, U or D, ev_data INSERT INTO ..
-- VALUES .., UPDATE .. SET .. WHERE .., DELETE FROM .. WHERE ...
-- ev_extra1 is the table's name with its schema. Values read the same everywhere, and numbers are exact, whatever the
-- session's settings.
DO $make$
DECLARE
    name text;
    form text;
BEGIN
    FOR name, form IN VALUES ('jsontriga', 'json'), ('logutriga', 'url'), ('sqltriga', 'sql') LOOP
        EXECUTE format($function$
CREATE OR REPLACE FUNCTION pgque.%I() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD' SET intervalstyle = postgres SET extra_float_digits = 1 AS $$
BEGIN
    PERFORM pgque._check_trigger(TG_NAME, TG_LEVEL, TG_OP, TG_NARGS),
            pgque._trigger_event(%L, TG_ARGV[0], TG_ARGV[1:], TG_OP, TG_RELID, ARRAY[TG_TABLE_SCHEMA, TG_TABLE_NAME]::text[], OLD, NEW);
    IF TG_WHEN <> 'AFTER' AND ('SKIP' = ANY (TG_ARGV[1:]) OR 'skip' = ANY (TG_ARGV[1:])) THEN
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$$function$, name, form);
    END LOOP;
END $make$;


COMMENT ON FUNCTION pgque.jsontriga() IS
    'Trigger that sends each changed row to a queue as JSON. Arguments: the queue, then options as in docs/queues.md.';
COMMENT ON FUNCTION pgque.logutriga() IS
    'Trigger that sends each changed row to a queue URL-encoded. Arguments: the queue, then options as in docs/queues.md.';
COMMENT ON FUNCTION pgque.sqltriga() IS
    'Trigger that sends each change to a queue as SQL. Arguments: the queue, then options as in docs/queues.md.';
