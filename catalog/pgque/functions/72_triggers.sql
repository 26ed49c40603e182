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
-- Expressions see the columns of the row (the old one on DELETE), and pg_catalog only: qualify everything else.


-- Inserts the event of one change, unless the arguments say that there is none.
CREATE OR REPLACE FUNCTION pgque._trigger_event(
    format text, queue_name text, arguments jsonb, op text, relation oid, target text[], old_row record, new_row record
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' AS $$
DECLARE
    ignored text[] := ARRAY(SELECT jsonb_array_elements_text(arguments -> 'ignore'));
    key text[];
    names text[];
    sent text[];
    old_texts text[];
    new_texts text[];
    event jsonb;
    changed record;
BEGIN
    IF (arguments ->> 'deny')::boolean THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('Table ''%s'' to queue ''%s'': change not allowed (%s)', array_to_string(target, '.'), queue_name, op);
    END IF;
    event := jsonb_build_object('ev_extra1', array_to_string(target, '.'));
    key := CASE WHEN jsonb_typeof(arguments -> 'pkey') = 'array'
                THEN ARRAY(SELECT jsonb_array_elements_text(arguments -> 'pkey')) ELSE pgque._primary_key(relation) END;
    IF op = 'TRUNCATE' THEN
        event := event || jsonb_build_object('ev_data', '');
    ELSE
        SELECT array_agg(c.name ORDER BY c.ordinal), array_agg(c.name ORDER BY c.ordinal) FILTER (WHERE c.name <> ALL (ignored))
          INTO names, sent FROM pgque._row_columns(relation) c;
        IF op <> 'INSERT' AND (op = 'UPDATE' OR format <> 'json') THEN
            old_texts := pgque._row_texts(relation, old_row);
        END IF;
        IF op = 'UPDATE' OR op = 'INSERT' AND format <> 'json' THEN
            new_texts := pgque._row_texts(relation, new_row);
        END IF;
        IF op = 'UPDATE' AND cardinality(ignored) > 0 THEN
            SELECT bool_or(t.name <> ALL (ignored)) AS seen, bool_or(t.name = ANY (ignored)) AS ignored INTO changed
              FROM unnest(names, old_texts, new_texts) AS t (name, old_text, new_text)
             WHERE t.old_text IS DISTINCT FROM t.new_text;
            IF changed.ignored AND NOT changed.seen THEN
                RETURN;
            END IF;
        END IF;
        event := event || jsonb_build_object('ev_data', CASE format
            WHEN 'json' THEN pgque._row_json(relation, CASE op WHEN 'DELETE' THEN old_row ELSE new_row END, sent)
            WHEN 'url' THEN pgque._row_urlencoded(sent, pgque._of_columns(CASE op WHEN 'DELETE' THEN old_texts ELSE new_texts END, names, sent))
            ELSE pgque._row_sql(op, relation, quote_ident(target[1]) || '.' || quote_ident(target[2]), key, ignored,
                                old_texts, new_texts, (arguments ->> 'fragments')::boolean) END);
        IF op = 'UPDATE' AND (arguments ->> 'backup')::boolean THEN
            event := event || jsonb_build_object('ev_extra2', CASE format
                WHEN 'json' THEN pgque._row_json(relation, old_row, sent)
                ELSE pgque._row_urlencoded(sent, pgque._of_columns(old_texts, names, sent)) END);
        END IF;
    END IF;
    event := event || jsonb_build_object('ev_type', CASE format
        WHEN 'json' THEN format('{"op":"%s","table":%s,"pkey":%s}', op, to_json(target), to_json(key))
        WHEN 'url' THEN pgque._op_letter(op) || CASE op WHEN 'TRUNCATE' THEN '' ELSE ':' || array_to_string(key, ',') END
        ELSE pgque._op_letter(op) END);
    IF arguments -> 'fields' <> '{}' THEN
        IF op = 'TRUNCATE' THEN
            new_row := ROW();
        END IF;
        SELECT event || coalesce(jsonb_object_agg(f.key, pgque._row_expression(f.value, CASE op WHEN 'DELETE' THEN old_row ELSE new_row END)), '{}')
          INTO event FROM jsonb_each_text(arguments -> 'fields') f;
        IF event ? 'when' AND NOT coalesce((event ->> 'when')::boolean, false) THEN
            RETURN;
        END IF;
    END IF;
    PERFORM pgque.insert_event(queue_name, event ->> 'ev_type', event ->> 'ev_data', event ->> 'ev_extra1',
                               event ->> 'ev_extra2', event ->> 'ev_extra3', event ->> 'ev_extra4');
END $$;


-- I, U, D, and R for TRUNCATE.
CREATE OR REPLACE FUNCTION pgque._op_letter(op text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE op WHEN 'TRUNCATE' THEN 'R' ELSE left(op, 1) END
$$;


-- The values of some of a row's columns.
CREATE OR REPLACE FUNCTION pgque._of_columns(texts text[], names text[], wanted text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(texts[array_position(names, w)] ORDER BY n) FROM unnest(wanted) WITH ORDINALITY AS t (w, n)
$$;


-- Sends rows as JSON. ev_type is {"op": .., "table": [schema, name], "pkey": [..]}, ev_data an object, ev_extra1 the
-- table's name with its schema.
CREATE OR REPLACE FUNCTION pgque.jsontriga() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arguments jsonb;
BEGIN
    IF TG_NARGS < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'Trigger needs queue name';
    ELSIF TG_LEVEL <> (CASE TG_OP WHEN 'TRUNCATE' THEN 'STATEMENT' ELSE 'ROW' END) THEN
        RAISE EXCEPTION USING ERRCODE = '42P17', MESSAGE = format('trigger "%s" must be FOR EACH %s', TG_NAME,
            CASE TG_OP WHEN 'TRUNCATE' THEN 'STATEMENT' ELSE 'ROW' END);
    END IF;
    arguments := pgque._trigger_arguments(TG_RELID, TG_ARGV[1:]);
    PERFORM pgque._trigger_event('json', TG_ARGV[0], arguments, TG_OP, TG_RELID, ARRAY[TG_TABLE_SCHEMA, TG_TABLE_NAME]::text[],
                                 CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN OLD END,
                                 CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN NEW END);
    IF TG_WHEN <> 'AFTER' AND (arguments ->> 'skip')::boolean THEN
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;


-- Sends rows URL-encoded. ev_type is I:, U: or D: and the key's columns, ev_data column=value pairs joined by '&', where a
-- null is the column's name alone, ev_extra1 the table's name with its schema.
CREATE OR REPLACE FUNCTION pgque.logutriga() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arguments jsonb;
BEGIN
    IF TG_NARGS < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'Trigger needs queue name';
    ELSIF TG_LEVEL <> (CASE TG_OP WHEN 'TRUNCATE' THEN 'STATEMENT' ELSE 'ROW' END) THEN
        RAISE EXCEPTION USING ERRCODE = '42P17', MESSAGE = format('trigger "%s" must be FOR EACH %s', TG_NAME,
            CASE TG_OP WHEN 'TRUNCATE' THEN 'STATEMENT' ELSE 'ROW' END);
    END IF;
    arguments := pgque._trigger_arguments(TG_RELID, TG_ARGV[1:]);
    PERFORM pgque._trigger_event('url', TG_ARGV[0], arguments, TG_OP, TG_RELID, ARRAY[TG_TABLE_SCHEMA, TG_TABLE_NAME]::text[],
                                 CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN OLD END,
                                 CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN NEW END);
    IF TG_WHEN <> 'AFTER' AND (arguments ->> 'skip')::boolean THEN
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;


-- Sends changes as SQL, ready to apply to a copy of the table: INSERT INTO .. VALUES .., UPDATE .. SET .. WHERE ..,
-- DELETE FROM .. WHERE ..; with the argument `fragments` PgQ's form, without the command and the table. ev_type is I, U or
-- D, ev_extra1 the table's name with its schema.
CREATE OR REPLACE FUNCTION pgque.sqltriga() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arguments jsonb;
BEGIN
    IF TG_NARGS < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'Trigger needs queue name';
    ELSIF TG_LEVEL <> (CASE TG_OP WHEN 'TRUNCATE' THEN 'STATEMENT' ELSE 'ROW' END) THEN
        RAISE EXCEPTION USING ERRCODE = '42P17', MESSAGE = format('trigger "%s" must be FOR EACH %s', TG_NAME,
            CASE TG_OP WHEN 'TRUNCATE' THEN 'STATEMENT' ELSE 'ROW' END);
    END IF;
    arguments := pgque._trigger_arguments(TG_RELID, TG_ARGV[1:]);
    PERFORM pgque._trigger_event('sql', TG_ARGV[0], arguments, TG_OP, TG_RELID, ARRAY[TG_TABLE_SCHEMA, TG_TABLE_NAME]::text[],
                                 CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN OLD END,
                                 CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN NEW END);
    IF TG_WHEN <> 'AFTER' AND (arguments ->> 'skip')::boolean THEN
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
