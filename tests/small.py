"""A model that is small enough to be compiled in a test."""

from typing import Any

from transformer_jax.models.config import ModelConfig, StackConfig

ONE_LAYER = StackConfig(num_layers=1)


def small_model(vocab_size: int, *, both: StackConfig = ONE_LAYER, **options: Any) -> ModelConfig:
    """A model with joint ids and `both` as encoder and decoder, where `options` say no other."""
    sizes = {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size}
    shape = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder": both, "decoder": both}
    return ModelConfig(**sizes | shape | options)
