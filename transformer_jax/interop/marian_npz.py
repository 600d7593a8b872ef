"""Marian's own files (OPUS-MT-train, Tatoeba challenge): a `.npz`, vocabularies in YAML, `.spm`.

The options are YAML in the array `special:model.yml`. Tensors, vocabularies and options are
brought into the layout of Transformers' `MarianMTModel`, so that one family reads both: layers
count from 0, matrices are transposed, and a row for padding is added. What Marian computes in
another way than Transformers, positions and the epsilon of norms, is computed as there.
"""

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from transformer_jax.errors import UserError, first_line
from transformer_jax.interop.families.base import ModelFolder
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.weights import Stored, Weights

_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}

#: What is in a layer: Marian's prefix and Transformers' of each norm and attention.
_SUBLAYERS = {"self": "self_attn", "context": "encoder_attn"}

#: Options that must have one of these values where they are given.
_NEEDED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-emb": ("d",),
    "transformer-postprocess-top": ("",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-tied-layers": ([],),
    "input-types": ([],),
    "lemma-dim-emb": (0,),
    "output-omit-bias": (False,),
    "ulr": (False,),
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
    arrays = _arrays(path)
    options = _options(path, arrays)
    vocabularies = _vocabularies(path.parent)
    sizes = [len(ids) for ids in vocabularies]  # without padding
    tied = options.get("tied-embeddings-all", bool, False) or options.get(
        "tied-embeddings-src", bool, False
    )
    if not tied and not options.get("tied-embeddings", bool, False):
        raise UserError(f"{options.origin}: tied-embeddings=False cannot be expressed; only True")
    depth = {side: options.number(f"{short}-depth", 6) for side, short in _DEPTHS.items()}
    tensors = dict(_layer_tensors(arrays, depth))
    tensors |= _vocabulary_tensors(path, arrays, tied)
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
    for side in _DEPTHS:
        config[f"{side}_layers"] = depth[side]
        config[f"{side}_attention_heads"] = options.number("transformer-heads", 8)
        config[f"{side}_ffn_dim"] = options.number("transformer-dim-ffn", 2048)
    files: dict[str, dict[str, Any]] = {
        "vocab.json": vocabularies[0] | {"<pad>": sizes[0]},
        "target_vocab.json": vocabularies[1] | {"<pad>": sizes[1]},
        "tokenizer_config.json": {"separate_vocabs": not tied},
    }
    search = _search(path.parent)
    search["bad_words_ids"] = [[sizes[1]]]
    return ModelFolder(
        path.parent,
        Settings(options.origin, config),
        Settings(str(path.parent / "decoder.yml"), search),
        Weights(str(path), tensors),
        files,
    )


_DEPTHS = {"encoder": "enc", "decoder": "dec"}


def _arrays(path: Path) -> dict[str, Stored]:
    """The arrays of the file, read when they are asked for."""

    def read(name: str) -> np.ndarray:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return np.asarray(arrays[name])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(f"{path}: cannot read {name} ({first_line(error)})") from error

    try:
        with np.load(path, allow_pickle=False) as arrays:
            shapes = {name: arrays[name].shape for name in arrays.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        raise UserError(f"{path}: not a NumPy archive ({first_line(error)})") from error
    return {name: Stored(shape, partial(read, name)) for name, shape in shapes.items()}


def _options(path: Path, arrays: dict[str, Stored]) -> Settings:
    """The options that the model was trained with, checked."""
    name = "special:model.yml"
    if name not in arrays:
        raise UserError(f"{path}: has no {name}, so it is not a model of Marian")
    text = arrays.pop(name).read().tobytes().rstrip(b"\0")
    options = _yaml(f"{path}: {name}", text)
    for key, allowed in _NEEDED.items():
        if key in options and options[key] not in allowed:
            raise UserError(
                f"{path}: {name}: {key}={options[key]!r} cannot be expressed; only {allowed[0]!r}"
            )
    if "type" not in options:
        raise UserError(f"{path}: {name}: type is missing")
    return Settings(f"{path}: {name}", options)


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


def _layer_tensors(arrays: Mapping[str, Stored], depth: Mapping[str, int]) -> dict[str, Stored]:
    """The tensors of all layers under their names in Transformers; others keep their names."""
    names: dict[str, str] = {}
    for side, count in depth.items():
        for i in range(count):
            marian, theirs = f"{side}_l{i + 1}", f"model.{side}.layers.{i}"
            for prefix, attention in _SUBLAYERS.items():
                for short, projection in _ATTENTION.items():
                    names[f"{marian}_{prefix}_W{short}"] = (
                        f"{theirs}.{attention}.{projection}.weight"
                    )
                    names[f"{marian}_{prefix}_b{short}"] = f"{theirs}.{attention}.{projection}.bias"
                norm = f"{theirs}.{attention}_layer_norm"
                names[f"{marian}_{prefix}_Wo_ln_scale"] = f"{norm}.weight"
                names[f"{marian}_{prefix}_Wo_ln_bias"] = f"{norm}.bias"
            for j in (1, 2):
                names[f"{marian}_ffn_W{j}"] = f"{theirs}.fc{j}.weight"
                names[f"{marian}_ffn_b{j}"] = f"{theirs}.fc{j}.bias"
            names[f"{marian}_ffn_ffn_ln_scale"] = f"{theirs}.final_layer_norm.weight"
            names[f"{marian}_ffn_ffn_ln_bias"] = f"{theirs}.final_layer_norm.bias"
    tensors = {}
    for name, stored in arrays.items():
        if name in _VOCABULARY:
            continue
        if len(stored.shape) == 2 and stored.shape[0] == 1:
            stored = Stored(stored.shape[1:], lambda read=stored.read: read()[0])  # type: ignore[misc]
        elif len(stored.shape) == 2:
            stored = Stored(stored.shape[::-1], lambda read=stored.read: read().T)  # type: ignore[misc]
        tensors[names.get(name, name)] = stored
    return tensors


#: Tensors with a row or a column for each piece.
_VOCABULARY = ("Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_b")


def _vocabulary_tensors(path: Path, arrays: Mapping[str, Stored], tied: bool) -> dict[str, Stored]:
    """Embeddings and the bias of the logits, with zeros for padding at the end."""

    def padded(name: str, axis: int) -> Stored:
        if name not in arrays:
            raise UserError(f"{path}: the tensor {name} is missing")
        shape, read = arrays[name]
        if len(shape) != 2:
            raise UserError(f"{path}: the tensor {name} is not a matrix")
        widths = [(0, int(axis == i)) for i in range(2)]
        longer = tuple(size + more for size, (_, more) in zip(shape, widths, strict=True))
        return Stored(longer, lambda: np.pad(read(), widths))

    tensors = {"final_logits_bias": padded("decoder_ff_logit_out_b", 1)}
    if tied:
        return tensors | {"model.shared.weight": padded("Wemb", 0)}
    return tensors | {
        f"model.{side}.embed_tokens.weight": padded(f"{side}_Wemb", 0) for side in _DEPTHS
    }


def _search(folder: Path) -> dict[str, Any]:
    """Beam size and length penalty of `decoder.yml`, if it is there."""
    path = folder / "decoder.yml"
    options = Settings(str(path), _yaml(str(path), path.read_bytes()) if path.is_file() else {})
    return {
        "num_beams": options.number("beam-size", 12),
        "length_penalty": options.get("normalize", float, 0.0),
    }
