"""The decoding methods by name: a new one is an import and a line here."""

from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.sample import Sample
from transformer_jax.settings.variants import Family

METHODS: Family[Method] = Family(
    Method,
    beam=Beam,
    greedy=Greedy,
    sample=Sample,
)
