"""Several run folders that translate together."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run, open_run
from transformer_jax.runs.saved_model import Selection
from transformer_jax.translation.model import Ensemble, Mean, Model


def open_ensemble(workdirs: Sequence[str | os.PathLike[str]], *, mean: Mean = "log_probs") -> Run:
    """The runs in several folders, as one run that translates by the mean of their models.

    The models may differ in everything but their vocabularies. What else belongs to a run (the
    config, the corpus, the scores that are written) is that of the first.

    Args:
        workdirs: at least one folder; of one folder the run itself is returned.
        mean: what is averaged; see `transformer_jax.translation.model`.

    Raises:
        UserError: as `open_run`; or the vocabularies differ.
    """
    return join([open_run(workdir) for workdir in workdirs], mean=mean)


def join(runs: Sequence[Run], *, mean: Mean) -> Run:
    """As `open_ensemble`, of runs that are open."""
    first, *others = runs
    if not others:
        return first
    ours = first.tokenizers()
    for run in others:
        theirs = run.tokenizers()
        for side in ("source", "target"):
            if getattr(ours, side).model != getattr(theirs, side).model:
                raise UserError(
                    f"{run.path}: its {side} vocabulary is not that of {first.path}; "
                    "the models of an ensemble must share theirs"
                )
    return Run(first.path, first.config, SavedEnsemble(runs, mean))


@dataclass(frozen=True)
class EnsembleSelection(Selection):
    """A checkpoint of each run; `steps` are those of the first."""

    members: tuple[Selection, ...]


class SavedEnsemble:
    """The checkpoints of several runs. A name such as `best` stands for one of each."""

    def __init__(self, runs: Sequence[Run], mean: Mean) -> None:
        self.runs = tuple(runs)
        self.model: Model = Ensemble(tuple(run.model for run in runs), mean)

    def select(self, which: str) -> EnsembleSelection:
        """As `Run.select`, of each run."""
        members = tuple(run.select(which) for run in self.runs)
        others = [run.path.name for run in self.runs[1:]]
        names = [f"{other}:{m.name}" for other, m in zip(others, members[1:], strict=True)]
        return EnsembleSelection(
            which="+".join([which, *others]),
            steps=members[0].steps,
            name="+".join([members[0].name, *names]),
            members=members,
        )

    def params(self, chosen: EnsembleSelection, mesh: Mesh) -> Any:
        """A tuple with those of each run, all on one mesh."""
        pairs = zip(self.runs, chosen.members, strict=True)
        return tuple(run.params(member, mesh) for run, member in pairs)
