"""Several run folders that translate together."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run, Selection, open_run
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
        if side := ours.differ_in(run.tokenizers()):
            raise UserError(
                f"{run.path}: its {side} vocabulary is not that of {first.path}; "
                "the models of an ensemble must share theirs"
            )
    return EnsembleRun(first.path, first.config, tuple(runs), mean)


def members(run: Run) -> tuple[Run, ...]:
    """The runs of an ensemble; of a single run, the run itself."""
    return run.runs if isinstance(run, EnsembleRun) else (run,)


@dataclass(frozen=True)
class EnsembleSelection(Selection):
    """A checkpoint of each run; `steps` are those of the first."""

    members: tuple[Selection, ...]


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleRun(Run):
    """The first of several runs, with the models of all: `best` stands for one of each."""

    runs: tuple[Run, ...]
    mean: Mean

    @property
    def together(self) -> Model:
        return Ensemble(tuple(run.model for run in self.runs), self.mean)

    def select(self, which: str) -> EnsembleSelection:
        members = tuple(run.select(which) for run in self.runs)
        others = [run.path.name for run in self.runs[1:]]
        names = [f"{other}:{m.name}" for other, m in zip(others, members[1:], strict=True)]
        return EnsembleSelection(
            which="+".join([which, *others]),
            steps=members[0].steps,
            name="+".join([members[0].name, *names]),
            members=members,
        )

    def params(self, which: str | Selection = "best", mesh: Mesh | None = None) -> Any:
        chosen = self.select(which) if isinstance(which, str) else which
        assert isinstance(chosen, EnsembleSelection), "of this ensemble"
        pairs = zip(self.runs, chosen.members, strict=True)
        mesh = mesh or self._local_mesh()
        return tuple(run.params(member, mesh) for run, member in pairs)
