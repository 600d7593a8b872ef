"""The interface of an export format, and what a format cannot express."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.models.api import Params, merge_adapter
from transformer_jax.models.config import ModelConfig
from transformer_jax.variants import ManyOf, kind_of, mark_of, to_text


class TrainedModel(NamedTuple):
    """What is exported: the config of a run, the parameters of a checkpoint, the tokenizers."""

    config: Config
    params: Params
    tokenizers: Tokenizers


def without_adapter(model: TrainedModel) -> TrainedModel:
    """The same model with its low-rank adapter, if it has one, put into the weights."""
    config, params = merge_adapter(model.config.model, model.params)
    return model._replace(config=dataclasses.replace(model.config, model=config), params=params)


class Exporter:
    """A format: a frozen dataclass whose fields are the format's options.

    `tests/interop/exporter_suite.py` says what every registered format must satisfy.
    """

    def check(self, config: Config) -> None:
        """Refuses what the format cannot express, before any parameter is read.

        Raises:
            UserError: names the option of the config, or the package that is missing.
        """

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        """Writes the files of the format into an existing, empty folder on a disk."""
        raise NotImplementedError


#: Config class -> names of the options that a format expresses, or that change no output.
Expressed = Mapping[type, frozenset[str]]

#: Options that have no effect on a trained model's outputs, whatever their class.
NO_EFFECT = frozenset({"dropout_rate", "implementation", "remat", "scan_layers"})


def check_expressed(config: ModelConfig, expressed: Expressed, name: str) -> None:
    """Refuses options that a format does not know, so that a new option is not ignored.

    A variant must be in `expressed`; an option that is not listed with its class must have its
    default.

    Args:
        config: the model.
        expressed: what the format knows.
        name: the format's, for the message.

    Raises:
        UserError: names the option.
    """
    for place, value in _unexpressed(config, "model", expressed):
        raise UserError(
            f"{place}={value}: {name} cannot express it; "
            "the formats safetensors and stablehlo take every model"
        )


def _unexpressed(config: Any, place: str, expressed: Expressed) -> Iterator[tuple[str, str]]:
    """(key, value) of every option of a config and its parts that is not expressed."""
    known = expressed[type(config)] | NO_EFFECT
    hints = get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        key, value = f"{place}.{field.name}", getattr(config, field.name)
        mark = mark_of(hints[field.name])
        if mark is not None:
            for variant in value if isinstance(mark, ManyOf) else (value,):
                if type(variant) not in expressed:
                    yield key, kind_of(variant, mark.family)
                elif any(_unexpressed(variant, key, expressed)):
                    yield key, to_text(variant, mark.family)
        elif dataclasses.is_dataclass(value):
            yield from _unexpressed(value, key, expressed)
        elif field.name not in known and value != field.default:
            yield key, str(value)
