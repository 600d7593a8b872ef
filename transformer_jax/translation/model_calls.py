"""The functions of a translator that are compiled for each shape: decoding, scoring, aligning.

On a mesh, sentences are split over its data devices, together with the decoder states of
their hypotheses. The result for a sentence does not depend on the device it is on.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from transformer_jax.decoding.base import Hypotheses, Limits, Method, Step
from transformer_jax.decoding.forced_prefix import force_prefix
from transformer_jax.decoding.repetition import Repetition, control_repetition
from transformer_jax.models.api import shift_right
from transformer_jax.ops.key_value_cache import PerSentence, map_state
from transformer_jax.ops.matrices import holds_int8
from transformer_jax.ops.sharding import constrain
from transformer_jax.ops.sums import wide_sums
from transformer_jax.parallel.mesh import activations_on
from transformer_jax.translation.model import Model
from transformer_jax.vocabulary import BOS_ID, PAD_ID, UNK_ID


class Sources(NamedTuple):
    """A padded batch of sentences to translate."""

    ids_BS: Any  #: int32
    mask_BS: Any  #: True at real tokens
    max_lengths_B: Any  #: int32, the longest target of each, EOS included; 0 in padding rows
    numbers_B: Any  #: int32, each sentence's place in the input; samples depend on it
    prefix_BT: Any = None  #: int32, the first target pieces, then PAD; T: `max_length`. None: free
    num_best_B: Any = None  #: int32, how many translations of each are asked for. None: all


class Pairs(NamedTuple):
    """A padded batch of sentences with given translations."""

    source_BS: Any  #: int32
    source_mask_BS: Any  #: True at real tokens
    target_BT: Any  #: int32
    target_mask_BT: Any  #: True at real tokens
    num_forced_B: Any = None  #: int32, first target pieces that are given, not scored. None: 0


def _by_sentence(tree: Any) -> Any:
    return map_state(
        lambda leaf: constrain(leaf, "batch"),
        tree,
        lambda cache: jax.tree.map(lambda leaf: constrain(leaf, None, "batch"), cache),
    )


class Decoding(NamedTuple):
    """What is searched for, and how."""

    method: Method  #: `method.static`, so that another seed does not compile another program
    max_length: int  #: of the result
    repetition: Repetition | None = None
    allow_unk: bool = True  #: see `DecodeConfig`


@functools.partial(jax.jit, static_argnames=("model", "decoding", "mesh"))
def decode_batch(
    params: Any,
    sources: Sources,
    seed: Any = 0,
    *,
    model: Model,
    decoding: Decoding,
    mesh: Mesh | None = None,
) -> Hypotheses:
    """Encodes a batch and searches for its translations, [B, Z, max_length].

    The seed is a scalar of uint32.
    """
    method, max_length, repetition, allow_unk = decoding
    with activations_on(mesh), wide_sums(holds_int8(params)):
        arrays, beam_size = (sources.ids_BS, sources.mask_BS), method.num_hypotheses
        encoded = model.encode(params, *arrays, max_length=max_length, beam_size=beam_size)
        sentence, state = _by_sentence(encoded)
        # Otherwise XLA moves the transposes of `sentence` into the loop of the search.
        sentence = jax.lax.optimization_barrier(sentence)
        state = PerSentence(sentence), state

        def decode_step(tokens_BZ: Array, position: Array, state: Any) -> Any:
            known, inner = state
            logits_BZV, inner = model.decode_step(params, tokens_BZ, position, inner, known.values)
            return constrain(logits_BZV, "batch", None, None), (known, _by_sentence(inner))

        step: Step = decode_step
        if repetition:
            shape_BZT = (sources.ids_BS.shape[0], beam_size, max_length)
            step, state = control_repetition(step, state, repetition, shape_BZT)
        if sources.prefix_BT is not None:
            step, state = force_prefix(step, state, sources.prefix_BT)
        key, limits_B = jax.random.key(seed), sources.max_lengths_B
        never = (PAD_ID, BOS_ID) if allow_unk else (PAD_ID, BOS_ID, UNK_ID)
        limits = Limits(limits_B, sources.numbers_B, key, max_length, sources.num_best_B, never)
        return _by_sentence(method.search(step, state, limits))


@functools.partial(jax.jit, static_argnames=("model", "mesh"))
def score_batch(params: Any, pairs: Pairs, *, model: Model, mesh: Mesh | None = None) -> Array:
    """log p(target | source, forced pieces) of each row, float32 [B], in nats."""
    *source, target_BT, target_mask_BT, num_forced_B = pairs
    with activations_on(mesh):
        logits_BTV = model.apply(params, *source, shift_right(target_BT), target_mask_BT)
        logits_BTV = constrain(logits_BTV, "batch")
    nll_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, target_BT)
    scored_BT = target_mask_BT
    if num_forced_B is not None:
        scored_BT &= jnp.arange(target_BT.shape[1]) >= num_forced_B[:, None]
    return -jnp.where(scored_BT, nll_BT, 0.0).sum(axis=1)


@functools.partial(jax.jit, static_argnames=("model", "mesh"))
def align_batch(params: Any, pairs: Pairs, *, model: Model, mesh: Mesh | None = None) -> Array:
    """How much each target piece of each row uses each source piece, float32 [B, T, S]."""
    *source, target_BT, target_mask_BT, _ = pairs
    with activations_on(mesh):
        looks_BTS = model.alignment(params, *source, shift_right(target_BT), target_mask_BT)
        return constrain(looks_BTS, "batch")
