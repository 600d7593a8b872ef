"""Optax optimizers by name, and the schedules that machine translation uses."""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from transformer_jax.config import OptimizerConfig, check_optimizer_config


def make_schedule(config: OptimizerConfig, d_model: int, steps: int) -> optax.Schedule:
    """Learning rate as a function of the number of updates done before this one.

    `rsqrt` is section 5.3 of Vaswani et al. 2017: linear warm-up to a peak, then the
    inverse square root of the step. Its default peak is theirs,
    d_model^-0.5 * warmup_steps^-0.5.
    """
    warmup = max(1, config.warmup_steps)
    peak = config.learning_rate or (d_model * warmup) ** -0.5

    def schedule(count: ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) + 1.0
        rise = jnp.minimum(step / warmup, 1.0)
        done = jnp.clip((step - warmup) / max(1, steps - warmup), 0.0, 1.0)
        fall = {
            "rsqrt": jnp.sqrt(warmup / jnp.maximum(step, warmup)),
            "cosine": 0.5 * (1.0 + jnp.cos(jnp.pi * done)),
            "linear": 1.0 - done,
            "constant": jnp.ones(()),
        }[config.schedule]
        return peak * rise * fall

    return schedule


def make_optimizer(
    config: OptimizerConfig, d_model: int, steps: int
) -> optax.GradientTransformation:
    """The named optimizer behind optional clipping of the global gradient norm."""
    check_optimizer_config(config)
    rate = make_schedule(config, d_model, steps)
    betas = {"b1": config.b1, "b2": config.b2}
    optimizer = {
        "adam": lambda: optax.adam(rate, eps=config.eps, **betas),
        "adamw": lambda: optax.adamw(
            rate, eps=config.eps, weight_decay=config.weight_decay, **betas
        ),
        "adafactor": lambda: optax.adafactor(rate, weight_decay_rate=config.weight_decay or None),
        "lion": lambda: optax.lion(rate, weight_decay=config.weight_decay, **betas),
        "sgd": lambda: optax.sgd(rate, momentum=config.b1),
    }[config.name]()
    if config.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
    return optimizer
