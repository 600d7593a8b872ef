"""The parameters of a run's model, by the name of a checkpoint."""

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh

from transformer_jax.config import Config
from transformer_jax.errors import UserError, first_line
from transformer_jax.models.api import Params, abstract_params, logical_axes
from transformer_jax.models.lora import NoAdapter
from transformer_jax.parallel.mesh import param_shardings, shapes_on
from transformer_jax.paths import absolute
from transformer_jax.runs.checkpoints import checkpoint_folder, checkpoint_steps, read_meta
from transformer_jax.runs.damage import find_damage
from transformer_jax.translation.model import Model, SingleModel

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """The checkpoints that a name such as `best` or `average:5` stands for."""

    which: str  #: the name as it was given
    steps: tuple[int, ...]  #: several: the mean of their parameters
    name: str  #: the exact name, such as `best-step-2000`


class SavedModel(Protocol):
    """A model that translates, whose parameters are in checkpoints; see `Run`."""

    @property
    def model(self) -> Model:
        """What the parameters are of."""

    def select(self, which: str) -> Selection:
        """As `Run.select`."""

    def params(self, chosen: Any, mesh: Mesh) -> Any:
        """Parameters on the mesh, of what `select` returned."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, path: epath.Path, config: Config) -> None:
        self.path = path
        self.config = config
        # The adapter is merged into the parameters.
        self.model: Model = SingleModel(dataclasses.replace(config.model, adapter=NoAdapter()))

    def select(self, which: str) -> Selection:
        """As `Run.select`."""
        steps = checkpoint_steps(self.path)
        if not steps:
            raise UserError(f"{self.path}: no checkpoint here yet")
        if which == "best" and (best := self._best_step(steps)) is not None:
            return Selection(which, (best,), f"best-step-{best}")
        if which in ("best", "latest"):
            step = self._newest_whole(steps)
            return Selection(which, (step,), f"step-{step}")
        kind, _, number = which.partition(":")
        if kind == "average" and number.isdecimal() and int(number) > 0:
            last = steps[-self.config.train.keep_checkpoints :]  # without an older best one
            if int(number) > len(last):
                raise UserError(
                    f"checkpoint={which}: only {len(last)} checkpoints are kept here "
                    f"(steps {', '.join(map(str, last))})"
                )
            name = f"average-{int(number)}-to-step-{last[-1]}"
            return Selection(which, tuple(last[-int(number) :]), name)
        if not which.isdecimal():
            raise UserError(f"checkpoint={which}: use best, latest, a step number or average:N")
        if int(which) not in steps:
            listed = ", ".join(map(str, steps))
            raise UserError(f"checkpoint={which}: not kept here; there are steps {listed}")
        return Selection(which, (int(which),), f"step-{int(which)}")

    def params(self, chosen: Selection, mesh: Mesh) -> Params:
        """The mean of the chosen checkpoints' parameters: of the moving average if there is one."""
        total = self._read(chosen.steps[0], chosen, mesh)
        dtypes = jax.tree.map(lambda x: x.dtype, total)
        for step in chosen.steps[1:]:
            new = self._read(step, chosen, mesh)
            total = jax.tree.map(lambda x, y: x.astype(jnp.float32) + y, total, new)
        count = len(chosen.steps)
        return jax.tree.map(lambda x, dtype: (x / count).astype(dtype), total, dtypes)

    @property
    def _item(self) -> str:
        return "ema" if self.config.train.ema_decay is not None else "params"

    def _best_step(self, steps: list[int]) -> int | None:
        """The step that the newest checkpoint names as the best; None if nothing was evaluated."""
        newest = checkpoint_folder(self.path, steps[-1])
        problem = find_damage(newest, "meta")
        best = None
        if problem is None:
            try:
                best = read_meta(self.path, steps[-1])["best_step"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                problem = "its meta does not name the best step"
        if problem is None and best is not None and best not in steps:
            problem = f"it names step {best}, which is gone"
        if problem is not None:
            raise UserError(
                f"checkpoint=best: the newest checkpoint, {newest}, names the best one, but "
                f"{problem}; choose a step ({', '.join(map(str, steps))}) or latest"
            )
        return best

    def _newest_whole(self, steps: list[int]) -> int:
        problems: list[str] = []
        for step in reversed(steps):
            problem = find_damage(checkpoint_folder(self.path, step), self._item)
            if problem is None:
                if problems:
                    _LOGGER.warning(
                        "damaged checkpoint (%s): using step %d", "; ".join(problems), step
                    )
                return step
            problems.append(f"step {step}: {problem}")
        listed = "; ".join(problems)
        raise UserError(f"{self.path}: no checkpoint here is whole ({listed})")

    def _read(self, step: int, chosen: Selection, mesh: Mesh) -> Params:
        """The parameters of one checkpoint, with its adapter merged."""
        folder = checkpoint_folder(self.path, step)
        if problem := find_damage(folder, self._item):
            raise UserError(
                f"checkpoint={chosen.which}: {folder} is damaged ({problem}); choose another, or "
                "latest for the newest whole one"
            )
        model = self.config.model
        abstract = abstract_params(model)
        target = shapes_on(abstract, param_shardings(logical_axes(model), abstract, mesh))
        # Each process reads for itself, so that one may read while others do something else.
        index = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=index,
            active_processes={index},
            barrier_sync_key_prefix=f"process_{index}",
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        try:
            with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
                args = ocp.args.StandardRestore(target)
                params = reader.restore(absolute(folder / self._item), args=args)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"checkpoint={chosen.which}: {folder} does not hold what config.json describes "
                f"({first_line(error)})"
            ) from error
        return model.adapter.merge(params)
