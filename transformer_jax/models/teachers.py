"""What a student learns from besides its text, as `train.teacher`: distillation word by word.

A teacher reads the text's own target up to each piece, and spreads the label of that piece over
those that it finds probable (Kim and Rush 2016, "Sequence-Level Knowledge Distillation",
arXiv:1606.07947, eq. 3). With its distribution q, the label y and the weight w, the loss is

    - (1 - w) log p(y) - w sum_v q(v) log p(v)

where q has the temperature of Hinton et al. 2015, arXiv:1503.02531; p has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array
from pydantic import PositiveInt

from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.settings.types import FileName, Positive, Rate


class Teacher:
    """Where the shares of each label come from."""

    pieces: int = 0  #: that share a label; 0: it is not shared
    run: str = ""  #: the folder of the model

    def soft_labels(
        self, config: ModelConfig, params: Any, batch: Mapping[str, Any]
    ) -> dict[str, Array]:
        """What `models.api.loss` reads besides the text's pieces."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoTeacher(Teacher):
    """The text alone."""


@dataclass(frozen=True)
class WordLevel(Teacher):
    """The best checkpoint of a run with the same tokenizers (Kim and Rush 2016)."""

    run: FileName  #: its folder
    weight: Rate = 0.5  #: the teacher's share of each label; the text's own piece has the rest
    temperature: Positive = 1.0  #: divides the teacher's logits; above 1 they are closer together
    pieces: PositiveInt = 16  #: the most probable ones share a label, the others have none of it

    def soft_labels(
        self, config: ModelConfig, params: Any, batch: Mapping[str, Any]
    ) -> dict[str, Array]:
        arrays = api.texts_of(batch), self.pieces
        ids, logits = api.run_model(config, params, *arrays, method="probable")
        shares = self.weight * jax.nn.softmax(logits / self.temperature)
        return {"soft_ids": ids, "soft_shares": shares}


#: What `train.teacher` can choose.
TEACHERS: dict[str, type[Teacher]] = {"none": NoTeacher, "word_level": WordLevel}
