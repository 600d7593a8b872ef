"""The folder that Mozilla takes for Firefox (github.com/mozilla/translations), packed by gzip.

model.ende.intgemm.alphas.bin.gz    in int8
vocab.ende.spm.gz                   or srcvocab.ende.spm.gz and trgvocab.ende.spm.gz
lex.50.50.ende.s2t.bin.gz           the shortlist
metadata.json                       languages, sizes, the model's options, BLEU and chrF
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.sources.files import read_parallel
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.marian.bergamot import Bergamot, about, translator
from transformer_jax.formats.marian.files import OPTIONS
from transformer_jax.metrics.scores import corpus_scores
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.settings.languages import base_language
from transformer_jax.settings.types import Strings
from transformer_jax.weights.marian_items import Int8, Item, from_bytes
from transformer_jax.weights.settings import parse_yaml

#: What the names of the packed files begin with: as the other formats write them, and here.
_NAMES = {"lex": "lex.50.50"} | {name: name for name in ("model", "vocab", "srcvocab", "trgvocab")}


@dataclass(frozen=True)
class Firefox(Bergamot):
    """A folder of packed files, of a model in int8."""

    quantization: Literal["int8"] = "int8"
    flores: Strings | None = None
    #: a source file and its references, such as those of FLORES-200, on which the model is scored

    def check(self, config: Config) -> None:
        super().check(config)
        _languages(config.data)
        if any(not isinstance(each, SSRU) for each in config.model.decoder.mixers):
            raise UserError(
                "model.decoder.mixers: the engine of Firefox has ssru alone: train with "
                "model.decoder.mixers=ssru"
            )
        if self.flores is not None:
            if len(self.flores) != 2:
                raise UserError(f"flores={','.join(self.flores)}: give sources and references")
            list(read_parallel(*self.flores))

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        model = self.prepared(model)
        super().write(model, folder)
        languages = _languages(model.config.data)
        metadata: dict[str, Any] = {}
        pair = "".join(map(base_language, languages))  # ende
        for path in list(folder.iterdir()):
            content = path.read_bytes()
            path.unlink()
            name, _, rest = path.name.partition(".")
            if name == "model":
                metadata |= _about_model(content)
            if name in _NAMES:
                packed = folder / f"{_NAMES[name]}.{pair}.{rest}.gz"
                packed.write_bytes(gzip.compress(content, mtime=0))
        metadata |= dict(zip(("sourceLanguage", "targetLanguage"), languages, strict=True))
        metadata |= {"architecture": about(model.config)["type"], "version": "1.0"}
        if self.flores is not None:
            sources, references = zip(*read_parallel(*self.flores), strict=True)
            made = translator(model).translate(sources)
            scores = corpus_scores(made, references, target_language=languages[1]).items()
            metadata["flores"] = {key: round(score.score, 2) for key, score in scores}
            metadata["floresSignatures"] = {key: score.signature for key, score in scores}
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=2, sort_keys=True) + "\n")


def _languages(data: DataConfig) -> Languages:
    """Those of the config, also without a text, or those of its text."""
    if data.source_language and data.target_language:
        return data.source_language, data.target_language
    return data.languages


def _about_model(content: bytes) -> dict[str, Any]:
    """What Mozilla's registry says of a model's file."""
    items = from_bytes(content, "model")
    options: Any = items.pop(OPTIONS)
    return {
        "byteSize": len(content),
        "hash": hashlib.sha256(content).hexdigest(),
        "modelConfig": parse_yaml(OPTIONS, options.tobytes().rstrip(b"\0")),
        "modelStatistics": _statistics(items),
    }


def _statistics(items: Mapping[str, Item]) -> dict[str, int]:
    """The numbers of parameters, and the bytes of the encoder, the decoder and the embeddings."""
    values = {name: a.values if isinstance(a, Int8) else np.asarray(a) for name, a in items.items()}
    found = {"parameters": sum(a.size for a in values.values())}
    found["embeddings_bytes"] = values["Wemb"].nbytes if "Wemb" in values else 0
    for side in ("encoder", "decoder"):
        own = [a for name, a in values.items() if name.startswith(f"{side}_")]
        found[f"{side}_parameters"] = sum(a.size for a in own)
        found[f"{side}_bytes"] = sum(a.nbytes for a in own)
    return found
