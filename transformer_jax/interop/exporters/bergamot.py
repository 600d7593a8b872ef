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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.beam import Beam
from transformer_jax.errors import UserError
from transformer_jax.interop.exporters.base import Exporter, TrainedModel, without_adapter
from transformer_jax.interop.exporters.folding import converted, listed, unlike
from transformer_jax.interop.families.marian_own import read_options, tensors, write_options
from transformer_jax.interop.marian_bin import to_bytes
from transformer_jax.interop.marian_files import OPTIONS
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.lora import NoAdapter
from transformer_jax.published.arrangement import UNUSED, Arrangement
from transformer_jax.published.settings import Settings
from transformer_jax.sentencepiece_model import load_processor
from transformer_jax.vocabulary import BOS_ID, PAD_ID

#: The name that translateLocally expects, whatever the precision.
_CONFIG = "config.intgemm8bitalpha.yml"


@dataclass(frozen=True)
class Bergamot(Exporter):
    """A folder for translateLocally, whose files Firefox and a web page read too."""

    def check(self, config: Config) -> None:
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
        items = table.to_tensors(converted(config, theirs, model.params))
        options = yaml.safe_dump(write_options(config), sort_keys=False).encode() + b"\0"
        items[OPTIONS] = np.frombuffer(options, np.int8)
        (folder / "model.bin").write_bytes(to_bytes(items))
        for name, tokenizer in _vocabulary_files(model.tokenizers).items():
            (folder / name).write_bytes(tokenizer.sentencepiece_model)
        (folder / _CONFIG).write_text(yaml.safe_dump(_engine(model), sort_keys=False))
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


def _engine(model: TrainedModel) -> dict[str, Any]:
    """The settings of the engine, with paths from the folder."""
    method = model.config.decode.method
    beams, penalty = 1, 1.0
    if isinstance(method, Beam):
        beams = method.beam_size
        penalty = method.length_penalty if method.length_penalty_form == "power" else penalty
    files = list(_vocabulary_files(model.tokenizers))
    return {
        "relative-paths": True,
        "models": ["model.bin"],
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
        "gemm-precision": "float32",
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
