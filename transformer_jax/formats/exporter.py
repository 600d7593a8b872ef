"""The interface of an export format, and what a format cannot express."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from transformer_jax.config import Config, is_one_variant, walk
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.models.api import Params
from transformer_jax.models.config import ModelConfig
from transformer_jax.settings.keys import keys_of
from transformer_jax.settings.variants import ManyOf, flag_text, mark_of


class TrainedModel(NamedTuple):
    """What is exported: the config of a run, the parameters of a checkpoint, the tokenizers.

    A low-rank adapter is in the parameters already: `Run.params` merges it.
    """

    config: Config
    params: Params
    tokenizers: Tokenizers
    int8: bytes | None = None  #: what a file of int8 had that floats lack (`marian_bin.factors`)


def write_pieces(model: TrainedModel, folder: epath.Path) -> None:
    """Writes the SentencePiece models: `joint.model`, or `source.model` and `target.model`."""
    files = model.tokenizers.by_file(lambda each: each.sentencepiece_model)
    for name, content in files.items():
        (folder / name).write_bytes(content)


class Exporter:
    """A format: a frozen dataclass whose fields are the format's options.

    `tests/formats/exporter_suite.py` says what every registered format must satisfy.
    """

    def check(self, config: Config) -> None:
        """Refuses what the format cannot express, before any parameter is read.

        Raises:
            UserError: names the option of the config, or the package that is missing.
        """

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        """Writes the files of the format into an existing, empty folder on a disk."""
        raise NotImplementedError


#: Config class -> names of the options that a format expresses.
Expressed = Mapping[type, frozenset[str]]

#: Options that say how a model is computed, trained or aligned, not what it translates.
NO_EFFECT = frozenset(
    {
        *("dropout_rate", "implementation", "remat", "scan_layers", "alignment_head"),
        *("dtype", "matmul_dtype", "param_dtype"),
    }
)


def differences(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """The keys of the options in which two models differ, but for those in `NO_EFFECT`."""
    return [
        path
        for path, key, values in walk(ours, theirs, prefix="model.", variants=False)
        if key.name not in NO_EFFECT and not _same(*values)
    ]


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two values of an option, or variants, give the same outputs."""
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        return all(map(_same, ours, theirs))
    if not is_one_variant(ours, theirs):
        return ours == theirs
    names = keys_of(type(ours)).keys() - NO_EFFECT
    return all(getattr(ours, name) == getattr(theirs, name) for name in names)


def texts(model: ModelConfig) -> dict[str, str]:
    """Key -> the text of its value."""
    return {
        path: flag_text(value, key) if mark_of(key.annotation) else str(value)
        for path, key, (value,) in walk(model, prefix="model.", variants=False)
    }


def check_alignment_head(model: ModelConfig, name: str) -> None:
    """Refuses a model that learned its word alignments in another head than an engine reads.

    Raises:
        UserError: names the option.
    """
    if head := getattr(model.cross, "alignment_head", None):
        raise UserError(
            f"model.cross.alignment_head={head}: {name} cannot express it: it reads word "
            "alignments from head 0; the format safetensors takes every model"
        )


def check_expressed(model: ModelConfig, expressed: Expressed, name: str) -> None:
    """Refuses options that a format does not know, so that a new option is not ignored.

    A variant must be in `expressed`; an option that is not listed with its class must have its
    default.

    Args:
        model: the model.
        expressed: what the format knows.
        name: the format's, for the message.

    Raises:
        UserError: names the option.
    """
    for key in differences(model, _expressible(model, expressed)):
        raise UserError(
            f"{key}={texts(model)[key]}: {name} cannot express it; "
            "the format safetensors takes every model"
        )


def _expressible(config: Any, expressed: Expressed) -> Any:
    """A config with the default of each option that is not expressed; None for a variant."""
    if type(config) not in expressed:
        return None
    changes: dict[str, Any] = {}
    for name, key in keys_of(type(config)).items():
        value = getattr(config, name)
        if isinstance(mark_of(key.annotation), ManyOf):
            changes[name] = tuple(_expressible(each, expressed) for each in value)
        elif key.is_part or mark_of(key.annotation):
            changes[name] = _expressible(value, expressed)
        elif name not in expressed[type(config)]:
            changes[name] = key.default
    return dataclasses.replace(config, **changes)
