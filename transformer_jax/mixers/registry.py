"""Every sequence mixer, by the name it has in a config.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.mixers.base import CrossMixerConfig, MixerConfig
from transformer_jax.mixers.bigbird import BigBird
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.gated_deltanet import GatedDeltaNet
from transformer_jax.mixers.gla import GLA
from transformer_jax.mixers.h3 import H3
from transformer_jax.mixers.linear import Linear, LinearCross
from transformer_jax.mixers.linformer import Linformer, LinformerCross
from transformer_jax.mixers.longformer import Longformer
from transformer_jax.mixers.mamba import Mamba
from transformer_jax.mixers.mlp_mixer import MlpMixer
from transformer_jax.mixers.performer import Performer, PerformerCross
from transformer_jax.mixers.reformer import Reformer
from transformer_jax.mixers.rwkv import RWKV
from transformer_jax.mixers.s4 import S4
from transformer_jax.mixers.s4d import S4D
from transformer_jax.mixers.ssd import SSD
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.mixers.strided import Strided
from transformer_jax.mixers.window import Window
from transformer_jax.settings.variants import Family

MIXERS: Family[MixerConfig] = Family(
    MixerConfig,
    full=Full,
    window=Window,
    longformer=Longformer,
    strided=Strided,
    bigbird=BigBird,
    linear=Linear,
    linformer=Linformer,
    mlp_mixer=MlpMixer,
    performer=Performer,
    reformer=Reformer,
    gated_deltanet=GatedDeltaNet,
    gla=GLA,
    h3=H3,
    mamba=Mamba,
    rwkv=RWKV,
    s4=S4,
    s4d=S4D,
    ssd=SSD,
    ssru=SSRU,
)

CROSS_MIXERS: Family[CrossMixerConfig] = Family(
    CrossMixerConfig,
    full=FullCross,
    linear=LinearCross,
    linformer=LinformerCross,
    performer=PerformerCross,
)
