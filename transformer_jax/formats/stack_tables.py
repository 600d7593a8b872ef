"""Positions and sparse mixers as tables, for runtimes that know plain attention alone.

* Positions that are added to the embeddings become a table of vectors, as many as
  `model.max_length`; where the scheme has no end, at least 256.
* A bias on the scores that depends on the distance alone (T5, ALiBi), and the keys that a `window`
  or `strided` mixer leaves out, become a bias for each distance.
"""

import jax.numpy as jnp
import numpy as np

from transformer_jax.layers.feed_forward import Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, RMSNorm
from transformer_jax.mixers.base import MixerConfig
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.strided import Strided
from transformer_jax.mixers.window import Window
from transformer_jax.models.api import Params
from transformer_jax.models.config import (
    ModelConfig,
    StackConfig,
    layer_mixers,
    mixer_context,
)
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.quantization import NoQuantization
from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.concatenated import Concatenated
from transformer_jax.positions.learned import Learned
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.scalar import Scalar
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.positions.t5 import T5

_ATTENTION = frozenset({"num_kv_heads", "use_bias", "score_scale"})

#: What such a runtime expresses.
EXPRESSED = {
    ModelConfig: frozenset(
        {
            *("source_vocab_size", "target_vocab_size", "start_id", "unused_ids", "max_length"),
            *("d_model", "d_ff", "num_heads", "head_dim", "norm_placement", "tie_embeddings"),
            *("embedding_scale", "embedding_norm", "logit_scale", "output_bias"),
        }
    ),
    StackConfig: frozenset({"num_layers"}),
    NoAdapter: frozenset(),
    NoQuantization: frozenset(),
    Full: _ATTENTION,
    FullCross: _ATTENTION,
    Window: frozenset({"window", "dilation"}),
    Strided: frozenset({"stride"}),
    LayerNorm: frozenset({"epsilon", "use_bias"}),
    RMSNorm: frozenset({"epsilon"}),
    Mlp: frozenset({"activation", "use_bias"}),
    Glu: frozenset({"activation", "use_bias"}),
    NoPosition: frozenset(),
    Sinusoidal: frozenset({"form", "first"}),
    Learned: frozenset(),
    Concatenated: frozenset({"width"}),
    Scalar: frozenset(),
    T5: frozenset({"num_buckets", "max_distance", "multiplier"}),
    Alibi: frozenset(),
    Rope: frozenset({"base"}),
}

#: The least length where a scheme has no end: CTranslate2's own limit.
_LENGTH = 256

#: The score of a key that is not read. Its exponential is 0 beside any other score of a trained
#: model, and float16 holds it.
_NOT_READ = -3e4


class StackTables:
    """What becomes of the positions and the mixers of the encoder, or of the decoder if causal.

    Args:
        model: whose stack it is.
        causal: which stack.
        params: of the model; None where no numbers are asked for.
    """

    def __init__(self, model: ModelConfig, causal: bool, params: Params | None = None) -> None:
        self.name = "decoder" if causal else "encoder"
        self.config: StackConfig = model.decoder if causal else model.encoder
        self.mixers = layer_mixers(self.config)
        self.causal = causal
        self._context = mixer_context(model, causal=causal)
        self._position = self.config.position.build(self._context)
        self._params = {"params": (params or {}).get(self.name, {}).get("position", {})}
        self.hooks = self._position.hooks()
        self.length = model.max_length
        if not isinstance(self.config.position, Learned | Scalar):
            self.length = max(self.length, _LENGTH)
        self._distances = np.arange(1 - self.length, self.length)
        #: whether a query of each layer reads the keys at each distance, bool [R]
        self.reads = [self._reads_of(mixer, model.max_length) for mixer in self.mixers]
        #: whether each layer has a table of biases
        self.has_table = ["bias" in self.hooks or not all(reads) for reads in self.reads]

    def encodings(self) -> np.ndarray:
        """What is added to the embeddings: [length, D]."""
        words = jnp.zeros((1, self.length, self.config.position.word_width(self._context.d_model)))
        places = jnp.arange(self.length)
        return np.asarray(self._position.apply(self._params, words, places, method="embed")[0])

    def biases(self, layer: int) -> np.ndarray:
        """What is added to the scores: [R, H], from key minus query = 1 - length on."""
        bias_HR = np.zeros((self._context.num_heads, len(self._distances)), np.float32)
        if "bias" in self.hooks:
            here_1 = jnp.array([self.length - 1])
            keys_R = jnp.arange(len(self._distances))
            bias_H1R = self._position.apply(self._params, here_1, keys_R, method="bias")
            bias_HR += np.asarray(bias_H1R[:, 0], np.float32)
        return np.where(self.reads[layer], bias_HR, _NOT_READ).T

    def _reads_of(self, mixer: MixerConfig, max_length: int) -> np.ndarray:
        away = np.abs(self._distances)
        if isinstance(mixer, Window):
            reads = (away <= mixer.window * mixer.dilation) & (away % mixer.dilation == 0)
        elif isinstance(mixer, Strided):
            stride = mixer.stride_for(max_length)
            reads = (away <= stride) | (away % stride == 0)
        else:
            reads = np.ones(len(away), bool)
        # A decoder's table has no rows for keys that follow.
        return reads | (self._distances > 0) if self.causal else reads


def widened(table_RE: np.ndarray, d_model: int) -> np.ndarray:
    """[R, D], with zeros at the features that a row does not have."""
    return np.pad(table_RE, ((0, 0), (0, d_model - table_RE.shape[1])))
