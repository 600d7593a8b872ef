"""This machine's first device: a training step taken apart, searches, mixers on long sequences.

    python benchmarks/device.py step [--recipe=NAME] [--options=JSON] [--hlo=FILE] [KEY=VALUE ...]
    python benchmarks/device.py search [--recipe=NAME] [--rows=1,32,256] [KEY=VALUE ...]
    python benchmarks/device.py mixers [--only=full (fused),ssd] [--lengths=4096,16384]

Each number is a line of JSON, printed as soon as it is known. KEY=VALUE changes the recipe, whose
batches have 16,384 pieces a side unless told otherwise. Sentences are random pieces, all of the
longest length, so no text is needed.

`step` compiles the step once: seconds to lower and to compile, the first step, milliseconds of
single and of unbroken steps beside what a plan says of this very program, the share of the peak,
and memory. Then a profile says where the time goes: by part of the model, and on a GPU by kind of
kernel, with the time in which it was idle. `--core` does so on one CPU core, where no operation
hides behind another one, so that the times add up. The options are the compiler's, beside or in
place of those of training/step.py; a row says which it takes. `mixers` times one layer of each,
forwards alone and with its gradient.
"""

import argparse
import dataclasses
import json
import os
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpu import say, timed

#: Names of kernels by what they do; the first pattern that matches counts.
KERNELS = {
    "attention": r"fmha|flash|sdpa|cudnn",
    "products": r"gemm|cublas|cutlass|nvjet|matmul|xmma|sm90_|splitK",
    "scatter": r"scatter",
    "reductions": r"reduce|softmax",
    "copies": r"[Mm]emcpy|[Mm]emset|copy|transpose",
    "other fusions": r"fusion|wrapped|triton|loop_|input_",
}
#: Lines of a profile that repeat the kernels by operation, module and step.
REPEATED = re.compile("XLA|Steps|Tensor|Source|Framework|Launch")
MIXERS = "full (fused),full (plain),ssd"


def config_of(arguments: argparse.Namespace) -> Any:
    """The recipe with its changes and its vocabulary, for one device."""
    import jax

    import transformer_jax as tj
    from transformer_jax.config import override
    from transformer_jax.runs.start import begin_new

    given = {"batch.tokens": "16384", "batch.max_length": "256"}
    given |= dict(pair.split("=", 1) for pair in arguments.changes)
    config = override(tj.load_recipe(arguments.recipe), given)
    return begin_new(config, None, jax.devices()[:1])


def step(arguments: argparse.Namespace) -> None:
    """Compiles and measures a training step, and profiles it."""
    import jax
    import numpy as np

    from transformer_jax.models.flops import train_step_flops
    from transformer_jax.parallel.mesh import make_mesh
    from transformer_jax.plan.hlo import parse
    from transformer_jax.plan.step_time import estimate
    from transformer_jax.plan.topologies import this_machine
    from transformer_jax.training import step as training_step
    from transformer_jax.training.trainer import Trainer

    began = time.perf_counter()
    device = jax.devices()[0]
    if arguments.options:
        options = training_step.COMPILER_OPTIONS
        options[device.platform] = options.get(device.platform, {}) | json.loads(arguments.options)
    config = config_of(arguments)
    mesh = make_mesh(config.mesh, [device])
    trainer = Trainer(config.model, config.train, mesh)
    length = config.batch.max_length
    rows = config.batch.budget // length
    say(recipe=arguments.recipe, device=device.device_kind, pairs=rows, length=length)
    lowered = trainer.lower(trainer.abstract, trainer.abstract_batch((rows, length, length)))
    say(lowered_s=round(time.perf_counter() - began, 1))
    before = time.perf_counter()
    compiled = lowered.compile()
    taken = training_step.options_for(mesh)
    say(compile_s=round(time.perf_counter() - before, 1), options=taken)
    text = compiled.as_text()
    if arguments.hlo:
        Path(arguments.hlo).write_text(text, encoding="utf-8")
    vocabulary = min(config.model.source_vocab_size, config.model.target_vocab_size)
    ids = np.random.default_rng(0).integers(4, vocabulary, (rows, length), np.int32)
    mask = np.ones(ids.shape, bool)
    batch = trainer.place({"source": ids, "source_mask": mask, "target": ids, "target_mask": mask})
    before = time.perf_counter()
    state, metrics = jax.block_until_ready(trainer.init()), {}
    say(init_s=round(time.perf_counter() - before, 1))

    def call() -> Any:
        nonlocal state, metrics
        state, metrics = compiled(state, batch, trainer.horizon)
        return metrics

    loss = float(jax.block_until_ready(call())["loss_sum"]) / ids.size
    say(first_step_s=round(time.perf_counter() - began, 1), loss=loss)
    jax.block_until_ready(call())
    times = timed(call, jax.block_until_ready, arguments.seconds)
    flops, here = train_step_flops(config.model, rows, length), this_machine()
    stats = device.memory_stats() or {}
    say(
        **times,
        target_pieces_s=round(1e3 * ids.size / times["ms"]),
        peak_percent=here.device and round(1e5 * flops / times["ms"] / here.device.flops, 2),
        flops=flops,
        loss=float(metrics["loss_sum"]) / ids.size,
        memory_gib=round(stats.get("peak_bytes_in_use", 0) / 2**30, 2),
    )
    if arguments.profile:
        planes = profiled(call, arguments.profile)
        by_kernel(planes, arguments.profile)
    # Last, as the text of another version may not be read.
    module = parse(text)
    if planned := estimate(module, dataclasses.replace(here, devices=[device])):
        say(planned_ms=round(1e3 * planned.seconds, 3), kernels=planned.kernels)
    if arguments.profile:
        by_part(planes, module, arguments.profile)


def profiled(call: Callable[[], Any], steps: int) -> list[Any]:
    """The planes of XLA's profile of some calls."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                result = call()
            jax.block_until_ready(result)
        (path,) = Path(folder).rglob("*.xplane.pb")
        return list(jax.profiler.ProfileData.from_file(str(path)).planes)


def by_part(planes: Iterable[Any], module: Any, steps: int) -> None:
    """Prints the time of each part of the model, by the instruction of each event."""
    from transformer_jax.plan.hlo import walk
    from transformer_jax.plan.roofline import flops
    from transformer_jax.plan.step_time import computing_by_part

    measured: Counter[str] = Counter()
    for event in (each for plane in planes for line in plane.lines for each in line.events):
        if name := dict(event.stats).get("hlo_op"):
            measured[str(name)] += event.duration_ns / 1e6 / steps
    times = Counter(one.name for one in walk(module))
    outer = {one.name for one in walk(module) if module.entered(one)[0]}

    def milliseconds(one: Any) -> float:
        return 0.0 if one.name in outer else measured[one.name] / times[one.name]

    def work(one: Any) -> float:
        return 0.0 if one.name in outer else flops(module, one)

    counted = computing_by_part(module, work)
    for part, kinds in computing_by_part(module, milliseconds).items():
        took = {f"{kind}_ms": round(each, 4) for kind, each in kinds.items()}
        operations = counted.get(part, {}).get("products", 0.0)
        rate = operations / kinds["products"] / 1e6 if kinds["products"] else 0.0
        say(of_model=part, ms=round(sum(kinds.values()), 4), **took, product_gflops=round(rate))


def by_kernel(planes: Iterable[Any], steps: int) -> None:
    """Prints where a GPU's time goes by kind of kernel and by kernel, and how long it was idle."""
    events = []
    for plane in planes:
        if "GPU" not in plane.name:
            continue
        lines = list(plane.lines)
        say(plane=plane.name, lines=[line.name for line in lines])
        streams = [line for line in lines if line.name.startswith("Stream")]
        for line in streams or [line for line in lines if not REPEATED.match(line.name)]:
            events += [(e.start_ns, e.duration_ns, e.name) for e in line.events]
    if not events:
        return say(profile="no kernels of a GPU in it")
    events.sort()
    busy, end, gaps = 0.0, events[0][0], []
    for start, took, _ in events:
        if start > end:
            gaps.append(start - end)
        busy += max(0.0, start + took - max(start, end))
        end = max(end, start + took)
    a_step = 1e6 * steps
    say(
        kernels_a_step=round(len(events) / steps),
        span_ms=round((end - events[0][0]) / a_step, 3),
        busy_ms=round(busy / a_step, 3),
        gaps_below_20us_ms=round(sum(gap for gap in gaps if gap < 2e4) / a_step, 3),
        gaps_above_20us_ms=round(sum(gap for gap in gaps if gap >= 2e4) / a_step, 3),
        shorter_than_3us=round(sum(took < 3000 for _, took, _ in events) / steps),
    )
    kinds: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[float]] = defaultdict(list)
    for _, took, name in events:
        kinds[next((k for k, p in KERNELS.items() if re.search(p, name)), "rest")].append(took)
        names[re.sub(r"(_\d+|\.\d+)+$", "", name)[:100]].append(took)
    for table, most in ((kinds, 20), (names, 40)):
        for key in sorted(table, key=lambda key: -sum(table[key]))[:most]:
            number, took = len(table[key]) / steps, sum(table[key]) / a_step
            say(kernel=key, a_step=round(number, 1), ms=round(took, 4))


def search(arguments: argparse.Namespace) -> None:
    """Times greedy and beam search with random parameters, in batches of several sizes."""
    import jax

    from transformer_jax.commands.check.jobs import at_once
    from transformer_jax.commands.check.speed import search_job
    from transformer_jax.config import override
    from transformer_jax.parallel.mesh import make_mesh

    config = config_of(arguments)
    for method in ("greedy", "beam(beam_size=4)"):
        for rows in arguments.rows.split(","):
            chosen = override(config, {"decode.method": method, "decode.batch_size": rows})
            mesh = make_mesh(config.mesh, jax.devices()[:1])
            for row in at_once(search_job(chosen, mesh, arguments.seconds)):
                say(method=method, rows=int(rows), name=row.name, value=row.value, unit=row.unit)


def mixers(arguments: argparse.Namespace) -> None:
    """Times one layer of a mixer on one sequence."""
    import jax
    import jax.numpy as jnp
    from long_sequences import CASES, lowered

    from transformer_jax.parallel.mesh import MeshConfig, make_mesh
    from transformer_jax.training.step import options_for

    def filled(like: Any) -> Any:
        values = jax.random.normal(jax.random.key(0), like.shape)
        return jnp.asarray(values > -jnp.inf if like.dtype == bool else 0.02 * values, like.dtype)

    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    for length in map(int, arguments.lengths.split(",")):
        for name in arguments.only.split(","):
            for what in ("forwards", "gradient"):
                program = lowered(CASES[name], length, mesh, what)
                compiled = program.compile(compiler_options=options_for(mesh))
                inputs = jax.tree.map(filled, program.args_info[0])
                call = lambda: compiled(*inputs)  # noqa: B023, E731
                jax.block_until_ready([call(), call()])
                times = timed(call, jax.block_until_ready, arguments.seconds)
                memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
                say(mixer=name, what=what, length=length, **times, memory_mib=round(memory, 1))


def main() -> None:
    """Measures what the first word says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("what", choices=("step", "search", "mixers"))
    add("changes", nargs="*", metavar="KEY=VALUE", help="of the recipe")
    add("--recipe", default="wmt14_en_de_base_tpu")
    add("--seconds", type=float, default=4.0, help="of each measurement")
    add("--profile", type=int, default=5, help="steps; 0: no profile")
    add("--options", help="of the compiler, as JSON")
    add("--hlo", help="a file for the compiled program")
    add("--core", action="store_true", help="one CPU core alone")
    add("--rows", default="1,32,256", help="sentences of a batch")
    add("--only", default=MIXERS, help="mixers, as long_sequences.py names them")
    add("--lengths", default="4096,16384")
    arguments = parser.parse_intermixed_args()
    if arguments.core:  # before JAX starts its threads, of which there is one for each core
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    {"step": step, "search": search, "mixers": mixers}[arguments.what](arguments)


if __name__ == "__main__":
    main()
