"""How translations are searched for. Nothing here changes what the model computes."""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import FiniteFloat, PositiveInt, TypeAdapter, ValidationError

from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.registry import METHODS
from transformer_jax.errors import UserError
from transformer_jax.variants import OneOf, reason


@dataclass(frozen=True)
class DecodeConfig:
    """The decoding method, and the limits on length.

    A target may hold at most `ceil(max_length_factor * source_length) + max_length_offset`
    tokens, EOS included on both sides. The limit depends on the sentence alone, so its
    translation does not depend on the sentences that share its batch.
    """

    method: Annotated[Method, OneOf(METHODS)] = Beam()
    max_length_factor: Annotated[FiniteFloat, Ge(0)] = 1.5
    max_length_offset: PositiveInt = 10  #: leaves room for EOS
    max_source_length: Annotated[int, Ge(2)] = (
        256  #: longer input (EOS included) is cut and counted
    )
    batch_size: PositiveInt = 32  #: sentences a process decodes together; for speed and memory only

    def max_target_length(self, source_length: int) -> int:
        """Most target tokens, EOS included, for a source of `source_length` tokens."""
        return math.ceil(self.max_length_factor * source_length) + self.max_length_offset


def overridden(config: DecodeConfig, given: Mapping[str, Any]) -> DecodeConfig:
    """`config` with other values for some fields.

    Args:
      config: the defaults.
      given: values by field; a method may be spelled as text, `"beam(beam_size=8)"`.

    Raises:
      UserError: no such field, or a value out of its range.
    """
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for key, value in given.items():
        if key not in values:
            raise UserError(f"decode.{key}={value!r}: no such key; {_advice(key, value, values)}")
    try:
        return TypeAdapter(DecodeConfig).validate_python(values | dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        shown = "" if key == "method" else f"={first['input']!r}"
        raise UserError(f"decode.{key}{shown}: {reason(first)}") from error


def _advice(name: str, value: Any, known: Mapping[str, Any]) -> str:
    for kind, method in METHODS.items():
        if name in {field.name for field in dataclasses.fields(method)}:  # type: ignore[arg-type]
            return f"it is an option of a method: method='{kind}({name}={value})'"
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]
    return f"did you mean {nearest}? (keys: {', '.join(known)})"


def while_training(config: DecodeConfig) -> DecodeConfig:
    """How the validation set is translated between training steps: quickly."""
    return replace(config, method=Greedy(), batch_size=64)
