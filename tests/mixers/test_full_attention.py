"""Full attention's options against loops, against each other, and what they refuse."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from tests.small import small_model
from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.mixers import full_attention as module
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models.config import StackConfig
from transformer_jax.ops.sharding import layout
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.testing import mixers as suite

D, H, K, L = suite.D, suite.HEADS, suite.D // suite.HEADS, suite.LENGTH

FORMS = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "multi-query": {"num_kv_heads": 1},
}


def built(options, *, causal, position="none"):
    scheme = suite.position(POSITIONS[position](), causal=causal)
    mixer = Full(**options).build(suite.context(causal=causal), scheme)
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize(
    ("name", "position"), [("plain", "t5"), ("grouped", "rope"), ("multi-query", "alibi")]
)
@pytest.mark.parametrize("causal", [False, True])
def test_fused_equals_plain_with_its_gradients(name, position, causal):
    plain, variables = built(FORMS[name], causal=causal, position=position)
    options = FORMS[name] | {"implementation": "fused"}
    fused, created = built(options, causal=causal, position=position)
    jax.tree.map(np.testing.assert_array_equal, created, variables)
    weights = suite.MASK[..., None] * jax.random.normal(jax.random.key(5), (3, L, D))

    def loss(mixer):
        def of(variables, x):
            y = suite.parallel(mixer, variables, x)
            return (y * weights).sum(), y

        return jax.jit(jax.grad(of, argnums=(0, 1), has_aux=True))(variables, suite.inputs())

    (want_grads, want), (grads, got) = loss(plain), loss(fused)
    real = np.asarray(suite.MASK)
    np.testing.assert_allclose(got[real], want[real], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=1e-4), want_grads, grads)


#: And what shipped hybrids add; each with fewer heads of keys where that may matter.
EVERY = FORMS | {
    "convolution": {"conv_width": 3, "num_kv_heads": 2},
    "norm": {"qk_norm": True},
    "gate": {"output_gate": True},
    "sinks": {"sinks": True, "num_kv_heads": 2},
    "all": {"conv_width": 4, "qk_norm": True, "output_gate": True, "sinks": True},
}


def by_loops(params, x, mask, options, *, causal):
    """Attention with the options of EVERY for one row, in float64: [n, D] at its n real tokens."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = np.asarray(x, np.float64)[np.asarray(mask)]

    def projected(name):
        layer = p["heads"][name]
        return x @ layer["kernel"] + layer.get("bias", 0.0)

    mixed = np.concatenate([projected(name) for name in ("query", "key", "value")], axis=-1)
    if width := options.get("conv_width"):
        later = 0 if causal else width // 2
        padded = np.pad(mixed, ((width - 1 - later, later), (0, 0)))
        taps = [p["conv"]["kernel"][w] * padded[w : w + len(x)] for w in range(width)]
        mixed = p["conv"]["bias"] + sum(taps)
    groups = options.get("num_kv_heads", H)
    q, k, v = np.split(mixed, [H * K, (H + groups) * K], axis=-1)
    q, k, v = q.reshape(-1, H, K), k.reshape(-1, groups, K), v.reshape(-1, groups, K)
    if options.get("qk_norm"):
        q, k = (
            a / np.sqrt((a**2).mean(-1, keepdims=True) + 1e-6) * p[name]["scale"]
            for a, name in ((q, "query_norm"), (k, "key_norm"))
        )
    y = np.zeros((len(x), H, K))
    for t in range(len(x)):
        for h in range(H):
            g = h * groups // H
            seen = range(t + 1 if causal else len(x))
            weights = np.exp([q[t, h] @ k[s, g] / K**0.5 for s in seen])
            total = weights.sum() + (np.exp(p["sink"][h]) if options.get("sinks") else 0.0)
            y[t, h] = sum(w * v[s, g] for w, s in zip(weights, seen, strict=True)) / total
    y = y.reshape(-1, H * K)
    if options.get("output_gate"):
        y = y / (1 + np.exp(-(x @ p["gate"]["kernel"] + p["gate"]["bias"])))
    return y @ p["heads"]["out"]["kernel"] + p["heads"]["out"]["bias"]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("causal", [False, True])
def test_every_form_equals_the_loops_and_keeps_the_contract(name, causal):
    mixer, variables = built(EVERY[name], causal=causal)
    x, mask = suite.inputs(), np.asarray(suite.MASK)
    got = np.asarray(suite.parallel(mixer, variables, x))
    for row in range(len(x)):
        want = by_loops(variables["params"], x[row], mask[row], EVERY[name], causal=causal)
        np.testing.assert_allclose(got[row][mask[row]], want, atol=1e-5)
    suite.check_mixer(Full(**EVERY[name]), causal=causal)


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"convolution"}))
def test_cross_attention_keeps_the_contract(name):
    options = {key: value for key, value in EVERY[name].items() if key != "conv_width"}
    suite.check_cross(FullCross(**options).build(suite.context(causal=False)))


@pytest.mark.parametrize("option", ["qk_norm", "output_gate", "sinks", "conv_width"])
@pytest.mark.parametrize("format", ["bergamot", "huggingface", "ctranslate2"])
def test_exporters_refuse_what_is_added_by_name(format, option):
    if format == "ctranslate2":
        need(format)
    mixers = (Full(**{option: 4 if option == "conv_width" else True}),)
    for side in ("encoder", "decoder"):
        model = small_model(9, **{side: StackConfig(num_layers=1, mixers=mixers)})
        with pytest.raises(UserError, match=f"model.{side}.mixers.*full.{option}"):
            EXPORTERS[format]().check(Config(model=model))


@pytest.mark.parametrize(
    ("implementation", "fused"), [("auto", {("gpu", 20)}), ("plain", set()), ("fused", "all")]
)
def test_auto_asks_the_devices_of_the_program(implementation, fused, monkeypatch):
    """It takes cuDNN's kernel on a GPU, but not for a decoding step's few queries."""
    monkeypatch.setattr(module, "flash_attention", lambda qkv, *_, **__: jnp.full_like(qkv[0], 7))
    context = replace(suite.context(causal=False), dtype=jnp.bfloat16, num_heads=2, head_dim=8)
    cross = FullCross(implementation=implementation).build(context)
    memory, mask = jnp.ones((2, 20, D), jnp.bfloat16), jnp.ones((2, 20), bool)
    variables = cross.init(jax.random.key(0), memory, memory, mask, method=read)
    for platform, length in (("gpu", 20), ("gpu", 4), ("cpu", 20), ("tpu", 20)):
        devices = np.array([SimpleNamespace(platform=platform)])
        with layout(SimpleNamespace(devices=devices, size=1), {}):
            y = cross.apply(variables, memory[:, :length], memory, mask, method=read)
        assert (y == 7).all() == (fused == "all" or (platform, length) in fused)


def read(cross, x_BTD, memory_BMD, mask_BM):
    """The heads' outputs, before they are joined."""
    keys_values = cross.heads.keys_values(memory_BMD)
    return cross.attend((cross.heads.queries(x_BTD), *keys_values), mask_BM)
