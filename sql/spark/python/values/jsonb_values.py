"""Parts of jsonb values, which are texts as PostgreSQL writes them.

Keys are unique and in order, behind a comma or colon is one blank, and no blank is anywhere else: the text of a part is
a piece of the text of the whole. Nothing here uses anything else of this program: Spark gets it by value.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+\.[0-9]+')
_NUMBER = re.compile(r"-?[1-9][0-9]*(?:\.[0-9]+)?|0(?:\.[0-9]+)?|-0\.[0-9]*[1-9][0-9]*")
_INDEX = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")


def _scanner() -> Any:
    """Gives the value at a place of a text, of which nothing is wanted, and its end. (It cannot be sent anywhere.)"""
    return json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object: key and value."""
    at, scan = 1, _scanner()
    while text[at] == '"':
        key, end = scan(text, at)
        start = end + 2
        _, end = scan(text, start)
        yield key, text[start:end]
        if text[end] == "}":
            return
        at = end + 2


def _elements(text: str) -> list[str]:
    found, at, scan = [], 1, _scanner()
    while text[at] != "]":
        _, end = scan(text, at)
        found.append(text[at:end])
        at = end + 2 if text[end] == "," else end
    return found


def _shown(part: str | None) -> str | None:
    """A value as text: a string without quotes, nothing for null."""
    if part is None or part == "null":
        return None
    return str(json.loads(part)) if part[0] == '"' else part


def _at(elements: list[str], index: int) -> str | None:
    return elements[index] if -len(elements) <= index < len(elements) else None


def member(text: str, key: str) -> str | None:
    """`jsonb -> text`.

    >>> member('{"a": 1.50, "b": {"c": [null, "x"]}}', "b"), member("[1]", "a")
    ('{"c": [null, "x"]}', None)
    """
    if text[0] != "{":
        return None
    return next((value for name, value in _members(text) if name == key), None)


def member_text(text: str, key: str) -> str | None:
    """`jsonb ->> text`."""
    return _shown(member(text, key))


def element(text: str, index: int) -> str | None:
    """`jsonb -> integer`. A scalar is an array with itself as its element.

    >>> element('[1, "x"]', -1), element("5", 0), element("{}", 0)
    ('"x"', '5', None)
    """
    if text[0] == "{":
        return None
    return _at(_elements(text) if text[0] == "[" else [text], index)


def element_text(text: str, index: int) -> str | None:
    """`jsonb ->> integer`."""
    return _shown(element(text, index))


def path(text: str, keys: str) -> str | None:
    """`jsonb #> text[]`; `keys` is an array of JSON.

    >>> path('{"a": [{"b": 2}]}', '["a", "0", "b"]'), path("5", '["0"]')
    ('2', None)
    """
    part: str | None = text
    for key in json.loads(keys):
        if part is None:
            return None
        if part[0] == "[":
            part = _at(_elements(part), int(key)) if _INDEX.fullmatch(key) and len(key) < 10 else None
        else:
            part = member(part, key)
    return part


def path_text(text: str, keys: str) -> str | None:
    """`jsonb #>> text[]`."""
    return _shown(path(text, keys))


def _keys(text: str) -> set[str]:
    """An object's keys, or the strings among the elements of an array."""
    if text[0] == "{":
        return {name for name, _ in _members(text)}
    elements = _elements(text) if text[0] == "[" else [text]
    return {json.loads(each) for each in elements if each[0] == '"'}


def has_key(text: str, key: str) -> bool:
    """`jsonb ? text`."""
    return key in _keys(text)


def has_any(text: str, keys: str) -> bool:
    """`jsonb ?| text[]`; `keys` is an array of JSON."""
    return not _keys(text).isdisjoint(json.loads(keys))


def has_all(text: str, keys: str) -> bool:
    """`jsonb ?& text[]`; `keys` is an array of JSON."""
    return _keys(text).issuperset(json.loads(keys))


def kind(text: str) -> str:
    """`jsonb_typeof`."""
    return _KINDS.get(text[0], "number")


def length(text: str) -> int:
    """`jsonb_array_length`. Raises ValueError, where PostgreSQL has an error."""
    if text[0] != "[":
        raise ValueError("cannot get array length of what is not an array")
    return len(_elements(text))


def number(text: str) -> str:
    """`jsonb::numeric` as text. Raises ValueError, where PostgreSQL has an error, before version 18 for null, too."""
    if kind(text) != "number":
        raise ValueError("cannot cast jsonb to a number")
    return text


def boolean(text: str) -> bool:
    """`jsonb::boolean`. Raises ValueError, where PostgreSQL has an error, before version 18 for null, too."""
    if text in ("true", "false"):
        return text == "true"
    raise ValueError("cannot cast jsonb to boolean")


def normal(text: str) -> str:
    """A text that equal values have in common: numbers without the zeros that they may end in.

    >>> normal('{"1.0": [1.0, 2.50, 100, "1.0"]}')
    '{"1.0": [1, 2.5, 100, "1.0"]}'
    """
    return _TOKEN.sub(lambda found: found[0] if found[0][0] == '"' else found[0].rstrip("0").rstrip("."), text)


def contains(whole: str, part: str) -> bool:
    """`jsonb @> jsonb`.

    >>> contains('{"a": [1.0, [2, 3]], "b": 5}', '{"a": [[3], 1]}'), contains("[1, true]", "true"), contains("1", "[1]")
    (True, True, False)
    """
    one, other = (json.loads(text, parse_int=Decimal, parse_float=Decimal) for text in (whole, part))
    if isinstance(one, list) and not isinstance(other, (dict, list)):
        other = [other]
    return _contains(one, other)


def _contains(whole: Any, part: Any) -> bool:
    # True equals 1 in Python.
    if type(whole) is not type(part):
        return False
    if isinstance(part, dict):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return all(any(_contains(each, wanted) for each in whole) for wanted in part)
    return bool(whole == part)


def is_written(text: str) -> bool:
    """Whether this is how PostgreSQL writes the value.

    >>> is_written('{"b": [0.50, null], "aa": "\\\\n"}'), is_written('{"aa": 1, "b": 2}'), is_written("1e3")
    (True, False, False)
    """

    def number(text: str) -> Any:
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return Decimal(text)

    try:
        value = json.loads(text, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=tuple)
        return _written(value) == text
    except (ValueError, RecursionError):
        return False


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        keys = [key.encode() for key, _ in value]
        if keys != sorted({*keys}, key=lambda key: (len(key), key)):
            raise ValueError("keys in another order")
        return "{" + ", ".join(f"{_written(key)}: {_written(member)}" for key, member in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
