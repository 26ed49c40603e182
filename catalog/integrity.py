"""Whether what an installation made is still there, and still what it made.

An installation notes each function, view, trigger and event trigger of its scripts that they can make again, with a
digest of its definition and the rights that everybody has to it, and each table, which they cannot. The notes are in
the column `objects` of the system's table of versions. What is made while a system is used (capture, functions that
send, functions of registers) is in none of the scripts, and not noted, except that functions of fixed names that are
written anew as it is used (`System.generated`) are to be there. To compare is one query.

The notes are no protection: whoever can change an object of the server's can change them as well. They tell of
accidents: a function that somebody's script has dropped, a dump restored without its event triggers, a replaced view.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from catalog.session import SqlError, SqlSession

UNDEFINED_TABLE = "42P01"
MOST_NAMED = 5
"""Objects that a warning names."""


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is not what the installation made."""

    kind: str
    """function, view, trigger, event trigger, table"""
    name: str
    what: str
    """missing; changed; open to everybody"""

    @property
    def can_be_repaired(self) -> bool:
        """Whether the scripts that are run again make it. A table had rows."""
        return self.kind != "table"

    def __str__(self) -> str:
        return f"{self.kind} {self.name} is {self.what}"


def shown(damage: Iterable[Damage]) -> str:
    """The first few, for a message.

    >>> shown([Damage("view", "a.b", "missing")] * 7)[-51:]
    'view a.b is missing; view a.b is missing and 2 more'
    """
    texts = [str(one) for one in damage]
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return "; ".join(texts[:MOST_NAMED]) + more


_MADE = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:CONSTRAINT |UNLOGGED )?"
    r"(FUNCTION|PROCEDURE|VIEW|TRIGGER|EVENT TRIGGER|TABLE) (?:IF NOT EXISTS )?((?:@extschema@|\w+)(?:\.\w+)?)",
    re.MULTILINE,
)


def names_made(scripts: Iterable[str]) -> list[str]:
    """The kinds and names of what scripts make, each once. The names are not quoted.

    >>> names_made(["CREATE OR REPLACE FUNCTION a.f(x int)", "CREATE UNLOGGED TABLE a.t (", "CREATE INDEX ON a.t (x)"])
    ['function:a.f', 'table:a.t']
    """
    found = (
        f"{kind.lower().replace('procedure', 'function')}:{name}" for s in scripts for kind, name in _MADE.findall(s)
    )
    return list(dict.fromkeys(found))


_EVERYBODY = """coalesce((SELECT array_agg(a.privilege_type::text ORDER BY 1) FROM aclexplode({acl}) AS a
                 WHERE a.grantee = 0), '{{}}')"""
"""The rights of PUBLIC."""

_FUNCTION = """(SELECT n.nspname || '.' || f.proname
            FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE f.oid = {oid})"""
"""A function's name."""

_PRESENT = f"""
WITH made AS (
    SELECT m.kind, m.name FROM unnest($1::text[], $2::text[]) AS m(kind, name)
), schemas AS (
    SELECT n.oid, n.nspname FROM pg_namespace n WHERE n.nspname = ANY ($3::text[])
)
SELECT 'function',
       format('%I.%I(%s)', s.nspname, p.proname, oidvectortypes(p.proargtypes)),
       md5(concat_ws(chr(1),
           CASE WHEN s.nspname || '.' || p.proname NOT IN (SELECT name FROM made WHERE kind = 'generated')
                THEN p.prosrc END, p.proconfig, p.prosecdef, p.provolatile, p.proisstrict, p.proleakproof,
           p.proparallel, p.prokind, p.proretset, p.proargnames, p.proargmodes, p.pronargdefaults, l.lanname,
           format_type(p.prorettype, NULL))),
       CASE WHEN has_function_privilege('public', p.oid, 'EXECUTE') THEN '{{EXECUTE}}' ELSE '{{}}'::text[] END
FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid JOIN pg_language l ON l.oid = p.prolang
WHERE s.nspname || '.' || p.proname IN (SELECT name FROM made WHERE kind IN ('function', 'generated'))
UNION ALL
SELECT 'view', format('%I.%I', s.nspname, c.relname), md5(concat_ws(chr(1), c.reloptions, r.ev_action)),
       {_EVERYBODY.format(acl="c.relacl")}
FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
JOIN pg_rewrite r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
WHERE c.relkind = 'v' AND s.nspname || '.' || c.relname IN (SELECT name FROM made WHERE kind = 'view')
UNION ALL
SELECT 'trigger', format('%I ON %I.%I', g.tgname, s.nspname, c.relname),
       md5(concat_ws(chr(1), g.tgtype, g.tgenabled, g.tgdeferrable, g.tginitdeferred, g.tgqual,
           {_FUNCTION.format(oid="g.tgfoid")})), '{{}}'
FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid JOIN pg_trigger g ON g.tgrelid = c.oid
WHERE NOT g.tgisinternal AND g.tgname IN (SELECT name FROM made WHERE kind = 'trigger')
UNION ALL
SELECT 'event trigger', quote_ident(e.evtname),
       md5(concat_ws(chr(1), e.evtevent, e.evtenabled, e.evttags, {_FUNCTION.format(oid="e.evtfoid")})), '{{}}'
FROM pg_event_trigger e WHERE e.evtname IN (SELECT name FROM made WHERE kind = 'event trigger')
UNION ALL
SELECT 'table', format('%I.%I', s.nspname, c.relname), '', '{{}}'
FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
WHERE c.relkind IN ('r', 'p')
  AND s.nspname || '.' || c.relname IN (SELECT name FROM made WHERE kind = 'table')
"""
"""What there is of what the scripts name ($1, $2), in the schemas ($3): kind, name, digest, what everybody may.

A view's digest is that of its query tree, since what it looks like as text depends on the search path. So do the names
of types: in that of the engine all but PostgreSQL's own are qualified.
"""

_NOTED = """
SELECT o.kind, o.name, o.digest, o.everybody
FROM {versions} v CROSS JOIN jsonb_to_recordset(nullif(to_jsonb(v) -> 'objects', 'null'))
     AS o(kind text, name text, digest text, everybody text[])
WHERE v.version = 'functions'
"""


def _with_both(versions: Iterable[str], rest: str) -> str:
    """A query over what is present and what was noted."""
    noted = " UNION ALL ".join(_NOTED.format(versions=each) for each in versions)
    return f"WITH present(kind, name, digest, everybody) AS MATERIALIZED ({_PRESENT}), noted AS ({noted}) {rest}"


async def note(session: SqlSession, versions: str, names: list[str], schemas: list[str]) -> None:
    """Note what there is, at the end of an installation. Tables that had gone before stay among the notes.

    `versions` is the system's table of versions, an identifier; `names` are those of `names_made`.
    """
    await session.execute(f"ALTER TABLE {versions} ADD COLUMN IF NOT EXISTS objects jsonb")
    query = _with_both(
        [versions],
        f"UPDATE {versions} SET objects = (SELECT jsonb_agg(to_jsonb(o)) FROM (SELECT * FROM present UNION ALL "
        "SELECT * FROM noted n WHERE n.kind = 'table' AND NOT EXISTS ("
        "SELECT FROM present p WHERE p.kind = n.kind AND p.name = n.name)) AS o) WHERE version = 'functions'",
    )
    await session.execute(query, *_split(names), schemas)


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The kinds and the names of what `names_made` gives.

    >>> _split(["function:a.f", "event trigger:e"])
    (['function', 'event trigger'], ['a.f', 'e'])
    """
    pairs = [name.split(":", 1) for name in names]
    return [kind for kind, _ in pairs], [name for _, name in pairs]


_COMPARED = """
SELECT kind, name, CASE WHEN p.kind IS NULL THEN 'missing'
                        WHEN n.kind IS NULL OR p.digest <> n.digest THEN 'changed' ELSE 'open to everybody' END
FROM present p FULL JOIN noted n USING (kind, name)
WHERE p.kind IS NULL OR p.digest <> n.digest OR NOT p.everybody <@ n.everybody OR NOT EXISTS (SELECT FROM noted)
ORDER BY kind, name
"""


async def damage(
    session: SqlSession, versions: Sequence[str], names: Iterable[str], schemas: list[str]
) -> list[Damage]:
    """What is not as it was noted, of one system or several. Costs one query, of some milliseconds. Raises SqlError.

    `versions`, `names` and `schemas` are those of `note`. The session's search path is to be PostgreSQL's own.
    Where nothing was noted all that there is counts as changed, since nothing can be said of it.
    """
    try:
        rows = await session.fetch(_with_both(versions, _COMPARED), *_split(names), schemas)
    except SqlError as error:
        if error.sqlstate != UNDEFINED_TABLE:
            raise
        return [Damage("table", " or ".join(versions), "missing")]
    return [Damage(str(kind), str(name), str(what)) for kind, name, what in rows]


async def clear_way(session: SqlSession, damaged: Iterable[Damage]) -> None:
    """Drop what CREATE OR REPLACE could not replace: functions that return something else, views with other columns.

    What others depend on is left, for the scripts to try. For a transaction that then runs the scripts.
    """
    for one in damaged:
        if one.what != "changed" or one.kind not in ("function", "view"):
            continue
        await session.execute("SAVEPOINT clear_way")
        try:
            await session.execute(f"DROP {'ROUTINE' if one.kind == 'function' else 'VIEW'} {one.name}")
        except SqlError as error:
            if error.is_of_connection:
                raise
            await session.execute("ROLLBACK TO clear_way")
        await session.execute("RELEASE clear_way")
