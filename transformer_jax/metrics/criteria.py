"""What selects the best checkpoint of a training, by name: `train.best_by`."""

from dataclasses import dataclass
from typing import ClassVar

from transformer_jax.metrics.base import Criterion
from transformer_jax.metrics.registry import METRICS


@dataclass(frozen=True)
class Bleu(Criterion):
    """The mean BLEU of the validation sets."""

    title: ClassVar[str] = "BLEU"
    worst: ClassVar[float] = 0.0
    best: ClassVar[float] = 100.0


CRITERIA: dict[str, type[Criterion]] = {"bleu": Bleu, **METRICS}
