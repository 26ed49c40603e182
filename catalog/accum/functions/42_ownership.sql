-- What registers own in this schema, by its name; 36_register_roles.sql has the roles that own it.


-- The names in this schema without which a register does not work. In high-write mode the documented ones are views.
CREATE OR REPLACE FUNCTION accum_internal._relations_of(r @extschema@._registers) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg((r).name || suffix) FROM unnest(
        '{_movements,_movements_audit,_movements_default,_detached}'::text[]
        || ARRAY(SELECT CASE kind WHEN 'cache' THEN '_balance_cache' ELSE '_totals_' || kind END || stored
                   FROM unnest(accum_internal._derived(r)) AS kind,
                        unnest(CASE WHEN (r).high_write THEN '{"",_stored}' ELSE '{""}' END::text[]) AS stored)
        || CASE WHEN (r).high_write THEN '{_balance_cache_delta,_balance_cache_epoch,_balance_cache_alive}' ELSE '{}' END::text[]) AS suffix
$$;


-- Whether a name is that of a partition, or of one that was detached.
CREATE OR REPLACE FUNCTION accum_internal._is_partition(r @extschema@._registers, relation text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT starts_with(relation, (r).name || '_movements_')
           AND substr(relation, length((r).name || '_movements_') + 1) ~ E'^\\d{4,}(_\\d\\d(_\\d\\d)?|_q\\d)?$'
$$;


-- Descriptions of what is in this schema and neither this system's nor a register's, so that it must not be dropped with them.
CREATE OR REPLACE FUNCTION accum_internal._others() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(o.description ORDER BY o.description), '{}')
      FROM (SELECT pg_describe_object('pg_class'::regclass, c.oid, 0)
              FROM pg_class AS c
             WHERE c.relnamespace = '@extschema@'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
               AND c.relname NOT IN ('_schema_version', '_registers', '_maintenance_runs', '_config')
               AND NOT EXISTS (SELECT FROM @extschema@._registers AS g
                                WHERE c.relname = ANY (accum_internal._relations_of(g)) OR accum_internal._is_partition(g, c.relname))
            UNION ALL
            SELECT pg_describe_object('pg_proc'::regclass, p.oid, 0)
              FROM pg_proc AS p
             WHERE p.pronamespace = '@extschema@'::regnamespace AND p.proname !~ '^(_|register_)'
               AND NOT EXISTS (SELECT FROM @extschema@._registers AS g
                                WHERE p.proname IN (g.name || '_balance', g.name || '_turnover', g.name || '_movements',
                                                    g.name || '_balance_at_each'))) AS o (description)
$$;
