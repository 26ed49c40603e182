"""The files of a project of Spark Declarative Pipelines, and how they come into a directory.

No password is in them: `sources.py` takes the connection from the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from catalog.pinned_settings import PINNED_PATH, VALUES_AS_TEXT, set_in_session
from engine.spark.target import SESSION_CONF
from server.commands.export import Pipeline, SourceTable, StreamTable
from server.postgres.data_directory import StartupError
from sql.export.dataset import Dataset
from sql.export.source_table import rows_query, spark_columns
from sql.spark.types import INFINITE_DAYS

SPEC, SOURCES, LIST = "spark-pipeline.yml", "transformations/sources.py", ".headwater-export.json"
"""The last one lists the files that an export has written, so that the next one can take them away."""

_CONF = {**SESSION_CONF, "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""What results depend on. Timestamps would else be written in a form that for other readers ends in the year 2262."""

_SETTINGS = {**VALUES_AS_TEXT, "TimeZone": "UTC", "row_security": "off", "search_path": PINNED_PATH}

_READER = '''"""The tables of PostgreSQL that the stream tables read, each copied once in a run of the pipeline.

A run copies one table after the other: what is committed meanwhile can be in one of them and not yet in another.
To read a table from elsewhere (Delta, Iceberg, another pipeline) replace its function, or `rows`: the columns, and
their types after `selectExpr`, must stay.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

SETTINGS = {settings}


def rows(query):
    """The rows of a query in PostgreSQL, by JDBC."""
    reader = SparkSession.active().read.format("jdbc")
    reader = reader.option("driver", "org.postgresql.Driver").option("url", os.environ["HEADWATER_JDBC_URL"])
    for option in ("user", "password"):
        if value := os.environ.get(f"HEADWATER_JDBC_{{option.upper()}}"):
            reader = reader.option(option, value)
    return reader.option("fetchsize", "10000").option("sessionInitStatement", SETTINGS).option("query", query).load()
'''

_FUNCTION = """

@dp.materialized_view(name={name}, comment={comment})
def read_{dataset}():
    return rows(
        {query}
    ).selectExpr(
{columns}
    )
"""

_SPEC = """# Made by `headwater export spark`. The properties of Spark are those that results depend on.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
{configuration}
"""


def files(pipeline: Pipeline, directory: Path) -> dict[str, str]:
    """The project's files by their paths in it; `directory` is where it is going to be."""
    storage = (directory.resolve() / "pipeline-storage").as_uri()
    configuration = "\n".join(f"  {name}: {_quoted(value)}" for name, value in _CONF.items())
    spec = _SPEC.format(name=_quoted(pipeline.database), storage=_quoted(storage), configuration=configuration)
    settings = _quoted(set_in_session(_SETTINGS))
    sources = _READER.format(settings=settings) + "".join(map(_source, pipeline.sources))
    return {
        SPEC: spec,
        SOURCES: sources,
        **{f"transformations/{name}.sql": _view(name, *found) for name, found in pipeline.datasets.items()},
        "README.md": readme(pipeline),
    }


def _quoted(text: str) -> str:
    """A string of YAML, and of Python, without line ends."""
    return json.dumps(text, ensure_ascii=False)


def _line(text: str) -> str:
    """Text that somebody has written, in a comment of one line."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')


def _source(table: SourceTable) -> str:
    columns = "\n".join(f"        {_quoted(item)}," for item in spark_columns(table.source, table.columns))
    return _FUNCTION.format(
        name=_quoted(table.dataset),
        comment=_quoted(f"{table.source.schema}.{table.source.name} in PostgreSQL"),
        dataset=table.dataset,
        query=_quoted(rows_query(table.source, table.columns)),
        columns=columns,
    )


def _view(name: str, table: StreamTable, found: Dataset) -> str:
    return (
        f"-- Stream table {_line(str(table))}: {_upkeep(table)}.\nCREATE MATERIALIZED VIEW `{name}` AS\n{found.sql};\n"
    )


def _upkeep(table: StreamTable) -> str:
    """How a stream table was kept up to date, which a pipeline has no notion of."""
    schedule = "without a schedule" if table.schedule is None else f'schedule "{_line(table.schedule)}"'
    return f"refresh mode {table.mode}, {schedule}, owner {_line(table.owner)}"


_README = """# {database}: stream tables as a Spark pipeline

Made by `headwater export spark` for Spark Declarative Pipelines (Apache Spark 4.1 or newer): each stream table is a
materialized view, its query written for Spark so that it gives PostgreSQL's results. What it reads is copied from
PostgreSQL at each run (`transformations/sources.py`).

    export HEADWATER_JDBC_URL=jdbc:postgresql://HOST:5432/DATABASE HEADWATER_JDBC_USER=... HEADWATER_JDBC_PASSWORD=...
    spark-pipelines --packages org.postgresql:postgresql:42.7.7 dry-run
    spark-pipelines --packages org.postgresql:postgresql:42.7.7 run

`storage` in `spark-pipeline.yml` is a directory of the machine where this was made: on a cluster name one that all
machines see.

## Stream tables

| dataset | stream table | how it was kept up to date |
|---|---|---|
{datasets}

A pipeline has no schedules: run it as often as the shortest of them asks for. Each run computes the materialized views
anew. Owners, grants, indexes and keys stay in PostgreSQL.

## Not exported

{left}

## Sources

| dataset | in PostgreSQL |
|---|---|
{sources}

## Values

- Numerics are decimals. Spark shows all values of a column with the same number of digits after the point.
- {texts}
- `char(n)` is without its trailing blanks. Infinite dates and timestamps are {endless} days after, or before,
  1970-01-01.
- What PostgreSQL can hold and Spark cannot (years before 1 and after 9999, NaN in a numeric with a scale) ends the run
  with an error.
"""


def readme(pipeline: Pipeline) -> str:
    """The list of what is in a project, and of what is not, with the reasons."""
    datasets = [
        f"| `{name}` | {_cell(str(table))} | {_cell(_upkeep(table))} |"
        for name, (table, _) in pipeline.datasets.items()
    ]
    left = [f"- {_cell(str(table))}: {_cell(reason)}" for table, reason in pipeline.left]
    if left:
        left.append("\nWhere an exported stream table reads one of these it reads it in PostgreSQL, as a source.")
    sources = [f"| `{one.dataset}` | {_cell(f'{one.source.schema}.{one.source.name}')} |" for one in pipeline.sources]
    return _README.format(
        database=_cell(pipeline.database),
        datasets="\n".join(datasets),
        left="\n".join(left) or "Nothing: all stream tables are here.",
        sources="\n".join(sources),
        texts=_texts(pipeline),
        endless=INFINITE_DAYS,
    )


def _texts(pipeline: Pipeline) -> str:
    """The columns that Spark has as PostgreSQL's text, since it has no such type."""
    found = [
        f"`{dataset}.{name}` ({type_.declared})"
        for dataset, (_, rows) in pipeline.datasets.items()
        for name, type_ in rows.columns
        if type_.spark == "STRING" and not type_.is_text and not type_.enum
    ]
    if not found:
        return "No column of a type that Spark does not have is among them."
    return f"Columns of types that Spark does not have are PostgreSQL's text: {', '.join(map(_cell, found))}."


def _cell(text: str) -> str:
    """Text that somebody has written, in a line of Markdown."""
    return _line(text).replace("|", "\\|").replace("<", "&lt;")


def write(project: Mapping[str, str], directory: Path, *, force: bool) -> None:
    """Write a project into a directory that is empty, or not there; with `force` in place of an earlier export.

    Raises StartupError where it must not, and OSError.
    """
    earlier = [name for name in _written_earlier(directory) if name not in project] if force else []
    if directory.exists() and any(directory.iterdir()) and not force:
        raise StartupError(
            f'directory "{directory}" is not empty', "Name another one by --output, or write into it with --force."
        )
    for name in earlier:
        (directory / name).unlink(missing_ok=True)
    for name, text in {**project, LIST: json.dumps(sorted(project), indent=1) + "\n"}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _written_earlier(directory: Path) -> list[str]:
    """The files that an earlier export has put there, by its own list."""
    try:
        names = json.loads((directory / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    paths = [PurePosixPath(str(name)) for name in names] if isinstance(names, list) else []
    return [str(path) for path in paths if not path.is_absolute() and ".." not in path.parts]
