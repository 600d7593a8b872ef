"""What a model says of given translations: their log-probabilities and word alignments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from transformer_jax.data.alignments import Links, links_of, words
from transformer_jax.errors import UserError
from transformer_jax.ops.padding import pad
from transformer_jax.translation.model_calls import Pairs, align_batch, score_batch
from transformer_jax.translation.pieces import Pieces, Sentences
from transformer_jax.translation.run_batches import Batch, Work
from transformer_jax.translation.runner import Runner
from transformer_jax.translation.search import filled
from transformer_jax.translation.text_batches import Row, row_of
from transformer_jax.vocabulary import EOS_ID

#: Most [rows, length] slots of a batch that is only scored: its logits are [slots, V].
_SCORING_SLOTS = 4096


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of given translations."""

    log_probs: np.ndarray  #: float32 [N], nats, EOS included
    num_tokens: np.ndarray  #: int32 [N], target pieces after the prefix, EOS included
    num_cut: int  #: pairs of which one side was cut to fit the limit


@dataclass(frozen=True)
class Given:
    """Sources with their translations, by a model.

    Raises:
        UserError: not as many targets as sources.
    """

    runner: Runner  #: of the model
    pieces: Pieces  #: of both sides
    batch_size: int  #: most rows of a batch
    sources: Sentences
    targets: Sentences

    def __post_init__(self) -> None:
        counts = len(self.sources), len(self.targets)
        if counts[0] != counts[1]:
            raise UserError(
                f"{counts[0]} source and {counts[1]} target sentences: the numbers must agree"
            )

    def score(self, prefixes: Sequence[list[int]]) -> Scored:
        """The log-probabilities of the targets after their prefixes."""
        pieces, rows, num_cut = self.pieces, list[Row](), 0
        triples = zip(self.sources, self.targets, prefixes, strict=True)
        for number, (text, given, prefix) in enumerate(triples):
            encode = pieces.tokenizers.source.encode
            source = encode(text) if isinstance(text, str) else list(text)
            target = prefix + pieces.target(given, with_prefix=False)
            num_cut += max(len(source), len(target)) >= pieces.limit
            rows.append(row_of(number, source, target, pieces.limit, num_forced=len(prefix)))
        log_probs = np.zeros(len(rows), np.float32)

        def read(row: Row, log_prob: np.ndarray) -> None:
            log_probs[row.number] = log_prob

        self._run(rows, score_batch, read, forced=any(prefixes))
        num_tokens = [len(row.target) - row.num_forced for row in rows]
        return Scored(log_probs, np.array(num_tokens, np.int32), num_cut)

    def align(self, *, every_source: bool) -> list[Links]:
        """The word alignments of all pairs; see `Translator.align`."""
        pieces, rows, tokenizers = self.pieces, list[Row](), self.pieces.tokenizers
        links = [Links() for _ in self.sources]
        targets = [
            given[:-1] if not isinstance(given, str) and list(given[-1:]) == [EOS_ID] else given
            for given in self.targets
        ]
        for number, (text, given) in enumerate(zip(self.sources, targets, strict=True)):
            source, target = pieces.source(text), pieces.target(given)
            if source and target:
                rows.append(row_of(number, source, target, pieces.limit))

        def read(row: Row, looks_TS: np.ndarray) -> None:
            source, target = len(row.source) - 1, len(row.target) - 1
            links[row.number] = links_of(
                looks_TS[:target, :source],
                words(tokenizers.source, self.sources[row.number])[:, :source],
                words(tokenizers.target, targets[row.number])[:, :target],
                every_source=every_source,
            )

        self._run(rows, align_batch, read)
        return links

    def _run(
        self, rows: list[Row], function: Any, read: Callable[..., None], *, forced: bool = False
    ) -> None:
        """Calls `read` with each row and what a function of `model_calls` computes for it."""

        def num_rows(length: int) -> int:
            return self.runner.num_rows(min(self.batch_size, _SCORING_SLOTS // length))

        def start(batch: Batch) -> Array:
            shape = num_rows(batch[0].length), batch[0].length
            source = pad([row.source for row in batch], *shape)
            target = pad([row.target for row in batch], *shape)
            num_forced_B = filled([row.num_forced for row in batch], shape[0]) if forced else None
            return self.runner.call(function, Pairs(*source, *target, num_forced_B))

        def finish(batch: Batch, results: Array) -> None:
            for row, found in zip(batch, np.asarray(results), strict=False):
                read(row, found)

        self.runner.run(rows, Work((function, forced), num_rows, start, finish))
