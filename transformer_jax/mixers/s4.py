"""S4, the structured state space model (Gu, Goel and Re 2021, arXiv:2111.00396; A in the
stable form of Goel et al. 2022, arXiv:2202.09729).

    s = SSM(u) + skip u         one linear system of N states a channel (ops.dplr_ssm)
    a, b = W gelu(s),    y = a sigmoid(b)

It is S4D with another matrix: A = Lambda - P P*, diagonal plus low rank, which starts as
HiPPO-LegS. Its state is then the past's expansion in Legendre polynomials. A diagonal matrix
cannot be HiPPO-LegS: S4D leaves out P P*.

O(L log L) time over a sequence, by FFT: the kernel takes one division of power series on top
of S4D's. A decoding step is O(N) a channel, whatever came before, and keeps N/2 complex numbers.
In the encoder each channel has two filters, one over what came before and one over what
follows.

The weight of a token depends on its distance alone, never on its content. Beyond
`direct_length` positions the FFT's rounding (about 1e-7 of the largest term) also reaches
earlier outputs; see `ops.convolutions`.
"""

from dataclasses import dataclass
from typing import ClassVar

from transformer_jax.layers.diagonal_systems import SystemOptions
from transformer_jax.layers.dplr_systems import DPLRSystems
from transformer_jax.mixers.base import Mixer, MixerConfig
from transformer_jax.mixers.s4d import S4DMixer


class S4Mixer(S4DMixer):
    """S4D's layer around DPLR systems."""

    systems_class = DPLRSystems


@dataclass(frozen=True)
class S4(SystemOptions, MixerConfig):
    """S4's sizes."""

    module: ClassVar[type[Mixer]] = S4Mixer
