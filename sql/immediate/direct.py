"""Changes of a source that go into the result row by row, whatever else is there.

Where a source is read once, by operators that make of each of its rows what they make of it alone (its rows are
filtered, projected, joined with those of other sources), ``ΔQ = Q(come) - Q(gone)``: the query itself over the images
that a trigger has, without weights. So rows with keys are inserted and deleted by plain statements, and groups are
added to by INSERT … ON CONFLICT, which locks a group until the transaction ends and adds to what it finds then: two
transactions that change one group need no other lock. A group whose aggregates cannot be told by adding up is computed
again when it is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.columns import Source
from sql.base.text import any_of, derived, quote, select, union_all
from sql.compile.compiled import Compiled
from sql.immediate.flat import flat
from sql.operators import Filter, Join, LeftJoin, Operator, Project, Scan, Window
from sql.operators.aggregates.accumulators import COUNT, Accumulator, auxiliaries
from sql.operators.aggregates.accumulators import state as made_of
from sql.operators.input import Input, substituted
from sql.operators.joins.matching import Matching
from sql.operators.operator import W, names
from sql.operators.pass_through import PassThrough
from sql.operators.plan import Plan
from sql.storage import Groups, KeyedRows
from sql.storage.keyed import ID
from sql.storage.shape import Shape, output_columns

FEW = 100
"""Changed rows up to which a statement has a plan of its own: PostgreSQL plans it for as many as it first meets."""


@dataclass(frozen=True, slots=True)
class Images:
    """Rows of a source: queries of those that have come and of those that have gone, empty where there are none."""

    come: str = ""
    gone: str = ""


def direct(compiled: Compiled, storage: str, pgt_id: int, source: Source, images: Images) -> str | None:
    """PL/pgSQL that applies images of a source's rows, None where they do not go into the result row by row.

    It has a variable ``__pgt_changed`` of its own, and of an UPDATE of what a row of the result is made of, the number
    of changed rows in ``__pgt_rows``, up to `FEW` and one more. Each statement sees what the ones before it have done.
    """
    shape = compiled.shape
    if isinstance(shape, KeyedRows):
        scan, window = only_scan(shape.root, source), _window(shape.root)
        if window is not None:
            scan = only_scan(window.input, source)
            rows = None if scan is None else _DirectPartitions(shape, storage, scan, window)
            return rows.statements(images) if rows is not None and rows.has_its_key else None
        return None if scan is None else _DirectRows(shape, storage, scan).statements(images)
    if isinstance(shape, Groups) and shape.aggregate.grouped and not shape.filtered:
        scan = only_scan(shape.aggregate.input, source)
        return None if scan is None else _DirectGroups(shape, storage, pgt_id, scan).statements(images)
    return None


def only_scan(root: Operator, source: Source) -> Scan | None:
    """The only scan of a source below an operator, if each row of it is looked at by itself."""
    scans = [each for each in root.walk() if isinstance(each, Scan) and each.source.oid == source.oid]
    return scans[0] if len(scans) == 1 and _is_separable(root, scans[0]) else None


def _is_separable(operator: Operator, scan: Scan) -> bool:
    """Whether the operator makes of each row of the scan what it makes of it alone."""
    if operator is scan:
        return True
    if isinstance(operator, Filter | Project | PassThrough):
        return _is_separable(operator.input, scan)
    if isinstance(operator, Join):
        return any(_is_separable(each, scan) for each in operator.joined)
    return isinstance(operator, LeftJoin | Matching) and _is_separable(operator.left, scan)


def goes_by_images(shape: Shape) -> bool:
    """Whether rows are stored as images of the source's have them: there may be one image of each row then."""
    return isinstance(shape, KeyedRows) and _window(shape.root) is None


def _window(root: Operator) -> Window | None:
    """The window functions that all rows come out of, if they are in partitions."""
    while isinstance(root, Project | PassThrough):
        root = root.input
    return root if isinstance(root, Window) and root.keys else None


@dataclass(frozen=True, slots=True)
class _DirectRows:
    shape: KeyedRows
    storage: str
    scan: Scan

    def statements(self, images: Images) -> str:
        shape = self.shape
        come = derived(self._identified(images.come), "n") if images.come else ""
        gone = derived(self._identified(images.gone), "d") if images.gone else ""
        keys = derived(self._keys(images.gone), "d") if images.gone else ""
        columns = [f"n.{quote(name)}" for name in (ID.strip('"'), *shape.names)]
        if not gone:
            return f"{shape.insert(self.storage, select(columns, come))};"
        if not come:
            return f"DELETE FROM {self.storage} AS s USING {keys} WHERE {shape.same('s', 'd')};"
        # Of a row that stays there are two images, which have its key.
        stays = {side: f"NOT EXISTS ({select([], side, where=[shape.same('n', 'd')])})" for side in (come, gone)}
        assignments = ", ".join(f"{quote(name)} = n.{quote(name)}" for name in shape.names)
        others = f"""DELETE FROM {self.storage} AS s USING {keys} WHERE {shape.same("s", "d")} AND {stays[come]};
            {shape.insert(self.storage, select(columns, come, where=[stays[gone]]))};"""
        if self._one_row_each:
            others = f"""GET DIAGNOSTICS __pgt_changed = ROW_COUNT;
            IF __pgt_rows > {FEW} THEN
                __pgt_rows := (SELECT count(*) FROM {derived(images.come, "t")});
            END IF;
            IF __pgt_changed < __pgt_rows THEN
            {others}
            END IF;"""
        return f"""UPDATE {self.storage} AS s SET {assignments} FROM {come} WHERE {shape.same("s", "n")};
            {others}"""

    @property
    def _one_row_each(self) -> bool:
        """Whether an image makes one row at most: then all rows stay if as many are there as images."""
        key = self.shape.root.row_key() or []
        return all(number == self.scan.number for number, _ in key)

    def _keys(self, rows: str) -> str:
        """The keys, with row ids, of the stored rows that images have made, and of others perhaps that are not stored.

        Where they are columns of the source nothing has to be joined for that.
        """
        if not self.has_its_key:
            return self._identified(rows)
        fields = dict(self.shape.fields)
        origins = [(key.name, fields[key.name].origin) for key in self.shape.key]
        own = [f"t.{quote(origin[1])} AS {quote(name)}" for name, origin in origins if origin]
        return self.shape.identified(select(own, derived(rows, "t")))

    @property
    def has_its_key(self) -> bool:
        """Whether the key of a stored row is the source's, in columns of its own."""
        fields = dict(self.shape.fields)
        origins = [fields[key.name].origin for key in self.shape.key]
        own = all(origin is not None and origin[0] == self.scan.number for origin in origins)
        return own and self._one_row_each

    def _identified(self, rows: str) -> str:
        """The stored rows that images of the source's rows make, with their row ids."""
        root, shape = self.shape.root, self.shape
        return shape.identified(select(output_columns(shape.fields), derived(_over(root, self.scan, rows), "o")))


@dataclass(frozen=True, slots=True)
class _DirectPartitions(_DirectRows):
    """Partitions of window functions are computed again, and compared by their rows' keys with what is stored.

    A row of the source is one of the result, or none: what is stored and has the key of an image that has gone goes,
    unless its partition has it now. What deltas need as well, the partitions as they were, is not computed.
    """

    window: Window

    def statements(self, images: Images) -> str:
        shape, plan = self.shape, Plan(frozenset())
        keys = derived(self._keys(images.gone), "d") if images.gone else ""
        target = plan.cte(plan.fresh("rows"), shape.identified(self._partitions(plan, images)))
        update = shape.update(plan, self.storage, target)
        if not images.come:
            gone = f"DELETE FROM {self.storage} AS s USING {keys} WHERE {shape.same('s', 'd')};"
            return f"{gone}\n            {plan.statement.text(f'SELECT count(*) FROM {update}')} INTO __pgt_changed;"
        if images.gone:
            stays = select([], f"{target} AS n", where=[shape.same("n", "d")])
            where = f"{shape.same('s', 'd')} AND NOT EXISTS ({stays})"
            plan.statement.modification(
                "__pgt_deleted", f"DELETE FROM {self.storage} AS s USING {keys} WHERE {where} RETURNING 1"
            )
        inserted = shape.insert_missing(plan, self.storage, target)
        return f"{plan.statement.text(f'SELECT count(*) FROM {inserted}')} INTO __pgt_changed;"

    def _partitions(self, plan: Plan, images: Images) -> str:
        """The rows that the touched partitions have now."""
        window = self.window
        rows = [
            select(names(window.keys), derived(_over(window.input, self.scan, image), "i"))
            for image in (images.come, images.gone)
            if image
        ]
        touched = plan.cte(
            plan.fresh("touched"), select(names(window.keys), derived(union_all(rows), "t"), distinct=True)
        )
        given = Input(window.columns, window.computed(plan, window.input_new(plan, window.at(touched))))
        rows_now = substituted(self.shape.root, {window.node: given}).new(plan)
        return select(output_columns(self.shape.fields), derived(rows_now, "o"))


@dataclass(frozen=True, slots=True)
class _DirectGroups:
    shape: Groups
    storage: str
    pgt_id: int
    scan: Scan

    def statements(self, images: Images) -> str:
        rescans = [a.rescan for a in self._parts if a.rescan]
        changes = self._changes(images)
        added = self._added(changes, unless_zero=not rescans)
        # A group that another transaction has taken away is there for one with an older snapshot, which would insert it
        # beside: it must fail.
        locked = f"""IF current_setting('transaction_isolation') <> 'read committed' THEN
                PERFORM FROM {self.storage} AS s JOIN {derived(self._keys(changes), "d")} ON {self.shape.same("s", "d")}
                ORDER BY s.{ID} FOR UPDATE OF s;
            END IF;"""
        if not images.gone:
            return f"{locked}\n            {added};"
        count = f"u.{quote(COUNT)}"
        empty = f"SELECT count(*) FILTER (WHERE {count} <= 0), count(*) FILTER (WHERE {count} < 0)"
        again = f"{self._again(changes, rescans)};" if rescans else ""
        return f"""{locked}
            WITH __pgt_upserted AS ({added} RETURNING s.{quote(COUNT)}) {empty} INTO __pgt_changed, __pgt_missing
            FROM __pgt_upserted AS u;
            IF __pgt_changed > 0 THEN
                {self._without_empty(images.gone)};
            END IF;
            {again}"""

    @property
    def _parts(self) -> list[Accumulator]:
        return auxiliaries(self.shape.maintained)

    def _changes(self, images: Images) -> str:
        """The rows of the aggregate's input that have come and gone, with their weights."""
        tree = self.shape.aggregate.input
        return union_all(
            [
                select([*names(tree.columns), f"{weight}::bigint AS {W}"], derived(_over(tree, self.scan, rows), "i"))
                for rows, weight in ((images.come, "1"), (images.gone, "(-1)"))
                if rows
            ]
        )

    def _sums(self, changes: str, *, unless_zero: bool) -> str:
        """What touched groups change by, in the storage's keys, with row ids."""
        keys = self.shape.aggregate.keys
        parts = [part for a in self._parts for part in a.delta]
        something = [any_of([f"{part.sql} <> 0" for part in parts])] if unless_zero else []
        columns = [f"{quote(key.name)} AS {self.shape.stored_as[key.name]}" for key in keys]
        columns += [f"{part.sql} AS {quote(part.name)}" for part in parts]
        return self.shape.identified(select(columns, derived(changes, "d"), group_by=names(keys), having=something))

    def _added(self, changes: str, *, unless_zero: bool) -> str:
        """Add to the groups, in the order of their row ids, so that two transactions lock them in the same order."""
        shape, keys = self.shape, self.shape.aggregate.keys
        # There is no stored row: all of `s` is NULL, and of its type, which PostgreSQL knows when it plans.
        none = f"CROSS JOIN (SELECT (NULL::{self.storage}).*) AS s"
        source = f"{derived(self._sums(changes, unless_zero=unless_zero), 'd')} {none}"
        merged = [f"{a.merge} AS {quote(a.name)}" for a in self._parts]
        alone = select([*(f"d.{shape.stored_as[key.name]} AS {quote(key.name)}" for key in keys), *merged], source)
        columns = [f"n.{quote(name)}" for name in (ID.strip('"'), *shape.names)]
        rows = select(columns, derived(shape.identified(shape.finished(alone)), "n"))
        own = {column.name for column in shape.key}
        others = [name for name in shape.names if name not in own]
        targets, found = ", ".join(quote(name) for name in others), [f"f.{quote(name)}" for name in others]
        together = select(found, derived(shape.finished(self._together()), "f"))
        insert = f"{shape.insert(f'{self.storage} AS s', rows)} ORDER BY 1"
        known = flat(together)
        changed = f"({targets}) = ({together})"
        if known is not None:
            changed = ", ".join(f"{quote(name)} = {known[name]}" for name in others)
        return f"{insert} ON CONFLICT ({ID}) DO UPDATE SET {changed}"

    def _together(self) -> str:
        """What a group is made of with the row that would have been inserted added to it."""
        shape = self.shape
        changes = []
        for a in self._parts:
            first, *others = a.delta
            changes.append(f"excluded.{quote(a.name)} AS {quote(first.name)}")
            # What has gone is in the first already, or tells of a rescan only.
            changes += [f"{'0' if quote(o.name) in a.merge else 'NULL'} AS {quote(o.name)}" for o in others]
        same = shape.same_keys("s", "excluded")
        merged = {a.name: a.merge for a in self._parts}
        merged[COUNT] = f"CASE WHEN {same} THEN {merged[COUNT]} ELSE pgtrickle._raise_collision({self.pgt_id}) END"
        keys = [f"excluded.{shape.stored_as[key.name]} AS {quote(key.name)}" for key in shape.aggregate.keys]
        columns = [*keys, *(f"{sql} AS {quote(name)}" for name, sql in merged.items())]
        return select(columns, derived(select(changes), "d"))

    def _keys(self, rows: str) -> str:
        """The groups that rows are in, in the storage's keys, with row ids."""
        keys = self.shape.aggregate.keys
        columns = [f"{quote(key.name)} AS {self.shape.stored_as[key.name]}" for key in keys]
        return self.shape.identified(select(columns, derived(rows, "i"), distinct=True))

    def _without_empty(self, gone: str) -> str:
        touched = self._keys(_over(self.shape.aggregate.input, self.scan, gone))
        same = self.shape.same("s", "d")
        return f"DELETE FROM {self.storage} AS s USING {derived(touched, 'd')} WHERE {same} AND s.{quote(COUNT)} <= 0"

    def _again(self, changes: str, rescans: Sequence[str]) -> str:
        """Compute groups again that cannot be told otherwise: they are locked, and hold what was added to them."""
        shape, aggregate, plan = self.shape, self.shape.aggregate, Plan(frozenset())
        keys = [f"d.{shape.stored_as[key.name]} AS {quote(key.name)}" for key in aggregate.keys]
        doubtful = any_of([f"coalesce({rescan}, FALSE)" for rescan in rescans])
        source = (
            f"{derived(self._sums(changes, unless_zero=False), 'd')} JOIN {self.storage} AS s ON {shape.same('s', 'd')}"
        )
        flagged = plan.cte(plan.fresh("rescan"), select(keys, source, where=[doubtful]))
        rows = aggregate.input_new(plan, aggregate.at(flagged))
        state = made_of(aggregate.keys, shape.maintained, rows, grouped=True)
        own = {column.name for column in shape.key}
        assignments = ", ".join(f"{quote(name)} = n.{quote(name)}" for name in shape.names if name not in own)
        update = (
            f"UPDATE {self.storage} AS s SET {assignments} FROM {derived(shape.identified(shape.finished(state)), 'n')}"
            f" WHERE {shape.same('s', 'n')}"
        )
        return plan.statement.text(update)


def _over(tree: Operator, scan: Scan, rows: str) -> str:
    """A tree over other rows of a source."""
    columns = [f"t.{quote(f.origin[1])} AS {quote(f.name)}" for f in scan.columns if f.origin]
    given = Input(scan.columns, select(columns, derived(rows, "t")))
    return substituted(tree, {scan.node: given}).new(Plan(frozenset()))
