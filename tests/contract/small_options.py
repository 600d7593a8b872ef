"""Options under which a mixer has something to miss in the suite's seven tokens.

By default a window reaches further than that, one chunk or bucket holds everything, and
no convolution is by FFT: the suite would try one chunk, or full attention under another
name. The tests of each mixer (tests/mixers) try its defaults.
"""

from dataclasses import fields
from typing import Any

from transformer_jax.mixers.base import CrossMixerConfig, MixerConfig
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS

#: Mixer -> what differs from its default options. The first token still reaches the last.
SMALL: dict[str, dict[str, Any]] = {
    "bigbird": {"block_size": 2, "window_blocks": 0, "global_blocks": 1, "random_blocks": 1},
    # Up to four tokens the sum itself, more by FFT: rows alone against rows with padding.
    "h3": {"head_dim": 4, "shift_size": 3, "state_size": 4, "direct_length": 4},
    "linear": {"chunk": 2},
    "linformer": {"rank": 3},
    "longformer": {"window": 1},
    "mamba": {"chunk": 2},
    "mlp_mixer": {"hidden": 5},
    "performer": {"chunk": 2, "features": 16},
    "reformer": {"chunk": 2, "rounds": 6, "seed": 1},
    "rwkv": {"chunk": 2, "lerp_rank": 3, "decay_rank": 2},
    "s4d": {"state_size": 4, "direct_length": 4},
    "ssd": {"chunk": 2, "state_size": 4, "groups": 2},
    "strided": {"stride": 2},
    "window": {"window": 2, "dilation": 3},
}

#: The rounding of an FFT knows no direction (`ops.convolutions`): exactly causal is the sum.
EXACTLY_CAUSAL: dict[str, dict[str, Any]] = {
    name: {"direct_length": 7} for name, options in SMALL.items() if "direct_length" in options
}

#: Options that only one of the two stacks uses, and the other refuses.
ENCODER_ONLY = {"mlp_mixer": ("hidden",)}
DECODER_ONLY = {"linear": ("chunk",), "performer": ("chunk",)}


def small_mixer(name: str, *, causal: bool, exactly_causal: bool = False) -> MixerConfig:
    """The mixer that the registry calls `name`, with its small options for a role."""
    options = SMALL.get(name, {}) | (EXACTLY_CAUSAL.get(name, {}) if exactly_causal else {})
    unused = (ENCODER_ONLY if causal else DECODER_ONLY).get(name, ())
    return MIXERS[name](**{key: value for key, value in options.items() if key not in unused})


def small_cross(name: str) -> CrossMixerConfig:
    """The reader of the memory that the registry calls `name`, with its small options."""
    known = {field.name for field in fields(CROSS_MIXERS[name])}
    options = SMALL.get(name, {})
    return CROSS_MIXERS[name](**{key: value for key, value in options.items() if key in known})
