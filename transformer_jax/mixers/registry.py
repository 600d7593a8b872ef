"""Every sequence mixer, by the name it has in a config.

Adding one is a file that defines it and a line here; its `Options` dataclass then
appears in the config as `model.encoder.options.<name>` and `model.decoder...`.
"""

from dataclasses import field, make_dataclass
from typing import Any

from transformer_jax.mixers.base import CrossMixer, Mixer
from transformer_jax.mixers.bigbird import BigBirdAttention
from transformer_jax.mixers.both_ways import both_ways
from transformer_jax.mixers.full_attention import FullAttention, FullCrossAttention
from transformer_jax.mixers.h3 import H3
from transformer_jax.mixers.linear import LinearAttention, LinearCrossAttention
from transformer_jax.mixers.linformer import Linformer, LinformerCross
from transformer_jax.mixers.longformer import LongformerAttention
from transformer_jax.mixers.mamba import Mamba
from transformer_jax.mixers.mlp_mixer import MlpMixer
from transformer_jax.mixers.performer import Performer, PerformerCross
from transformer_jax.mixers.reformer import Reformer
from transformer_jax.mixers.rwkv import RWKV
from transformer_jax.mixers.s4d import S4D
from transformer_jax.mixers.ssd import SSD
from transformer_jax.mixers.strided import StridedAttention
from transformer_jax.mixers.window import WindowAttention

MIXERS: dict[str, type[Mixer]] = {
    "full": FullAttention,
    "window": WindowAttention,
    "longformer": LongformerAttention,
    "strided": StridedAttention,
    "bigbird": BigBirdAttention,
    "linear": LinearAttention,
    "linformer": Linformer,
    "mlp_mixer": MlpMixer,
    "performer": Performer,
    "reformer": Reformer,
    "h3": both_ways(H3),
    "mamba": both_ways(Mamba),
    "rwkv": both_ways(RWKV),
    "s4d": S4D,
    "ssd": both_ways(SSD),
}

CROSS_MIXERS: dict[str, type[CrossMixer]] = {
    "full": FullCrossAttention,
    "linear": LinearCrossAttention,
    "linformer": LinformerCross,
    "performer": PerformerCross,
}


def _options(registry: dict[str, Any], name: str) -> Any:
    fields = [
        (key, cls.Options, field(default_factory=cls.Options)) for key, cls in registry.items()
    ]
    options = make_dataclass(name, fields, frozen=True)
    options.__module__ = __name__  # the `module` argument is Python 3.12's
    return options


#: One field a mixer, each holding that mixer's own options.
MixerOptions: Any = _options(MIXERS, "MixerOptions")
CrossMixerOptions: Any = _options(CROSS_MIXERS, "CrossMixerOptions")
