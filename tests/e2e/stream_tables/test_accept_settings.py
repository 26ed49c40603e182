"""What a client has set does not change what stream tables are and do."""

from __future__ import annotations

from typing import Any

import pytest

SETTINGS = [
    "standard_conforming_strings=off",
    "search_path=pg_catalog",
    "default_transaction_isolation=serializable",
    "client_encoding=latin1",
    "DateStyle=German",
    "IntervalStyle=sql_standard",
    "bytea_output=escape",
    "extra_float_digits=-10",
    "backslash_quote=off",
    "array_nulls=off",
    "quote_all_identifiers=on",
    "session_replication_role=replica",
    "check_function_bodies=off",
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.one_in(3)
def test_settings_of_the_client_make_no_difference(shared_db: Any, setting: str) -> None:
    db = shared_db
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text, f float8, b bytea, at date, i interval)")
    try:
        db.run(
            r"INSERT INTO t VALUES (1, E'a\\b', 0.1, '\x00ff', '2020-02-01', '1 day'), (2, 'ä', 0.3, NULL, NULL, NULL)"
        )
        with db.connect(options=f"-c {setting}") as client:
            client.execute(
                "SELECT pgtrickle.create_stream_table('public.copy',"
                r" $$SELECT *, v ~ E'\\\\' AS backslash, i > '23:00:00'::interval AS longer FROM public.t$$, '1h30m')"
            )
            client.execute("UPDATE public.t SET f = f + 0.1; INSERT INTO public.t (id, v) VALUES (3, 'c')")
            client.execute("SELECT pgtrickle.refresh_stream_table('public.copy')")
            hashed = client.execute("SELECT pgtrickle.pg_trickle_hash_multi(ARRAY['a', NULL, 'b'])").fetchone()
        db.assert_current("copy")
        assert db.rows("SELECT id, backslash FROM copy ORDER BY id") == [(1, True), (2, False), (3, False)]
        assert hashed == (3915703376394094705,)
        db.run("SELECT pgtrickle.drop_stream_table('copy')")
    finally:
        db.run("DROP TABLE t CASCADE")
