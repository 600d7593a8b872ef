"""What every export format must satisfy: the other runtime computes what we compute.

The checks raise AssertionError and take an exporter and a `Runtime`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax as tj
from transformer_jax.data.mapped_tokenizer import Vocabulary, mapped_tokenizer
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_pair import Tokenizers, read_tokenizer
from transformer_jax.formats.export import write
from transformer_jax.formats.exporter import Exporter, TrainedModel
from transformer_jax.models import api
from transformer_jax.models.paths import MEASURED
from transformer_jax.ops.padding import pad
from transformer_jax.paths import as_path
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch
from transformer_jax.vocabulary import EOS_ID

#: Ids without EOS.
Ids = list[int]

MAX_LENGTH = 24
TOLERANCE = 1e-4


class Runtime(Protocol):
    """An exported model, run by other software. Sentences are ids without EOS."""

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        """log p of each target's tokens and of EOS, in nats."""

    def greedy(self, sources: Sequence[Ids]) -> list[Ids]:
        """The translations by greedy search."""


#: Loads an exported folder; the config gives what the folder's format does not keep.
Load = Callable[[Path, TrainedModel], Runtime]


class Ours:
    """The model itself."""

    def __init__(self, model: TrainedModel) -> None:
        self.config, self.params = model.config.model, model.params

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        source, target = (self._padded(side) for side in (sources, targets))
        target_in_BT = api.shift_right(jnp.asarray(target[0]))
        apply = jax.jit(api.apply, static_argnums=0)
        logits_BTV = apply(self.config, self.params, *source, target_in_BT, target[1])
        log_probs_BTV = np.asarray(jax.nn.log_softmax(logits_BTV))
        return [
            np.array([row[t, token] for t, token in enumerate([*ids, EOS_ID])])
            for row, ids in zip(log_probs_BTV, targets, strict=True)
        ]

    def greedy(self, sources: Sequence[Ids]) -> list[Ids]:
        ids_BS, mask_BS = self._padded(sources)
        batch = len(sources)
        limits_B = np.full(batch, MAX_LENGTH, np.int32)
        found = decode_batch(
            self.params,
            Sources(ids_BS, mask_BS, limits_B, np.arange(batch, dtype=np.int32)),
            model=Model((self.config,)),
            decoding=Decoding(tj.Greedy(), MAX_LENGTH),
        )
        tokens_BT, lengths_B = np.asarray(found.tokens)[:, 0], np.asarray(found.lengths)[:, 0]
        return [row[: n - 1].tolist() for row, n in zip(tokens_BT, lengths_B, strict=True)]

    @staticmethod
    def _padded(sentences: Sequence[Ids]) -> tuple[np.ndarray, np.ndarray]:
        return pad([[*ids, EOS_ID] for ids in sentences], len(sentences), MAX_LENGTH)


@functools.cache
def tokenizers() -> Tokenizers:
    """A joint vocabulary of 350 pieces."""
    return tj.train_tokenizers(tj.TokenizerConfig(vocab_size=350), generate(0, 200))


def language_tokenizers() -> Tokenizers:
    """The same pieces under other ids, from English to German or French, as in imported models."""
    joint = tokenizers().source
    pieces, languages = joint.pieces(range(joint.vocab_size)), ("eng_Latn", "deu_Latn", "fra_Latn")
    names = (*pieces[:4], *pieces[:3:-1], *languages)
    tags = tuple(range(len(pieces), len(names)))
    source, target = (
        read_tokenizer(
            mapped_tokenizer(
                joint.sentencepiece_model, Vocabulary(names, (own,), tags=tags, hidden=tags)
            )
        )
        for own in tags[:2]
    )
    return Tokenizers(source, target)


def with_vocabularies(model: tj.ModelConfig, tokenizers: Tokenizers) -> tj.ModelConfig:
    """The model with as many ids as there are pieces."""
    sizes = (each.vocab_size for each in (tokenizers.source, tokenizers.target))
    names = ("source_vocab_size", "target_vocab_size")
    return replace(model, **dict(zip(names, sizes, strict=True)))


def random_model(model: tj.ModelConfig, tokenizers: Tokenizers) -> TrainedModel:
    """A model in which no parameter is left at 0 or 1."""
    model = with_vocabularies(model, tokenizers)
    rng = np.random.default_rng(0)

    def random(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name, shape = path[-1].key, leaf.shape
        if path[0].key == MEASURED:
            return jnp.float32(20.0)  # of activations up to 6.35
        gain = 4.0 if any(key.key == "cross" for key in path) else 1.5  # the source matters
        deviation = gain * shape[0] ** -0.5 if name == "kernel" else 0.3
        return jnp.asarray((name == "scale") + rng.normal(0, deviation, shape), leaf.dtype)

    params = jax.tree_util.tree_map_with_path(random, api.abstract_params(model))
    return TrainedModel(tj.Config(model=model), params, tokenizers)


def small(**options: object) -> tj.ModelConfig:
    """A model of two layers; `encoder` and `decoder` are options of its stacks."""
    stacks = {
        side: tj.StackConfig(**{"num_layers": 2, **options.pop(side, {})})
        for side in ("encoder", "decoder")
    }
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "max_length": MAX_LENGTH}
    return tj.ModelConfig(**{**sizes, **stacks, **options})


def both(**options: object) -> dict[str, dict[str, object]]:
    """The same options in both stacks, for `small`."""
    return {"encoder": options, "decoder": options}


def sentences(seed: int, vocab_size: int) -> list[Ids]:
    """Sentences of all kinds of lengths, the longest possible among them."""
    rng = np.random.default_rng(seed)
    lengths = [MAX_LENGTH - 1, 1, 7, *rng.integers(2, MAX_LENGTH, 5)]
    return [rng.integers(4, vocab_size, length).tolist() for length in lengths]


def exported(exporter: Exporter, model: TrainedModel, folder: Path, load: Load) -> Runtime:
    # As in a run, whose parameters are read with an adapter merged.
    config, params = api.merge_adapter(model.config.model, model.params)
    model = model._replace(config=replace(model.config, model=config), params=params)
    exporter.check(model.config)
    write(exporter, model, as_path(folder))
    return load(folder, model)


def check_log_probs(ours: TrainedModel, theirs: Runtime, tolerance: float = TOLERANCE) -> float:
    """Every token of given pairs has the same log-probability; returns the largest difference."""
    sides = ours.tokenizers.source, ours.tokenizers.target
    pairs = [sentences(seed, side.vocab_size) for seed, side in enumerate(sides)]
    want, got = Ours(ours).log_probs(*pairs), theirs.log_probs(*pairs)
    assert [len(row) for row in got] == [len(row) for row in want]
    largest = max(np.abs(a - b).max() for a, b in zip(got, want, strict=True))
    assert largest <= tolerance, f"log-probabilities differ by {largest:.2g}"
    return float(largest)


def check_greedy(ours: TrainedModel, theirs: Runtime) -> None:
    """Greedy translations are the same, token for token."""
    sources = sentences(2, ours.tokenizers.source.vocab_size)
    want, got = Ours(ours).greedy(sources), theirs.greedy(sources)
    assert len({tuple(ids) for ids in want}) > 1, "the translations do not depend on the source"
    assert got == want
