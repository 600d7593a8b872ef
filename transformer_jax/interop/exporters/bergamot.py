"""Bergamot's engine, in Firefox, translateLocally and web pages (github.com/browsermt).

The folder is one of translateLocally: `model.bin`, `vocab.spm` (or `srcvocab.spm` and
`trgvocab.spm`), `config.intgemm8bitalpha.yml` for the engine, and `model_info.json`. The engine
computes the model of Marian's student recipes, which `families/marian_own.py` describes:

    model.norm_placement=post  model.norm=layer
    model.encoder.position=sinusoidal(form=tensor2tensor)  and that of the decoder
    model.decoder.mixers=ssru, or full  model.start_id=none

Biases that the model does not have are zeros; scales of the scores, and of the embeddings where the
projection to logits allows it, are put into the weights.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.padding import pad
from transformer_jax.data.tokenizer import Tokenizer, load_processor
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError, first_line
from transformer_jax.interop.exporters.base import Exporter, TrainedModel, without_adapter
from transformer_jax.interop.exporters.folding import converted, listed, unlike
from transformer_jax.interop.families.marian_own import (
    BIAS,
    NEVER,
    read_options,
    tensors,
    write_options,
)
from transformer_jax.interop.marian_bin import Int8, to_bytes
from transformer_jax.interop.marian_files import ALPHA, OPTIONS
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import Table
from transformer_jax.interop.vocabularies import UNUSED, Arrangement
from transformer_jax.models.api import Params, matrix_paths
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.shifted_int8 import alphas, in_shifted_int8, largest_inputs
from transformer_jax.ops.shifted_int8 import shifted
from transformer_jax.paths import as_path
from transformer_jax.translation.translator import Translator
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

#: The name that translateLocally expects, whatever the precision.
_CONFIG = "config.intgemm8bitalpha.yml"


#: Precision -> the usual name of the file, and what the engine calls the precision.
_MODELS = {
    "float32": ("model.bin", "float32"),
    "int8": ("model.intgemm.alphas.bin", "int8shiftAlphaAll"),
}
#: Sizes of int8 matrices are multiples of these on every machine: of what is summed up, and of rows
#: of the table that projects to logits.
_INT8_SUMS, _INT8_ROWS = 64, 8
#: Sentences that the factors of int8 are measured on, at most, and so many at a time.
_MEASURED, _AT_A_TIME = 1000, 32


@dataclass(frozen=True)
class Bergamot(Exporter):
    """A folder for translateLocally, whose files Firefox and a web page read too."""

    precision: Literal["float32", "int8"] = "float32"  #: of matrices and their products
    sentences: str | None = None
    #: int8 only: a file of source sentences, on which the sizes of activations are measured

    def check(self, config: Config) -> None:
        if (self.precision == "int8") != (self.sentences is not None):
            raise UserError(
                "format=bergamot(precision=int8) needs sentences=FILE, a file of source sentences "
                "on which activations are measured; float32 takes none"
            )
        for name in ("d_model", "d_ff"):
            size = getattr(config.model, name)
            if self.precision == "int8" and size % _INT8_SUMS:
                raise UserError(
                    f"model.{name}={size}: Bergamot's int8 needs a multiple of {_INT8_SUMS}; "
                    "export with precision=float32"
                )
        model = replace(config.model, adapter=NoAdapter())
        theirs = _theirs(model)
        if keys := unlike(model, theirs):
            raise UserError(
                f"{listed(model, keys)}: Bergamot cannot express it; it needs a model trained with "
                f"{listed(theirs, keys)}; the format safetensors takes every model"
            )

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        model = without_adapter(model)
        config = model.config.model
        theirs = _theirs(config)
        table = tensors(theirs, *_arrangements(config, model.tokenizers))
        params = converted(config, theirs, model.params)
        items: dict[str, np.ndarray | Int8] = {**table.to_tensors(params)}
        options = write_options(config)
        if self.sentences is not None:
            largest = _largest_inputs(model, theirs, params, _read_lines(self.sentences))
            items = _in_int8(items, theirs, table, alphas(largest))
            options["dim-vocabs"] = [
                next(len(items[name][0]) for name in (f"{side}_Wemb", "Wemb") if name in items)
                for side in ("encoder", "decoder")
            ]
        text = yaml.safe_dump(options, sort_keys=False).encode() + b"\0"
        items[OPTIONS] = np.frombuffer(text, np.int8)
        name, precision = _MODELS[self.precision]
        (folder / name).write_bytes(to_bytes(items))
        settings = yaml.safe_dump(_engine(model, name, precision), sort_keys=False)
        (folder / _CONFIG).write_text(settings)
        for vocabulary, tokenizer in _vocabulary_files(model.tokenizers).items():
            (folder / vocabulary).write_bytes(tokenizer.sentencepiece_model)
        (folder / "model_info.json").write_text(json.dumps(_about(model.config), indent=2) + "\n")


def _theirs(config: ModelConfig) -> ModelConfig:
    """The most similar model that the engine computes. It never predicts PAD or BOS."""
    return read_options(
        Settings(OPTIONS, write_options(config)),
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        tie_embeddings=config.tie_embeddings,
        unused_ids=config.unused_ids,
        max_length=config.max_length,
    )


def simulated(model: TrainedModel, sentences: Sequence[str]) -> tuple[ModelConfig, Params]:
    """A model that computes what the engine computes of the export to int8, saturation included.

    Args:
        model: to be exported.
        sentences: of the source language, on which the sizes of activations are measured.
    """
    model = without_adapter(model)
    theirs = _theirs(model.config.model)
    params = converted(model.config.model, theirs, model.params)
    largest = _largest_inputs(model, theirs, params, sentences)
    return theirs, in_shifted_int8(theirs, params, alphas(largest))


def _largest_inputs(
    model: TrainedModel, theirs: ModelConfig, params: Params, sentences: Sequence[str]
) -> dict[str, np.ndarray]:
    """`largest_inputs` of sentences and their translations."""
    decode = replace(model.config.decode, method=Greedy(), mbr=None, weights="float")
    translator = Translator(model.config.model, model.params, model.tokenizers, decode)
    encode = translator.source_encoder()
    limit = translator.max_source_length - 1
    sources = [[*encode(text)[:limit], EOS_ID] for text in sentences]
    targets = [list(best.tokens) for (best,) in translator.n_best(sentences, 1)]
    widths = [max(map(len, side)) for side in (sources, targets)]
    measure = jax.jit(partial(largest_inputs, theirs))
    found: list[dict[str, np.ndarray]] = []
    for start in range(0, len(sources), _AT_A_TIME):
        sides = [side[start : start + _AT_A_TIME] for side in (sources, targets)]
        (source, source_mask), (target, target_mask) = (
            pad(side, _AT_A_TIME, width) for side, width in zip(sides, widths, strict=True)
        )
        names = {"source": source, "source_mask": source_mask}
        by_path = measure(params, names | {"target": target, "target_mask": target_mask})
        found.append({path: np.asarray(x)[: len(sides[0])] for path, x in by_path.items()})
    return {path: np.concatenate([part[path] for part in found]) for path in found[0]}


def _in_int8(
    items: Mapping[str, Any], model: ModelConfig, table: Table, by_matrix: Mapping[str, float]
) -> dict[str, np.ndarray | Int8]:
    """The items of a file with matrices of int8, and what their products round the input with."""
    found = dict(items)
    matrices = matrix_paths(model)
    extra = -items[BIAS].size % _INT8_ROWS
    for path, (name, *_), _ in table.tensors:
        # More pieces, which are never predicted, make the size of the vocabulary a multiple.
        if name in ("Wemb", "decoder_Wemb"):
            found[name] = np.pad(items[name], ((0, extra), (0, 0)))
        elif path == "projection/kernel" or name == BIAS:
            fill = NEVER if name == BIAS else 0
            found[name] = np.pad(items[name], ((0, 0), (0, extra)), constant_values=fill)
        if path in matrices:
            matrix = shifted(jnp.asarray(found[name]))
            found[name] = Int8(np.asarray(matrix.values), float(matrix.multiplier))
        if path in by_matrix:
            found[f"{name}{ALPHA}"] = np.array([by_matrix[path]], np.float32)
    return found


def _read_lines(path: str) -> list[str]:
    """Sentences of a file, `_MEASURED` at most."""
    try:
        lines = as_path(path).read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"sentences={path}: cannot be read ({first_line(error)})") from error
    if not (found := [line for line in map(str.strip, lines) if line][:_MEASURED]):
        raise UserError(f"sentences={path}: holds no sentences")
    return found


def _arrangements(config: ModelConfig, tokenizers: Tokenizers) -> list[Arrangement]:
    """The rows of both sides in the order of the SentencePiece models' pieces."""
    if config.tie_embeddings in ("all", "inputs") and not tokenizers.joint:
        raise UserError(
            f"model.tie_embeddings={config.tie_embeddings}: with two SentencePiece models Bergamot "
            "reads a matrix of embeddings for each language; the format safetensors takes every "
            "model"
        )
    return [_arranged(side) for side in (tokenizers.source, tokenizers.target)]


def _arranged(tokenizer: Tokenizer) -> Arrangement:
    def refuse(piece: str, why: str) -> UserError:
        return UserError(
            f"tokenizer: the piece {piece!r} {why}; the format safetensors takes every model"
        )

    names = tokenizer.pieces(range(tokenizer.vocab_size))
    if tokenizer.prefix:
        raise refuse(names[tokenizer.prefix[0]], "begins every text, and Bergamot puts none there")
    processor = load_processor(tokenizer.sentencepiece_model, tokenizer.name)
    place = {processor.id_to_piece(i): i for i in range(processor.vocab_size())}
    if missing := sorted(place.keys() - set(names)):
        raise refuse(missing[0], "of the SentencePiece model has no embedding, as Bergamot needs")
    order, size = np.full(len(names), -1), len(place)
    for i, name in enumerate(names):
        if name in place:
            order[i] = place[name]
        elif name.startswith(UNUSED):  # rows that only fill up the table
            order[i], size = size, size + 1
        elif i not in (PAD_ID, BOS_ID):  # of which Marian needs none
            raise refuse(name, "is not one of the SentencePiece model, as Bergamot needs")
    return Arrangement(order)


def _vocabulary_files(tokenizers: Tokenizers) -> dict[str, Tokenizer]:
    if tokenizers.joint:
        return {"vocab.spm": tokenizers.source}
    return {"srcvocab.spm": tokenizers.source, "trgvocab.spm": tokenizers.target}


def _engine(model: TrainedModel, name: str, precision: str) -> dict[str, Any]:
    """The settings of the engine, with paths from the folder."""
    method = model.config.decode.method
    beams, penalty = 1, 1.0
    if isinstance(method, Beam):
        beams = method.beam_size
        penalty = method.length_penalty if method.length_penalty_form == "power" else penalty
    files = list(_vocabulary_files(model.tokenizers))
    return {
        "relative-paths": True,
        "models": [name],
        "vocabs": [files[0], files[-1]],
        "beam-size": beams,
        "normalize": penalty,
        "word-penalty": 0,
        "mini-batch": 64,
        "mini-batch-words": 1024,
        "maxi-batch": 1000,
        "maxi-batch-sort": "src",
        "max-length-break": 128,
        "max-length-factor": 3.0,
        "workspace": 128,
        "skip-cost": beams == 1,  # a search of one hypothesis needs no softmax
        "gemm-precision": precision,
    }


def _about(config: Config) -> dict[str, Any]:
    """What translateLocally lists."""
    source, target = (
        language or "und" for language in (config.data.source_language, config.data.target_language)
    )
    return {
        "modelName": f"{source}-{target}",
        "shortName": f"{source}-{target}-tiny",
        "type": "tiny",
        "src": source,
        "trg": target,
        "srcTags": {source: source},
        "trgTag": target,
        "version": 1,
        "API": 1,
    }
