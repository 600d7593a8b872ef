"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762)."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.errors import UserError
from transformer_jax.layers.dropout import Dropout
from transformer_jax.layers.embeddings import Embedding
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.models.block import DecoderBlock, EncoderBlock, layer_norm
from transformer_jax.models.config import (
    ModelConfig,
    StackConfig,
    check_model_config,
    layer_dtypes,
    layer_mixers,
    mixer_context,
    word_width,
)
from transformer_jax.models.reversible import run_stack, step_stack
from transformer_jax.ops.losses import cross_entropy
from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.sharding import constrain
from transformer_jax.positions.base import Position


def _mixers(stack: StackConfig, context: MixerContext, position: Position) -> list[Mixer]:
    return [
        mixer.build(replace(context, layer=layer), position)
        for layer, mixer in enumerate(layer_mixers(stack))
    ]


class Encoder(nn.Module):
    """A stack of encoder blocks."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        block = nn.remat(EncoderBlock) if config.remat else EncoderBlock
        context = mixer_context(config, causal=False)
        self.position = config.encoder.position.build(context)
        self.blocks = [
            block(config, mixer) for mixer in _mixers(config.encoder, context, self.position)
        ]
        self.dropout = Dropout(config.dropout_rate)
        if config.norm == "pre":
            self.last_norm = layer_norm(config)

    def __call__(self, x_BSD: jax.Array, mask_BS: jax.Array) -> jax.Array:
        """Embeddings [B, S, D] -> memory [B, S, D]."""
        self.position.check_length(x_BSD.shape[1])
        x_BSD = self.position.embed(x_BSD, jnp.arange(x_BSD.shape[1]))
        x_BSD = self.dropout(x_BSD)
        if self.config.residual == "reversible":
            x_BSD = run_stack(self, x_BSD, (), mask_BS)
        else:
            for block in self.blocks:
                x_BSD = block(constrain(x_BSD, "batch", None, None), mask_BS)
        return self.last_norm(x_BSD) if self.config.norm == "pre" else x_BSD

    def update(
        self, layer: int, index: int, x_BSD: jax.Array, memory: tuple[()], mask_BS: jax.Array
    ) -> jax.Array:
        """What a sublayer adds; for `models.reversible`."""
        del memory
        return self.blocks[layer].update(index, x_BSD, mask_BS)


class Decoder(nn.Module):
    """A stack of decoder blocks, in parallel over the target or one token at a time."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        block = nn.remat(DecoderBlock) if config.remat else DecoderBlock
        context, cross_context = (mixer_context(config, causal=c) for c in (True, False))
        self.position = config.decoder.position.build(context)
        self.blocks = [
            block(config, mixer, config.cross.build(cross_context))
            for mixer in _mixers(config.decoder, context, self.position)
        ]
        self.dropout = Dropout(config.dropout_rate)
        if config.norm == "pre":
            self.last_norm = layer_norm(config)

    def __call__(
        self, x_BTD: jax.Array, mask_BT: jax.Array, memory_BSD: jax.Array, memory_mask_BS: jax.Array
    ) -> jax.Array:
        """Embeddings of the shifted target [B, T, D] -> [B, T, D]."""
        self.position.check_length(x_BTD.shape[1])
        x_BTD = self.position.embed(x_BTD, jnp.arange(x_BTD.shape[1]))
        x_BTD = self.dropout(x_BTD)
        memory_BSD = constrain(memory_BSD, "batch", None, None)
        if self.config.residual == "reversible":
            masks = (mask_BT, memory_mask_BS)
            x_BTD = run_stack(self, x_BTD, memory_BSD, masks)
        else:
            for block in self.blocks:
                x_BTD = constrain(x_BTD, "batch", None, None)
                x_BTD = block(x_BTD, mask_BT, memory_BSD, memory_mask_BS)
        return constrain(self._normed(x_BTD), "batch", None, None)

    def update(
        self,
        layer: int,
        index: int,
        x_BTD: jax.Array,
        memory_BSD: jax.Array,
        masks: tuple[jax.Array, jax.Array],
    ) -> jax.Array:
        """What a sublayer adds; for `models.reversible`."""
        mask_BT, memory_mask_BS = masks
        return self.blocks[layer].update(index, x_BTD, mask_BT, memory_BSD, memory_mask_BS)

    def project(self, memory_BSD: jax.Array, memory_mask_BS: jax.Array) -> list[Any]:
        """Each layer's view of the memory; leaves lead with B."""
        return [block.cross.project(memory_BSD, memory_mask_BS) for block in self.blocks]

    def init_state(self, batch: int, max_length: int) -> list[Any]:
        """Each layer's empty state; leaves lead with `batch`."""
        self.position.check_length(max_length)
        return [block.mixer.init_state(batch, max_length) for block in self.blocks]

    def step(
        self, x_BZD: jax.Array, position: jax.Array, state: list[Any], projected: list[Any]
    ) -> tuple[jax.Array, list[Any]]:
        """One token of each beam: [B, Z, D] -> ([B, Z, D], next state)."""
        # `embed` sees length on the last axis but one: all beams stand at one position.
        batch, beams, words = x_BZD.shape
        x_N1D = self.position.embed(x_BZD.reshape(-1, 1, words), position[None])
        x_BZD = x_N1D.reshape(batch, beams, -1)
        if self.config.residual == "reversible":
            x_BZD, next_state = step_stack(self.blocks, x_BZD, position, state, projected)
            return self._normed(x_BZD), next_state
        next_state = []
        for block, layer_state, layer_projected in zip(self.blocks, state, projected, strict=True):
            x_BZD, layer_state = block.step(x_BZD, layer_state, layer_projected, position)
            next_state.append(layer_state)
        return self._normed(x_BZD), next_state

    def _normed(self, x: jax.Array) -> jax.Array:
        return self.last_norm(x) if self.config.norm == "pre" else x


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
        target_width = word_width(config, config.decoder)
        self.target_embedding = Embedding(config.target_vocab_size, target_width, **dtypes)
        if config.tie_embeddings == "all":
            self.source_embedding = self.target_embedding
        else:
            source_width = word_width(config, config.encoder)
            self.source_embedding = Embedding(config.source_vocab_size, source_width, **dtypes)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        if config.tie_embeddings == "none":
            self.projection = Dense(
                config.d_model,
                config.target_vocab_size,
                ("embed", "vocab"),
                use_bias=False,
                **layer_dtypes(config),
            )

    def __call__(
        self,
        source_BS: jax.Array,
        source_mask_BS: jax.Array,
        target_in_BT: jax.Array,
        target_mask_BT: jax.Array,
    ) -> jax.Array:
        """Teacher-forced logits [B, T, V] in float32."""
        hidden_BTD = self.hidden(source_BS, source_mask_BS, target_in_BT, target_mask_BT)
        return self._logits(hidden_BTD)

    def loss(
        self,
        source_BS: jax.Array,
        source_mask_BS: jax.Array,
        target_in_BT: jax.Array,
        target_mask_BT: jax.Array,
        labels_BT: jax.Array,
        *,
        label_smoothing: float,
    ) -> tuple[jax.Array, jax.Array]:
        """Sums over real target tokens of (loss, negative log-likelihood), in nats."""
        hidden_BTD = self.hidden(source_BS, source_mask_BS, target_in_BT, target_mask_BT)
        return cross_entropy(
            self._word_features(hidden_BTD),
            self._vocabulary_kernel(),
            labels_BT,
            target_mask_BT,
            label_smoothing,
            self.config.matmul_dtype,
        )

    def hidden(
        self,
        source_BS: jax.Array,
        source_mask_BS: jax.Array,
        target_in_BT: jax.Array,
        target_mask_BT: jax.Array,
    ) -> jax.Array:
        """The decoder's last layer [B, T, D] under teacher forcing."""
        memory_BSD = self.encode(source_BS, source_mask_BS)
        return self.decoder(
            self.target_embedding(target_in_BT),
            target_mask_BT,
            memory_BSD,
            source_mask_BS,
        )

    def encode(self, source_BS: jax.Array, source_mask_BS: jax.Array) -> jax.Array:
        """Source ids [B, S] -> memory [B, S, D]."""
        return self.encoder(self.source_embedding(source_BS), source_mask_BS)

    def start(
        self, source_BS: jax.Array, source_mask_BS: jax.Array, max_length: int, beam_size: int
    ) -> tuple[list[Any], list[Any]]:
        """(what belongs to the sentence, leaves [B, ...]; what to a beam, leaves [B, Z, ...])."""
        memory_BSD = self.encode(source_BS, source_mask_BS)
        batch = source_BS.shape[0]
        state = self.decoder.init_state(batch * beam_size, max_length)
        return self.decoder.project(memory_BSD, source_mask_BS), _split_beams(state, batch)

    def decode_step(
        self, tokens_BZ: jax.Array, position: jax.Array, state: list[Any], sentence: list[Any]
    ) -> tuple[jax.Array, list[Any]]:
        """Next-token logits [B, Z, V] in float32, and the next state."""
        x_BZD = self.target_embedding(tokens_BZ)
        hidden_BZD, state = self.decoder.step(x_BZD, position, _join_beams(state), sentence)
        return self._logits(hidden_BZD), _split_beams(state, tokens_BZ.shape[0])

    def _vocabulary_kernel(self) -> jax.Array:
        if self.config.tie_embeddings == "none":
            return self.projection.kernel
        return self.target_embedding.table.T

    def _word_features(self, hidden: jax.Array) -> jax.Array:
        # A position beside the word leaves a tied table narrower than the stream.
        return hidden[..., : self._vocabulary_kernel().shape[0]]

    def _logits(self, hidden: jax.Array) -> jax.Array:
        return matmul(
            self._word_features(hidden), self._vocabulary_kernel(), self.config.matmul_dtype
        )


def _split_beams(tree: Any, batch: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(batch, -1, *x.shape[1:]), tree)


def _join_beams(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
