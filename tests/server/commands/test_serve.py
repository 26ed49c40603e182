"""The parts of a server end in an order in which none waits for another."""

from __future__ import annotations

import asyncio

import pytest

from server.commands.engine_parts import _stop


async def test_an_engine_that_waits_for_a_job_of_spark_ends_with_spark() -> None:
    spark_ended, log = asyncio.Event(), list[str]()

    async def stop_engine() -> None:
        log.append("engine begins")
        await spark_ended.wait()
        log.append("engine ended")

    async def stop_spark() -> None:
        log.append("spark ends")
        spark_ended.set()

    async with asyncio.timeout(30):
        await _stop(stop_engine, stop_spark)
    assert log == ["engine begins", "spark ends", "engine ended"]


async def test_an_engine_that_ends_at_once_does_so_before_spark() -> None:
    log = list[str]()

    async def stop_engine() -> None:
        await asyncio.sleep(0)
        log.append("engine ended")

    async def stop_spark() -> None:
        log.append("spark ends")

    await _stop(stop_engine, stop_spark)
    assert log == ["engine ended", "spark ends"]


async def test_the_engine_is_stopped_also_where_spark_cannot_be() -> None:
    log = list[str]()

    async def stop_engine() -> None:
        await asyncio.sleep(0.5)
        log.append("engine ended")

    async def stop_spark() -> None:
        raise OSError("no such process")

    with pytest.raises(OSError, match="no such process"):
        await _stop(stop_engine, stop_spark)
    assert log == ["engine ended"]
