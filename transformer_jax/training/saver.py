"""What a training run saves in a checkpoint, and how it continues from one."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Self

import jax
from etils import epath
from pydantic import StrictFloat, StrictInt

from transformer_jax.config import from_dict
from transformer_jax.errors import UserError
from transformer_jax.runs.checkpoints import Checkpoints, checkpoint_folder
from transformer_jax.runs.resume import check_identity
from transformer_jax.training.state import TrainState

_LOGGER = logging.getLogger(__name__)


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


#: Of a run without evaluations.
_EMPTY = Record(best_bleu=-1.0, best_step=-1, evaluations_since_best=0)


@dataclass(frozen=True)
class _Meta:
    """The JSON object in a checkpoint."""

    identity: dict[str, Any]
    position: StrictInt
    record: Record
    best_step: StrictInt | None  #: written by `Checkpoints`


class Saver:
    """A context that saves a run and restores it; without a workdir it does neither.

    The context ends when everything is on disk. After an exception, only a process that is alone
    waits for that: several would wait for each other, and one of them may be dead.

    Args:
        workdir: the run folder.
        keep: how many of the last checkpoints to keep.
        identity: see `training.loop.fit`.
        files: see `training.loop.fit`.
    """

    def __init__(
        self,
        workdir: epath.Path | None,
        keep: int,
        identity: Mapping[str, str],
        files: Mapping[str, bytes],
    ) -> None:
        self._identity = dict(identity)
        self._workdir = workdir
        self._checkpoints = None if workdir is None else Checkpoints(workdir, keep, files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._checkpoints and (kind is None or jax.process_count() == 1):
            with contextlib.suppress(UserError) if kind else contextlib.nullcontext():
                self._checkpoints.close()

    def restore(self, abstract: TrainState) -> tuple[int, TrainState | None, Record]:
        """(steps done, state, record) of the run so far; without state for a new run.

        Raises:
            UserError: the newest checkpoint is of another model, of other data, or its meta is
                not what `save` writes.
        """
        if self._workdir is None or self._checkpoints is None or self._checkpoints.newest is None:
            return 0, None, _EMPTY
        step = self._checkpoints.newest
        items, saved = self._checkpoints.restore(abstract.to_items())
        try:
            meta = from_dict(_Meta, saved)
        except UserError as error:
            raise UserError(
                f"{checkpoint_folder(self._workdir, step) / 'meta'}: {error}; another version or "
                "a change by hand wrote it: put it back, remove that checkpoint, or use another "
                "folder"
            ) from error
        check_identity(meta.identity, self._identity, self._workdir)
        _LOGGER.info("continuing after step %d", step)
        return step, TrainState.from_items(items), meta.record

    def save(self, step: int, state: TrainState, record: Record, *, best: bool) -> None:
        """Starts saving; see `Checkpoints.save`."""
        if self._checkpoints:
            meta = {"identity": self._identity, "position": step, "record": asdict(record)}
            self._checkpoints.save(step, state.to_items(), meta, best=best)

    def note_sealed(self) -> None:
        """Notes a checkpoint that was sealed since the last step."""
        if self._checkpoints:
            self._checkpoints.note_sealed()
