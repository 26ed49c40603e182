"""Conditions on one table are conditions on its captured changes, as far as they raise no errors."""

from __future__ import annotations

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, source


def pushed(workspace: Workspace, stream: StreamTable) -> dict[str, str]:
    """By the names of sources, what is asked of their changes."""
    names = {source.oid: source.name for source in workspace.sources}
    return {names[oid]: condition for oid, condition in stream.compiled.conditions.items()}


def test_change_that_fails_the_condition_before_or_after(workspace: Workspace) -> None:
    workspace.items_and_tags()
    queries = [
        "SELECT i.id, i.val, t.rank FROM item i JOIN tag t USING (grp) WHERE i.val > 4 AND t.rank <= 1",
        "SELECT a.id, b.id AS other FROM item a JOIN item b ON a.grp = b.grp AND a.val > 4 AND b.val < 4",
        "SELECT i.grp, count(*) AS n FROM item i WHERE i.val > 4 AND EXISTS (SELECT FROM item j WHERE j.val = i.grp"
        " AND j.grp = 1) GROUP BY i.grp",
    ]
    streams = [workspace.stream(f"st{n}", query) for n, query in enumerate(queries)]
    assert all(stream.compiled.conditions for stream in streams)
    workspace.follow(
        streams,
        "UPDATE item SET val = 10 - val",
        "UPDATE item SET val = NULL WHERE val = 5; UPDATE tag SET rank = rank + 1",
        "UPDATE item SET grp = (grp + 1) % 3; UPDATE tag SET rank = NULL WHERE grp = 0",
        "DELETE FROM item WHERE val > 6; INSERT INTO item (id, grp, val) VALUES (20, 1, 5), (21, 2, 3), (22, NULL, 9)",
    )


def test_condition_that_is_a_column(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE flag (id int PRIMARY KEY, grp int, ok boolean)")
    sources = (*workspace.sources, source(workspace.connection, "flag"))
    query = "SELECT f.id, t.rank FROM flag f JOIN tag t USING (grp) WHERE f.ok"
    stream = StreamTable(workspace.connection, "st", query, sources)
    assert list(stream.compiled.conditions.values()) == ['((c."ok"))']
    workspace.execute("INSERT INTO tag VALUES (1, '{}', 1)", "INSERT INTO flag VALUES (1, 1, true), (2, 1, NULL)")
    stream.refresh()
    assert stream.difference() == []
    workspace.execute("UPDATE flag SET ok = NOT coalesce(ok, false)")
    stream.refresh()
    assert stream.difference() == []


def test_row_that_came_and_went_raises_no_error(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) VALUES (1, 1, 5)", "INSERT INTO tag VALUES (1, '{}', 1)")
    stream = workspace.stream("st", "SELECT i.id FROM item i JOIN tag t USING (grp) WHERE 10 / i.val > 1 AND i.id > 0")
    workspace.execute("INSERT INTO item (id, grp, val) VALUES (2, 1, 0)", "DELETE FROM item WHERE id = 2")
    workspace.execute("INSERT INTO item (id, grp, val) VALUES (3, 1, 2)")
    stream.refresh()
    assert stream.difference() == []
    assert pushed(workspace, stream).keys() == {"item"}


def streamed(workspace: Workspace, stream: StreamTable) -> set[str]:
    """The sources whose changes are netted by a semi-join that reads them, not before."""
    return {source.name for source in workspace.sources if source.oid in stream.compiled.netted_later}


def test_changes_that_a_semi_join_nets(workspace: Workspace) -> None:
    """Images that cancel each other out in the columns that decide, others that do not, NULLs, both sides changed."""
    workspace.execute("INSERT INTO item (id, grp, val) SELECT n, n % 5, n FROM generate_series(1, 20) n")
    workspace.execute("INSERT INTO tag SELECT n % 4, '{}', n FROM generate_series(0, 7) n")
    queries = [
        "SELECT id, val FROM item i WHERE EXISTS (SELECT FROM tag t WHERE t.grp = i.grp AND t.rank > 1)",
        "SELECT count(*) AS n FROM item i WHERE NOT EXISTS (SELECT FROM tag t WHERE t.grp = i.grp AND t.rank > 1)",
        "SELECT id FROM item i WHERE NOT EXISTS (SELECT FROM tag t WHERE t.rank > i.val)",
        "SELECT i.grp, sum(i.val) AS s FROM item i JOIN cell c ON c.x = i.id WHERE c.y < 3"
        " AND i.grp IN (SELECT grp FROM tag WHERE rank < 6) GROUP BY i.grp",
    ]
    workspace.execute("INSERT INTO cell (x, y) SELECT n, n % 4 FROM generate_series(1, 20) n")
    streams = [workspace.stream(f"st{n}", query) for n, query in enumerate(queries)]
    assert all(streamed(workspace, stream) == {"tag"} for stream in streams)
    workspace.follow(
        streams,
        "UPDATE tag SET rank = rank + 1; UPDATE tag SET rank = rank - 1",
        "UPDATE tag SET rank = rank + 1; UPDATE item SET val = val + 1 WHERE id % 2 = 0",
        "UPDATE tag SET grp = NULL WHERE rank = 3; DELETE FROM tag WHERE grp = 1; UPDATE item SET grp = grp + 1",
        "INSERT INTO tag VALUES (1, '{}', 9), (1, '{}', 9), (9, '{}', 0); DELETE FROM tag WHERE grp = 9",
        "UPDATE cell SET y = y + 1; UPDATE tag SET rank = NULL WHERE grp = 2; DELETE FROM item WHERE id = 3",
    )
