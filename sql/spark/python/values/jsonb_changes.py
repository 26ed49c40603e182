"""What makes jsonb values, which are texts as PostgreSQL writes them: by their parts, or by changing one.

Nothing here uses anything else of this program: Spark gets it by value.
"""

import json
from decimal import Decimal
from typing import Any


class _Number(str):
    """A number as it is written."""


def _read(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number)


def _order(key: str) -> tuple[int, bytes]:
    """What an object's keys are in the order of."""
    encoded = key.encode()
    return len(encoded), encoded


def _write(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_write(key)}: {_write(value[key])}" for key in sorted(value, key=_order)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_write, value)) + "]"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def of_text(text: str) -> str:
    """`to_jsonb(text)`."""
    return _string(text)


def array(*items: str | None) -> str:
    """`jsonb_build_array` of values of jsonb."""
    return "[" + ", ".join(item or "null" for item in items) + "]"


def entries(*items: str | None) -> str:
    """`jsonb_build_object` of keys, which are text, and values of jsonb by turns. The last of equal keys counts.

    >>> entries("bb", "1", "a", None, "bb", "2")
    '{"a": null, "bb": 2}'
    """
    keys, values = items[::2], items[1::2]
    if None in keys:
        raise ValueError("argument is null, where a key is to be")
    found = {str(key): value or "null" for key, value in zip(keys, values, strict=True)}
    return "{" + ", ".join(f"{_string(key)}: {found[key]}" for key in sorted(found, key=_order)) + "}"


def gathered(pairs: str) -> str:
    """`jsonb_object_agg`, of keys and values by turns in an array of JSON."""
    items = _read(pairs)
    return _write(dict(zip(items[::2], items[1::2], strict=True)))


def joined(one: str, other: str) -> str:
    """`jsonb || jsonb`.

    >>> joined('{"a": 1}', '{"a": 2.0, "b": 3}'), joined("[1]", "2"), joined('{"a": 1}', "[2]")
    ('{"a": 2.0, "b": 3}', '[1, 2]', '[{"a": 1}, 2]')
    """
    left, right = _read(one), _read(other)
    if isinstance(left, dict) and isinstance(right, dict):
        return _write({**left, **right})
    lists = [each if isinstance(each, list) else [each] for each in (left, right)]
    return _write(lists[0] + lists[1])


def without_key(text: str, key: str) -> str:
    """`jsonb - text`."""
    value = _read(text)
    if isinstance(value, dict):
        return _write({name: each for name, each in value.items() if name != key})
    if isinstance(value, list):
        return _write([each for each in value if isinstance(each, _Number) or each != key])
    raise ValueError("cannot delete from scalar")


def without_index(text: str, index: int) -> str:
    """`jsonb - integer`."""
    value = _read(text)
    if not isinstance(value, list):
        raise ValueError("cannot delete from object using integer index, or from scalar")
    at = index + len(value) if index < 0 else index
    return _write([each for n, each in enumerate(value) if n != at])


def _index(key: str, length: int, lax: bool) -> int | None:
    """The place of an element; None where there is none, unless ``lax``."""
    try:
        at = int(key)
    except ValueError:
        raise ValueError(f'path element "{key}" is not an integer') from None
    at = at + length if at < 0 else at
    return at if lax or 0 <= at < length else None


def _place(inner: Any, key: str) -> Any:
    """Where an element of an array or object is, by a key of a path; None where there is none."""
    if isinstance(inner, list):
        return _index(key, len(inner), False)
    return key if isinstance(inner, dict) and key in inner else None


def without_path(text: str, path: str) -> str:
    """`jsonb #- text[]`; the path is an array of JSON.

    >>> without_path('{"a": [1, {"b": 2}]}', '["a", "1", "b"]'), without_path('[1, 2]', '["-1"]')
    ('{"a": [1, {}]}', '[1]')
    """
    value, keys = _read(text), json.loads(path)
    if not isinstance(value, dict | list):
        raise ValueError("cannot delete path in scalar")
    inner = value
    for number, key in enumerate(keys):
        place = _place(inner, key)
        if place is None:
            break
        if number == len(keys) - 1:
            del inner[place]
        else:
            inner = inner[place]
    return _write(value)


def with_path(text: str, path: str, new: str, create: bool) -> str:
    """`jsonb_set`.

    >>> with_path('{"a": [1]}', '["a", "0"]', "2", True), with_path('{"a": 1}', '["b"]', "2", True)
    ('{"a": [2]}', '{"a": 1, "b": 2}')
    """
    value, keys = _read(text), json.loads(path)
    if not isinstance(value, dict | list):
        raise ValueError("cannot set path in scalar")
    inner = value
    for number, key in enumerate(keys):
        if number == len(keys) - 1:
            _put(inner, key, _read(new), create)
            break
        place = _place(inner, key)
        if place is None:
            break
        inner = inner[place]
    return _write(value)


def _put(inner: Any, key: str, new: Any, create: bool) -> None:
    if isinstance(inner, dict) and (create or key in inner):
        inner[key] = new
    elif isinstance(inner, list):
        at = _index(key, len(inner), True) or 0
        if 0 <= at < len(inner):
            inner[at] = new
        elif create:
            inner.insert(0 if at < 0 else len(inner), new)


def stripped(text: str) -> str:
    """`jsonb_strip_nulls`."""
    return _write(_stripped(_read(text)))


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stripped(each) for key, each in value.items() if each is not None}
    return [_stripped(each) for each in value] if isinstance(value, list) else value


def pretty(text: str) -> str:
    r"""`jsonb_pretty`.

    >>> pretty('{"a": [1, {}]}')
    '{\n    "a": [\n        1,\n        {\n        }\n    ]\n}'
    """
    return _pretty(_read(text), 0)


def _pretty(value: Any, depth: int) -> str:
    if not isinstance(value, dict | list):
        return _write(value)
    edge, inside = "\n" + "    " * depth, "\n" + "    " * (depth + 1)
    if isinstance(value, dict):
        keys = sorted(value, key=_order)
        items = [f"{inside}{_write(key)}: {_pretty(value[key], depth + 1)}" for key in keys]
        return "{" + ",".join(items) + edge + "}"
    return "[" + ",".join(inside + _pretty(each, depth + 1) for each in value) + edge + "]"


_KINDS = ("null", "string", "number", "boolean", "array", "object")


def _kind(value: Any) -> int:
    """The place of a value's kind in the order of jsonb."""
    if isinstance(value, _Number):
        return 2
    names = {type(None): "null", str: "string", bool: "boolean", list: "array", dict: "object"}
    return _KINDS.index(names[type(value)])


def compared(one: str, other: str) -> int:
    """Below, at or above zero as one value is less than, equal to or greater than the other, strings by their bytes.

    >>> compared("1.0", "1"), compared('"b"', '"a"'), compared("[1]", "[]"), compared("[]", "null")
    (0, 1, 1, -1)
    """
    return _compared(_read(one), _read(other), True)


def _compared(one: Any, other: Any, top: bool) -> int:
    # An empty array at the top comes before all that is no container.
    if top and [] in (one, other) and one != other:
        return -1 if one == [] else 1
    if _kind(one) != _kind(other):
        return -1 if _kind(one) < _kind(other) else 1
    if isinstance(one, list):
        if len(one) != len(other):
            return -1 if len(one) < len(other) else 1
        return next((found for a, b in zip(one, other, strict=True) if (found := _compared(a, b, False))), 0)
    if isinstance(one, dict):
        return _compared_objects(one, other)
    a, b = (Decimal(each) if isinstance(each, _Number) else _plain(each) for each in (one, other))
    return int((a > b) - (a < b))


def _plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value is True


def _compared_objects(one: Any, other: Any) -> int:
    if len(one) != len(other):
        return -1 if len(one) < len(other) else 1
    for a, b in zip(sorted(one, key=_order), sorted(other, key=_order), strict=True):
        if a != b:
            return -1 if a.encode() < b.encode() else 1
        if found := _compared(one[a], other[b], False):
            return found
    return 0
