"""A loss, rules for decoding, and gradients by inputs."""

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import transformer_jax as tj

MODEL = tj.ModelConfig(
    source_vocab_size=20,
    target_vocab_size=20,
    d_model=16,
    d_ff=16,
    num_heads=2,
    encoder=tj.StackConfig(num_layers=1),
    decoder=tj.StackConfig(num_layers=1),
    max_length=8,
    dropout_rate=0.3,
)
STEPS = 6


def batches(position: int) -> Iterator[dict[str, Any]]:
    """Random batches, from a position on."""
    for place in range(position, STEPS):
        source = jax.random.randint(jax.random.key(place), (8, 5), 4, 20)
        mask = jnp.ones(source.shape, bool)
        batch = {"source": source, "source_mask": mask, "target": source, "target_mask": mask}
        yield batch | {"weight": jnp.full((8,), 0.5)}


def r_drop(
    params: Any, batch: Mapping[str, jax.Array], key: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Two passes with dropout that must agree (Liang et al. 2021, arXiv:2106.14448)."""
    source, target = batch["source"], batch["target"]
    keys = [None, None] if key is None else list(jax.random.split(key))
    arrays = source, batch["source_mask"], tj.shift_right(target), batch["target_mask"]
    one, two = (jax.nn.log_softmax(tj.apply(MODEL, params, *arrays, rng=each)) for each in keys)
    nll = -sum(jnp.take_along_axis(each, target[..., None], -1).sum() for each in (one, two)) / 2
    apart = ((jnp.exp(one) - jnp.exp(two)) * (one - two)).sum() / 2
    weight = batch["weight"].mean()  # of the rows: an array of our own
    return nll + weight * apart, jnp.asarray(nll), batch["target_mask"].sum().astype(jnp.float32)


def train(workdir: str | None, die_after: int = STEPS + 1) -> Any:
    """Trains with `r_drop`, or goes on; returns the state. After so many steps it is killed."""
    left = [die_after]

    def should_stop() -> bool:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    config = tj.TrainConfig(steps=STEPS, checkpoint_every=2, evaluate_every=STEPS)
    return tj.fit(MODEL, config, batches, loss=r_drop, workdir=workdir, should_stop=should_stop)


def never(piece: int, size: int) -> tj.Constrained:
    """A beam of two that does not write a piece."""
    return tj.Constrained(tj.Beam(2), lambda prefix, position: jnp.arange(size) != piece)


def gradient_by_source(params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, Any]:
    """The gradient of a sum of logits by the embeddings of the source, and the sum by them."""
    target_in = tj.shift_right(batch["target"])
    words, target_words = tj.embed(MODEL, params, batch["source"], target_in)

    def total(words: jax.Array) -> jax.Array:
        both = words, batch["source_mask"], target_words, batch["target_mask"]
        return jnp.tanh(tj.apply(MODEL, params, *both)).sum()

    return jax.grad(total)(words), (jax.jit(total), words)
