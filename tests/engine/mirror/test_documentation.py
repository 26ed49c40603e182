"""What docs/mirror.md says of the layout is so: a plain Delta reader gets the table's rows with the documented code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyspark

from tests.engine.mirror.mirror_laboratory import Laboratory

DOCUMENT = Path(__file__).parents[3] / "docs" / "mirror.md"


async def test_plain_delta_reader_gets_the_rows_with_the_documented_code(laboratory: Laboratory) -> None:
    await laboratory.rows_in_mirror("id", "v", "n")
    await laboratory.run(
        "UPDATE public.t SET v = 'other' WHERE id < 3",
        "DELETE FROM public.t WHERE id = 4",
        "INSERT INTO public.t VALUES (6, NULL, 0.1)",
    )
    await laboratory.rows_in_mirror("id", "v", "n")
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    oid = (await laboratory.source()).oid
    scope: dict[str, Any] = {"place": laboratory.root / "lab" / str(oid)}
    exec(code, scope)
    expected = [tuple(row) for row in await laboratory.connection.fetch("SELECT id, v, n FROM public.t")]
    assert sorted(scope["rows"]) == sorted(expected)


def test_hadoop_aws_is_named_in_the_version_of_pysparks_hadoop() -> None:
    """Hadoop's jars only work beside others of the same version."""
    home = Path(str(pyspark.__file__)).parent
    (jar,) = (home / "jars").glob("hadoop-client-api-*.jar")
    version = jar.stem.removeprefix("hadoop-client-api-")
    assert re.findall(r"hadoop-aws:([\d.]+\d)", DOCUMENT.read_text()) == [version]
