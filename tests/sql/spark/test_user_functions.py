"""Functions of users in SQL, put in the places of their calls: expressions in, expressions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sql import Column, Source
from sql.errors import NotExpressible
from sql.spark.protocol import Environment
from sql.spark.render import render_spark
from sql.spark.user_defined.functions import SqlFunction, obstacle

TABLE = Source(7, "public", "t", (Column("i", "integer"), Column("b", "bigint"), Column("s", "text")))


def function(name: str, body: str, result: str = "integer", **parameters: str) -> SqlFunction:
    given = ", ".join(f"NULL::{type_} AS {each}" for each, type_ in parameters.items())
    definition = f"SELECT ( SELECT {body}) AS body" + (f" FROM ( SELECT {given}) f" if given else "")
    return SqlFunction("public", name, tuple(parameters.items()), result, definition=definition)


def spark(expression: str, *functions: SqlFunction) -> str:
    query = f"SELECT {expression} AS x FROM public.t"
    text = render_spark(query, [TABLE], environment=Environment(functions=functions)).sql
    return text.removeprefix("SELECT ").removesuffix(" AS c0 FROM source_7 AS r0")


ADD = function("add", "(f.a + f.b)", a="integer", b="bigint", result="bigint")


def test_arguments_and_value_are_cast_to_the_types_that_are_declared() -> None:
    assert spark("public.add(t.i, t.b)", ADD) == spark("t.i + t.b")
    assert spark("public.add(t.i, t.i)", ADD) == spark("t.i + t.i::bigint")
    assert spark("public.add(t.i, t.b)", replace(ADD, result="integer")) == spark("(t.i + t.b)::integer")


def test_arguments_by_name_go_where_their_names_are() -> None:
    assert spark("public.add(b => 7::bigint, a => t.i)", ADD) == spark("t.i + 7::bigint")
    with pytest.raises(NotExpressible, match="with other arguments than it has"):
        spark("public.add(b => 7::bigint, c => t.i)", ADD)


def test_arguments_that_are_left_out_are_the_defaults() -> None:
    more = replace(ADD, defaults=("'-7'::bigint",))
    assert spark("public.add(t.i)", more) == spark("t.i + '-7'::bigint")
    assert spark("public.add(a => t.i)", more) == spark("t.i + '-7'::bigint")
    assert obstacle(ADD.definition, ["now()"]) == "with a default that is not a constant"
    with pytest.raises(NotExpressible, match="with other arguments"):
        spark("public.add(b => t.b)", more)


def test_literals_stay_literals() -> None:
    part = function("part", "substring(f.s, f.n, 2)", s="text", n="integer", result="text")
    assert spark("public.part(t.s, 3)", part) == spark("substring(t.s, 3, 2)")


def test_strict_function_gives_null_where_an_argument_is_null() -> None:
    strict = replace(ADD, strict=True)
    expected = "CASE WHEN t.i IS NULL OR t.b IS NULL THEN NULL ELSE t.i + t.b END"
    assert spark("public.add(t.i, t.b)", strict) == spark(expected)


def test_function_within_a_function_sees_its_own_arguments() -> None:
    outer = function("outer_one", "public.add(f.b, public.add(f.b, 1::bigint))", b="integer", result="bigint")
    assert spark("public.outer_one(t.i)", outer, ADD) == spark("t.i + (t.i + 1::bigint)")


def test_functions_that_call_each_other_are_refused() -> None:
    one, other = (
        function(name, f"public.{called}(f.a)", a="integer") for name, called in (("one", "other"), ("other", "one"))
    )
    with pytest.raises(NotExpressible, match="which calls itself"):
        spark("public.one(t.i)", one, other)


def test_what_grows_beyond_bounds_is_refused() -> None:
    doubled = function("doubled", "(f.a + f.a)", a="integer")
    call = "t.i"
    for _ in range(30):
        call = f"public.doubled({call})"
    with pytest.raises(NotExpressible, match="too long"):
        spark(call, doubled)


def test_name_is_that_of_the_function_in_its_schema() -> None:
    other = replace(ADD, schema="Other", refused="which is written in plpgsql")
    assert spark("public.add(t.i, t.b)", ADD, other) == spark("t.i + t.b")
    with pytest.raises(NotExpressible, match=r"function Other\.add, which is written in plpgsql"):
        spark('"Other".add(t.i, t.b)', ADD, other)


@pytest.mark.parametrize(
    "body",
    [
        "sum(f.a)",
        "( SELECT 1)",
        "f.a FROM pg_class",
        "f.a WHERE (f.a > 0)",
        "f.a LIMIT 0",
        "DISTINCT f.a",
        "f.a, f.a",
        "row_number() OVER ()",
        '(f.a COLLATE "C")',
        "f.a UNION SELECT 1",
    ],
)
def test_body_that_is_no_expression_is_refused(body: str) -> None:
    assert obstacle(function("f", body, a="integer").definition)
