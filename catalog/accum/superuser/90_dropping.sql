-- A register's tables go with the register: DROP TABLE, which would leave the rest of it behind, is refused. DROP OWNED
-- takes all of it, but for its line in the list.


-- The names in this schema without which a register does not work. In high-write mode the documented ones are views.
CREATE OR REPLACE FUNCTION @extschema@._relations_of(r @extschema@._registers) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg((r).name || suffix) FROM unnest(
        '{_movements,_movements_audit,_movements_default}'::text[]
        || ARRAY(SELECT CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END || stored
                   FROM unnest(@extschema@._derived(r)) AS kind,
                        unnest(CASE WHEN (r).high_write THEN '{"",_stored}' ELSE '{""}' END::text[]) AS stored)
        || CASE WHEN (r).high_write THEN '{_balance_cache_delta,_balance_cache_epoch}' ELSE '{}' END::text[]) AS suffix
$$;


-- After DROP. `register_drop` takes the register out of the list first, and `register_alter` says what it does; with the
-- schema goes the list itself.
CREATE OR REPLACE FUNCTION @extschema@._on_sql_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    register text;
    relation text;
BEGIN
    IF to_regclass('@extschema@._registers') IS NULL THEN
        RETURN;
    ELSIF TG_TAG = 'DROP OWNED' THEN
        DELETE FROM @extschema@._registers AS g USING pg_event_trigger_dropped_objects() AS o
         WHERE o.object_type = 'table' AND o.object_name = g.name || '_movements' AND o.schema_name::text = (
                   SELECT n.nspname FROM pg_namespace AS n WHERE n.oid = '@extschema@'::regnamespace);
        RETURN;
    END IF;
    SELECT g.name, o.object_name INTO register, relation
      FROM pg_event_trigger_dropped_objects() AS o JOIN @extschema@._registers AS g ON o.object_name = ANY (@extschema@._relations_of(g))
     WHERE o.object_type IN ('table', 'view') AND o.schema_name::text = (
               SELECT n.nspname FROM pg_namespace AS n WHERE n.oid = '@extschema@'::regnamespace)
       AND g.name IS DISTINCT FROM nullif(current_setting('pg_accumulator.altered', true), '')
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'cannot drop % because register "%" requires it', @extschema@._name(relation), register USING ERRCODE = '2BP01',
            HINT = format('SELECT @extschema@.register_drop(%L) drops the register with all that belongs to it.', register);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION @extschema@._on_sql_drop() FROM PUBLIC;


DROP EVENT TRIGGER IF EXISTS pg_accumulator_drop_guard;
CREATE EVENT TRIGGER pg_accumulator_drop_guard ON sql_drop
    WHEN TAG IN ('DROP TABLE', 'DROP VIEW', 'DROP SCHEMA', 'DROP OWNED', 'DROP TYPE', 'DROP EXTENSION')
    EXECUTE FUNCTION @extschema@._on_sql_drop();
