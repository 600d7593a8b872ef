"""`model.dropout_rate=auto`: the rate for the number of epochs of a training.

A text that is seen a few times only is not learned by heart, and dropout slows its training down.
"""

import dataclasses

from transformer_jax.models.config import ModelConfig

#: (epochs, the rate of trainings with fewer), measured on texts of 10,000 to 150,000 pairs
#: (docs/results.md). Longer trainings have the last rate.
_BELOW = ((15.0, 0.1), (28.0, 0.2))
_LONGEST = 0.3


def with_dropout_rate(model: ModelConfig, epochs: float) -> ModelConfig:
    """The model with a number in place of `dropout_rate=auto`.

    Args:
        model: with any rate; a number stays as it is.
        epochs: how often the training sees its text.
    """
    if model.dropout_rate != "auto":
        return model
    rates = (rate for most, rate in _BELOW if epochs < most)
    return dataclasses.replace(model, dropout_rate=next(rates, _LONGEST))
