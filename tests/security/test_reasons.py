"""What everybody reads about a refresh holds no value of the sources."""

from __future__ import annotations

import pytest

from sql.errors import NotExpressible
from tests.engine.conftest import laboratory
from tests.engine.mirror.mirror_laboratory import Laboratory

__all__ = ["laboratory"]


async def test_value_that_the_mirror_cannot_keep_is_not_in_the_reason(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.x (id int, day date)", "INSERT INTO public.x VALUES (1, '0044-03-15 BC')")
    with pytest.raises(NotExpressible, match='a value of table "x", in column "day"') as first:
        await laboratory.rows("id", "day", table="x")
    with pytest.raises(NotExpressible, match='in column "day"') as again:
        await laboratory.rows("id", "day", table="x")
    assert not any(word in str(e.value) for e in (first, again) for word in ("44", "BC", "CSV"))


async def test_changed_value_that_the_mirror_cannot_keep_is_not_in_the_reason(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "n")
    await laboratory.run("UPDATE public.t SET n = 'NaN' WHERE id = 1")
    with pytest.raises(NotExpressible, match="value of table") as raised:
        await laboratory.rows("id", "n")
    assert "NaN" not in str(raised.value)
