"""A causal language model in Flax NNX with two mixers of transformer_jax, on all devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import transformer_jax as tj
from acme_mt.parts import Average

D, VOCAB, LENGTH = 16, 12, 12


class LanguageModel(nnx.Module):
    """Embedding, `ssd` and an average with residuals, and the vocabulary."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        x, mask = jnp.zeros((1, LENGTH, D)), jnp.ones((1, LENGTH), bool)
        self.words = nnx.Embed(VOCAB, D, rngs=rngs)
        self.mixers = nnx.List(
            [
                nnx.bridge.ToNNX(
                    tj.MixerLayer(mixer, D, num_heads=2, causal=True).module(), rngs=rngs
                ).lazy_init(x, mask)
                for mixer in (tj.SSD(head_dim=8), Average())
            ]
        )
        self.out = nnx.Linear(D, VOCAB, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x, mask = self.words(ids), jnp.ones(ids.shape, bool)
        for mixer in self.mixers:
            x = x + mixer(x, mask)
        logits: jax.Array = self.out(x)
        return logits


def train(steps: int) -> tuple[list[float], Any]:
    """Learns to count on all devices; returns the losses, and where the last batch was."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    model = LanguageModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model: LanguageModel, optimizer: nnx.Optimizer[Any], ids: jax.Array) -> jax.Array:
        def loss(model: LanguageModel) -> jax.Array:
            logits = model(ids[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    losses, sharding = [], NamedSharding(mesh, PartitionSpec("data"))
    for number in range(steps):
        starts = jax.random.randint(jax.random.key(number), (16, 1), 0, VOCAB)
        ids = jax.device_put((starts + jnp.arange(LENGTH)) % VOCAB, sharding)
        losses.append(float(step(model, optimizer, ids)))
    return losses, ids.sharding
