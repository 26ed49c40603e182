-- Posting to a register by its name.


-- A recorder as a literal of its type, so that a call names exactly the function of the register, whatever others there
-- may be of that name. Raises 42704 if there is no such register, and what the type says of a recorder that is none.
CREATE OR REPLACE FUNCTION accum_internal._recorder_literal(register text, recorder text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    type text := (SELECT g.recorder_type FROM @extschema@._registers g WHERE g.name = register);
BEGIN
    IF type IS NULL THEN
        PERFORM accum_internal._no_register(register);
    END IF;
    type := accum_internal._recorder_type(type);
    IF type <> 'text' THEN
        BEGIN
            EXECUTE format('SELECT %L::%s', recorder, type);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
            RAISE EXCEPTION 'invalid recorder of register "%": %', register, SQLERRM USING ERRCODE = SQLSTATE;
        END;
    END IF;
    RETURN format('%L::%s', recorder, type);
END $$;


-- Post one movement (an object) or many (an array of objects). Returns how many.
CREATE OR REPLACE FUNCTION @extschema@.register_post(p_register text, p_data jsonb) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name CONSTANT text := 'accum_internal.' || quote_ident(p_register || '.post');
    posted integer;
BEGIN
    IF p_register IS NULL OR to_regprocedure(name || '(jsonb)') IS NULL THEN
        PERFORM accum_internal._no_register(p_register);
    END IF;
    EXECUTE 'SELECT ' || name || '($1)' INTO posted USING p_data;
    RETURN posted;
END $$;


-- Take back all movements of a recorder. Returns how many there were.
CREATE OR REPLACE FUNCTION @extschema@.register_unpost(p_register text, p_recorder text) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$ SELECT accum_internal._unpost(p_register, p_recorder) $$;

CREATE OR REPLACE FUNCTION accum_internal._unpost(p_register text, p_recorder text) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed integer;
BEGIN
    EXECUTE format('SELECT %s(%s)', accum_internal._own_name(p_register, 'unpost'),
                   accum_internal._recorder_literal(p_register, p_recorder)) INTO removed;
    RETURN removed;
END $$;


-- Take back all movements of a recorder that is no text. Returns how many there were.
CREATE OR REPLACE FUNCTION @extschema@.register_unpost(p_register text, p_recorder anynonarray) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._unpost(p_register, p_recorder::text)
$$;


-- Put movements in the place of all movements of a recorder. Returns how many have been posted.
CREATE OR REPLACE FUNCTION @extschema@.register_repost(p_register text, p_recorder text, p_data jsonb) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$ SELECT accum_internal._repost(p_register, p_recorder, p_data) $$;

CREATE OR REPLACE FUNCTION accum_internal._repost(p_register text, p_recorder text, p_data jsonb) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    posted integer;
BEGIN
    EXECUTE format('SELECT %s(%s, $1)', accum_internal._own_name(p_register, 'repost'),
                   accum_internal._recorder_literal(p_register, p_recorder)) INTO posted USING p_data;
    RETURN posted;
END $$;


-- Put movements in the place of all movements of a recorder that is no text. Returns how many have been posted.
CREATE OR REPLACE FUNCTION @extschema@.register_repost(p_register text, p_recorder anynonarray, p_data jsonb) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT accum_internal._repost(p_register, p_recorder::text, p_data)
$$;
