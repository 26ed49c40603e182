"""The mirror holds exactly what a snapshot saw, and is copied again only when it must be."""

from __future__ import annotations

import asyncio

import pytest

from sql.errors import NotExpressible
from tests.engine.mirror.mirror_laboratory import FIVE, Laboratory, contents, net_changes


async def test_unchanged_table_is_not_copied_again(laboratory: Laboratory) -> None:
    async with laboratory.at("id", "v") as first, laboratory.at("v") as second:
        assert (first.reused, second.reused) == (False, True)
        assert first.files == second.files
        assert contents(first, "id", "v") == FIVE


@pytest.mark.parametrize(
    ("change", "copied"),
    [
        ("INSERT INTO public.t VALUES (9, 'new', 0)", False),
        ("UPDATE public.t SET v = 'other' WHERE id = 3", False),
        ("UPDATE public.t SET id = id + 5", False),
        ("DELETE FROM public.t WHERE id = 1", False),
        ("INSERT INTO public.t VALUES (1, 'x', 0), (9, 'y', 0) ON CONFLICT (id) DO UPDATE SET v = excluded.v", False),
        ("TRUNCATE public.t", True),
    ],
)
async def test_every_kind_of_change_reaches_the_mirror(laboratory: Laboratory, change: str, copied: bool) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run(change)
    expected = sorted((tuple(row) for row in await laboratory.connection.fetch("SELECT id, v FROM public.t")), key=str)
    async with laboratory.at("id", "v") as version:
        assert version.reused is not copied
        assert contents(version, "id", "v") == expected


async def test_changes_stay_in_the_buffer_until_the_mirror_has_them(laboratory: Laboratory) -> None:
    buffer = f"pgtrickle_changes.changes_{(await laboratory.source()).oid}"
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    await laboratory.set_frontier()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await laboratory.connection.fetchval(f"SELECT count(*) FROM {buffer}") == 2
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert (3, "other") in contents(version, "id", "v")
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await laboratory.connection.fetchval(f"SELECT count(*) FROM {buffer}") == 0
    async with laboratory.at("id", "v") as version:
        assert version.reused


async def test_mirror_that_nobody_speaks_for_any_more_holds_nothing_and_is_copied_anew(laboratory: Laboratory) -> None:
    buffer = f"pgtrickle_changes.changes_{(await laboratory.source()).oid}"
    await laboratory.rows("id", "v")
    await laboratory.run(
        "UPDATE public.t SET v = 'other' WHERE id = 3",
        "UPDATE pgtrickle.pgt_mirrors SET held_until = now() - interval '1 second'",
    )
    await laboratory.set_frontier()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await laboratory.connection.fetchval(f"SELECT count(*) FROM {buffer}") == 0
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert (3, "other") in contents(version, "id", "v")


async def test_mirror_that_was_let_go_of_is_taken_up_again_if_nothing_was_lost(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3", "DELETE FROM pgtrickle.pgt_mirrors")
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert (3, "other") in contents(version, "id", "v")
    assert await laboratory.connection.fetchval("SELECT count(*) FROM pgtrickle.pgt_mirrors") == 1


async def test_buffer_emptied_between_the_snapshot_and_the_copy_starts_no_log(laboratory: Laboratory) -> None:
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    exporter = await laboratory.connect()
    async with exporter.transaction(isolation="repeatable_read"):
        await exporter.fetch("SELECT 1")
        await laboratory.run("UPDATE public.t SET v = 'later' WHERE id = 3")
        await laboratory.set_frontier()
        await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
        assert (3, "other") in await laboratory.rows("id", "v", exporter=exporter)
    await exporter.close()
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert (3, "later") in contents(version, "id", "v")


async def test_net_changes_since_a_frontier_are_those_it_has_not_seen(laboratory: Laboratory) -> None:
    frontier = await laboratory.frontier()
    await laboratory.run(
        "UPDATE public.t SET v = 'b' WHERE id = 3",
        "UPDATE public.t SET v = 'c' WHERE id = 3",
        "INSERT INTO public.t VALUES (6, 'gone', 0)",
    )
    async with laboratory.at("id", "v", since=frontier) as version:
        assert not version.reused
        assert net_changes(version, "id", "v") == {(3, "v3"): -1, (3, "c"): 1, (6, "gone"): 1}
    await laboratory.run("DELETE FROM public.t WHERE id = 6")
    async with laboratory.at("id", "v", since=frontier) as version:
        assert version.reused
        assert net_changes(version, "id", "v") == {(3, "v3"): -1, (3, "c"): 1}
        assert contents(version, "id", "v") == sorted({**dict(FIVE), 3: "c"}.items())
    later = await laboratory.frontier()
    async with laboratory.at("id", "v", since=later) as version:
        assert net_changes(version, "id", "v") == {}


async def test_frontier_inside_a_transaction_has_seen_a_part_of_it(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    writer = await laboratory.connect()
    async with writer.transaction():
        await writer.execute("INSERT INTO public.t VALUES (6, 'seen', 0)")
        row = await writer.fetchrow(
            "SELECT pg_current_snapshot()::text AS snapshot, pg_current_xact_id()::text AS xid,"
            " (SELECT max(__pgt_change_id) FROM pgtrickle_changes.changes_"
            f"{(await laboratory.source()).oid}) AS change_id"
        )
        await writer.execute("INSERT INTO public.t VALUES (7, 'not seen', 0)")
    await writer.close()
    async with laboratory.at("id", "v", since=dict(row)) as version:
        assert net_changes(version, "id", "v") == {(7, "not seen"): 1}


async def test_truncation_since_the_frontier_is_not_told_as_changes(laboratory: Laboratory) -> None:
    frontier = await laboratory.frontier()
    await laboratory.rows("id", "v")
    await laboratory.run("TRUNCATE public.t", "INSERT INTO public.t VALUES (1, 'new', 0)")
    with pytest.raises(NotExpressible, match="truncated"):
        await laboratory.rows("id", "v", since=frontier)
    assert await laboratory.rows("id", "v") == [(1, "new")]


async def test_update_by_a_trigger_of_what_a_statement_inserts_is_kept_in_the_right_order(
    laboratory: Laboratory,
) -> None:
    await laboratory.run(
        """CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN UPDATE public.t SET v = 'by trigger' WHERE id = new.id; RETURN NULL; END $$""",
        "CREATE TRIGGER a AFTER INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'as inserted', 0)")
    assert await laboratory.rows("id", "v") == [*FIVE, (6, "by trigger")]


async def test_duplicates_of_a_table_without_a_key_are_counted(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.d (a int, b text)")
    await laboratory.run("INSERT INTO public.d VALUES (1, NULL), (1, NULL), (1, NULL), (2, 'x')")
    await laboratory.capture("d", ["a", "b"])
    await laboratory.rows("a", "b", table="d")
    await laboratory.run(
        "DELETE FROM public.d WHERE ctid = (SELECT min(ctid) FROM public.d)", "INSERT INTO public.d VALUES (2, 'x')"
    )
    async with laboratory.at("a", "b", table="d") as version:
        assert version.reused
        assert contents(version, "a", "b") == [(1, None), (1, None), (2, "x"), (2, "x")]


async def test_each_snapshot_gets_its_own_rows_while_writers_go_on(laboratory: Laboratory) -> None:
    writer, old, new = [await laboratory.connect() for _ in range(3)]
    open_write = writer.transaction()
    await open_write.start()
    await writer.execute("INSERT INTO public.t VALUES (6, 'late', 0)")
    async with old.transaction(isolation="repeatable_read"):
        await old.fetch("SELECT 1")
        assert await laboratory.rows("id", "v") == FIVE
        await open_write.commit()
        async with new.transaction(isolation="repeatable_read"):
            assert await laboratory.rows("id", "v", exporter=new) == [*FIVE, (6, "late")]
            # The mirror is ahead of the old snapshot now, and must not be used for it.
            assert await laboratory.rows("id", "v", exporter=old) == FIVE
            assert await laboratory.rows("id", "v", exporter=new) == [*FIVE, (6, "late")]
    for connection in (writer, old, new):
        await connection.close()


async def test_many_tasks_share_one_copy(laboratory: Laboratory) -> None:
    async def reused() -> bool:
        async with laboratory.at("id") as version:
            return version.reused

    assert sorted(await asyncio.gather(*(reused() for _ in range(5)))) == [False, True, True, True, True]
