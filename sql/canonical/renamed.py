"""Renamed sources: a canonical query in the names that its tables, and their columns, have now.

A view knows its tables and columns by number, a stream table has the text of its query. Each table is given the columns
of then by a list of aliases, by position, so that nothing else in the text needs to be looked at; PostgreSQL writes it
in its own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.canonical.dialect import generate, parse


@dataclass(frozen=True, slots=True)
class Renamed:
    """What a relation is called now, and its columns, in order.

    ``known`` are its columns at the time of the text, in order. Of each column of now there is the name and the place
    in ``known``, None for one that has been added.
    """

    schema: str
    name: str
    known: tuple[str, ...]
    columns: tuple[tuple[str, int | None], ...]


def follow_renames(canonical: str, renamed: Mapping[tuple[str, str], Renamed]) -> str:
    """The query over relations that are ``renamed``, by the schema and name that the text has for them.

    Raises NotDifferentiable for text that sqlglot cannot read.

    >>> swapped = Renamed("public", "t", ("a", "b"), (("b", 0), ("a", 1)))
    >>> follow_renames("SELECT a FROM public.t", {("public", "t"): swapped})
    'SELECT a FROM public.t AS t(a, b)'
    >>> moved = Renamed("app", "u", ("a", "b"), (("b", 0), ("a", None)))
    >>> follow_renames("SELECT x.a FROM public.t x", {("public", "t"): moved})
    'SELECT x.a FROM app.u AS x(a, a_1)'
    >>> other_schema = Renamed("app", "t", ("a",), (("a", 0),))
    >>> follow_renames("SELECT t.a FROM public.t", {("public", "t"): other_schema})
    'SELECT t.a FROM app.t'
    """
    query = parse(canonical).copy()
    for table in list(query.find_all(exp.Table)):
        found = renamed.get((table.db, table.name))
        if found is None or not isinstance(table.this, exp.Identifier):
            continue
        alias = table.args.get("alias")
        listed = [column.name for column in alias.columns] if alias else []
        seen = _seen(found, [*listed, *found.known[len(listed) :]])
        columns = [] if seen == [name for name, _ in found.columns] else seen
        name = table.alias or table.name
        table.set("this", _identifier(found.name))
        table.set("db", _identifier(found.schema))
        if alias or columns or name != found.name:  # else the text is as if it had always been written so
            table.set("alias", exp.TableAlias(this=_identifier(name), columns=[_identifier(c) for c in columns]))
    return generate(query)


def _seen(renamed: Renamed, known: Sequence[str]) -> list[str]:
    """The names by which the text knows the columns of now; those that it does not know have names of their own."""
    taken = {known[place] for _, place in renamed.columns if place is not None}
    seen = []
    for name, place in renamed.columns:
        if place is not None:
            seen.append(known[place])
            continue
        own, number = name, 0
        while own in taken:
            number += 1
            own = f"{name}_{number}"
        taken.add(own)
        seen.append(own)
    return seen


def _identifier(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=not (name.isascii() and name.isidentifier() and name == name.lower()))
