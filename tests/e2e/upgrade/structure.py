"""What a database's catalog consists of, as PostgreSQL describes it: to compare an upgraded one with a new one."""

from __future__ import annotations

from typing import Any

import psycopg

_RIGHTS = """coalesce((SELECT string_agg(concat_ws(' ', a.grantee::regrole, a.privilege_type, a.is_grantable), ', '
    ORDER BY a.grantee::regrole::text, a.privilege_type) FROM aclexplode({acl}) AS a), '')"""

# A dump that was restored has other parentheses in its constraints. Names are those of the query's snapshot, since what
# is made in use comes and goes meanwhile.
_STRUCTURE = f"""
WITH schemas AS (
    SELECT n.oid, n.nspname, n.nspacl, n.nspowner FROM pg_namespace n
    WHERE n.nspname ~ '^(pgtrickle|pgtrickle_.*|pgque|accum|accum_.*)$'
), relations AS (
    SELECT c.*, s.nspname || '.' || quote_ident(c.relname) AS name
    FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
)
SELECT 'schema', nspname, {_RIGHTS.format(acl="coalesce(nspacl, acldefault('n', nspowner))")} FROM schemas
UNION ALL
SELECT 'relation', name, concat_ws('; ', relkind, relpersistence, relrowsecurity, relforcerowsecurity, reloptions,
    relowner::regrole, {_RIGHTS.format(acl="coalesce(relacl, acldefault('r', relowner))")},
    CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) WHEN 'i' THEN pg_get_indexdef(oid) END)
FROM relations WHERE relkind <> 'S'
UNION ALL
SELECT 'sequence', r.name, concat_ws('; ', q.seqtypid::regtype, q.seqstart, q.seqincrement, q.seqmin, q.seqmax,
    q.seqcycle, r.relpersistence, {_RIGHTS.format(acl="coalesce(r.relacl, acldefault('s', r.relowner))")})
FROM relations r JOIN pg_sequence q ON q.seqrelid = r.oid
UNION ALL
SELECT 'column', r.name || '.' || a.attname, concat_ws('; ', row_number() OVER (PARTITION BY r.oid ORDER BY a.attnum),
    format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attcompression,
    pg_get_expr(d.adbin, d.adrelid), {_RIGHTS.format(acl="a.attacl")})
FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE r.relkind IN ('r', 'v', 'p', 'c')
UNION ALL
SELECT 'constraint', r.name || '.' || k.conname,
    concat_ws('; ', k.convalidated, translate(pg_get_constraintdef(k.oid), '()', ''))
FROM relations r JOIN pg_constraint k ON k.conrelid = r.oid
UNION ALL
SELECT 'trigger', r.name || '.' || t.tgname, concat_ws('; ', t.tgenabled, pg_get_triggerdef(t.oid))
FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'policy', r.name || '.' || p.polname, concat_ws('; ', p.polpermissive, p.polcmd, p.polroles::regrole[],
    pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
FROM relations r JOIN pg_policy p ON p.polrelid = r.oid
UNION ALL
SELECT 'function', concat(s.nspname, '.', quote_ident(p.proname), '(', pg_get_function_identity_arguments(p.oid), ')'),
    concat_ws('; ', p.prokind, pg_get_function_arguments(p.oid),
    pg_get_function_result(p.oid), (SELECT lanname FROM pg_language WHERE oid = p.prolang), p.prosecdef, p.provolatile,
    p.proisstrict, p.proleakproof, p.proparallel, p.procost, p.prorows, p.proconfig, p.proowner::regrole,
    {_RIGHTS.format(acl="coalesce(p.proacl, acldefault('f', p.proowner))")},
    CASE WHEN s.nspname || '.' || p.proname NOT IN ('pgque.send', 'pgque.insert_event', 'pgque.insert_event_bulk',
                                                         'pgque.receive', 'pgque.get_batch_events')
         THEN md5(p.prosrc) END)
FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
UNION ALL
SELECT 'type', t.oid::regtype::text, concat_ws('; ', t.typtype,
    {_RIGHTS.format(acl="coalesce(t.typacl, acldefault('T', t.typowner))")})
FROM schemas s JOIN pg_type t ON t.typnamespace = s.oid
WHERE t.typelem = 0 AND (t.typrelid = 0 OR (SELECT relkind FROM pg_class WHERE oid = t.typrelid) = 'c')
UNION ALL
SELECT 'event trigger', evtname, concat_ws('; ', evtevent, evtenabled, evttags, evtfoid::regproc) FROM pg_event_trigger
"""

_MADE_IN_USE = r"""^(pgtrickle_changes\.(?!change_id_seq)|(pgtrickle|accum)_roles\.|pgque\.event_\d|
    accum(_internal)?\."?(_[a-z]+_)?stock[_.(])"""
"""Names of what is there only once there are stream tables, queues and registers."""


def structure(connection: psycopg.Connection[Any]) -> set[tuple[str, str, str]]:
    """Kind, name and definition of all that an installation makes."""
    connection.execute("SET search_path = pg_catalog")
    rows = connection.execute(
        f"SELECT * FROM ({_STRUCTURE}) AS s(kind, name, definition) WHERE name !~ ('(?x)' || %s)".encode(),
        [_MADE_IN_USE],
    )
    return {(str(kind), str(name), str(definition)) for kind, name, definition in rows.fetchall()}
