"""The operators over Z-sets, one file each."""

from .aggregate import Aggregate
from .call import Call
from .constants import Constants
from .distinct import Distinct
from .distinct_on import DistinctOn
from .expand import Expand
from .filter import Filter
from .join import Join
from .limit import Limit
from .matching import AntiJoin, SemiJoin
from .operator import Operator, Restriction
from .outer import FullJoin, LeftJoin, Merged
from .project import Project
from .project_set import ProjectSet
from .recursion import Recursion
from .rescan import Rescan
from .row_key import row_key
from .scan import Scan
from .set_operation import SetOperation
from .set_returning import SetReturning
from .union_all import UnionAll
from .window import Window

__all__ = [
    "Aggregate",
    "AntiJoin",
    "Call",
    "Constants",
    "Distinct",
    "DistinctOn",
    "Expand",
    "Filter",
    "FullJoin",
    "Join",
    "LeftJoin",
    "Limit",
    "Merged",
    "Operator",
    "Project",
    "ProjectSet",
    "Recursion",
    "Rescan",
    "Restriction",
    "Scan",
    "SemiJoin",
    "SetOperation",
    "SetReturning",
    "UnionAll",
    "Window",
    "row_key",
]
