"""A run folder of a small model with random parameters, for what needs no training."""

from pathlib import Path
from typing import Any

import jax

from tests.small import small_model
from transformer_jax.config import Config, TrainConfig
from transformer_jax.data.config import DataConfig
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.run_folder import write_run
from transformer_jax.models.api import init


def untrained_run(
    folder: Path,
    tokenizers: Tokenizers,
    data: DataConfig,
    decode: DecodeConfig,
    *,
    seed: int = 0,
    **options: Any,
) -> None:
    """Writes it; `options` are those of the model."""
    model = small_model(tokenizers.source.vocab_size, **options)
    config = Config(data=data, model=model, train=TrainConfig(keep_checkpoints=1), decode=decode)
    write_run(folder, TrainedModel(config, init(model, jax.random.key(seed)), tokenizers))
