"""Whose the schemas are that the server's role works in: nothing runs in them that another role could have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catalog.session import SqlError, SqlSession
from catalog.systems import System

MOST_SHOWN = 20
"""Objects of others that an error names."""


class UntrustedSchema(SqlError):
    """What is in a schema of a system belongs to a role that is neither the server's nor a superuser."""


def is_trusted(owner: str) -> str:
    """The condition that an owner is the session's role or a superuser; `owner` is an SQL expression.

    To be a member of the owner's role is not enough: the server's role is a member of those whose stream tables it
    refreshes.
    """
    return f"(SELECT a.rolsuper OR a.rolname = current_user FROM pg_catalog.pg_roles a WHERE a.oid = {owner})"


def installed_query(system: System) -> str:
    """The query that tells the server's role whether a system is installed under its own name, by a trusted role."""
    return f"""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = '{system.schema}' AND c.relname = '{system.versions}' AND c.relkind = 'r'
      AND {is_trusted("n.nspowner")} AND {is_trusted("c.relowner")})
"""


_OBJECTS = {
    "pg_class": ("relowner", "relnamespace", "relkind NOT IN ('i', 'I', 't')"),
    "pg_proc": ("proowner", "pronamespace", "true"),
    "pg_type": ("typowner", "typnamespace", "typrelid = 0 AND typelem = 0"),
    "pg_operator": ("oprowner", "oprnamespace", "true"),
    "pg_opclass": ("opcowner", "opcnamespace", "true"),
    "pg_opfamily": ("opfowner", "opfnamespace", "true"),
    "pg_collation": ("collowner", "collnamespace", "true"),
    "pg_conversion": ("conowner", "connamespace", "true"),
}
"""Catalogs of what can be in a schema: the columns of the owner and of the schema, and the rows that count."""


def _untrusted_query() -> str:
    versions = "SELECT v.place, v.name FROM unnest($3::text[], $4::text[]) AS v(place, name)"
    objects = " UNION ALL ".join(
        f"SELECT 'pg_catalog.{catalog}'::pg_catalog.regclass, o.oid, o.{owner}"
        f" FROM pg_catalog.{catalog} o JOIN pg_catalog.pg_namespace n ON n.oid = o.{schema}"
        f" WHERE {condition} AND (n.nspname = ANY ($2::text[])"
        + (f" OR (n.nspname, o.relname) IN ({versions}))" if catalog == "pg_class" else ")")
        for catalog, (owner, schema, condition) in _OBJECTS.items()
    )
    return f"""
SELECT pg_catalog.pg_describe_object(f.classid, f.oid, 0), r.rolname::text
FROM (SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, n.oid, n.nspowner
      FROM pg_catalog.pg_namespace n WHERE n.nspname = ANY ($1::text[]) UNION ALL {objects}) AS f(classid, oid, owner)
JOIN pg_catalog.pg_roles r ON r.oid = f.owner
WHERE NOT {is_trusted("f.owner")}
ORDER BY f.classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass DESC, 1 LIMIT {MOST_SHOWN + 1}
"""


_UNTRUSTED = _untrusted_query()


async def untrusted(session: SqlSession, places: Mapping[System, str]) -> list[tuple[str, str]]:
    """What others own of systems that are, or shall be, in these schemas: descriptions, and the owners' names."""
    rows = await session.fetch(
        _UNTRUSTED,
        [schema for system, place in places.items() for schema in (place, *system.beside)],
        [schema for system in places for schema in system.exclusive],
        list(places.values()),
        [system.versions for system in places],
    )
    return [(str(what), str(owner)) for what, owner in rows]


async def check_owners(session: SqlSession, system: System, place: str) -> None:
    """Raise UntrustedSchema, which shows what there is, if others own anything that the server would run."""
    found = await untrusted(session, {system: place})
    if not found:
        return
    owners = ", ".join(f'"{owner}"' for owner in dict.fromkeys(owner for _, owner in found))
    shown = [f'{what} belongs to role "{owner}"' for what, owner in found]
    detail = "\n".join(shown[:MOST_SHOWN]) + ("\n…" if len(shown) > MOST_SHOWN else "")
    if place != system.schema:
        raise UntrustedSchema(
            "42501",
            f'schema "{place}" belongs to role {owners}, which could change what the server runs in it',
            detail=detail,
            hint="Name a schema that does not exist yet, or one that belongs to a superuser.",
        )
    raise UntrustedSchema(
        "42710",
        f"{found[0][0]} exists and belongs to role {owners}, which could change what the server runs",
        detail=detail,
        hint="Drop it. If you know all that is in it, make it the server's with REASSIGN OWNED or ALTER ... OWNER TO.",
    )


_CREATORS = """
SELECT pg_catalog.quote_ident(n.nspname), CASE e.grantee WHEN 0 THEN 'PUBLIC'
       ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(e.grantee)) END
FROM pg_catalog.pg_namespace n CROSS JOIN pg_catalog.aclexplode(n.nspacl) AS e
WHERE n.nspname = ANY ($1::text[]) AND e.privilege_type = 'CREATE' AND e.grantee <> n.nspowner
"""


async def revoke_create(session: SqlSession, schemas: Sequence[str]) -> None:
    """Take the right to create in schemas from everybody but their owners."""
    for schema, grantee in await session.fetch(_CREATORS, list(schemas)):
        await session.execute(f"REVOKE CREATE ON SCHEMA {schema} FROM {grantee} CASCADE")
