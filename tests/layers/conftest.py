import pytest

from tests import oracles


@pytest.fixture(scope="session")
def torch():
    """PyTorch, an independent implementation."""
    return oracles.need("torch")
