"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.layers.embeddings import Embedding
from transformer_jax.layers.parameters import Layer
from transformer_jax.models.config import ModelConfig, check_model_config, mixer_context
from transformer_jax.models.inputs import Texts, are_embeddings
from transformer_jax.models.stack import Stack
from transformer_jax.ops.int8_products import rounded
from transformer_jax.ops.key_value_cache import map_state
from transformer_jax.ops.losses import Targets, cross_entropy
from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.matrices import Int8Matrix, Int8Products, Matrix
from transformer_jax.ops.top_k import top_k_of_rows
from transformer_jax.vocabulary import BOS_ID

#: Added to the logits of `ModelConfig.unused_ids`. exp(-100) adds nothing to a softmax in float32,
#: and the mean of all logits, which label smoothing needs, stays a usual number.
UNUSED = -100.0


class OutputBias(Layer):
    """A number for each of V target pieces."""

    vocab_size: int
    param_dtype: Any

    def setup(self) -> None:
        self.bias = self.weight("bias", nn.initializers.zeros, (self.vocab_size,), ("vocab",))


class Transformer(nn.Module):
    """Encoder, decoder, embeddings and vocabulary projection.

    `models.api` wraps it into pure functions of (config, params, arrays).
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        check_model_config(config)
        if config.source_vocab_size is None or config.target_vocab_size is None:
            raise UserError(
                "model.source_vocab_size and model.target_vocab_size are not set, and there is no "
                "tokenizer to take them from"
            )
        dtypes = {"dtype": config.dtype, "param_dtype": config.param_dtype}
        embedding = {"scale": config.embedding_scale, **dtypes}
        self.has_projection = config.tie_embeddings in ("inputs", "none")
        width = config.decoder.position.word_width(config.d_model)
        self.target_embedding = Embedding(
            config.target_vocab_size, width, projects=not self.has_projection, **embedding
        )
        if config.tie_embeddings in ("all", "inputs"):
            self.source_embedding = self.target_embedding
        else:
            width = config.encoder.position.word_width(config.d_model)
            self.source_embedding = Embedding(config.source_vocab_size, width, **embedding)
        self.encoder = Stack(config, causal=False)
        self.decoder = Stack(config, causal=True)
        if self.has_projection:
            sizes = config.d_model, config.target_vocab_size
            self.projection = mixer_context(config).linear(*sizes, ("embed", "vocab"))
        if config.output_bias:
            self.output_bias = OutputBias(config.target_vocab_size, config.param_dtype)

    def __call__(self, texts: Texts) -> Array:
        """Teacher-forced logits [B, T, V] in float32."""
        return self._logits(self.hidden(texts))

    def loss(self, texts: Texts, targets: Targets, label_smoothing: float) -> tuple[Array, Array]:
        """Sums over real target tokens of (loss, negative log-likelihood), in nats."""
        kernel = self._vocabulary_kernel()
        features_BTW, dtype = self._word_features(self.hidden(texts)), self.config.matmul_dtype
        if isinstance(kernel, Int8Products):
            # Floats that stand for whole numbers, which bfloat16 would round once more.
            static = kernel.static
            a_BTW, alpha = rounded(features_BTW, None if static is None else static.alpha, 1)
            features_BTW, kernel = a_BTW / alpha, kernel.values * kernel.scale
            dtype = "float32"
        elif isinstance(kernel, Int8Matrix):
            raise UserError("the loss needs parameters of floats, and these are of int8")
        inputs = features_BTW, kernel, self._logit_bias()
        return cross_entropy(inputs, targets, label_smoothing, dtype)

    def probable(self, texts: Texts, count: int) -> tuple[Array, Array]:
        """The most probable pieces at each position and their logits, [B, T, K] each."""
        features_BTW = self._word_features(self.hidden(texts))
        kernel, bias_V = self._vocabulary_kernel(), self._logit_bias()

        def at_one_position(features_BW: Array) -> tuple[Array, Array]:
            logits_BV = matmul(features_BW, kernel, self.config.matmul_dtype, bias=bias_V)
            return top_k_of_rows(logits_BV, count)

        # One by one: the logits of a batch are much larger than all else in a step.
        found = jax.lax.map(at_one_position, jnp.moveaxis(features_BTW, 1, 0))
        logits_BTK, ids_BTK = (jnp.moveaxis(each, 0, 1) for each in found)
        return ids_BTK, logits_BTK

    def hidden(self, texts: Texts) -> Array:
        """The decoder's output [B, T, D] under teacher forcing."""
        memory_BSD = self.memory(texts.source, texts.source_mask_BS)
        words_BTE = self._target_words(texts.target_in)
        return self.decoder(words_BTE, texts.target_mask_BT, (memory_BSD, texts.source_mask_BS))

    def memory(self, source: Array, source_mask_BS: Array) -> Array:
        """The encoder's output [B, S, D]."""
        return self.encoder(self._source_words(source), source_mask_BS)

    def encode(
        self, source: Array, source_mask_BS: Array, max_length: int, beam_size: int
    ) -> tuple[list[Any], list[Any]]:
        """The projected memory, leaves [B, ...]; the decoder's first state, leaves [B, Z, ...]."""
        memory_BSD = self.memory(source, source_mask_BS)
        batch = source.shape[0]
        state = self.decoder.init_state(batch * beam_size, max_length)
        return self.decoder.project(memory_BSD, source_mask_BS), _split_beams(state, batch)

    def decode_step(
        self, tokens_BZ: Array, position: Array, state: list[Any], sentence: list[Any]
    ) -> tuple[Array, list[Any]]:
        """Next-token logits [B, Z, V] in float32, and the next state."""
        words_BZE = self._target_words(tokens_BZ)
        hidden_BZD, state = self.decoder.step(words_BZE, position, _join_beams(state), sentence)
        return self._logits(hidden_BZD), _split_beams(state, tokens_BZ.shape[0])

    def embed(self, source: Array, target_in: Array) -> tuple[Array, Array]:
        """The word embeddings [B, S, E] and [B, T, E], to which positions are still to be added."""
        return self._source_words(source), self._target_words(target_in)

    def _source_words(self, ids: Array) -> Array:
        return ids.astype(self.config.dtype) if are_embeddings(ids) else self.source_embedding(ids)

    def _target_words(self, ids: Array) -> Array:
        if are_embeddings(ids):
            return ids.astype(self.config.dtype)
        start = self.config.start_id
        if start is None:
            return jnp.where((ids == BOS_ID)[..., None], 0.0, self.target_embedding(ids))
        if start != BOS_ID:
            ids = jnp.where(ids == BOS_ID, start, ids)
        return self.target_embedding(ids)

    def _vocabulary_kernel(self) -> Matrix:
        if self.has_projection:
            return self.projection.kernel
        return self.target_embedding.table.T

    def _word_features(self, hidden: Array) -> Array:
        # A scheme that concatenates positions leaves the word embeddings narrower than d_model.
        features = hidden[..., : self._vocabulary_kernel().shape[0]]
        return features if self.config.logit_scale == 1 else features * self.config.logit_scale

    def _logit_bias(self) -> Array | None:
        """What is added to the logits, [V] float32, or None."""
        config = self.config
        if not (config.output_bias or config.unused_ids):
            return None
        bias_V = jnp.zeros(config.target_vocab_size, jnp.float32)
        if config.output_bias:
            bias_V = bias_V + self.output_bias.bias
        return bias_V.at[jnp.asarray(config.unused_ids, jnp.int32)].add(UNUSED)

    def _logits(self, hidden: Array) -> Array:
        features, kernel = self._word_features(hidden), self._vocabulary_kernel()
        return matmul(features, kernel, self.config.matmul_dtype, bias=self._logit_bias())


def _split_beams(state: Any, batch: int) -> Any:
    # Sizes in place of -1: a state may hold nothing, as that of a convolution of one tap.
    return map_state(lambda leaf: leaf.reshape(batch, len(leaf) // batch, *leaf.shape[1:]), state)


def _join_beams(state: Any) -> Any:
    return map_state(lambda leaf: leaf.reshape(math.prod(leaf.shape[:2]), *leaf.shape[2:]), state)
