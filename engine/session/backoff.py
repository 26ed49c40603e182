"""When to try again what has failed: after a pause that doubles with each failure in a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LONGEST_PAUSE = 60.0
"""Seconds after which a thing that keeps failing is tried again."""


def pause_after(failures: int, *, first: float = 1.0, longest: float = LONGEST_PAUSE) -> float:
    """The seconds until the next attempt after so many failures in a row, at least one.

    >>> [pause_after(n) for n in (1, 2, 3, 6, 7, 10**9)]
    [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
    >>> [pause_after(n, first=0.05, longest=5.0) for n in (1, 2, 7, 8)]
    [0.05, 0.1, 3.2, 5.0]
    """
    return min(longest, first * 2.0 ** min(failures - 1, 100))


@dataclass(slots=True)
class _Trouble:
    failures: int
    until: float


@dataclass(slots=True)
class Backoff:
    """Things that have failed, by name, and until when each is left alone.

    >>> troubles = Backoff()
    >>> troubles.note("orders", now=100.0), troubles.note("orders", now=101.0)
    (1.0, 2.0)
    >>> troubles.waits("orders", now=102.9), troubles.waits("orders", now=103.0), troubles.waits("other", now=0.0)
    (True, False, False)
    """

    _found: dict[str, _Trouble] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, name: str, now: float) -> float:
        """It has failed once more; returns the seconds until it may be tried again."""
        failures = self._found[name].failures + 1 if name in self._found else 1
        pause = pause_after(failures)
        self._found[name] = _Trouble(failures, now + pause)
        return pause

    def waits(self, name: str, now: float) -> bool:
        """Whether it is to be left alone yet."""
        return name in self._found and now < self._found[name].until

    def over(self, name: str) -> None:
        """It has succeeded."""
        self._found.pop(name, None)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all but these."""
        kept = set(names)
        for name in [name for name in self._found if name not in kept]:
            del self._found[name]

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()
