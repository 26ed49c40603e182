"""The figures of `docs/contributing.md` hold: a change may better them, and then the limits here go down with them."""

from __future__ import annotations

import pytest

from tests.structure.figures import Figures, measure

FOLDER = 18
CIRCLES: list[int] = []
CIRCLES_OF_TYPES: list[int] = []
OVER_20 = 0
OVER_15 = 0
LINES = 60


@pytest.fixture(scope="module")
def figures() -> Figures:
    return measure()


def test_folders_are_small(figures: Figures) -> None:
    assert figures.largest_folder[1] <= FOLDER, figures.largest_folder


def test_no_new_import_circles(figures: Figures) -> None:
    assert [len(circle) for circle in figures.circles] == CIRCLES, figures.circles
    assert [len(circle) for circle in figures.circles_of_types] == CIRCLES_OF_TYPES, figures.circles_of_types


def test_functions_are_simple(figures: Figures) -> None:
    assert len(figures.over(20)) <= OVER_20, figures.over(20)
    assert len(figures.over(15)) <= OVER_15, figures.over(15)


def test_functions_are_short(figures: Figures) -> None:
    assert figures.longest_function[1] <= LINES, figures.longest_function
