"""The only import of TensorFlow, which uses the CPU alone."""

from __future__ import annotations

import importlib.util
import os
from typing import Any


def has_tensorflow() -> bool:
    """Whether TensorFlow is installed, without importing it."""
    return importlib.util.find_spec("tensorflow") is not None


def import_tensorflow() -> Any:
    """Imports TensorFlow and hides every accelerator from it, so that JAX keeps them.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # unused here, and it logs at import
    import tensorflow

    for kind in ("GPU", "TPU"):
        tensorflow.config.set_visible_devices([], kind)
    return tensorflow
