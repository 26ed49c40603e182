"""Values come out of the mirror, of its base and of its log, as PostgreSQL has them."""

from __future__ import annotations

from datetime import UTC

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from engine.mirror.mirror import Mirror
from sql.errors import NotExpressible
from sql.spark.types import INFINITE_DAYS
from tests.engine.mirror.mirror_laboratory import Laboratory, contents


async def test_column_with_a_value_that_cannot_be_carried_is_left_out(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "n")
    await laboratory.run("INSERT INTO public.t SELECT i, 'x', 'NaN' FROM generate_series(10, 12) i")
    with pytest.raises(NotExpressible, match='a value of table "t"'):
        await laboratory.rows("id", "n")
    with pytest.raises(NotExpressible, match='a value of table "t", in column "n"'):
        await laboratory.rows("id", "n")
    assert len(await laboratory.rows("id", "v")) == 8
    await laboratory.run("DELETE FROM public.t WHERE id > 9")
    async with laboratory.at("id", "v") as version:
        assert version.reused
    laboratory.mirror = Mirror(laboratory.root)
    assert len(await laboratory.rows("id", "n")) == 5


async def test_only_the_number_of_rows_is_kept_where_no_column_is_read(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.n (x int)", "INSERT INTO public.n SELECT generate_series(1, 5)")
    await laboratory.capture("n", [])
    async with laboratory.at(table="n") as version:
        assert len(contents(version)) == 5
    await laboratory.run("DELETE FROM public.n WHERE x < 3")
    async with laboratory.at(table="n") as version:
        assert version.reused
        assert len(contents(version)) == 3


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'12024-01-01'"),
        ("numeric(5,2)", "'NaN'"),
    ],
)
async def test_values_that_spark_does_not_have_are_found(laboratory: Laboratory, type_: str, value: str) -> None:
    await laboratory.run(f"CREATE TABLE public.x (v {type_})", f"INSERT INTO public.x VALUES (NULL), ({value})")
    with pytest.raises(NotExpressible, match='a value of table "x"'):
        await laboratory.rows("v", table="x")


@pytest.mark.parametrize("type_", ["date", "timestamp", "timestamptz"])
async def test_infinity_has_a_stand_in_in_base_and_log(laboratory: Laboratory, type_: str) -> None:
    days = {"infinity": INFINITE_DAYS, "-infinity": -INFINITE_DAYS, "1970-01-02": 1}
    values = ", ".join(f"('{value}')" for value in days)
    await laboratory.run(f"CREATE TABLE public.x (v {type_})", f"INSERT INTO public.x VALUES {values}, (NULL)")
    await laboratory.capture("x", ["v"])
    await laboratory.rows_in_mirror("v", table="x")
    await laboratory.run(f"INSERT INTO public.x VALUES {values}, (NULL)")
    async with laboratory.at("v", table="x") as version:
        assert version.reused
        for files in (version.files, version.changes):
            (file,) = files
            found = pq.read_table(file)["v"].cast(pa.date32()).cast(pa.int32()).to_pylist()
            assert sorted(found, key=str) == sorted([*days.values(), None], key=str)
    for part, rows in (("base", 4), ("changes", 4)):
        table = DeltaTable(laboratory.mirror.place("lab", version.source).below(part).uri)
        assert table.to_pyarrow_table().num_rows == rows


OTHER_TYPES = {
    "numeric": ["'NaN'", "'-Infinity'", "1.000", "12345678901234567890123456789012345678901234567890.5", "NULL"],
    "jsonb": ['\'{"b": 1.0, "a": [null, "x,\\"y"]}\'', "'null'", "NULL"],
    "integer[]": ["'{1,NULL,3}'", "'{}'", "'{{1,2},{3,4}}'", "NULL"],
    "text[]": ["ARRAY['a,b', 'c\"d', NULL, '', 'NULL']", "NULL"],
    "bytea": ["'\\x00ff'", "''", "NULL"],
    "interval": ["'1 year -2 days 03:04:05.678'", "'-0:00:01'", "NULL"],
    "time without time zone": ["'24:00'", "'12:34:56.789012'", "NULL"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "NULL"],
    "character(5)": ["'ab'", "''", "NULL"],
    "timestamp with time zone": ["'2024-03-31 02:30:00.123456+02'", "NULL"],
}


@pytest.mark.parametrize("type_", OTHER_TYPES)
@pytest.mark.one_in(2)
async def test_values_are_the_same_in_base_and_log_as_in_postgresql(laboratory: Laboratory, type_: str) -> None:
    await laboratory.run(f"CREATE TABLE public.x (k int PRIMARY KEY, v {type_})")
    for part, offset in (("base", 0), ("log", 100)):
        for number, value in enumerate(OTHER_TYPES[type_], offset):
            await laboratory.run(f"INSERT INTO public.x VALUES ({number}, {value})")
        if part == "base":
            await laboratory.capture("x", ["k", "v"])
        expected = await laboratory.connection.fetch("SELECT k, v::text FROM public.x")
        async with laboratory.at("k", "v", table="x") as version:
            assert version.reused is (part == "log")
            found = contents(version, "k", "v")
        if type_ == "timestamp with time zone":
            assert [v and v.astimezone(UTC).isoformat() for _, v in found[:1]] == ["2024-03-31T00:30:00.123456+00:00"]
        else:
            assert dict(found) == {k: v for k, v in expected}


async def test_texts_come_back_as_they_were(laboratory: Laboratory) -> None:
    texts = [
        "",
        " ",
        "NULL",
        "\\N",
        '"',
        'a"b,c',
        "new\nline",
        "carriage\r\nreturn",
        "é😀",
        "\u2028",
        "x" * 3_000_000,
        None,
    ]
    await laboratory.run("CREATE TABLE public.x (k int, v text)")
    await laboratory.connection.executemany("INSERT INTO public.x VALUES ($1, $2)", list(enumerate(texts)))
    rows = await laboratory.rows("k", "v", table="x")
    assert dict(rows) == dict(enumerate(texts))
    assert sorted(await laboratory.rows("v", table="x"), key=str) == sorted(((t,) for t in texts), key=str)
