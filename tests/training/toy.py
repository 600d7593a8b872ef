"""A model and batches small enough to train inside a test: copy the source, reversed."""

from collections.abc import Iterator

import numpy as np

from tests import shared_programs
from tests.small import small_model
from transformer_jax.config import TrainConfig
from transformer_jax.optimizers.schedules import RsqrtSchedule

shared_programs.install()

VOCAB, ROWS, LENGTH = 12, 8, 6

MODEL = small_model(VOCAB, max_length=LENGTH)

TRAIN = TrainConfig(
    steps=12,
    schedule=RsqrtSchedule(learning_rate=3e-3, warmup_steps=4),
    log_every=3,
    evaluate_every=4,
    checkpoint_every=4,
    keep_checkpoints=2,
)


def batch(position: int) -> dict[str, np.ndarray]:
    """The batch at a position: a pure function of it."""
    rng = np.random.default_rng(position)
    lengths = rng.integers(2, LENGTH + 1, ROWS)
    mask = np.arange(LENGTH) < lengths[:, None]
    source = np.zeros((ROWS, LENGTH), np.int32)
    target = np.zeros((ROWS, LENGTH), np.int32)
    for row, length in enumerate(lengths):
        words = rng.integers(4, VOCAB, length - 1)
        source[row, :length] = [*words, 2]
        target[row, :length] = [*words[::-1], 2]
    return {"source": source, "source_mask": mask, "target": target, "target_mask": mask}


def batches_from(position: int) -> Iterator[dict[str, np.ndarray]]:
    """All batches from a position on."""
    while True:
        yield batch(position)
        position += 1


class Numbers:
    """A tokenizer: text is ids, written out."""

    prefix = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(str(i) for i in ids if i > 2)
