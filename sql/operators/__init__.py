"""The operators over Z-sets, one file each."""

from sql.operators.aggregate import Aggregate
from sql.operators.call import Call
from sql.operators.constants import Constants
from sql.operators.distinct import Distinct
from sql.operators.distinct_on import DistinctOn
from sql.operators.expand import Expand
from sql.operators.filter import Filter
from sql.operators.join import Join
from sql.operators.limit import Limit
from sql.operators.matching import AntiJoin, SemiJoin
from sql.operators.operator import Operator, Restriction
from sql.operators.outer import FullJoin, LeftJoin, Merged
from sql.operators.project import Project
from sql.operators.project_set import ProjectSet
from sql.operators.recompute_groups import RecomputeGroups
from sql.operators.recursion import Recursion
from sql.operators.row_key import row_key
from sql.operators.scan import Scan
from sql.operators.set_operation import SetOperation
from sql.operators.set_returning import SetReturning
from sql.operators.union_all import UnionAll
from sql.operators.window import Window

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
    "RecomputeGroups",
    "Recursion",
    "Restriction",
    "Scan",
    "SemiJoin",
    "SetOperation",
    "SetReturning",
    "UnionAll",
    "Window",
    "row_key",
]
