"""Which queries PostgreSQL has no choice in, so that their own text gives what is stored."""

from __future__ import annotations

import pytest

from sql.compile.determined import determined
from sql.storage import Bag, KeyedRows
from tests.sql.conftest import Workspace

DETERMINED = [
    "SELECT id, label FROM item WHERE val > 1 ORDER BY label",
    "SELECT i.id, t.rank FROM item i LEFT JOIN tag t ON t.grp = i.grp",
    "SELECT i.id, s.n FROM item i JOIN (SELECT grp, count(*) AS n FROM item GROUP BY grp) s ON s.grp = i.grp",
    "SELECT id FROM item o WHERE amount > (SELECT avg(amount) FROM item i WHERE i.grp = o.grp)",
    "SELECT id FROM item o WHERE free > (SELECT 0.1 * sum(free) FROM item i WHERE i.grp = o.grp)",
    "SELECT id FROM item WHERE grp IN (SELECT grp FROM tag WHERE rank > 1)"
    " AND NOT EXISTS (SELECT FROM cell WHERE x = id)",
    "WITH s AS (SELECT grp, sum(amount) AS total FROM item GROUP BY grp)"
    " SELECT i.id, s.total FROM item i JOIN s USING (grp) WHERE s.total = (SELECT max(total) FROM s)",
]
OPEN = [
    "SELECT i.id, s.free FROM item i JOIN (SELECT grp, max(free) AS free FROM item GROUP BY grp) s ON s.grp = i.grp",
    "SELECT i.id, s.v FROM item i JOIN (SELECT x, sum(v) AS v FROM cell GROUP BY x) s ON s.x = i.grp",
    "SELECT i.id, s.l FROM item i JOIN (SELECT grp, string_agg(label, ',') AS l FROM item GROUP BY grp) s USING (grp)",
    "SELECT i.id, s.free FROM item i JOIN (SELECT DISTINCT free FROM item) s ON s.free = i.amount",
    "SELECT i.id, s.n FROM item i JOIN (SELECT free, count(*) AS n FROM item GROUP BY free) s ON s.free = i.amount",
    "SELECT id FROM item o WHERE amount > (SELECT sum(DISTINCT free) FROM item i WHERE i.grp = o.grp)",
    "SELECT i.id, s.n FROM item i JOIN (SELECT id, row_number() OVER (ORDER BY grp) AS n FROM item) s ON s.id = i.id",
    "SELECT i.id FROM item i JOIN (SELECT id FROM item ORDER BY grp LIMIT 3) s ON s.id = i.id",
]


@pytest.mark.parametrize("query", DETERMINED)
def test_the_text_of_a_query_without_a_choice_gives_what_is_stored(shared_workspace: Workspace, query: str) -> None:
    table = shared_workspace.stream(f"d{DETERMINED.index(query)}", query)
    assert table.compiled.root is not None and determined(table.compiled.root)
    assert isinstance(table.compiled.shape, Bag | KeyedRows)
    assert table.compiled.whole_query == table.canonical
    shared_workspace.execute(
        "TRUNCATE item, tag, cell",
        "INSERT INTO item SELECT n, n % 3, n, n + 0.5, (n || '.' || repeat('0', n % 4))::numeric, 'l' || n % 4"
        " FROM generate_series(1, 12) AS n",
        "INSERT INTO tag SELECT n, '{}', n FROM generate_series(0, 2) AS n",
        "INSERT INTO cell SELECT n, 1, n FROM generate_series(1, 3) AS n",
    )
    table.full()
    assert table.difference() == []
    before = table.tuples()
    assert before
    # What the tree has computed is the same to the last zero: none of it goes or changes.
    shared_workspace.execute("UPDATE item SET label = label || 'x' WHERE id = 12")
    table.refresh()
    assert table.difference() == []
    table.compiled.whole = None
    done = table.full()
    assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0)


@pytest.mark.parametrize("query", OPEN)
def test_what_sql_leaves_open_is_decided_by_the_tree(shared_workspace: Workspace, query: str) -> None:
    table = shared_workspace.stream(f"o{OPEN.index(query)}", query)
    assert table.compiled.root is not None and not determined(table.compiled.root)
    assert table.compiled.whole_query == table.compiled.storage_query != table.canonical


def test_groups_are_computed_with_what_they_are_made_of(shared_workspace: Workspace) -> None:
    table = shared_workspace.stream("made_of", "SELECT grp, avg(val) AS mean FROM item GROUP BY grp")
    assert determined(table.compiled.root)  # type: ignore[arg-type]
    assert table.compiled.whole_query == table.compiled.storage_query
    assert "__pgt_count" in table.compiled.whole_names
