"""Every position scheme, by the name it has in a config.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.base import PositionConfig
from transformer_jax.positions.concatenated import Concatenated
from transformer_jax.positions.learned import Learned
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.scalar import Scalar
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.positions.t5 import T5
from transformer_jax.settings.variants import Family

POSITIONS: Family[PositionConfig] = Family(
    PositionConfig,
    none=NoPosition,
    sinusoidal=Sinusoidal,
    learned=Learned,
    concatenated=Concatenated,
    scalar=Scalar,
    t5=T5,
    alibi=Alibi,
    rope=Rope,
)
