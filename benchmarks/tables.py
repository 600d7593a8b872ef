"""All CPU tables of docs/results.md, measured on this machine.

    ./run benchmarks [--only=NAME,NAME] [--list]

Runs the benchmarks below one after the other, because two at a time would slow each other, and
writes what they print, with the processor, the versions and the date, to build/benchmarks.md.
Each is written as soon as it ends, to a file of its own in build/benchmarks/, so the command can be
stopped. A command that fails does not stop the others; the exit status is then 1.
"""

import argparse
import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.ops.platform import cpu_flags

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "benchmarks"

#: A quickstart run, which is trained if a table needs it.
RUN = "runs/quickstart"

#: name -> (title, command without `python benchmarks/`), short ones first.
TABLES = {
    "forms": ("Matrix products and freed memory", "matmul_forms.py"),
    "pipeline": ("Input pipeline", "pipeline_speed.py"),
    "first_step": ("Time to the first step", "first_step.py --config=quickstart"),
    "decoding": (
        "Decoding speed",
        f"decoding_speed.py --workdir={RUN} --against=ctranslate2",
    ),
    "decoding_1": (
        "Decoding speed, one sentence at a time",
        f"decoding_speed.py --workdir={RUN} --against=ctranslate2 --batch_size=1",
    ),
    "serving": ("Serving under load", f"serving.py --workdir={RUN}"),
    "training": ("Training speed", "training_speed.py"),
    "step": (
        "Where the time of a training step goes",
        "device.py step --core --recipe=quickstart batch.tokens=2048 tokenizer.vocab_size=8000 "
        "model.d_model=256 model.d_ff=1024 model.encoder.num_layers=3 model.decoder.num_layers=3",
    ),
    "large_text": ("Large texts", "large_text.py --pairs=100000,1000000"),
    "scaling": ("Mixers by length", "mixers_scaling.py --out=build/benchmarks/scaling"),
}


def processor() -> str:
    """The name of the processor, its cores and what it has for matrix products."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = named[1] if named else platform.processor() or platform.machine()
    flags = cpu_flags(path)
    units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {' '.join(units) or 'units unknown'}"


def versions(packages: Iterable[str]) -> str:
    """The versions of the packages that are installed."""
    found = {each.name: each.version for each in importlib.metadata.distributions()}
    return ", ".join(f"{name} {found[name]}" for name in packages if name in found)


def measure(name: str) -> bool:
    """Runs one benchmark and writes its section; whether it succeeded."""
    title, command = TABLES[name]
    print(f"{name}: python benchmarks/{command}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, *f"benchmarks/{command}".split()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    today = datetime.datetime.now(datetime.UTC).date()
    ending = f"\nThe command failed with status {done.returncode}.\n" if done.returncode else ""
    section = (
        f"## {title}\n\n{today}\n\n```sh\npython benchmarks/{command}\n```\n\n{done.stdout}{ending}"
    )
    (FOLDER / f"{name}.md").write_text(section, encoding="utf-8")
    return done.returncode == 0


def main() -> int:
    """Measures the tables that are asked for and joins all that there are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names, separated by commas", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:11} {title}" for name, (title, _) in TABLES.items()))
        return 0
    names = arguments.only.split(",") if arguments.only else list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"--only={unknown[0]}: use {', '.join(TABLES)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if any(RUN in TABLES[name][1] for name in names):
        train = [sys.executable, "train.py", "--config=quickstart", f"--workdir={RUN}"]
        subprocess.run(train, cwd=ROOT, check=True)  # ends at once if the run is complete
    head = (
        f"# Benchmarks\n\n{processor()}\n\nPython {platform.python_version()}, "
        + versions(["jax", "flax", "optax", "tensorflow", "torch", "ctranslate2"])
        + "\n"
    )
    failed = []
    for name in names:
        if not measure(name):
            failed.append(name)
        sections = [FOLDER / f"{each}.md" for each in TABLES]
        texts = [path.read_text(encoding="utf-8") for path in sections if path.exists()]
        (ROOT / "build" / "benchmarks.md").write_text("\n".join([head, *texts]), encoding="utf-8")
    print("written: build/benchmarks.md")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
