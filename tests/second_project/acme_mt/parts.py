"""A mixer, a position scheme, a decoding method and a data source."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

import transformer_jax as tj


@dataclass(frozen=True)
class Average(tj.MixerConfig):
    """The mean of all tokens so far, between two projections."""

    refuses: ClassVar[dict[str, str]] = {"encoder": "it looks only backwards; use full"}
    knows_order: ClassVar[bool] = True

    gain: float = 1.0  #: of the mean

    def build(self, context: tj.MixerContext, position: tj.Position) -> tj.Mixer:
        return AverageMixer(self, context, position)


class AverageMixer(tj.Mixer):
    """See `Average`."""

    config: Average

    def setup(self) -> None:
        width = self.context.d_model
        self.into = tj.Dense(width, width, ("embed", "heads"), **self.context.dtypes)
        self.out = tj.Dense(width, width, ("heads", "embed"), **self.context.dtypes)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        sums_BLD = jnp.cumsum(self.into(x_BLD), axis=1)
        counts_L1 = jnp.arange(1, x_BLD.shape[1] + 1)[:, None]
        y_BLD: jax.Array = self.out(self.config.gain * sums_BLD / counts_L1)
        return y_BLD

    def init_state(self, batch: int, max_length: int) -> jax.Array:
        return jnp.zeros((batch, self.context.d_model))

    def step(
        self, x_BD: jax.Array, state: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        sum_BD = state + self.into(x_BD)
        return self.out(self.config.gain * sum_BD / (position + 1)), sum_BD


@dataclass(frozen=True)
class Waves(tj.PositionConfig):
    """A sine for each feature, added to the embeddings."""

    def build(self, context: tj.PositionContext) -> tj.Position:
        return WavesPosition(self, context)


class WavesPosition(tj.Position):
    """See `Waves`."""

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        rates_D = 1.0 / (1.0 + jnp.arange(x.shape[-1]))
        return x + jnp.sin(positions[:, None] * rates_D).astype(x.dtype)


@dataclass(frozen=True)
class Narrow(tj.Beam):
    """A beam of two."""

    beam_size: int = 2


@dataclass(frozen=True)
class Numbers(tj.Source):
    """Numbers in words and in digits."""

    count: int = 40  #: pairs to train on

    @property
    def languages(self) -> tuple[str, str]:
        return "en", "xx"

    def has(self, split: Literal["train", "validation", "test"]) -> bool:
        return split != "validation"

    def pairs(
        self, split: Literal["train", "validation", "test"], languages: tuple[str, str]
    ) -> Iterator[tuple[str, str]]:
        words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        for i in range(self.count if split == "train" else 5):
            digits = str(7919 * (i + 1) % 10000)
            pair = " ".join(words[int(digit)] for digit in digits), " ".join(digits)
            yield pair if languages == self.languages else pair[::-1]

    def fingerprint(
        self, split: Literal["train", "validation", "test"], languages: tuple[str, str]
    ) -> str:
        return hashlib.sha256(f"numbers {self.count} {split} {languages}".encode()).hexdigest()


def register() -> None:
    """Names what the entry points do not name."""
    tj.register("acme_narrow", Narrow)
    tj.register("acme_numbers", Numbers)


def config() -> tj.Config:
    """A recipe of all four."""
    stack: dict[str, Any] = {"num_layers": 1, "position": Waves()}
    return tj.Config(
        data=tj.DataConfig(source=Numbers()),
        tokenizer=tj.TokenizerConfig(vocab_size=300),
        model=tj.ModelConfig(
            d_model=16,
            d_ff=16,
            num_heads=2,
            encoder=tj.StackConfig(**stack),
            decoder=tj.StackConfig(mixers=(Average(gain=2.0),), **stack),
            max_length=32,
            dropout_rate=0.0,
        ),
        batch=tj.BatchConfig(tokens=512, max_length=32, num_buckets=1),
        train=tj.TrainConfig(steps=3, evaluate_every=3, checkpoint_every=3),
        decode=tj.DecodeConfig(method=Narrow()),
    )
