"""Several run folders that translate together."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run, Selection, open_run
from transformer_jax.translation.ensemble import Ensemble, Mean


def open_ensemble(workdirs: Sequence[str | os.PathLike[str]], *, mean: Mean = "log_probs") -> Run:
    """The runs in several folders, as one run that translates by the mean of their models.

    The models may differ in everything but their vocabularies. What else belongs to a run (the
    config, the corpus, the scores that are written) is that of the first.

    Args:
        workdirs: at least one folder; of one folder the run itself is returned.
        mean: what is averaged; see `transformer_jax.translation.ensemble`.

    Raises:
        UserError: as `open_run`; or the vocabularies differ.
    """
    runs = [open_run(workdir) for workdir in workdirs]
    return runs[0] if len(runs) == 1 else EnsembleRun(runs, mean)


@dataclass(frozen=True)
class EnsembleSelection(Selection):
    """A checkpoint of each run; `steps` are those of the first."""

    members: tuple[Selection, ...]


class EnsembleRun(Run):
    """See `open_ensemble`. A name such as `best` stands for a checkpoint of each run."""

    def __init__(self, runs: Sequence[Run], mean: Mean) -> None:
        super().__init__(runs[0].path, runs[0].config)
        self.runs = tuple(runs)
        self.mean = mean
        for run in runs[1:]:
            for side in ("source", "target"):
                first, other = (getattr(r.tokenizers(), side) for r in (self, run))
                if first.model != other.model:
                    raise UserError(
                        f"{run.path}: its {side} vocabulary is not that of {self.path}; "
                        "the models of an ensemble must share theirs"
                    )

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

    def params(self, which: str | Selection = "best", mesh: Mesh | None = None) -> Any:
        """As `Run.params`: a tuple with those of each run, all on the mesh of the first."""
        chosen = self.select(which) if isinstance(which, str) else which
        assert isinstance(chosen, EnsembleSelection)
        mesh = mesh or self._local_mesh()
        pairs = zip(self.runs, chosen.members, strict=True)
        return tuple(run.params(member, mesh) for run, member in pairs)

    @property
    def _model(self) -> Ensemble:
        return Ensemble(tuple(run.model for run in self.runs), self.mean)
