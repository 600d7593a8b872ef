"""Optimizers of Optax, each a config class with the options that it has."""

from dataclasses import dataclass

import optax

from transformer_jax.settings.types import NonNegative, Rate
from transformer_jax.settings.variants import Family


class Optimizer:
    """What all optimizers share. A subclass is a frozen dataclass."""

    def build(self, rate: optax.Schedule) -> optax.GradientTransformation:
        """The optimizer with this learning rate."""
        raise NotImplementedError


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma & Ba 2015, with the constants of Vaswani et al. 2017."""

    b1: Rate = 0.9  #: decay of the mean of gradients
    b2: Rate = 0.98  #: decay of the mean of their squares
    eps: NonNegative = 1e-9  #: added to the root of the mean of squares

    def build(self, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.adam(rate, b1=self.b1, b2=self.b2, eps=self.eps)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    weight_decay: NonNegative = 0.0  #: times the learning rate

    def build(self, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.adamw(
            rate, b1=self.b1, b2=self.b2, eps=self.eps, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Shazeer & Stern 2018: the squares' mean is kept as one row and one column per matrix."""

    weight_decay: NonNegative = 0.0  #: of each step, not times the learning rate

    def build(self, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.adafactor(rate, weight_decay_rate=self.weight_decay or None)


@dataclass(frozen=True)
class Lion(Optimizer):
    """Chen et al. 2023: the sign of a mean of gradients; takes a 3 to 10 times lower rate."""

    b1: Rate = 0.9  #: share of the kept mean in the update
    b2: Rate = 0.98  #: decay of the kept mean
    weight_decay: NonNegative = 0.0  #: times the learning rate

    def build(self, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.lion(rate, b1=self.b1, b2=self.b2, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent with momentum."""

    momentum: Rate = 0.9  #: decay of the sum of gradients

    def build(self, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=self.momentum)


OPTIMIZERS: Family[Optimizer] = Family(
    Optimizer,
    adam=Adam,
    adamw=AdamW,
    adafactor=Adafactor,
    lion=Lion,
    sgd=Sgd,
)


def make_optimizer(
    optimizer: Optimizer, rate: optax.Schedule, clip_norm: float | None = None
) -> optax.GradientTransformation:
    """The optimizer, after clipping of the gradient's global norm to `clip_norm` if it is set."""
    built = optimizer.build(rate)
    if clip_norm is None:
        return built
    return optax.chain(optax.clip_by_global_norm(clip_norm), built)
