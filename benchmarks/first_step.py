"""Seconds from the command to the first training step, with a cold and a warm cache.

    python benchmarks/first_step.py [--json] --config=quickstart [--config.KEY=VALUE ...]

Starts `train.py` twice in new folders, as a user does, and stops it after its first step.
Cold: no compiled programs and no ids on disk. Warm: with those of the cold start. Both learn the
tokenizer again.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "train.py"


def seconds_to_first_step(arguments: list[str], workdir: Path, cache: Path) -> tuple[float, float]:
    """The seconds since the command, and since the start of the training loop."""
    metrics = workdir / "metrics.jsonl"
    environment = os.environ | {
        "XDG_CACHE_HOME": str(cache),
        "JAX_COMPILATION_CACHE_DIR": str(cache / "compiled"),
    }
    began = time.monotonic()
    training = subprocess.Popen(
        [sys.executable, str(TRAIN), f"--workdir={workdir}", "--no_progress", *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if training.poll() is not None:
                assert training.stderr is not None
                sys.exit(f"train.py ended before its first step:\n{training.stderr.read()}")
            time.sleep(0.02)
        seconds = time.monotonic() - began
    finally:
        training.kill()
        training.wait()
    first = json.loads(metrics.read_text(encoding="utf-8").splitlines()[0])
    return seconds, first["seconds_to_first_step"]


def main() -> None:
    """Prints the table, or a line of JSON for each of its rows."""
    arguments = [word for word in sys.argv[1:] if word != "--json"]
    as_json = len(arguments) < len(sys.argv) - 1
    if not any(word.split("=")[0] == "--config" for word in arguments):
        sys.exit(__doc__)
    if not as_json:
        print("| caches | seconds from the command | of these, in the training loop |")
        print("| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            total, loop = seconds_to_first_step(
                arguments, Path(folder) / name, Path(folder) / "cache"
            )
            row = {"caches": name, "seconds": round(total, 1), "in_the_loop": round(loop, 1)}
            print(
                json.dumps(row) if as_json else f"| {name} | {total:.1f} | {loop:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
