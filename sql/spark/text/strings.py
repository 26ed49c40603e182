"""encode, decode, hashes, chr, format, and casts to a length in Spark's dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.signatures import applied, as_text
from sql.spark.text.collations import common
from sql.spark.types import TEXT, UNKNOWN, Typed, column_type
from sql.spark.values import converted, string

_SHOWN = replace(TEXT, ordered=False)


def _form(node: Any) -> str:
    node = node.unnest()
    literal = node.this.unnest() if isinstance(node, exp.Cast) else node
    name = literal.name.lower() if isinstance(literal, exp.Literal) else ""
    if name not in ("hex", "base64", "escape"):
        raise NotExpressible("encode or decode by anything but hex, base64 or escape")
    return str(name)


def _encode(expressions: Expressions, node: exp.Encode) -> Typed:
    value, form = expressions.render(node.this), _form(node.args["charset"])
    if value.type.name != "bytea":
        raise NotExpressible(f"function encode of {value.type.name}")
    return Typed(call("bytes_encoded", value.sql, string(form)), _SHOWN)


def _decode(expressions: Expressions, node: exp.Decode) -> Typed:
    value, form = expressions.render(node.this), _form(node.args["charset"])
    if value.type.name != "text" or form == "escape":
        raise NotExpressible(f"function decode of {value.type.name}, or by escape")
    return Typed(call("bytes_decoded", value.sql, string(form)), column_type("bytea"))


def _sha(expressions: Expressions, node: exp.SHA2Digest) -> Typed:
    found = applied(f"sha{node.args['length'].name}", [expressions.render(node.this)])
    if found is None:
        raise NotExpressible("a hash of anything but bytea")
    return found


def _chr(expressions: Expressions, node: exp.Chr) -> Typed:
    found = applied("chr", [expressions.render(each) for each in node.expressions])
    if found is None:
        raise NotExpressible("function chr")
    return found


def _format(expressions: Expressions, node: exp.Format) -> Typed:
    layout = node.this.unnest()
    literal = layout.this.unnest() if isinstance(layout, exp.Cast) else layout
    values = [expressions.render(each) for each in node.expressions]
    if not isinstance(literal, exp.Literal) or re.sub("%[sL%]", "", literal.name).count("%"):
        raise NotExpressible("format with anything but %s, %L and %% in a literal")
    if len(re.findall("%[sL]", literal.name.replace("%%", ""))) != len(values):
        raise NotExpressible("format with more or fewer values than it says")
    texts = ("CAST(NULL AS STRING)" if value.type == UNKNOWN else as_text(value) for value in values)
    type_ = replace(_SHOWN, collation=common(v.type.collation for v in values if v.type.name == "text"))
    return Typed(call("string_formatted", string(literal.name), *texts), type_)


def cut(value: Typed, length: int, *, padded: bool) -> Typed:
    """`text::varchar(length)`, or `text::character(length)`, whose padding is put back later. Raises NotExpressible."""
    if not value.type.is_text:
        raise NotExpressible(f"cast of {value.type.name} to a length")
    if padded:
        sql = call("string_cut_character", value.sql, f"CAST({length} AS INT)")
        return Typed(sql, replace(value.type, name="character", precision=length))
    text = converted(value, TEXT)
    return replace(text, sql=f"left({text.sql}, {length})")


STRINGS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Encode: (_encode, ("this", "charset")),
    exp.Decode: (_decode, ("this", "charset")),
    exp.SHA2Digest: (_sha, ("this", "length")),
    exp.Chr: (_chr, ("expressions",)),
    exp.Format: (_format, ("this", "expressions")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
