"""The encoder and the decoder: a stack of blocks with positions and dropout before it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.dropout import Dropout
from transformer_jax.models.block import Block, build_norm
from transformer_jax.models.config import ModelConfig, layer_mixers, mixer_context
from transformer_jax.models.scan import run_cycles
from transformer_jax.ops.sharding import constrain


class Stack(nn.Module):
    """The blocks of the encoder, or of the decoder if `causal`.

    The encoder runs over a whole sequence. The decoder reads the encoder's output, the memory;
    it runs over a whole target or one token at a time.
    """

    config: ModelConfig
    causal: bool

    def setup(self) -> None:
        config = self.config
        stack = config.decoder if self.causal else config.encoder
        context = mixer_context(config, causal=self.causal)
        self.position = stack.position.build(context)
        self.cycle_length = len(stack.mixers)
        block = nn.remat(Block) if config.remat else Block
        self.blocks = [
            block(
                config,
                mixer.build(replace(context, layer=layer), self.position),
                config.cross.build(mixer_context(config)) if self.causal else None,
            )
            for layer, mixer in enumerate(layer_mixers(stack))
        ]
        self.dropout = Dropout(float(config.dropout_rate))
        if config.embedding_norm:
            self.first_norm = build_norm(config)
        if config.norm_placement == "pre":
            self.last_norm = build_norm(config)

    def __call__(self, words_BLE: Array, mask_BL: Array, memory: Sequence[Array] = ()) -> Array:
        """Word embeddings -> [B, L, D]; the decoder gets the memory [B, M, D] and its mask."""
        length = words_BLE.shape[1]
        self.position.check_length(length)
        x_BLD, done = self.dropout(self._start(words_BLE, jnp.arange(length))), 0
        # A loop needs parameters, and hides what a layer sows.
        is_watched = self.is_mutable_collection("intermediates")
        if self.config.scan_layers and not (self.is_initializing() or is_watched):
            x_BLD, done = run_cycles(self, self.cycle_length, x_BLD, mask_BL, memory)
        x_BLD = self.run_blocks(range(done, len(self.blocks)), x_BLD, mask_BL, memory)
        return constrain(self._end(x_BLD), "batch", None, None)

    def run_blocks(
        self, layers: range, x_BLD: Array, mask_BL: Array, memory: Sequence[Array]
    ) -> Array:
        """x after some of the blocks, one after the other."""
        for layer in layers:
            x_BLD = self.blocks[layer](constrain(x_BLD, "batch", None, None), mask_BL, memory)
        return x_BLD

    def project(self, memory_BSD: Array, mask_BS: Array) -> list[Any]:
        """Each layer's projection of the memory; leaves lead with B."""
        return [block.cross.project(memory_BSD, mask_BS) for block in self.blocks]

    def init_state(self, batch: int, max_length: int) -> list[Any]:
        """Each layer's state before the first token; see `Mixer.init_state`."""
        self.position.check_length(max_length)
        return [block.mixer.init_state(batch, max_length) for block in self.blocks]

    def step(
        self, words_BZE: Array, position: Array, state: list[Any], projected: list[Any]
    ) -> tuple[Array, list[Any]]:
        """One token of each beam: word embeddings -> ([B, Z, D], next state)."""
        # `embed` takes [B, L, E]; all beams are at the same position.
        batch, beams, width = words_BZE.shape
        x_N1D = self._start(words_BZE.reshape(-1, 1, width), position[None])
        x_BZD = x_N1D.reshape(batch, beams, -1)
        next_state = []
        for block, layer_state, layer_projected in zip(self.blocks, state, projected, strict=True):
            x_BZD, layer_state = block.step(x_BZD, layer_state, layer_projected, position)
            next_state.append(layer_state)
        return self._end(x_BZD), next_state

    def _start(self, words_BLE: Array, positions_L: Array) -> Array:
        """What the first layer reads: [B, L, D]."""
        x_BLD = self.position.embed(words_BLE, positions_L)
        return self.first_norm(x_BLD) if self.config.embedding_norm else x_BLD

    def _end(self, x: Array) -> Array:
        return self.last_norm(x) if self.config.norm_placement == "pre" else x
