"""Translation scores of every mixer in each role it supports, every position, and hybrids.

    python benchmarks/mixers_quality.py --out=runs/mixers [--jobs=N] [--only=PART]
        [--config=NAME_OR_FILE] [--config.KEY=VALUE ...]

Trains one model for each variant with the same recipe (default: quickstart), tokenizer, steps and
seed; only the variant's keys differ. `eval.py` scores each on the test set. The command can be
stopped and repeated: it continues a training that was stopped and skips the results in --out.
With --jobs=N it trains N models at a time, each on its own share of the cores (Linux). --only
selects the variants whose name contains PART. Writes `table.md` and `quality.png` into --out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.api import num_params
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.runs.folder import open_run
from transformer_jax.runs.metrics import read_metrics

ROOT = Path(__file__).parents[1]

#: Options for sentences of ten to twenty pieces. With the defaults, which are for long texts, these
#: mixers would attend to every token of such a sentence, as full attention does.
SHORT = {
    "window": "window(window=4)",
    "longformer": "longformer(window=4)",
    "bigbird": "bigbird(block_size=2, global_blocks=1, random_blocks=1)",
    "linformer": "linformer(rank=16)",
    "reformer": "reformer(chunk=8)",
}


def stack(role: str, *names: str) -> dict[str, str]:
    """The override that gives a stack this pattern of mixers."""
    return {f"model.{role}.mixers": ",".join(SHORT.get(name, name) for name in names)}


def cross(name: str) -> dict[str, str]:
    """The override for this kind of cross-attention."""
    return {"model.cross": SHORT.get(name, name)}


HYBRIDS = {
    "window, full (encoder)": stack("encoder", "window", "full"),
    "mamba, full (decoder)": stack("decoder", "mamba", "full"),
    "s4d encoder, ssd decoder, linear cross": stack("encoder", "s4d")
    | stack("decoder", "ssd")
    | cross("linear"),
}


def variants() -> dict[str, dict[str, str]]:
    """Name -> overrides of the recipe; the first is the recipe itself."""
    result: dict[str, dict[str, str]] = {"full": {}}
    for role in ("encoder", "decoder"):
        for name, cls in MIXERS.items():
            if name != "full" and role not in cls.refuses:
                result[f"{name} {role}"] = stack(role, name)
    for name in CROSS_MIXERS:
        if name != "full":
            result[f"{name} cross"] = cross(name)
    for name in POSITIONS:
        result[f"position {name}"] = {
            "model.encoder.position": name,
            "model.decoder.position": name,
        }
    return result | {f"hybrid: {name}": keys for name, keys in HYBRIDS.items()}


def call(script: str, arguments: list[str], log: Path) -> str:
    """The standard output of one of our scripts; its standard error is appended to `log`."""
    with log.open("a", encoding="utf-8") as errors:
        done = subprocess.run(
            [sys.executable, str(ROOT / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    if done.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1]
        raise RuntimeError(f"{script}: {last} (see {log})")
    return done.stdout


def measure(folder: Path, recipe: list[str], keys: dict[str, str]) -> dict[str, Any]:
    """Trains and scores one variant."""
    log = folder.with_suffix(".log")
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    call("train.py", [*recipe, *overrides, f"--workdir={folder}", "--no_progress"], log)
    report = json.loads(call("eval.py", [f"--workdir={folder}", "--json"], log))
    config = open_run(folder).config
    return {
        "keys": keys,
        "bleu": report["scores"]["bleu"]["score"],
        "signature": report["scores"]["bleu"]["signature"],
        "parameters": num_params(config.model),
        "steps": config.train.steps,
        "steps_per_second": steps_per_second(folder),
        "sentences_per_second": report["sentences_per_second"],
        "cores": len(own_cores()),
    }


def own_cores() -> list[int]:
    """The cores that the calling thread may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def workers(jobs: int) -> ThreadPoolExecutor:
    """Threads, each with a share of the cores. The programs that a thread starts inherit it."""
    cores = own_cores()
    if not 1 <= jobs <= len(cores):
        sys.exit(f"--jobs={jobs}: must be from 1 to the number of cores, {len(cores)}")
    if jobs == 1:
        return ThreadPoolExecutor(1)
    if sys.platform != "linux":
        sys.exit(f"--jobs={jobs}: only Linux lets a program choose its cores; use --jobs=1")
    shares: SimpleQueue[list[int]] = SimpleQueue()
    for job in range(jobs):
        shares.put(cores[job::jobs])
    # An affinity belongs to a thread; 0 is the calling one.
    return ThreadPoolExecutor(jobs, initializer=lambda: os.sched_setaffinity(0, shares.get()))


def steps_per_second(folder: Path) -> float:
    """The fastest interval between two log entries; the others may compile, save or evaluate."""
    speeds = [r["steps_per_second"] for r in read_metrics(folder) if "steps_per_second" in r]
    return max(speeds, default=float("nan"))


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| variant | options | BLEU | parameters | steps/s | sentences/s |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, r in results.items():
        if "error" in r:
            lines.append(f"| {name} | | {r['error']} | | | |")
        else:
            options = re.findall(r"\w+=\w+", " ".join(r["keys"].values()))
            cells = [
                name,
                ", ".join(options),
                f"{r['bleu']:.1f}",
                f"{r['parameters']:,}",
                f"{r['steps_per_second']:.2f}",
                f"{r['sentences_per_second']:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    done = [r for r in results.values() if "error" not in r]
    if done:
        cores = " or ".join(str(n) for n in sorted({r["cores"] for r in done}))
        word = "core" if cores == "1" else "cores"
        lines += ["", f"{done[0]['steps']:,} steps each, on {cores} {word}; {done[0]['signature']}"]
    return "\n".join(lines) + "\n"


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws a point for each variant, and a line at the score of full attention."""
    from matplotlib.figure import Figure

    done = {name: r["bleu"] for name, r in results.items() if "error" not in r}
    figure = Figure(figsize=(8, 0.22 * len(done) + 1), layout="constrained")
    axes = figure.subplots()
    # The axis does not start at 0: most scores are within a few points of each other.
    axes.scatter(list(done.values()), list(done), color="steelblue", zorder=2)
    for name, bleu in done.items():
        axes.annotate(
            f"{bleu:.1f}",
            (bleu, name),
            (7, -3),
            textcoords="offset points",
            fontsize=8,
            bbox={"color": "white", "pad": 0.5},
        )
    if "full" in done:
        axes.axvline(done["full"], color="gray", linestyle="--", zorder=1, label="full attention")
        figure.legend(loc="outside lower right")
    axes.margins(x=0.15, y=0.02)
    axes.grid(axis="y", alpha=0.3)
    axes.invert_yaxis()
    axes.set_xlabel("BLEU")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Trains and scores what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--config", default="quickstart")
    arguments, overrides = parser.parse_known_args()
    recipe = [f"--config={arguments.config}", *overrides]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    if results and results.get("recipe", recipe) != recipe:
        sys.exit(f"{path} is of another recipe, {results['recipe']}; use another --out")
    results["recipe"] = recipe
    missing = {
        name: keys
        for name, keys in variants().items()
        if arguments.only in name and results.get(name, {}).get("keys") != keys
    }
    pool = workers(arguments.jobs)
    try:
        running = {
            pool.submit(
                measure, arguments.out / re.sub(r"\W+", "_", name).strip("_"), recipe, keys
            ): name
            for name, keys in missing.items()
        }
        for done in tqdm(as_completed(running), total=len(missing), unit="variant"):
            name = running[done]
            try:
                results[name] = done.result()
            except RuntimeError as error:
                results[name] = {"error": str(error)}
            path.write_text(json.dumps(results, indent=2) + "\n")
    finally:
        pool.shutdown(cancel_futures=True)  # otherwise Ctrl-C would start the next variant
    rows = {name: results[name] for name in variants() if name in results}
    (arguments.out / "table.md").write_text(table(rows), encoding="utf-8")
    plot(rows, arguments.out / "quality.png")
    print(table(rows))


if __name__ == "__main__":
    main()
