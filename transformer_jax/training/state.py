"""The state of training: arrays only, donated to each step."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import struct

from transformer_jax.models.paths import by_path, from_paths, overlaid


@struct.dataclass
class TrainState:
    """Attributes:
    step: int32 scalar, the number of batches seen.
    params: the parameters.
    opt_state: Optax's, in float32, for the parameters that are trained.
    ema: exponential moving average of the trained parameters in float32, or an empty dict.
    skipped: int32 scalar, the number of steps left out because their loss was not finite.
    skipped_in_a_row: int32 scalar, how many steps up to the last one were left out.

    A TrainState can also hold the shapes of these arrays, or their shardings.
    """

    step: Any
    params: Any
    opt_state: Any
    ema: Any
    skipped: Any = 0
    skipped_in_a_row: Any = 0

    def __repr__(self) -> str:
        num_params = sum(getattr(leaf, "size", 0) for leaf in jax.tree.leaves(self.params))
        average = ", with an average" if self.ema else ""
        return f"TrainState(step={self.step}, {num_params:,} parameters{average})"

    @property
    def averages(self) -> Any:
        """The average where one is kept, in float32, and the other parameters."""
        return overlaid(self.params, self.ema)

    @property
    def eval_params(self) -> Any:
        """The parameters to translate with: `averages`, in the dtypes of the parameters."""
        return jax.tree.map(lambda x, param: x.astype(param.dtype), self.averages, self.params)

    def to_items(self) -> dict[str, Any]:
        """The items of a checkpoint, by name; `from_items` is the inverse.

        Its averages are complete: they can be used without the other values.
        """
        trainer = {"step": self.step, "opt": self.opt_state, "skipped": self.skipped}
        trainer["skipped_in_a_row"] = self.skipped_in_a_row
        items = {"params": self.params, "trainer": trainer}
        return items | {"ema": self.averages} if self.ema else items

    def from_items(self, items: Mapping[str, Any]) -> "TrainState":
        """The state of a checkpoint; `self` holds its shapes."""
        averages = by_path(items.get("ema", {}))
        ema = from_paths({path: averages[path] for path in by_path(self.ema)})
        trainer = dict(items["trainer"])
        return TrainState(params=items["params"], opt_state=trainer.pop("opt"), ema=ema, **trainer)
