"""Several run folders that translate together."""

import dataclasses
import os
from collections.abc import Sequence

from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run, open_run
from transformer_jax.translation.model import Mean


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
    return dataclasses.replace(first, others=tuple(others), mean=mean)


def members(run: Run) -> tuple[Run, ...]:
    """The runs of an ensemble; of a single run, the run itself."""
    return dataclasses.replace(run, others=()), *run.others
