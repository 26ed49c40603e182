"""Aggregates through the wire: how each is maintained, user-defined ones, and the limit of grouping sets."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

CUBE = "SELECT a, b, c, d, e, f, g, count(*) AS n FROM wide GROUP BY CUBE (a, b, c, d, e, f, g)"


@pytest.fixture
def live_db(emptied_live_db: Any) -> Any:
    return emptied_live_db


@pytest.fixture(autouse=True)
def tables(db: Any) -> None:
    db.run(
        "CREATE TABLE wide (a int, b int, c int, d int, e int, f int, g int);"
        "INSERT INTO wide SELECT i % 2, i % 3, i % 2, i, i % 5, 1, NULL FROM generate_series(1, 5) i;"
        "CREATE AGGREGATE total(int) (sfunc = int4pl, stype = int, initcond = '0')"
    )


def test_explain_st_says_how_each_aggregate_is_maintained(db: Any) -> None:
    db.create("st", "SELECT a, total(d), stddev(d), sum(d::float8), string_agg(b::text, ',') FROM wide GROUP BY a")
    said = " ".join(str(value) for _, value in db.rows("SELECT * FROM pgtrickle.explain_st('st')"))
    assert "a running sum of floating point numbers would drift" in said
    db.run("INSERT INTO wide VALUES (1, 2, 3, 4); UPDATE wide SET d = 7 WHERE d = 2; DELETE FROM wide WHERE d = 3")
    db.refresh("st")
    assert db.history("st")[-1]["action"] == "DIFFERENTIAL"
    assert db.rows("SELECT a, total, round(stddev, 2)::text, sum, string_agg FROM st ORDER BY a") == [
        (0, 11, "2.12", 11.0, "1,2"),
        (1, 10, "2.08", 10.0, "1,2,2"),
    ]


def test_more_grouping_sets_than_the_setting_allows(db: Any) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="GROUP BY with 128 grouping sets"):
        db.create("st", CUBE, refresh_mode="DIFFERENTIAL")
    db.create("st", CUBE)
    assert db.state("st")["refresh_mode"] == "FULL"
    db.run("SET pg_trickle.max_grouping_sets = 128")
    db.create("cube", CUBE)
    assert db.state("cube")["refresh_mode"] == "DIFFERENTIAL"
    db.run("RESET pg_trickle.max_grouping_sets")
    db.run("DELETE FROM wide WHERE d = 3")
    db.refresh("cube")
    assert db.history("cube")[-1]["action"] == "DIFFERENTIAL"
    db.assert_current("cube")
