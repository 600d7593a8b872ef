"""LSH attention against Hugging Face's, where the two are the same.

With more than one bucket they are not: theirs lets a query attend across buckets within
its chunks, and its causal chunks move with the future (see `ops.lsh_attention`). With one
bucket what is left is the shared queries and keys, the normalisation, the rule on
attending to oneself, the masks, the chunks and the rounds; of these the whole form
(length within one chunk) is compared in both roles, and the chunks in the encoder, from
the second on: theirs closes a circle, so that the first also looks back at the last.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need

torch = need("torch")
transformers = need("transformers")

from transformers.models.reformer.modeling_reformer import LSHSelfAttention  # noqa: E402

from transformer_jax.mixers.reformer import Reformer  # noqa: E402
from transformer_jax.testing import mixers as suite  # noqa: E402

LENGTH = 12


def theirs(*, chunk, causal, rounds):
    torch.manual_seed(0)
    config = transformers.ReformerConfig(
        hidden_size=suite.D,
        num_attention_heads=suite.HEADS,
        attention_head_size=suite.D // suite.HEADS,
        lsh_attn_chunk_length=chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        num_hashes=rounds,
        num_buckets=2,
        is_decoder=causal,
        lsh_attention_probs_dropout_prob=0.0,
    )
    return LSHSelfAttention(config, layer_idx=0).eval()


def ours(module, *, chunk, causal):
    context = dataclasses.replace(suite.context(causal=causal), max_length=LENGTH)
    kernels = {
        name: jnp.asarray(getattr(module, name).weight.detach().numpy().T)
        for name in ("query_key", "value")
    }
    params = {
        "query_key": {"kernel": kernels["query_key"]},
        "value": {"kernel": kernels["value"], "bias": jnp.zeros(suite.D)},
        "out": {"kernel": jnp.eye(suite.D), "bias": jnp.zeros(suite.D)},
    }
    config = Reformer(chunk=chunk, buckets=1)
    return config.build(context, suite.position(causal=causal)), {"params": params}


def inputs():
    return np.random.default_rng(0).standard_normal((2, LENGTH, suite.D)).astype(np.float32)


@pytest.mark.parametrize("causal", [False, True])
def test_within_one_chunk(causal):
    module = theirs(chunk=LENGTH, causal=causal, rounds=1)
    x, mask = inputs(), np.arange(LENGTH) < np.array([LENGTH, 7])[:, None]
    with torch.no_grad():
        want = module(torch.tensor(x), attention_mask=torch.tensor(mask).long())
    mixer, variables = ours(module, chunk=LENGTH, causal=causal)
    got = suite.parallel(mixer, variables, x, mask)
    np.testing.assert_allclose(got[mask], want.hidden_states.numpy()[mask], atol=1e-5)


def test_chunks_of_one_bucket():
    module = theirs(chunk=4, causal=False, rounds=1)
    x = inputs()
    one_bucket = torch.zeros((2, suite.HEADS, 1, LENGTH), dtype=torch.long)
    with torch.no_grad():
        want = module(torch.tensor(x), buckets=one_bucket).hidden_states.numpy()
    mixer, variables = ours(module, chunk=4, causal=False)
    got = np.asarray(suite.parallel(mixer, variables, x, np.ones((2, LENGTH), bool)))
    np.testing.assert_allclose(got[:, 4:], want[:, 4:], atol=1e-5)
    assert not np.allclose(got[:, :4], want[:, :4], atol=1e-3)  # their circle
