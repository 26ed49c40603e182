"""Arrays, as texts that PostgreSQL writes, and what is done with them.

Elements are texts, too: they are of types whose equal values look the same. NULL is None. Nothing here uses anything
else of this program: Spark gets it by value.
"""

import re
from itertools import pairwise
from typing import Any

_TOKEN = re.compile(r'[{},]|"(?:[^"\\]|\\.)*"|[^{},"\\]+', re.DOTALL)
_BOUNDS = re.compile(r"((?:\[[+-]?\d+:[+-]?\d+\])+)=")
_PLAIN = re.compile(r'[^{},"\\ \t\n\v\f\r]+')


class Array:
    """``sizes`` and ``lows`` by dimension, none of an empty array; ``items`` are all elements, row by row."""

    def __init__(self, sizes: list[int], lows: list[int], items: list[str | None]):
        self.sizes, self.lows, self.items = sizes, lows, items


def parsed(text: str) -> Array:
    """The array of a text.

    >>> array = parsed('[0:1]={"a b",NULL}')
    >>> array.sizes, array.lows, array.items
    ([2], [0], ['a b', None])
    >>> parsed("{{1,2},{3,4}}").sizes, parsed("{}").sizes
    ([2, 2], [])
    """
    bounds = _BOUNDS.match(text)
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text, bounds.end() if bounds else 0):
        if token == "{":
            stack.append([])
        elif token == "}":
            inner = stack.pop()
            stack[-1].append(inner)
        elif token[0] == '"':
            stack[-1].append(re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL))
        elif token != ",":
            stack[-1].append(None if token.upper() == "NULL" else token)
    items: list[Any] = stack[0][0]
    sizes = []
    while items and isinstance(items[0], list):
        sizes.append(len(items))
        items = [each for inner in items for each in inner]
    if not items:
        return Array([], [], [])
    counts = [*sizes, len(items)]
    each = [counts[0], *(count // before for before, count in pairwise(counts))]
    return Array(each, _lows(bounds[1]) if bounds else [1] * len(each), items)


def _lows(bounds: str) -> list[int]:
    return [int(low) for low in re.findall(r"\[([+-]?\d+):", bounds)]


def written(array: Array) -> str:
    """The text of an array, as `array_out` writes it.

    >>> written(Array([1, 3], [1, 0], ["a b", None, "null"]))
    '[1:1][0:2]={{"a b",NULL,"null"}}'
    """
    texts = [_quoted(item) for item in array.items]
    for size in reversed(array.sizes[1:]):
        texts = ["{" + ",".join(texts[at : at + size]) + "}" for at in range(0, len(texts), size)]
    pairs = zip(array.lows, array.sizes, strict=True)
    bounds = "".join(f"[{low}:{low + size - 1}]" for low, size in pairs) + "="
    return ("" if all(low == 1 for low in array.lows) else bounds) + "{" + ",".join(texts) + "}"


def _quoted(item: str | None) -> str:
    if item is None:
        return "NULL"
    if _PLAIN.fullmatch(item) and item.upper() != "NULL":
        return item
    escaped = item.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _list(items: list[str | None], low: int = 1) -> Array:
    """An array of one dimension."""
    return Array([len(items)], [low], items) if items else Array([], [], [])


def _flat(array: Array) -> Array:
    """Raises ValueError for an array of several dimensions, where PostgreSQL has an error."""
    if len(array.sizes) > 1:
        raise ValueError("an array of several dimensions")
    return array


def made(*items: str | None) -> str:
    """`ARRAY[…]`."""
    return written(_list([*items]))


def element(text: str, index: int) -> str | None:
    """`array[index]`: NULL outside, and of another number of dimensions.

    >>> element("[0:1]={a,b}", 1), element("{a}", 2), element("{{a}}", 1)
    ('b', None, None)
    """
    array = parsed(text)
    if len(array.sizes) != 1 or not 0 <= index - array.lows[0] < array.sizes[0]:
        return None
    return array.items[index - array.lows[0]]


def part(text: str | None, first: int | None, last: int | None, from_first: bool, to_last: bool) -> str | None:
    """`array[first:last]`, of which either may be left out.

    >>> part("[2:5]={a,b,c,d}", 3, 4, False, False), part("{{1,2},{3,4}}", 2, 9, False, False)
    ('{b,c}', '{{3,4}}')
    """
    if text is None or (first is None and not from_first) or (last is None and not to_last):
        return None
    array = parsed(text)
    if not array.sizes:
        return "{}"
    low, size = array.lows[0], array.sizes[0]
    start = low if first is None else max(first, low)
    end = low + size - 1 if last is None else min(last, low + size - 1)
    if start > end:
        return "{}"
    each = len(array.items) // size
    items = array.items[(start - low) * each : (end - low + 1) * each]
    return written(Array([end - start + 1, *array.sizes[1:]], [1] * len(array.sizes), items))


def trimmed(text: str, number: int) -> str:
    """`trim_array`."""
    array = parsed(text)
    size = array.sizes[0] if array.sizes else 0
    if not 0 <= number <= size:
        raise ValueError("number of elements to trim is out of range")
    return str(part(text, None, array.lows[0] + size - number - 1, True, False)) if size else "{}"


def size(text: str, dimension: int) -> int | None:
    """`array_length`."""
    sizes = parsed(text).sizes
    return sizes[dimension - 1] if 0 < dimension <= len(sizes) else None


def low(text: str, dimension: int) -> int | None:
    """`array_lower`."""
    lows = parsed(text).lows
    return lows[dimension - 1] if 0 < dimension <= len(lows) else None


def high(text: str, dimension: int) -> int | None:
    """`array_upper`."""
    array = parsed(text)
    if not 0 < dimension <= len(array.sizes):
        return None
    return array.lows[dimension - 1] + array.sizes[dimension - 1] - 1


def dimensions(text: str) -> int | None:
    """`array_ndims`."""
    return len(parsed(text).sizes) or None


def shape(text: str) -> str | None:
    """`array_dims`."""
    array = parsed(text)
    pairs = zip(array.lows, array.sizes, strict=True)
    return "".join(f"[{low}:{low + size - 1}]" for low, size in pairs) or None


def cardinality(text: str) -> int:
    """`cardinality`."""
    return len(parsed(text).items)


def appended(text: str | None, item: str | None) -> str:
    """`array_append`."""
    array = _flat(parsed(text or "{}"))
    return written(_list([*array.items, item], array.lows[0] if array.lows else 1))


def prepended(item: str | None, text: str | None) -> str:
    """`array_prepend`."""
    array = _flat(parsed(text or "{}"))
    return written(_list([item, *array.items], array.lows[0] if array.lows else 1))


def joined(one: str | None, other: str | None) -> str | None:
    """`array_cat`. An array may also be a row of the other one.

    >>> joined("{1}", "[5:6]={2,3}"), joined("{{1,2}}", "{3,4}"), joined("{}", "[5:6]={2,3}"), joined(None, "{1}")
    ('{1,2,3}', '{{1,2},{3,4}}', '[5:6]={2,3}', '{1}')
    """
    if one is None or other is None:
        return other if one is None else one
    left, right = parsed(one), parsed(other)
    if not left.sizes or not right.sizes:
        return other if not left.sizes else one
    shorter = min(len(left.sizes), len(right.sizes))
    if abs(len(left.sizes) - len(right.sizes)) > 1:
        raise ValueError("cannot concatenate incompatible arrays")
    whole = right if len(right.sizes) > shorter else left
    rows = [array.sizes[0] if len(array.sizes) == len(whole.sizes) else 1 for array in (left, right)]
    inner = [
        (a.sizes[1:], a.lows[1:]) if len(a.sizes) == len(whole.sizes) else (a.sizes, a.lows) for a in (left, right)
    ]
    if inner[0] != inner[1]:
        raise ValueError("cannot concatenate incompatible arrays")
    return written(Array([sum(rows), *whole.sizes[1:]], whole.lows, left.items + right.items))


def without(text: str | None, item: str | None) -> str | None:
    """`array_remove`."""
    if text is None:
        return None
    array = _flat(parsed(text))
    return written(_list([each for each in array.items if each != item], array.lows[0] if array.lows else 1))


def replaced(text: str | None, item: str | None, other: str | None) -> str | None:
    """`array_replace`."""
    if text is None:
        return None
    array = parsed(text)
    return written(Array(array.sizes, array.lows, [other if each == item else each for each in array.items]))


def place(text: str | None, item: str | None) -> int | None:
    """`array_position`."""
    if text is None:
        return None
    array = _flat(parsed(text))
    return array.lows[0] + array.items.index(item) if item in array.items else None


def places(text: str | None, item: str | None) -> str | None:
    """`array_positions`."""
    if text is None:
        return None
    array = _flat(parsed(text))
    return written(_list([str(n) for n, each in enumerate(array.items, *array.lows) if each == item]))


def shown(text: str | None, between: str | None, null: str | None) -> str | None:
    """`array_to_string`."""
    if text is None or between is None:
        return None
    texts = [null if item is None else item for item in parsed(text).items]
    return between.join(each for each in texts if each is not None)


def split(text: str | None, between: str | None, null: str | None) -> str | None:
    """`string_to_array`.

    >>> split("a,,b", ",", ""), split("ab", None, None), split("", ",", None)
    ('{a,NULL,b}', '{a,b}', '{}')
    """
    if text is None:
        return None
    if not text:
        return "{}"
    pieces = [*text] if between is None else text.split(between) if between else [text]
    return written(_list([None if piece == null else piece for piece in pieces]))


def has(item: str | None, text: str | None) -> bool | None:
    """`item = ANY (array)`."""
    if text is None:
        return None
    items = parsed(text).items
    if item is None:
        return None if items else False
    return True if item in items else None if None in items else False


def contains(text: str, other: str) -> bool:
    """`array @> array`: NULL is in none."""
    items = {*parsed(text).items} - {None}
    return all(item in items for item in parsed(other).items)


def overlaps(text: str, other: str) -> bool:
    """`array && array`."""
    return not ({*parsed(text).items} - {None}).isdisjoint(parsed(other).items)
