"""Several models that translate together.

The next piece is predicted by the mean of what the models predict, each from its own encoder and
its own decoder state:

* `log_probs`: p(y) is proportional to exp(mean over models of log p_i(y)), the geometric mean;
* `probs`: p(y) = mean over models of p_i(y).

The models share their vocabularies; anything else may differ. The functions here are those of
`models.api` with an `Ensemble` in place of a `ModelConfig` and a tuple of parameters, one a member,
in place of parameters, so decoding and scoring do not distinguish the two.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.api import WeightForm
from transformer_jax.models.config import ModelConfig

#: What is averaged.
Mean = Literal["log_probs", "probs"]


@dataclass(frozen=True)
class Ensemble:
    """The configs of the models, and how they are averaged."""

    members: tuple[ModelConfig, ...]
    mean: Mean = "log_probs"

    def __post_init__(self) -> None:
        sizes = {(each.source_vocab_size, each.target_vocab_size) for each in self.members}
        if len(sizes) != 1:
            raise UserError(
                f"the models of an ensemble have vocabularies of {sorted(sizes)} pieces"
            )

    @property
    def max_length(self) -> int:
        """The most tokens on a side that every member takes."""
        return min(member.max_length for member in self.members)

    @property
    def target_vocab_size(self) -> int | None:
        """That of every member."""
        return self.members[0].target_vocab_size


def logical_axes(config: Ensemble) -> tuple[Any, ...]:
    """As `api.logical_axes`, of each member."""
    return tuple(map(api.logical_axes, config.members))


def for_decoding(
    config: Ensemble, params: tuple[Any, ...], weights: WeightForm = "float"
) -> tuple[Any, ...]:
    """As `api.for_decoding`, of each member."""
    pairs = zip(config.members, params, strict=True)
    return tuple(api.for_decoding(member, each, weights) for member, each in pairs)


def decoding_axes(config: Ensemble, weights: WeightForm = "float") -> tuple[Any, ...]:
    """As `api.decoding_axes`, of each member."""
    return tuple(api.decoding_axes(member, weights) for member in config.members)


def apply(config: Ensemble, params: tuple[Any, ...], *arrays: jax.Array) -> jax.Array:
    """As `api.apply`; logits are log-probabilities up to a constant of each position."""
    members = zip(config.members, params, strict=True)
    return _mean([api.apply(member, p, *arrays) for member, p in members], config.mean)


def encode(
    config: Ensemble, params: tuple[Any, ...], *arrays: jax.Array, max_length: int, beam_size: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """As `api.encode`, for each member."""
    encoded = [
        api.encode(member, p, *arrays, max_length=max_length, beam_size=beam_size)
        for member, p in zip(config.members, params, strict=True)
    ]
    sentences, states = zip(*encoded, strict=True)
    return sentences, states


def decode_step(
    config: Ensemble,
    params: tuple[Any, ...],
    tokens_BZ: jax.Array,
    position: jax.Array,
    states: tuple[Any, ...],
    sentences: tuple[Any, ...],
) -> tuple[jax.Array, tuple[Any, ...]]:
    """As `api.decode_step`; logits are log-probabilities up to a constant of each row."""
    stepped = [
        api.decode_step(member, p, tokens_BZ, position, state, sentence)
        for member, p, state, sentence in zip(
            config.members, params, states, sentences, strict=True
        )
    ]
    logits, states = zip(*stepped, strict=True)
    return _mean(logits, config.mean), states


def shift_right(target_BT: jax.Array) -> jax.Array:
    """`api.shift_right`."""
    return api.shift_right(target_BT)


def _mean(logits: Any, mean: Mean) -> jax.Array:
    """From logits [..., V] of each member."""
    log_probs = [jax.nn.log_softmax(each, axis=-1) for each in logits]
    add = jnp.add if mean == "log_probs" else jnp.logaddexp
    total = functools.reduce(add, log_probs)
    return total / len(log_probs) if mean == "log_probs" else total
