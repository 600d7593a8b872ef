"""Learning-rate schedules: a linear warm-up to a peak, and what follows it.

With n = the number of this update, counted from 1, and w = `warmup_steps`,

    rate(n) = peak * min(n / w, 1) * fall(n)

Each schedule is a config class with its own `fall`; fall(n) = 1 for n <= w.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from pydantic import NonNegativeInt

from transformer_jax.settings.types import USUAL, Positive
from transformer_jax.settings.variants import Family


@dataclass(frozen=True)
class Schedule:
    """What all schedules share. A subclass is a frozen dataclass with at least these options."""

    learning_rate: Positive | None  #: the peak
    warmup_steps: NonNegativeInt = 4000  #: updates until the peak

    fixes_steps: ClassVar[bool] = False
    #: Whether `fall` depends on the number of training steps, so that a run cannot be extended.

    def fall(self, update: jax.Array, warmup: jax.Array, steps: jax.Array) -> jax.Array:
        """The factor after the warm-up, a float32 scalar.

        Args:
            update: number of this update, counted from 1; float32 scalar.
            warmup: length of the warm-up, at least 1; float32 scalar.
            steps: number of training steps; float32 scalar.
        """
        raise NotImplementedError

    def build(
        self, d_model: int, steps: ArrayLike, warmup_steps: ArrayLike | None = None
    ) -> optax.Schedule:
        """The learning rate as a function of the number of updates before this one.

        Args:
            d_model: width of the model; decides the peak where no `learning_rate` is set.
            steps: number of training steps. It may be traced, as may the next one: one compiled
                step then serves trainings of any length.
            warmup_steps: in place of the schedule's own.
        """
        own = self.warmup_steps if warmup_steps is None else warmup_steps

        def schedule(count: ArrayLike) -> jax.Array:
            warmup = jnp.maximum(1.0, jnp.asarray(own, jnp.float32))
            peak = self.learning_rate or (d_model * warmup) ** -0.5
            update = jnp.asarray(count, jnp.float32) + 1.0
            rise = jnp.minimum(update / warmup, 1.0)
            return peak * rise * self.fall(update, warmup, jnp.asarray(steps, jnp.float32))

        return schedule


@dataclass(frozen=True)
class RsqrtSchedule(Schedule):
    """fall(n) = sqrt(w / n): section 5.3 of Vaswani et al. 2017."""

    learning_rate: Annotated[Positive, USUAL] | None = None
    #: the peak; none = (d_model * warmup_steps)^-0.5

    def fall(self, update: jax.Array, warmup: jax.Array, steps: jax.Array) -> jax.Array:
        return jnp.sqrt(warmup / jnp.maximum(update, warmup))


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Half a cosine, from the peak to 0 at the last step (Loshchilov & Hutter 2017)."""

    learning_rate: Annotated[Positive, USUAL]  #: the peak
    fixes_steps: ClassVar[bool] = True

    def fall(self, update: jax.Array, warmup: jax.Array, steps: jax.Array) -> jax.Array:
        return 0.5 * (1.0 + jnp.cos(jnp.pi * _progress(update, warmup, steps)))


@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """A straight line from the peak to 0 at the last step."""

    learning_rate: Annotated[Positive, USUAL]  #: the peak
    fixes_steps: ClassVar[bool] = True

    def fall(self, update: jax.Array, warmup: jax.Array, steps: jax.Array) -> jax.Array:
        return 1.0 - _progress(update, warmup, steps)


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """The peak until the end."""

    learning_rate: Annotated[Positive, USUAL]  #: the peak

    def fall(self, update: jax.Array, warmup: jax.Array, steps: jax.Array) -> jax.Array:
        return jnp.ones(())


def _progress(update: jax.Array, warmup: jax.Array, steps: jax.Array) -> jax.Array:
    """The part of the steps after the warm-up that is done, in [0, 1]."""
    return jnp.clip((update - warmup) / jnp.maximum(1.0, steps - warmup), 0.0, 1.0)


SCHEDULES: Family[Schedule] = Family(
    Schedule,
    rsqrt=RsqrtSchedule,
    cosine=CosineSchedule,
    linear=LinearSchedule,
    constant=ConstantSchedule,
)
