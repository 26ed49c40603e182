"""Window functions of a SELECT: taken out of its expressions, then built as operators, one a PARTITION BY list.

A window function is computed after GROUP BY and HAVING and can stand anywhere in an expression. So each call is first
replaced by a placeholder, and what it is made of (arguments, FILTER, PARTITION BY, ORDER BY) goes through aggregation
like the other expressions of the SELECT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.columns import field as described
from sql.base.text import derived, quote, select
from sql.base.types import aggregate_result
from sql.build.projection import projected, require_groupable
from sql.build.protocol import Builder
from sql.build.subqueries.subplan import has_placeholder
from sql.canonical.dialect import generate
from sql.errors import NotDifferentiable
from sql.operators import Operator
from sql.operators.aggregates.window import Frame, Window, WindowCall
from sql.operators.ordering import SortKey
from sql.operators.plan import Plan

_RESULTS = {
    "row_number": "bigint",
    "rank": "bigint",
    "dense_rank": "bigint",
    "ntile": "integer",
    "count": "bigint",
    "percent_rank": "double precision",
    "cume_dist": "double precision",
}
_VALUES = frozenset({"lag", "lead", "first_value", "last_value", "nth_value"})
_WINDOW, _COMPONENT = "__pgt_window_", "__pgt_component_"
_NAMES = (exp.Identifier, exp.Star, exp.DataType, exp.Var)
_STRUCTURE = (exp.Where, exp.Distinct, exp.Order, exp.Ordered, exp.JSONKeyValue)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call taken out: numbers of its components, and the rest of it."""

    name: str
    function: exp.Expr
    arguments: tuple[int, ...]
    partition: tuple[int, ...]
    order: tuple[int, ...]
    directions: tuple[tuple[bool, bool], ...]
    frame: Frame


@dataclass(slots=True)
class Windows:
    """The window functions of one SELECT; ``named`` are those of its WINDOW clause."""

    named: Mapping[str, exp.Window] = field(default_factory=dict)
    components: list[exp.Expr] = field(default_factory=list)
    _pending: dict[str, _Pending] = field(default_factory=dict)

    @staticmethod
    def of(query: exp.Select) -> Windows:
        """No call taken out yet."""
        return Windows({window.name: window for window in query.args.get("windows") or ()})

    def take(self, node: exp.Expr) -> exp.Expr:
        """The expression with placeholders for its window function calls."""

        def taken(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Window):
                return part
            key = generate(part)
            if key not in self._pending:
                self._pending[key] = self._call(part)
            return _placeholder(_WINDOW, list(self._pending).index(key))

        return node.transform(taken)

    def _component(self, node: exp.Expr) -> int:
        self.components.append(node.copy())
        return len(self.components) - 1

    def _call(self, window: exp.Window) -> _Pending:
        function = inner = window.this.copy()
        while isinstance(inner, exp.Filter | exp.Dot):
            if isinstance(inner, exp.Filter):
                self._open(inner.expression)
            inner = inner.this if isinstance(inner, exp.Filter) else inner.expression
        arguments = self._open(inner)
        name = generate(function).partition("(")[0].strip()
        partition, order, frame = self._over(window)
        sorted_by = spread([(part.this, *direction(part)) for part in order])
        return _Pending(
            name if isinstance(function, exp.Dot) else name.lower(),
            function,
            tuple(arguments),
            tuple(self._component(part) for part, _, _ in spread([(part, False, False) for part in partition])),
            tuple(self._component(part) for part, _, _ in sorted_by),
            tuple((descending, nulls_first) for _, descending, nulls_first in sorted_by),
            frame,
        )

    def _open(self, node: exp.Expr) -> list[int]:
        """Replace the values within a call by placeholders for components."""
        numbers: list[int] = []
        for child in list(node.iter_expressions()):
            if isinstance(child, _STRUCTURE):
                numbers += self._open(child)
            elif not isinstance(child, _NAMES):
                numbers.append(self._component(child))
                child.replace(_placeholder(_COMPONENT, numbers[-1]))
        return numbers

    def _over(self, window: exp.Window) -> tuple[list[exp.Expr], list[exp.Expr], Frame]:
        """PARTITION BY, ORDER BY and the frame, with what comes from the named window it refers to."""
        partition = window.args.get("partition_by") or []
        order = window.args["order"].expressions if window.args.get("order") else []
        spec = window.args.get("spec")
        frame = _frame(spec) if spec else Frame()
        base = self.named.get(window.alias)
        if base is None:
            return partition, order, frame
        inherited = self._over(base)
        return partition or inherited[0], order or inherited[1], frame if spec else inherited[2]

    def build(
        self,
        builder: Builder,
        operator: Operator,
        parts: Sequence[exp.Expr],
        components: Sequence[exp.Expr],
    ) -> tuple[Operator, list[exp.Expr]]:
        """The calls as operators over ``operator``, and ``parts`` with their columns in place of the placeholders.

        ``components`` are those taken out, resolved.
        """
        if not self._pending:
            return operator, list(parts)
        used = {column.name: column for part in parts for column in part.find_all(exp.Column)}
        kept = [("column", column.copy()) for column in used.values()]
        ordering = {number for call in self._pending.values() for number in call.order}
        varying = [i for i, c in enumerate(components) if i in ordering or c.find(exp.Column) or has_placeholder(c)]
        operator, fields = projected(builder, operator, [*kept, *(("window", components[i]) for i in varying)])
        columns = dict(zip(varying, fields[len(kept) :], strict=True))
        values = {
            _key(_COMPONENT, i): reference(columns[i]) if i in columns else component
            for i, component in enumerate(components)
        }
        operator, results = self._operators(builder, operator, columns, values)
        return operator, [_filled(part, results) for part in parts]

    def _operators(
        self, builder: Builder, operator: Operator, columns: Mapping[int, Field], values: Mapping[str, exp.Expr]
    ) -> tuple[Operator, dict[str, exp.Expr]]:
        """One operator for each PARTITION BY, and the columns that take the place of the placeholders of calls.

        ``columns`` are those of the components, ``values`` what takes the place of their placeholders.
        """
        calls = list(self._pending.values())
        results: dict[str, exp.Expr] = {}
        available = {column.name: column for column in operator.columns}
        for by, numbers in self._by_partition(columns).items():
            keys = tuple(available[name] for name in sorted(by))
            require_groupable(keys, "PARTITION BY")
            built = [_window_call(builder, calls[n], columns, values) for n in numbers]
            window = _typed(builder, Window(operator, keys, tuple(built)))
            for n, done in zip(numbers, window.calls, strict=True):
                results[_key(_WINDOW, n)] = reference(done.column)
            operator = window
        return operator, results

    def _by_partition(self, columns: Mapping[int, Field]) -> dict[frozenset[str], list[int]]:
        """The numbers of the calls by what they are partitioned by; ``columns`` hold the components that vary."""
        partitions: dict[frozenset[str], list[int]] = {}
        for number, call in enumerate(self._pending.values()):
            by = frozenset(columns[i].name for i in call.partition if i in columns)
            partitions.setdefault(by, []).append(number)
        return partitions


def direction(item: exp.Expr) -> tuple[bool, bool]:
    """Whether an item of ORDER BY sorts in descending order, and NULLs first."""
    return bool(item.args.get("desc")), bool(item.args.get("nulls_first"))


def spread(items: Sequence[tuple[exp.Expr, bool, bool]]) -> list[tuple[exp.Expr, bool, bool]]:
    """Sort items with the parts of a ROW() in its place, which is no type of a column; NULLs are its largest parts."""
    result: list[tuple[exp.Expr, bool, bool]] = []
    for node, descending, nulls_first in items:
        row = node.unnest()
        if isinstance(row, exp.Anonymous) and row.name.upper() == "ROW":
            result += spread([(part, descending, descending) for part in row.expressions])
        else:
            result.append((node, descending, nulls_first))
    return result


def _placeholder(kind: str, number: int) -> exp.Expr:
    return exp.Placeholder(this=_key(kind, number))


def _key(kind: str, number: int) -> str:
    return f"{kind}{number}"


def _filled(node: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """A copy with values in place of their placeholders."""

    def filled(part: exp.Expr) -> exp.Expr:
        found = values.get(part.name) if isinstance(part, exp.Placeholder) else None
        return found.copy() if found is not None else part

    return node.copy().transform(filled)


def reference(column: Field) -> exp.Expr:
    """An operator's column as an expression."""
    return exp.column(exp.to_identifier(column.name, quoted=True))


def _frame(spec: exp.WindowSpec) -> Frame:
    bounds = []
    for side in ("start", "end"):
        bound = spec.args.get(side) or "CURRENT ROW"
        if isinstance(bound, exp.Expr):
            if bound.find(exp.Query):
                raise NotDifferentiable("subquery in a window frame")
            bound = generate(bound)
        bounds.append(" ".join(filter(None, (bound, spec.args.get(f"{side}_side")))))
    exclude = spec.args.get("exclude")
    return Frame(spec.args["kind"], bounds[0], bounds[1], exclude.name if exclude else "NO OTHERS")


def _window_call(
    builder: Builder, call: _Pending, columns: Mapping[int, Field], values: Mapping[str, exp.Expr]
) -> WindowCall:
    arguments = tuple(columns[i] for i in call.arguments if i in columns)
    order = tuple(
        SortKey(columns[i], descending, nulls_first)
        for i, (descending, nulls_first) in zip(call.order, call.directions, strict=True)
    )
    column = Field(builder.fresh(call.name.rpartition(".")[2].strip('"')), _RESULTS.get(call.name, ""))
    if call.name in ("sum", "avg", "min", "max") and len(arguments) == 1:
        column = aggregate_result(column.name, call.name, arguments[0]) or column
    elif (
        call.name in _VALUES and len(call.arguments) - (call.name == "nth_value") == 1 and call.arguments[0] in columns
    ):
        of = columns[call.arguments[0]]
        # A function's result has no type modifier.
        column = replace(of, name=column.name, not_null=False, origin=None) if "(" not in of.type else column
    elif call.name in _RESULTS:
        column = replace(column, not_null=True, scale=0, equality_is_identity=column.type != "double precision")
    return WindowCall(column, call.name, _filled(call.function, values), arguments, order, call.frame)


def _typed(builder: Builder, window: Window) -> Window:
    """The operator with the types of results that only PostgreSQL knows."""
    unknown = [call.column.name for call in window.calls if not call.column.type]
    if not unknown:
        return window
    probe = select([quote(name) for name in unknown], derived(window.new(Plan(frozenset())), "p"))
    answers = dict(zip(unknown, builder.types.describe(probe, len(unknown)), strict=True))
    calls = [
        replace(call, column=described(call.column.name, answers[call.column.name]))
        if call.column.name in answers
        else call
        for call in window.calls
    ]
    return replace(window, calls=tuple(calls))
