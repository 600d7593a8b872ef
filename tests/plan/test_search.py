import pytest

from transformer_jax.plan.search import guess_from, largest_that_fits


@pytest.mark.parametrize("guess", [1, 90, 100, 110, 3000])
@pytest.mark.parametrize("limit", [8, 9, 100, 1000])
def test_the_answer_fits_and_is_near_the_limit(limit, guess):
    asked = []

    def fits(rows):
        asked.append(rows)
        return rows <= limit

    found = largest_that_fits(fits, guess, 8, tolerance=0.1)
    assert found % 8 == 0 and found <= limit
    assert found + 8 > limit or found > 0.88 * limit
    assert all(rows % 8 == 0 and rows > 0 for rows in asked)
    assert len(asked) == len(set(asked)) <= 14


def test_a_good_guess_asks_little():
    asked = []
    largest_that_fits(lambda rows: asked.append(rows) or rows <= 1000, 980, 8)
    assert len(asked) <= 4


def test_nothing_fits():
    assert largest_that_fits(lambda rows: False, 100, 8) == 0


def test_the_guess_fills_what_the_state_leaves():
    assert guess_from(rows=10, bytes_needed=30, fixed_bytes=10, memory=50) == 20
