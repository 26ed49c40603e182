-- Locks that nobody else can take.

-- A name that is too long for its channel makes ticks fail. Whoever is creating a queue at this moment is waited for.
ALTER TABLE pgque.queue ADD CHECK (queue_name <> '' AND octet_length(convert_to(queue_name, 'UTF8')) <= 57) NOT VALID;

-- A queue's row is locked by whoever ticks it, row 0 by whoever creates, drops or switches queues.
CREATE TABLE pgque.mutex (queue_id integer PRIMARY KEY);
REVOKE ALL ON TABLE pgque.mutex FROM PUBLIC;
INSERT INTO pgque.mutex (queue_id) SELECT 0 UNION ALL SELECT q.queue_id FROM pgque.queue q;

-- In a new installation: what the schema, if it was there before, has allowed to others.
DO $$
DECLARE
    grantee text;
BEGIN
    IF to_regprocedure('pgque._install_roles()') IS NULL THEN
        FOR grantee IN
            SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
              FROM pg_namespace n, aclexplode(n.nspacl) AS a
             WHERE n.nspname = 'pgque' AND a.grantee <> n.nspowner
        LOOP
            EXECUTE format('REVOKE ALL ON SCHEMA pgque FROM %s CASCADE', grantee);
        END LOOP;
    END IF;
END $$;

-- Of an earlier version's rights of administrators: a foreign key to these tables may have an implicit cast called with
-- their owner's rights, a trigger anything.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', k.conrelid::regclass, k.conname)
          FROM pg_constraint k
          JOIN pg_class c ON c.oid = k.confrelid AND c.relnamespace = 'pgque'::regnamespace
          JOIN pg_class r ON r.oid = k.conrelid AND r.relnamespace <> 'pgque'::regnamespace
         WHERE k.contype = 'f' AND k.conparentid = 0
        UNION ALL
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass)
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid AND c.relnamespace = 'pgque'::regnamespace
         WHERE NOT t.tgisinternal AND t.tgname <> 'queues_changed'
    LOOP
        RAISE WARNING 'pgque: %', command;
        EXECUTE command;
    END LOOP;
END $$;
