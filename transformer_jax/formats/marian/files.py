"""Marian's own files: a `.npz` or `.bin` with tensors and options, and what lies beside it.

A folder of OPUS-MT has vocabularies in YAML, `source.spm` and `target.spm`; a folder for Bergamot's
engine or Firefox has SentencePiece models alone. The options are YAML in the item
`special:model.yml`.
"""

import zipfile
from pathlib import Path

import numpy as np

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.weights.layout import ModelFolder
from transformer_jax.weights.marian_items import ALPHA, Item, factors, read_items, stored
from transformer_jax.weights.settings import Settings, parse_yaml
from transformer_jax.weights.weights import Weights

#: The name of the options among the tensors.
OPTIONS = "special:model.yml"
#: What the names of files begin with that are no models of Marian: of a shortlist, of Bergamot's
#: estimation of quality, of PyTorch.
_OTHERS = ("lex.", "qualityModel.", "pytorch_")


def find_marian(folder: Path) -> Path | None:
    """The model of a folder without `config.json`; None if there is none.

    Raises:
        UserError: there are several.
    """
    found = []
    if not (folder / "config.json").exists():
        binary = [p for p in folder.glob("*.bin") if not p.name.startswith(_OTHERS)]
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
    items = read_items(path) if path.suffix == ".bin" else _read_npz(path)
    if OPTIONS not in items:
        raise UserError(f"{path}: has no {OPTIONS}, so it is not a model of Marian")
    origin = f"{path}: {OPTIONS}"
    options = parse_yaml(origin, stored(items[OPTIONS]).read().tobytes().rstrip(b"\0"))
    names = [name for name in items if name != OPTIONS and not name.endswith(ALPHA)]
    return ModelFolder(
        path.parent,
        Settings(origin, options | {"model_type": "marian_own"}),
        _search(path),
        Weights(str(path), {name: stored(items[name]) for name in names}),
        factors(items),
    )


def _read_npz(path: Path) -> dict[str, Item]:
    kinds = OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile
    damaged = as_user_error(f"{path}: not a NumPy archive", *kinds)
    with damaged, np.load(path, allow_pickle=False) as file:
        return dict(file)


def _search(model: Path) -> Settings:
    """The search that a file recommends, by Transformers' names.

    It is Marian's `decoder.yml`, also with the model's name before it, or that of the engine.
    """
    folder = model.parent
    files = [Path(f"{model}.decoder.yml"), folder / "decoder.yml"]
    files += sorted(folder.glob("config*.yml"))
    file = next((path for path in files if path.is_file()), files[0])
    values = parse_yaml(str(file), file.read_bytes()) if file.is_file() else {}
    settings = Settings(str(file), values)
    settings.need({"word-penalty": 0})
    search = {
        "max_length_factor": settings.get("max-length-factor", float, None),
        "num_beams": settings.number("beam-size", 12),
        "length_penalty": settings.get("normalize", float, 0.0),
    }
    return Settings(str(file), search)
