"""The shapes a stream table's storage can have, and the statements that keep it equal to its query."""

from .bag import Bag
from .groups import Groups, groups
from .keyed import KeyedRows, TouchedGroups
from .recomputed import Recomputed
from .shape import Shape
from .top import Top

__all__ = ["Bag", "Groups", "KeyedRows", "Recomputed", "Shape", "Top", "TouchedGroups", "groups"]
