"""Low-rank adapters of weight matrices: Hu et al. 2021, "LoRA", arXiv:2106.09685.

A matrix W [I, O] is used as

    W + (alpha / rank) A B        A [I, rank], B [rank, O]

A starts random and B zero, so that the adapted model starts as the model was. Training A and B
alone needs gradients and optimizer state of rank (I + O) numbers instead of I O.

The sum is formed on the weights, in front of the model, not on the activations of each layer.
So every matrix of every mixer can be adapted, and no layer knows of it. A step then costs as much
time as one that trains everything, and forms the adapted matrices anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.models.paths import by_path, from_paths, matching
from transformer_jax.ops.matmul import matmul
from transformer_jax.settings.types import Positive, Strings

Params = dict[str, Any]


class Adapter:
    """Parameters that are added to those of the model, as one more entry in their dict."""

    def init(self, key: Array, params: Mapping[str, Any]) -> Params:
        """The entry, with logical axes.

        Args:
            key: a random key.
            params: the model's parameters as Flax makes them, in boxes with their logical axes.

        Raises:
            UserError: the adapter does not fit the model.
        """
        return {}

    def merge(self, params: Params) -> Params:
        """The model's parameters with the adapter in them, without the entry."""
        return params


@dataclass(frozen=True)
class NoAdapter(Adapter):
    """The model's own parameters alone."""


@dataclass(frozen=True)
class Lora(Adapter):
    """Low-rank adapters (Hu et al. 2021), which can be merged after training."""

    rank: PositiveInt = 8  #: inner width of an adapter's two matrices
    alpha: Positive = 16.0  #: the adapters' product is scaled by alpha / rank
    targets: Strings = ("*/kernel",)
    #: patterns of paths; every matrix (two axes) that one matches gets an adapter

    def init(self, key: Array, params: Mapping[str, Any]) -> Params:
        boxes = by_path(params)
        shapes = {path: jnp.shape(nn.unbox(box)) for path, box in boxes.items()}
        found = matching(self.targets, shapes, "model.adapter.targets")
        matrices = [path for path in found if len(shapes[path]) == 2]
        if not matrices:
            example = f" ({found[0]} has the shape {shapes[found[0]]})" if found else ""
            raise UserError(
                f"model.adapter.targets={','.join(self.targets)} matches no matrix{example}: "
                "adapters are for parameters with two axes"
            )
        # The variance that the authors' code gives A (uniform there).
        gaussian = nn.initializers.variance_scaling(1 / 3, "fan_in", "normal")
        made = {}
        for number, path in enumerate(matrices):
            (size_in, size_out), (axis_in, axis_out) = shapes[path], boxes[path].names
            dtype = nn.unbox(boxes[path]).dtype
            init_a = nn.with_logical_partitioning(gaussian, (axis_in, "rank"))
            init_b = nn.with_logical_partitioning(nn.initializers.zeros, ("rank", axis_out))
            made[f"{path}/a"] = init_a(jax.random.fold_in(key, number), (size_in, self.rank), dtype)
            made[f"{path}/b"] = init_b(key, (self.rank, size_out), dtype)
        return {"lora": from_paths(made)}

    def merge(self, params: Params) -> Params:
        leaves = by_path({name: part for name, part in params.items() if name != "lora"})
        factors = by_path(params["lora"])
        for path in (name.removesuffix("/a") for name in factors if name.endswith("/a")):
            product = matmul(factors[f"{path}/a"], factors[f"{path}/b"], jnp.float32)
            merged = leaves[path] + self.alpha / self.rank * product
            leaves[path] = merged.astype(leaves[path].dtype)
        return from_paths(leaves)


#: What `model.adapter` can choose.
ADAPTERS: dict[str, type[Adapter]] = {"none": NoAdapter, "lora": Lora}
