-- What administrators have created in this schema must not be taken for anything of this version's, nor have become it.

-- A function that these scripts have just replaced has kept its owner.
DO $$
DECLARE
    taken text;
BEGIN
    SELECT format('function %s, which belongs to role %s', p.oid::regprocedure, p.proowner::regrole) INTO taken
      FROM pg_proc p
     WHERE p.pronamespace = 'pgque'::regnamespace AND pgque._is_others(p.proowner)
       AND (p.xmin = pg_current_xact_id()::xid OR pgque._name_objection(p.oid) IS NOT NULL)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('this version needs the name of %s', taken),
            HINT = 'Rename it, or drop it.';
    END IF;
END $$;
