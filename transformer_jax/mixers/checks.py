"""Checks of options and context that several mixers share."""

from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.mixers.base import MixerContext


def refuse_weight_dropout(context: MixerContext, key: str) -> None:
    """Raises UserError where attention dropout is asked of a mixer without weights."""
    if context.attention_dropout_rate:
        raise UserError(
            f"model.attention_dropout_rate={context.attention_dropout_rate}: "
            f"{key.rpartition('.')[2]} has no attention weights to drop; set it to 0 "
            "(model.dropout_rate still applies)"
        )


def require_positive(options: Any, key: str) -> None:
    """Raises UserError where a number of `options` is below 1; a seed may be 0."""
    for name, value in vars(options).items():
        least = 0 if name == "seed" else 1
        if isinstance(value, int) and value < least:
            raise UserError(f"{key}.{name}={value}: must be at least {least}")
