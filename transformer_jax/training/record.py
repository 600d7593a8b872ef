"""What a checkpoint says besides its arrays: where the run came from, and its evaluations."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from etils import epath
from pydantic import StrictFloat, StrictInt

from transformer_jax.config import from_dict
from transformer_jax.errors import UserError
from transformer_jax.runs.checkpoints import (
    Checkpoints,
    checkpoint_folder,
    checkpoint_steps,
    read_meta,
)
from transformer_jax.training.state import TrainState

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """The evaluations of a run so far."""

    best_bleu: StrictFloat  #: the `goodness` of the best: BLEU, or what `train.best_by` makes of it
    best_step: StrictInt
    evaluations_since_best: StrictInt


#: Of a run without evaluations. (Without defaults, a record in a file must be complete.)
NO_EVALUATIONS = Record(best_bleu=-1.0, best_step=-1, evaluations_since_best=0)


@dataclass(frozen=True)
class _Meta:
    """The JSON object in a checkpoint."""

    identity: dict[str, Any]
    position: StrictInt
    record: Record
    best_step: StrictInt | None  #: written by `Checkpoints`


def check_identity(now: Mapping[str, str], workdir: epath.Path) -> None:
    """Refuses to continue a run on other data; touches nothing.

    Args:
        now: hashes of what determines the run besides its config, such as the training text. They
            are compared with those in the newest checkpoint whose meta can be read.
        workdir: the run folder.

    Raises:
        UserError: a hash differs.
    """
    for step in reversed(checkpoint_steps(workdir)):
        try:
            saved = dict(read_meta(workdir, step)["identity"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # restoring it reports the damage
        for key, value in now.items():
            if saved.get(key, value) != value:
                raise UserError(
                    f"{workdir}: the {key} changed since this run was saved, so it cannot be "
                    "continued exactly: restore what it was, or use another folder"
                )
        return


def meta(step: int, identity: Mapping[str, str], record: Record) -> dict[str, Any]:
    """The JSON object of a checkpoint, as `restore` reads it."""
    return {"identity": dict(identity), "position": step, "record": asdict(record)}


def restore(
    checkpoints: Checkpoints, abstract: TrainState
) -> tuple[int, TrainState | None, Record]:
    """(steps done, state, record) of the run so far; without state for a new run.

    Raises:
        UserError: the newest checkpoint is of another model, or its meta is not what `meta` makes.
    """
    step = checkpoints.newest
    if step is None:
        return 0, None, NO_EVALUATIONS
    items, saved = checkpoints.restore(abstract.to_items())
    try:
        found = from_dict(_Meta, saved)
    except UserError as error:
        raise UserError(
            f"{checkpoint_folder(checkpoints.workdir, step) / 'meta'}: {error}; another version or "
            "a change by hand wrote it: put it back, remove that checkpoint, or use another folder"
        ) from error
    _LOGGER.info("continuing after step %d", step)
    return step, abstract.from_items(items), found.record
