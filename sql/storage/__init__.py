"""The shapes a stream table's storage can have, and the statements that keep it equal to its query."""

from sql.storage.affected_groups import AffectedGroups, touched_groups
from sql.storage.bag import Bag
from sql.storage.groups import Groups, groups
from sql.storage.keyed import KeyedRows
from sql.storage.recomputed import Recomputed
from sql.storage.recursive import Recursive, recursive
from sql.storage.shape import Shape
from sql.storage.top import Top

__all__ = [
    "AffectedGroups",
    "Bag",
    "Groups",
    "KeyedRows",
    "Recomputed",
    "Recursive",
    "Shape",
    "Top",
    "groups",
    "recursive",
    "touched_groups",
]
