"""Names of relations and functions of the schema pgtrickle, as the relay knows them."""

from __future__ import annotations

from server.protocol.error_rewriting import SQL_FUNCTIONS
from server.protocol.keyword_scan import NOTHING, RELATIONS, mentions
from server.protocol.statements.stream_table_names import as_request
from tests.catalog.conftest import Connect


def test_none_of_them_is_taken_for_a_stream_table(connect: Connect) -> None:
    rows = connect().execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgtrickle'::regnamespace AND relkind IN ('r', 'v', 'S')"
    )
    names = {str(name) for (name,) in rows.fetchall()}
    assert names > RELATIONS
    for name in names:
        statement = f"SELECT * FROM pgtrickle.{name}".encode()
        assert (mentions(statement), as_request(statement)) == (NOTHING, None), name


def test_functions_in_sql_are_known_by_their_names(connect: Connect) -> None:
    rows = connect().execute(
        "SELECT DISTINCT proname FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang"
        " WHERE pronamespace = 'pgtrickle'::regnamespace AND lanname = 'sql' AND proname !~ '^_'"
    )
    assert {str(name) for (name,) in rows.fetchall()} == SQL_FUNCTIONS
