"""The kinds of noise by name, as in `corpus(..., noise=typos)`."""

from transformer_jax.data.noise.base import Noise
from transformer_jax.data.noise.case import TitleCase, UpperCase
from transformer_jax.data.noise.marks import NoFinalMark
from transformer_jax.data.noise.numbers import Numbers
from transformer_jax.data.noise.typos import Typos
from transformer_jax.settings.variants import Family

NOISES: Family[Noise] = Family(
    Noise,
    upper_case=UpperCase,
    title_case=TitleCase,
    typos=Typos,
    no_final_mark=NoFinalMark,
    numbers=Numbers,
)
