"""The search for the largest batch that fits."""

import pytest

from transformer_jax.plan.planner import largest_that_fits, rows_that_fill
from transformer_jax.plan.programs import Program


@pytest.mark.parametrize("guess", [1, 90, 100, 110, 3000])
@pytest.mark.parametrize("limit", [8, 9, 100, 1000])
def test_the_answer_fits_and_is_near_the_limit(limit, guess):
    asked = []

    def fits(rows):
        asked.append(rows)
        return rows <= limit

    rows = largest_that_fits(fits, guess, 8)
    assert rows % 8 == 0 and rows <= limit
    assert rows + 8 > limit or rows > 0.88 * limit
    assert all(rows % 8 == 0 and rows > 0 for rows in asked)
    assert len(asked) == len(set(asked)) <= 14


def test_a_good_guess_needs_few_compilations():
    asked = []
    largest_that_fits(lambda rows: asked.append(rows) or rows <= 1000, 980, 8)
    assert len(asked) <= 4


def test_nothing_fits():
    assert largest_that_fits(lambda rows: False, 100, 8) == 0


def test_the_guess_fills_the_memory_beside_the_fixed_bytes():
    program = Program(rows=10, bytes=30, limit=None, compiled=None)
    assert rows_that_fill(memory=50, fixed=10, program=program) == 20
