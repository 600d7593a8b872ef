"""Mamba and Mamba-2 equal those of the Hugging Face library on the same random weights.

Its RWKV is version 4, which has no matrix state, so that one has no counterpart there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.positions.none import NoPosition

torch = need("torch")
transformers = need("transformers")

BATCH, LENGTH, D = 2, 11, 8


def randomised(module):
    """Random weights, so that zeros and equal values hide no mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.5 * noise)
    return module.eval()


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def kernel(tensor):
    """torch stores [out, in]."""
    return {"kernel": array(tensor).T}


def convolution(module):
    return {"kernel": array(module.weight)[:, 0].T, "bias": array(module.bias)}


def mamba():
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = transformers.MambaConfig(
        hidden_size=D,
        state_size=3,
        conv_kernel=3,
        expand=2,
        time_step_rank=2,
        num_hidden_layers=1,
        vocab_size=7,
    )
    theirs = randomised(MambaMixer(config, 0))
    into, gate = torch.split(theirs.in_proj.weight, 2 * D)
    params = {
        "into": kernel(into),
        "gate": kernel(gate),
        "conv": convolution(theirs.conv1d),
        "select": kernel(theirs.x_proj.weight),
        "delta": kernel(theirs.dt_proj.weight),
        "delta_bias": array(theirs.dt_proj.bias),
        "log_decay": array(theirs.A_log),
        "skip": array(theirs.D),
        "out": kernel(theirs.out_proj.weight),
    }
    return theirs, params, {"state_size": 3, "conv_width": 3, "dt_rank": 2, "chunk": 4}


def ssd():
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = transformers.Mamba2Config(
        hidden_size=D,
        state_size=3,
        conv_kernel=3,
        expand=2,
        num_heads=4,
        head_dim=4,
        n_groups=2,
        num_hidden_layers=1,
        vocab_size=7,
        chunk_size=4,
    )
    theirs = randomised(Mamba2Mixer(config, 0))
    gate, into, delta = torch.split(theirs.in_proj.weight, [2 * D, 2 * D + 12, 4])
    params = {
        "into": kernel(into),
        "gate": kernel(gate),
        "delta": kernel(delta),
        "conv": convolution(theirs.conv1d),
        "delta_bias": array(theirs.dt_bias),
        "log_decay": array(theirs.A_log),
        "skip": array(theirs.D),
        "norm": {"scale": array(theirs.norm.weight)},
        "out": kernel(theirs.out_proj.weight),
    }
    return (
        theirs,
        params,
        {
            "state_size": 3,
            "conv_width": 3,
            "head_dim": 4,
            "groups": 2,
            "chunk": 4,
        },
    )


@pytest.mark.parametrize("copied", [mamba, ssd])
def test_equals_hugging_face(copied):
    theirs, params, options = copied()
    context = MixerContext(D, num_heads=2, head_dim=4, max_length=LENGTH, causal=True)
    ours = MIXERS[copied.__name__](**options).build(context, NoPosition().build(context))
    x = np.array(jax.random.normal(jax.random.key(0), (BATCH, LENGTH, D)))
    mask = jnp.ones((BATCH, LENGTH), bool)
    got = ours.apply({"params": params}, jnp.asarray(x), mask)
    with torch.no_grad():
        want = theirs(torch.tensor(x)).numpy()
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)
