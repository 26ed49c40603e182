"""Random changes: rows with NULLs and duplicates, and statements of several interleaved transactions."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

_INT = st.sampled_from(["0", "1", "2", "3", "-1", "NULL"])
_TEXT = st.sampled_from(["'x'", "'y'", "'xy'", "''", "NULL"])
_NUMERIC = st.sampled_from(["0.50", "1.00", "2.25", "-1.50", "NULL"])
_LOOSE = st.sampled_from(["1.0", "1.00", "2.5", "'NaN'", "'Infinity'", "'-Infinity'", "NULL"])
_FLOAT = st.sampled_from(["0.5", "1", "-2.5", "'NaN'", "'Infinity'", "NULL"])
_KEY = st.integers(0, 9).map(str)

ROWS = {
    "a": {"id": _KEY, "k": _INT, "v": _INT, "s": _TEXT, "n": _NUMERIC},
    "b": {"i": st.integers(0, 3).map(str), "j": st.integers(0, 3).map(str), "w": _INT, "t": _TEXT},
    "c": {"k": _INT, "v": _INT, "s": _TEXT},
    "d": {"k": _INT, "f": _FLOAT, "u": _LOOSE},
    "e": {"k": _INT, "v": _INT, "s": _TEXT},
}
KEYS = {"a": ("id",), "b": ("i", "j")}


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of one of the sessions; `refresh` names the stream table to be refreshed instead."""

    session: int
    statement: str
    refresh: int | None = None


def _insert(table: str) -> st.SearchStrategy[str]:
    columns = ROWS[table]
    rows = st.lists(st.tuples(*columns.values()).map(lambda values: f"({', '.join(values)})"), min_size=1, max_size=4)
    conflict = ""
    if table in KEYS:
        others = [name for name in columns if name not in KEYS[table]]
        update = ", ".join(f"{name} = excluded.{name}" for name in others)
        conflict = f" ON CONFLICT ({', '.join(KEYS[table])}) DO UPDATE SET {update}"
        # One INSERT must not meet the same key twice.
        rows = rows.map(lambda found: found[:1])
    return rows.map(lambda found: f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join(found)}{conflict}")


def _where(table: str) -> st.SearchStrategy[str]:
    tests = [
        st.builds(lambda value, name=name: f" WHERE {name} IS NOT DISTINCT FROM {value}", values)
        for name, values in ROWS[table].items()
    ]
    one = st.just(f" WHERE ctid = (SELECT min(ctid) FROM {table})") if table != "e" else tests[0]
    return st.one_of(*tests, one, st.just(""))


def _update(table: str) -> st.SearchStrategy[str]:
    keys = KEYS.get(table, ())
    free = [name for name in ROWS[table] if name not in keys]
    sets = [st.builds(lambda value, name=name: f"{name} = {value}", ROWS[table][name]) for name in free]
    if keys:
        sets.append(st.just(f"{keys[-1]} = {keys[-1]} + 20"))
        sets.append(st.just(f"{keys[0]} = {keys[0]} - 1"))
    return st.builds(lambda one, where: f"UPDATE {table} SET {one}{where}", st.one_of(*sets), _where(table))


def _change(table: str) -> st.SearchStrategy[str]:
    deleting = _where(table).map(lambda where: f"DELETE FROM {table}{where}")
    moving = st.just(
        f"WITH gone AS (DELETE FROM {table} RETURNING *) INSERT INTO {table} SELECT * FROM gone WHERE random() < 2"
    )
    parts = [_insert(table), _insert(table), _update(table), deleting]
    if table not in KEYS and table != "e":
        parts.append(moving)
    if table == "e":
        parts.append(
            _insert("e").map(
                lambda text: text.replace("INTO e", "INTO e_rest").replace("(0,", "(1,").replace("(-1,", "(2,")
            )
        )
    return st.one_of(*parts)


def changes(tables: tuple[str, ...]) -> st.SearchStrategy[str]:
    """A statement that changes one of the tables."""
    return st.sampled_from(tables).flatmap(_change)


def initial_rows(tables: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Statements that fill the tables."""
    return st.lists(st.sampled_from(tables).flatmap(_insert), max_size=10)


_CONTROL = st.sampled_from(
    ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s"]
)


def scripts(
    tables: tuple[str, ...], stream_tables: int, sessions: int = 3, size: int = 14
) -> st.SearchStrategy[list[Step]]:
    """Steps of several sessions, among them refreshes of stream tables. Session 0 is the scheduler's."""
    session = st.integers(1, sessions)
    step = st.one_of(
        st.builds(Step, session, changes(tables)),
        st.builds(Step, session, changes(tables)),
        st.builds(Step, session, _CONTROL),
        st.builds(lambda table: Step(1, f"TRUNCATE {table}"), st.sampled_from(tables)),
        st.builds(lambda number: Step(0, "", number), st.integers(0, stream_tables - 1)),
        st.builds(lambda number: Step(0, "", number), st.integers(0, stream_tables - 1)),
        st.builds(lambda who, number: Step(who, "", number), session, st.integers(0, stream_tables - 1)),
    )
    return st.lists(step, min_size=1, max_size=size)
