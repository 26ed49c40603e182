"""Which columns of joins are carried along, and which changes are put down before they are read."""

from __future__ import annotations

import re

from tests.sql.conftest import Workspace


def test_narrow_joins_are_exact(workspace: Workspace) -> None:
    workspace.items_and_tags()
    queries = [
        "SELECT i.label FROM item i JOIN tag t USING (grp) WHERE t.rank < i.val",
        "SELECT t.rank, count(*) AS n FROM item i JOIN tag t ON i.grp = t.grp AND i.val > t.rank GROUP BY t.rank",
        "SELECT s.r, c.label FROM (SELECT i.id, t.rank + 1 AS r FROM item i JOIN tag t USING (grp)) s"
        " JOIN item c ON c.val = s.r WHERE s.r + c.id > 2",
        "SELECT count(*) AS n FROM item i, tag t, item j WHERE i.grp = t.grp AND j.val = t.rank AND j.id <> i.id",
    ]
    streams = [workspace.stream(f"st{n}", query) for n, query in enumerate(queries)]
    assert all(stream.compiled.facts.narrowed for stream in streams)
    workspace.follow(
        streams,
        "UPDATE item SET val = 10 - val",
        "UPDATE item SET grp = (grp + 1) % 3, label = 'x' WHERE id > 4; UPDATE tag SET rank = rank + 1",
        "UPDATE tag SET rank = NULL WHERE grp = 0; DELETE FROM item WHERE val > 6",
        "INSERT INTO item (id, grp, val) VALUES (20, 1, 5), (21, 2, 3), (22, NULL, 9); DELETE FROM tag WHERE grp = 1",
    )


def test_changes_that_are_read_once_are_not_put_down_first(workspace: Workspace) -> None:
    """The net changes of a table whose rows are read by one term only are computed where they are read."""
    stream = workspace.stream("st", "SELECT i.id, i.val, t.rank FROM item i JOIN tag t USING (grp)")
    item, tag = (next(s.oid for s in workspace.sources if s.name == name) for name in ("item", "tag"))
    for changed in ({item}, {tag}):
        statement = stream.compiled.refresh_sql(stream.storage, frozenset(changed))
        (net,) = re.findall(r'"__pgt_delta_\d+" AS \((.*?) OFFSET 0\)', statement)
        assert "GROUP BY" in net
        plan = "\n".join(
            line
            for (line,) in workspace.connection.execute(
                "EXPLAIN " + statement.replace("$1", '\'{"snapshot": "1:1:"}\'::jsonb')
            )
        )
        assert "CTE __pgt_delta_" not in plan
        assert plan.count("changes_") >= 1
