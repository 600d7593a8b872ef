"""Norms and feed-forward networks by name: what `model.norm` and `model.feed_forward` choose."""

from transformer_jax.layers.feed_forward import FeedForwardConfig, Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, NormConfig, RMSNorm

NORMS: dict[str, type[NormConfig]] = {
    "layer": LayerNorm,
    "rms": RMSNorm,
}

FEED_FORWARDS: dict[str, type[FeedForwardConfig]] = {
    "mlp": Mlp,
    "glu": Glu,
}
