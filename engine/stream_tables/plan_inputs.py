"""Compiled plans of stream tables, made once and kept by what they were made from.

Everything the compiler needs beside the canonical text (source columns, output columns, types of inner expressions) is
looked up in PostgreSQL once, when a stream table is defined, and kept in the catalog. Afterwards compiling is pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sql
from catalog.session import SqlSession
from catalog.values import Engine, RefreshMode
from engine.compile.compiled_query import CompiledQuery, compiled_query
from engine.compile.pool import compilers
from engine.stream_tables.analysis import TRACKABLE_KINDS, Definition, analysed, column
from sql import Column, NotDifferentiable, Source, View, jobs
from sql.jobs import Query

SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema"})


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What the compiler is given, as kept in `pgt_stream_tables.explain`."""

    canonical: str
    output: tuple[Column, ...]
    sources: tuple[Source, ...]
    types: tuple[tuple[str, tuple[Column, ...]], ...]
    """The answers to the compiler's probes."""
    special: frozenset[str]
    """User-defined functions in the query that are aggregates, window functions or return sets."""
    differentiable: bool
    views: tuple[View, ...] = ()
    """The views that the compiler looks into."""
    append_only: bool = False
    """Whether rows are expected only to come. The catalog has a column for it."""

    @property
    def query(self) -> Query:
        """What the compiler is asked for."""
        return Query(
            self.canonical,
            self.output,
            self.sources,
            self.views,
            self.special,
            self.types,
            self.differentiable,
            self.append_only,
        )

    def to_json(self) -> dict[str, Any]:
        """For the catalog, without the canonical text, which has a column of its own."""
        return {
            "format": sql.PLAN_FORMAT,
            "output": _columns(self.output),
            "sources": [
                {"oid": s.oid, "schema": s.schema, "name": s.name, "columns": _columns(s.columns), "key": s.key}
                for s in self.sources
            ],
            "types": [[probe, _columns(answer)] for probe, answer in self.types],
            "special": sorted(self.special),
            "differentiable": self.differentiable,
            "views": [{"schema": v.schema, "name": v.name, "columns": v.columns, "text": v.text} for v in self.views],
        }

    @classmethod
    def from_json(cls, canonical: str, inputs: dict[str, Any]) -> PlanInputs:
        """The inverse of `to_json`."""
        return cls(
            canonical=canonical,
            output=tuple(column(c) for c in inputs["output"]),
            sources=tuple(
                Source(
                    oid=s["oid"],
                    schema=s["schema"],
                    name=s["name"],
                    columns=tuple(column(c) for c in s["columns"]),
                    key=tuple(s["key"]),
                )
                for s in inputs["sources"]
            ),
            types=tuple((probe, tuple(column(c) for c in answer)) for probe, answer in inputs["types"]),
            special=frozenset(inputs["special"]),
            differentiable=bool(inputs["differentiable"]),
            views=tuple(View(v["schema"], v["name"], tuple(v["columns"]), v["text"]) for v in inputs.get("views", ())),
        )


def _columns(columns: Sequence[Column]) -> list[dict[str, object]]:
    """What `definition.column` reads. (`asdict` copies each value as if it were a tree.)"""
    return [
        {
            "name": c.name,
            "type": c.type,
            "not_null": c.not_null,
            "hashable": c.hashable,
            "faithful": c.equality_is_identity,
        }
        | ({"carrier": c.carrier} if c.carrier else {})
        for c in columns
    ]


class ForeignSource(NotDifferentiable):
    """A foreign table that is not polled: its stream tables are computed as a whole, also in DIFFERENTIAL mode."""

    def __init__(self, name: str):
        super().__init__(
            f'foreign table "{name}"',
            "Set pg_trickle.foreign_table_polling = on and create the stream table again.",
            "Changes of it cannot be captured.",
        )


async def compiled(inputs: PlanInputs) -> CompiledQuery:
    """The compiled plan of these inputs. Raises NotDifferentiable, SqlError 54001."""
    return await compiled_query(inputs.query)


async def plan(session: SqlSession, definition: Definition) -> PlanInputs:
    """Plan inputs of a definition that can be maintained incrementally.

    Raises NotDifferentiable, which names the construct that can not (yet), and SqlError 54001 for a query that takes
    too much to compile.
    """
    for dependency in definition.dependencies:
        if dependency.source.schema in SYSTEM_SCHEMAS and dependency.view is None:
            raise NotDifferentiable(
                f'system catalog "{dependency.source.name}"',
                "Use refresh_mode => 'FULL'.",
                "Changes of it cannot be captured.",
            )
        if not dependency.trackable and dependency.view is None:
            if dependency.kind in TRACKABLE_KINDS:
                raise NotDifferentiable(f"a source whose changes cannot be captured ({dependency.obstacle})")
            if dependency.kind == "FOREIGN_TABLE":
                raise ForeignSource(dependency.source.name)
            kind = dependency.kind.lower().replace("_", " ").replace("matview", "materialized view")
            raise NotDifferentiable(
                f'{kind} "{dependency.source.name}"',
                "Use the underlying query, or refresh_mode => 'FULL'.",
                "Changes of it cannot be captured.",
            )
    volatile = definition.functions_of("v")
    if volatile:
        raise NotDifferentiable(
            f'volatile function "{volatile[0]}"',
            "Use refresh_mode => 'FULL'.",
            "It gives another result at each evaluation.",
        )
    sources = tuple(d.source for d in definition.dependencies if d.view is None)
    views = tuple(d.view for d in definition.dependencies if d.view is not None)
    special = definition.special_functions
    query = Query(definition.canonical, definition.output, sources, views, special)
    await _within_limit(session, await compilers().run(jobs.grouping_sets, query))
    for text in (definition.canonical, *(view.text for view in views)):
        await guard(session, text)
    types = tuple((await described(session, query)).items())
    inputs = PlanInputs(definition.canonical, definition.output, sources, types, special, True, views)
    await (await compiled(inputs)).check_length()
    return inputs


def opaque(definition: Definition) -> PlanInputs:
    """Plan inputs of a definition that is only ever computed as a whole."""
    sources: tuple[Source, ...] = ()
    if all(dependency.trackable for dependency in definition.dependencies):
        sources = tuple(dependency.source for dependency in definition.dependencies)
    return PlanInputs(definition.canonical, definition.output, sources, (), frozenset(), differentiable=False)


async def _within_limit(session: SqlSession, grouping_sets: int) -> None:
    """CUBE over n columns has 2^n sets, and a refresh does the work of each."""
    if grouping_sets == 1:
        return
    ((limit,),) = await session.fetch("SELECT pgtrickle._setting('pg_trickle.max_grouping_sets', '64')::integer")
    if grouping_sets > int(limit):
        raise NotDifferentiable(
            f"GROUP BY with {grouping_sets} grouping sets",
            "Name the sets that you need by GROUPING SETS, or raise pg_trickle.max_grouping_sets.",
            f"pg_trickle.max_grouping_sets is {limit}.",
        )


async def described(session: SqlSession, query: Query) -> dict[str, tuple[Column, ...]]:
    """The answers to the compiler's probes. Raises NotDifferentiable, SqlError."""
    answers: dict[str, tuple[Column, ...]] = {}
    while probes := await compilers().run(jobs.probes, replace(query, answers=tuple(answers.items()))):
        for probe in probes:
            found = await analysed(session, probe, ("columns",), errors_told=True)
            if "failed" in found:
                # A column of type record, for instance, which no view can have.
                raise NotDifferentiable(f"an expression that cannot be a column ({found['message']})")
            answers[probe] = tuple(column(described) for described in found["columns"])
    return answers


async def guard(session: SqlSession, canonical: str) -> None:
    """What the compiler understood must mean the same to PostgreSQL, to the letter of its canonical form.

    Raises NotDifferentiable.
    """
    regenerated = await compilers().run(jobs.reworded, canonical)
    if regenerated is None:
        return
    found = await analysed(session, regenerated, ("definition",), errors_told=True)
    if "failed" in found:
        raise NotDifferentiable(f"syntax that is not understood exactly ({found['message']})")
    understood = found["definition"]
    if understood == canonical:
        return
    # pg_get_viewdef is not always idempotent: what it makes of its own text is the fair comparison.
    again = await analysed(session, canonical, ("definition",))
    if understood != again["definition"]:
        raise NotDifferentiable(
            "syntax that is not understood exactly",
            detail=f"It was read as: {_first_difference(canonical, understood)}",
        )


async def expanded(session: SqlSession, definition: Definition) -> str:
    """The canonical query with its views replaced by what they stand for, as `defining_query` shows it.

    They keep their names where one is read with its owner's rights, or the compiler cannot write the text.
    """
    views = [d.view for d in definition.dependencies if d.view is not None]
    if not views or any(d.denied is not None for d in definition.dependencies):
        return definition.canonical
    try:
        for canonical in (definition.canonical, *(view.text for view in views)):
            await guard(session, canonical)
        text = await compilers().run(jobs.without_views, definition.canonical, views)
    except NotDifferentiable:
        return definition.canonical
    found = await analysed(session, text, ("definition",), errors_told=True)
    return str(found.get("definition", definition.canonical))


def _first_difference(expected: str, found: str) -> str:
    for left, right in zip(expected.splitlines(), found.splitlines(), strict=False):
        if left != right:
            return right.strip()
    return found.strip()[:200]


async def captured_columns(
    inputs: PlanInputs, oids: Sequence[int], mode: RefreshMode, engine: Engine
) -> dict[int, tuple[str, ...]]:
    """Which columns of each source its capture must keep.

    A full refresh only has to know that something has changed. One that is bound to Spark reads its mirrors, which
    follow their sources by what is captured; without it each refresh would copy them anew.
    """
    used = (await compiled(inputs)).used_columns if mode == RefreshMode.DIFFERENTIAL or engine == Engine.SPARK else {}
    return {oid: used.get(oid, ()) for oid in oids}


def dumps(value: object) -> str:
    """JSON for a jsonb parameter."""
    return json.dumps(value, ensure_ascii=False)
