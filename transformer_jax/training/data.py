"""What a run trains on: its text as ids, its tokenizers, and the order of its batches."""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Sequence

import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.batch_shapes import Shape
from transformer_jax.data.batches import BatchPlan, Share, Stream, make_batch
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.pipeline import batches
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.data.splits import (
    first_documents,
    visit_rates,
)
from transformer_jax.data.tokenizer_pair import Tokenizers, read_tokenizer
from transformer_jax.data.tokenizer_training import tokenizers_of_text
from transformer_jax.metrics.scores import make_metrics
from transformer_jax.parallel.processes import from_first, one_host_at_a_time
from transformer_jax.runs.folder import Run
from transformer_jax.runs.pretrained import check_named
from transformer_jax.runs.start import Start, check_training
from transformer_jax.training.loop import Feed
from transformer_jax.vocabulary import UNK_ID

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData(Feed):
    """The text, tokenizers and batches of a run. As a feed it gives this process's rows.

    Attributes:
        config: of the run; its length is not used.
        tokenizers: learned from the text, or given.
        stream: the training text as ids, and which pairs of it each batch holds.
        validation: the documents that BLEU is measured on while training, for each direction that
            has a validation set.
    """

    config: Config
    tokenizers: Tokenizers
    stream: Stream
    validation: dict[Languages, list[list[Pair]]]

    def shapes(self, steps: int) -> list[Shape]:
        """The shapes of the global batches of so many steps, in the order of their first use."""
        plan, whole = self.stream.plan, Share(row_multiple=self.stream.share.row_multiple)
        return [plan.rows(first, whole)[0] for first, _ in plan.examples() if first < steps]

    def first(self) -> tuple[dict[str, np.ndarray], float]:
        """The first batch, and by how much an epoch's batches have more slots, on average."""
        positions, counts = zip(*self.stream.plan.examples(), strict=True)
        shapes = [self.stream.plan.rows(position)[0] for position in positions]
        slots = [rows * (source + target) for rows, source, target in shapes]
        return make_batch(self.stream, 0), float(np.average(slots, weights=counts)) / slots[0]

    def describe(self) -> None:
        """Logs the size of the text, and what is unusual about it."""
        config, corpus, plan = self.config, self.stream.corpus, self.stream.plan
        skipped = f" ({plan.num_skipped:,} longer than {config.batch.max_length} skipped)"
        _LOGGER.info(
            f"{', '.join(' -> '.join(direction) for direction in config.data.directions)}: "
            f"{plan.num_pairs:,} training {'blocks' if config.data.blocks else 'pairs'}"
            f"{skipped if plan.num_skipped else ''}, "
            f"{plan.batches_per_epoch:,} batches an epoch in {len(plan.shapes)} shapes, "
            f"{100 * plan.padding_fraction():.1f} % padding"
        )
        if lacking := corpus.num_with(UNK_ID):
            _LOGGER.info(
                f"{lacking:,} of them have characters that the vocabulary lacks: translations "
                "leave them out"
            )
        if config.data.corpora:
            rates = visit_rates(config.data, corpus.sizes)
            rows = zip(config.data.names, corpus.sizes, rates, strict=True)
            listed = "; ".join(f"{name}: {size:,} pairs x {rate:.3g}" for name, size, rate in rows)
            _LOGGER.info(f"corpora, and how often an epoch has their pairs: {listed}")
        if not self.validation:
            _LOGGER.info(
                "no validation set: no BLEU while training, and `best` will mean the newest"
            )


def read_training_data(
    start: Start, workdir: epath.Path, share: Share, *, progress: bool
) -> TrainingData:
    """Reads the text. A continued run has its own tokenizers; a new one learns them.

    Nothing is written but the cache of ids.

    Args:
        start: the run's config, and whether it is new.
        workdir: the run folder.
        share: the rows of each batch that this process makes.
        progress: draw a progress bar.

    Raises:
        UserError: the text is damaged, or does not fit the run whose parameters this one takes.
    """
    config, validation = start.config, {}

    def learn_or_load() -> Tokenizers:
        if start.is_new:  # any tokenizer in the folder is of a start that failed
            return tokenizers_of_text(config.tokenizer, config.data)
        return Run(workdir, config).tokenizers()

    for source, target in from_first(lambda: check_training(config)):
        make_metrics(target_language=target)
        limit = config.train.evaluate_sentences
        read = functools.partial(
            first_documents, config.data, "validation", limit, (source, target)
        )
        validation[source, target] = list(one_host_at_a_time(read))
    tokenizers = from_first(learn_or_load, _encode, _decode)
    named = check_named(config, tokenizers, is_new=start.is_new)
    alpha = config.tokenizer.sampling_alpha
    sampler = SubwordSampler(tokenizers, alpha, config.batch.seed) if alpha else None
    corpus = one_host_at_a_time(
        lambda: ids_of_text(config.data, tokenizers, sampler, progress=progress)
    )
    plan = BatchPlan(
        corpus.source.lengths,
        corpus.target.lengths,
        config.batch,
        row_multiple=config.batch.row_multiple or 1,
        corpora=list(zip(corpus.sizes, visit_rates(config.data, corpus.sizes), strict=True)),
    )
    digests = tokenizers.source.fingerprint + tokenizers.target.fingerprint
    identity = {
        "training data": plan.fingerprint,
        "training text": corpus.fingerprint,
        "tokenizer": hashlib.sha256(digests.encode()).hexdigest(),
    } | named
    files = {f"tokenizer/{name}": model for name, model in tokenizers.files().items()}
    stream = Stream(corpus, plan, share, sampler)
    return TrainingData(
        batches=functools.partial(batches, stream),
        identity=identity,
        files=files,
        metrics=functools.partial(_corpus_shares, config.data.names, plan),
        config=config,
        tokenizers=tokenizers,
        stream=stream,
        validation=validation,
    )


def _corpus_shares(names: Sequence[str], plan: BatchPlan, positions: range) -> dict[str, float]:
    """The share of each of several corpora in the pairs of some batches."""
    if len(names) == 1:
        return {}
    values = plan.shares(positions).tolist()
    return {f"share.{name}": value for name, value in zip(names, values, strict=True)}


def _encode(tokenizers: Tokenizers) -> list[str]:
    """As JSON, for other processes."""
    return [model.hex() for model in tokenizers.files().values()]


def _decode(models: list[str]) -> Tokenizers:
    made = [read_tokenizer(bytes.fromhex(model)) for model in models]
    return Tokenizers(made[0], made[-1])
