"""Window functions in Spark's dialect.

Only what follows from the rows and the order given: the compiler breaks ties by content, so that ``row_number`` and its
like have one result. Frames are of rows, or the default one, which both systems share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.protocol import Environment, Expressions, Rule
from sql.spark.types import BIGINT, INTEGER, Display, Typed
from sql.spark.user_defined.types import place_of
from sql.spark.values import as_type, kept_scale, unify

_NUMBERS = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
_VALUES = {exp.FirstValue: "first_value", exp.LastValue: "last_value"}
_NEIGHBOURS = {exp.Lag: "lag", exp.Lead: "lead"}
_AGGREGATES = (exp.Sum, exp.Count, exp.Avg, exp.Min, exp.Max, exp.LogicalAnd, exp.LogicalOr)
_PARTS = {exp.Lag: ("this", "offset", "default"), exp.Lead: ("this", "offset", "default")}


def _window(expressions: Expressions, node: exp.Window) -> Typed:
    function = node.this
    kind = type(function)
    known = _PARTS.get(kind, () if kind in _NUMBERS else ("this",))
    if not isinstance(function, _AGGREGATES) and any(
        value and part not in known for part, value in function.args.items()
    ):
        raise NotExpressible(f"window function {function.sql('postgres')}")
    over = _over(expressions, node, framed=kind in _VALUES or kind in _AGGREGATES)
    inner = expressions.with_clause("")
    if kind in _NUMBERS:
        return Typed(f"CAST({_NUMBERS[kind]}(){over} AS BIGINT)", BIGINT)
    if kind is exp.Ntile:
        if not _literal(function.this):
            raise NotExpressible("ntile of anything but a number")
        return Typed(f"CAST(ntile({int(function.this.unnest().name)}){over} AS INT)", INTEGER)
    if kind in _VALUES:
        value = inner.render(function.this)
        scale = f"{_VALUES[kind]}({value.display}){over}" if value.display else ""
        return replace(value, sql=f"{_VALUES[kind]}({value.sql}){over}", display=scale)
    if kind in _NEIGHBOURS:
        return _neighbour(inner, function, _NEIGHBOURS[kind], over)
    if isinstance(function, _AGGREGATES):
        if isinstance(function.this, exp.Distinct):
            raise NotExpressible("DISTINCT in a window function")
        return expressions.with_clause(over).render(function)
    raise NotExpressible(f"window function {function.sql('postgres')}")


def _neighbour(expressions: Expressions, node: Any, name: str, over: str) -> Typed:
    value, offset = expressions.render(node.this), node.args.get("offset")
    if offset is not None and not _literal(offset):
        raise NotExpressible(f"{name} with an offset that is not a number")
    steps = int(offset.unnest().name) if offset is not None else 1
    if node.args.get("default") is None:
        scale = f"{name}({value.display}, {steps}){over}" if value.display else ""
        return replace(value, sql=f"{name}({value.sql}, {steps}){over}", display=scale)
    default = expressions.render(node.args["default"])
    type_ = unify((value.type, default.type), name)
    if type_.display is not Display.FIXED:
        raise NotExpressible(f"{name} of numerics with different scales")
    kept_scale(value, type_)
    return Typed(f"{name}({as_type(value, type_)}, {steps}, {as_type(default, type_)}){over}", type_)


def _literal(node: Any) -> bool:
    value = node.unnest()
    return isinstance(value, exp.Literal) and value.is_int


def _over(expressions: Expressions, node: exp.Window, *, framed: bool) -> str:
    plain = expressions.with_clause("")
    parts = []
    keys = []
    for key in node.args.get("partition_by") or ():
        value = plain.render(key)
        if not value.type.groupable or value.type.display is not Display.FIXED:
            raise NotExpressible(f"PARTITION BY {value.type.name}, whose equal values can look different")
        keys.append(value.sql)
    if keys:
        parts.append(f"PARTITION BY {', '.join(keys)}")
    order = node.args.get("order")
    if order is not None:
        environment = expressions.environment
        listed = (sort_key(plain.render(item.this), item, environment) for item in order.expressions)
        parts.append(f"ORDER BY {', '.join(listed)}")
    frame = _frame(node.args.get("spec"))
    if framed and frame:
        parts.append(frame)
    if not framed and order is None:
        raise NotExpressible("window function that depends on an order, without one")
    return f" OVER ({' '.join(parts)})"


def sort_key(value: Typed, item: Any, environment: Environment | None = None) -> str:
    """An item of ORDER BY, whose expression is `value`. Raises NotExpressible where Spark's order is another."""
    if value.type.enum and environment is not None:
        value = place_of(value, environment)
    if not (value.type.ordered and value.type.groupable):
        raise NotExpressible(f"ORDER BY {value.type.name}{' under this collation' if value.type.is_text else ''}")
    direction = "DESC" if item.args.get("desc") else "ASC"
    return f"{value.sql} {direction} NULLS {'FIRST' if item.args.get('nulls_first') else 'LAST'}"


def _frame(spec: Any) -> str:
    if spec is None:
        return ""
    if spec.args.get("exclude") and spec.args["exclude"].name.upper() != "NO OTHERS":
        raise NotExpressible("EXCLUDE in a window frame")
    kind = str(spec.args.get("kind") or "").upper()
    bounds = [_bound(spec, side) for side in ("start", "end")]
    unbounded = all(bound in _UNBOUNDED for bound in bounds)
    if kind not in ("ROWS", "RANGE") or (kind == "RANGE" and not unbounded):
        raise NotExpressible(f"window frame {spec.sql('postgres')}")
    return f"{kind} BETWEEN {bounds[0]} AND {bounds[1]}"


_UNBOUNDED = frozenset(("UNBOUNDED PRECEDING", "CURRENT ROW", "UNBOUNDED FOLLOWING"))


def _bound(spec: Any, which: str) -> str:
    value, side = spec.args.get(which), str(spec.args.get(f"{which}_side") or "").upper()
    if value is None:
        return "CURRENT ROW"
    if isinstance(value, exp.Expr):
        if not _literal(value):
            raise NotExpressible(f"window frame {spec.sql('postgres')}")
        return f"{int(value.unnest().name)} {side}"
    return f"{str(value).upper()} {side}".strip()


WINDOWS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Window: (_window, ("this", "partition_by", "order", "spec", "over")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
