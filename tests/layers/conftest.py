import importlib
import os

import pytest


@pytest.fixture(scope="session")
def torch():
    """PyTorch, an independent implementation. Optional, but required in CI."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            raise
        pytest.skip("PyTorch is not installed: pip install torch")
