"""How fast this device is, beside its published numbers and what a plan expects of it."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax.commands.check.jobs import Job
from transformer_jax.commands.check.row import Row
from transformer_jax.config import Config
from transformer_jax.data.config import BatchConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.parallel.mesh import decoding_rows, make_mesh, shardings_of
from transformer_jax.plan.devices import Target
from transformer_jax.plan.hlo import parse
from transformer_jax.plan.planner import rows_of
from transformer_jax.plan.programs import Compiler, program_bytes
from transformer_jax.plan.step_time import estimate
from transformer_jax.runs.start import begin_new
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch

PART = "speed"


def jobs(target: Target) -> Iterator[Job]:
    """A training step and a greedy search, in sizes that fit any device."""
    on_cpu = target.devices[0].platform == "cpu"
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
    return jobs_of(Config(model=model, batch=batch, decode=decode), target)


def jobs_of(config: Config, target: Target, seconds: float = 5.0) -> Iterator[Job]:
    """The training step and the search of a config, beside the step's plan if the device has one.

    The sentences are random pieces, all of `batch.max_length`; each translation has as many.

    Args:
        config: a recipe; no text is read.
        target: the devices.
        seconds: how long each of the two is measured, after its compilation.
    """
    config = begin_new(config, None, target.devices)
    yield _training_job(config, target, seconds)
    yield search_job(config, make_mesh(config.mesh, target.devices), seconds)


def product_job(target: Target) -> Job:
    """A bfloat16 product of square matrices on one device, summed up in float32."""
    size = 1024 if target.devices[0].platform == "cpu" else 8192
    name = f"bfloat16 product of {size} x {size}, one device"
    multiply = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))

    def lower() -> Any:
        return multiply.lower(*2 * [jax.ShapeDtypeStruct((size, size), jnp.bfloat16)])

    def rows(programs: Mapping[str, Any]) -> Iterator[Row]:
        numbers = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
        a = jax.device_put(np.resize(numbers.astype(jnp.bfloat16), (size, size)))
        took = _median(lambda: programs["product"](a, a), 1.0)
        peak = target.device and f"published peak {target.device.flops / 1e12:,.0f}"
        yield Row(PART, name, 2 * size**3 / took / 1e12, "TFLOP/s", beside=peak or "")

    return Job("product", name, {"product": lower}, rows)


def _training_job(config: Config, target: Target, seconds: float) -> Job:
    length = config.batch.max_length

    @cache
    def compiler() -> Compiler:
        return Compiler(config, target)

    def lower_state() -> Any:
        shardings = jax.tree.map(lambda x: x.sharding, compiler().state)
        return jax.jit(compiler().trainer.init, out_shardings=shardings).lower()

    def lower_step() -> Any:
        batch = compiler().trainer.abstract_batch((rows_of(compiler(), length), length, length))
        return compiler().trainer.lower(compiler().state, batch)

    def rows(programs: Mapping[str, Any]) -> Iterator[Row]:
        trainer, state, compiled = compiler().trainer, programs["state"](), programs["step"]
        ids = _random_ids(rows_of(compiler(), length), length, config.model)
        mask = np.ones(ids.shape, bool)
        arrays = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
        batch = trainer.place(arrays)

        def step() -> Any:
            nonlocal state
            state, metrics = compiled(state, batch, trainer.horizon)
            return metrics

        took, device = _median(step, seconds), target.device
        time = device and estimate(parse(compiled.as_text()), target)
        planned = f"planned {1e3 * time.seconds:,.3g}" if time else ""
        name = f"training step of {len(ids):,} pairs of {length} + {length} pieces"
        yield Row(PART, name, 1e3 * took, "ms", beside=planned)
        yield Row(PART, "target pieces trained", ids.size / took, "a second")
        if device and time:
            peak = device.flops * len(target.devices)
            used = trainer.share_of_peak(peak, [(len(ids), length, length)], 1.0)
            beside = f"of the peak, planned {100 * used / time.seconds:.3g}"
            yield Row(PART, "FLOPs of the model", 100 * used / took, "%", beside=beside)
        stats = target.devices[0].memory_stats() or {}
        if most := stats.get("peak_bytes_in_use"):
            planned = f"planned {program_bytes(compiled) / 2**30:,.2f} for the training step"
            yield Row(PART, "memory, most so far", most / 2**30, "GiB", beside=planned)

    return Job("speed", "training step", {"state": lower_state, "step": lower_step}, rows, True)


def search_job(config: Config, mesh: Mesh, seconds: float) -> Job:
    """A search by `decode` of a config that has a vocabulary, with random parameters."""
    model, method, length = Model((config.model,)), config.decode.method, config.batch.max_length
    num_rows, weights = decoding_rows(config.decode.batch_size, mesh), config.decode.weights
    ids = _random_ids(num_rows, length, config.model)
    sources = Sources(
        ids,
        np.ones(ids.shape, bool),
        np.full(num_rows, length, np.int32),
        np.arange(num_rows, dtype=np.int32),
        num_best_B=np.ones(num_rows, np.int32),
    )

    def begin() -> Any:
        return model.for_decoding(api.init(config.model, jax.random.key(0)), weights)

    @cache
    def params() -> Any:
        return model.abstract_held(weights, mesh)

    def lower_params() -> Any:
        return jax.jit(begin, out_shardings=shardings_of(params())).lower()

    def lower_search() -> Any:
        decoding = Decoding(method.static, length)
        return decode_batch.lower(params(), sources, model=model, decoding=decoding, mesh=mesh)

    def rows(programs: Mapping[str, Any]) -> Iterator[Row]:
        search = partial(programs["search"], programs["params"](), sources)
        lengths = np.asarray(search().lengths)[:, 0]
        took = _median(search, seconds)
        kind = type(method).__name__.lower()
        name = f"search ({kind}) for {num_rows} sentences of {length} pieces"
        found = f"{lengths.mean():.0f} pieces found for each"
        yield Row(PART, name, 1e3 * took, "ms", beside=found)
        yield Row(PART, "sentences translated", num_rows / took, "a second")

    return Job("speed", "search", {"params": lower_params, "search": lower_search}, rows, True)


def _random_ids(rows: int, length: int, model: ModelConfig) -> np.ndarray:
    size = min(model.source_vocab_size or 0, model.target_vocab_size or 0)
    return np.random.default_rng(0).integers(4, size, (rows, length), np.int32)


def _median(run: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, after a first one: the median of at least three."""
    jax.block_until_ready(run())
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return float(np.median(times))
