"""Marian's own files (OPUS-MT-train, Tatoeba challenge): a `.npz`, vocabularies in YAML, `.spm`.

The options are YAML in the array `special:model.yml`. Tensors, vocabularies and options are
brought into the layout of Transformers' `MarianMTModel`, so that one family reads both: layers
count from 0, matrices are transposed, and a row for padding is added. What Marian computes in
another way than Transformers, positions and the epsilon of norms, is computed as there.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from transformer_jax.errors import UserError, first_line
from transformer_jax.interop.families.base import ModelFolder
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.weights import Weights, in_memory

#: Prefixes of the options for a stack.
_STACKS = {"encoder": "enc", "decoder": "dec"}
_PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
#: Marian's names of a layer's maps and norms, with places for their kinds, and Transformers'.
_MAPS = {
    **{f"self_{{}}{short}": f"self_attn.{name}" for short, name in _PROJECTIONS.items()},
    **{f"context_{{}}{short}": f"encoder_attn.{name}" for short, name in _PROJECTIONS.items()},
    **{"ffn_{}1": "fc1", "ffn_{}2": "fc2"},
}
_NORMS = {
    "self_Wo_ln_{}": "self_attn_layer_norm",
    "context_Wo_ln_{}": "encoder_attn_layer_norm",
    "ffn_ffn_ln_{}": "final_layer_norm",
}
#: A tensor of a layer: Marian's name and Transformers'.
_LAYER = {
    **{ours.format("W"): f"{theirs}.weight" for ours, theirs in _MAPS.items()},
    **{ours.format("b"): f"{theirs}.bias" for ours, theirs in _MAPS.items()},
    **{ours.format("scale"): f"{theirs}.weight" for ours, theirs in _NORMS.items()},
    **{ours.format("bias"): f"{theirs}.bias" for ours, theirs in _NORMS.items()},
}
#: Tensors with a row or a column for each piece.
_VOCABULARY = ("Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_b")

#: Options that must have these values where they are given.
_NEEDED: dict[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-train-position-embeddings": False,
    "transformer-train-positions": False,
    "transformer-no-projection": False,
    "transformer-no-bias": False,
    "transformer-no-affine": False,
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 2,
    "transformer-tied-layers": [],
    "input-types": [],
    "lemma-dim-emb": 0,
    "output-omit-bias": False,
    "ulr": False,
}


def find_npz(folder: Path) -> Path | None:
    """The `.npz` of a folder without `config.json`; None if there is none.

    Raises:
        UserError: there are several.
    """
    found = [] if (folder / "config.json").exists() else sorted(folder.glob("*.npz"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder}: holds several models ({names}); keep one of them")
    return found[0] if found else None


def open_npz(path: Path) -> ModelFolder:
    """The folder of a `.npz` as if it were one of Transformers' Marian models.

    Raises:
        UserError: a file is missing or damaged, or the options say what cannot be expressed.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a NumPy archive ({first_line(error)})") from error
    options = _options(path, arrays)
    vocabularies = _vocabularies(path.parent)
    sizes = [len(ids) for ids in vocabularies]  # without padding
    tied = any(options.get(f"tied-embeddings-{which}", bool, False) for which in ("all", "src"))
    if not tied and not options.get("tied-embeddings", bool, False):
        raise UserError(f"{options.origin}: tied-embeddings=False cannot be expressed; only True")
    depth = {side: options.number(f"{short}-depth", 6) for side, short in _STACKS.items()}
    config: dict[str, Any] = {
        "model_type": "marian",
        "vocab_size": sizes[0] + 1,
        "decoder_vocab_size": sizes[1] + 1,
        "d_model": options.number("dim-emb", 512),
        "activation_function": options.get("transformer-ffn-activation", str, "swish"),
        "dropout": options.get("transformer-dropout", float, 0.0),
        "attention_dropout": options.get("transformer-dropout-attention", float, 0.0),
        "activation_dropout": options.get("transformer-dropout-ffn", float, 0.0),
        "max_position_embeddings": 512,
        "scale_embedding": True,
        "computes_as": "marian",
        "pad_token_id": sizes[1],
        "decoder_start_token_id": sizes[1],
        "eos_token_id": vocabularies[1].get("</s>", -1),
    }
    for side in _STACKS:
        config[f"{side}_layers"] = depth[side]
        config[f"{side}_attention_heads"] = options.number("transformer-heads", 8)
        config[f"{side}_ffn_dim"] = options.number("transformer-dim-ffn", 2048)
    files: dict[str, dict[str, Any]] = {
        "vocab.json": vocabularies[0] | {"<pad>": sizes[0]},
        "target_vocab.json": vocabularies[1] | {"<pad>": sizes[1]},
        "tokenizer_config.json": {"separate_vocabs": not tied},
    }
    file = path.parent / "decoder.yml"
    search = Settings(str(file), _yaml(str(file), file.read_bytes()) if file.is_file() else {})
    generation = {
        "num_beams": search.number("beam-size", 12),
        "length_penalty": search.get("normalize", float, 0.0),
        "bad_words_ids": [[sizes[1]]],
    }
    return ModelFolder(
        path.parent,
        Settings(options.origin, config),
        Settings(str(file), generation),
        Weights(str(path), in_memory(_tensors(path, arrays, depth, tied))),
        files,
    )


def _options(path: Path, arrays: dict[str, np.ndarray]) -> Settings:
    """The options that the model was trained with, checked."""
    name = "special:model.yml"
    if name not in arrays:
        raise UserError(f"{path}: has no {name}, so it is not a model of Marian")
    text = arrays.pop(name).tobytes().rstrip(b"\0")
    origin = f"{path}: {name}"
    options = _yaml(origin, text)
    if options.get("transformer-decoder-ffn-depth") == 0:  # as in the encoder
        del options["transformer-decoder-ffn-depth"]
    settings = Settings(origin, options)
    settings.need(_NEEDED)
    settings.get("type", str)
    return settings


def _yaml(origin: str, text: bytes, loader: str = "SafeLoader") -> dict[str, Any]:
    try:
        values = yaml.load(text, getattr(yaml, f"C{loader}", getattr(yaml, loader)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{origin}: not valid YAML ({first_line(error)})") from error
    if not isinstance(values, dict):
        raise UserError(f"{origin}: not a mapping in YAML")
    return values


def _vocabularies(folder: Path) -> list[dict[str, int]]:
    """The ids of both languages' pieces, from the vocabularies that the folder holds.

    Raises:
        UserError: there is not one for both or one for each, or the ids have gaps.
    """
    found = sorted({*folder.glob("*.vocab.yml"), *folder.glob("*.vocab")})
    both = [path for path in found if len(found) == 1] * 2 or [
        path
        for side in (("src", "source"), ("trg", "target"))
        for path in found
        if any(part in side for part in path.name.split("."))
    ]
    if len(both) != 2:
        raise UserError(
            f"{folder}: expected one vocabulary, such as opus.spm32k-spm32k.vocab.yml, or "
            f"opus.spm32k-spm32k.src.vocab.yml and .trg.vocab.yml; found {len(found)}"
        )
    vocabularies = []
    for path in both:
        # All is text for this loader: for others, pieces such as `on` and `1.50` are values.
        ids = _yaml(str(path), path.read_bytes(), "BaseLoader")
        if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
            raise UserError(f"{path}: does not number its pieces from 0 without a gap")
        vocabularies.append({piece: int(i) for piece, i in ids.items()})
    return vocabularies


def _tensors(
    path: Path, arrays: Mapping[str, np.ndarray], depth: Mapping[str, int], tied: bool
) -> dict[str, np.ndarray]:
    """The tensors under their names in Transformers; those that are not known keep their names."""
    names = {
        f"{side}_l{i + 1}_{ours}": f"model.{side}.layers.{i}.{theirs}"
        for side, count in depth.items()
        for i in range(count)
        for ours, theirs in _LAYER.items()
    }
    tensors = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            array = array[0] if len(array) == 1 else array.T
        if name not in _VOCABULARY:
            tensors[names.get(name, name)] = array

    def padded(name: str, axis: int) -> np.ndarray:
        """With zeros for padding at the end."""
        if name not in arrays:
            raise UserError(f"{path}: the tensor {name} is missing")
        if arrays[name].ndim != 2:
            raise UserError(f"{path}: the tensor {name} is not a matrix")
        return np.pad(arrays[name], [(0, int(axis == i)) for i in range(2)])

    tensors["final_logits_bias"] = padded("decoder_ff_logit_out_b", 1)
    if tied:
        return tensors | {"model.shared.weight": padded("Wemb", 0)}
    sides = {f"model.{side}.embed_tokens.weight": padded(f"{side}_Wemb", 0) for side in _STACKS}
    return tensors | sides
