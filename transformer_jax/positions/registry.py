"""Every position scheme, by the name it has in a config.

Adding one is a file that defines it and a line here; its `Options` dataclass then
appears in the config as `model.encoder.position_options.<name>` and `model.decoder...`.
"""

from dataclasses import field, make_dataclass
from typing import Any

from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.base import Position
from transformer_jax.positions.concatenated import Concatenated
from transformer_jax.positions.learned import Learned
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.scalar import Scalar
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.positions.t5 import T5Relative

POSITIONS: dict[str, type[Position]] = {
    "none": NoPosition,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "concatenated": Concatenated,
    "scalar": Scalar,
    "t5": T5Relative,
    "alibi": Alibi,
    "rope": Rope,
}


def _options() -> Any:
    fields = [
        (name, cls.Options, field(default_factory=cls.Options)) for name, cls in POSITIONS.items()
    ]
    options = make_dataclass("PositionOptions", fields, frozen=True)
    options.__module__ = __name__  # the `module` argument is Python 3.12's
    return options


#: One field a scheme, each holding that scheme's own options.
PositionOptions: Any = _options()
