-- Registers that are there get the functions and indexes of this version. They are made anew with the rights of each register's owner;
-- where that cannot be, since the role that installs may not act as the owner, or the owner lost rights in this schema, the
-- register keeps the functions that it has.
DO $$
DECLARE
    before CONSTANT text := current_setting('role');
    register text;
    owner text;
    r @extschema@._registers;
BEGIN
    FOR register, owner IN
        SELECT g.name, a.rolname
          FROM @extschema@._registers AS g
          JOIN pg_class AS c ON c.relnamespace = '@extschema@'::regnamespace AND c.relname = g.name || '_movements'
          JOIN pg_roles AS a ON a.oid = c.relowner
         ORDER BY g.name
    LOOP
        BEGIN
            PERFORM set_config('role', owner, true);
            r := @extschema@._register(register);
            PERFORM @extschema@._create_functions(r);
            PERFORM @extschema@._index_period(r, grain) FROM unnest(@extschema@._grains(r.totals_period)) AS grain;
            PERFORM @extschema@._rehash(r) WHERE jsonb_path_exists(r.dimensions, '$.* ? (@ == "date")');
            PERFORM set_config('role', before, true);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'functions of register "%" are those of an earlier version: %', register, SQLERRM
                USING HINT = format('Make them anew as role "%s": SELECT @extschema@.register_alter(%L);', owner, register);
        END;
    END LOOP;
END $$;
