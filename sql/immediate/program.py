"""The trigger functions of a stream table in IMMEDIATE mode, in PL/pgSQL.

A statement that changes a source fires, for each stream table that reads it, a trigger before it and one after it. The
first counts the statements that have begun (in a setting of the session, so that a rollback takes it back); the second
has the changes in transition tables. Where no other statement is under way, which is most often so, it applies them:
row by row where that is possible (`direct`), otherwise by the operators' deltas, new state being what the tables hold,
and old state what they hold less the changes.

Where several statements change sources at once (parts of one with WITH, a cascade, a trigger of the user's), the tables
hold changes that the trigger does not have. So all but the last put theirs down in a table, and the last one applies
them together. A TRUNCATE has the query computed as a whole.

Two transactions that change the same result must come one after the other, or each would miss what the other has done:
see `Lock`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sql.base.columns import WEIGHT, Source
from sql.base.identity import SALT
from sql.base.text import quote, select, union_all
from sql.compile.compiled import Compiled
from sql.immediate.direct import FEW, Images, direct, goes_by_images, only_scan
from sql.immediate.settings import Needs
from sql.operators.captured_changes import net_changes
from sql.storage import Groups, KeyedRows

W = quote(WEIGHT)

EVENTS = ("INSERT", "UPDATE", "DELETE")


class Lock(StrEnum):
    """What a transaction holds until its end, having changed the result."""

    ROWS = "rows"
    """The rows of the result that it has changed: a row follows from one row of the only source, which whoever changes
    it has locked, or a group is added to."""
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

    ``hold`` is the body of the trigger function of statements that may change what is read: they name such a column, or
    change whole rows.
    """

    lock: Lock
    sources: tuple[SourceProgram, ...]
    left: str
    hold: str
    formats: bool = True
    """Whether what the query computes may depend on settings by which values are read and written as text."""
    many: bool = True
    """Whether it may join more tables than PostgreSQL looks through all orders of."""


def program(compiled: Compiled, storage: str, pgt_id: int, salt: int, needs: Needs) -> Program:
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
        writer.before(),
        needs.formats,
        needs.many,
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
        if len(self.numbered) != 1:
            return Lock.WHOLE  # there is none where nothing of what the query names is needed
        (source,), shape = self.compiled.sources, self.compiled.shape
        if isinstance(shape, KeyedRows):
            alone = only_scan(shape.root, source) is not None
        else:
            alone = isinstance(shape, Groups) and self._direct(source, Images("", "SELECT")) is not None
        return Lock.ROWS if alone else Lock.WHOLE

    def after(self, source: Source) -> str:
        """The body of the trigger function of a source.

        An expression takes a third of a microsecond, a statement two and more: what is most often so is asked for in
        one, and a function's result is assigned, which is no statement.
        """
        number = next(n for n, each in self.numbered.items() if each is source)
        return f"""#variable_conflict use_column
DECLARE
    __pgt_path CONSTANT text := current_setting('search_path');
    __pgt_maintenance CONSTANT text := coalesce(current_setting('pgtrickle.maintenance', true), '');
    -- No other statement that changes a source is under way.
    __pgt_alone boolean := current_setting('{self._begun}', true) = '1' AND tg_op <> 'TRUNCATE'
        AND coalesce(current_setting('{self._left}', true), '') = ''
        AND current_setting('transaction_isolation') = 'read committed';
    __pgt_begun int;
    __pgt_named boolean := coalesce(current_setting('{self._named}', true), '') <> '';
    __pgt_cascades boolean;
    __pgt_rows bigint;
    __pgt_changed bigint;
    __pgt_missing bigint;
    __pgt_set text;
BEGIN
    IF __pgt_alone THEN
        __pgt_set := set_config('{self._begun}', '0', true);
    ELSE
        {self._visible}
        __pgt_begun := coalesce(nullif(current_setting('{self._begun}', true), ''), '1')::int;
        IF __pgt_begun < 1 THEN
            PERFORM pgtrickle._raise_miscounted({self.pgt_id});
        END IF;
        __pgt_set := set_config('{self._begun}', (__pgt_begun - 1)::text, true);
        __pgt_alone := __pgt_begun = 1 AND tg_op <> 'TRUNCATE'
            AND coalesce(current_setting('{self._left}', true), '') = '';
    END IF;
    IF __pgt_named AND coalesce(__pgt_begun, 1) = 1 THEN
        __pgt_set := set_config('{self._named}', '', true);
    END IF;
    IF __pgt_alone THEN
{self._by_event(lambda event: self._applied(source, event))}
    ELSE
        IF tg_op = 'TRUNCATE' THEN
            __pgt_set := set_config('{self._left}', 'all', true);
            INSERT INTO {self.put_down} (source) VALUES (-1);
        ELSE
{self._by_event(lambda event: self._kept(source, event, number))}
            IF found THEN
                INSERT INTO {self.put_down} (source) VALUES (-1);
                IF coalesce(current_setting('{self._left}', true), '') = '' THEN
                    __pgt_set := set_config('{self._left}', 'rows', true);
                END IF;
            END IF;
        END IF;
        IF __pgt_begun = 1 AND coalesce(current_setting('{self._left}', true), '') <> '' THEN
            PERFORM {quote("pgtrickle_changes", f"immediate_{self.pgt_id}_left")}();
        END IF;
    END IF;
    {self._unspoilt}
    RETURN NULL;
END"""

    def left(self) -> str:
        """The body of the function that applies what was put down."""
        return f"""#variable_conflict use_column
DECLARE
    __pgt_changed bigint;
    __pgt_missing bigint;
    __pgt_maintenance CONSTANT text := coalesce(current_setting('pgtrickle.maintenance', true), '');
    __pgt_set text;
BEGIN
    __pgt_set := set_config('pgtrickle.maintenance', 'on', true);
    IF current_setting('{self._left}', true) = 'all' THEN
        {self._emptied}{self._unsalted(self.compiled.immediate_full_sql(self.storage))};
    ELSE
        {self._apply_put_down()}
    END IF;
    {self._done()}
    DELETE FROM {self.put_down} AS p WHERE p.source <> 0;
    __pgt_set := set_config('{self._left}', '', true);
END"""

    def _apply_put_down(self) -> str:
        if self.lock is Lock.ROWS and isinstance(self.compiled.shape, Groups):
            (source,) = self.compiled.sources
            found = self._direct(source, Images(*(self._put_down(1, source, f"p.{W} {sign} 0") for sign in "><")))
            assert found is not None
            return self._unsalted(found)
        deltas = {source.oid: self._net(source, self._put_down(n, source)) for n, source in self.numbered.items()}
        return self._unsalted(self.compiled.immediate_sql(self.storage, deltas)) + ";"

    def _put_down(self, number: int, source: Source, *where: str) -> str:
        """The rows of a source that were put down."""
        columns = [f"p.{quote(f'c{number}_{i}')} AS {quote(c)}" for i, c in enumerate(self.columns(source), 1)]
        return select([*columns, f"p.{W}"], f"{self.put_down} AS p", where=[f"p.source = {number}", *where])

    def before(self) -> str:
        """The body of the trigger function of statements that may change what is read.

        Where it takes a lock it also counts those statements that it is called for whatever columns they name.
        """
        named = f"__pgt_set := set_config('{self._named}', 'on', true);"
        if self.lock is Lock.ROWS:
            return f"DECLARE\n    __pgt_set text;\nBEGIN\n    {named}\n    RETURN NULL;\nEND"
        begun = f"(coalesce(nullif(current_setting('{self._begun}', true), ''), '0')::int + 1)::text"
        return f"""DECLARE
    __pgt_set text;
BEGIN
    IF tg_op = 'UPDATE' THEN
        {named}
    ELSE
        __pgt_set := set_config('{self._begun}', {begun}, true);
    END IF;
    {self.hold()}
    RETURN NULL;
END"""

    def hold(self) -> str:
        """The statement that takes the lock of the whole stream table."""
        xid = "pg_catalog.pg_current_xact_id()"
        return f"UPDATE {self.put_down} AS p SET holder = {xid} WHERE p.source = 0 AND p.holder <> {xid};"

    @property
    def _visible(self) -> str:
        """Whose snapshot is older than its becoming IMMEDIATE sees no row of `put_down`, nor what is stored now."""
        return f"""IF current_setting('transaction_isolation') <> 'read committed' THEN
        IF NOT EXISTS (SELECT FROM {self.put_down} AS p WHERE p.source = 0) THEN
            PERFORM pgtrickle._raise_serialization();
        END IF;
    END IF;"""

    @property
    def _unspoilt(self) -> str:
        """A search_path that a function has set for the session would stay. It redirects nothing that stands here."""
        return """IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) __pgt_path THEN
        PERFORM pgtrickle._raise_left_behind();
    END IF;"""

    @property
    def _emptied(self) -> str:
        """TRUNCATE removes rows that the transaction does not see; those that were made of them must go likewise."""
        if self.lock is Lock.WHOLE:
            return ""  # who sees less than there is has not got the lock
        return f"""IF current_setting('transaction_isolation') <> 'read committed' THEN
            TRUNCATE ONLY {self.storage};
        END IF;
        """

    @property
    def _begun(self) -> str:
        return f"pgtrickle.begun_{self.pgt_id}"

    @property
    def _named(self) -> str:
        return f"pgtrickle.named_{self.pgt_id}"

    @property
    def _left(self) -> str:
        return f"pgtrickle.left_{self.pgt_id}"

    def _by_event(self, part: Callable[[str], str]) -> str:
        found = [
            f"        {'ELSIF' if i else 'IF'} tg_op = '{event}' THEN\n{part(event)}" for i, event in enumerate(EVENTS)
        ]
        return "\n".join([*found, "        END IF;"])

    def _applied(self, source: Source, event: str) -> str:
        """Apply the changes of one statement."""
        come, gone = (f"SELECT * FROM {table} AS t" for table in ("__pgt_new", "__pgt_old"))
        found = self._direct(source, Images("" if event == "DELETE" else come, "" if event == "INSERT" else gone))
        changes = self._transition(source, event)
        by_deltas = self._unsalted(self.compiled.immediate_sql(self.storage, {source.oid: changes}) + ";")
        statements = by_deltas if found is None else self._unsalted(found)
        whole, again = self.lock is Lock.WHOLE, False
        if found and event == "UPDATE" and goes_by_images(self.compiled.shape):
            # A foreign key can update a row once more, in the same statement.
            again = True
            statements = f"IF __pgt_cascades THEN {by_deltas}\nELSE\n{statements}\nEND IF;"
        done = self._done(statements)
        if whole:
            statements = f"IF __pgt_rows <= {FEW} THEN\n{statements}\nELSE\n{statements}\nEND IF;"
        return f"""{self._skipped(source, event, None if found else changes, counted=whole or again)}\
{self._cascading if again else ""}            __pgt_set := set_config('pgtrickle.maintenance', 'on', true);
            {statements}
            {done}"""

    def _skipped(self, source: Source, event: str, changes: str | None, *, counted: bool) -> str:
        """Nothing more is done where nothing that is read has changed; the ``changes`` are looked for if given.

        Rows are ``counted``, up to `FEW` and one more, where plans or what is done depend on their number.
        """
        parts = []
        if event == "UPDATE":
            parts.append(self._ended(self._unread(source), "NOT __pgt_named" if self.columns(source) else None))
        if counted:
            counted_rows = f"PERFORM FROM {_IMAGES[event][-1][0]} LIMIT {FEW + 1}"
            parts.append(f"            {counted_rows};\n            GET DIAGNOSTICS __pgt_rows = ROW_COUNT;\n")
            parts.append(self._ended("__pgt_rows = 0"))
        if event == "UPDATE" and changes is not None:
            parts.append(self._ended(f"NOT EXISTS ({changes})"))
        if event == "UPDATE" and self.lock is Lock.WHOLE and self.columns(source):
            # Where no column was named that is read, a trigger of the user's may have changed one all the same.
            parts.append(f"            IF NOT __pgt_named THEN\n                {self.hold()}\n            END IF;\n")
        return "".join(parts)

    def _ended(self, condition: str, first: str | None = None) -> str:
        """Nothing more is done on a condition, which is looked at if the ``first`` one, a cheaper one, is true."""
        ended = f"""            IF {condition} THEN
                {self._unspoilt}
                RETURN NULL;
            END IF;
"""
        return f"            IF {first} THEN\n{ended}            END IF;\n" if first else ended

    @property
    def _cascading(self) -> str:
        """Whether a row may have been updated more than once."""
        return f"""            IF __pgt_rows > 1 THEN
                __pgt_cascades := EXISTS ({_CASCADES});
            END IF;
"""

    def _unread(self, source: Source) -> str:
        """The condition that an update cannot have changed a column that is read: none of them was named."""
        if not self.columns(source):
            return "true"
        others = (
            # Row, before, update: such a trigger changes what it likes. Partitions and children have their own.
            "SELECT FROM pg_trigger t WHERE t.tgrelid = tg_relid AND t.tgtype::int & 19 = 19 AND NOT t.tgisinternal",
            "SELECT FROM pg_inherits h WHERE h.inhparent = tg_relid",
            # What a foreign key updates in a statement that updates the table fires the triggers of that alone.
            _CASCADES,
        )
        return " AND ".join(f"NOT EXISTS ({other})" for other in others)

    def _direct(self, source: Source, images: Images) -> str | None:
        return direct(self.compiled, self.storage, self.pgt_id, source, images)

    def _done(self, statements: str = "") -> str:
        """After statements: nobody may rely on a result that was not what it should have been."""
        missing = f"""
            IF __pgt_missing > 0 THEN
                PERFORM pgtrickle._raise_missing({self.pgt_id}, __pgt_missing);
            END IF;"""
        restored = "__pgt_set := set_config('pgtrickle.maintenance', __pgt_maintenance, true);"
        return restored + (missing if not statements or "__pgt_missing" in statements else "")

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

    def _unsalted(self, statement: str) -> str:
        """A statement without parameters."""
        return statement.replace(SALT, f"{self.salt}::bigint")


_CASCADES = (
    "SELECT FROM pg_constraint k WHERE k.conrelid = tg_relid AND k.contype = 'f'"
    " AND (k.confupdtype IN ('c', 'n', 'd') OR k.confdeltype IN ('n', 'd'))"
)
"""The foreign keys that update rows of a trigger's table."""

_IMAGES = {
    "INSERT": (("__pgt_new", "1::smallint"),),
    "DELETE": (("__pgt_old", "(-1)::smallint"),),
    "UPDATE": (("__pgt_old", "(-1)::smallint"), ("__pgt_new", "1::smallint")),
}
"""The transition tables of each event, with the weights of their rows."""
