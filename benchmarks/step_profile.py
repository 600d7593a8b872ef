"""Where the time of one training step goes, on one CPU core.

    python benchmarks/step_profile.py [--matmul_dtype=bfloat16] [--source=FILE --target=FILE]

The step is that of training_speed.py, with the first of its batches. It runs on a single core, so
that no operation hides behind another one and the times add up. XLA's profiler gives the time of
each operation of the compiled program, and the program's text says to which part of the model
it belongs, as in a plan of `train.py --plan`. The last line compares the products of the step with
one plain product, [1920, 256] x [256, 1024], in the same precision.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import training_speed

STEPS = 5
PLAIN = (1920, 256, 1024)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matmul_dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--source", help="source text; default: a synthetic corpus of ids")
    parser.add_argument("--target")
    parser.add_argument("--tokens", type=int, default=2048, help="budget of a batch")
    parser.add_argument("--shapes", type=int, default=2)
    arguments = parser.parse_args()
    # Before JAX starts its threads, of which there is one for each core.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    batch = training_speed.make_batches(arguments)[0]
    run, text = _compiled(batch, arguments.matmul_dtype)
    run()
    began = time.perf_counter()
    for _ in range(STEPS):
        run()
    wall = (time.perf_counter() - began) / STEPS
    print_table(text, _traced(run), wall)
    gigaflops = 2 * PLAIN[0] * PLAIN[1] * PLAIN[2] / _plain_product(arguments.matmul_dtype) / 1e9
    print(f"\na plain {arguments.matmul_dtype} product {PLAIN}: {gigaflops:.0f} GFLOP/s")


def print_table(text: str, measured: Counter[str], wall: float) -> None:
    """Prints the times by part of the model, from seconds a step by instruction."""
    from transformer_jax.plan.hlo import parse, walk
    from transformer_jax.plan.roofline import flops
    from transformer_jax.plan.step_time import computing_by_part

    module = parse(text)
    times = Counter(one.name for one in walk(module))
    outer = {one.name for one in walk(module) if module.entered(one)[0]}

    def seconds(instruction: Any) -> float:
        name = instruction.name
        return 0.0 if name in outer else measured[name] / times[name]

    def work(instruction: Any) -> float:
        return 0.0 if instruction.name in outer else flops(module, instruction)

    parts = computing_by_part(module, seconds)
    flops_by_part = computing_by_part(module, work)
    total = sum(sum(kinds.values()) for kinds in parts.values())
    print(f"{1e3 * wall:.0f} ms a step on one core, {1e3 * total:.0f} ms of it in operations")
    print("| part | products, ms | GFLOP/s | copies, ms | other, ms | share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    rows = [(part, kinds, flops_by_part.get(part, {})) for part, kinds in parts.items()]
    sums = {
        kind: sum(kinds[kind] for kinds in parts.values()) for kind in next(iter(parts.values()))
    }
    all_flops = {"products": sum(each.get("products", 0.0) for each in flops_by_part.values())}
    for part, kinds, counted in [*rows, ("all", sums, all_flops)]:
        rate = counted.get("products", 0.0) / kinds["products"] / 1e9 if kinds["products"] else 0.0
        cells = [
            f"{1e3 * kinds['products']:.1f}",
            f"{rate:.0f}" if rate else "",
            f"{1e3 * kinds['copies']:.1f}",
            f"{1e3 * kinds['other']:.1f}",
            f"{sum(kinds.values()) / total:.1%}",
        ]
        print(f"| {part} | " + " | ".join(cells) + " |")


def _compiled(batch: training_speed.Batch, matmul_dtype: str) -> tuple[Any, str]:
    """A function that makes one step, and the text of its program."""
    import jax

    from transformer_jax.parallel.mesh import batch_sharding

    trainer, mesh = training_speed.jax_trainer(matmul_dtype)
    state = trainer.init()
    on_device = jax.device_put(batch, batch_sharding(mesh))
    text = trainer.lower(state, on_device).compile().as_text()

    def run() -> None:
        nonlocal state
        state, metrics = trainer.step(state, on_device)
        jax.block_until_ready((state, metrics))

    return run, text


def _traced(run: Any) -> Counter[str]:
    """Seconds a step by the name of the instruction."""
    import jax

    measured: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    name = dict(event.stats).get("hlo_op")
                    if name:
                        measured[str(name)] += event.duration_ns / 1e9 / STEPS
    return measured


def _plain_product(matmul_dtype: str) -> float:
    """Seconds, the best of 20."""
    import jax
    import jax.numpy as jnp

    rows, inner, columns = PLAIN
    a, b = jnp.ones((rows, inner), matmul_dtype), jnp.ones((inner, columns), matmul_dtype)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    times = []
    for _ in range(20):
        began = time.perf_counter()
        jax.block_until_ready(product(a, b))
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
