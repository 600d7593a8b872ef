"""An array meets one of more axes only where the code says so, in every part of a model."""

import jax
import pytest


@pytest.fixture(autouse=True)
def ranks_are_not_promoted():
    with jax.numpy_rank_promotion("raise"):
        yield
