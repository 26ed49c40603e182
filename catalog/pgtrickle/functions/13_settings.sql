-- The settings pg_trickle.*: what is in force, and what is wrong with it. What there is stands in _known_settings.


-- A setting of this session, else of the database or cluster as ALTER DATABASE and ALTER ROLE ALL leave it (a session
-- older than such a change does not see it by itself), and where it is from; NULL where nobody has set it. The engine's own
-- sessions are old, and set nothing: there what ALTER DATABASE says comes first.
CREATE OR REPLACE FUNCTION pgtrickle._given_setting(name text, OUT value text, OUT source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    stored record;
BEGIN
    value := nullif(current_setting(name, true), '');
    source := CASE WHEN value IS NOT NULL THEN 'session' END;
    IF value IS NULL OR current_setting('headwater.engine', true) = 'on' THEN
        SELECT nullif(substr(entry, length(name) + 2), '') AS value,
               CASE s.setdatabase WHEN 0 THEN 'global' ELSE 'database' END AS source
        INTO stored
        FROM pg_db_role_setting s, unnest(s.setconfig) AS entry
        WHERE s.setrole = 0
          AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
          AND starts_with(lower(entry), lower(name) || '=')
        ORDER BY s.setdatabase DESC
        LIMIT 1;
        IF stored.value IS NOT NULL THEN
            value := stored.value;
            source := stored.source;
        END IF;
    END IF;
END $$;


-- The names of all that _given_setting finds set for the database or the cluster, in lower case.
CREATE OR REPLACE FUNCTION pgtrickle._stored_settings() RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN ARRAY(SELECT lower(split_part(entry, '=', 1)) FROM pg_db_role_setting s, unnest(s.setconfig) AS entry
                 WHERE s.setrole = 0 AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())));
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._stored_settings() FROM PUBLIC;


-- What is wrong with a value of a setting, NULL if nothing is. Settings that are not known take any value.
CREATE OR REPLACE FUNCTION pgtrickle._setting_fault(name text, value text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k record;
BEGIN
    SELECT * INTO k FROM pgtrickle._known_settings() s WHERE s.name = lower(_setting_fault.name);
    IF value IS NULL OR NOT FOUND THEN
        RETURN NULL;
    ELSIF k.pattern <> '' AND lower(value) !~ k.pattern THEN
        RETURN format('invalid value for parameter "%s": "%s"', k.name, value);
    ELSIF k.min_val IS NOT NULL AND value::float8 NOT BETWEEN k.min_val AND k.max_val THEN
        RETURN format('%s is outside the valid range for parameter "%s" (%s .. %s)', btrim(value), k.name, k.min_val, k.max_val);
    ELSIF k.fixed <> '' AND k.vartype = 'bool' AND value::boolean = k.boot_val::boolean THEN
        RETURN NULL;
    ELSIF k.fixed <> '' AND lower(btrim(value)) <> k.boot_val THEN
        RETURN format('parameter "%s" cannot be set to "%s": %s', k.name, value, k.fixed);
    END IF;
    RETURN NULL;
END $$;


-- A value that a setting can have, in lower case, a truth value as "on" or "off"; its default tells whether it is one.
CREATE OR REPLACE FUNCTION pgtrickle._plain_setting(value text, boot_val text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF boot_val IN ('on', 'off') AND value ~* '^(true|false|yes|no|1|0|on|off)$' THEN
        RETURN CASE WHEN value::boolean THEN 'on' ELSE 'off' END;
    END IF;
    RETURN lower(btrim(value));
END $$;


-- A setting as it is in force: what has been given (_given_setting), or the given default. In place of a value that it cannot
-- have, which came past the server, the default holds, with a warning. A setting pg_trickle.* is in lower case, a truth value
-- "on" or "off": whoever reads it need not check it again.
CREATE OR REPLACE FUNCTION pgtrickle._setting(name text, fallback text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := (pgtrickle._given_setting(name)).value;
    fault text;
BEGIN
    IF given IS NULL OR NOT starts_with(lower(name), 'pg_trickle.') THEN
        RETURN coalesce(given, fallback);
    END IF;
    fault := pgtrickle._setting_fault(name, given);
    IF fault IS NOT NULL THEN
        RAISE WARNING '%', fault USING HINT = format('Its default, %s, is used instead.', fallback);
        RETURN fallback;
    END IF;
    RETURN pgtrickle._plain_setting(given, fallback);
END $$;


-- The value of a setting as SHOW gives it, for which PostgreSQL knows only those that somebody has set. Raises 42704.
CREATE OR REPLACE FUNCTION pgtrickle.show_setting(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known record;
BEGIN
    SELECT k.name, k.boot_val INTO known FROM pgtrickle._known_settings() k WHERE k.name = lower(show_setting.name);
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('unrecognized configuration parameter "%s"', name);
    END IF;
    RETURN pgtrickle._setting(known.name, known.boot_val);
END $$;


-- All settings, with columns as pg_settings has them. A source is "default", "global" (ALTER ROLE ALL), "database" or "session",
-- which is also what a role's settings and the cluster's configuration have given it.
CREATE OR REPLACE VIEW pgtrickle.settings AS
SELECT k.name, CASE WHEN g.source IS NULL OR f.fault IS NOT NULL THEN k.boot_val ELSE pgtrickle._plain_setting(g.value, k.boot_val) END AS setting,
       k.unit, k.short_desc, k.vartype, CASE WHEN f.fault IS NULL THEN coalesce(g.source, 'default') ELSE 'default' END AS source,
       k.min_val, k.max_val, k.enumvals, k.boot_val, f.fault AS error
FROM pgtrickle._known_settings() k CROSS JOIN LATERAL pgtrickle._given_setting(k.name) g
CROSS JOIN LATERAL (SELECT pgtrickle._setting_fault(k.name, g.value) AS fault OFFSET 0) f;
GRANT SELECT ON pgtrickle.settings TO PUBLIC;
