"""Every family of published models, by the `model_type` in its `config.json`.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.formats.family import Family
from transformer_jax.formats.marian.reader import marian_own
from transformer_jax.formats.transformers.m2m100 import LAYOUT as M2M100, m2m100
from transformer_jax.formats.transformers.marian import LAYOUT as MARIAN, marian
from transformer_jax.formats.transformers.mbart import mbart
from transformer_jax.formats.transformers.t5 import t5
from transformer_jax.weights.layout import Layout
from transformer_jax.weights.t5 import LAYOUT as T5

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
