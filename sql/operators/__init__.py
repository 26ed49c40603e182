"""The operators over Z-sets, one file each."""

from .aggregate import Aggregate, Call
from .distinct import Distinct
from .filter import Filter
from .join import Join
from .operator import Operator, Restriction
from .project import Project
from .rescan import Rescan
from .scan import Scan
from .union_all import UnionAll

__all__ = [
    "Aggregate",
    "Call",
    "Distinct",
    "Filter",
    "Join",
    "Operator",
    "Project",
    "Rescan",
    "Restriction",
    "Scan",
    "UnionAll",
]
