"""`COPY table FROM 'scheme://…'`: which table, which columns, which files, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from sql.base.text import quote, text
from sql.statements.source_and_history import StatementError

SCHEMES = frozenset(("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hdfs"))
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
"""The format of a file, by the end of its name."""

_TEXT_OPTIONS = frozenset(("delimiter", "null", "header", "quote", "escape", "default"))
_OPTIONS = {
    "parquet": frozenset[str](),
    "json": frozenset[str](),
    "csv": _TEXT_OPTIONS,
    "text": frozenset(("delimiter", "null", "header", "default")),
}


class LoadError(StatementError):
    """A COPY that is not understood. ``sqlstate`` is 42601, 0A000 or 22023."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a COPY from files says.

    ``table`` is quoted and qualified as it was written, ``columns`` are names, () if none were given. ``format`` is
    parquet, json, csv or text. ``options`` are those of PostgreSQL's own COPY, rendered: they go with csv and text.
    """

    table: str
    columns: tuple[str, ...]
    uri: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def copy_options(self) -> str:
        """The options of the COPY that loads one file's lines."""
        given = [f"{name} {value}".rstrip() for name, value in self.options.items()]
        return ", ".join([f"FORMAT {'csv' if self.format == 'csv' else 'text'}", *given])


def parse_load(statement: str) -> Load:
    """Read a COPY whose source is a URI. Raises LoadError.

    >>> load = parse_load("COPY sales.orders (id, \\"On\\") FROM 's3://lake/orders.csv' WITH (HEADER, DELIMITER ';')")
    >>> load.table, load.columns, load.uri, load.format, load.copy_options
    ('"sales"."orders"', ('id', 'On'), 's3://lake/orders.csv', 'csv', "FORMAT csv, HEADER, DELIMITER ';'")
    >>> parse_load(r"COPY orders FROM 's3://lake/0?.csv' (DELIMITER E'\\t', NULL '\\N')").copy_options
    "FORMAT csv, DELIMITER '\\t', NULL  E'\\\\\\\\N'"
    """
    try:
        copy = sqlglot.parse_one(statement, read="postgres")
    except SqlglotError as error:
        raise _not_understood() from error
    if not isinstance(copy, exp.Copy) or not copy.args.get("kind") or len(copy.args.get("files") or ()) != 1:
        raise _not_understood()
    uri = copy.args["files"][0]
    if not (isinstance(uri, exp.Literal) and uri.is_string):
        raise _not_understood()
    table, columns = _target(copy.this)
    format_, options = _options(copy.args.get("params") or (), uri.this)
    return Load(table, columns, uri.this, format_, options)


def _target(target: exp.Expr) -> tuple[str, tuple[str, ...]]:
    """The table, quoted, and the columns that are named. Raises LoadError."""
    columns: tuple[str, ...] = ()
    if isinstance(target, exp.Schema):
        if not all(isinstance(column, exp.Identifier) for column in target.expressions):
            raise _not_understood()
        columns = tuple(_name(column) for column in target.expressions)
        target = target.this
    if not isinstance(target, exp.Table) or not isinstance(target.this, exp.Identifier) or target.catalog:
        raise _not_understood()
    parts = [part for part in (target.args.get("db"), target.this) if part]
    return ".".join(quote(_name(part)) for part in parts), columns


def _options(parameters: Sequence[exp.Expr], uri: str) -> tuple[str, dict[str, str]]:
    """The format, given or that of the file's name, and the other options by their names. Raises LoadError."""
    options = dict(_option(parameter) for parameter in parameters)
    if len(options) < len(parameters):
        raise LoadError("42601", "conflicting or redundant options")
    format_ = options.pop("format", None) or _format_of(uri)
    if format_ not in _OPTIONS:
        raise LoadError(
            "22023", f'COPY format "{format_}" is not supported for files', "Use parquet, csv, text or json."
        )
    for name in options:
        if name not in _OPTIONS[format_]:
            raise LoadError("0A000", f'COPY option "{name}" is not supported for {format_} files')
    return format_, {name.upper(): value for name, value in options.items()}


def _not_understood() -> LoadError:
    return LoadError(
        "0A000",
        "this form of COPY from files is not supported",
        "Write COPY table [(column, ...)] FROM 'scheme://path' [WITH (option value, ...)].",
    )


def _name(identifier: exp.Identifier) -> str:
    return str(identifier.this) if identifier.args.get("quoted") else str(identifier.this).lower()


def _option(parameter: exp.Expr) -> tuple[str, str]:
    """An option's name and its value as PostgreSQL's COPY takes it; a format's without quotes."""
    if not isinstance(parameter, exp.CopyParameter):
        raise _not_understood()
    name, value = parameter.name.lower(), parameter.args.get("expression")
    if name == "format":
        return name, value.name.lower() if value is not None else ""
    if value is None or name not in _TEXT_OPTIONS:  # one that no format has is refused by its name
        return name, ""
    if isinstance(value, exp.ByteString | exp.RawString) or (isinstance(value, exp.Literal) and value.is_string):
        return name, text(value.this)
    if name == "header" and value.name.lower() in ("true", "false", "on", "off", "0", "1", "match"):
        return name, value.name.lower()
    raise _not_understood()


def _format_of(uri: str) -> str:
    """
    >>> _format_of("s3://lake/2026-0?.csv"), _format_of("file:///data/#1.json.gz")
    ('csv', 'json')
    """
    path = unquote(uri).rstrip("/").lower()  # not by urlsplit: a ? is a wildcard
    for ending, format_ in FORMATS.items():
        if path.endswith((ending, ending + ".gz")):
            return format_
    raise LoadError("22023", f'the format of "{uri}" is not known', "Add WITH (FORMAT parquet), csv, text or json.")
