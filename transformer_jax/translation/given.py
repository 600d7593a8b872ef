"""What a model says of given translations: their log-probabilities and word alignments."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        pieces, rows, num_cut, forced = self.pieces, list[Row](), 0, any(prefixes)
        triples = zip(self.sources, self.targets, prefixes, strict=True)
        for number, (text, given, prefix) in enumerate(triples):
            encode = pieces.tokenizers.source.encode
            source = encode(text) if isinstance(text, str) else list(text)
            target = prefix + pieces.target(given, with_prefix=False)
            num_cut += max(len(source), len(target)) >= pieces.limit
            rows.append(row_of(number, source, target, pieces.limit, num_forced=len(prefix)))
        log_probs = np.zeros(len(rows), np.float32)
        num_tokens = np.zeros(len(rows), np.int32)

        def start(batch: Batch) -> Array:
            pairs = self._padded(batch)
            given = [row.num_forced for row in batch]
            num_forced_B = filled(given, len(pairs.source_BS)) if forced else None
            return self.runner.call(score_batch, pairs._replace(num_forced_B=num_forced_B))

        def finish(batch: Batch, log_probs_B: Array) -> None:
            indices = [row.number for row in batch]
            log_probs[indices] = np.asarray(log_probs_B)[: len(batch)]
            num_tokens[indices] = [len(row.target) - row.num_forced for row in batch]

        self.runner.run(rows, Work(("score", forced), self._num_rows, start, finish))
        return Scored(log_probs, num_tokens, num_cut)

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

        def start(batch: Batch) -> Array:
            return self.runner.call(align_batch, self._padded(batch))

        def finish(batch: Batch, looks_BTS: Array) -> None:
            for row, looks_TS in zip(batch, np.asarray(looks_BTS), strict=False):
                source, target = len(row.source) - 1, len(row.target) - 1
                links[row.number] = links_of(
                    looks_TS[:target, :source],
                    words(tokenizers.source, self.sources[row.number])[:, :source],
                    words(tokenizers.target, targets[row.number])[:, :target],
                    every_source=every_source,
                )

        self.runner.run(rows, Work("align", self._num_rows, start, finish))
        return links

    def _num_rows(self, length: int) -> int:
        return self.runner.num_rows(min(self.batch_size, _SCORING_SLOTS // length))

    def _padded(self, batch: Batch) -> Pairs:
        shape = self._num_rows(batch[0].length), batch[0].length
        source = pad([row.source for row in batch], *shape)
        return Pairs(*source, *pad([row.target for row in batch], *shape))
