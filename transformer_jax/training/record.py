"""What a checkpoint says besides its arrays: where the run came from, and its evaluations."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import StrictFloat, StrictInt

from transformer_jax.config import from_dict
from transformer_jax.errors import UserError
from transformer_jax.runs.checkpoints import Checkpoints, checkpoint_folder
from transformer_jax.training.state import TrainState

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """What determines a run besides its config; stored in each checkpoint."""

    identity: Mapping[str, str] = field(default_factory=dict)
    #: hashes, such as that of the text, by name; a run is continued only if they are the same
    files: Mapping[str, bytes] = field(default_factory=dict)  #: contents by relative path


@dataclass(frozen=True)
class Record:
    """The evaluations of a run so far."""

    best_bleu: StrictFloat
    best_step: StrictInt
    evaluations_since_best: StrictInt

    def with_bleu(self, bleu: float, step: int) -> "Record":
        """The record after one more evaluation."""
        if bleu > self.best_bleu:
            return Record(bleu, step, evaluations_since_best=0)
        return replace(self, evaluations_since_best=self.evaluations_since_best + 1)


#: Of a run without evaluations. (Without defaults, a record in a file must be complete.)
NO_EVALUATIONS = Record(best_bleu=-1.0, best_step=-1, evaluations_since_best=0)


@dataclass(frozen=True)
class _Meta:
    """The JSON object in a checkpoint."""

    identity: dict[str, Any]
    position: StrictInt
    record: Record
    best_step: StrictInt | None  #: written by `Checkpoints`


def meta(step: int, origin: Origin, record: Record) -> dict[str, Any]:
    """The JSON object of a checkpoint, as `restore` reads it."""
    return {"identity": dict(origin.identity), "position": step, "record": asdict(record)}


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
