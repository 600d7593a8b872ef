"""What every position scheme must satisfy, as functions that raise AssertionError.

They take configs, so that the suite itself can be tried on broken schemes.
"""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from transformer_jax.mixers.full_attention import Full
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.models.inside import hidden_states
from transformer_jax.models.paths import by_path
from transformer_jax.positions.base import Position, PositionConfig
from transformer_jax.testing import mixers as suite
from transformer_jax.testing.layers import check_reached, noisy

HEAD_DIM = suite.D // suite.HEADS


def build(config: PositionConfig, *, causal: bool) -> tuple[Position, Any]:
    """The scheme by itself, and its variables with nothing left at zero."""
    scheme = config.build(suite.context(causal=causal))
    return scheme, noisy(nn.unbox(scheme.init(jax.random.key(1), jnp.arange(3), method=_seen)))


def _seen(scheme: Position, positions: Array) -> tuple[Array, Array]:
    """The embeddings [L, D] and the scores [H, L, L], through which positions reach attention."""
    length = len(positions)
    width = scheme.config.word_width(suite.D)
    words = jax.random.normal(jax.random.key(3), (1, length, width))
    q, k = jax.random.normal(jax.random.key(4), (2, 1, length, suite.HEADS, HEAD_DIM))
    q, k = scheme.rotate(q, k, positions, positions)
    bias = scheme.bias(positions, positions)
    scores = jnp.einsum("bthk,bmhk->bhtm", q, k)[0] + (0.0 if bias is None else bias)
    return scheme.embed(words, positions)[0], scores


def check_shift_invariance(config: PositionConfig) -> None:
    """Adding a number to all positions changes nothing if and only if `shift_invariant`."""
    for causal in (False, True):
        scheme, variables = build(config, causal=causal)
        here = scheme.apply(variables, jnp.arange(4), method=_seen)
        there = scheme.apply(variables, jnp.arange(4) + 3, method=_seen)
        moved = max(float(jnp.abs(a - b).max()) for a, b in zip(here, there, strict=True))
        assert (moved < suite.TOLERANCE) == config.shift_invariant, f"moved by {moved}"


def check_widths(config: PositionConfig) -> None:
    """Each hook keeps the shapes and the dtype; a bias is float32."""
    scheme, variables = build(config, causal=False)
    positions = jnp.arange(4)
    width = config.word_width(suite.D)
    for dtype in (jnp.float32, jnp.bfloat16):
        words = jnp.ones((2, 4, width), dtype)
        embedded = scheme.apply(variables, words, positions, method="embed")
        assert (embedded.shape, embedded.dtype) == ((2, 4, suite.D), dtype)
        q, k = jnp.ones((2, 4, suite.HEADS, HEAD_DIM), dtype), jnp.ones((2, 4, 1, HEAD_DIM), dtype)
        turned = scheme.apply(variables, q, k, positions, positions, method="rotate")
        assert [(x.shape, x.dtype) for x in turned] == [(q.shape, dtype), (k.shape, dtype)]
    bias = scheme.apply(variables, positions[:1], positions, method="bias")
    if bias is not None:
        assert (bias.shape, bias.dtype) == ((suite.HEADS, 1, 4), jnp.float32)


def check_mixer_steps(config: PositionConfig) -> None:
    """Full attention under this scheme: unrolling `step` gives `__call__`, and no leak."""
    context = suite.context(causal=True)
    mixer = Full().build(context, config.build(context))
    variables = suite.initialised(mixer)
    suite.check_step_equals_parallel(mixer, variables)
    suite.check_no_leak(mixer, variables)


def tiny(position: PositionConfig) -> ModelConfig:
    """A model with one layer on each side, and this scheme on both."""
    stack = StackConfig(num_layers=1, position=position)
    return ModelConfig(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=suite.D,
        d_ff=16,
        num_heads=suite.HEADS,
        encoder=stack,
        decoder=stack,
        max_length=suite.LENGTH,
    )


_apply = jax.jit(api.apply, static_argnums=0)


@cache
def _params(config: ModelConfig) -> Any:
    return noisy(jax.jit(api.init, static_argnums=0)(config, jax.random.key(0)))


SOURCE = np.array([[5, 9, 14, 7, 11]])
TARGET = np.array([[6, 8, 10, 2]])
MASKS = np.ones(SOURCE.shape, bool), np.ones(TARGET.shape, bool)


def order_matters(position: PositionConfig) -> bool:
    """Whether the encoder of a model is not permutation-equivariant."""
    config, order = tiny(position), jnp.array([3, 1, 2, 0, 4])

    @jax.jit
    def encode(ids: Array) -> Array:
        arrays = ids, MASKS[0], TARGET, MASKS[1]
        return hidden_states(config, _params(config), *arrays)[1]["encoder"]

    difference = jnp.abs(encode(SOURCE[:, order]) - encode(SOURCE)[:, order]).max()
    return bool(difference > 1e-3)


def check_model_steps(position: PositionConfig) -> None:
    """A model under this scheme: decoding step by step equals teacher forcing, with two beams."""
    config = tiny(position)
    params = _params(config)
    target_in = api.shift_right(TARGET)
    want = _apply(config, params, SOURCE, MASKS[0], target_in, MASKS[1])
    length = TARGET.shape[1]
    encode = jax.jit(partial(api.encode, max_length=length, beam_size=2), static_argnums=0)
    sentence, state = encode(config, params, SOURCE, MASKS[0])
    step = jax.jit(api.decode_step, static_argnums=0)
    for t in range(length):
        tokens = jnp.stack([target_in[:, t]] * 2, axis=1)
        got, state = step(config, params, tokens, jnp.int32(t), state, sentence)
        np.testing.assert_allclose(got[0, 1], want[0, t], atol=suite.TOLERANCE)


def check_parameters(position: PositionConfig) -> None:
    """A stack's layers share one set of parameters, and a gradient reaches every one."""
    config = tiny(position)
    params = _params(config)
    texts = {"source": SOURCE, "target": TARGET}
    batch = texts | {f"{side}_mask": mask for side, mask in zip(texts, MASKS, strict=True)}

    def gradients(config: ModelConfig) -> Any:
        return jax.jit(jax.grad(lambda p: api.loss(config, p, batch)[0]))(params)

    grads, again = gradients(config), gradients(replace(config, remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), grads, again)
    for stack in ("encoder", "decoder"):
        places = [path for path in by_path(params[stack]) if "position" in path]
        assert all(place.startswith("position/") for place in places), places
        check_reached(grads[stack].get("position", {}))


def check_position(config: PositionConfig) -> None:
    """Runs every check on a scheme, alone, in a mixer and in a model."""
    check_shift_invariance(config)
    check_widths(config)
    check_mixer_steps(config)
    check_model_steps(config)
    check_parameters(config)
