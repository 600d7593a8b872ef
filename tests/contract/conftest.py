"""An array meets one of more axes only where the code says so, in every part of a model."""

import jax
import pytest


@pytest.fixture(autouse=True)
def ranks_are_not_promoted(request):
    """But in those that the suites must reject for another reason."""
    is_broken = request.path.stem.endswith("_rejects")
    with jax.numpy_rank_promotion("allow" if is_broken else "raise"):
        yield
