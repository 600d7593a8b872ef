"""What `transformer_jax.inspect` shows is what the model computes with."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.inspect import attention_weights
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig

CONFIG = ModelConfig(
    source_vocab_size=20,
    target_vocab_size=20,
    d_model=16,
    d_ff=32,
    num_heads=2,
    encoder=StackConfig(num_layers=2),
    decoder=StackConfig(num_layers=1),
    max_length=12,
)
SOURCE, TARGET = [5, 6, 7, 2], [9, 8, 2]


def test_one_distribution_a_query_for_every_layer_and_head():
    params = api.init(CONFIG, jax.random.key(0))
    weights = attention_weights(CONFIG, params, SOURCE, TARGET)
    assert {name: w.shape for name, w in weights.items()} == {
        "encoder.0": (2, 4, 4),
        "encoder.1": (2, 4, 4),
        "decoder.0": (2, 3, 3),
        "cross.0": (2, 3, 4),
    }
    for rows in weights.values():
        np.testing.assert_allclose(rows.sum(-1), 1.0, atol=1e-6)
    assert (weights["decoder.0"][:, np.triu_indices(3, 1)[0], np.triu_indices(3, 1)[1]] == 0).all()


def test_the_weights_are_those_of_the_formula():
    params = api.init(CONFIG, jax.random.key(0))
    weights = attention_weights(CONFIG, params, SOURCE, TARGET)["encoder.0"]
    block = params["encoder"]["blocks_0"]
    rates = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    angles = np.arange(4)[:, None] * rates
    sinusoids = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(4, 16)
    x = params["target_embedding"]["table"][jnp.array(SOURCE)] * 4.0 + sinusoids
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    heads = block["mixer"]["heads"]
    q = (x @ heads["query"]["kernel"] + heads["query"]["bias"]).reshape(4, 2, 8)
    k = (x @ heads["key"]["kernel"]).reshape(4, 2, 8)
    scores = np.einsum("thk,mhk->htm", q, k) / np.sqrt(8)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
