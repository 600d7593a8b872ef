"""The PyTorch side of the training-speed comparison: a competent loop for the same model.

An encoder-decoder Transformer with our shapes (sinusoidal positions, three-way tied embeddings,
pre-norm, dropout, label smoothing 0.1, Adam with the paper's betas). `training_speed.py` runs it
on the same padded batches as our training step. It uses everything that makes PyTorch fast on a
CPU and changes no result: one projection for queries, keys and values (and one for the memory's
keys and values), `cross_entropy` with its own label smoothing on real positions only, fused Adam,
freed memory kept for the next step, and bfloat16 autocast on request. The "tuned" contender has
two more changes that are faster for short sentences: attention as two plain matmuls, and dropout
from random bytes. The "fused" one has PyTorch's attention kernel and `nn.Dropout`.

Needs the `bench` extra (torch).
"""

import math
import os
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.vocabulary import BOS_ID

LABEL_SMOOTHING = 0.1
MAX_LENGTH = 512


@dataclass(frozen=True)
class BaselineConfig:
    """The model and the forms of its parts; both stacks have `num_layers` layers."""

    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    vocab_size: int
    dropout_rate: float
    tuned: bool = True  #: plain attention and dropout from bytes; else PyTorch's own
    dtype: Literal["float32", "bfloat16"] = "float32"  #: bfloat16 with autocast


class ByteMask(torch.autograd.Function):
    """Dropout with one random byte for each element: three times as fast as PyTorch's on a CPU.

    The rate is rounded to 256ths. The scale uses the rounded rate, so the mean does not change.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        """Zeroes `threshold` of 256 elements of x on average and scales up the others."""
        count = x.numel()
        words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        kept = words.view(torch.uint8)[:count].view(x.shape) >= threshold
        scale = kept.to(x.dtype).mul_(256 / (256 - threshold))
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Scales the gradient as the elements were scaled."""
        (scale,) = ctx.saved_tensors
        return grad * scale, None


class ByteDropout(nn.Module):
    """`nn.Dropout` in training, with `ByteMask`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.threshold = round(rate * 256)

    def forward(self, x: Tensor) -> Tensor:
        """Drops elements of x."""
        return ByteMask.apply(x, self.threshold) if self.threshold else x


def make_dropout(config: BaselineConfig) -> nn.Module:
    """The dropout layer of this contender."""
    return ByteDropout(config.dropout_rate) if config.tuned else nn.Dropout(config.dropout_rate)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention [B, H, L, K] as two matmuls around a float32 softmax; mask True = attended."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    weights = scores.float().masked_fill(~mask, -1e9).softmax(dim=-1)
    return weights.to(value.dtype) @ value


class Attention(nn.Module):
    """Multi-head attention with as few matmuls as possible."""

    def __init__(self, config: BaselineConfig, *, is_cross: bool) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_heads = config.num_heads
        fused = functional.scaled_dot_product_attention
        self.attend = plain_attention if config.tuned else fused
        if is_cross:
            self.query = nn.Linear(d_model, d_model)
            self.key_value = nn.Linear(d_model, 2 * d_model)
        else:
            self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def _heads(self, x: Tensor) -> Tensor:  # [B, L, D] --> [B, H, L, K]
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        """Attends from x [B, L, D] to memory, or to itself; mask broadcasts to [B, H, L, M]."""
        if memory is None:
            query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        else:
            query = self.query(x)
            key, value = self.key_value(memory).chunk(2, dim=-1)
        y = self.attend(self._heads(query), self._heads(key), self._heads(value), mask)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Self-attention, cross-attention in the decoder, and the feed-forward layer."""

    def __init__(self, config: BaselineConfig, *, has_memory: bool) -> None:
        super().__init__()
        self.attention = Attention(config, is_cross=False)
        self.cross = Attention(config, is_cross=True) if has_memory else None
        self.wide = nn.Linear(config.d_model, config.d_ff)
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(config.d_model) for _ in range(2 + has_memory))
        self.dropout = make_dropout(config)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.narrow(functional.relu(self.wide(x)))

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None, memory_mask: Tensor | None
    ) -> Tensor:
        """One layer on x [B, L, D]; masks are boolean, True = may be attended."""
        sublayers = [lambda y: self.attention(y, None, mask)]
        if self.cross is not None:
            cross = self.cross
            sublayers.append(lambda y: cross(y, memory, memory_mask))
        sublayers.append(self._feed_forward)
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            x = x + self.dropout(sublayer(norm(x)))
        return x


class Transformer(nn.Module):
    """The encoder-decoder of Vaswani et al. (2017), with one embedding table for all three uses."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.scale = math.sqrt(d_model)
        self.embedding = nn.Embedding(config.vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.encoder = nn.ModuleList(
            Block(config, has_memory=False) for _ in range(config.num_layers)
        )
        self.decoder = nn.ModuleList(
            Block(config, has_memory=True) for _ in range(config.num_layers)
        )
        self.encoder_norm = nn.LayerNorm(d_model)
        self.decoder_norm = nn.LayerNorm(d_model)
        self.dropout = make_dropout(config)
        self.register_buffer("positions", sinusoids(MAX_LENGTH, d_model), persistent=False)
        causal_mask = torch.ones(MAX_LENGTH, MAX_LENGTH, dtype=torch.bool).tril()
        self.register_buffer("causal_mask", causal_mask, persistent=False)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale + self.positions[: ids.shape[1]]
        return self.dropout(x)

    def forward(self, source: Tensor, source_mask: Tensor, target_in: Tensor) -> Tensor:
        """Decoder output [B, T, D] for ids [B, S] and [B, T].

        Padding comes after the real target tokens, so the causal mask alone hides it from them.
        """
        memory_mask = source_mask[:, None, None, :]
        memory = self._embed(source)
        for block in self.encoder:
            memory = block(memory, memory_mask, None, None)
        memory = self.encoder_norm(memory)
        causal_mask = self.causal_mask[: target_in.shape[1], : target_in.shape[1]]
        x = self._embed(target_in)
        for block in self.decoder:
            x = block(x, causal_mask, memory, memory_mask)
        return self.decoder_norm(x)


def sinusoids(length: int, d_model: int) -> Tensor:
    """Sine and cosine positions [length, d_model] (Vaswani et al. 2017, section 3.5)."""
    rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


@dataclass(frozen=True)
class TorchBatch:
    """A padded batch as tensors, made outside the timed steps."""

    source: Tensor  # [B, S]
    source_mask: Tensor  # [B, S]
    target_in: Tensor  # [B, T]
    labels: Tensor  # [number of real target tokens]
    real: Tensor  # positions of the real target tokens in the flattened [B * T]


def to_torch(batch: dict[str, np.ndarray]) -> TorchBatch:
    """Ids and masks as tensors, without the rows of padding."""
    rows = batch["target_mask"].any(axis=1)
    target = batch["target"][rows].astype(np.int64)
    target_in = np.concatenate([np.full_like(target[:, :1], BOS_ID), target[:, :-1]], axis=1)
    real = np.flatnonzero(batch["target_mask"][rows])
    return TorchBatch(
        source=torch.from_numpy(batch["source"][rows].astype(np.int64)),
        source_mask=torch.from_numpy(batch["source_mask"][rows]),
        target_in=torch.from_numpy(target_in),
        labels=torch.from_numpy(target.reshape(-1)[real]),
        real=torch.from_numpy(real),
    )


class Baseline:
    """A model, its optimizer and the batches; each call of `step` is one timed training step."""

    def __init__(self, config: BaselineConfig, batches: list[dict[str, np.ndarray]]) -> None:
        keep_freed_memory()
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # as many as XLA's CPU client
        torch.manual_seed(0)
        self.batches = [to_torch(batch) for batch in batches]
        self.model = Transformer(config).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=config.dtype == "bfloat16")

    def _loss(self, batch: TorchBatch) -> Tensor:
        """Mean smoothed cross-entropy over the real target tokens."""
        decoded = self.model(batch.source, batch.source_mask, batch.target_in)
        # Padding needs no logits: the projection and the softmax see real positions only.
        decoded = decoded.flatten(0, 1).index_select(0, batch.real)
        logits = functional.linear(decoded, self.model.embedding.weight)
        return functional.cross_entropy(
            logits.float(), batch.labels, label_smoothing=LABEL_SMOOTHING
        )

    def step(self, batch: TorchBatch) -> float:
        """Trains on a batch; returns the seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            loss = self._loss(batch)
        loss.backward()
        self.optimizer.step()
        loss.item()
        return time.perf_counter() - start

    def one_pass(self) -> tuple[float, int]:
        """Trains on every batch once: (seconds, real target tokens)."""
        seconds = sum(self.step(batch) for batch in self.batches)
        return seconds, sum(len(batch.labels) for batch in self.batches)
