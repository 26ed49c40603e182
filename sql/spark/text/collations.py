"""What rendering must know of a database's collations: its own, and those that columns have instead."""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

DEFAULT, BYTES, BUILTIN, OTHER = "", "C", "pg_c_utf8", "another"
"""Collations: that of the database; C, POSIX and ucs_basic; pg_c_utf8; any other, or several that meet."""


@dataclass(frozen=True)
class Casing:
    """What `upper` and `lower` do where each does so character by character: characters, and those put for them."""

    upper: tuple[str, str]
    lower: tuple[str, str]

    def lowered(self, text: str) -> str:
        """`lower(text)`."""
        return text.translate(self._lower)

    @cached_property
    def _lower(self) -> dict[int, int]:
        return str.maketrans(*self.lower)

    @cached_property
    def ordinary(self) -> bool:
        """Whether ASCII's letters are treated as everywhere but in Turkey and Azerbaijan."""
        pairs = (dict(zip(*map_, strict=True)) for map_ in (self.upper, self.lower))
        found = [{one: other for one, other in map_.items() if one.isascii()} for map_ in pairs]
        return found == [dict(zip(*map_, strict=True)) for map_ in (ASCII.upper, ASCII.lower)]


ASCII = Casing(
    (string.ascii_lowercase, string.ascii_uppercase),
    (string.ascii_uppercase, string.ascii_lowercase),
)


@dataclass(frozen=True, slots=True)
class Collations:
    """``binary_order``: the database compares text by its UTF-8 bytes, and has this ``casing``, None if it has another.

    ``columns`` are those with a collation of their own: source oid, name, BYTES, BUILTIN or OTHER.
    """

    binary_order: bool = False
    casing: Casing | None = None
    columns: frozenset[tuple[int, str, str]] = frozenset()

    def ordered(self, collation: str) -> bool:
        """Whether text under a collation is compared by its bytes."""
        return self.binary_order if collation == DEFAULT else collation in (BYTES, BUILTIN)

    def casing_of(self, collation: str) -> Casing | None:
        """The cases of letters under a collation, None where they are not known."""
        return {DEFAULT: self.casing, BYTES: ASCII}.get(collation)


def common(collations: Iterable[str]) -> str:
    """The collation of what is computed from texts: any other beats the database's own.

    >>> common(["", "C", "C"]), common(["C", "pg_c_utf8"]), common([])
    ('C', 'another', '')
    """
    found = {*collations} - {DEFAULT}
    return found.pop() if len(found) == 1 else OTHER if found else DEFAULT
