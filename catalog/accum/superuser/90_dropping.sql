-- A register's tables and functions go with the register: DROP TABLE or DROP FUNCTION, which would leave the rest of it behind, is
-- refused. DROP OWNED takes all of it, but for its line in the list.


-- After DROP. Of what was attached as a partition PostgreSQL drops the trigger `dim_hash` that it had copied there, which it takes
-- away when it is detached. `register_drop` takes the register out of the list first, and `register_alter` says what it does; with the
-- schema goes the list itself.
CREATE OR REPLACE FUNCTION accum_internal._on_sql_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    register text;
    dropped text;
    attached boolean;
BEGIN
    IF to_regclass('@extschema@._registers') IS NULL THEN
        RETURN;
    ELSIF TG_TAG = 'DROP OWNED' THEN
        DELETE FROM @extschema@._registers AS g USING pg_event_trigger_dropped_objects() AS o
         WHERE o.classid = 'pg_class'::regclass AND o.objid = g.movements AND o.objsubid = 0;
        RETURN;
    END IF;
    SELECT g.name, CASE o.object_type WHEN 'trigger' THEN accum_internal._name(o.address_names[2])
                                      WHEN 'function' THEN o.object_identity ELSE accum_internal._name(o.object_name) END,
           o.object_type = 'trigger'
      INTO register, dropped, attached
      FROM pg_event_trigger_dropped_objects() AS o
      JOIN @extschema@._registers AS g ON CASE o.object_type
               WHEN 'trigger' THEN o.address_names[3] = 'dim_hash' AND accum_internal._is_partition(g, o.address_names[2])
               WHEN 'function' THEN strpos(o.address_names[2], g.name) > 0 AND accum_internal._lacks_function(g, o.address_names[2])
               ELSE o.object_name = ANY (accum_internal._relations_of(g)) END
     WHERE o.object_type IN ('table', 'view', 'trigger', 'function') AND (
               o.address_names[1] = (SELECT n.nspname FROM pg_namespace AS n WHERE n.oid = '@extschema@'::regnamespace)
               OR o.object_type = 'function' AND o.address_names[1] = 'accum_internal')
       AND g.name IS DISTINCT FROM nullif(current_setting('pg_accumulator.altered', true), '')
     ORDER BY 3 LIMIT 1;
    IF attached THEN
        RAISE EXCEPTION 'cannot drop % because it is a partition of register "%"', dropped, register USING ERRCODE = '2BP01',
            HINT = format('SELECT @extschema@.register_detach_partitions(%L, date) detaches partitions, which can be dropped then.', register);
    ELSIF FOUND THEN
        RAISE EXCEPTION 'cannot drop % because register "%" requires it', dropped, register USING ERRCODE = '2BP01',
            HINT = format('SELECT @extschema@.register_drop(%L) drops the register with all that belongs to it.', register);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION accum_internal._on_sql_drop() FROM PUBLIC;


-- Whether a register is without one of its functions of a name; others of that name are no concern of its.
CREATE OR REPLACE FUNCTION accum_internal._lacks_function(r @extschema@._registers, name text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM unnest(accum_internal._signatures_of(r)) AS signature
                    WHERE to_regprocedure(signature) IS NULL AND (parse_ident(split_part(signature, '(', 1)))[2] = name)
$$;


DROP EVENT TRIGGER IF EXISTS pg_accumulator_drop_guard;
CREATE EVENT TRIGGER pg_accumulator_drop_guard ON sql_drop
    WHEN TAG IN ('DROP TABLE', 'DROP VIEW', 'DROP SCHEMA', 'DROP OWNED', 'DROP TYPE', 'DROP EXTENSION', 'DROP FUNCTION',
                 'DROP ROUTINE')
    EXECUTE FUNCTION accum_internal._on_sql_drop();
DROP FUNCTION IF EXISTS @extschema@._on_sql_drop();  -- of an earlier version
