"""Whose rights a view has, in every spelling that PostgreSQL takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

ON = [
    "",
    " = true",
    " = TRUE",
    " = on",
    " = oN",
    " = 1",
    " = yes",
    " = t",
    " = tr",
    " = 'T'",
    " = y",
    " = 'ye'",
    " = 'tRuE'",
]
OFF = [" = false", " = off", " = of", " = 0", " = no", " = n", " = f", " = 'FALSE'", " = 'Fal'"]


@pytest.fixture
def live_db(emptied_live_db: Any) -> Any:
    return emptied_live_db


def test_security_invoker_is_what_postgresql_takes_it_for(
    db: Any, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    alice = role("alice")
    db.run("CREATE TABLE secret (id int)")
    for number, spelling in enumerate(ON + OFF):
        db.run(f"CREATE VIEW v{number} WITH (security_invoker{spelling}) AS SELECT id FROM secret")
        db.run(f"GRANT SELECT ON v{number} TO PUBLIC")
        said = db.value(
            "SELECT pgtrickle._view_option(reloptions, 'security_invoker') FROM pg_class WHERE oid = %s::regclass",
            f"v{number}",
        )
        assert said is (spelling in ON), spelling
        if said:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                alice.execute(f"SELECT * FROM v{number}")
        else:
            alice.execute(f"SELECT * FROM v{number}")
    assert db.value("SELECT pgtrickle._view_option(NULL, 'security_invoker')") is False


@pytest.mark.parametrize("spelling", ["", " = TRUE", " = on", " = 1", " = yes", " = t"])
def test_security_barrier_view_of_another_is_not_followed(
    db: Any, role: Callable[..., psycopg.Connection[Any]], spelling: str
) -> None:
    alice = role("alice")
    db.run("CREATE TABLE secret (id int)")
    db.run(f"CREATE VIEW shown WITH (security_barrier{spelling}) AS SELECT id FROM secret WHERE id > 5")
    db.run("GRANT SELECT ON shown TO PUBLIC")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="security barrier"):
        alice.execute("SUBSCRIBE (SELECT id FROM shown) UP TO 1")
