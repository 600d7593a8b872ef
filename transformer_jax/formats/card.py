"""The model card of an exported folder: README.md, in the form that Hugging Face's hub reads."""

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import yaml

from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.registry import SOURCES
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.formats.exporter import Exporter
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.runs.folder import Run
from transformer_jax.settings.languages import base_language
from transformer_jax.settings.variants import kind_of, to_text


def card(run: Run, exporter: Exporter, licence: str | None) -> str:
    """The text.

    Args:
        run: what was exported.
        exporter: the format.
        licence: as the user gave it, such as cc-by-4.0; None: the card says that there is none.
    """
    uses = yaml.safe_load((files("transformer_jax.formats") / "uses.yaml").read_text())
    kind, format = kind_of(exporter, EXPORTERS), to_text(_without_folders(exporter), EXPORTERS)
    data, command = run.config.data, f'transformer-jax export --format="{format}"'
    directions: Sequence[Any] = [(data.source_language or "und", data.target_language or "und")]
    with contextlib.suppress(UserError):  # a run of which no text is known
        directions = data.directions
    codes = list(dict.fromkeys(base_language(each) for pair in directions for each in pair))
    title = "; ".join(f"from {source} into {target}" for source, target in directions)
    head = {"language": codes, "pipeline_tag": "translation"}
    head |= {"license": licence} if licence else {}
    what = f"{run.path / 'scores.json'}: is not what `eval` writes"
    kinds = KeyError, TypeError, ValueError, AttributeError
    with as_user_error(what, *kinds, named=True, then=": move it away"):
        rows = [
            f"- {name}: {score['name']} {score['score']:.2f} (`{score['signature']}`)\n"
            for name, report in run.scores().items()
            for score in report["scores"].values()
        ]
    scores = "".join(rows) or "None: `transformer-jax eval` makes them.\n"
    sources = (_without_folders(corpus.source) for corpus in data.corpora or [data])
    source = ",".join(to_text(each, SOURCES) for each in sources)
    return (
        f"---\n{yaml.safe_dump(head)}---\n\n# Translation {title}\n\n"
        f"Licence: {licence or 'none was given; ask who made this model'}.\n\n"
        f"## Use\n\n```\n{uses.get(kind, command)}\n```\n\n## Scores\n\n{scores}\n"
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
