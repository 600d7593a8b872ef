"""The encoder and the decoder: a stack of blocks with positions and dropout before it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.layers.dropout import Dropout
from transformer_jax.models.block import RESIDUALS, Block, build_norm
from transformer_jax.models.config import ModelConfig, layer_mixers, mixer_context
from transformer_jax.models.reversible import run_stack
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
        cross_context = mixer_context(config, causal=False)
        self.position = stack.position.build(context)
        self.cycle_length = len(stack.mixers)
        block = nn.remat(Block) if config.remat else Block
        self.blocks = [
            block(
                config,
                mixer.build(replace(context, layer=layer), self.position),
                config.cross.build(cross_context) if self.causal else None,
            )
            for layer, mixer in enumerate(layer_mixers(stack))
        ]
        self.residuals = RESIDUALS[config.residual]
        self.dropout = Dropout(float(config.dropout_rate))
        if config.embedding_norm:
            self.first_norm = build_norm(config)
        if config.norm_placement == "pre":
            self.last_norm = build_norm(config)

    def __call__(
        self, words_BLE: jax.Array, mask_BL: jax.Array, memory: Sequence[jax.Array] = ()
    ) -> jax.Array:
        """Word embeddings -> [B, L, D]; the decoder gets the memory [B, M, D] and its mask."""
        length = words_BLE.shape[1]
        self.position.check_length(length)
        x_BLD = self.dropout(self._start(words_BLE, jnp.arange(length)))
        if self._reconstructs():
            streams = run_stack(self, x_BLD, mask_BL, memory)
        else:
            streams, done = self.residuals.start(x_BLD), 0
            if self._scans():
                streams, done = run_cycles(self, self.cycle_length, streams, mask_BL, memory)
            rest = range(done, len(self.blocks))
            streams = self.run_blocks(rest, streams, mask_BL, memory)
        return constrain(self._end(streams), "batch", None, None)

    def run_blocks(
        self, layers: range, streams: Any, mask_BL: jax.Array, memory: Sequence[jax.Array]
    ) -> Any:
        """The streams after some of the blocks, one after the other."""
        for layer in layers:
            streams = jax.tree.map(lambda x: constrain(x, "batch", None, None), streams)
            streams = self.blocks[layer](streams, mask_BL, memory)
        return streams

    def update(
        self,
        layer: int,
        index: int,
        x_BLD: jax.Array,
        mask_BL: jax.Array,
        memory: Sequence[jax.Array],
    ) -> jax.Array:
        """The update by one sublayer of one block; for `models.reversible`."""
        return self.blocks[layer].sublayers(mask_BL, memory)[index].update(x_BLD)

    def project(self, memory_BSD: jax.Array, mask_BS: jax.Array) -> list[Any]:
        """Each layer's projection of the memory; leaves lead with B."""
        return [block.cross.project(memory_BSD, mask_BS) for block in self.blocks]

    def init_state(self, batch: int, max_length: int) -> list[Any]:
        """Each layer's state before the first token; see `Mixer.init_state`."""
        self.position.check_length(max_length)
        return [block.mixer.init_state(batch, max_length) for block in self.blocks]

    def step(
        self, words_BZE: jax.Array, position: jax.Array, state: list[Any], projected: list[Any]
    ) -> tuple[jax.Array, list[Any]]:
        """One token of each beam: word embeddings -> ([B, Z, D], next state)."""
        # `embed` takes [B, L, E]; all beams are at the same position.
        batch, beams, width = words_BZE.shape
        x_N1D = self._start(words_BZE.reshape(-1, 1, width), position[None])
        streams = self.residuals.start(x_N1D.reshape(batch, beams, -1))
        next_state = []
        for block, layer_state, layer_projected in zip(self.blocks, state, projected, strict=True):
            streams, layer_state = block.step(streams, layer_state, layer_projected, position)
            next_state.append(layer_state)
        return self._end(streams), next_state

    def _reconstructs(self) -> bool:
        """Whether the backward pass reconstructs activations: in training, with a dropout key."""
        is_training = self.has_rng("dropout") and not self.is_initializing()
        return is_training and self.config.residual == "reversible"

    def _scans(self) -> bool:
        """Whether layers run as a loop. That needs parameters, and hides what a layer sows."""
        is_watched = self.is_mutable_collection("intermediates")
        return self.config.scan_layers and not (self.is_initializing() or is_watched)

    def _start(self, words_BLE: jax.Array, positions_L: jax.Array) -> jax.Array:
        """What the first layer reads: [B, L, D]."""
        x_BLD = self.position.embed(words_BLE, positions_L)
        return self.first_norm(x_BLD) if self.config.embedding_norm else x_BLD

    def _end(self, streams: Any) -> jax.Array:
        x = self.residuals.end(streams)
        return self.last_norm(x) if self.config.norm_placement == "pre" else x
