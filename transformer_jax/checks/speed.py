"""How fast this device is, beside its published numbers and what a plan expects of it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax.checks.row import Row
from transformer_jax.config import Config
from transformer_jax.data.config import BatchConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.parallel.mesh import decoding_rows, make_mesh
from transformer_jax.plan.devices import Target
from transformer_jax.plan.planner import Plan, make_plan
from transformer_jax.plan.topologies import this_machine
from transformer_jax.runs.start import begin_new
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.model_calls import Sources, decode_batch, hold_params

PART = "speed"


def rows() -> Iterator[Row]:
    """A product, a training step and a greedy search, in sizes that fit any device."""
    target = this_machine()
    on_cpu = target.devices[0].platform == "cpu"
    yield _product(target, 1024 if on_cpu else 8192)
    stack = StackConfig(num_layers=1 if on_cpu else 2)
    model = ModelConfig(
        encoder=stack,
        decoder=stack,
        d_model=256 if on_cpu else 512,
        d_ff=1024 if on_cpu else 2048,
        num_heads=4,
        matmul_dtype="bfloat16",
        dtype="float32" if on_cpu else "bfloat16",
    )
    batch = BatchConfig(tokens=64 * len(target.devices) * (16 if on_cpu else 256), max_length=64)
    decode = DecodeConfig(method=Greedy(), batch_size=32)
    yield from measure(Config(model=model, batch=batch, decode=decode), target, PART)


def measure(config: Config, target: Target, part: str, *, seconds: float = 5.0) -> Iterator[Row]:
    """The training step and the search of a config, beside their plan if the device has one.

    The sentences are random pieces, all of `batch.max_length`; each translation has as many.

    Args:
        config: a recipe; no text is read.
        part: heading of the rows.
        seconds: how long each of the two is measured, after its compilation.
    """
    plan = make_plan(config, target, largest_batch=False) if target.device else None
    config = begin_new(config, None, target.devices).config
    mesh = make_mesh(config.mesh, target.devices)
    yield from _training(config, mesh, plan, part, seconds)
    yield from searching(config, mesh, part, seconds)
    stats = target.devices[0].memory_stats() or {}
    if peak := stats.get("peak_bytes_in_use"):
        planned = f"planned {plan.train.bytes / 2**30:,.2f} for the training step" if plan else ""
        yield Row(part, "memory, most so far", peak / 2**30, "GiB", beside=planned)


def _product(target: Target, size: int) -> Row:
    """A bfloat16 product of square matrices, summed up in float32."""
    a = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    took = _median(lambda: multiply(a, a), 1.0)
    peak = target.device and f"published peak {target.device.flops / 1e12:,.0f}"
    name = f"bfloat16 product of {size} x {size}, one device"
    return Row(PART, name, 2 * size**3 / took / 1e12, "TFLOP/s", beside=peak or "")


def _training(
    config: Config, mesh: Mesh, plan: Plan | None, part: str, seconds: float
) -> Iterator[Row]:
    trainer, length = Trainer(config.model, config.train, mesh), config.batch.max_length
    multiple = trainer.share.row_multiple
    ids = _random_ids(config.batch.budget // length // multiple * multiple, length, config.model)
    mask = np.ones(ids.shape, bool)
    batch = trainer.place({"source": ids, "source_mask": mask, "target": ids, "target_mask": mask})
    state = trainer.init()

    def step() -> Any:
        nonlocal state
        state, metrics = trainer.step(state, batch)
        return metrics

    took = _median(step, seconds)
    planned = f"planned {1e3 * plan.time.seconds:,.3g}" if plan and plan.time else ""
    name = f"training step of {len(ids):,} pairs of {length} + {length} pieces"
    yield Row(part, name, 1e3 * took, "ms", beside=planned)
    yield Row(part, "target pieces trained", ids.size / took, "a second")
    if plan and plan.target.device:
        peak = plan.target.device.flops * len(plan.target.devices)
        used, expected = 100 * plan.flops / took / peak, 100 * (plan.utilisation or 0)
        beside = f"of the peak, planned {expected:.3g}"
        yield Row(part, "FLOPs of the model", used, "%", beside=beside)


def searching(config: Config, mesh: Mesh, part: str, seconds: float) -> Iterator[Row]:
    """A search by `decode` of a config that has a vocabulary, with random parameters."""
    model, method, length = config.model, config.decode.method, config.batch.max_length
    rows = decoding_rows(config.decode.batch_size, mesh)
    init = api.init(model, jax.random.key(0))
    params = hold_params(SingleModel(model), init, config.decode.weights, mesh)
    ids = _random_ids(rows, length, model)
    sources = Sources(
        ids,
        np.ones(ids.shape, bool),
        np.full(rows, length, np.int32),
        np.arange(rows, dtype=np.int32),
        num_best_B=np.ones(rows, np.int32),
    )

    def search() -> Any:
        return decode_batch(
            params,
            sources,
            model=SingleModel(model),
            method=method.static,
            max_length=length,
            mesh=mesh,
        )

    lengths = np.asarray(search().lengths)[:, 0]
    took = _median(search, seconds)
    name = f"search ({type(method).__name__.lower()}) for {rows} sentences of {length} pieces"
    yield Row(part, name, 1e3 * took, "ms", beside=f"{lengths.mean():.0f} pieces found for each")
    yield Row(part, "sentences translated", rows / took, "a second")


def _random_ids(rows: int, length: int, model: ModelConfig) -> np.ndarray:
    size = min(model.source_vocab_size or 0, model.target_vocab_size or 0)
    return np.random.default_rng(0).integers(4, size, (rows, length), np.int32)


def _median(run: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, after a first one that compiles: the median of at least three."""
    jax.block_until_ready(run())
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return float(np.median(times))
