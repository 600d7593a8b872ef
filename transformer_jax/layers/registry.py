"""Norms and feed-forward networks by name: what `model.norm` and `model.feed_forward` choose."""

from transformer_jax.layers.feed_forward import FeedForwardConfig, Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, NormConfig, RMSNorm
from transformer_jax.settings.variants import Family

NORMS: Family[NormConfig] = Family(
    NormConfig,
    layer=LayerNorm,
    rms=RMSNorm,
)

FEED_FORWARDS: Family[FeedForwardConfig] = Family(
    FeedForwardConfig,
    mlp=Mlp,
    glu=Glu,
)
