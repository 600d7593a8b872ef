"""What the translator asks of a model, and the two calls that are compiled for each shape.

On a mesh, sentences are split over its data devices, and with them all that decoding keeps of a
sentence or of its beams; what one device finds depends on no other's sentences.
"""

import contextlib
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.hypotheses import Hypotheses
from transformer_jax.decoding.search import decode
from transformer_jax.ops.sharding import constrain
from transformer_jax.parallel.mesh import activations_on
from transformer_jax.vocabulary import BOS_ID


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


def _on(mesh: Mesh | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if mesh is None else activations_on(mesh)


def _by_sentence(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: constrain(leaf, "batch"), tree)


@functools.partial(
    jax.jit, static_argnames=("model", "model_config", "config", "max_length", "mesh")
)
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
    mesh: Mesh | None = None,
) -> Hypotheses:
    """Encodes a padded batch and searches it; arguments as `decode`'s and `Model.encode`'s."""
    with _on(mesh):
        sentence, state = _by_sentence(
            model.encode(
                model_config,
                params,
                source_BS,
                source_mask_BS,
                max_length=max_length,
                beam_size=config.num_hypotheses,
            )
        )

        def step(tokens_BZ: jax.Array, position: jax.Array, state: Any) -> tuple[jax.Array, Any]:
            logits_BZV, state = model.decode_step(
                model_config, params, tokens_BZ, position, state, sentence
            )
            return constrain(logits_BZV, "batch", None, None), _by_sentence(state)

        return _by_sentence(
            decode(config, step, state, max_lengths_B, sentence_ids_B, key, max_length=max_length)
        )


@functools.partial(jax.jit, static_argnames=("model", "model_config", "mesh"))
def score_batch(
    params: Any,
    source_BS: jax.Array,
    source_mask_BS: jax.Array,
    target_BT: jax.Array,
    target_mask_BT: jax.Array,
    *,
    model: Model,
    model_config: Any,
    mesh: Mesh | None = None,
) -> jax.Array:
    """log p(target | source) of each row, float32 [B], in nats."""
    target_in_BT = jnp.pad(target_BT[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    with _on(mesh):
        logits_BTV = constrain(
            model.apply(
                model_config, params, source_BS, source_mask_BS, target_in_BT, target_mask_BT
            ),
            "batch",
        )
    logit_BT = jnp.take_along_axis(logits_BTV, target_BT[:, :, None], axis=2)[:, :, 0]
    log_probs_BT = logit_BT - jax.nn.logsumexp(logits_BTV, axis=-1)
    return jnp.where(target_mask_BT, log_probs_BT, 0.0).sum(axis=1)
