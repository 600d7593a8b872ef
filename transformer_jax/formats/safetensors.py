"""Safetensors, a flat file of named tensors (github.com/huggingface/safetensors), and back.

The folder holds `model.safetensors`, with the parameters under their paths (`models/paths.py`) and
in their own dtype, the run's `config.json`, and its `tokenizer/`. Nothing is lost: `read`
gives the same model to the bit.
"""

import os
from dataclasses import dataclass

import numpy as np
from etils import epath

from transformer_jax.config import to_json
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.formats.exporter import Exporter, TrainedModel
from transformer_jax.models.api import abstract_params
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.paths import as_path
from transformer_jax.runs.folder import INT8, open_run
from transformer_jax.weights.weights import check_finite

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Safetensors(Exporter):
    """A folder that `transformer-jax import` reads."""

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        from safetensors.numpy import save_file

        arrays = {name: np.asarray(leaf, order="C") for name, leaf in by_path(model.params).items()}
        save_file(arrays, str(folder / WEIGHTS))
        (folder / "config.json").write_text(to_json(model.config))
        model.tokenizers.save(folder / "tokenizer")
        if model.int8 is not None:
            (folder / INT8).write_bytes(model.int8)


def is_exported(folder: str | os.PathLike[str]) -> bool:
    """Whether `Safetensors` wrote the folder, and not another program."""
    place = as_path(folder)
    return (place / "tokenizer").is_dir() and (place / "config.json").is_file()


def read(folder: str | os.PathLike[str]) -> TrainedModel:
    """The model in an exported folder.

    Raises:
        UserError: a file is missing or damaged, or does not hold what config.json describes.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    run = open_run(folder)
    path = as_path(folder) / WEIGHTS
    with as_user_error(f"{path}: cannot be read", SafetensorError, OSError, ValueError):
        found = load_file(str(path))
    expected = by_path(abstract_params(run.config.model))
    for name in sorted(expected.keys() ^ found.keys()):
        what = "is missing" if name in expected else "is not a parameter of the model"
        raise UserError(f"{path}: the tensor {name} {what}")
    for name, leaf in expected.items():
        check_finite(str(path), name, found[name])
        have, want = ((x.dtype, x.shape) for x in (found[name], leaf))
        if have != want:
            raise UserError(f"{path}: the tensor {name} is {have}, but config.json says {want}")
    kept = as_path(folder) / INT8
    int8 = kept.read_bytes() if kept.is_file() else None
    return TrainedModel(run.config, from_paths(found), run.tokenizers(), int8)
