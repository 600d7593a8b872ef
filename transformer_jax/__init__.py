"""Encoder-decoder Transformer translation in JAX: train, score, translate, import.

    import transformer_jax as tj

    translator = tj.open_run("runs/multi30k").translator()
    translator.translate(["A dog runs."])

The model is a set of pure functions of (config, params, arrays): `init`, `apply`, `loss`,
`encode`, `decode_step`. `fit` trains over any iterator of batches. Each name is imported on its
first use, so importing this package reads no file, starts no device and imports no TensorFlow.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.config import Config, TrainConfig
    from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
    from transformer_jax.data.sources.files import Files
    from transformer_jax.data.sources.grammar import Grammar
    from transformer_jax.data.sources.tfds import Tfds
    from transformer_jax.decoding.beam import Beam
    from transformer_jax.decoding.config import DecodeConfig
    from transformer_jax.decoding.greedy import Greedy
    from transformer_jax.decoding.sample import Sample
    from transformer_jax.errors import UserError
    from transformer_jax.models.api import apply, decode_step, encode, init, loss
    from transformer_jax.models.config import ModelConfig, StackConfig
    from transformer_jax.optimizers.optimizers import Adafactor, Adam, AdamW, Lion, Sgd
    from transformer_jax.optimizers.schedules import (
        ConstantSchedule,
        CosineSchedule,
        LinearSchedule,
        RsqrtSchedule,
    )
    from transformer_jax.parallel.mesh import MeshConfig
    from transformer_jax.recipes import load_recipe
    from transformer_jax.runs.evaluation import Report, evaluate
    from transformer_jax.runs.folder import Run, open_run
    from transformer_jax.training.loop import fit
    from transformer_jax.translation.translator import Translator

# Silent unless the caller configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.2.0"

#: Module -> the public names in it.
_EXPORTS = {
    "config": ("Config", "TrainConfig"),
    "data.config": ("BatchConfig", "DataConfig", "TokenizerConfig"),
    "data.sources.files": ("Files",),
    "data.sources.grammar": ("Grammar",),
    "data.sources.tfds": ("Tfds",),
    "decoding.beam": ("Beam",),
    "decoding.config": ("DecodeConfig",),
    "decoding.greedy": ("Greedy",),
    "decoding.sample": ("Sample",),
    "errors": ("UserError",),
    "models.api": ("apply", "decode_step", "encode", "init", "loss"),
    "models.config": ("ModelConfig", "StackConfig"),
    "optimizers.optimizers": ("Adafactor", "Adam", "AdamW", "Lion", "Sgd"),
    "optimizers.schedules": (
        "ConstantSchedule",
        "CosineSchedule",
        "LinearSchedule",
        "RsqrtSchedule",
    ),
    "parallel.mesh": ("MeshConfig",),
    "recipes": ("load_recipe",),
    "runs.evaluation": ("Report", "evaluate"),
    "runs.folder": ("Run", "open_run"),
    "training.loop": ("fit",),
    "translation.translator": ("Translator",),
}

_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
