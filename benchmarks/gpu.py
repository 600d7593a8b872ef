r"""What to measure on a GPU that is at hand for minutes: three commands, each with a limit in all.

    python benchmarks/gpu.py step     # products, base and big, PyTorch's: where a step's time goes
    python benchmarks/gpu.py more     # first step, check, searches, mixers on long sequences
    python benchmarks/gpu.py train    # Multi30k by the clock, many trainings on one card
        [--output=DIR] [--tiny] [--only=NAME,NAME]

Each is a list of parts, and each part a command with its own limit. What a part prints as JSON is
one line of DIR/<step|more|train>.jsonl, as soon as it is printed, with the card, its driver, the
versions and the commit (of git, or what COMMIT says where there is no git); the rest of its output
is in DIR/<...>.log. A part that fails or is cut off is one line that says so, and the next one
begins. DIR is $OUT, or build/gpu. --tiny tries the commands in tiny sizes, also on a CPU.

The folder of Multi30k's text is MULTI30K (default: ../shared/data/multi30k). docs/scale.md says
what each part decides, and what such a machine may lack.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("transformer-jax", "jax", "jaxlib", "jax-cuda13-plugin", "flax", "torch", "triton")
TEXT = "".join(
    f" --config.data.source.{split}_{side}={{text}}/{name}.{ending}.gz"
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr"))
    for side, ending in (("source", "en"), ("target", "de"))
)


class Part(NamedTuple):
    """A command with its limit, and the same in tiny sizes.

    The commands are of the shell, where `{out}`, `{text}`, `{runs}` and `{python}` stand for
    folders and the interpreter. What needs PyTorch says so in its row where there is none.
    """

    name: str
    limit: int  #: seconds
    command: str
    tiny: str

    @property
    def needs_torch(self) -> bool:
        """Whether it is about PyTorch."""
        return "torch_gpu.py" in self.command


STEP = "{python} benchmarks/device.py step"
BIG = " --recipe=wmt14_en_de_big_tpu"
TINY = (
    "batch.tokens=64 batch.max_length=16 batch.num_buckets=1 tokenizer.vocab_size=300 "
    "tokenizer.kind=bpe tokenizer.sampling_alpha=none model.d_model=32 model.d_ff=64 "
    "model.num_heads=2 model.encoder.num_layers=1 model.decoder.num_layers=1 decode.method=greedy"
)
TINY_STEP = f"{STEP} --recipe=quickstart --seconds=0.02 --profile=2 {TINY}"
TORCH = "{python} benchmarks/torch_gpu.py"
#: Compiled by nobody: PyTorch's compiler takes a minute for a tiny model on a CPU.
TINY_TORCH = (
    f"OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 {TORCH} --size=tiny --tokens=64 --length=16 "
    "--rows=2 --seconds=0.02"
)
BLOCKS = " --variants=blocks,masters_blocks"
GRAPHS = " --variants=masters,graphs"
RUN = "{python} train.py --no_progress --workdir={runs}"
SCORE = "cat {runs}/*/metrics.jsonl && {python} eval.py --json --workdir={runs}"
MULTI30K = f" --config=configs/multi30k_en_de.py{TEXT} --config.train.log_every="
TINY_RUN = f"{MULTI30K}1 --config.train.steps=2 --config.train.schedule.warmup_steps=1 " + " ".join(
    f"--config.{change}" for change in TINY.split()
)
#: What training/step.py passes by itself. XLA ends a process that names a flag which it lacks.
FLAGS = "XLA_FLAGS=--xla_gpu_enable_triton_gemm=false"
MORE_FLAGS = f"{FLAGS}' --xla_gpu_experimental_enable_fusion_autotuner=false'"
CHECK = (
    "{python} -c 'from transformer_jax.commands.main import main; raise SystemExit(main())' check"
)
SEARCH = "{python} benchmarks/device.py search"
ROWS = "RESULTS={runs} MULTI30K={text} {python} benchmarks/multi30k_mixers.py"

PARTS = {
    "step": [
        Part("products", 25, f"{TORCH} --products", f"{TINY_TORCH} --products"),
        Part("base", 120, f"{STEP} --hlo={{out}}/base.hlo.txt", f"{TINY_STEP} --hlo={{out}}/base"),
        Part("torch base", 70, TORCH + BLOCKS, TINY_TORCH + BLOCKS),
        Part("big", 110, STEP + BIG, f"{TINY_STEP} --profile=0"),
        Part("torch big", 60, f"{TORCH} --size=big{BLOCKS}", TINY_TORCH + BLOCKS),
        Part(
            "no command buffers",
            50,
            f'{STEP} --profile=0 --options=\'{{"xla_gpu_enable_command_buffer": ""}}\'',
            f"{TINY_STEP} --profile=0 --options='{{}}'",
        ),
        Part("torch compiled", 110, TORCH + GRAPHS, TINY_TORCH + GRAPHS),
    ],
    "more": [
        Part(
            "first step",
            130,
            "{python} benchmarks/first_step.py --json --config=wmt14_en_de_base_tpu "
            "--config.data.source=grammar --config.data.target_language=de "
            "--config.tokenizer.vocab_size=1000 --config.batch.tokens=16384",
            f"{{python}} benchmarks/first_step.py --json{TINY_RUN}",
        ),
        Part(
            "check",
            130,
            f"{CHECK} --json",
            f"{CHECK} --json --parts=machine,attention",
        ),
        Part(
            "search",
            90,
            " || ".join(
                f"{flags} {SEARCH} --seconds=2 model.dtype=bfloat16 batch.max_length=64"
                for flags in (MORE_FLAGS, FLAGS)
            ),
            f"{SEARCH} --rows=2 --seconds=0.02 {TINY}",
        ),
        Part(
            "torch search",
            80,
            f"{TORCH} --search --length=64 --seconds=1",
            f"{TINY_TORCH} --search",
        ),
        Part(
            "mixers",
            70,
            "{python} benchmarks/device.py mixers",
            "{python} benchmarks/device.py mixers --only=ssd --lengths=64 --seconds=0.02",
        ),
    ],
    "train": [
        Part(
            "multi30k, one minute",
            120,
            f"{RUN}/minute{MULTI30K}500 --config.train.minutes=1 && {SCORE}/minute",
            f"{RUN}/minute{TINY_RUN} && {SCORE}/minute",
        ),
        Part(
            "multi30k, all steps",
            190,
            f"{RUN}/all{MULTI30K}500 && {SCORE}/all --checkpoint=latest",
            f"{RUN}/minute --help",
        ),
        Part("mixers, many at once", 190, f"{ROWS} --jobs=14", f"{ROWS} --list"),
    ],
}


def say(**row: Any) -> None:
    """Prints a row of JSON."""
    print(json.dumps(row), flush=True)


def timed(call: Callable[[], Any], wait: Callable[[Any], Any], seconds: float) -> dict[str, float]:
    """Milliseconds of a call: the median where each is waited for, and the mean of unbroken ones.

    Two or more calls have been made before, so that nothing is compiled here.
    """
    single: list[float] = []
    while len(single) < 3 or sum(single) < seconds / 2:
        began = time.perf_counter()
        wait(call())
        single.append(time.perf_counter() - began)
    median = statistics.median(single)
    count = max(3, int(seconds / 2 / median))
    began = time.perf_counter()
    for _ in range(count):
        result = call()
    wait(result)
    unbroken = (time.perf_counter() - began) / count
    return {"ms_single": round(1e3 * median, 4), "ms": round(1e3 * unbroken, 4)}


def about() -> dict[str, str]:
    """What every row names: the card and its driver, versions, the commit."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card, _, driver = _first_line(query).partition(", ")
    found = {each.name: each.version for each in importlib.metadata.distributions()}
    versions = {name: found[name] for name in PACKAGES if name in found}
    commit = os.environ.get("COMMIT") or _first_line(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    return {"card": card or "none", "driver": driver, "commit": commit, **versions}


def _first_line(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.partition("\n")[0]
    except FileNotFoundError:
        return ""


def run(part: Part, command: str, write: Callable[..., None], log: Any) -> None:
    """Runs the command of a part and writes its rows; the last one says how it ended."""
    if part.needs_torch and not importlib.util.find_spec("torch"):
        return write(ended="left out: torch is not installed")
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        shell=True,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    cut = threading.Event()

    def stop() -> None:
        cut.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(part.limit, stop)
    timer.start()
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        log.write(line)
        log.flush()
        last = line.strip() or last
        if line.startswith("{"):
            write(**json.loads(line))
    status = process.wait()
    timer.cancel()
    ended = f"cut off after {part.limit} s" if cut.is_set() else "done"
    if status and not cut.is_set():
        ended = f"failed with status {status}: {last[:500]}"
    write(ended=ended, seconds=round(time.monotonic() - began, 1))


def environment() -> dict[str, str]:
    """Of every part: this package first, one cache of compiled programs, no memory kept back."""
    cache = ROOT / "build" / "gpu" / "cache"
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
    }
    return {**own, **os.environ, "PYTHONPATH": own["PYTHONPATH"]}


def main() -> None:
    """Runs the parts of a command, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=PARTS)
    parser.add_argument("--output", type=Path, default=os.environ.get("OUT", "build/gpu"))
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, which a CPU can run")
    parser.add_argument("--only", default="", help="names of parts, with commas")
    arguments = parser.parse_args()
    names = [part.name for part in PARTS[arguments.command]]
    only = arguments.only.split(",") if arguments.only else names
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"--only={','.join(unknown)}: the parts are {', '.join(names)}")
    output = Path(arguments.output).absolute()
    output.mkdir(parents=True, exist_ok=True)
    same = about()
    with (
        tempfile.TemporaryDirectory() as runs,
        (output / f"{arguments.command}.jsonl").open("a", encoding="utf-8") as rows,
        (output / f"{arguments.command}.log").open("a", encoding="utf-8") as log,
    ):
        text = Path(os.environ.get("MULTI30K", "../shared/data/multi30k")).absolute()
        words = {"out": output, "python": sys.executable, "runs": runs, "text": text}
        for part in PARTS[arguments.command]:
            if part.name not in only:
                continue

            def write(*, job: str = part.name, **row: Any) -> None:
                print(json.dumps({"job": job, **row}), flush=True)
                rows.write(json.dumps({"job": job, **row, **same}) + "\n")
                rows.flush()

            command = part.tiny if arguments.tiny else part.command
            for name, value in words.items():
                command = command.replace(f"{{{name}}}", str(value))
            run(part, command, write, log)


if __name__ == "__main__":
    main()
