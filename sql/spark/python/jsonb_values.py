"""Parts of jsonb values, which are texts as PostgreSQL writes them.

Keys are unique and in order, behind a comma or colon is one blank, and no blank is anywhere else: the text of a part is
a piece of the text of the whole. Nothing here uses anything else of this program: Spark gets it by value.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
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
