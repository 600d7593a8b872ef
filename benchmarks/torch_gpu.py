r"""A PyTorch opponent for one NVIDIA GPU: the WMT base or big model of configs/wmt14_en_de_*_tpu.

    python benchmarks/torch_gpu.py --size=base|big [--variants=blocks,graphs]   # a step
    python benchmarks/torch_gpu.py --products                                   # cuBLAS alone
    python benchmarks/torch_gpu.py --search [--rows=1,32,256]                   # greedy and beam 4

What a person who knows PyTorch writes for an H100: queries, keys and values as one product, and
keys and values of the memory; cuDNN's attention (flash attention where it fails) without a mask,
as all rows are full; bfloat16 by autocast, or bfloat16 weights with float32 masters; fused Adam;
torch.compile. Post-norm, 6 + 6 layers, ReLU, tied embeddings, biases also of keys (which change
nothing), sinusoids, dropout of embeddings and sublayers, label smoothing 0.1, Adam(0.9, 0.98,
1e-9). Its FLOPs are those of models/flops.py. A search has caches of keys and values in place, and
the step as a CUDA graph (`compiled`) or not (`eager`).

`torch_baseline.py` is the opponent on a CPU, with padded batches and other tricks.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch
from gpu import say, timed
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

PEAK = 989e12  # of an H100 and an H200, dense bfloat16
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
#: The first one that takes the arguments runs.
BACKENDS = [
    getattr(SDPBackend, name)
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
]


@dataclass(frozen=True)
class Size:
    """Of a model; both stacks have as many layers."""

    d_model: int
    d_ff: int
    heads: int
    vocab: int
    dropout: float
    layers: int = 6


SIZES = {
    "base": Size(512, 2048, 4, 37_120, 0.1),
    "big": Size(1024, 4096, 8, 37_000, 0.3),
    "tiny": Size(32, 64, 2, 128, 0.1, 1),
}


def flops_of_step(size: Size, rows: int, length: int) -> int:
    """As `models.flops.train_step_flops`: products of the forward pass, three times."""
    d = size.d_model
    attention = 4 * d * d + 2 * length * d  # masked scores counted
    forward = size.layers * (3 * attention + 2 * 2 * d * size.d_ff) + d * size.vocab
    return 3 * 2 * rows * length * forward


class Linear(nn.Linear):
    """With Glorot's uniform initialisation and biases of zeros."""

    def reset_parameters(self) -> None:
        """As the name says."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


class Attention(nn.Module):
    """To a layer's own input, or to the encoder's memory."""

    def __init__(self, size: Size, *, cross: bool) -> None:
        super().__init__()
        self.heads, self.cross, d = size.heads, cross, size.d_model
        if cross:
            self.q, self.kv = Linear(d, d), Linear(d, 2 * d)
        else:
            self.qkv = Linear(d, 3 * d)
        self.out = Linear(d, d)

    def split(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, H, L, K]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def project(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of the memory."""
        return tuple(map(self.split, self.kv(memory).chunk(2, -1)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """To all keys, or as the options say."""
        y = F.scaled_dot_product_attention(q, k, v, **options)
        return self.out(y.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor, memory: Tensor | None = None, causal: bool = False) -> Tensor:
        """Of all positions at once."""
        if memory is not None:
            return self.attend(self.split(self.q(x)), *self.project(memory))
        return self.attend(*map(self.split, self.qkv(x).chunk(3, -1)), is_causal=causal)

    def step(self, x: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        """Of one position, whose key and value are put into the caches [B, H, L, K]."""
        q, k_new, v_new = map(self.split, self.qkv(x).chunk(3, -1))
        k.index_copy_(2, at, k_new)
        v.index_copy_(2, at, v_new)
        seen = torch.arange(k.shape[2], device=k.device) <= at
        return self.attend(q, k, v, attn_mask=seen[None])


class Block(nn.Module):
    """A layer of the encoder or of the decoder."""

    def __init__(self, size: Size, *, decoder: bool) -> None:
        super().__init__()
        d = size.d_model
        self.rate, self.decoder = size.dropout, decoder
        self.mix = Attention(size, cross=False)
        self.read = Attention(size, cross=True) if decoder else None
        self.up, self.down = Linear(d, size.d_ff), Linear(size.d_ff, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d, eps=1e-6) for _ in range(3 if decoder else 2))

    def add(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        """What a sublayer made, added and normalised."""
        return self.norms[number](x + F.dropout(y, self.rate, self.training))

    def wide(self, x: Tensor) -> Tensor:
        """The feed-forward sublayer, the last one."""
        return self.add(len(self.norms) - 1, x, self.down(F.relu(self.up(x))))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Of all positions at once."""
        x = self.add(0, x, self.mix(x, causal=self.decoder))
        if self.read is not None:
            x = self.add(1, x, self.read(x, memory))
        return self.wide(x)

    def step(self, x: Tensor, own: list[Tensor], memory: list[Tensor], at: Tensor) -> Tensor:
        """Of the decoder's position `at` [1], from its caches and the projected memory."""
        assert self.read is not None
        x = self.add(0, x, self.mix.step(x, *own, at))
        q = self.read.split(self.read.q(x))
        return self.wide(self.add(1, x, self.read.attend(q, *memory)))


class Transformer(nn.Module):
    """The encoder-decoder of Vaswani et al. (2017), with one table for all three uses."""

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.size, d = size, size.d_model
        self.table = nn.Parameter(torch.randn(size.vocab, d) * d**-0.5)
        self.encoder = nn.ModuleList(Block(size, decoder=False) for _ in range(size.layers))
        self.decoder = nn.ModuleList(Block(size, decoder=True) for _ in range(size.layers))
        rates = torch.exp(torch.arange(0, d, 2) * (-math.log(10_000.0) / d))
        angles = torch.arange(length)[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", positions, persistent=False)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Gathered in the dtype of the table: else a cast of the whole table would come first."""
        x = F.embedding(ids, self.table) * self.size.d_model**0.5 + positions
        return F.dropout(x.to(torch.bfloat16), self.size.dropout, self.training)

    def encode(self, source: Tensor) -> Tensor:
        """The memory [B, S, D]."""
        x = self.embed(source, self.positions[: source.shape[1]])
        for block in self.encoder:
            x = block(x)
        return x

    def loss_sum(self, x: Tensor, labels: Tensor) -> Tensor:
        """Smoothed cross-entropy, summed, in float32."""
        logits = F.linear(x, self.table.to(x.dtype))
        return F.cross_entropy(logits.float(), labels, label_smoothing=0.1, reduction="sum")

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over all labels."""
        memory = self.encode(source)
        x = self.embed(target, self.positions[: target.shape[1]])
        for block in self.decoder:
            x = block(x, memory)
        return self.loss_sum(x.flatten(0, 1), labels.flatten()) / labels.numel()

    def compile_parts(self) -> None:
        """Each kind of block once, loss and embedding: a sixth of what there is to compile."""
        for block in (*self.encoder, *self.decoder):
            block.compile(dynamic=False)
        self.loss_sum = torch.compile(self.loss_sum, dynamic=False)
        self.embed = torch.compile(self.embed, dynamic=False)


class Masters:
    """float32 masters and Adam of a bfloat16 model: fused Adam, then one copy back."""

    def __init__(self, model: nn.Module) -> None:
        self.low = list(model.parameters())
        self.high = [p.detach().float().clone() for p in self.low]
        for p in self.high:
            p.grad = torch.zeros_like(p)
        self.adam = adam_of(self.high)

    @torch.no_grad()
    def step(self) -> None:
        """Updates the masters by the gradients of the model."""
        torch._foreach_copy_([p.grad for p in self.high], [p.grad for p in self.low])
        self.adam.step()
        torch._foreach_copy_(self.low, self.high)

    def zero_grad(self) -> None:
        """Forgets the gradients of the model."""
        for p in self.low:
            p.grad = None


def adam_of(parameters: Any) -> torch.optim.Adam:
    """The recipe's."""
    return torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


class Variant(NamedTuple):
    """How a step is compiled, and whether weights are bfloat16 with float32 masters."""

    mode: str | None  #: of torch.compile; `blocks`: by parts; None: not compiled
    masters: bool = False


VARIANTS = {
    "plain": Variant(None),
    "blocks": Variant("blocks"),  # compiles in the shortest time
    "masters_blocks": Variant("blocks", masters=True),
    "compiled": Variant("default"),
    "masters": Variant("default", masters=True),
    "graphs": Variant("reduce-overhead"),
}


def wait(result: Any = None) -> Any:
    """Until the device is done."""
    if ON_GPU:
        torch.cuda.synchronize()
    return result


def train(name: str, o: argparse.Namespace) -> None:
    """Times the training step of a variant."""
    began, variant, size = time.perf_counter(), VARIANTS[name], SIZES[o.size]
    torch._dynamo.reset()
    rows, length = o.tokens // o.length, o.length
    model = Transformer(size, length).to(DEVICE)
    model = model.to(torch.bfloat16) if variant.masters else model
    optimizer = Masters(model) if variant.masters else adam_of(model.parameters())
    batch = [torch.randint(4, size.vocab, (rows, length), device=DEVICE) for _ in range(3)]

    def loss_of(*batch: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=not variant.masters):
            return model(*batch)

    call: Callable[..., Tensor] = loss_of
    if variant.mode == "blocks":
        model.compile_parts()
    elif variant.mode:
        call = torch.compile(loss_of, mode=variant.mode, dynamic=False)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = call(*batch)
        loss.backward()
        optimizer.step()
        return loss

    first_loss = wait(step()).item()
    first = time.perf_counter() - began
    for _ in range(3):
        wait(step())
    times = timed(step, wait, o.seconds)
    flops = flops_of_step(size, rows, length)
    say(
        variant=name,
        size=o.size,
        pairs=rows,
        length=length,
        **times,
        target_pieces_s=round(1e3 * rows * length / times["ms"]),
        peak_percent=round(1e5 * flops / times["ms"] / PEAK, 2) if ON_GPU else None,
        flops=flops,
        first_step_s=round(first, 1),
        losses=[round(first_loss, 4), round(step().item(), 4)],
        memory_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2) if ON_GPU else None,
    )


@torch.inference_mode()
def search(mode: str, beams: int, rows: int, o: argparse.Namespace) -> None:
    """Times a search for pieces of full length, in a batch of sentences."""
    began, size = time.perf_counter(), SIZES[o.size]
    torch._dynamo.reset()
    model = Transformer(size, o.length).to(DEVICE, torch.bfloat16).eval()
    source = torch.randint(4, size.vocab, (rows, o.length), device=DEVICE)
    shape = (rows * beams, size.heads, o.length, size.d_model // size.heads)
    caches = [
        [torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
        for _ in model.decoder
    ]
    for cache in (each for own in caches for each in own):
        torch._dynamo.mark_static_address(cache)  # a graph may write into it

    def advance(ids: Tensor, at: Tensor, memories: list[list[Tensor]]) -> Tensor:
        x = model.embed(ids[:, None], model.positions[at])
        for block, own, memory in zip(model.decoder, caches, memories, strict=True):
            x = block.step(x, own, memory, at)
        return F.log_softmax(F.linear(x[:, 0], model.table).float(), -1)

    if mode == "compiled":
        advance = torch.compile(advance, mode="reduce-overhead", dynamic=False)

    def call() -> Tensor:
        memory = model.encode(source).repeat_interleave(beams, 0)
        memories = [list(block.read.project(memory)) for block in model.decoder]
        ids = torch.full((rows * beams,), 1, device=DEVICE)
        total = torch.full((rows, beams), -torch.inf, device=DEVICE)
        total[:, 0] = 0.0
        first = torch.arange(rows, device=DEVICE)[:, None] * beams
        found = []
        for at in range(o.length):
            scores = advance(ids, torch.tensor([at], device=DEVICE), memories)
            sums = total[..., None] + scores.view(rows, beams, -1)
            total, best = sums.flatten(1).topk(beams)
            ids = (best % size.vocab).flatten()
            found.append(ids)
            if beams > 1:
                parents = (first + best // size.vocab).flatten()
                for cache in (each for own in caches for each in own):
                    cache.copy_(cache[parents])
        return torch.stack(found)

    wait(call())
    began = time.perf_counter() - began
    wait(call())
    times = timed(call, wait, o.seconds)
    speed = round(1e3 * rows / times["ms"], 1)
    say(
        search=mode,
        beams=beams,
        rows=rows,
        length=o.length,
        **times,
        sentences_s=speed,
        first_s=began,
    )


def products(size: Size, tokens: int) -> None:
    """Microseconds and TFLOP/s of a step's bfloat16 products, also those of weight gradients."""
    d, f, v = size.d_model, size.d_ff, size.vocab
    joined = [(2 * d, d), (3 * d, d), (12 * d, d)]
    for n, k in [(d, d), *joined, (f, d), (d, f), (v, d), (d, v)]:
        a, b, g = (
            torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
            for shape in ((tokens, k), (k, n), (tokens, n))
        )
        for kind, call in (("y", lambda: a @ b), ("dw", lambda: a.T @ g)):  # noqa: B023
            wait([call() for _ in range(3)])
            # So many that the host, which only waits for the last one, does not matter.
            ms = timed(lambda: [call() for _ in range(20)], wait, 0.02)["ms"] / 20  # noqa: B023
            rate = 2e-9 * tokens * n * k / ms
            say(product=kind, m=tokens, n=n, k=k, us=round(1e3 * ms, 2), tflops=round(rate, 1))


def main() -> None:
    """Prints a row for each variant; one that fails is a row, too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--size", default="base", choices=SIZES)
    add("--tokens", type=int, default=16_384, help="a side")
    add("--length", type=int, default=256)
    add("--seconds", type=float, default=3.0, help="of each measurement")
    add("--variants", default="blocks,masters", help=f"of a step: {', '.join(VARIANTS)}")
    add("--products", action="store_true", help="single products")
    add("--search", action="store_true", help="greedy and beam search")
    add("--rows", default="1,32,256", help="sentences of a batch of a search")
    o = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if o.products:
        sizes = ("tiny",) if o.size == "tiny" else ("base", "big")
        jobs = [lambda size=size: products(SIZES[size], o.tokens) for size in sizes]
    elif o.search:
        cases = [(b, r) for b in (1, 4) for r in map(int, o.rows.split(","))]
        modes = ("eager", "compiled") if ON_GPU else ("eager",)
        jobs = [lambda m=m, c=c: search(m, *c, o) for m in modes for c in cases]
    else:
        jobs = [lambda name=name: train(name, o) for name in o.variants.split(",")]
    for job in jobs:
        try:
            with sdpa_kernel(BACKENDS, set_priority=True):
                job()
        except Exception as error:  # the next one may work
            say(error=f"{type(error).__name__}: {error}"[:600])
        if ON_GPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
