"""What the translator asks of a model, and the two calls that are compiled for each shape."""

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from transformer_jax.data.special_ids import BOS_ID
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.hypotheses import Hypotheses
from transformer_jax.decoding.search import decode


class Model(Protocol):
    """The pure functions of a translation model; `transformer_jax.models.api` is one.

    It must be hashable, since it is static under jit.
    """

    def encode(
        self,
        config: Any,
        params: Any,
        source_BS: Any,
        source_mask_BS: Any,
        *,
        max_length: int,
        beam_size: int,
    ) -> tuple[Any, Any]:
        """(sentence, state) before position 0."""

    def decode_step(
        self, config: Any, params: Any, tokens_BZ: Any, position: Any, state: Any, sentence: Any
    ) -> tuple[Any, Any]:
        """(logits [B, Z, V], state)."""

    def apply(
        self,
        config: Any,
        params: Any,
        source_BS: Any,
        source_mask_BS: Any,
        target_in_BT: Any,
        target_mask_BT: Any,
    ) -> Any:
        """Teacher-forced logits [B, T, V]."""


@functools.partial(jax.jit, static_argnames=("model", "model_config", "config", "max_length"))
def decode_batch(
    params: Any,
    source_BS: jax.Array,
    source_mask_BS: jax.Array,
    max_lengths_B: jax.Array,
    sentence_ids_B: jax.Array,
    key: jax.Array,
    *,
    model: Model,
    model_config: Any,
    config: DecodeConfig,
    max_length: int,
) -> Hypotheses:
    """Encodes a padded batch and searches it; arguments as `decode`'s and `Model.encode`'s."""
    sentence, state = model.encode(
        model_config,
        params,
        source_BS,
        source_mask_BS,
        max_length=max_length,
        beam_size=config.num_hypotheses,
    )

    def step(tokens_BZ: jax.Array, position: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        return model.decode_step(model_config, params, tokens_BZ, position, state, sentence)

    return decode(config, step, state, max_lengths_B, sentence_ids_B, key, max_length=max_length)


@functools.partial(jax.jit, static_argnames=("model", "model_config"))
def score_batch(
    params: Any,
    source_BS: jax.Array,
    source_mask_BS: jax.Array,
    target_BT: jax.Array,
    target_mask_BT: jax.Array,
    *,
    model: Model,
    model_config: Any,
) -> jax.Array:
    """log p(target | source) of each row, float32 [B], in nats."""
    target_in_BT = jnp.pad(target_BT[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    logits_BTV = model.apply(
        model_config, params, source_BS, source_mask_BS, target_in_BT, target_mask_BT
    )
    logit_BT = jnp.take_along_axis(logits_BTV, target_BT[:, :, None], axis=2)[:, :, 0]
    log_probs_BT = logit_BT - jax.nn.logsumexp(logits_BTV, axis=-1)
    return jnp.where(target_mask_BT, log_probs_BT, 0.0).sum(axis=1)
