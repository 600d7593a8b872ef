"""Kills a training with SIGKILL at random moments and restarts it by the same command.

    python benchmarks/kill_and_resume.py --kills=30

Trains a tiny model twice: once undisturbed, once killed and restarted. About a third of the kills
hit the start (imports, tokenizer, restore), the others hit training, which saves every ten steps.
At the end it compares the parameters bit by bit, and the loss of every step. A loss depends on the
parameters and the data of its step, so equal losses, each step once, show that no data was skipped
or seen twice. Prints JSON. The exit status is 1 if anything differs, if there were fewer kills than
asked for (the run ended before), or if none of twenty or more kills hit a save.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Of this many kills at least one must hit a save; about a third do.
ENOUGH = 20

RECIPE = """
from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.config import Config, TrainConfig
from transformer_jax.optimizers.schedules import RsqrtSchedule

stack = StackConfig(num_layers=1)
config = Config(
    data=DataConfig(validation_from_train=8, source=Files(
                        train_source=("{folder}/t.en",), train_target=("{folder}/t.de",)),
                    cache_dir="{folder}/cache"),
    tokenizer=TokenizerConfig(vocab_size=400),
    batch=BatchConfig(tokens=256, max_length=64, num_buckets=1),
    model=ModelConfig(d_model=16, d_ff=32, num_heads=2, encoder=stack, decoder=stack,
                      dropout_rate=0.1, max_length=64),
    train=TrainConfig(steps={steps}, schedule=RsqrtSchedule(learning_rate=1e-3),
                      ema_decay=0.9, log_every=1, evaluate_every={steps}, evaluate_sentences=2,
                      checkpoint_every=10, keep_checkpoints=3),
)
"""


def prepare(folder: Path, steps: int) -> Path:
    """Writes the text and the recipe; returns the recipe's path."""
    sys.path.insert(0, str(ROOT))
    from transformer_jax.data.sources.grammar.sentences import generate

    pairs = generate(5, 300)
    for side, language in ((0, "en"), (1, "de")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (folder / f"t.{language}").write_text(text, encoding="utf-8")
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE.format(folder=folder, steps=steps))
    return recipe


def start(recipe: Path, workdir: Path) -> subprocess.Popen[bytes]:
    """Starts the command, which is always the same."""
    return subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "train.py"),
            f"--config={recipe}",
            f"--workdir={workdir}",
            "--no_progress",
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for_training(
    process: subprocess.Popen[bytes], workdir: Path, offset: int, at_most: float = math.inf
) -> None:
    """Returns when log.txt, after `offset` bytes, says that the first step is done.

    Or earlier, after `at_most` seconds.
    """
    log, deadline = workdir / "log.txt", time.monotonic() + at_most
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and b"first step done" in log.read_bytes()[offset:]:
            return
        time.sleep(0.02)


def wait_for_step(process: subprocess.Popen[bytes], workdir: Path, step: int) -> None:
    """Returns when metrics.jsonl holds the step, or the process has ended."""
    metrics = workdir / "metrics.jsonl"
    while process.poll() is None:
        lines = metrics.read_bytes().splitlines()[-2:] if metrics.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError):  # half a line
                if json.loads(line)["step"] >= step:
                    return
        time.sleep(0.01)


def kill_once(recipe: Path, workdir: Path, draw: random.Random, startup: float, far: int) -> dict:
    """Starts the command and kills it; returns at what moment that was.

    One start in three is killed before training, the others after up to `far` more steps.
    """
    log = workdir / "log.txt"
    offset = log.stat().st_size if log.exists() else 0
    process = start(recipe, workdir)
    if draw.random() < 1 / 3:
        moment = "start"
        # A later start may be quicker than the first one, which compiled.
        wait_for_training(process, workdir, offset, at_most=draw.random() * startup)
    else:
        moment = "training"
        wait_for_training(process, workdir, offset)
        wait_for_step(process, workdir, newest(workdir) + draw.randrange(far))
        time.sleep(draw.random() * 0.05)
    if process.poll() is not None:
        return {"moment": "finished"}
    process.send_signal(signal.SIGKILL)
    process.wait()
    if moment == "training" and list(workdir.glob("*/*.orbax-checkpoint-tmp*")):
        moment = "saving"
    return {"moment": moment, "checkpoint": newest(workdir)}


def newest(workdir: Path) -> int:
    """The newest finished checkpoint's step; 0 where there is none."""
    names = [path.name for path in (workdir / "checkpoints").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def outcome(workdir: Path) -> dict:
    """Final parameters and moments, and the loss of every step, as stored."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    manager = ocp.CheckpointManager(workdir / "checkpoints")
    step = manager.latest_step()
    items = {name: ocp.args.StandardRestore() for name in ("params", "ema", "trainer")}
    restored = manager.restore(step, args=ocp.args.Composite(**items))
    manager.close()
    leaves = [np.asarray(x).tobytes() for name in items for x in jax.tree.leaves(restored[name])]
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    losses = [(r["step"], r["loss"], r["grad_norm"]) for r in records if "loss" in r]
    return {"step": step, "leaves": leaves, "losses": losses}


def main() -> int:
    """Runs it and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = prepare(folder, args.steps)
        began = time.monotonic()
        process = start(recipe, folder / "undisturbed")
        wait_for_training(process, folder / "undisturbed", 0)
        startup = time.monotonic() - began
        assert process.wait() == 0, "the undisturbed run failed"
        kills: list[dict] = []
        while len(kills) < args.kills:
            # So that all kills fit: on average the killed starts take half of the steps, and none
            # comes so close to the end that it could finish before it is killed.
            far = max(1, int(1.5 * args.steps / args.kills))
            far = max(1, min(far, args.steps - 50 - newest(folder / "killed")))
            done = kill_once(recipe, folder / "killed", draw, startup, far)
            if done["moment"] == "finished":
                break
            kills.append(done)
            print(f"{len(kills)}: {done}", file=sys.stderr, flush=True)
        status = start(recipe, folder / "killed").wait()
        one, other = outcome(folder / "undisturbed"), outcome(folder / "killed")
    moments = [kill["moment"] for kill in kills]
    report = {
        "kills": len(kills),
        **{f"kills while {m}": moments.count(m) for m in ("start", "training", "saving")},
        "steps": one["step"],
        "as many kills as asked for": len(kills) == args.kills,
        "a kill in a save": "saving" in moments or len(kills) < ENOUGH,
        "last exit status": status,
        "parameters, average and moments bit-identical": one["leaves"] == other["leaves"],
        "every step once": [s for s, _, _ in other["losses"]] == list(range(1, one["step"] + 1)),
        "loss of every step identical": one["losses"] == other["losses"],
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(report, indent=2))
    return 0 if status == 0 and all(v is not False for v in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
