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


def refuse_option(options: Any, key: str, option: str, why: str) -> None:
    """Raises UserError where an option that this role does not read is not at its default.

    Args:
        options: the mixer's own.
        key: where they stand in the config.
        option: the name of one of them.
        why: it has no effect, and what to do instead.
    """
    value = getattr(options, option)
    if value != getattr(type(options)(), option):
        raise UserError(f"{key}.{option}={value} has no effect: {why}")


def require(options: Any, key: str, **at_least: int) -> None:
    """Raises UserError where an option of `options`, given by name, is below its least value."""
    for option, least in at_least.items():
        value = getattr(options, option)
        if value < least:
            raise UserError(f"{key}.{option}={value}: must be at least {least}")


def require_diagonal_system(options: Any, key: str) -> None:
    """Raises UserError for what no diagonal state space system can have."""
    if options.state_size < 2 or options.state_size % 2:
        raise UserError(f"{key}.state_size={options.state_size}: must be even and at least 2")
    if not 0 < options.dt_min <= options.dt_max:
        raise UserError(
            f"{key}.dt_min={options.dt_min} and {key}.dt_max={options.dt_max}: "
            "need 0 < dt_min <= dt_max"
        )
    require(options, key, direct_length=0)
