-- The functions of users that a query calls: what they do, and whether they have changed.


-- MD5 of what a function does: its code, how it is declared, what an aggregate is made of, the operators and casts that
-- call it; the same of every other function of its name, which a query could come to mean; and of all that their code
-- mentions: functions, operators, casts and CHECKs of domains, as far as users have written them. The code is text, so
-- whatever has a mentioned name counts. What a function puts together and executes at run time cannot be seen.
CREATE OR REPLACE FUNCTION pgtrickle._body_hash(function oid) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    reached oid[] := '{}';
    fresh oid[] := ARRAY[function];
    code text;
BEGIN
    WHILE cardinality(fresh) > 0 LOOP
        reached := reached || fresh;
        SELECT lower(string_agg(coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), ' ')) INTO code
        FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE p.oid = ANY (fresh) AND l.lanname NOT IN ('internal', 'c') AND p.prokind <> 'a';
        SELECT array_agg(DISTINCT f.oid) INTO fresh
        FROM (SELECT o.oid
              FROM pg_proc p JOIN pg_proc o ON o.proname = p.proname AND o.pronamespace = p.pronamespace
              WHERE p.oid = ANY (fresh)
            UNION ALL
              SELECT part
              FROM pg_aggregate a,
                   unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn,
                                a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::oid[]) AS part
              WHERE a.aggfnoid = ANY (fresh)
            UNION ALL
              SELECT n.oid FROM pgtrickle._mentioned_functions(code) AS n WHERE code <> '') AS f
        WHERE f.oid >= 16384 AND f.oid <> ALL (reached);
    END LOOP;
    RETURN (
        SELECT md5(string_agg(concat_ws(' ', p.oid::regprocedure, p.prosrc, p.probin, p.prosqlbody, p.provolatile,
                                        p.proisstrict, p.proretset, p.prorettype::regtype, p.proconfig, p.prosecdef,
                                        to_jsonb(a) - 'aggfnoid',
                                        (SELECT string_agg(concat_ws(' ', o.oprnamespace::regnamespace, o.oprname,
                                                                     o.oprleft::regtype, o.oprright::regtype), ','
                                                           ORDER BY o.oid)
                                         FROM pg_operator o WHERE o.oid >= 16384 AND o.oprcode = p.oid),
                                        (SELECT string_agg(concat_ws(' ', c.castsource::regtype, c.casttarget::regtype,
                                                                     c.castcontext), ',' ORDER BY c.oid)
                                         FROM pg_cast c WHERE c.oid >= 16384 AND c.castfunc = p.oid)),
                              E'\n' ORDER BY p.oid::regprocedure::text COLLATE "C"))
        FROM pg_proc p LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
        WHERE p.oid = ANY (reached));
END $$;


-- The functions of users, in a language that is text, whose names occur in code (in lower case), or those of operators,
-- of types that have casts, and of domains that have CHECKs.
CREATE OR REPLACE FUNCTION pgtrickle._mentioned_functions(code text) RETURNS TABLE (oid oid)
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    WITH candidate AS (
        SELECT p.oid, p.proname
        FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE p.oid >= 16384 AND l.lanname <> 'c'
          AND p.pronamespace::regnamespace::text NOT IN ('pgtrickle', 'pgtrickle_changes', 'pgtrickle_roles')
    )
    SELECT c.oid FROM candidate c
    WHERE strpos(code, lower(c.proname)) > 0
      AND (c.proname !~ '^\w+$' OR code ~ ('\y' || lower(c.proname) || '\y'))
    UNION
    SELECT c.oid FROM pg_operator o JOIN candidate c ON c.oid = o.oprcode
    WHERE o.oid >= 16384 AND strpos(code, o.oprname) > 0
    UNION
    SELECT c.oid FROM pg_cast k JOIN candidate c ON c.oid = k.castfunc JOIN pg_type t ON t.oid IN (k.castsource, k.casttarget)
    WHERE k.oid >= 16384 AND strpos(code, lower(t.typname)) > 0
    UNION
    SELECT f.oid FROM pg_type t, pgtrickle._domain_functions(t.oid) AS f
    WHERE t.oid >= 16384 AND t.typtype = 'd' AND strpos(code, lower(t.typname)) > 0
$$;


-- The functions that the CHECKs of a domain, and of the domains below it, call.
CREATE OR REPLACE FUNCTION pgtrickle._domain_functions(domain oid) RETURNS TABLE (oid oid)
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE domains(oid) AS (
        SELECT domain
      UNION
        SELECT t.typbasetype FROM domains d JOIN pg_type t ON t.oid = d.oid WHERE t.typtype = 'd'
    )
    SELECT DISTINCT p.refobjid
    FROM domains d
    JOIN pg_constraint c ON c.contypid = d.oid AND c.contype = 'c'
    JOIN pg_depend p ON p.classid = 'pg_constraint'::regclass AND p.objid = c.oid AND p.refclassid = 'pg_proc'::regclass
$$;


-- A function's qualified name and the types of its arguments, as to_regprocedure reads them.
CREATE OR REPLACE FUNCTION pgtrickle._signature(function oid) RETURNS text
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT function::regprocedure::text
$$;


-- Why the functions of a query are not those any more whose hashes ({"schema.name(types)": hash}) are given, or NULL.
CREATE OR REPLACE FUNCTION pgtrickle._changed_function(hashes text) RETURNS text
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('function %s has changed', h.key)
    FROM jsonb_each_text(hashes::jsonb) AS h
    WHERE pgtrickle._body_hash(to_regprocedure(h.key)) IS DISTINCT FROM h.value
    ORDER BY h.key LIMIT 1
$$;
