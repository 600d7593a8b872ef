"""The search for translations of a text, in batches of few static shapes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.decoding.base import Hypotheses
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.mbr import Utility, mbr_scores
from transformer_jax.errors import UserError
from transformer_jax.ops.padding import pad
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch
from transformer_jax.translation.pieces import Pieces, Sentences
from transformer_jax.translation.run_batches import Batch, Timing, Work
from transformer_jax.translation.runner import Runner
from transformer_jax.translation.text_batches import Row, padded_length
from transformer_jax.vocabulary import EOS_ID

#: Called with the number of sentences just finished.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence."""

    text: str  #: one line
    score: float  #: what it was ranked by: log_prob / length penalty, or the utility of mbr
    log_prob: float  #: log p(target | source, prefix) in nats, EOS included, as searched
    tokens: tuple[int, ...]  #: target ids, prefix and EOS included
    is_cut: bool = False  #: it is as long as it may be, where EOS is the only choice

    @property
    def own_tokens(self) -> tuple[int, ...]:
        """`tokens`, without EOS where the model had no choice."""
        return self.tokens[:-1] if self.is_cut and self.tokens[-1] == EOS_ID else self.tokens


@dataclass(frozen=True)
class Decoded:
    """The translations of a text, with counts and times."""

    translations: list[list[Translation]]  #: one list a sentence, in input order, best first
    num_cut: int  #: sentences whose end was cut off to fit the limit
    timing: Timing

    @property
    def num_not_finite(self) -> int:
        """The number of sentences with a score that is not a finite number."""
        return sum(not all(isfinite(one.score) for one in found) for found in self.translations)


class Asked(NamedTuple):
    """What is to be translated: of each sentence.

    Attributes:
        sources: texts, or ids without EOS.
        prefixes: the ids that its translations begin with.
        num_best: how many translations.
        numbers: on which samples depend.
    """

    sources: Sentences
    prefixes: Sequence[list[int]]
    num_best: Sequence[int]
    numbers: Sequence[int]


def search(
    runner: Runner, pieces: Pieces, config: DecodeConfig, asked: Asked, progress: Progress
) -> Decoded:
    """Translates; a sentence without a piece has one empty translation."""
    began = time.perf_counter()
    if config.mbr:
        mbr_scores([], [], config.mbr)  # fails now if it cannot be computed
    most, forced = config.method.num_hypotheses, any(asked.prefixes)
    rows, num_cut = _rows(pieces, asked)
    num_rows = runner.num_rows(runner.search_rows(config.batch_size, most))
    translations = [[Translation("", 0.0, 0.0, ())] for _ in asked.sources]
    if len(rows) < len(asked.sources):
        progress(len(asked.sources) - len(rows))

    def limit(row: Row) -> int:
        longest = config.max_target_length(len(row.source), len(row.target))
        return min(longest, runner.model.max_length)

    def start(batch: Batch) -> Hypotheses:
        length = batch[0].length
        longest = config.max_target_length(length, length if forced else 0)
        max_length = min(longest, runner.model.max_length)
        # mbr compares all translations with each other
        best = [most if config.mbr else row.num_best for row in batch]
        given = [row.target for row in batch]
        arrays = Sources(
            *pad([row.source for row in batch], num_rows, length),
            max_lengths_B=filled(list(map(limit, batch)), num_rows),
            numbers_B=filled([asked.numbers[row.number] for row in batch], num_rows),
            prefix_BT=pad(given, num_rows, max_length)[0] if forced else None,
            num_best_B=filled(best, num_rows, most),
        )
        method, seed = config.method.static, np.uint32(config.method.seed)
        decoding = Decoding(method, max_length, config.repetition, config.allow_unk)
        return runner.call(decode_batch, arrays, seed=seed, decoding=decoding)

    def finish(batch: Batch, hypotheses: Hypotheses) -> None:
        on_host = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), hypotheses)
        found = [
            _translations(pieces, limit(row), *one)
            for row, *one in zip(batch, *on_host, strict=False)
        ]
        if config.mbr:
            given = [pieces.source_text(asked.sources[row.number]) for row in batch]
            found = _by_mbr(given, found, config.mbr)
        for row, best in zip(batch, found, strict=True):
            translations[row.number] = best[: row.num_best]
        progress(len(batch))

    program = (
        (config.method.static, config.repetition, config.allow_unk, forced, num_rows),
        (config.max_length_factor, config.max_length_offset),
    )
    timing = runner.run(rows, Work(program, lambda length: num_rows, start, finish))
    return Decoded(translations, num_cut, replace(timing, seconds=time.perf_counter() - began))


def _rows(pieces: Pieces, asked: Asked) -> tuple[list[Row], int]:
    """A row for each sentence that is not empty, and how many had to be cut."""
    rows, num_cut, limit = [], 0, pieces.limit
    triples = zip(asked.sources, asked.prefixes, asked.num_best, strict=True)
    for number, (text, prefix, num_best) in enumerate(triples):
        if ids := pieces.source(text):
            num_cut += len(ids) >= limit
            source = [*ids[: limit - 1], EOS_ID]
            length = padded_length(max(len(source), len(prefix) + 1), limit)
            rows.append(Row(number, source, prefix, length, num_best=num_best))
    return rows, num_cut


def _translations(pieces: Pieces, limit: int, *hypotheses_Z: list[Any]) -> list[Translation]:
    """The translations of one sentence, best first, from the leaves of `Hypotheses`."""
    found = []
    for ids_T, length, score, log_prob in zip(*hypotheses_Z, strict=True):
        if length:
            ids = tuple(ids_T[:length])
            found.append(Translation(pieces.text(ids), score, log_prob, ids, length >= limit))
    return found


def numbers_asked(num_best: int | Sequence[int] | None, most: int, count: int) -> list[int]:
    """How many translations of each of `count` sentences are asked for, at most `most`."""
    if num_best is None:
        return [most] * count
    asked = [num_best] * count if isinstance(num_best, int) else list(num_best)
    if len(asked) != count:
        raise UserError(f"num_best: {len(asked)} numbers for {count} sentences")
    if asked and min(asked) < 1:
        raise UserError(f"num_best={min(asked)}: must be at least 1")
    return [min(number, most) for number in asked]


def filled(numbers: list[int], num_rows: int, fill: int = 0) -> np.ndarray:
    """int32 [num_rows]: the numbers, then `fill`."""
    return np.array([*numbers, *[fill] * (num_rows - len(numbers))], np.int32)


def _by_mbr(
    sources: list[str], found: list[list[Translation]], utility: Utility
) -> list[list[Translation]]:
    """The translations of each sentence, scored and sorted by minimum Bayes risk."""
    texts = [[each.text for each in sentence] for sentence in found]
    for sentence, scores in zip(found, mbr_scores(sources, texts, utility), strict=True):
        scored = zip(sentence, scores, strict=True)
        sentence[:] = [replace(each, score=score) for each, score in scored]
        sentence.sort(key=lambda each: -each.score)
    return found
