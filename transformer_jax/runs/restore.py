"""Parameters, and the files that go with them, out of a run folder."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh

from transformer_jax.config import Config, load_config
from transformer_jax.data.tokenizer import Tokenizers, load_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.models.api import abstract_params, logical_axes
from transformer_jax.parallel.mesh import decoding_mesh, param_shardings, shapes_on
from transformer_jax.paths import absolute, as_path
from transformer_jax.runs.checkpoints import checkpoint_steps
from transformer_jax.runs.damage import find_damage, has_manifest


def _say(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def restore_params(
    workdir: str | Path, which: str = "best", mesh: Mesh | None = None
) -> tuple[Any, str]:
    """Parameters to translate with (the moving average where one was kept).

    Args:
        workdir: a run folder.
        which: `best` (by validation BLEU; the newest where there was no evaluation),
            `latest`, a step number, or `average:N` (mean of the newest N in `checkpoints/`;
            an older best one is not among them).
        mesh: what to lay them on, each part read straight onto its devices; default: the
            devices of this process, as the run's mesh divides them.

    Returns:
        (params laid out as in training, a name such as `step-2000` or `average-5`).

    Raises:
        UserError: no checkpoint here, or not that one, or it is damaged; says which
            there are. (`latest` falls back to the one before, and says so.)
    """
    config = load_config(workdir)
    item = "ema" if config.train.ema_decay is not None else "params"
    mesh = mesh or decoding_mesh(config.mesh, jax.local_devices())
    held = _held(workdir)
    if not held:
        raise UserError(f"--workdir={workdir}: no checkpoint here yet")
    steps = sorted(held)
    best = checkpoint_steps(as_path(workdir) / "best")
    if which == "best" and best:
        return _read(held[best[-1]], item, config, which, mesh), f"best-step-{best[-1]}"
    if which in ("best", "latest"):
        step = _newest_whole(workdir, held, item)
        return _read(held[step], item, config, which, mesh), f"step-{step}"
    kind, _, number = which.partition(":")
    listed = ", ".join(map(str, steps))
    if kind == "average" and number.isdecimal() and int(number) > 0:
        # An old best one is none of the last; where nothing else is left, it is the last.
        last = checkpoint_steps(as_path(workdir) / "checkpoints") or steps
        if int(number) > len(last):
            raise UserError(
                f"--checkpoint={which}: only {len(last)} checkpoints are kept here "
                f"(steps {', '.join(map(str, last))})"
            )
        total = None
        for step in last[-int(number) :]:
            params = _read(held[step], item, config, which, mesh)
            total = params if total is None else jax.tree.map(jnp.add, total, params)
        mean = jax.tree.map(lambda x: x / int(number), total)
        return mean, f"average-{int(number)}-to-step-{last[-1]}"
    if which.isdecimal():
        if int(which) not in held:
            raise UserError(f"--checkpoint={which}: not kept here; there are steps {listed}")
        return _read(held[int(which)], item, config, which, mesh), f"step-{int(which)}"
    raise UserError(f"--checkpoint={which}: use best, latest, a step number or average:N")


def restore_tokenizers(workdir: str | Path, say: Callable[[str], None] = _say) -> Tokenizers:
    """The run's tokenizers: its own, or where those are lost, the copy in a checkpoint.

    Raises:
        UserError: there are none, or not those that the model was trained with.
    """
    workdir = as_path(workdir)
    sizes = load_config(workdir).model
    try:
        tokenizers = load_tokenizers(workdir / "tokenizer")
    except UserError as error:
        held = _held(workdir)
        copies = [held[step][0] for step in sorted(held, reverse=True)]
        whole = [
            c for c in copies if (c / "tokenizer").is_dir() and not find_damage(c, "tokenizer")
        ]
        if not whole:
            raise
        say(f"{error}: using the copy in {whole[0]}")
        tokenizers = load_tokenizers(whole[0] / "tokenizer")
    for side in ("source", "target"):
        found, wanted = getattr(tokenizers, side).vocab_size, getattr(sizes, f"{side}_vocab_size")
        if wanted and found != wanted:
            raise UserError(
                f"{workdir / 'tokenizer'}: the {side} tokenizer has {found} pieces, but the model "
                f"was trained with {wanted}: put the run's own tokenizer back"
            )
    return tokenizers


def _held(workdir: str | Path) -> dict[int, list[Path]]:
    """Step -> its checkpoint, and the copy of it in `best/`."""
    held: dict[int, list[Path]] = {}
    for name in ("checkpoints", "best"):
        folder = as_path(workdir) / name
        for step in checkpoint_steps(folder):
            held.setdefault(step, []).append(folder / str(step))
    return held


def _damage(folder: Path, item: str) -> str | None:
    # Before there were manifests there was nothing to check against.
    return find_damage(folder, item) if has_manifest(folder) else None


def _newest_whole(workdir: str | Path, held: dict[int, list[Path]], item: str) -> int:
    problems: list[str] = []
    for step in sorted(held, reverse=True):
        found = [_damage(folder, item) for folder in held[step]]
        if None in found:
            if problems:
                _say(f"damaged checkpoint ({'; '.join(problems)}): using step {step}")
            return step
        problems.append(f"step {step}: {found[0]}")
    raise UserError(f"--workdir={workdir}: no checkpoint here is whole ({'; '.join(problems)})")


def _read(folders: list[Path], item: str, config: Config, which: str, mesh: Mesh) -> Any:
    """The item from the first of the copies that is whole."""
    problems = [_damage(folder, item) for folder in folders]
    if None not in problems:
        raise UserError(
            f"--checkpoint={which}: {folders[0]} is damaged ({problems[0]}); "
            "choose another, or --checkpoint=latest for the newest whole one"
        )
    folder = folders[problems.index(None)]
    abstract = abstract_params(config.model)
    target = shapes_on(abstract, param_shardings(logical_axes(config.model), abstract, mesh))
    # Each process reads for itself, so that one may do so while others do something else.
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"process_{jax.process_index()}",
    )
    options = ocp.CheckpointManagerOptions(
        create=False, read_only=True, multiprocessing_options=alone
    )
    manager = ocp.CheckpointManager(absolute(folder.parent), options=options)
    try:
        args = ocp.args.Composite(**{item: ocp.args.StandardRestore(target)})
        return manager.restore(int(folder.name), args=args)[item]
    except (ValueError, KeyError, TypeError, OSError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"--checkpoint={which}: {folder} does not hold what config.json describes ({line})"
        ) from error
    finally:
        manager.close()
