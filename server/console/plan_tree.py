"""The operators of a stream table's plan, as a tree, each with the rule by which changes go through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINEAR = "ΔQ(A) = Q(ΔA): what has changed goes through it, and nothing else is read"
TOUCHED = (
    "groups that a change touches are computed again, as they are and as they were: ΔQ = Q(new) - Q(old), over these"
)

RULES = {
    "Scan": "ΔT: the net of the captured changes; the table itself is not read",
    "Filter": LINEAR,
    "Refiltered": "now(A + ΔA) - then(A + ΔA) + then(ΔA): rows that one condition lets through and the other does not",
    "Project": LINEAR,
    "Project set": LINEAR,
    "Set returning": LINEAR,
    "Expand": LINEAR,
    "Union all": "Δ(A + B) = ΔA + ΔB",
    "Every outer row": "Δ(B + D) = ΔB + ΔD",
    "Consolidate": "ΔQ = net(ΔA): what a change takes away and gives back is left out",
    "Join": "ΔQ = Σ ΔAi ⋈ old(A1 … Ai-1) ⋈ new(Ai+1 … An): each changed input with the others",
    "Cross join": "ΔQ = Σ ΔAi ⋈ old(A1 … Ai-1) ⋈ new(Ai+1 … An): each changed input with the others",
    "Left join": "the deltas of the inner join and of the anti-join; ΔL ⟕ R where R has not changed",
    "Full join": "the deltas of the inner join and of both anti-joins",
    "Semi-join": "ΔL · [matched before] + rows of L that match a row of ΔR: [matches now] - [matched before]",
    "Anti-join": "ΔL - Δ(L ⋉ R)",
    "Aggregate": "what adds up is added to what is stored; other touched groups are computed again",
    "Distinct": "a row is there while its multiplicity is above 0; multiplicities add up",
    "Distinct on": TOUCHED,
    "Window": "the functions are computed again over the partitions that a change touches",
    "Limit": "members = the first m + n + k rows of now, k rows having come: ΔQ = Q(members) - Q(members - ΔA)",
    "Intersect": TOUCHED,
    "Intersect all": TOUCHED,
    "Except": TOUCHED,
    "Except all": TOUCHED,
    "Single row": "ΔQ = ΔA; keys that a change touches are looked at for a second row",
    "Recursion": "ΔQ = Q(new) - Q(old), or delete and rederive, or what has come alone, by what has changed",
    "Working table": "the rows of the round before",
    "Constants": "Δ = 0",
    "One row": "Δ = 0",
    "Input": "the changes that stand there",
}
"""By the word with which `describe` of an operator begins."""


@dataclass(slots=True)
class Relation:
    """What is known of a table that is scanned: rows by PostgreSQL's statistics, and changes that wait."""

    rows: int | None = None
    pending: int | None = None


def tree(text: str, relations: dict[str, Relation]) -> list[dict[str, Any]]:
    """The operators of a tree in its text form, two spaces a level, from the root on.

    `rows` and `pending` of an operator are the sums over the tables below it: what computing it anew, and what a
    differential refresh, has to read.

    >>> found = tree("Project\\n  Scan(public.t)", {"public.t": Relation(100, 2)})
    >>> [(each["operator"], each["depth"], each["rows"], each["pending"]) for each in found]
    [('Project', 0, 100, 2), ('Scan(public.t)', 1, 100, 2)]
    """
    lines = [line for line in text.split("\n") if line.strip()]
    depths = [(len(line) - len(line.lstrip(" "))) // 2 for line in lines]
    found = []
    for place, (line, depth) in enumerate(zip(lines, depths, strict=True)):
        below: list[str] = []
        for under, other in zip(depths[place:], lines[place:], strict=True):
            if under <= depth and below:
                break
            below.append(other.strip())
        scanned = [relations.get(other[5:-1], Relation()) for other in below if other.startswith("Scan(")]
        found.append(
            {
                "operator": line.strip(),
                "depth": depth,
                "rule": rule(line.strip()),
                "rows": _sum([each.rows for each in scanned]),
                "pending": _sum([each.pending for each in scanned]),
            }
        )
    return found


def rule(operator: str) -> str | None:
    """The delta rule of an operator; None for a name that is not known here.

    >>> rule("Aggregate(count, sum)"), rule("Nothing of the kind")
    ('what adds up is added to what is stored; other touched groups are computed again', None)
    """
    name = operator.partition("(")[0]
    return RULES.get(name)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
