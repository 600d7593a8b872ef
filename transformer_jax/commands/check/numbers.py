"""Whether this device computes what it should: models, kernels and mixers, in small sizes.

Differences are relative: the largest one, divided by the largest number of what is compared with.
Products of float32 are computed in full (`jax.default_matmul_precision("highest")`): by default a
TPU rounds their operands to bfloat16, and a GPU to TF32.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.commands.check.jobs import Job, exact
from transformer_jax.commands.check.row import Row
from transformer_jax.config import TrainConfig
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.mixers.alone import MixerLayer
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.ops.attention import attention_mask, dot_product_attention
from transformer_jax.ops.flash_attention import blockwise_attention, chosen_kernel, flash_attention
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch

#: Limits of relative differences, for float32 and for bfloat16, whose step is 2^-8.
FLOAT32, BFLOAT16 = 1e-3, 4e-2

_ROWS, _LENGTH, _HEADS, _WIDTH = 2, 200, 4, 64
ATTENTION_SHAPE = (_ROWS, _LENGTH, _HEADS, _WIDTH)


def jobs(here: jax.Device, cpu: jax.Device) -> Iterator[Job]:
    """Attention kernels, a training step and searches, and mixers; most telling ones first.

    Args:
        here: the device that is tried.
        cpu: what it is compared with, and where parameters are made.
    """
    yield _attention_job("bfloat16", BFLOAT16, here)
    yield _attention_job("float32", FLOAT32, here)
    yield _model_job(here, cpu)
    for name, kind in MIXERS.items():
        if here != cpu or "decoder" not in kind.refuses:
            yield _mixer_job(name, here, cpu)


def difference(got: Any, want: Any) -> float:
    """The largest difference of two trees of arrays, relative to the largest number of `want`."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    both = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    most = np.max([np.abs(a - b).max() for a, b in both])  # not a number if one of them is none
    return float(most / np.maximum(np.max([np.abs(b).max() for _, b in both]), 1e-30))


def _attention_job(dtype: str, limit: float, here: jax.Device) -> Job:
    """Each kernel of attention that this device uses, forwards and backwards."""
    random = np.random.default_rng(0).standard_normal((4, *ATTENTION_SHAPE), np.float32)
    q, k, v = (x.astype(jnp.dtype(dtype)) for x in random[:3])
    mask = np.arange(_LENGTH) < np.array([[_LENGTH], [_LENGTH // 2]])
    arrays = q, k, v, mask, random[3]
    kernels: dict[str, Callable[..., jax.Array]] = {"blockwise": blockwise_attention}
    kernels[chosen_kernel(jax.ShapeDtypeStruct(q.shape, q.dtype))] = flash_attention
    program = jax.jit(attention_program(kernels))

    def rows(programs: Mapping[str, Any]) -> Iterator[Row]:
        whats = product(("", ", causal"), kernels)
        for (causal, name), both in zip(whats, programs["all"](*arrays), strict=True):
            for result, pair in zip(("outputs", "gradients"), both, strict=True):
                what, error = f"{name}, {dtype}{causal}: {result}", difference(*pair)
                yield Row("attention kernels against plain attention", what, error, limit=limit)

    lower = exact(here, partial(program.lower, *arrays))
    return Job("attention", f"{dtype} kernels", {"all": lower}, rows)


def attention_program(kernels: Mapping[str, Callable[..., jax.Array]]) -> Callable[..., Any]:
    """(q, k, v, mask [B, L], weights) -> outputs and gradients, each beside plain attention's.

    For each kernel, once over all tokens and once causal, ((outputs of real queries, of plain
    attention), (gradients by q, k and v, of plain attention)). The gradients are of the weighted
    sum of these outputs. All arrays but the mask are of `ATTENTION_SHAPE`. Plain attention is
    computed in float32. bfloat16 is multiplied as it is: a TPU's kernels refuse the full precision.
    """

    def run(attend: Any, causal: bool, q: Any, k: Any, v: Any, mask: Any, weights: Any) -> Any:
        def total(q: Any, k: Any, v: Any) -> tuple[jax.Array, jax.Array]:
            y = attend((q, k, v), mask, causal=causal).astype(jnp.float32) * mask[..., None, None]
            return (y * weights).sum(), y

        with jax.default_matmul_precision("highest" if q.dtype == jnp.float32 else "default"):
            (_, y), gradients = jax.value_and_grad(total, (0, 1, 2), has_aux=True)(q, k, v)
        return y, gradients

    def program(q: Any, k: Any, v: Any, *others: Any) -> list[Any]:
        full = [x.astype(jnp.float32) for x in (q, k, v)]
        want = [run(_plain_attention, causal, *full, *others) for causal in (False, True)]
        return [
            list(zip(run(attend, causal, q, k, v, *others), want[causal], strict=True))
            for causal, attend in product((False, True), kernels.values())
        ]

    return program


def _plain_attention(qkv: Any, mask: jax.Array, *, causal: bool) -> jax.Array:
    return dot_product_attention(qkv, attention_mask(mask, causal=causal))


def _model_job(here: jax.Device, cpu: jax.Device) -> Job:
    """Three training steps and two searches of a small model, against the CPU's."""
    stack, searches = StackConfig(num_layers=2), {"greedy search": Greedy(), "beam search": Beam()}
    sizes = {"d_model": _HEADS * _WIDTH, "d_ff": 512, "num_heads": _HEADS}
    vocabulary = {"source_vocab_size": 512, "target_vocab_size": 512}
    model = ModelConfig(encoder=stack, decoder=stack, **vocabulary, **sizes)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    ids = random.integers(4, 512, (8, 48), np.int32)
    mask = np.arange(48) < random.integers(8, 49, (8, 1))
    ids = np.where(mask, ids, 0)
    batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
    ones, limits = np.ones(8, np.int32), np.full(8, 32, np.int32)
    sources = Sources(ids, mask, limits, np.arange(8, dtype=np.int32), num_best_B=ones)

    @cache
    def trainer(device: jax.Device) -> Trainer:
        return Trainer(model, TrainConfig(steps=3), make_mesh(MeshConfig(), [device]))

    def begin() -> Any:
        # Fresh parameters for searches: after three steps all logits of a random model are nearly
        # equal.
        return trainer(cpu).init(), api.init(model, jax.random.key(1))

    def lower_step(device: jax.Device) -> Any:
        return trainer(device).lower(trainer(device).abstract, batch)

    def search(params: Any, sources: Sources) -> list[jax.Array]:
        run = partial(decode_batch, params, sources, model=Model((model,)))
        decodings = [Decoding(method.static, 32) for method in searches.values()]
        return [run(decoding=decoding).tokens[:, 0] for decoding in decodings]

    def results(programs: Mapping[str, Any], device: jax.Device) -> tuple[Any, Any, Any]:
        (state, params), losses = jax.device_get(programs["begin"]()), []
        for _ in range(3):
            state, metrics = programs[f"step, {device}"](state, batch, trainer(cpu).horizon)
            losses.append(np.asarray(metrics["loss_sum"]))
        return losses, state.params, jax.device_get(programs[f"search, {device}"](params, sources))

    def rows(programs: Mapping[str, Any]) -> Iterator[Row]:
        part, (mine, theirs) = "model against the CPU", (results(programs, d) for d in (here, cpu))
        yield Row(part, "loss of three steps", difference(mine[0], theirs[0]), limit=FLOAT32)
        yield Row(part, "parameters after them", difference(mine[1], theirs[1]), limit=FLOAT32)
        for name, one, other in zip(searches, mine[2], theirs[2], strict=True):
            yield Row(part, name, float((one != other).sum()), "other pieces", limit=0.0)

    lower_search = partial(jax.jit(search).lower, api.abstract_params(model), sources)
    programs = {"begin": exact(cpu, jax.jit(begin).lower)}
    for device in dict.fromkeys((here, cpu)):
        programs[f"step, {device}"] = exact(device, partial(lower_step, device))
        programs[f"search, {device}"] = exact(device, lower_search)
    return Job("model", "training steps and searches", programs, rows)


def _mixer_job(name: str, here: jax.Device, cpu: jax.Device) -> Job:
    """Steps of a decoder mixer against its parallel form; parallel forms against the CPU's."""
    kind, sizes = MIXERS[name], (_ROWS, _LENGTH, _HEADS * _WIDTH)
    mixers = {
        role: MixerLayer(kind(), sizes[-1], _HEADS, role == "decoder", max_length=_LENGTH)
        for role in (("decoder",) if here == cpu else ("decoder", "encoder"))
        if role not in kind.refuses
    }
    x = np.random.default_rng(0).standard_normal(sizes, np.float32)

    def outputs(params: Any, x: Any) -> dict[str, Any]:
        return {role: mixer.apply(params[role], x) for role, mixer in mixers.items()}

    def wanted(seed: Any, x: Any) -> Any:
        """Parameters, and on another device than here what they give."""
        params = {role: mixer.init(jax.random.key(seed)) for role, mixer in mixers.items()}
        return params, {} if here == cpu else outputs(params, x)

    def found(params: Any, x: Any) -> Any:
        steps = "decoder" in mixers and _unrolled(mixers["decoder"], params["decoder"], x)
        return outputs(params, x), steps

    lower_wanted = cache(exact(cpu, partial(jax.jit(wanted).lower, np.uint32(1), x)))

    def lower_found() -> Any:
        params = lower_wanted().lowered.out_info[0]
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        return jax.jit(found).lower(shapes, x)

    def rows(programs: Mapping[str, Any]) -> Iterator[Row]:
        params, want = jax.device_get(programs["wanted"](np.uint32(1), x))
        got, steps = programs["found"](params, x)
        if "decoder" in mixers:
            error = difference(steps, got["decoder"])
            yield Row("steps of mixers against their parallel form", name, error, limit=FLOAT32)
        for role in want:
            error = difference(got[role], want[role])
            yield Row("mixers against the CPU", f"{name}, {role}", error, limit=FLOAT32)

    return Job("mixers", name, {"wanted": lower_wanted, "found": exact(here, lower_found)}, rows)


def _unrolled(mixer: MixerLayer, params: Any, x_BLD: jax.Array) -> jax.Array:
    """The outputs of one step after the other, [B, L, D]."""

    def step(state: Any, numbered: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        position, x_BD = numbered
        y_BD, state = mixer.step(params, x_BD, state, position)
        return state, y_BD

    state = mixer.init_state(params, _ROWS, _LENGTH)
    _, y_LBD = jax.lax.scan(step, state, (jnp.arange(_LENGTH), jnp.swapaxes(x_BLD, 0, 1)))
    return jnp.swapaxes(y_LBD, 0, 1)
