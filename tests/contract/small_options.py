"""Options small enough for the suite's seven tokens.

With the default options a window covers them all, one chunk or bucket holds them all, and
no convolution uses the FFT, so the suite would only test a single chunk, or full attention
under another name. The tests of each mixer (tests/mixers) use its defaults.
"""

from dataclasses import fields
from typing import Any

from transformer_jax.mixers.base import CrossMixerConfig, MixerConfig
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS

#: Mixer -> the options that differ from its defaults. The first token still reaches the last.
SMALL: dict[str, dict[str, Any]] = {
    "bigbird": {"block_size": 2, "window_blocks": 0, "global_blocks": 1, "random_blocks": 1},
    "gated_deltanet": {"chunk": 2},
    "gla": {"chunk": 2},
    # Up to four tokens by the sum, more by FFT: a row alone is compared with a padded one.
    "h3": {"head_dim": 4, "shift_size": 3, "state_size": 4, "direct_length": 4},
    "linear": {"chunk": 2},
    "linformer": {"rank": 3},
    "longformer": {"window": 1},
    "mamba": {"chunk": 2},
    "mlp_mixer": {"hidden": 5},
    "performer": {"chunk": 2, "features": 16},
    "reformer": {"chunk": 2, "rounds": 6, "seed": 1},
    "rwkv": {"chunk": 2, "lerp_rank": 3, "decay_rank": 2},
    "s4": {"state_size": 4, "direct_length": 4},
    "s4d": {"state_size": 4, "direct_length": 4},
    "ssd": {"chunk": 2, "state_size": 4, "groups": 2},
    "strided": {"stride": 2},
    "window": {"window": 2, "dilation": 3},
}

#: An FFT's rounding reaches earlier outputs (`ops.convolutions`); only the sum is exactly causal.
EXACTLY_CAUSAL: dict[str, dict[str, Any]] = {
    name: {"direct_length": 7} for name, options in SMALL.items() if "direct_length" in options
}

#: Options that one of the two stacks uses and the other refuses.
ENCODER_ONLY = {"mlp_mixer": ("hidden",)}
DECODER_ONLY = {"linear": ("chunk",), "performer": ("chunk",)}


def small_mixer(name: str, *, causal: bool, exactly_causal: bool = False) -> MixerConfig:
    """The mixer with this name in the registry, with its small options for a role."""
    options = SMALL.get(name, {}) | (EXACTLY_CAUSAL.get(name, {}) if exactly_causal else {})
    unused = (ENCODER_ONLY if causal else DECODER_ONLY).get(name, ())
    return MIXERS[name](**{key: value for key, value in options.items() if key not in unused})


def small_cross(name: str) -> CrossMixerConfig:
    """The reader of the memory with this name in the registry, with its small options."""
    known = {field.name for field in fields(CROSS_MIXERS[name])}
    options = SMALL.get(name, {})
    return CROSS_MIXERS[name](**{key: value for key, value in options.items() if key in known})
