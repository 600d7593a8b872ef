"""Pairs that a learned metric takes for bad translations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, NonNegativeFloat

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.data.sources.files import file_digest
from transformer_jax.metrics.base import opened
from transformer_jax.metrics.registry import METRICS
from transformer_jax.settings.types import FileName


def _without_reference(name: str) -> str:
    names = [
        name
        for name, cls in METRICS.items()
        if not cls.needs_reference and cls.best < cls.worst  # as `at_most` has it
    ]
    if name not in names:
        raise ValueError(f"must be a metric that needs no reference: {', '.join(names)}")
    return name


@dataclass(frozen=True)
class Quality(Filter):
    """Pairs whose target a learned metric scores above `at_most`, as a translation of the source.

    It runs the metric's model on every pair, so it is by far the slowest filter, and is counted
    only where it is chosen.
    """

    counted: ClassVar[bool] = False

    model: FileName  #: the folder of the metric's model
    at_most: NonNegativeFloat = 5.0  #: the worst score that is kept, of 0 to 25; lower is better
    metric: Annotated[str, AfterValidator(_without_reference)] = "metricx_qe"
    #: which metric the model is of; one that needs no reference

    def key(self) -> dict[str, Any]:
        files = sorted(path for path in Path(self.model).rglob("*") if path.is_file())
        return vars(self) | {"model": [(path.name, file_digest(path)) for path in files]}

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        judge = opened(METRICS[self.metric](self.model))
        return judge(sources, targets, [""] * len(pairs))

    def bad(self, marks: np.ndarray) -> np.ndarray:
        return marks > self.at_most
