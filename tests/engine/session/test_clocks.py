"""A clock that was set is noticed, by how much, and an answer that took long is no jump."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from engine.session.clocks import ClockWatch


@pytest.mark.parametrize("jump", [-3600.0, -2.0, 0.0, 0.5, 2.0, 3600.0])
def test_jump_is_logged_once_with_its_size(jump: float) -> None:
    watch = ClockWatch("shop")
    with capture_logs() as logs:
        found = [watch.note(n, 1000.0 + n + (jump if n >= 3 else 0.0), n + 0.01) for n in (1.0, 2.0, 3.0, 4.0)]
    expected = [0.0, 0.0, jump if abs(jump) > 1 else 0.0, 0.0]
    assert found == pytest.approx(expected, abs=0.03)
    assert [line["database"] for line in logs] == ["shop"] * (abs(jump) > 1)


def test_clocks_that_drift_apart_slowly_make_no_jump() -> None:
    watch = ClockWatch("shop")
    assert {watch.note(float(n), 1000.0 + n * 1.01, n + 0.001) for n in range(1000)} == {0.0}


def test_jump_is_seen_behind_a_slow_answer() -> None:
    watch = ClockWatch("shop")
    assert watch.note(0.0, 1000.0, 0.1) == watch.note(1.0, 1001.0, 31.0) == 0.0
    assert watch.note(32.0, 1022.0, 32.1) == pytest.approx(-10, abs=0.2)
