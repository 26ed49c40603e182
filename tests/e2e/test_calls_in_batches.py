"""Each kind of call in each kind of batch: all is answered in time, as PostgreSQL answers, and the session goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from tests.e2e.batches import AT_ONCE, BATCHES, CALLS, SETUP, Case, Crew
from tests.e2e.conftest import Database


@pytest.fixture(scope="module")
def crews(shared_db: Database) -> Iterator[list[Crew]]:
    shared_db.run(SETUP.format())
    crews = [Crew(shared_db, number) for number in range(AT_ONCE)]
    yield crews
    for crew in crews:
        crew.close()


def _check_all(crews: list[Crew], cases: Sequence[Case]) -> None:
    def work(crew: Crew) -> dict[Case, str]:
        return {case: wrong for case in cases[crew.number :: AT_ONCE] if (wrong := crew.check(case)) is not None}

    with ThreadPoolExecutor(AT_ONCE) as threads:
        wrong = {case: text for found in threads.map(work, crews) for case, text in found.items()}
    assert not wrong, "\n".join(f"{case.call} / {case.batch}: {text}" for case, text in wrong.items())


EACH = [Case(call, batch) for call, batch in product(CALLS, BATCHES)]


def test_some_calls_in_some_batches(crews: list[Crew]) -> None:
    """Each call in a few kinds of batch, and each kind of batch with a few calls."""
    _check_all(crews, [case for number, case in enumerate(EACH) if number % 13 == number // len(BATCHES) % 13])


@pytest.mark.long
@pytest.mark.parametrize("piecewise", [False, True])
def test_each_call_in_each_batch(crews: list[Crew], piecewise: bool) -> None:
    _check_all(crews, [Case(case.call, case.batch, piecewise) for case in EACH])
