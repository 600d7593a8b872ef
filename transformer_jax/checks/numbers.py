"""Whether this device computes what it should: models, kernels and mixers, in small sizes.

Differences are relative: the largest one, divided by the largest number of what is compared with.
Products of float32 are computed in full (`jax.default_matmul_precision("highest")`): by default a
TPU rounds their operands to bfloat16, and a GPU to TF32.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.checks.row import Row
from transformer_jax.config import TrainConfig
from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.ops.attention import attention_mask, dot_product_attention
from transformer_jax.ops.flash_attention import blockwise_attention, chosen_kernel, flash_attention
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.positions.none import NoPosition
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.model_calls import Sources, decode_batch

#: Limits of relative differences, for float32 and for bfloat16, whose step is 2^-8.
FLOAT32, BFLOAT16 = 1e-3, 4e-2

_ROWS, _LENGTH, _HEADS, _WIDTH = 2, 200, 4, 64
ATTENTION_SHAPE = (_ROWS, _LENGTH, _HEADS, _WIDTH)


def rows() -> Iterator[Row]:
    """A training step and searches, attention kernels, and mixers."""
    with jax.default_matmul_precision("highest"):
        yield from _model_rows()
        yield from _kernel_rows()
        yield from _mixer_rows()


def difference(got: Any, want: Any) -> float:
    """The largest difference of two trees of arrays, relative to the largest number of `want`."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    both = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    largest = max(np.abs(b).max() for _, b in both)
    return float(max(np.abs(a - b).max() for a, b in both) / max(largest, 1e-30))


def _model_rows() -> Iterator[Row]:
    """Three training steps and two searches of a small model, against the CPU's."""
    stack = StackConfig(num_layers=2)
    sizes = {"d_model": _HEADS * _WIDTH, "d_ff": 512, "num_heads": _HEADS}
    vocabulary = {"source_vocab_size": 512, "target_vocab_size": 512}
    model = ModelConfig(encoder=stack, decoder=stack, **vocabulary, **sizes)  # type: ignore[arg-type]
    here, cpu = (
        _train_and_search(model, each) for each in (jax.devices()[0], jax.devices("cpu")[0])
    )
    part = "model against the CPU"
    yield Row(part, "loss of three steps", difference(here[0], cpu[0]), limit=FLOAT32)
    yield Row(part, "parameters after them", difference(here[1], cpu[1]), limit=FLOAT32)
    for name, mine, theirs in zip(("greedy search", "beam search"), here[2], cpu[2], strict=True):
        yield Row(part, name, float((mine != theirs).sum()), "other pieces", limit=0.0)


def _train_and_search(model: ModelConfig, device: jax.Device) -> tuple[Any, Any, list[np.ndarray]]:
    """Losses of three steps, the parameters after them, and the pieces that two searches find."""
    mesh = make_mesh(MeshConfig(), [device])
    random = np.random.default_rng(0)
    ids = random.integers(4, 512, (8, 48), np.int32)
    mask = np.arange(48) < random.integers(8, 49, (8, 1))
    ids = np.where(mask, ids, 0)
    trainer = Trainer(model, TrainConfig(steps=3), mesh)
    state, losses = trainer.init(), []
    for _ in range(3):
        batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
        state, metrics = trainer.step(state, trainer.place(batch))
        losses.append(np.asarray(metrics["loss_sum"]))
    # Fresh parameters: after three steps all logits of a random model are nearly equal.
    params = jax.device_put(api.init(model, jax.random.key(1)), device)
    limits = np.full(8, 32, np.int32)
    sources = Sources(
        ids, mask, limits, np.arange(8, dtype=np.int32), num_best_B=np.ones(8, np.int32)
    )
    methods: list[Method] = [Greedy(), Beam()]
    search = partial(decode_batch, params, sources, model=SingleModel(model), max_length=32)
    found = [search(method=method.static, mesh=mesh).tokens for method in methods]
    return losses, jax.device_get(state.params), [np.asarray(tokens)[:, 0] for tokens in found]


def _kernel_rows() -> Iterator[Row]:
    """Each kernel of attention that this device uses, forwards and backwards."""
    part = "attention kernels against plain attention"
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, weights = (jax.random.normal(key, ATTENTION_SHAPE) for key in keys)
    mask = jnp.arange(_LENGTH) < jnp.array([[_LENGTH], [_LENGTH // 2]])
    for dtype, limit in (("bfloat16", BFLOAT16), ("float32", FLOAT32)):
        arrays = q.astype(dtype), k.astype(dtype), v.astype(dtype)
        exact = [x.astype(jnp.float32) for x in arrays]
        kernels: dict[str, Callable[..., jax.Array]] = {"blockwise": blockwise_attention}
        kernels[chosen_kernel(arrays[0])] = flash_attention
        for causal in (False, True):
            want = attention_program(_plain_attention, causal)(*exact, mask, weights)
            for name, attend in kernels.items():
                got = attention_program(attend, causal)(*arrays, mask, weights)
                what = f"{name}, {dtype}{', causal' if causal else ''}"
                for result, mine, exactly in zip(("outputs", "gradients"), got, want, strict=True):
                    error = difference(mine, exactly)
                    yield Row(part, f"{what}: {result}", error, limit=limit)


def attention_program(attend: Callable[..., jax.Array], causal: bool) -> Any:
    """Jitted: (q, k, v, mask [B, L], weights) -> (outputs of real queries, gradients by q, k, v).

    The gradients are of the weighted sum of these outputs. All arrays but the mask are of
    `ATTENTION_SHAPE`. bfloat16 is multiplied as it is: a TPU's kernels refuse the full precision.
    """

    def total(q: Any, k: Any, v: Any, mask: Any, weights: Any) -> tuple[jax.Array, jax.Array]:
        y = attend(q, k, v, mask, causal=causal).astype(jnp.float32) * mask[..., None, None]
        return (y * weights).sum(), y

    def program(*arrays: jax.Array) -> tuple[jax.Array, Any]:
        full = arrays[0].dtype == jnp.float32
        with jax.default_matmul_precision("highest" if full else "default"):
            (_, y), gradients = jax.value_and_grad(total, (0, 1, 2), has_aux=True)(*arrays)
        return y, gradients

    return jax.jit(program)


def _plain_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, *, causal: bool
) -> jax.Array:
    return dot_product_attention(q, k, v, attention_mask(mask, causal=causal))


def _mixer_rows() -> Iterator[Row]:
    """Each decoder mixer's steps against its parallel form, and that against the CPU's."""
    cpu = jax.devices("cpu")[0]
    for name, kind in MIXERS.items():
        for role in ("decoder", "encoder"):
            if role in kind.refuses:
                continue
            context = MixerContext(
                d_model=_HEADS * _WIDTH,
                num_heads=_HEADS,
                head_dim=_WIDTH,
                max_length=_LENGTH,
                causal=role == "decoder",
            )
            mixer = kind().build(context, NoPosition().build(context))
            x = jax.random.normal(jax.random.key(0), (_ROWS, _LENGTH, context.d_model))
            mask = jnp.ones((_ROWS, _LENGTH), bool)
            variables = nn.unbox(jax.jit(mixer.init)(jax.random.key(1), x, mask))
            y = jax.jit(mixer.apply)(variables, x, mask)
            if role == "decoder":
                steps = difference(_unrolled(mixer, variables, x), y)
                yield Row("steps of mixers against their parallel form", name, steps, limit=FLOAT32)
            if jax.default_backend() != "cpu":
                with jax.default_device(cpu):
                    want = jax.jit(mixer.apply)(*jax.device_put((variables, x, mask), cpu))
                found = difference(y, want)
                yield Row("mixers against the CPU", f"{name}, {role}", found, limit=FLOAT32)


def _unrolled(mixer: Mixer, variables: Any, x_BLD: jax.Array) -> jax.Array:
    """The outputs of one step after the other, [B, L, D]."""

    @jax.jit
    def run(variables: Any, x_BLD: jax.Array) -> jax.Array:
        def step(state: Any, numbered: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            position, x_BD = numbered
            y_BD, state = mixer.apply(variables, x_BD, state, position, method="step")
            return state, y_BD

        state = mixer.apply(variables, _ROWS, _LENGTH, method="init_state")
        _, y_LBD = jax.lax.scan(step, state, (jnp.arange(_LENGTH), jnp.swapaxes(x_BLD, 0, 1)))
        return jnp.swapaxes(y_LBD, 0, 1)

    y: jax.Array = run(variables, x_BLD)
    return y
