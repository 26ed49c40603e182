"""Modules that are loaded when they are first needed, and stay for as long as the program runs."""

from __future__ import annotations

import gc
import sys

_frozen = 0
"""So many modules there were when `freeze` was last called."""


def freeze() -> None:
    """Keep Python from looking for garbage in all that there is now: it stays, and the search would hold clients up."""
    global _frozen
    _frozen = len(sys.modules)
    gc.freeze()


def freeze_imported() -> None:
    """Keep Python from looking for garbage in what has been imported meanwhile, if anything has.

    The search holds all threads: for PySpark and pandas, 50 000 objects, 24 ms.
    """
    if len(sys.modules) > _frozen:
        freeze()
