"""Which parameters are trained. The others get neither gradients nor optimizer state."""

from typing import Any

from transformer_jax.config import TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.models.paths import by_path, from_paths, matching


def trained_part(train: TrainConfig, params: Any) -> Any:
    """The parameters that training changes, as nested dicts without the other leaves.

    Args:
        train: says in `frozen` which are not.
        params: arrays, or what stands for them.

    Raises:
        UserError: a pattern matches nothing, or nothing is left to train.
    """
    leaves = by_path(params)
    if train.frozen is None:
        adapters = {path: leaf for path, leaf in leaves.items() if path.startswith("lora/")}
        return from_paths(adapters or leaves)
    frozen = set(matching(train.frozen, leaves, "train.frozen"))
    if not leaves.keys() - frozen:
        raise UserError(f"train.frozen={','.join(train.frozen)}: nothing is left to train")
    return from_paths({path: leaf for path, leaf in leaves.items() if path not in frozen})
