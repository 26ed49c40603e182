-- What administrators may create in the schema: functions whose names are not ours. Only a superuser can create event triggers.


-- At the end of every statement that changes definitions. It is about whoever executes it, so it has no rights of its own,
-- and says nothing of pgque to those who may not use it.
CREATE OR REPLACE FUNCTION pgque._on_names() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    command record;
    objection text;
BEGIN
    IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = current_user
                AND (r.rolsuper OR r.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgque'))) THEN
        RETURN;
    END IF;
    FOR command IN
        SELECT e.classid, e.objid FROM pg_event_trigger_ddl_commands() e
         WHERE e.schema_name = 'pgque'
            OR e.classid = 'pg_extension'::regclass
               AND EXISTS (SELECT FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
                            WHERE x.oid = e.objid AND n.nspname = 'pgque')
    LOOP
        objection := 'schema pgque is for plain functions';
        IF command.classid = 'pg_proc'::regclass THEN
            objection := pgque._name_objection(command.objid);
        END IF;
        IF objection IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = objection, HINT = 'Choose another name, or another schema.';
        END IF;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgque._on_names() FROM PUBLIC;

DROP EVENT TRIGGER IF EXISTS pgque_names;
CREATE EVENT TRIGGER pgque_names ON ddl_command_end EXECUTE FUNCTION pgque._on_names();
ALTER EVENT TRIGGER pgque_names ENABLE ALWAYS;

SELECT pgque._grant_create();
