"""Where a statement's traceparent is found, and where it is not."""

from __future__ import annotations

import pytest

from server.protocol.statements.trace_comment import NEAR, traceparent

ONE = f"00-{'a1' * 16}-{'b2' * 8}-01"
OTHER = f"00-{'c3' * 16}-{'d4' * 8}-00"
COMMENT = f"/*route='%2Forders',traceparent='{ONE}',tracestate='x%3D1'*/"
LONG = "x" * (2 * NEAR)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"SELECT 1 {COMMENT}", ONE),
        (f"{COMMENT} SELECT 1;", ONE),
        (f"SELECT '{LONG}' {COMMENT}", ONE),
        (f"{COMMENT} SELECT '{LONG}'", ONE),
        (f"/* traceparent = '{OTHER}' */ SELECT 1; SELECT 2 {COMMENT}", ONE),
        (f"SELECT '{LONG}' {COMMENT} '{LONG}'", None),
        (f"SELECT 'traceparent=''{ONE}'''", None),
        (f"SELECT 1 -- traceparent='{ONE}'", None),
        (f"SELECT 1 /*traceparent='{ONE.upper()}'*/", None),
        (f"SELECT 1 /*traceparent='{ONE[:-1]}'*/", None),
        ("SELECT 1 /*traceparent=''*/", None),
        ("", None),
    ],
)
def test_traceparent_is_in_a_comment_at_either_end(text: str, found: str | None) -> None:
    assert traceparent(text.encode()) == found
