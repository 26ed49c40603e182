"""Whose rights subscriptions are read with, and what becomes of them when these change."""

from __future__ import annotations

import pytest

from catalog.session import SqlError
from tests.engine.subscribe.subscription_laboratory import Subscriptions, ended


async def role(lab: Subscriptions, name: str, *grants: str) -> str:
    await lab.run(f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name}", *(f"GRANT {g} TO {name}" for g in grants))
    return name


def test_select_is_needed_and_taking_it_away_ends_the_subscription(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE SCHEMA s1", "CREATE TABLE s1.t (a int, secret int)", "INSERT INTO s1.t VALUES (1, 1)")
        bob = await role(lab, "sub_bob", "USAGE ON SCHEMA s1")
        with pytest.raises(SqlError) as denied:
            await lab.subscribe("TABLE s1.t", role=bob)
        assert denied.value.sqlstate == "42501"
        await lab.run(f"GRANT SELECT (a) ON s1.t TO {bob}")
        with pytest.raises(SqlError) as denied:
            await lab.subscribe("TABLE s1.t", role=bob)
        assert denied.value.sqlstate == "42501"
        s = await lab.subscribe("SELECT a FROM s1.t", role=bob)
        assert await s.until(1) == [("1", "1")]
        await lab.run("INSERT INTO s1.t VALUES (2, 2)")
        assert (await s.until(2))[1:] == [("1", "2")]
        await lab.run(f"REVOKE SELECT (a) ON s1.t FROM {bob}", "INSERT INTO s1.t VALUES (3, 3)")
        assert (await ended(s)).sqlstate == "42501"
        assert len(s.rows) == 2
        # Also where nothing changes any more.
        await lab.run(f"GRANT SELECT ON s1.t TO {bob}")
        idle = await lab.subscribe("TABLE s1.t", role=bob)
        await idle.until(3)
        await lab.run(f"REVOKE USAGE ON SCHEMA s1 FROM {bob}")
        assert (await ended(idle)).sqlstate == "42501"

    lab.do(run())


def test_view_is_read_with_its_owners_rights(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        owner = await role(lab, "sub_owner", "CREATE ON SCHEMA public")
        await lab.run("CREATE TABLE base (a int, b int)", f"GRANT SELECT ON base TO {owner}")
        await lab.run(f"SET ROLE {owner}", "CREATE VIEW shown AS SELECT a FROM base WHERE b > 0", "RESET ROLE")
        bob = await role(lab, "sub_reader", "SELECT ON shown")
        await lab.run("INSERT INTO base VALUES (1, 1), (2, 0)")
        s = await lab.subscribe("SELECT a + 1 AS c FROM shown", role=bob)
        assert await s.until(1) == [("1", "2")]
        await lab.run("UPDATE base SET b = 1 WHERE a = 2")
        assert (await s.until(2))[1:] == [("1", "3")]
        # No code of the subscriber's own runs with the owner's rights.
        await lab.run("CREATE FUNCTION told(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'")
        with pytest.raises(SqlError) as refused:
            await lab.subscribe("SELECT told(a) FROM shown", role=bob)
        assert refused.value.sqlstate == "0A000"
        await lab.run(f"REVOKE SELECT ON shown FROM {bob}")
        assert (await ended(s)).sqlstate == "42501"
        await lab.run(f"GRANT SELECT ON shown TO {bob}")
        again = await lab.subscribe("TABLE shown", role=bob)
        await lab.run(f"REVOKE SELECT ON base FROM {owner}")
        assert (await ended(again)).sqlstate == "42501"
        with pytest.raises(SqlError) as denied:
            await lab.subscribe("TABLE shown", role=bob)
        assert denied.value.sqlstate == "42501"

    lab.do(run())


def test_view_is_read_with_its_owners_rights_also_right_after_the_readers_own_are_gone(
    subscriptions: Subscriptions,
) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run(
            "CREATE TABLE below (a int)", "CREATE VIEW seen AS SELECT a FROM below", "INSERT INTO below VALUES (1)"
        )
        bob = await role(lab, "sub_both", "SELECT ON seen", "SELECT ON below")
        before = await lab.subscribe("TABLE seen", role=bob)
        assert await before.until(1) == [("1", "1")]
        await before.feed.close()
        await lab.run(f"REVOKE SELECT ON below FROM {bob}", "INSERT INTO below VALUES (2)")
        s = await lab.subscribe("TABLE seen", role=bob)
        assert sorted(await s.until(2)) == [("1", "1"), ("1", "2")]

    lab.do(run())


def test_row_level_security_is_not_evaded(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE rls (a int)", "INSERT INTO rls VALUES (1)")
        bob = await role(lab, "sub_rls", "SELECT ON rls")
        s = await lab.subscribe("TABLE rls", role=bob)
        await s.until(1)
        await lab.run("ALTER TABLE rls ENABLE ROW LEVEL SECURITY")
        assert (await ended(s)).sqlstate in ("42501", "55000")
        with pytest.raises(SqlError) as refused:
            await lab.subscribe("TABLE rls", role=bob)
        assert refused.value.sqlstate == "42501"

    lab.do(run())


def test_query_runs_with_the_subscribers_rights(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE ours (a int)", "INSERT INTO ours VALUES (1)")
        bob = await role(lab, "sub_code", "SELECT ON ours")
        await lab.run(
            "CREATE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
            " $$ BEGIN RETURN current_user || ' ' || current_setting('role'); END $$",
            "CREATE FUNCTION become(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM set_config('role', 'none', false); RETURN current_user; END $$",
            "CREATE FUNCTION poison(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM set_config('search_path', 'public', false); RETURN ''; END $$",
        )
        s = await lab.subscribe("SELECT who(a) AS w FROM ours", role=bob)
        assert await s.until(1) == [("1", f"{bob} {bob}")]
        await lab.run("INSERT INTO ours VALUES (2)")
        assert (await s.until(2))[1:] == [("1", f"{bob} {bob}")]
        await s.feed.close()
        for function in ("become", "poison"):
            assert (
                await ended(await lab.subscribe(f"SELECT {function}(a) AS w FROM ours", role=bob))
            ).sqlstate == "42501"

    lab.do(run())
