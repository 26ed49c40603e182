"""What the engine knows of the kinds of requests."""

from __future__ import annotations

from typing import Any

import pytest

from catalog.session import SqlError
from catalog.values import RequestKind
from engine.refresh.executor_choice import NoSpark
from engine.requests.requests import KINDS, Request, carry_out, carry_out_all


def request(kind: str, arguments: Any) -> Request:
    return Request(1, kind, arguments, "public", "alice", "alice")


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        *((kind, wrong, f"malformed {kind} request") for kind in KINDS for wrong in ({}, [], "name", None)),
        ("create", {"name": "x"}, "malformed create request"),
        (
            "create",
            {"name": "x", "query": "SELECT 1", "schedule": 5},
            'malformed argument "schedule" of a create request',
        ),
        ("alter", {"name": "x", "status": ["x"]}, 'malformed argument "status" of a alter request'),
        ("copy", {"name": "x"}, "malformed copy request"),
    ],
)
def test_malformed_request_is_refused(kind: str, arguments: Any, message: str) -> None:
    with pytest.raises(SqlError, match=message) as error:
        request(kind, arguments).checked()
    assert error.value.sqlstate == "22023"


def test_every_kind_is_handled() -> None:
    assert set(KINDS) == set(RequestKind)


@pytest.mark.parametrize("kind", ["copy", "extension", "statement"])
async def test_what_takes_a_client_is_refused_elsewhere(kind: str) -> None:
    asked = request(kind, {"name": "pgque", "statement": "COPY t FROM 's3://lake/t.csv'"})
    session: Any = None  # nothing is asked of it
    with pytest.raises(SqlError, match="on connections through the server only") as error:
        await carry_out(session, asked, NoSpark("not here"), in_two_steps=False)
    assert error.value.sqlstate == "0A000"


async def test_request_of_a_statement_by_itself_is_checked_before_anything_is_read_from_it() -> None:
    class Session:
        autocommit = True

        async def fetch(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
            return [(1, "create", "[1]", "public", "alice", "alice")]

    session: Any = Session()
    with pytest.raises(SqlError, match="malformed create request"):
        await carry_out_all(session, NoSpark("not here"))
