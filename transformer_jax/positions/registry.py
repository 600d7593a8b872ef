"""Every position scheme, by the name it has in a config."""

from transformer_jax.positions.base import Position
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.sinusoidal import Sinusoidal

POSITIONS: dict[str, type[Position]] = {
    "none": NoPosition,
    "sinusoidal": Sinusoidal,
}
