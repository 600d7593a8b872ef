"""The model card of an exported folder: README.md, in the form that Hugging Face's hub reads."""

import contextlib
import dataclasses
import re
from typing import Any

import yaml

from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.registry import SOURCES
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import Exporter
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.runs.folder import Run
from transformer_jax.settings.languages import base_language
from transformer_jax.settings.variants import kind_of, to_text

#: Format -> how its folder is used, in three lines at most.
_USES = {
    "bergamot": "import fxtranslate  # with the files of this folder\n"
    "engine = fxtranslate.Translator(model=model, src_vocab=spm, trg_vocab=spm)\n"
    'print(engine.translate("..."))',
    "ctranslate2": "import ctranslate2  # with pieces from the SentencePiece models\n"
    'translator = ctranslate2.Translator("FOLDER")\n'
    "print(translator.translate_batch([pieces])[0].hypotheses[0])",
    "huggingface": "from transformers import pipeline\n"
    'translate = pipeline("translation", model="FOLDER")\n'
    'print(translate("..."))',
    "onnx": "import onnxruntime  # docs/interop.md of transformer_jax has the whole program\n"
    'encoder = onnxruntime.InferenceSession("FOLDER/onnx/encoder_model.onnx")\n'
    'decoder = onnxruntime.InferenceSession("FOLDER/onnx/decoder_model_merged.onnx")',
    "safetensors": "transformer-jax import --from=FOLDER --workdir=runs/model\n"
    'echo "..." | transformer-jax translate --workdir=runs/model',
    "web": "python -m http.server --directory=FOLDER",
}


def card(run: Run, exporter: Exporter, licence: str | None) -> str:
    """The text.

    Args:
        run: what was exported.
        exporter: the format.
        licence: as the user gave it, such as cc-by-4.0; None: the card says that there is none.
    """
    kind, format = kind_of(exporter, EXPORTERS), to_text(_without_folders(exporter), EXPORTERS)
    data, command = run.config.data, f"transformer-jax export --format='{format}'"
    languages = [each or "und" for each in (data.source_language, data.target_language)]
    with contextlib.suppress(UserError):  # a run of which no text is known
        languages = list(dict.fromkeys(each for pair in data.directions for each in pair))
    codes = list(dict.fromkeys(map(base_language, languages)))
    head = {"language": codes, "pipeline_tag": "translation"}
    head |= {"license": licence} if licence else {}
    rows = [
        f"- {name}: {score['name']} {score['score']:.2f} (`{score['signature']}`)\n"
        for name, report in run.scores().items()
        for score in report["scores"].values()
    ]
    scores = "".join(rows) or "None: `transformer-jax eval` makes them.\n"
    sources = (_without_folders(corpus.source) for corpus in data.corpora or [data])
    source = ",".join(to_text(each, SOURCES) for each in sources)
    return (
        f"---\n{yaml.safe_dump(head)}---\n\n# Translation from {' into '.join(languages)}\n\n"
        f"Licence: {licence or 'none was given; ask who made this model'}.\n\n"
        f"## Use\n\n```\n{_USES.get(kind, command)}\n```\n\n## Scores\n\n{scores}\n"
        f"## Data\n\n`{source}`\n\n## Made by\n\n`{command}`\n"
    )


def _without_folders(variant: Any) -> Any:
    """A source or a format with the names of files alone: folders are of a machine, and private."""
    names_files = isinstance(variant, Files | Exporter)

    def shown(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(shown, value))
        if isinstance(value, str) and (names_files or re.match(r"[/~\\]|\w+:[/\\]", value)):
            return re.split(r"[/\\]", value)[-1]
        return value

    names = [each.name for each in dataclasses.fields(variant) if each.init]
    return dataclasses.replace(variant, **{name: shown(getattr(variant, name)) for name in names})
