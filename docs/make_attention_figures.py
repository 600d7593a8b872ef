"""Draws the figures of docs/attention.md: `python docs/make_attention_figures.py`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from transformer_jax.positions.alibi import slopes
from transformer_jax.positions.rope import rotated
from transformer_jax.positions.sinusoidal import sinusoids
from transformer_jax.positions.t5 import relative_buckets

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

FIGURES = Path(__file__).with_name("figures")


def save(figure: Any, name: str) -> None:
    """Writes docs/figures/<name>; without the metadata that changes with the version."""
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / name, dpi=90, metadata={"Software": None})
    plt.close(figure)


def draw_sinusoids() -> None:
    """The vectors themselves, and the product of every two of them."""
    vectors_LD = np.asarray(sinusoids(jnp.arange(64), 64))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    image = left.imshow(vectors_LD.T, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    figure.colorbar(image, ax=left)
    left.set(title="PE(p), sine and cosine in turn", xlabel="position p", ylabel="feature")
    image = right.imshow(vectors_LD @ vectors_LD.T, cmap="Blues", aspect="auto")
    right.set(title="PE(p) . PE(q)", xlabel="position p", ylabel="position q")
    figure.colorbar(image, ax=right)
    save(figure, "sinusoids.png")


def draw_relative_positions() -> None:
    """What becomes of a score with the distance, under ALiBi, T5's bias and RoPE."""
    distances = np.arange(-40, 41)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    for head, slope in enumerate(slopes(4)):
        left.plot(distances, -slope * abs(distances), label=f"head {head}")
    left.set(title="ALiBi, symmetric: added to the score", xlabel="key minus query position")
    left.legend()
    for bidirectional, label in ((True, "bidirectional"), (False, "causal")):
        buckets = relative_buckets(
            jnp.asarray(distances), bidirectional=bidirectional, num_buckets=32, max_distance=128
        )
        middle.step(distances, buckets, where="mid", label=label)
    middle.set(title="T5: the bucket of a distance", xlabel="key minus query position")
    middle.legend()
    ones = jnp.ones((81, 1, 64))
    turned_LK = rotated(ones, jnp.asarray(distances), 10000.0)[:, 0]
    right.plot(distances, np.asarray(turned_LK @ turned_LK[40]) / 64)
    right.set(title="RoPE: q . k / |q||k| for q = k = 1", xlabel="key minus query position")
    save(figure, "relative_positions.png")


def draw_linear_attention() -> None:
    """Multiplications and additions of both orders of the product, counted by XLA."""

    def flops(order: str, length: int, width: int = 64) -> float:
        shape = jax.ShapeDtypeStruct((length, width), jnp.float32)

        def product(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return (q @ k.T) @ v if order == "(Q K^T) V" else q @ (k.T @ v)

        cost = jax.jit(product).lower(shape, shape, shape).compile().cost_analysis()
        return float(cost["flops"])

    lengths = [2**power for power in range(5, 13)]
    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for order in ("(Q K^T) V", "Q (K^T V)"):
        axes.loglog(lengths, [flops(order, length) for length in lengths], "o-", label=order)
    axes.set(xlabel="length", ylabel="floating-point operations", title="width 64, one head")
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, "linear_attention.png")


if __name__ == "__main__":
    draw_sinusoids()
    draw_relative_positions()
    draw_linear_attention()
