"""Recurrent layers equal those of the Hugging Face library on the same random weights.

Gated DeltaNet equals Qwen3-Next's and Kimi's in outputs, the last state, and the gradients of
inputs and weights; Mamba and Mamba-2 equal theirs in outputs. Its RWKV is version 4, which has no
matrix state, so that one has no counterpart there.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from transformer_jax.mixers.base import MixerConfig, MixerContext
from transformer_jax.mixers.gated_deltanet import GatedDeltaNet
from transformer_jax.mixers.mamba import Mamba
from transformer_jax.mixers.ssd import SSD
from transformer_jax.positions.none import NoPosition

torch = need("torch")
transformers = need("transformers")
qwen = need("transformers.models.qwen3_next.modeling_qwen3_next")
kimi = need("transformers.models.kimi_linear.modeling_kimi_linear")

BATCH, D, H, K = 2, 16, 2, 8
TOLERANCE = dict(atol=1e-4, rtol=1e-4)


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def kernel(tensor):
    """torch stores [out, in]."""
    return {"kernel": array(tensor).T}


@dataclass
class Copied:
    """One of theirs, its weights as ours has them, and the options of ours."""

    theirs: torch.nn.Module
    config: object
    params: dict
    options: MixerConfig


def randomised(module):
    """Random weights, so that zeros and equal values hide no mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def convolution(theirs):
    taps, bias = array(theirs.conv1d.weight)[:, 0].T, theirs.conv1d.bias
    return {"kernel": taps, "bias": jnp.zeros(taps.shape[1:]) if bias is None else array(bias)}


def qwen3_next(expand=2):
    config = transformers.Qwen3NextConfig(
        hidden_size=D,
        linear_num_value_heads=H,
        linear_num_key_heads=H,
        linear_key_head_dim=K,
        linear_value_head_dim=expand * K,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = randomised(qwen.Qwen3NextGatedDeltaNet(config, 0))
    by_head = theirs.in_proj_qkvz.weight.reshape(H, -1, D)
    q, k, v, z = (
        part.reshape(-1, D) for part in torch.split(by_head, [K, K, expand * K, expand * K], dim=1)
    )
    b, a = (part.reshape(-1, D) for part in theirs.in_proj_ba.weight.reshape(H, 2, D).unbind(1))
    params = {
        "into": kernel(torch.cat([q, k, v])),
        "conv": convolution(theirs),
        "strength": kernel(b),
        "delta": kernel(a),
        "delta_bias": array(theirs.dt_bias),
        "log_decay": array(theirs.A_log),
        "gate": kernel(z),
        "norm": {"scale": jnp.tile(array(theirs.norm.weight), H)},
        "out": kernel(theirs.out_proj.weight),
    }
    return Copied(theirs, config, params, GatedDeltaNet(expand=expand, chunk=16))


def kimi_linear():
    config = transformers.KimiLinearConfig(
        hidden_size=D,
        linear_num_heads=H,
        linear_head_dim=K,
        linear_conv_kernel_dim=4,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        rms_norm_eps=1e-6,
    )
    theirs = randomised(kimi.KimiLinearDeltaAttention(config, 0))
    forget = theirs.forget_gate
    into = torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight])
    params = {
        "into": kernel(into),
        "conv": convolution(theirs),
        "strength": kernel(theirs.b_proj.weight),
        "delta_low": kernel(forget.f_a_proj.weight),
        "delta": kernel(forget.f_b_proj.weight),
        "delta_bias": array(forget.dt_bias),
        "log_decay": array(forget.A_log).reshape(-1),
        "gate": kernel(theirs.g_b_proj.weight @ theirs.g_a_proj.weight),
        "norm": {"scale": jnp.tile(array(theirs.o_norm.weight), H)},
        "out": kernel(theirs.o_proj.weight),
    }
    options = GatedDeltaNet(decay="channel", gate="sigmoid", chunk=16)
    return Copied(theirs, config, params, options)


#: Our parameter -> theirs, of those whose layout is the same but for a transposition.
SAME = {
    qwen3_next: {"out": "out_proj", "delta_bias": "dt_bias", "log_decay": "A_log"},
    kimi_linear: {
        "out": "o_proj",
        "strength": "b_proj",
        "delta": "forget_gate.f_b_proj",
        "delta_low": "forget_gate.f_a_proj",
        "delta_bias": "forget_gate.dt_bias",
        "log_decay": "forget_gate.A_log",
    },
}


@pytest.mark.parametrize("length", [1, 21, 130])
@pytest.mark.parametrize("source", [qwen3_next, kimi_linear])
def test_a_layer_equals_theirs(source, length):
    copied = source()
    context = MixerContext(D, num_heads=H, head_dim=K, max_length=length, causal=True)
    ours = copied.options.build(context, NoPosition().build(context))
    x = np.array(jax.random.normal(jax.random.key(0), (BATCH, length, D)))
    weights = np.array(jax.random.normal(jax.random.key(1), x.shape))
    mask = jnp.ones((BATCH, length), bool)

    inputs = torch.tensor(x, requires_grad=True)
    cache = transformers.DynamicCache(config=copied.config)
    want = copied.theirs(inputs)
    (want * torch.tensor(weights)).sum().backward()
    with torch.no_grad():
        copied.theirs(inputs, cache_params=cache)

    def loss(params, x):
        y = ours.apply({"params": params}, x, mask)
        return (y * weights).sum(), y

    (grads, x_grad), got = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(copied.params, x)
    assert np.abs(array(want)).max() > 0.1
    np.testing.assert_allclose(got, array(want), **TOLERANCE)
    np.testing.assert_allclose(x_grad, array(inputs.grad), **TOLERANCE)
    for name, path in SAME[source].items():
        target = copied.theirs.get_submodule(path.rpartition(".")[0])
        target = getattr(target, path.rpartition(".")[2])
        target = getattr(target, "weight", target)
        gradient = grads[name]["kernel"].T if isinstance(grads[name], dict) else grads[name]
        wanted = array(target.grad).reshape(gradient.shape)
        np.testing.assert_allclose(gradient, wanted, err_msg=name, **TOLERANCE)

    def stepped(x, state):
        return ours.apply({"params": copied.params}, x, state, jnp.int32(0), method="step")

    step = jax.jit(stepped)
    state = ours.apply({"params": copied.params}, BATCH, length, method="init_state")
    for t in range(length):
        _, state = step(x[:, t], state)
    last = cache.get_recurrent_state(0, state_idx=0)
    np.testing.assert_allclose(state.hidden, array(last), **TOLERANCE)


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
        "conv": convolution(theirs),
        "select": kernel(theirs.x_proj.weight),
        "delta": kernel(theirs.dt_proj.weight),
        "delta_bias": array(theirs.dt_proj.bias),
        "log_decay": array(theirs.A_log),
        "skip": array(theirs.D),
        "out": kernel(theirs.out_proj.weight),
    }
    options = Mamba(state_size=3, conv_width=3, dt_rank=2, chunk=4)
    return Copied(theirs, config, params, options)


def ssd():
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = transformers.Mamba2Config(
        hidden_size=D,
        state_size=3,
        conv_kernel=3,
        expand=2,
        num_heads=4,
        head_dim=K,
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
        "conv": convolution(theirs),
        "delta_bias": array(theirs.dt_bias),
        "log_decay": array(theirs.A_log),
        "skip": array(theirs.D),
        "norm": {"scale": array(theirs.norm.weight)},
        "out": kernel(theirs.out_proj.weight),
    }
    options = SSD(state_size=3, conv_width=3, head_dim=K, groups=2, chunk=4)
    return Copied(theirs, config, params, options)


@pytest.mark.parametrize("source", [mamba, ssd])
def test_outputs_equal_theirs(source):
    copied, length = source(), 11
    context = MixerContext(D, num_heads=H, head_dim=K, max_length=length, causal=True)
    ours = copied.options.build(context, NoPosition().build(context))
    x = np.array(jax.random.normal(jax.random.key(0), (BATCH, length, D)))
    got = ours.apply({"params": copied.params}, x, jnp.ones((BATCH, length), bool))
    with torch.no_grad():
        want = copied.theirs(torch.tensor(x)).numpy()
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)
