"""Random changes: rows with NULLs and duplicates, and statements of several interleaved transactions."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.property.schemas import Table


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of one of the sessions; `refresh` names the stream table to be refreshed instead."""

    session: int
    statement: str
    refresh: int | None = None


def _insert(table: Table, most: int = 4) -> st.SearchStrategy[str]:
    columns = table.values
    row = st.tuples(*map(st.sampled_from, columns.values()))
    places = [n for n, name in enumerate(columns) if name in table.key]
    conflict = ""
    if table.key:
        others = [name for name in columns if name not in table.key]
        update = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        conflict = f" ON CONFLICT ({', '.join(table.key)}) DO {update}"
        # One INSERT must not meet the same key twice.
        rows = st.lists(row, min_size=1, max_size=most, unique_by=lambda values: tuple(values[n] for n in places))
    else:
        rows = st.lists(row, min_size=1, max_size=most)
    return rows.map(
        lambda found: (
            f"INSERT INTO {table.name} ({', '.join(columns)})"
            f" VALUES {', '.join('(' + ', '.join(values) + ')' for values in found)}{conflict}"
        )
    )


def _where(table: Table) -> st.SearchStrategy[str]:
    same = [
        st.builds(lambda value, name=name: f" WHERE {name} IS NOT DISTINCT FROM {value}", st.sampled_from(values))
        for name, values in table.values.items()
    ]
    first = table.columns[0][0]
    some = [st.just(f" WHERE {first} {test}") for test in ("> 1", "<= 2", "% 2 = 0")]
    one = st.just(f" WHERE ctid = (SELECT min(ctid) FROM {table.name})") if not table.partitioned else same[0]
    return st.one_of(one, *same, *some, *some, st.just(""))


def _update(table: Table) -> st.SearchStrategy[str]:
    kinds = dict(table.columns)
    sets = [
        st.builds(lambda value, name=name: f"{name} = {value}", st.sampled_from(values))
        for name, values in table.values.items()
        if name not in table.key
    ]
    moved = [name for name in table.key if kinds[name] == "int"]
    sets += [st.just(f"{name} = {name} + 20") for name in moved[-1:]]
    sets += [st.just(f"{name} = {name} - 1") for name in moved[:1]]
    return st.builds(lambda one, where: f"UPDATE {table.name} SET {one}{where}", st.one_of(*sets), _where(table))


def _change(table: Table) -> st.SearchStrategy[str]:
    deleting = _where(table).map(lambda where: f"DELETE FROM {table.name}{where}")
    parts = [_insert(table), _insert(table), _update(table), deleting]
    if not table.key and not table.partitioned:
        parts.append(
            st.just(
                f"WITH gone AS (DELETE FROM {table.name} RETURNING *)"
                f" INSERT INTO {table.name} SELECT * FROM gone WHERE random() < 2"
            )
        )
        parts.append(st.just(f"INSERT INTO {table.name} SELECT * FROM {table.name}"))
    if table.partitioned:
        first = next(iter(table.values))
        parts.append(st.just(f"DELETE FROM {table.partition('low')} WHERE {first} = 0"))
        parts.append(st.just(f"UPDATE {table.partition('rest')} SET {first} = {first} + 1"))
    return st.one_of(*parts)


def changes(tables: tuple[Table, ...]) -> st.SearchStrategy[str]:
    """A statement that changes one of the tables."""
    return st.sampled_from(tables).flatmap(_change)


def initial_rows(tables: tuple[Table, ...]) -> st.SearchStrategy[list[str]]:
    """Statements that fill the tables."""
    one = st.sampled_from(tables).flatmap(lambda table: _insert(table, 6))
    return st.lists(one, max_size=10)


_CONTROL = st.sampled_from(
    ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s"]
)


def scripts(
    tables: tuple[Table, ...], stream_tables: int, sessions: int = 3, rounds: int = 4
) -> st.SearchStrategy[list[Step]]:
    """Steps of several sessions: changes, in and out of transactions, then refreshes. Session 0 is the scheduler's."""
    session = st.integers(1, sessions)
    number = st.integers(0, stream_tables - 1)
    change = st.builds(Step, session, changes(tables))
    control = st.builds(Step, session, _CONTROL)
    # Seldom, since it leaves nothing to be maintained.
    truncate = st.builds(
        lambda table, n, other: Step(1, f"TRUNCATE {table.name}") if n == 30 else other,
        st.sampled_from(tables),
        st.integers(0, 30),
        change,
    )
    scheduled = st.builds(lambda n: Step(0, "", n), number)
    manual = st.builds(lambda who, n: Step(who, "", n), session, number)
    changed = st.lists(st.one_of(*[change] * 12, *[control] * 3, truncate), min_size=1, max_size=5)
    refreshed = st.lists(st.one_of(scheduled, scheduled, scheduled, manual), min_size=1, max_size=stream_tables)
    one_round = st.builds(lambda some, then: some + then, changed, refreshed)
    return st.lists(one_round, min_size=1, max_size=rounds).map(lambda many: [step for some in many for step in some])
