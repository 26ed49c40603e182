-- What the server's role does for those who call: it makes, alters and drops what is in the schema of registers, in which nobody else
-- need be able to create anything.
--
-- A call is an INSERT into the view accum_internal.call, whose trigger has the rights of the server's role; its column `caller` is
-- current_user where the call is made, and nobody has the right to give it another value.
--
-- With these rights tables are made, altered and dropped, and nothing is executed that an owner could have written: no statement here reads or
-- writes an owner's table, since even planning one computes his indexes' expressions. What must do so runs by _as_owner. Types
-- and names come from the list of registers, which only these functions write.


CREATE OR REPLACE VIEW accum_internal.call AS
SELECT NULL::name AS caller, NULL::text AS operation, NULL::jsonb AS arguments, NULL::jsonb AS result WHERE false;
ALTER VIEW accum_internal.call ALTER caller SET DEFAULT current_user;
REVOKE ALL ON accum_internal.call FROM PUBLIC;
GRANT INSERT (operation, arguments), SELECT (result) ON accum_internal.call TO PUBLIC;


CREATE OR REPLACE FUNCTION accum_internal._carry_out() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    space CONSTANT name := nullif(current_setting('default_tablespace'), '');
BEGIN
    IF space IS NOT NULL AND NOT has_tablespace_privilege(NEW.caller, space, 'CREATE') THEN
        RAISE EXCEPTION 'permission denied for tablespace %', space USING ERRCODE = '42501';
    END IF;
    CASE NEW.operation
        WHEN 'lock' THEN PERFORM accum_internal._lock_document(NEW.caller, NEW.arguments);
        WHEN 'partition' THEN NEW.result := to_jsonb(accum_internal._put_partition(NEW.caller, NEW.arguments));
        WHEN 'create' THEN PERFORM accum_internal._put_register(NEW.caller, NEW.arguments);
        WHEN 'alter' THEN PERFORM accum_internal._alter_register(NEW.caller, NEW.arguments);
        WHEN 'drop' THEN PERFORM accum_internal._drop_register(NEW.caller, NEW.arguments);
        WHEN 'detach' THEN NEW.result := to_jsonb(accum_internal._detach_partitions(NEW.caller, NEW.arguments));
        ELSE RAISE EXCEPTION 'unknown operation: %', NEW.operation USING ERRCODE = '22023';
    END CASE;
    RETURN NEW;
END $$;
REVOKE EXECUTE ON FUNCTION accum_internal._carry_out() FROM PUBLIC;
CREATE OR REPLACE TRIGGER carry_out INSTEAD OF INSERT ON accum_internal.call FOR EACH ROW EXECUTE FUNCTION accum_internal._carry_out();


-- One call, as whoever calls this function.
CREATE OR REPLACE FUNCTION accum_internal._call(operation text, arguments jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO accum_internal.call (operation, arguments) VALUES (operation, arguments) RETURNING result
$$;


-- One at a time alters or drops a register; who waits then sees what the other has done. Returns its owner, NULL where its tables are
-- gone; then it is the server's, or that of who owns the schema. Raises 42501 before anything is locked.
CREATE OR REPLACE FUNCTION accum_internal._claim(caller name, p_name text) RETURNS oid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner CONSTANT oid := accum_internal._checked_owner(caller, p_name);
BEGIN
    PERFORM FROM @extschema@._registers AS g WHERE g.name = p_name FOR UPDATE;
    RETURN owner;
END $$;


-- Lock all tables of a register against everybody. Who writes, merges or repairs locks the movements first and then the epoch, and so does
-- this; but who reads may have begun with any other, or with a partition, and wait for the movements. So what then cannot be locked soon is
-- the end of this attempt, which gives back all locks before PostgreSQL looks for deadlocks. It counts from the moment from which one waits:
-- who has waited behind this one for the movements, and has another table, is let go. Raises 55P03 after lock_timeout.
CREATE OR REPLACE FUNCTION accum_internal._lock_tables(r @extschema@._registers) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    patience CONSTANT text := current_setting('lock_timeout');
    began CONSTANT timestamptz := clock_timestamp();
    epoch CONSTANT regclass := to_regclass(accum_internal._name(r.name || '_balance_cache_epoch'));
    others CONSTANT regclass[] := ARRAY(
        SELECT c.oid FROM unnest(accum_internal._own_name(r.name, 'current')
                                 || ARRAY(SELECT accum_internal._name(n) FROM unnest(accum_internal._relations_of(r)) AS n)) AS name
          JOIN pg_class AS c ON c.oid = to_regclass(name) ORDER BY c.relkind = 'v');  -- to lock a view is to lock what it reads
    partitions regclass[];
    statement text;
    soon timestamptz;
BEGIN
    LOOP
        soon := NULL;
        BEGIN
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', r.movements);
            soon := clock_timestamp() + interval '300 milliseconds';  -- from now on others wait for the movements
            partitions := ARRAY(SELECT t.relid FROM pg_partition_tree(r.movements) AS t WHERE t.level > 0);
            IF accum_internal._holds_up(r.movements, partitions || others) THEN
                RAISE EXCEPTION 'canceling statement due to lock timeout' USING ERRCODE = '55P03';
            END IF;
            FOREACH statement IN ARRAY CASE WHEN epoch IS NULL THEN '{}' ELSE ARRAY[format('LOCK TABLE %s IN EXCLUSIVE MODE', epoch)] END
                || ARRAY(SELECT format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', o) FROM unnest(partitions || others) AS o) LOOP
                PERFORM set_config('lock_timeout', greatest(1, extract(epoch FROM soon - clock_timestamp()) * 1000)::integer::text, true);
                EXECUTE statement;
            END LOOP;
            PERFORM set_config('lock_timeout', patience, true);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF soon IS NULL OR patience <> '0' AND clock_timestamp() > began + patience::interval THEN
                RAISE;
            END IF;
        END;
        PERFORM pg_sleep(0.01 + 0.05 * random());
    END LOOP;
END $$;


-- Whether somebody who waits for a table has a lock on another one.
CREATE OR REPLACE FUNCTION accum_internal._holds_up(awaited regclass, held regclass[]) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH locks AS MATERIALIZED (
        SELECT l.pid, l.relation, l.granted FROM pg_locks AS l
         WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
    SELECT EXISTS (SELECT FROM locks AS w JOIN locks AS h USING (pid)
                    WHERE NOT w.granted AND w.relation = awaited AND h.granted AND h.relation = ANY (held))
$$;
REVOKE EXECUTE ON FUNCTION accum_internal._holds_up(regclass, regclass[]) FROM PUBLIC;


-- Raises 42501 unless the caller is a member of a register's owner, whom it returns.
CREATE OR REPLACE FUNCTION accum_internal._checked_owner(caller name, p_name text) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid;
BEGIN
    SELECT accum_internal._owner_of(g) INTO owner FROM @extschema@._registers AS g WHERE g.name = p_name;
    IF NOT FOUND THEN
        PERFORM accum_internal._no_register(p_name);
    ELSIF NOT pg_has_role(caller, coalesce(owner, (SELECT n.nspowner FROM pg_namespace AS n WHERE n.oid = '@extschema@'::regnamespace)),
                          'USAGE') THEN
        RAISE EXCEPTION 'must be owner of register "%"', p_name USING ERRCODE = '42501';
    END IF;
    RETURN owner;
END $$;


-- One at a time takes back or replaces a document, until its transaction ends: another one that wants to insert the same row waits for
-- that, although the row has been deleted meanwhile. Only who may delete movements can hold others up.
CREATE OR REPLACE FUNCTION accum_internal._lock_document(caller name, arguments jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    _movements CONSTANT oid := (SELECT g.movements FROM @extschema@._registers AS g WHERE g.name = arguments ->> 'name');
    _recorder CONSTANT bigint := arguments ->> 'recorder';
BEGIN
    IF has_table_privilege(caller, _movements, 'DELETE') THEN
        INSERT INTO accum_internal.documents VALUES (_movements, _recorder);
        DELETE FROM accum_internal.documents AS d WHERE d.movements = _movements AND d.recorder = _recorder;
    END IF;
END $$;
