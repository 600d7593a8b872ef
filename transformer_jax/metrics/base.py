"""What a learned metric answers: a model that judges translations, chosen by name and by folder."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from transformer_jax.settings.types import FileName

#: Sentences, such as the lines of a file.
Lines = Sequence[str]
#: The scores of (sources, translations, references), float32 [N]: a metric whose model is loaded.
Judge = Callable[[Lines, Lines, Lines], np.ndarray]


@dataclass(frozen=True)
class Criterion:
    """A score by which one checkpoint is better than another."""

    title: ClassVar[str]  # what it is called in reports
    worst: ClassVar[float]  # the score of the worst translations
    best: ClassVar[float]  # that of the best ones

    def goodness(self, score: float) -> float:
        """How far a score is from the worst: a higher one is better, whichever way scores go."""
        return score - self.worst if self.best > self.worst else self.worst - score

    def score(self, goodness: float) -> float:
        """The inverse of `goodness`."""
        return self.worst + goodness if self.best > self.worst else self.worst - goodness


@dataclass(frozen=True)
class Metric(Criterion, ABC):
    """A model that judges translations, such as `metricx(model=FOLDER)`.

    A metric is a frozen dataclass, which costs nothing to make; `open` reads the model.
    """

    # Whether it compares with a reference; if not, it reads none of those it is given.
    needs_reference: ClassVar[bool] = True

    model: FileName  #: the folder of its model

    @abstractmethod
    def open(self) -> Judge:
        """Reads the model.

        Raises:
            UserError: the folder does not hold a model of this metric.
        """

    @property
    def signature(self) -> str:
        """What to report with a score, as sacreBLEU has it."""
        return f"model:{Path(self.model).name}|worst:{self.worst:g}|best:{self.best:g}"


@functools.lru_cache(maxsize=1)
def opened(metric: Metric) -> Judge:
    """`metric.open()`, whose model stays in memory for the next call.

    Raises:
        UserError: as `open`.
    """
    return metric.open()
