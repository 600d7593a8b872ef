"""Encoder-decoder Transformer translation in JAX: train, score, translate, import.

    import transformer_jax as tj

    translator = tj.load("runs/multi30k")
    translator.translate(["A dog runs."])

The model as pure functions: `init`, `apply`, `loss`, `encode`, `decode_step`, all of
(config, params, arrays). Training over any iterator of batches: `fit`. Names are
resolved on first use, so importing this package reads no file, starts no device and
imports no TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Config": "transformer_jax.config",
    "DecodeConfig": "transformer_jax.decoding.config",
    "MeshConfig": "transformer_jax.parallel.mesh",
    "ModelConfig": "transformer_jax.models.config",
    "OptimizerConfig": "transformer_jax.config",
    "StackConfig": "transformer_jax.models.config",
    "TrainConfig": "transformer_jax.config",
    "Translator": "transformer_jax.translation.translator",
    "UserError": "transformer_jax.errors",
    "apply": "transformer_jax.models.api",
    "decode_step": "transformer_jax.models.api",
    "encode": "transformer_jax.models.api",
    "fit": "transformer_jax.training.loop",
    "init": "transformer_jax.models.api",
    "load": "transformer_jax.translation.translator",
    "loss": "transformer_jax.models.api",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
