-- Nobody but the server's role needs to create anything in the schema of registers: whoever can do so can put a function beside
-- ours that others call instead. What only functions call moves to schemas in which nobody else can create.

-- The scripts of functions fill accum_internal. In accum_roles are functions that belong to roles, see _as_owner; no role may look into
-- it, since the owner of a function can alter it if he can name it.
DO $$
DECLARE
    foreign_schema record;
BEGIN
    SELECT n.nspname, a.rolname INTO foreign_schema FROM pg_namespace AS n JOIN pg_roles AS a ON a.oid = n.nspowner
     WHERE n.nspname IN ('accum_internal', 'accum_roles') AND NOT a.rolsuper AND a.rolname <> current_user;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42710',
            MESSAGE = format('schema %I exists and belongs to role "%s"', foreign_schema.nspname, foreign_schema.rolname),
            HINT = 'Drop or rename it, or use another database.';
    END IF;
    -- Left behind where the schema of registers was dropped by itself; what is in them serves nothing else.
    DROP SCHEMA IF EXISTS accum_internal, accum_roles CASCADE;
END $$;
CREATE SCHEMA accum_internal;
GRANT USAGE ON SCHEMA accum_internal TO PUBLIC;
CREATE SCHEMA accum_roles;

-- Documents that are being taken back or replaced, see _lock_document; its rows are gone when a transaction ends.
CREATE UNLOGGED TABLE accum_internal.documents (
    movements oid,
    recorder bigint,
    PRIMARY KEY (movements, recorder)
);

-- Locked by who changes the rights on a schema for a moment: PostgreSQL refuses two such changes at once.
CREATE TABLE accum_internal.ownership_changes ();

-- Only the server's role writes to the list; a register is its table of movements, whatever that is called.
DROP POLICY owners_insert ON @extschema@._registers;
DROP POLICY owners_update ON @extschema@._registers;
DROP POLICY owners_delete ON @extschema@._registers;
REVOKE INSERT, UPDATE, DELETE ON @extschema@._registers FROM PUBLIC;
DROP FUNCTION @extschema@._owns(text);
ALTER TABLE @extschema@._registers ADD COLUMN movements regclass;
DO $$
DECLARE
    register text;
BEGIN
    UPDATE @extschema@._registers AS g SET movements = c.oid FROM pg_class AS c
     WHERE c.relnamespace = '@extschema@'::regnamespace AND c.relname = g.name || '_movements' AND c.relkind = 'p';
    FOR register IN
        DELETE FROM @extschema@._registers WHERE name !~ E'^\\w+$' OR octet_length(name) > 40 OR movements IS NULL RETURNING name
    LOOP
        RAISE WARNING 'register "%" was in the list without a table of movements, and is not any more', register;
    END LOOP;
END $$;

-- Who could create registers still can; in a schema that is the server's own that is all that he can.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END
          FROM pg_namespace AS n, aclexplode(n.nspacl) AS g
         WHERE n.oid = '@extschema@'::regnamespace AND n.nspname = 'accum' AND g.privilege_type = 'CREATE' AND g.grantee <> n.nspowner
    LOOP
        EXECUTE format('GRANT INSERT ON @extschema@._registers TO %s', grantee);
        EXECUTE format('REVOKE CREATE ON SCHEMA @extschema@ FROM %s CASCADE', grantee);
    END LOOP;
END $$;
