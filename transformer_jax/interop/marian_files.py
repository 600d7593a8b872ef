"""Marian's own files: a `.npz` or `.bin` with tensors and options, and what lies beside it.

A folder of OPUS-MT has vocabularies in YAML, `source.spm` and `target.spm`; a folder for Bergamot's
engine or Firefox has SentencePiece models alone. The options are YAML in the item
`special:model.yml`.
"""

import zipfile
from pathlib import Path

import numpy as np

from transformer_jax.errors import UserError, first_line
from transformer_jax.interop.marian_bin import read_bin
from transformer_jax.published.layout import ModelFolder
from transformer_jax.published.settings import Settings, parse_yaml
from transformer_jax.published.weights import Stored, Weights, in_memory

#: The name of the options among the tensors.
OPTIONS = "special:model.yml"
#: How the names of tensors end that say how activations are rounded to int8.
ALPHA = "_QuantMultA"


def find_marian(folder: Path) -> Path | None:
    """The model of a folder without `config.json`; None if there is none.

    Raises:
        UserError: there are several.
    """
    found = []
    if not (folder / "config.json").exists():
        binary = [p for p in folder.glob("*.bin") if not p.name.startswith(("lex.", "pytorch_"))]
        found = sorted([*folder.glob("*.npz"), *binary])
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder}: holds several models ({names}); keep one of them")
    return found[0] if found else None


def open_marian(path: Path) -> ModelFolder:
    """The folder of a model that Marian wrote.

    Raises:
        UserError: a file is missing or damaged.
    """
    tensors = read_bin(path) if path.suffix == ".bin" else _read_npz(path)
    if OPTIONS not in tensors:
        raise UserError(f"{path}: has no {OPTIONS}, so it is not a model of Marian")
    origin = f"{path}: {OPTIONS}"
    options = parse_yaml(origin, tensors.pop(OPTIONS).read().tobytes().rstrip(b"\0"))
    # Those of a file of int8; what stands for its matrices is read as floats.
    tensors = {name: x for name, x in tensors.items() if not name.endswith(ALPHA)}
    return ModelFolder(
        path.parent,
        Settings(origin, options | {"model_type": "marian_own"}),
        _search(path.parent),
        Weights(str(path), tensors),
    )


def _read_npz(path: Path) -> dict[str, Stored]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return in_memory(dict(file))
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a NumPy archive ({first_line(error)})") from error


def _search(folder: Path) -> Settings:
    """The search of `decoder.yml`, or of the file for Bergamot's engine, by Transformers' names."""
    files = [folder / "decoder.yml", *sorted(folder.glob("config*.yml"))]
    file = next((path for path in files if path.is_file()), files[0])
    values = parse_yaml(str(file), file.read_bytes()) if file.is_file() else {}
    settings = Settings(str(file), values)
    search = {
        "num_beams": settings.number("beam-size", 12),
        "length_penalty": settings.get("normalize", float, 0.0),
    }
    return Settings(str(file), search)
