"""The PyTorch side of the training-speed comparison: a competent loop for the same model.

An encoder-decoder Transformer with our shapes (sinusoidal positions, three-way tied embeddings,
pre- or post-norm, dropout, label smoothing 0.1, Adam with the paper's betas), fed with batches
saved beforehand, so that both sides train on the very same padded arrays. Everything that makes
PyTorch fast on a CPU and changes no result is used: one projection for queries, keys and values
(and one for the memory's keys and values), `cross_entropy` with
its own label smoothing on real positions only, fused Adam, freed memory kept for the next step, and
on request bf16 autocast and `torch.compile`. Two things go past the usual loop, because they are
faster on short sentences: attention as two plain matmuls (`--attention=fused` takes PyTorch's
kernel) and dropout from random bytes (`--dropout_kind=library` takes `nn.Dropout`).

The batches are an .npz with the arrays `source_0`, `source_mask_0`, `target_0`, `target_mask_0`,
`source_1`, ...: int32 ids [B, S] and [B, T] and boolean masks, True at real tokens.

    python benchmarks/torch_baseline.py --batches=FILE.npz --autocast=bf16 --steps=50 --json

prints one JSON line: the settings, the seconds and the real target tokens of each timed step.
Needs the `bench` extra (torch).
"""

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

BOS_ID = 1
LABEL_SMOOTHING = 0.1
MAX_LENGTH = 512


@dataclass(frozen=True)
class BaselineConfig:
    """The model and how it is run; `num_layers` counts encoder and decoder layers each."""

    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1024
    num_layers: int = 3
    vocab_size: int = 8000
    dropout: float = 0.1
    dropout_kind: str = "bytes"
    attention: str = "plain"
    norm: str = "pre"
    autocast: str = "none"
    compile: bool = False
    learning_rate: float = 1e-3
    clip_norm: float = 0.0
    num_threads: int = 2
    seed: int = 0


class ByteMask(torch.autograd.Function):
    """Dropout with one random byte an element: a third of the time of PyTorch's own on a CPU.

    The rate is rounded to 256ths, and the scale follows it, so that the mean is kept.
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
        """The gradient goes through what was kept."""
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
    """The dropout layer that the config names."""
    if config.dropout_kind == "bytes":
        return ByteDropout(config.dropout)
    return nn.Dropout(config.dropout)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention [B, H, L, K] as two matmuls around a float32 softmax; mask True = attended."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    weights = scores.float().masked_fill(~mask, -1e9).softmax(dim=-1)
    return weights.to(value.dtype) @ value


class Attention(nn.Module):
    """Multi-head attention, with as few matmuls as there can be."""

    def __init__(self, config: BaselineConfig, *, is_cross: bool) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_heads = config.num_heads
        self.attend = (
            plain_attention
            if config.attention == "plain"
            else functional.scaled_dot_product_attention
        )
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
        self.is_pre_norm = config.norm_placement == "pre"
        self.attention = Attention(config, is_cross=False)
        self.cross = Attention(config, is_cross=True) if has_memory else None
        self.wide = nn.Linear(config.d_model, config.d_ff)
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(config.d_model) for _ in range(2 + has_memory))
        self.dropout = make_dropout(config)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.dropout(functional.relu(self.wide(x))))

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
            if self.is_pre_norm:
                x = x + self.dropout(sublayer(norm(x)))
            else:
                x = norm(x + self.dropout(sublayer(x)))
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
        is_pre_norm = config.norm_placement == "pre"
        self.encoder_norm = nn.LayerNorm(d_model) if is_pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if is_pre_norm else nn.Identity()
        self.dropout = make_dropout(config)
        self.register_buffer("positions", sinusoids(MAX_LENGTH, d_model), persistent=False)
        causal_mask = torch.ones(MAX_LENGTH, MAX_LENGTH, dtype=torch.bool).tril()
        self.register_buffer("causal_mask", causal_mask, persistent=False)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale + self.positions[: ids.shape[1]]
        return self.dropout(x)

    def forward(self, source: Tensor, source_mask: Tensor, target_in: Tensor) -> Tensor:
        """Decoder output [B, T, D] for ids [B, S] and [B, T].

        Padding follows the real target tokens, so the causal mask alone keeps it from them.
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
    """A padded batch with what the loop needs made once, outside the timed steps."""

    source: Tensor  # [B, S]
    source_mask: Tensor  # [B, S]
    target_in: Tensor  # [B, T]
    labels: Tensor  # [number of real target tokens]
    real: Tensor  # positions of the real target tokens in the flattened [B * T]


def to_torch(batch: dict[str, np.ndarray]) -> TorchBatch:
    """Ids and masks as tensors; rows that only fill up the batch are left out."""
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


def load_batches(path: Path) -> list[dict[str, np.ndarray]]:
    """The batches of an .npz as described at the top of this file."""
    with np.load(path) as arrays:
        names = ("source", "source_mask", "target", "target_mask")
        count = sum(key.startswith("target_mask_") for key in arrays.files)
        return [{name: arrays[f"{name}_{i}"] for name in names} for i in range(count)]


def keep_freed_memory() -> None:
    """Has glibc keep big arrays for reuse, as PyTorch's tuning guide does with another allocator.

    Otherwise each step gets its logits as fresh pages from the kernel, which costs more than
    the loss itself. Does nothing where the C library is another.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
            mallopt(m_arena_max, 1)
            mallopt(m_mmap_max, 0)
            mallopt(m_trim_threshold, -1)


class Baseline:
    """A model, its optimizer and the batches: each call of `step` is one timed training step."""

    def __init__(self, config: BaselineConfig, batches: list[dict[str, np.ndarray]]) -> None:
        keep_freed_memory()
        torch.set_num_threads(config.num_threads)
        torch.manual_seed(config.seed)
        self.config = config
        self.batches = [to_torch(batch) for batch in batches]
        self.model = Transformer(config).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=True,
        )
        # One graph for all buckets: with fixed shapes every bucket would compile for a minute.
        self.loss_function = (
            torch.compile(self._loss, dynamic=True) if config.compile else self._loss
        )
        self.position = 0

    def _loss(self, batch: TorchBatch) -> Tensor:
        """Mean smoothed cross-entropy over the real target tokens."""
        decoded = self.model(batch.source, batch.source_mask, batch.target_in)
        # Padding needs no logits: the projection and the softmax see real positions only.
        decoded = decoded.flatten(0, 1).index_select(0, batch.real)
        logits = functional.linear(decoded, self.model.embedding.weight)
        return functional.cross_entropy(
            logits.float(), batch.labels, label_smoothing=LABEL_SMOOTHING
        )

    def step(self) -> tuple[float, int, float]:
        """Trains on the next batch: (seconds, real target tokens, loss in nats per token)."""
        batch = self.batches[self.position % len(self.batches)]
        self.position += 1
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.autocast == "bf16"):
            loss = self.loss_function(batch)
        loss.backward()
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        value = loss.item()
        return time.perf_counter() - start, len(batch.labels), value

    def steps(self, count: int) -> Iterator[tuple[float, int, float]]:
        """`count` steps, one after the other."""
        for _ in range(count):
            yield self.step()


def parse_arguments() -> tuple[BaselineConfig, argparse.Namespace]:
    """The model's settings and the rest of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=Path, required=True, help=".npz with the batches")
    parser.add_argument("--steps", type=int, default=50, help="timed steps")
    parser.add_argument("--json", action="store_true", help="print one JSON line and no more")
    parser.add_argument("--norm", choices=("pre", "post"), default="pre")
    parser.add_argument("--autocast", choices=("none", "bf16"), default="none")
    parser.add_argument("--attention", choices=("plain", "fused"), default="plain")
    parser.add_argument("--dropout_kind", choices=("bytes", "library"), default="bytes")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    defaults = asdict(BaselineConfig())
    for name in ("norm", "autocast", "attention", "dropout_kind", "compile"):
        del defaults[name]
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    arguments = parser.parse_args()
    fields = {name: getattr(arguments, name) for name in asdict(BaselineConfig())}
    return replace(BaselineConfig(), **fields), arguments


def main() -> None:
    config, arguments = parse_arguments()
    baseline = Baseline(config, load_batches(arguments.batches))
    # Every shape is seen before the clock counts: compilation and the allocator's first growth.
    start = time.perf_counter()
    for _ in baseline.steps(len(baseline.batches)):
        pass
    warmup_seconds = time.perf_counter() - start
    results = list(baseline.steps(arguments.steps))
    seconds, tokens, losses = (list(column) for column in zip(*results, strict=True))
    rates = [count / second for count, second in zip(tokens, seconds, strict=True)]
    report = {
        "framework": f"torch {torch.__version__}",
        "config": asdict(config),
        "num_parameters": sum(p.numel() for p in baseline.model.parameters()),
        "warmup_seconds": round(warmup_seconds, 3),
        "seconds": [round(value, 5) for value in seconds],
        "target_tokens": tokens,
        "tokens_per_second": [round(value, 1) for value in rates],
        "median_tokens_per_second": round(float(np.median(rates)), 1),
        "best_tokens_per_second": round(max(rates), 1),
        "last_loss": round(losses[-1], 4),
    }
    if arguments.json:
        print(json.dumps(report))
    else:
        print(
            f"{report['framework']}: median {report['median_tokens_per_second']:.0f}, best "
            f"{report['best_tokens_per_second']:.0f} real target tokens/s over {len(rates)} steps; "
            f"warm-up {warmup_seconds:.1f} s; loss {report['last_loss']:.3f}"
        )


if __name__ == "__main__":
    main()
