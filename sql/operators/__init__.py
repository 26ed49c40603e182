"""The operators over Z-sets, one file each."""

from sql.operators.aggregates.aggregate import Aggregate
from sql.operators.aggregates.call import Call
from sql.operators.aggregates.distinct import Distinct
from sql.operators.aggregates.distinct_on import DistinctOn
from sql.operators.aggregates.expand import Expand
from sql.operators.aggregates.limit import Limit
from sql.operators.aggregates.recompute_groups import RecomputeGroups
from sql.operators.aggregates.set_operation import SetOperation
from sql.operators.aggregates.window import Window
from sql.operators.constants import Constants
from sql.operators.filter import Filter
from sql.operators.joins.join import Join
from sql.operators.joins.matching import AntiJoin, SemiJoin
from sql.operators.joins.outer import FullJoin, LeftJoin, Merged
from sql.operators.operator import Operator, Restriction
from sql.operators.project import Project
from sql.operators.project_set import ProjectSet
from sql.operators.recursion.recursion import Recursion
from sql.operators.scan import Scan
from sql.operators.set_returning import SetReturning
from sql.operators.union_all import UnionAll

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
]
