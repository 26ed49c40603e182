-- The life of a stream table: create, alter, drop, refresh, resume.
--
-- These functions pin no search_path, since the caller's own is part of the request; their bodies therefore hold
-- nothing but calls of qualified functions.


-- Create a stream table and, if initialize, populate it. schedule: a duration such as '30s', cron, 'calculated' or 'on
-- commit'. refresh_mode: AUTO, DIFFERENTIAL, FULL or IMMEDIATE. cdc_mode: trigger, wal or auto. engine: auto, postgres
-- or spark.
CREATE OR REPLACE FUNCTION pgtrickle.create_stream_table(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize bool DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only bool DEFAULT false,
    engine text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_create(name, query, schedule, refresh_mode, initialize, diamond_consistency,
        diamond_schedule_policy, cdc_mode, append_only, engine, 'refuse', pg_catalog.current_setting('search_path'));
END $$;


-- Like create_stream_table, but where the stream table exists already nothing happens, whatever its definition.
CREATE OR REPLACE FUNCTION pgtrickle.create_stream_table_if_not_exists(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize bool DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_create(name, query, schedule, refresh_mode, initialize, diamond_consistency,
        diamond_schedule_policy, cdc_mode, false, NULL, 'keep', pg_catalog.current_setting('search_path'));
END $$;


-- Like create_stream_table, but where the stream table exists already it gets this definition. Its table is kept, with
-- what depends on it; where the query means another one it is computed anew, and nothing happens where all is as it is.
-- initialize counts where the stream table is created.
CREATE OR REPLACE FUNCTION pgtrickle.create_or_replace_stream_table(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize bool DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only bool DEFAULT false
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_create(name, query, schedule, refresh_mode, initialize, diamond_consistency,
        diamond_schedule_policy, cdc_mode, append_only, NULL, 'replace', pg_catalog.current_setting('search_path'));
END $$;


-- Change the query, the schedule, the mode or the status of a stream table; what is NULL stays.
CREATE OR REPLACE FUNCTION pgtrickle.alter_stream_table(
    name text,
    query text DEFAULT NULL,
    schedule text DEFAULT NULL,
    refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only bool DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_alter(name, query, schedule, refresh_mode, status, diamond_consistency,
        diamond_schedule_policy, cdc_mode, append_only, pg_catalog.current_setting('search_path'));
END $$;


-- Drop a stream table, its storage (with CASCADE), and change capture that nobody else needs.
CREATE OR REPLACE FUNCTION pgtrickle.drop_stream_table(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_named('drop', name, pg_catalog.current_setting('search_path'));
END $$;


-- Refresh a stream table now; waits for a refresh of it that is already running. Raises 55000 if it is suspended.
CREATE OR REPLACE FUNCTION pgtrickle.refresh_stream_table(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_named('refresh', name, pg_catalog.current_setting('search_path'));
END $$;


-- Resume a suspended stream table and forget its errors. Raises 55000 if it is not suspended.
CREATE OR REPLACE FUNCTION pgtrickle.resume_stream_table(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request_named('resume', name, pg_catalog.current_setting('search_path'));
END $$;
