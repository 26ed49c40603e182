"""The pool of compilers: what a job may take, whose turn it is, and what becomes of what nobody waits for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from operator import methodcaller

import psutil
import pytest

from catalog.session import SqlError
from engine.compile.pool import CompilePool, Limits, TooComplex, on_behalf_of
from sql import NotDifferentiable, jobs

FOREVER = 10**9
"""What `range` of it is summed up takes many seconds."""


def _nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.fixture
def pool() -> Iterator[CompilePool]:
    made = CompilePool(Limits(workers=2, cpu_seconds=1, memory=128 << 20))
    yield made
    made.stop()


async def test_answers_and_the_compilers_own_errors_come_back(pool: CompilePool) -> None:
    assert await pool.run(jobs.reworded, "SELECT (a)::numeric AS n FROM public.t x") is None
    with pytest.raises(NotDifferentiable) as raised:
        await pool.run(jobs.reworded, "SELECT a FROM public.t WHERE")
    assert raised.value.construct


async def test_a_job_that_takes_too_long_is_too_complex_and_others_go_on(pool: CompilePool) -> None:
    with pytest.raises(TooComplex) as raised:
        await pool.run(sum, range(FOREVER))
    assert (raised.value.sqlstate, raised.value.message) == ("54001", "statement too complex")
    assert raised.value.detail == "Compiling it takes more than 1 s."
    assert await pool.run(sum, range(10)) == 45


async def test_a_job_that_takes_too_much_memory_is_too_complex(pool: CompilePool) -> None:
    with pytest.raises(TooComplex) as raised:
        await pool.run(bytearray, 1 << 30)
    assert raised.value.detail == "Compiling it takes more than 128 MB of memory."
    assert await pool.run(sum, range(10)) == 45


async def test_an_answer_that_takes_too_much_memory_is_too_complex(pool: CompilePool) -> None:
    with pytest.raises(TooComplex, match="statement too complex"):
        await pool.run(bytearray, 100 << 20)


async def test_a_compiler_that_keeps_much_is_replaced(pool: CompilePool) -> None:
    await pool.run(sum, range(10))
    before = pool.pids
    await pool.run(exec, "import sql; sql.kept = b'x' * (80 << 20)")
    await pool.run(sum, range(10))
    assert pool.pids != before


async def test_what_is_nested_too_deeply_is_too_complex(pool: CompilePool) -> None:
    with pytest.raises(TooComplex) as raised:
        await pool.run(jobs.reworded, "SELECT " + "(" * 3000 + "1" + ")" * 3000 + " AS a")
    assert raised.value.detail == "It is nested too deeply."


async def test_an_error_of_the_program_is_an_internal_one(pool: CompilePool) -> None:
    with pytest.raises(SqlError, match="internal error of the compiler: TypeError") as raised:
        await pool.run(sum, 5)  # type: ignore[arg-type]
    assert raised.value.sqlstate == "XX000"


async def test_a_compiler_that_dies_is_replaced(pool: CompilePool) -> None:
    with pytest.raises(TooComplex):
        await pool.run(methodcaller("__call__", 1), os._exit)  # type: ignore[arg-type]
    assert await pool.run(sum, range(10)) == 45


async def test_work_ends_when_nobody_waits_for_it() -> None:
    pool = CompilePool(Limits(workers=1, cpu_seconds=600))
    try:
        await pool.run(sum, range(10))
        (pid,) = pool.pids
        asked = asyncio.ensure_future(pool.run(sum, range(100 * FOREVER)))
        waiting = asyncio.ensure_future(pool.run(sum, range(FOREVER)))
        await asyncio.sleep(0)
        waiting.cancel()
        asked.cancel()
        await asyncio.wait({asked, waiting})
        assert asked.cancelled()
        assert await asyncio.wait_for(pool.run(sum, range(10)), 60) == 45
        assert not psutil.pid_exists(pid)
    finally:
        pool.stop()


async def test_a_role_never_has_all_compilers() -> None:
    pool = CompilePool(Limits(workers=2, cpu_seconds=600))
    try:
        with on_behalf_of("mallory"):
            long = [asyncio.ensure_future(pool.run(sum, range(100 * FOREVER))) for _ in range(5)]
        await asyncio.sleep(0)
        for role in ("alice", "bob", "alice"):
            with on_behalf_of(role):
                assert await asyncio.wait_for(pool.run(sum, range(10)), 60) == 45
        assert not any(task.done() for task in long)
        for task in long:
            task.cancel()
        await asyncio.wait(long)
    finally:
        pool.stop()


def test_a_worker_whose_server_has_ended_before_it_was_ready_says_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    program = "from engine.compile.worker import main; main(1, 1 << 30)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE
    ) as worker:
        os.close(write)
        assert worker.stderr is not None
        assert worker.wait(30) == 0
        assert worker.stderr.read() == b""


async def test_who_waits_hears_of_the_end_of_the_server() -> None:
    pool = CompilePool(Limits(workers=1, cpu_seconds=600))
    asked = [asyncio.ensure_future(pool.run(sum, range(100 * FOREVER))) for _ in range(2)]
    await asyncio.sleep(0)
    pool.stop()
    for one in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(one, SqlError)
        assert one.sqlstate == "57P01"


async def test_the_loop_goes_on_meanwhile(pool: CompilePool) -> None:
    await pool.run(sum, range(10))
    asked = asyncio.ensure_future(pool.run(sum, range(FOREVER)))
    turns, begin = 0, time.process_time()
    while not asked.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 10
    assert time.process_time() - begin < 1
    assert isinstance(asked.exception(), TooComplex)
