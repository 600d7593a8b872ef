"""Every family of published models, by the `model_type` in its `config.json`.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.interop.families.base import Family
from transformer_jax.interop.families.m2m100 import LAYOUT as M2M100
from transformer_jax.interop.families.m2m100 import m2m100
from transformer_jax.interop.families.marian import LAYOUT as MARIAN
from transformer_jax.interop.families.marian import marian
from transformer_jax.interop.families.marian_own import marian_own
from transformer_jax.interop.families.mbart import mbart
from transformer_jax.interop.families.t5 import t5
from transformer_jax.published.layout import Layout
from transformer_jax.published.t5 import LAYOUT as T5

FAMILIES: dict[str, Family] = {
    "marian": marian,
    "marian_own": marian_own,  # the files of Marian itself
    "m2m_100": m2m100,  # and NLLB
    "mbart": mbart,
    "mt5": t5,
    "t5": t5,
}

#: Those in whose form models are written too.
LAYOUTS: dict[str, Layout] = {"marian": MARIAN, "m2m_100": M2M100, "t5": T5}
