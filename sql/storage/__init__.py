"""The shapes a stream table's storage can have, and the statements that keep it equal to its query."""

from .bag import Bag
from .groups import Groups, groups
from .keyed import KeyedRows
from .recomputed import Recomputed
from .recursive import Recursive, recursive
from .shape import Shape
from .top import Top
from .touched import TouchedGroups, touched_groups

__all__ = [
    "Bag",
    "Groups",
    "KeyedRows",
    "Recomputed",
    "Recursive",
    "Shape",
    "Top",
    "TouchedGroups",
    "groups",
    "recursive",
    "touched_groups",
]
