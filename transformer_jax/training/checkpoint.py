"""Orbax checkpoints of a run: the last N in `checkpoints/`, the best in `best/`.

Each holds `params`, `ema` (where kept), `trainer` (step and optimizer state) and
`meta`, a JSON object: data position, config, tokenizer digest, evaluation record.
Saving is asynchronous; a checkpoint appears under its final name only when whole.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from transformer_jax.errors import UserError
from transformer_jax.models.api import abstract_params
from transformer_jax.training.config import Config, load_config
from transformer_jax.training.state import TrainState


def _manager(folder: Path, keep: int | None, *, read_only: bool = False) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=not read_only, read_only=read_only
    )
    return ocp.CheckpointManager(folder.absolute(), options=options)


class Checkpoints:
    """The checkpoints of one run folder, for the process that trains it."""

    def __init__(self, workdir: str | Path, keep: int) -> None:
        self._latest = _manager(Path(workdir) / "checkpoints", keep)
        self._best = _manager(Path(workdir) / "best", 1)

    def latest_step(self) -> int | None:
        """The newest step saved, or None."""
        return self._latest.latest_step()

    def save(self, step: int, state: TrainState, meta: dict[str, Any], *, best: bool) -> None:
        """Starts saving; `best` also keeps a copy as the best so far."""
        items = {
            "params": ocp.args.StandardSave(state.params),
            "trainer": ocp.args.StandardSave({"step": state.step, "opt": state.opt_state}),
            "meta": ocp.args.JsonSave(meta),
        }
        if state.ema:
            items["ema"] = ocp.args.StandardSave(state.ema)
        for manager in [self._latest] + [self._best] * best:
            if step not in manager.all_steps():
                manager.save(step, args=ocp.args.Composite(**items), force=True)

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The state and meta saved at `step`, laid out as `abstract` says."""
        items = {
            "params": ocp.args.StandardRestore(abstract.params),
            "trainer": ocp.args.StandardRestore({"step": abstract.step, "opt": abstract.opt_state}),
            "meta": ocp.args.JsonRestore(),
        }
        if abstract.ema:
            items["ema"] = ocp.args.StandardRestore(abstract.ema)
        restored = self._latest.restore(step, args=ocp.args.Composite(**items))
        state = TrainState(
            step=restored["trainer"]["step"],
            params=restored["params"],
            opt_state=restored["trainer"]["opt"],
            ema=restored["ema"] if abstract.ema else {},
        )
        return state, restored["meta"]

    def wait(self) -> None:
        """Returns when everything started is on disk."""
        self._latest.wait_until_finished()
        self._best.wait_until_finished()

    def close(self) -> None:
        """Waits, then lets go of the folders."""
        self.wait()
        self._latest.close()
        self._best.close()


def restore_params(workdir: str | Path, which: str = "best") -> tuple[Any, str]:
    """Parameters to translate with (the moving average where one was kept).

    Args:
        workdir: a run folder.
        which: `best` (by validation BLEU; the newest where there was no evaluation),
            `latest`, a step number, or `average:N` (mean of the newest N).

    Returns:
        (params on the default device, a name such as `step-2000` or `average-5`).

    Raises:
        UserError: no checkpoint here, or not that one; says which there are.
    """
    config = load_config(workdir)
    latest, best = Path(workdir) / "checkpoints", Path(workdir) / "best"
    steps = sorted(_steps(latest))
    if not steps:
        raise UserError(f"--workdir={workdir}: no checkpoint here yet")
    if which == "best":
        best_steps = _steps(best)
        if best_steps:
            return _read(best, best_steps[-1], config), f"best-step-{best_steps[-1]}"
        return _read(latest, steps[-1], config), f"step-{steps[-1]}"
    if which == "latest":
        return _read(latest, steps[-1], config), f"step-{steps[-1]}"
    kind, _, number = which.partition(":")
    if kind == "average" and number.isdigit() and int(number) > 0:
        if int(number) > len(steps):
            raise UserError(
                f"--checkpoint={which}: only {len(steps)} checkpoints are kept here "
                f"(steps {', '.join(map(str, steps))})"
            )
        chosen = steps[-int(number) :]
        return _average(latest, chosen, config), f"average-{number}-to-step-{steps[-1]}"
    if which.isdigit():
        for folder in (latest, best):
            if int(which) in _steps(folder):
                return _read(folder, int(which), config), f"step-{which}"
        raise UserError(
            f"--checkpoint={which}: not kept here; there are steps "
            f"{', '.join(map(str, sorted({*steps, *_steps(best)})))}"
        )
    raise UserError(f"--checkpoint={which}: use best, latest, a step number or average:N")


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _read(folder: Path, step: int, config: Config) -> Any:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=device),
        abstract_params(config.model),
    )
    item = "ema" if config.train.ema_decay else "params"
    manager = _manager(folder, None, read_only=True)
    try:
        args = ocp.args.Composite(**{item: ocp.args.StandardRestore(target)})
        return manager.restore(step, args=args)[item]
    finally:
        manager.close()


def _average(folder: Path, steps: list[int], config: Config) -> Any:
    total = None
    for step in steps:
        params = _read(folder, step, config)
        total = params if total is None else jax.tree.map(jnp.add, total, params)
    return jax.tree.map(lambda x: x / len(steps), total)
