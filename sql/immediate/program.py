"""The trigger functions of a stream table in IMMEDIATE mode, in PL/pgSQL.

A statement that changes a source fires, for each stream table that reads it, a trigger before it and one after it. The
first counts the statements that have begun (in a setting of the session, so that a rollback takes it back); the second
has the changes in transition tables. Where no other statement is under way, which is most often so, it applies them by
the operators' deltas: new state is what the tables hold, old state what they hold less the changes.

Where several statements change sources at once (parts of one with WITH, a cascade, a trigger of the user's), the tables
hold changes that the trigger does not have. So all but the last put theirs down in a table, and the last one applies
them together. A TRUNCATE has the query computed as a whole.

Two transactions that change the same result must come one after the other, or each would miss what the other has done:
see `Lock`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sql.base.columns import WEIGHT, Field, Source
from sql.base.identity import SALT, key_hash
from sql.base.text import quote, select, union_all
from sql.compile.compiled import Compiled
from sql.operators.captured_changes import net_changes
from sql.storage import KeyedRows

LOCK_CLASS = 1213661300
"""The first key of the advisory locks of groups."""

BUCKETS = 128
"""Of groups that are locked together, so that a statement that touches many takes no more locks than that."""

FEW = 100
"""Changed rows up to which a statement has a plan of its own: PostgreSQL plans it for as many as it first meets."""

MANY = 2000
"""Changed rows from which on all groups are locked, rather than those that are touched be looked for."""

W = quote(WEIGHT)


class Lock(StrEnum):
    """What a transaction holds until its end, having changed the result."""

    NONE = "none"
    """Nothing: each changed row decides on the result's row with its key, and whoever changes it has it locked."""
    GROUPS = "groups"
    """The groups that it has touched (`BUCKETS`)."""
    WHOLE = "whole"
    """The stream table, from before its statement changes a row: the other order would deadlock."""


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """What is done when a source has changed. ``columns`` are those of it that are put down."""

    oid: int
    number: int
    columns: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class Program:
    """The bodies of the functions of a stream table: of the triggers, by source, and of what applies changes put down.

    ``hold`` is the body of the trigger function that takes the lock, where that is `Lock.WHOLE`.
    """

    lock: Lock
    sources: tuple[SourceProgram, ...]
    left: str
    hold: str | None


def program(compiled: Compiled, storage: str, pgt_id: int, salt: int) -> Program:
    """The program of a stream table: `storage` is its table, qualified and quoted, and `salt` that of its row ids.

    Raises NotDifferentiable where a statement would be too long.
    """
    writer = _Writer(compiled, storage, pgt_id, salt)
    return Program(
        writer.lock,
        tuple(
            SourceProgram(source.oid, number, writer.columns(source), writer.after(source))
            for number, source in writer.numbered.items()
        ),
        writer.left(),
        f"BEGIN\n    {writer.hold()}\n    RETURN NULL;\nEND" if writer.lock is Lock.WHOLE else None,
    )


class _Writer:
    def __init__(self, compiled: Compiled, storage: str, pgt_id: int, salt: int):
        self.compiled, self.storage, self.pgt_id, self.salt = compiled, storage, pgt_id, salt
        self.numbered = dict(enumerate(compiled.sources, 1))
        self.put_down = quote("pgtrickle_changes", f"immediate_{pgt_id}")
        self.lock = self._lock()

    def columns(self, source: Source) -> tuple[str, ...]:
        """The columns of a source that the query reads."""
        used = self.compiled.used_columns[source.oid]
        return tuple(column.name for column in source.columns if column.name in used)

    def _lock(self) -> Lock:
        if not self.compiled.commutes:
            return Lock.WHOLE
        (source,) = self.compiled.sources
        touched = self._touched({source.oid: self._transition(source, "INSERT")})
        if touched is not None:
            return Lock.GROUPS
        return Lock.NONE if isinstance(self.compiled.shape, KeyedRows) else Lock.WHOLE

    def after(self, source: Source) -> str:
        """The body of the trigger function of a source."""
        number = next(n for n, each in self.numbered.items() if each is source)
        return f"""#variable_conflict use_column
DECLARE
    __pgt_begun CONSTANT int := coalesce(nullif(current_setting('{self._begun}', true), ''), '1')::int;
    __pgt_left CONSTANT text := coalesce(current_setting('{self._left}', true), '');
    __pgt_changed int;
    __pgt_missing bigint;
    __pgt_maintenance CONSTANT text := coalesce(current_setting('pgtrickle.maintenance', true), '');
BEGIN
    PERFORM set_config('{self._begun}', (__pgt_begun - 1)::text, true);
    IF tg_op = 'TRUNCATE' THEN
        PERFORM set_config('{self._left}', 'all', true);
    ELSIF __pgt_begun = 1 AND __pgt_left = '' THEN
        -- No other statement that changes a source is under way.
{self._by_event(source, self._applied)}
    ELSE
{self._by_event(source, self._kept, number)}
        IF found AND __pgt_left = '' THEN
            PERFORM set_config('{self._left}', 'rows', true);
        END IF;
    END IF;
    IF __pgt_begun = 1 AND current_setting('{self._left}', true) <> '' THEN
        PERFORM {quote("pgtrickle_changes", f"immediate_{self.pgt_id}_left")}();
    END IF;
    RETURN NULL;
END"""

    def left(self) -> str:
        """The body of the function that applies what was put down."""
        deltas = {}
        for number, source in self.numbered.items():
            columns = [f"p.{quote(f'c{number}_{i}')} AS {quote(c)}" for i, c in enumerate(self.columns(source), 1)]
            rows = select([*columns, f"p.{W}"], f"{self.put_down} AS p", where=[f"p.source = {number}"])
            deltas[source.oid] = self._net(source, rows)
        return f"""#variable_conflict use_column
DECLARE
    __pgt_missing bigint;
    __pgt_maintenance CONSTANT text := coalesce(current_setting('pgtrickle.maintenance', true), '');
BEGIN
{self._locked(deltas, "false")}
    PERFORM set_config('pgtrickle.maintenance', 'on', true);
    IF current_setting('{self._left}', true) = 'all' THEN
        {self._unsalted(self.compiled.immediate_full_sql(self.storage))};
    ELSE
        {self._serialized(self._unsalted(self.compiled.immediate_sql(self.storage, deltas)) + ";")}
    END IF;
    {self._done}
    DELETE FROM {self.put_down} AS p WHERE p.source > 0;
    PERFORM set_config('{self._left}', '', true);
END"""

    def hold(self) -> str:
        """The statement that takes the lock of the whole stream table."""
        xid = "pg_catalog.pg_current_xact_id()"
        return f"UPDATE {self.put_down} AS p SET holder = {xid} WHERE p.source = 0 AND p.holder <> {xid};"

    @property
    def _begun(self) -> str:
        return f"pgtrickle.begun_{self.pgt_id}"

    @property
    def _left(self) -> str:
        return f"pgtrickle.left_{self.pgt_id}"

    def _by_event(self, source: Source, part: object, *arguments: object) -> str:
        assert callable(part)
        found = [
            f"        {'IF' if i == 0 else 'ELSIF'} tg_op = '{event}' THEN\n{part(source, event, *arguments)}"
            for i, event in enumerate(("INSERT", "UPDATE", "DELETE"))
        ]
        return "\n".join([*found, "        END IF;"])

    def _applied(self, source: Source, event: str) -> str:
        """Apply the changes of one statement."""
        table = "__pgt_old" if event == "DELETE" else "__pgt_new"
        deltas = {source.oid: self._transition(source, event)}
        statement = self._unsalted(self.compiled.immediate_sql(self.storage, deltas))
        nothing = "__pgt_changed = 0"
        if event == "UPDATE":
            nothing += f" OR NOT EXISTS ({deltas[source.oid]})"
        late = f"            {self.hold()}  -- where no column was named that is read\n" if event == "UPDATE" else ""
        return f"""            __pgt_changed := (SELECT count(*) FROM (SELECT FROM {table} LIMIT {MANY}) AS c);
            IF {nothing} THEN
                RETURN NULL;
            END IF;
{late if self.lock is Lock.WHOLE else ""}{self._locked(deltas, f"__pgt_changed = {MANY}")}
            PERFORM set_config('pgtrickle.maintenance', 'on', true);
            IF __pgt_changed <= {FEW} THEN
                {self._serialized(statement + ";")}
            ELSE
                {self._serialized(statement + ";")}
            END IF;
            {self._done}"""

    @property
    def _done(self) -> str:
        """After a statement: nobody may rely on a result that was not what it should have been."""
        return f"""PERFORM set_config('pgtrickle.maintenance', __pgt_maintenance, true);
            IF __pgt_missing > 0 THEN
                PERFORM pgtrickle._raise_missing({self.pgt_id}, __pgt_missing);
            END IF;"""

    def _kept(self, source: Source, event: str, number: int) -> str:
        """Put the changes of a statement down."""
        columns = self.columns(source)
        targets = ", ".join(["source", W, *(quote(f"c{number}_{i}") for i in range(1, len(columns) + 1))])
        rows = union_all(
            [
                select([str(number), f"{weight}", *(f"c.{quote(c)}" for c in columns)], f"{table} AS c")
                for table, weight in _IMAGES[event]
            ]
        )
        return f"            INSERT INTO {self.put_down} ({targets}) {rows};"

    def _transition(self, source: Source, event: str) -> str:
        """The net changes of one statement."""
        columns = [f"t.{quote(c)}" for c in self.columns(source)]
        rows = [select([*columns, f"{weight} AS {W}"], f"{table} AS t") for table, weight in _IMAGES[event]]
        return self._net(source, union_all(rows))

    def _net(self, source: Source, rows: str) -> str:
        condition = self.compiled.conditions.get(source.oid)
        where = [f"({condition})"] if condition else []
        return net_changes(source, self.compiled.used_columns[source.oid], f"({rows}) AS c", where)

    def _locked(self, deltas: Mapping[int, str], many: str) -> str:
        """Lock the groups that changes touch."""
        touched = self._touched(deltas) if self.lock is Lock.GROUPS else None
        if touched is None:
            return ""
        lock = f"pg_advisory_xact_lock({LOCK_CLASS}, ({self.pgt_id} * {BUCKETS} + k.bucket)::int)"
        return f"""            IF {many} THEN
                PERFORM {lock} FROM generate_series(0, {BUCKETS - 1}) AS k(bucket);
            ELSE
                PERFORM {lock} FROM ({touched} ORDER BY 1) AS k;
            END IF;
"""

    def _touched(self, deltas: Mapping[int, str]) -> str | None:
        def hashed(keys: Sequence[Field], alias: str) -> str:
            return f"({key_hash(keys, alias, '0')} & {BUCKETS - 1})::int AS bucket"

        return self.compiled.touched_groups(deltas, hashed)

    def _serialized(self, statement: str) -> str:
        """A statement that inserts groups. Above READ COMMITTED it may not see that another transaction has."""
        if self.lock is not Lock.GROUPS:
            return statement
        return f"""IF current_setting('transaction_isolation') = 'read committed' THEN
                {statement}
                ELSE
                BEGIN
                    {statement}
                EXCEPTION WHEN unique_violation THEN
                    PERFORM pgtrickle._raise_serialization();
                END;
                END IF;"""

    def _unsalted(self, statement: str) -> str:
        """A statement without parameters."""
        return statement.replace(SALT, f"{self.salt}::bigint")


_IMAGES = {
    "INSERT": (("__pgt_new", "1::smallint"),),
    "DELETE": (("__pgt_old", "(-1)::smallint"),),
    "UPDATE": (("__pgt_old", "(-1)::smallint"), ("__pgt_new", "1::smallint")),
}
"""The transition tables of each event, with the weights of their rows."""
