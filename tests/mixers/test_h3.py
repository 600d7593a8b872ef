"""H3 against its authors' form, and its initial values.

Token by token it is compared in test_recurrent_mixers.py.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax.mixers.h3 import H3
from transformer_jax.testing import mixers as suite


def build(d_model=suite.D, **options):
    context = replace(suite.context(causal=True), d_model=d_model)
    return H3(**options).build(context, suite.position(causal=True))


def fft_convolution(kernel_DL, u_DL):
    """Causal convolution along the last axis, without wrapping around."""
    size = 2 * u_DL.shape[-1]
    product = np.fft.rfft(kernel_DL, size) * np.fft.rfft(u_DL, size)
    return np.fft.irfft(product, size)[..., : u_DL.shape[-1]]


def as_published(p, x_LD, head_dim):
    """`H3.forward` of HazyResearch/H3, src/models/ssm/h3.py, in float64: channels before time.

    Its diagonal systems are those of `disc="zoh"`; B = 1, as it begins there, is part of C. After
    the sum over a head's queries it joins the heads as "(d h)", but splits them as "(h d)". Here
    they are joined as they are split: a permutation of the rows of W_o.
    """
    q_DL, k_DL, v_DL = ((x_LD @ p[n]["kernel"] + p[n]["bias"]).T for n in ("query", "key", "value"))
    width, length = k_DL.shape
    shift_DL = np.zeros((width, length))
    seen = min(length, len(p["shift"]))
    shift_DL[:, :seen] = p["shift"][:seen].T  # C of the shift system, whose B is e_1
    k_DL = fft_convolution(shift_DL, k_DL) + p["shift_skip"][:, None] * k_DL

    s = p["systems"]
    a_HN = -np.exp(s["log_decay"]) + 1j * s["frequency"]
    dta_HN = a_HN * np.exp(s["log_dt"])[:, None]
    c_HN = s["output_map"][0, ..., 0] + 1j * s["output_map"][0, ..., 1]
    c_HN = c_HN * (np.exp(dta_HN) - 1) / a_HN
    powers_HNL = np.exp(dta_HN[..., None] * np.arange(length))
    kernel_HL = 2 * (c_HN[..., None] * powers_HNL).sum(1).real

    q_HPL, k_HPL, v_HPL = (z.reshape(-1, head_dim, length) for z in (q_DL, k_DL, v_DL))
    kv_HPPL = k_HPL[:, :, None] * v_HPL[:, None]
    y_HPPL = fft_convolution(kernel_HL[:, None, None], kv_HPPL)
    y_HPPL = y_HPPL + p["skip"][:, None, None, None] * kv_HPPL
    y_DL = (y_HPPL * q_HPL[:, :, None]).sum(1).reshape(width, length)
    return y_DL.T @ p["out"]["kernel"] + p["out"]["bias"]


@pytest.mark.parametrize("shift_size", [3, 64], ids=["short shift", "long shift"])
@pytest.mark.parametrize("head_dim", [1, 4])
def test_it_equals_the_published_form(head_dim, shift_size):
    mixer = build(head_dim=head_dim, shift_size=shift_size)
    x = jax.random.normal(jax.random.key(0), (1, 20, suite.D))
    mask = jnp.ones(x.shape[:2], bool)
    variables = nn.unbox(mixer.init(jax.random.key(1), x, mask))
    keys = iter(jax.random.split(jax.random.key(2), 100))
    moved = jax.tree.map(lambda w: w + 0.2 * jax.random.normal(next(keys), w.shape), variables)
    exact = jax.tree.map(lambda w: np.asarray(w, np.float64), moved["params"])
    want = as_published(exact, np.asarray(x[0], np.float64), head_dim)
    got = mixer.apply(moved, x, mask)[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("head_dim", [1, 8])
def test_it_begins_with_an_output_smaller_than_its_input(head_dim):
    """The output has three factors; the residual stream, to which it is added, has one."""
    mixer = build(d_model=64, head_dim=head_dim)
    x = jax.random.normal(jax.random.key(0), (4, 32, 64))
    y, _ = mixer.init_with_output(jax.random.key(1), x, jnp.ones(x.shape[:2], bool))
    assert jnp.sqrt((y**2).mean()) < 1
