"""Bergamot's engine, in Firefox, translateLocally and web pages (github.com/browsermt).

The folder is one of translateLocally: `model.bin`, `vocab.spm` (or `srcvocab.spm` and
`trgvocab.spm`), `config.intgemm8bitalpha.yml` for the engine, `model_info.json`, and `lex.s2t.bin`
where a shortlist is asked for. The engine computes the model of Marian's student recipes:

    model.norm_placement=post  model.norm=layer
    model.encoder.position=sinusoidal(form=tensor2tensor)  and that of the decoder
    model.decoder.mixers=ssru, or full  model.start_id=none

Biases that the model does not have are zeros; scales of the scores, and of the embeddings where the
projection to logits allows it, are put into the weights.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import islice
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import yaml
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.sources.files import read_lines
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import (
    Exporter,
    TrainedModel,
    check_alignment_head,
)
from transformer_jax.formats.folding import check_like, converted
from transformer_jax.formats.marian.files import OPTIONS
from transformer_jax.formats.marian.reader import (
    BIAS,
    NEVER,
    PROJECTION,
    read_options,
    tensors,
    write_options,
)
from transformer_jax.formats.marian.shortlist import shortlist_of, to_bytes as shortlist_to_bytes
from transformer_jax.models.api import Params, matrix_boxes
from transformer_jax.models.calibration import with_alphas
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import MEASURED, by_path
from transformer_jax.models.quantization import Int8, NoQuantization
from transformer_jax.ops.matrices import LARGEST
from transformer_jax.ops.padding import pad
from transformer_jax.runs.folder import INT8
from transformer_jax.settings.types import Strings
from transformer_jax.translation.translator import Translator
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID
from transformer_jax.weights.arrangement import UNUSED, Arrangement
from transformer_jax.weights.marian_items import (
    ALPHA,
    UNREAD,
    Int8 as Int8Item,
    Item,
    floats,
    from_bytes,
    to_bytes,
)
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.tables import Table

#: The name that translateLocally expects, whatever the precision.
CONFIG = "config.intgemm8bitalpha.yml"
SHORTLIST = "lex.s2t.bin"

#: Where the paths of the matrix that projects to logits can be.
_LOGITS = {"target_embedding/table", "projection/kernel"}
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

    quantization: Literal["float32", "int8"] | None = None
    #: of matrices and their products; None = int8 if the model is of `model.quantize=int8`
    sentences: str | None = None
    #: a file of source sentences, on which int8 measures the activations of other models; None =
    #: as in the file of int8 that was imported
    shortlist: Strings | None = None
    #: a text's source file, target file and word alignments, by which the engine predicts from
    #: fewer pieces; without the third file the model aligns the words itself; None = from all

    def check(self, config: Config) -> None:
        check_alignment_head(config.model, "Bergamot")
        model, is_int8 = config.model, self.quantization == "int8"
        if isinstance(model.quantize, Int8):
            model, is_int8 = replace(model, quantize=NoQuantization()), True
            if self.quantization == "float32" or self.sentences is not None:
                raise UserError(
                    "format=bergamot: the model is of int8 with measured activations "
                    "(model.quantize=int8); leave out quantization=float32 and sentences"
                )
        elif self.sentences is not None and not is_int8:
            raise UserError(
                "format=bergamot: sentences=FILE is for int8: give quantization=int8 too, or none "
                "of them for float32"
            )
        elif self.sentences is not None:
            _read_lines(self.sentences)
        if self.shortlist is not None and len(self.shortlist) not in (2, 3):
            raise UserError(
                f"shortlist={','.join(self.shortlist)}: give a file of source lines, one of target "
                "lines, and maybe one of their word alignments"
            )
        for name in ("d_model", "d_ff"):
            size = getattr(model, name)
            if is_int8 and size % _INT8_SUMS:
                raise UserError(
                    f"model.{name}={size}: Bergamot's int8 needs a multiple of {_INT8_SUMS}; "
                    "export it without model.quantize=int8 or quantization=int8"
                )
        check_like(model, _theirs(model), "Bergamot")

    def prepared(self, model: TrainedModel) -> TrainedModel:
        """The model as it is written: with the factors measured."""
        if self.sentences is None or isinstance(model.config.model.quantize, Int8):
            return model
        return calibrated(model, _read_lines(self.sentences))

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        model = self.prepared(model)
        is_trained = isinstance(model.config.model.quantize, Int8)
        name, theirs = _MODELS["int8" if is_trained else self.quantization or "float32"]
        kept = self.quantization == "int8" and not is_trained
        (folder / name).write_bytes(to_bytes(_items(model, kept)))
        settings = _engine(model, name, theirs)
        if self.shortlist is not None:
            lists = shortlist_of(self.shortlist, model.tokenizers, translator(model).align)
            both = _arrangements(model.config.model, model.tokenizers)
            (folder / SHORTLIST).write_bytes(shortlist_to_bytes(lists, *both))
            settings["shortlist"] = [SHORTLIST, False]
        (folder / CONFIG).write_text(yaml.safe_dump(settings, sort_keys=False))
        for vocabulary, tokenizer in _vocabulary_files(model.tokenizers).items():
            (folder / vocabulary).write_bytes(tokenizer.sentencepiece_model)
        (folder / "model_info.json").write_text(json.dumps(about(model.config), indent=2) + "\n")


def translator(model: TrainedModel) -> Translator:
    """A greedy translator with the model as it is written."""
    decode = replace(model.config.decode, method=Greedy(), mbr=None, weights="float")
    return Translator(model.config.model, model.params, model.tokenizers, decode)


def calibrated(model: TrainedModel, sentences: Sequence[str]) -> TrainedModel:
    """The model with `model.quantize=int8`, whose factors are measured.

    Args:
        model: of floats.
        sentences: of the source language. The model's own greedy translations are the targets.
    """
    config = model.config.model
    ours = translator(model)
    encode, limit = ours.source_encoder(), ours.max_source_length - 1
    sides = {"source": [[*encode(text)[:limit], EOS_ID] for text in sentences]}
    sides["target"] = [list(best.tokens) for (best,) in ours.n_best(sentences, 1)]

    def batch(start: int) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for name, rows in sides.items():
            width, some = max(map(len, rows)), rows[start : start + _AT_A_TIME]
            arrays[name], arrays[f"{name}_mask"] = pad(some, _AT_A_TIME, width)
        return arrays

    batches = map(batch, range(0, len(sentences), _AT_A_TIME))
    params = with_alphas(config, model.params, batches)
    config = replace(config, quantize=Int8())
    return model._replace(config=replace(model.config, model=config), params=params)


def _items(model: TrainedModel, kept: bool) -> dict[str, Item]:
    """The items of the model's file, in int8 if the model is.

    Args:
        model: as it is written.
        kept: whether in int8 by the factors of the file that the model was imported from.
    """
    config = model.config.model
    theirs = _theirs(config)
    table = tensors(theirs, *_arrangements(config, model.tokenizers))
    floats = {name: part for name, part in model.params.items() if name != MEASURED}
    params = converted(replace(config, quantize=NoQuantization()), theirs, floats)
    options = write_options(config)
    items: dict[str, Item] = {**table.to_tensors(params)}
    if kept:
        items = _as_imported(items, model.int8)
    elif isinstance(config.quantize, Int8):
        alphas = by_path(model.params[MEASURED])
        for path in _LOGITS & alphas.keys():  # whose input they do not scale
            alphas[path] *= config.logit_scale / theirs.logit_scale
        items = _in_int8(items, theirs, table, params, alphas)
    if kept or isinstance(config.quantize, Int8):
        items = _filled_up(items, theirs.tie_embeddings)
    options["dim-vocabs"] = [_rows(items, side) for side in ("encoder", "decoder")]
    text = yaml.safe_dump(options, sort_keys=False).encode() + b"\0"
    return {**items, OPTIONS: np.frombuffer(text, np.int8)}


def _rows(items: Mapping[str, Item], side: str) -> int:
    """The size of a vocabulary, with what fills it up."""
    table = items["Wemb"] if "Wemb" in items else items[f"{side}_Wemb"]
    return len(table.values if isinstance(table, Int8Item) else table)


def _as_imported(items: Mapping[str, Any], int8: bytes | None) -> dict[str, Item]:
    """The items with the whole numbers and factors of the file of int8 that was imported.

    Raises:
        UserError: there was none, or the model was trained since.
    """
    why = "the model was not imported from a file of int8"
    found = dict(items)
    for name, item in from_bytes(int8, INT8).items() if int8 else ():
        if name.endswith(UNREAD):
            found[name] = item
        elif "/" not in name:  # not the path of a parameter
            factor = np.asarray(item).item()
            values = np.rint(items[name] * np.float32(factor))
            found[name] = Int8Item(values.astype(np.int8), factor)
            if not np.array_equal(floats(found[name]), items[name]):
                why, int8 = "the model is no longer that of the file that was imported", None
                break
    if not int8:
        raise UserError(
            f"format=bergamot: {why}: give sentences=FILE beside quantization=int8, source "
            "sentences on which activations are measured"
        )
    return found


def _in_int8(
    items: Mapping[str, Any],
    config: ModelConfig,
    table: Table,
    params: Params,
    alphas: Mapping[str, Any],
) -> dict[str, Item]:
    """The items with matrices of int8, and what their products multiply the input by."""
    found, boxes, leaves = dict(items), matrix_boxes(config), by_path(params)
    for path, (name, *_), _ in table.tensors:
        if path in boxes:
            factor = np.float32(Int8.factor(jnp.asarray(leaves[path]), boxes[path]))
            found[name] = Int8Item(np.rint(items[name] * factor).astype(np.int8), float(factor))
        if path in alphas:
            found[f"{name}{ALPHA}"] = np.array([alphas[path]], np.float32)
        if path in alphas and path in _LOGITS:  # without a shortlist engines call the matrix so
            found[f"none{ALPHA}"] = found[f"{name}{ALPHA}"]
    return found


def _filled_up(items: Mapping[str, Any], tie: str) -> dict[str, Item]:
    """The items with as many pieces as int8 needs; the further ones are never predicted.

    The engine makes floats of a table that is also the projection, and quantises them again: the
    largest number becomes 127. So that nothing changes, a further row has a 127 if none has.
    """
    name = "Wemb" if tie in ("all", "inputs") else "decoder_Wemb"
    needs_largest = tie in ("all", "decoder") and np.abs(items[name].values).max() < LARGEST
    extra = -(items[BIAS].size + needs_largest) % _INT8_ROWS + needs_largest
    table = np.pad(items[name].values, ((0, extra), (0, 0)))
    if needs_largest:
        table[-1, 0] = LARGEST
    found = {**items, name: items[name]._replace(values=table)}
    found[BIAS] = np.pad(items[BIAS], ((0, 0), (0, extra)), constant_values=NEVER)
    if PROJECTION in items:
        values = np.pad(items[PROJECTION].values, ((0, 0), (0, extra)))
        found[PROJECTION] = items[PROJECTION]._replace(values=values)
    return found


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


def _read_lines(path: str) -> list[str]:
    """Sentences of a file, `_MEASURED` at most."""
    lines = filter(None, map(str.strip, read_lines(path)))
    if not (found := list(islice(lines, _MEASURED))):
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
    order = np.full(len(names), -1)
    for i, name in enumerate(names):
        if name in place:
            order[i] = place[name]
        elif not name.startswith(UNUSED) and i not in (PAD_ID, BOS_ID):
            # Marian needs neither those nor rows that only fill up the table.
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
    spm = list(_vocabulary_files(model.tokenizers))
    same = (files("transformer_jax.formats.marian") / "engine.yml").read_text()
    return yaml.safe_load(same) | {
        "models": [name],
        "vocabs": [spm[0], spm[-1]],
        "beam-size": beams,
        "normalize": penalty,
        "skip-cost": beams == 1,  # a search of one hypothesis needs no softmax
        "gemm-precision": precision,
    }


def about(config: Config) -> dict[str, Any]:
    """What translateLocally lists."""
    data = config.data
    source, target = data.source_language or "und", data.target_language or "und"
    kind = "tiny" if config.model.d_model <= 256 else "base"  # as the published ones are called
    return {
        "modelName": f"{source}-{target}",
        "shortName": f"{source}-{target}-{kind}",
        "type": kind,
        "src": source,
        "trg": target,
        "srcTags": {source: source},
        "trgTag": target,
        "version": 1,
        "API": 1,
    }
