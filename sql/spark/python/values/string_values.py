"""Functions of text and `bytea` whose arguments are not literals, or that Spark has not. `bytea` is text as `\\x…`.

Nothing here uses anything else of this program: Spark gets it by value.
"""

import base64
import binascii
import hashlib
import re

_LONGEST = 1 << 28
"""Characters of a result: more are left to PostgreSQL."""


def _bounded(length: int) -> None:
    if length > _LONGEST:
        raise ValueError("requested length too large")


def left(text: str, number: int) -> str:
    """`left`."""
    return text[:number]


def right(text: str, number: int) -> str:
    """`right`.

    >>> right("abc", 2), right("abc", -1), right("abc", 0)
    ('bc', 'bc', '')
    """
    return text[-number:] if number else ""


def substring(text: str, start: int, length: int) -> str:
    """`substring(text, start, length)`.

    >>> substring("abc", -1, 3), substring("abc", 2, 9)
    ('a', 'bc')
    """
    if length < 0:
        raise ValueError("negative substring length not allowed")
    return text[max(start, 1) - 1 : max(start + length - 1, 0)]


def substring_from(text: str, start: int) -> str:
    """`substring(text, start)`."""
    return text[max(start, 1) - 1 :]


def repeated(text: str, times: int) -> str:
    """`repeat`."""
    _bounded(len(text) * times)
    return text * times


def left_padded(text: str, length: int, fill: str) -> str:
    """`lpad`.

    >>> left_padded("abc", 7, "xyz"), left_padded("abc", 2, "x"), left_padded("abc", 5, "")
    ('xyzxabc', 'ab', 'abc')
    """
    return _padding(text, length, fill) + text[: max(length, 0)]


def right_padded(text: str, length: int, fill: str) -> str:
    """`rpad`."""
    return text[: max(length, 0)] + _padding(text, length, fill)


def _padding(text: str, length: int, fill: str) -> str:
    _bounded(length)
    missing = max(length - len(text), 0) if fill else 0
    return (fill * (missing // len(fill) + 1))[:missing] if missing else ""


def replaced(text: str, part: str, other: str) -> str:
    """`replace`."""
    return text.replace(part, other) if part else text


def position(text: str, part: str) -> int:
    """`strpos`."""
    return text.find(part) + 1


def starts(text: str, part: str) -> bool:
    """`starts_with`."""
    return text.startswith(part)


def field(text: str, between: str, number: int) -> str:
    """`split_part`.

    >>> field("a,b,c", ",", -1), field("a,b", ",", 3), field("a", "", -1)
    ('c', '', 'a')
    """
    if number == 0:
        raise ValueError("field position must not be zero")
    fields = text.split(between) if between and text else [text]
    index = number - 1 if number > 0 else len(fields) + number
    return fields[index] if 0 <= index < len(fields) else ""


def translated(text: str, letters: str, others: str) -> str:
    """`translate`: the first of several equal letters counts."""
    table = {letter: others[n : n + 1] for n, letter in reversed([*enumerate(letters)])}
    return "".join(table.get(letter, letter) for letter in text)


def character(code: int) -> str:
    """`chr`."""
    if not 0 < code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError("requested character not valid for encoding")
    return chr(code)


def like(text: str, pattern: str) -> bool:
    r"""`text LIKE pattern`, in which a backslash escapes.

    >>> like("a%\n", r"a\%_"), like("ab", "a"), like("ab", "%b")
    (True, False, True)
    """
    expression, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
            if at == len(pattern):
                raise ValueError("LIKE pattern must not end with escape character")
            expression += re.escape(pattern[at])
        else:
            expression += {"%": ".*", "_": "."}.get(letter) or re.escape(letter)
        at += 1
    return re.fullmatch(expression, text, re.DOTALL) is not None


def literal(text: str) -> str:
    r"""`quote_literal`.

    >>> print(literal("it's"), literal("\\"))
    'it''s' E'\\'
    """
    doubled = text.translate({39: "''", 92: "\\\\"})
    return f"{'E' if chr(92) in text else ''}'{doubled}'"


def formatted(pattern: str, *values: str | None) -> str:
    """`format`, whose pattern has `%s`, `%L` and `%%` alone.

    >>> formatted("%s: %L%%", "a", None)
    'a: NULL%'
    """
    given = iter(values)

    def part(found: "re.Match[str]") -> str:
        if found[0] == "%%":
            return "%"
        value = next(given)
        if found[0] == "%s":
            return value or ""
        return "NULL" if value is None else literal(value)

    return re.sub("%[sL%]", part, pattern)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()


def byte_length(data: str) -> int:
    """`length(bytea)`."""
    return len(_bytes(data))


def encoded(data: str, form: str) -> str:
    r"""`encode`.

    >>> print(encoded("\\x00ff5c61", "escape"), encoded("\\x00ff", "hex"), encoded("\\x00ff", "base64"))
    \000\377\\a 00ff AP8=
    """
    value = _bytes(data)
    if form == "hex":
        return value.hex()
    if form == "base64":
        text = base64.b64encode(value).decode()
        return "\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    return "".join("\\\\" if b == 92 else f"\\{b:03o}" if b == 0 or b > 127 else chr(b) for b in value)


def decoded(text: str, form: str) -> str:
    """`decode`, of what is written as `encode` writes it.

    >>> decoded("00FF", "hex"), decoded("AP8=", "base64")
    ('\\\\x00ff', '\\\\x00ff')
    """
    if form == "hex":
        if not re.fullmatch("(?:[0-9a-fA-F]{2})*", text):
            raise ValueError("hexadecimal digits that are not in pairs")
        return "\\x" + text.lower()
    try:
        return _bytea(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def hashed(data: str, name: str) -> str:
    """`sha224`, `sha256`, `sha384` and `sha512`."""
    return _bytea(hashlib.new(name, _bytes(data)).digest())


def cut_character(text: str, length: int) -> str:
    """`text::character(length)`, whose trailing blanks are left out."""
    return text[:length].rstrip(" ")
