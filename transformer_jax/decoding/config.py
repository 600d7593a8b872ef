"""How translations are searched for. Nothing here changes what the model computes."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformer_jax.errors import UserError

#: Fields that only one method reads.
_METHOD_OF = {
    "beam_size": "beam",
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "num_samples": "sample",
    "seed": "sample",
}


@dataclass(frozen=True)
class DecodeConfig:
    """Search method, its settings, and the limits on length.

    A target may hold at most `ceil(max_length_factor * source_length) + max_length_offset`
    pieces, EOS included on both sides; the limit belongs to the sentence, so that
    its translation does not depend on the sentences it shares a batch with.

    Raises:
      UserError: a value is out of its range.
    """

    method: Literal["beam", "greedy", "sample"] = "beam"
    beam_size: int = 4
    length_penalty: float = 0.6  #: score = log-prob / ((5 + length) / 6) ** length_penalty
    max_length_factor: float = 1.5
    max_length_offset: int = 10
    max_source_length: int = 256  #: longer input (in pieces, EOS included) is cut and counted
    batch_size: int = 32  #: sentences a process decodes together; changes speed and memory only
    temperature: float = 1.0  #: sampling: logits are divided by it
    top_k: int = 0  #: sampling: only the k most probable pieces; 0 = all
    top_p: float = 1.0  #: sampling: only the smallest set of pieces with this probability
    num_samples: int = 1  #: sampling: translations drawn for each sentence
    seed: int = 0  #: sampling

    def __post_init__(self) -> None:
        def require(valid: bool, key: str, rule: str) -> None:
            if not valid:
                raise UserError(f"decode.{key}={getattr(self, key)!r}: must be {rule}")

        methods = ("beam", "greedy", "sample")
        require(self.method in methods, "method", "one of " + ", ".join(methods))
        require(self.beam_size >= 1, "beam_size", "at least 1")
        require(math.isfinite(self.length_penalty), "length_penalty", "a finite number")
        require(0 <= self.max_length_factor < math.inf, "max_length_factor", "finite, 0 or larger")
        require(self.max_length_offset >= 1, "max_length_offset", "at least 1 (room for EOS)")
        require(self.max_source_length >= 2, "max_source_length", "at least 2")
        require(self.batch_size >= 1, "batch_size", "at least 1")
        require(
            0 < self.temperature < math.inf,
            "temperature",
            "above 0 (for the most probable piece at each step, use method=greedy)",
        )
        require(self.top_k >= 0, "top_k", "0 (no limit) or larger")
        require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        require(self.num_samples >= 1, "num_samples", "at least 1")
        require(0 <= self.seed < 2**32, "seed", "between 0 and 2**32 - 1")

    @property
    def num_hypotheses(self) -> int:
        """Z: hypotheses carried, and returned, for each sentence."""
        return {"beam": self.beam_size, "greedy": 1, "sample": self.num_samples}[self.method]

    def max_target_length(self, source_length: int) -> int:
        """Most target pieces, EOS included, for a source of `source_length` pieces."""
        return math.ceil(self.max_length_factor * source_length) + self.max_length_offset


def overridden(config: DecodeConfig, given: dict[str, Any]) -> DecodeConfig:
    """`config` with the given fields instead of its own.

    Only what is given must have an effect: a run's config may hold settings of several methods.

    Raises:
      UserError: a value is out of its range, or the method does not read the field.
    """
    config = replace(config, **given)
    for key, value in given.items():
        method = _METHOD_OF.get(key, config.method)
        if method != config.method:
            raise UserError(
                f"decode.{key}={value!r} has no effect with method={config.method}: "
                f"leave it out, or use method={method}"
            )
    return config


def while_training(config: DecodeConfig) -> DecodeConfig:
    """How the validation set is translated between training steps: quickly."""
    return replace(config, method="greedy", batch_size=64)
