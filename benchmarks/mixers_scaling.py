"""Time and memory of every mixer by length, in training and in decoding.

    python benchmarks/mixers_scaling.py --out=runs/scaling [--only=NAME] [--longest=16384]

Training: the forward and backward pass of one layer's mixer for one sequence; memory is what XLA
allocates in addition to the inputs. Decoding: one step of the decoder's mixer after `length`
tokens. Each measurement runs in a process of its own, and its result is written to --out, so the
command can be stopped and repeated. Writes `table.md` and `scaling.png` into --out.

One sequence, d_model 128, 2 heads, float32: at 16,384 tokens the scores of plain full attention
take 2 GB, several times over.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from tqdm import tqdm

from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.positions.none import NoPosition

LENGTHS = [1024, 2048, 4096, 8192, 16384]
D_MODEL, HEADS = 128, 2
MEASURED = ("encoder", "decoder", "cross", "step")  # the training of a role, or a step


def cases() -> list[tuple[str, str]]:
    """(mixer, what is measured) for every role that a mixer supports, and its decoding step."""
    result = []
    for name, cls in MIXERS.items():
        result += [(name, role) for role in ("encoder", "decoder") if role not in cls.refuses]
        if "decoder" not in cls.refuses:
            result.append((name, "step"))
    return result + [(name, "cross") for name in CROSS_MIXERS]


def build(name: str, what: str, length: int) -> Any:
    """The mixer of one layer."""
    context = MixerContext(
        d_model=D_MODEL,
        num_heads=HEADS,
        head_dim=D_MODEL // HEADS,
        max_length=length,
        causal=what in ("decoder", "step"),
    )
    if what == "cross":
        return CROSS_MIXERS[name]().build(context)
    return MIXERS[name]().build(context, NoPosition().build(context))


def training(name: str, role: str, length: int) -> tuple[Callable[..., Any], list[Any]]:
    """The gradient as a function, and its inputs."""
    mixer = build(name, role, length)
    x = jax.random.normal(jax.random.key(1), (1, length, D_MODEL))
    mask = jnp.ones((1, length), bool)

    def forward(module: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        if role == "cross":
            return module.read(x, module.project(x, mask))
        return module(x, mask)

    def loss(variables: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        return (mixer.apply(variables, x, mask, method=forward) ** 2).sum()

    variables = nn.unbox(mixer.init(jax.random.key(0), x[:, :64], mask[:, :64], method=forward))
    return jax.grad(loss, (0, 1)), [variables, x, mask]


def decoding(name: str, length: int) -> tuple[Callable[..., Any], list[Any]]:
    """One step after `length` tokens as a function, and its inputs."""
    mixer = build(name, "step", length + 1)
    x = jax.random.normal(jax.random.key(1), (1, D_MODEL))
    mask = jnp.ones((1, 64), bool)
    variables = nn.unbox(mixer.init(jax.random.key(0), jnp.zeros((1, 64, D_MODEL)), mask))
    state = mixer.apply(variables, 1, length + 1, method="init_state")
    state = jax.tree.map(
        jnp.copy, state
    )  # equal zeros may share a buffer, which can be donated only once

    def step(variables: Any, x: jax.Array, state: Any, position: jax.Array) -> Any:
        return mixer.apply(variables, x, state, position, method="step")

    return step, [variables, x, state, jnp.int32(length)]


def measure(name: str, what: str, length: int) -> dict[str, Any]:
    """The seconds of the fastest call, and bytes."""
    keep_freed_memory()
    is_step = what == "step"
    function, inputs = decoding(name, length) if is_step else training(name, what, length)
    # A decoding loop donates its state, so that a cache is written in place.
    compiled = jax.jit(function, donate_argnums=(2,) if is_step else ()).lower(*inputs).compile()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 1.0 and len(times) < 200):
        began = time.perf_counter()
        result = jax.block_until_ready(compiled(*inputs))
        times.append(time.perf_counter() - began)
        if is_step:
            inputs[2] = result[1]
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(inputs[2])) if is_step else 0
    memory = compiled.memory_analysis().temp_size_in_bytes
    return {"seconds": min(times), "bytes": state_bytes if is_step else memory}


def in_own_process(name: str, what: str, length: int) -> dict[str, Any]:
    """`measure` in a new process; a failure (such as out of memory) is a result too."""
    command = [sys.executable, __file__, "--measure", name, what, str(length)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"error": lines[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def digits(number: float) -> str:
    """The number with three digits, or as a whole number."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def table(results: dict[str, dict[str, Any]], what: str, lengths: list[int]) -> str:
    """Milliseconds and mebibytes at each length, and the ratio to full attention, as Markdown."""
    longest = lengths[-1]
    lines = [
        f"| {what} | " + " | ".join(f"{n:,}" for n in lengths) + " | full / mixer |",
        "| --- |" + " ---: |" * (len(lengths) + 1),
    ]
    full = results.get(f"full {what} {longest}", {}).get("seconds")
    for name, role in cases():
        if role != what:
            continue
        measured = [results.get(f"{name} {what} {n}", {}) for n in lengths]
        cells = [
            f"{digits(1e3 * r['seconds'])} ms, {digits(r['bytes'] / 2**20)} MiB"
            if "seconds" in r
            else r.get("error", "")
            for r in measured
        ]
        last = measured[-1].get("seconds")
        ratio = f"{full / last:.1f}" if full and last else ""
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, dict[str, Any]], lengths: list[int], path: Path) -> None:
    """Draws a column for each role and for the step: time above, memory below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(18, 9), layout="constrained")
    grid = figure.subplots(2, len(MEASURED), sharex=True)
    mixers = list(dict.fromkeys(name for name, _ in cases()))
    styles = {  # the same for a mixer in all columns
        name: {"color": f"C{index % 10}", "linestyle": ["-", "--"][index // 10 % 2]}
        for index, name in enumerate(mixers)
    }
    for column, what in enumerate(MEASURED):
        names = [name for name, role in cases() if role == what]
        for name in names:
            measured = [(n, results.get(f"{name} {what} {n}", {})) for n in lengths]
            points = [(n, r) for n, r in measured if "seconds" in r]
            for row, (key, scale) in enumerate((("seconds", 1e3), ("bytes", 2**-20))):
                grid[row, column].loglog(
                    [n for n, _ in points],
                    [max(r[key] * scale, 1e-6) for _, r in points],
                    marker=".",
                    label=name,
                    **styles[name],
                )
        grid[0, column].set_title("a decoding step" if what == "step" else f"training, {what}")
        grid[0, column].legend(fontsize="x-small", ncols=2)
        grid[1, column].set_xlabel("tokens so far" if what == "step" else "tokens")
        grid[1, column].set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
    grid[0, 0].set_ylabel("milliseconds")
    grid[1, 0].set_ylabel("MiB (training: temporary; step: the state)")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures what is missing, and writes the tables and the plot."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    lengths = [n for n in LENGTHS if n <= arguments.longest]
    wanted = [(n, w, length) for length in lengths for n, w in cases() if arguments.only in n]
    bar = tqdm(wanted, unit="measurement")
    for name, what, length in bar:
        key = f"{name} {what} {length}"
        bar.set_postfix_str(key)
        if "seconds" not in results.get(key, {}):
            results[key] = in_own_process(name, what, length)
            path.write_text(json.dumps(results, indent=2) + "\n")
    tables = "\n".join(table(results, what, lengths) for what in MEASURED)
    (arguments.out / "table.md").write_text(tables, encoding="utf-8")
    plot(results, lengths, arguments.out / "scaling.png")
    print(tables)


if __name__ == "__main__":
    main()
