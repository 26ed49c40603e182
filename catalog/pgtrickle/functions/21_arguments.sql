-- The arguments of the public functions: each is checked here, once, before a request is written down.


-- 22023 for a value that is none of an option's.
CREATE OR REPLACE FUNCTION pgtrickle._unknown_value(option text, value text, allowed text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('invalid %s "%s"', option, value),
        HINT = format('Valid values are %s.', allowed);
END $$;


-- 0A000 for what the reference has and this version has not.
CREATE OR REPLACE FUNCTION pgtrickle._not_supported(what text, hint text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._raise('0A000', what || ' not supported yet', NULL, hint);
END $$;


-- A schedule as it is stored: a duration, a cron expression or 'calculated'. NULL stays NULL. 'on commit' is the shortest duration that
-- is allowed: a commit brings about a refresh, where the schedule is short.
CREATE OR REPLACE FUNCTION pgtrickle._check_schedule(schedule text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := btrim(schedule);
    seconds bigint := pgtrickle._duration_seconds(schedule);
    least_seconds bigint := pgtrickle._setting('pg_trickle.min_schedule_seconds', '1')::bigint;
BEGIN
    IF schedule IS NULL THEN
        RETURN NULL;
    ELSIF lower(given) = 'calculated' THEN
        RETURN 'calculated';
    ELSIF given ~* E'^on\\s+commit$' THEN
        IF least_seconds > 10 THEN
            RAISE EXCEPTION USING ERRCODE = '22023',
                MESSAGE = format('schedule "on commit" needs a schedule of 10 s at most, and the minimum is %s s', least_seconds),
                HINT = 'The minimum is set by pg_trickle.min_schedule_seconds.';
        ELSIF pgtrickle._setting('pg_trickle.event_driven_wake', 'on') = 'off' THEN
            RAISE WARNING USING MESSAGE = format('no commit brings about a refresh, which is made every %s s', least_seconds),
                DETAIL = 'pg_trickle.event_driven_wake is off.';
        END IF;
        RETURN greatest(least_seconds, 1) || 's';
    ELSIF seconds >= least_seconds THEN
        RETURN given;
    ELSIF seconds IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('schedule "%s" is shorter than the minimum of %s s', given, least_seconds),
            HINT = 'The minimum is set by pg_trickle.min_schedule_seconds.';
    ELSIF given ~* '^@(yearly|annually|monthly|weekly|daily|midnight|hourly)$' THEN
        RETURN lower(given);
    ELSIF length(given) <= 200 AND given ~ E'^([0-9*,/LW#A-Za-z-]+\\s+){4,5}[0-9*,/LW#A-Za-z-]+$' THEN
        RETURN regexp_replace(given, E'\\s+', ' ', 'g');  -- the engine looks whether it means anything
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('invalid schedule "%s"', schedule),
        HINT = 'Use a duration such as ''30s'', ''5m'' or ''1h30m'', a cron expression such as ''*/5 * * * *'' or ''@hourly'', ''on commit'' or ''calculated''.';
END $$;


-- A refresh mode in capitals. NULL stays NULL.
CREATE OR REPLACE FUNCTION pgtrickle._check_refresh_mode(refresh_mode text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF upper(refresh_mode) NOT IN ('AUTO', 'FULL', 'DIFFERENTIAL', 'IMMEDIATE') THEN
        PERFORM pgtrickle._unknown_value('refresh mode', refresh_mode, 'AUTO, FULL, DIFFERENTIAL and IMMEDIATE');
    END IF;
    RETURN upper(refresh_mode);
END $$;


-- Options that are one of a few words.
CREATE OR REPLACE FUNCTION pgtrickle._check_options(
    diamond_consistency text, diamond_schedule_policy text, cdc_mode text, append_only bool
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF lower(diamond_consistency) NOT IN ('none', 'atomic') THEN
        PERFORM pgtrickle._unknown_value('diamond consistency', diamond_consistency, '''none'' and ''atomic''');
    END IF;
    IF lower(diamond_schedule_policy) NOT IN ('fastest', 'slowest') THEN
        PERFORM pgtrickle._unknown_value('diamond schedule policy', diamond_schedule_policy,
                                         '''fastest'' and ''slowest''');
    END IF;
    IF lower(cdc_mode) = 'wal' THEN
        PERFORM pgtrickle._check_wal_available();
    ELSIF lower(cdc_mode) NOT IN ('auto', 'trigger') THEN
        PERFORM pgtrickle._unknown_value('cdc mode', cdc_mode, '''trigger'', ''wal'' and ''auto''');
    END IF;
END $$;


-- Raises 22023 for a query that is empty.
CREATE OR REPLACE FUNCTION pgtrickle._check_query(query text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF btrim(query, E' \t\r\n;') = '' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'query of the stream table must not be empty';
    END IF;
END $$;


-- Whether a name to be created, in public where no schema is said, is that of a stream table.
CREATE OR REPLACE FUNCTION pgtrickle._names_stream_table(name text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := parse_ident(name);
BEGIN
    IF cardinality(parts) = 1 THEN
        parts := ARRAY['public'] || parts;
    END IF;
    RETURN EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE ARRAY[s.pgt_schema, s.pgt_name]::text[] = parts);
END $$;


-- A request to create. Runs with the caller's rights, as all of these. What becomes of a stream table that exists: it is an
-- error ('refuse'), stays as it is ('keep'), or gets this definition ('replace').
DROP FUNCTION IF EXISTS pgtrickle._request_create(text, text, text, text, bool, text, text, text, bool, text, bool, text);
CREATE OR REPLACE FUNCTION pgtrickle._request_create(
    name text, query text, schedule text, refresh_mode text, initialize bool, diamond_consistency text,
    diamond_schedule_policy text, cdc_mode text, append_only bool, engine text, existing text, path text
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._check_name(name);
    IF existing = 'keep' AND pgtrickle._names_stream_table(name) THEN
        PERFORM pgtrickle._notice('INFO', format('stream table "%s" already exists, skipping', name), NULL);
        RETURN;  -- whatever the other arguments are
    END IF;
    IF query IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'query of the stream table must not be null';
    END IF;
    PERFORM pgtrickle._check_query(query);
    schedule := pgtrickle._check_schedule(schedule);
    refresh_mode := pgtrickle._check_refresh_mode(refresh_mode);
    PERFORM pgtrickle._check_options(diamond_consistency, diamond_schedule_policy, cdc_mode, append_only);
    IF lower(engine) NOT IN ('auto', 'postgres', 'spark') THEN
        PERFORM pgtrickle._unknown_value('engine', engine, '''auto'', ''postgres'' and ''spark''');
    END IF;
    PERFORM pgtrickle._request('create', jsonb_build_object(
        'name', name,
        'query', query,
        'schedule', coalesce(schedule, 'calculated'),
        'refresh_mode', coalesce(refresh_mode, 'AUTO'),
        'initialize', coalesce(initialize, true),
        'diamond_consistency', lower(diamond_consistency),
        'diamond_schedule_policy', lower(diamond_schedule_policy),
        'cdc_mode', lower(cdc_mode),
        'append_only', coalesce(append_only, false),
        'engine', lower(engine),
        'if_not_exists', existing = 'keep',
        'or_replace', existing = 'replace'), path);
END $$;


-- A request to alter. The stream table itself is looked up when the request is carried out: the same statement may
-- have asked for its creation.
CREATE OR REPLACE FUNCTION pgtrickle._request_alter(
    name text, query text, schedule text, refresh_mode text, status text, diamond_consistency text,
    diamond_schedule_policy text, cdc_mode text, append_only bool, path text
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._check_name(name);
    PERFORM pgtrickle._check_query(query);
    schedule := pgtrickle._check_schedule(schedule);
    refresh_mode := pgtrickle._check_refresh_mode(refresh_mode);
    PERFORM pgtrickle._check_options(diamond_consistency, diamond_schedule_policy, cdc_mode, append_only);
    IF upper(status) NOT IN ('ACTIVE', 'SUSPENDED') THEN
        PERFORM pgtrickle._unknown_value('status', status, 'ACTIVE and SUSPENDED');
    END IF;
    PERFORM pgtrickle._request('alter', jsonb_build_object(
        'name', name,
        'query', query,
        'schedule', schedule,
        'refresh_mode', refresh_mode,
        'status', upper(status),
        'diamond_consistency', lower(diamond_consistency),
        'diamond_schedule_policy', lower(diamond_schedule_policy),
        'cdc_mode', lower(cdc_mode),
        'append_only', append_only), path);
END $$;


-- A request that has no argument but the name.
CREATE OR REPLACE FUNCTION pgtrickle._request_named(kind text, name text, path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._check_name(name);
    PERFORM pgtrickle._request(kind, jsonb_build_object('name', name), path);
END $$;
