"""Every family of published models, by the `model_type` in its `config.json`.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.interop.families.base import Family
from transformer_jax.interop.families.marian import marian

FAMILIES: dict[str, Family] = {
    "marian": marian,
}
