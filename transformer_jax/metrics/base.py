"""What a learned metric answers: a model that judges translations, chosen by name and by folder."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

#: The scores of (sources, translations, references), float32 [N]: a metric whose model is loaded.
Judge = Callable[[Sequence[str], Sequence[str], Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Metric(ABC):
    """A model that judges translations, such as `metricx(model=FOLDER)`.

    A metric is a frozen dataclass, which costs nothing to make; `open` reads the model.
    """

    #: Whether it compares with a reference; if not, it reads none of those it is given.
    needs_reference: ClassVar[bool]
    #: The score of the worst translation; that of the best one is 0.
    worst: ClassVar[float]
    title: ClassVar[str]  #: what it is called in reports

    model: str  #: the folder of its model

    @abstractmethod
    def open(self) -> Judge:
        """Reads the model.

        Raises:
            UserError: the folder does not hold a model of this metric.
        """

    @property
    def signature(self) -> str:
        """What to report with a score, as sacreBLEU has it."""
        return f"model:{Path(self.model).name}|range:0-{self.worst:g}|best:0"
