"""Text in, translations out: tokenise, sort into few static shapes, search, restore the order.

Each sentence is padded to a length that depends on the sentence alone, and a batch holds
sentences of one padded length. So neither the order of the input nor the batch size changes
what is computed for a sentence.
"""

import copy
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config import override
from transformer_jax.data.alignments import Links, links_of, words
from transformer_jax.data.language_tags import towards
from transformer_jax.data.padding import pad
from transformer_jax.decoding.base import Hypotheses
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.mbr import UTILITIES, Utility, mbr_scores
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import (
    batch_sharding,
    decoding_rows,
    lay_out,
    num_processes,
    replicated,
)
from transformer_jax.settings.variants import to_text
from transformer_jax.translation.documents import Asked, Ids, Room, Tally, translate_documents
from transformer_jax.translation.model import Model, SingleModel
from transformer_jax.translation.model_calls import (
    Pairs,
    Rules,
    Sources,
    align_batch,
    decode_batch,
    hold_params,
    score_batch,
)
from transformer_jax.translation.run_batches import Timing, num_threads, run_batches
from transformer_jax.translation.text_batches import Row, batches, padded_length
from transformer_jax.vocabulary import EOS_ID, UNK_ID

#: Called with the number of sentences just finished.
Progress = Callable[[int], None]

#: Most [rows, length] slots of a batch that is only scored: its logits are [slots, V].
_SCORING_SLOTS = 4096

#: The first pieces of a target: one text for all sentences, or for each a text or ids.
Prefixes = str | Sequence[str | Sequence[int]]

_LINE_ENDS = str.maketrans("\r\n", "  ")


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


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of given translations."""

    log_probs: np.ndarray  #: float32 [N], nats, EOS included
    num_tokens: np.ndarray  #: int32 [N], target pieces after the prefix, EOS included
    num_cut: int  #: pairs of which one side was cut to fit the limit


class Translator:
    """Translates and scores text with a trained model.

    Args:
      model: a config or an `Ensemble`; its `max_length` bounds both sides.
      params: the model's parameters, or those of each member of an ensemble; None for a translator
        that is only used `with_params`.
      tokenizers: with `.source` and `.target`, see `transformer_jax.data.tokenizer`.
      decode_config: the defaults, which each call can override by keyword. `weights` is for all
        calls: the translator keeps the parameters in that form (`models.api.for_decoding`).
      mesh: devices to share the sentences among. `params` are laid out on them, and batches are
        rounded up to a multiple of their number. None: one device, that of `params`. If the devices
        belong to several processes, each process makes the same calls with the same text, and gets
        all the translations.
      unseen: source ids that the model was never trained on, for `unseen_words`.
    """

    def __init__(
        self,
        model: ModelConfig | Model,
        params: Any,
        tokenizers: Any,
        decode_config: DecodeConfig | None = None,
        *,
        mesh: Mesh | None = None,
        unseen: frozenset[int] = frozenset(),
    ) -> None:
        self.model: Model = SingleModel(model) if isinstance(model, ModelConfig) else model
        self.tokenizers = tokenizers
        self.decode_config = decode_config or DecodeConfig()
        self.mesh, self.unseen = mesh, unseen
        #: The parameters in the form that decoding holds, on the devices.
        self.params = None if params is None else self._held(params)
        self._compiled: set[Hashable] = set()

    def with_params(self, params: Any) -> "Translator":
        """The same translator with other parameters; nothing is compiled again."""
        other = copy.copy(self)
        other.params = self._held(params)
        return other

    def _held(self, params: Any) -> Any:
        return hold_params(self.model, params, self.decode_config.weights, self.mesh)

    def unseen_words(self, text: str) -> list[str]:
        """The words of a text, between spaces, with a piece that the model was never trained on."""
        encode, unseen = self.tokenizers.source.encode, self.unseen
        if not unseen or unseen.isdisjoint(encode(text)):
            return []
        return [word for word in text.split() if not unseen.isdisjoint(encode(word))]

    def translate(self, sources: Sequence[str], **options: Any) -> list[str]:
        """The best translation of each sentence; an empty line stays empty.

        The options are those of `decode`: `target_prefix`, and fields of `DecodeConfig` such as
        `method=Beam(beam_size=8)`.
        """
        return [best.text for (best,) in self.n_best(sources, 1, **options)]

    def n_best(self, sources: Sequence[str], n: int, **options: Any) -> list[list[Translation]]:
        """At most `n` translations of each sentence, best first; see `translate`."""
        return self.decode(sources, num_best=n, **options).translations

    def translate_documents(
        self,
        documents: Sequence[Sequence[str]],
        *,
        first_ids: Sequence[int] | None = None,
        tally: Tally | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> list[list[str]]:
        """The best translation of each sentence, by a model that was trained on blocks.

        Blocks of sentences are translated whole, with what precedes them as context; see
        `translation/documents.py`. A sentence without text stays empty.

        Args:
          documents: the sentences of each.
          first_ids: the number of each document's first sentence; samples depend on these numbers.
            None: the sentences are counted through.
          tally: gets the numbers of blocks, and of those that had to be translated again.
          progress: called as sentences are finished.
          **overrides: fields of `DecodeConfig`, such as `block_tokens` and `context_tokens`.

        Raises:
          UserError: as `decode`; or the model has no separator piece; or `target_prefix`,
            `no_repeat_ngram` or `repetition_penalty` is set, which are of single sentences.
        """
        config = self._config_of_call(overrides, 1)
        if (room := self.room(config)) is None:
            raise UserError(
                "documents: the model has no separator piece, as it was trained on single "
                "sentences: train with data.blocks, or translate without --documents"
            )
        alone = ("target_prefix", "no_repeat_ngram", "repetition_penalty")
        for name, default in ((name, getattr(DecodeConfig, name)) for name in alone):
            if (value := getattr(config, name)) != default:
                raise UserError(
                    f"{name}={value}: is for single sentences, and documents are translated in "
                    "blocks: leave it out"
                )
        encode = self.source_encoder(config)
        ids = [[encode(text) for text in each if text.strip()] for each in documents]
        (begin,) = self._prefixes(None, config, 1)
        tally, progress = tally or Tally(), progress or (lambda count: None)

        # Of few documents few blocks are translated at once. It depends on all of them, not on
        # those that are not finished, so that rounding is always the same.
        rows = min(config.batch_size, 1 << max(0, len(documents) - 1).bit_length())

        def decode(blocks: Sequence[Asked], numbers: Sequence[int]) -> list[Ids]:
            # A context begins with what the first sentence was forced to begin with.
            prefixes = [list(block.prefix) or begin for block in blocks]
            options = overrides | {"target_prefix": prefixes, "num_best": 1, "batch_size": rows}
            sources = [block.source for block in blocks]
            decoded = self.decode(sources, first_id=numbers, **options)
            tally.timing += decoded.timing
            return [best.own_tokens for best, *_ in decoded.translations]

        found = translate_documents(ids, decode, room, tally, progress, first_ids)
        progress(sum(map(len, documents)) - sum(map(len, ids)))
        texts = [iter([self.text(one) for one in each]) for each in found]
        return [
            [next(rest) if text.strip() else "" for text in each]
            for each, rest in zip(documents, texts, strict=True)
        ]

    def room(self, config: DecodeConfig | None = None) -> Room | None:
        """How long the blocks of documents are; None where the model knows no blocks."""
        config = config or self.decode_config
        tokenizers, limit = self.tokenizers_for(config), self._limit(config)
        separators = tokenizers.source.separator, tokenizers.target.separator
        if None in separators:
            return None
        block = min(config.block_tokens or limit, limit)
        share = block // 4 if config.context_tokens is None else config.context_tokens
        context = min(share, block - 2)
        return Room(block, context, separators, limit, config.block_sentences)

    def decode(
        self,
        sources: Sequence[str | Sequence[int]],
        *,
        target_prefix: Prefixes | None = None,
        num_best: int | Sequence[int] | None = None,
        first_id: int | Sequence[int] = 0,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> Decoded:
        """The hypotheses of each sentence, with counts and times.

        Args:
          sources: one sentence each, as a text or as ids without EOS.
          target_prefix: what each translation begins with, instead of the config's. The
            translation contains it; its pieces are not scored.
          num_best: at most so many translations of each sentence: a number for all, for which the
            method gets more hypotheses if it has fewer; or one for each. None: all that the method
            finds. Beam search ends earlier for few.
          first_id: the number of the first sentence, or of each; samples depend on these numbers.
          progress: called as sentences are finished.
          **overrides: fields of `DecodeConfig`.

        Raises:
          UserError: an unknown field, or a value out of its range; or prefixes or `num_best` that
            are not as many as the sentences; or prefixes that are not ids of target pieces, or too
            long for the model; or more translations than the method can find.
        """
        began = time.perf_counter()
        config = self._config_of_call(overrides, num_best)
        most = config.method.num_hypotheses
        asked = _numbers_asked(num_best, most, len(sources))
        numbers = (
            range(first_id, first_id + len(sources)) if isinstance(first_id, int) else first_id
        )
        prefixes = self._prefixes(target_prefix, config, len(sources))
        forced = any(prefixes)
        rows, num_cut = self._source_rows(sources, prefixes, asked, config)
        num_rows = self._num_rows(config.batch_size)
        translations = [[Translation("", 0.0, 0.0, ())] for _ in sources]
        if progress and len(rows) < len(sources):
            progress(len(sources) - len(rows))

        def limit(row: Row) -> int:
            longest = config.max_target_length(len(row.source), len(row.target))
            return min(longest, self.model.max_length)

        def start(batch: list[Row]) -> Hypotheses:
            length = batch[0].length
            longest = config.max_target_length(length, length if forced else 0)
            max_length = min(longest, self.model.max_length)
            limits = list(map(limit, batch))
            # mbr compares all translations with each other
            best = [most if config.mbr else row.num_best for row in batch]
            given = [row.target for row in batch]
            arrays = Sources(
                *pad([row.source for row in batch], num_rows, length),
                max_lengths_B=_filled(limits, num_rows),
                numbers_B=_filled([numbers[row.number] for row in batch], num_rows),
                prefix_BT=pad(given, num_rows, max_length)[0] if forced else None,
                num_best_B=_filled(best, num_rows, most),
            )
            return self._call(
                decode_batch,
                arrays,
                seed=np.uint32(config.method.seed),
                method=config.method.static,
                max_length=max_length,
                rules=Rules(config.repetition, config.allow_unk),
            )

        def finish(batch: list[Row], hypotheses: Hypotheses) -> None:
            on_host = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), hypotheses)
            found = [
                self._translations(limit(row), *one)
                for row, *one in zip(batch, *on_host, strict=False)
            ]
            if config.mbr:
                given = [self._source_text(sources[row.number]) for row in batch]
                found = _by_mbr(given, found, config.mbr)
            for row, best in zip(batch, found, strict=True):
                translations[row.number] = best[: row.num_best]
            if progress:
                progress(len(batch))

        program = (
            (config.method.static, config.repetition, config.allow_unk, forced, num_rows),
            (config.max_length_factor, config.max_length_offset),
        )
        in_batches = batches(rows, lambda length: num_rows)
        timing = self._run(in_batches, start, finish, program)
        return Decoded(translations, num_cut, replace(timing, seconds=time.perf_counter() - began))

    def score(self, sources: Sequence[str], targets: Sequence[Any], **options: Any) -> np.ndarray:
        """Log p(target | source) in nats, EOS included, of each pair: float32 [N].

        See `score_pairs`.
        """
        return self.score_pairs(sources, targets, **options).log_probs

    def score_pairs(
        self,
        sources: Sequence[str | Sequence[int]],
        targets: Sequence[str | Sequence[int]],
        *,
        target_prefix: Prefixes | None = None,
    ) -> Scored:
        """The log-probabilities, lengths, and the number of pairs that had to be cut.

        Args:
          sources: one sentence each, as a text or as ids without EOS.
          targets: their translations, as texts or as ids without EOS.
          target_prefix: as in `decode`: what precedes each target, and is not scored.

        Raises:
          UserError: as `decode`; or not as many targets as sources.
        """
        if len(sources) != len(targets):
            raise UserError(
                f"{len(sources)} source and {len(targets)} target sentences: the numbers must agree"
            )
        prefixes = self._prefixes(target_prefix, self.decode_config, len(sources))
        forced = any(prefixes)
        limit = self._limit(self.decode_config)
        tokenizers = self.tokenizers_for(self.decode_config)
        rows, num_cut = [], 0
        triples = zip(sources, targets, prefixes, strict=True)
        for number, (text, given, prefix) in enumerate(triples):
            source_ids = tokenizers.source.encode(text) if isinstance(text, str) else list(text)
            target_ids = prefix + self._target_ids(tokenizers, given, with_prefix=False)
            num_cut += max(len(source_ids), len(target_ids)) >= limit
            source, target = ([*ids[: limit - 1], EOS_ID] for ids in (source_ids, target_ids))
            length = padded_length(max(len(source), len(target)), limit)
            rows.append(Row(number, source, target, length, len(prefix)))
        log_probs = np.zeros(len(sources), np.float32)
        num_tokens = np.zeros(len(sources), np.int32)

        def start(batch: list[Row]) -> jax.Array:
            pairs = self._padded(batch)
            given = [row.num_forced for row in batch]
            num_forced_B = _filled(given, len(pairs.source_BS)) if forced else None
            return self._call(score_batch, pairs._replace(num_forced_B=num_forced_B))

        def finish(batch: list[Row], log_probs_B: jax.Array) -> None:
            indices = [row.number for row in batch]
            log_probs[indices] = np.asarray(log_probs_B)[: len(batch)]
            num_tokens[indices] = [len(row.target) - row.num_forced for row in batch]

        self._run(batches(rows, self._scored_rows), start, finish, ("score", forced))
        return Scored(log_probs, num_tokens, num_cut)

    def align(
        self,
        sources: Sequence[str | Sequence[int]],
        targets: Sequence[str | Sequence[int]],
        *,
        every_source: bool = False,
    ) -> list[Links]:
        """Which source word each target word of given translations comes from.

        Words are what stands between spaces, counted from 0. Each target word has one source word:
        the one that its pieces use most in the last layer's cross-attention, by its
        `alignment_head` or the mean of its heads. Words that did not fit the model have none.

        Args:
          sources: one sentence each, as a text or as ids without EOS.
          targets: their translations, as texts or as `Translation.tokens`.
          every_source: link each source word that no target word uses most, too, to the target word
            that uses it most.

        Returns:
          For each pair (source word, target word), in the order of the target words; those of
          `every_source` come last.

        Raises:
          UserError: not as many targets as sources; or the cross-attention has no weights.
        """
        self.model.check_alignment()
        if len(sources) != len(targets):
            raise UserError(
                f"{len(sources)} source and {len(targets)} target sentences: the numbers must agree"
            )
        limit, encode = self._limit(self.decode_config), self.source_encoder()
        tokenizers = self.tokenizers_for(self.decode_config)
        rows, links = [], [Links() for _ in sources]
        targets = [
            given[:-1] if not isinstance(given, str) and list(given[-1:]) == [EOS_ID] else given
            for given in targets
        ]
        for number, (text, given) in enumerate(zip(sources, targets, strict=True)):
            source_ids = encode(text) if isinstance(text, str) else list(text)
            target_ids = self._target_ids(tokenizers, given)
            if source_ids and target_ids:
                source, target = ([*ids[: limit - 1], EOS_ID] for ids in (source_ids, target_ids))
                length = padded_length(max(len(source), len(target)), limit)
                rows.append(Row(number, source, target, length))

        def start(batch: list[Row]) -> jax.Array:
            return self._call(align_batch, self._padded(batch))

        def finish(batch: list[Row], looks_BTS: jax.Array) -> None:
            for row, looks_TS in zip(batch, np.asarray(looks_BTS), strict=False):
                source, target = len(row.source) - 1, len(row.target) - 1
                links[row.number] = links_of(
                    looks_TS[:target, :source],
                    words(tokenizers.source, sources[row.number])[:, :source],
                    words(tokenizers.target, targets[row.number])[:, :target],
                    every_source=every_source,
                )

        self._run(batches(rows, self._scored_rows), start, finish, "align")
        return links

    def _scored_rows(self, length: int) -> int:
        """The number of rows of a batch of given translations."""
        return self._num_rows(min(self.decode_config.batch_size, _SCORING_SLOTS // length))

    def _padded(self, batch: list[Row]) -> Pairs:
        shape = self._scored_rows(batch[0].length), batch[0].length
        source = pad([row.source for row in batch], *shape)
        return Pairs(*source, *pad([row.target for row in batch], *shape))

    def _num_rows(self, wanted: int) -> int:
        """The number of rows of a batch, which is a multiple of the number of devices."""
        return max(1, wanted) if self.mesh is None else decoding_rows(wanted, self.mesh)

    def _call(self, function: Any, arrays: Any, **options: Any) -> Any:
        """Calls a compiled function. Every process can read the whole result."""
        if self.mesh is not None and self.mesh.size > 1:  # on one, a call copies them in less time
            sharding = batch_sharding(self.mesh)
            arrays = jax.tree.map(lambda array: lay_out(array, sharding), arrays)
        results = function(self.params, arrays, model=self.model, mesh=self.mesh, **options)
        if self.mesh is not None and num_processes(self.mesh) > 1:
            results = jax.device_put(results, replicated(self.mesh))
        return results

    def _run(self, *work: Any) -> Timing:
        return run_batches(self._compiled, num_threads(self.params), *work)

    def _config_of_call(self, overrides: dict[str, Any], num_best: Any) -> DecodeConfig:
        """The checked config of a call of `decode`."""
        config = override(self.decode_config, overrides, prefix="decode.")
        if isinstance(num_best, int):
            config = replace(config, method=config.method.with_hypotheses(num_best))
        if config.weights != self.decode_config.weights:
            raise UserError(
                f"decode.weights={config.weights}: this translator holds its parameters as "
                f"{self.decode_config.weights}; open another one with this setting"
            )
        if config.mbr:
            if config.method.num_hypotheses == 1:
                raise UserError(
                    f"decode.mbr={to_text(config.mbr, UTILITIES)} compares several translations of "
                    "a sentence, and the method finds one: try "
                    "method='sample(num_samples=64, epsilon=0.02)'"
                )
            mbr_scores([], [], config.mbr)  # fails now if it cannot be computed
        return config

    def _source_rows(
        self,
        sources: Sequence[str | Sequence[int]],
        prefixes: list[list[int]],
        asked: list[int],
        config: DecodeConfig,
    ) -> tuple[list[Row], int]:
        """A row for each sentence that is not empty, and how many had to be cut."""
        limit, encode = self._limit(config), self.source_encoder(config)
        rows, num_cut = [], 0
        triples = zip(sources, prefixes, asked, strict=True)
        for number, (text, prefix, num_best) in enumerate(triples):
            ids = encode(text) if isinstance(text, str) else list(text)
            if ids:
                num_cut += len(ids) >= limit
                source = [*ids[: limit - 1], EOS_ID]
                length = padded_length(max(len(source), len(prefix) + 1), limit)
                rows.append(Row(number, source, prefix, length, num_best=num_best))
        return rows, num_cut

    def _prefixes(
        self, given: Prefixes | None, config: DecodeConfig, count: int
    ) -> list[list[int]]:
        """The ids of the prefix of each of `count` sentences."""
        given = config.target_prefix if given is None else given
        tokenizers = self.tokenizers_for(config)
        if isinstance(given, str):
            prefixes = [self._target_ids(tokenizers, given)] * count
        else:
            prefixes = [self._target_ids(tokenizers, prefix) for prefix in given]
        if len(prefixes) != count:
            raise UserError(f"target_prefix: {len(prefixes)} prefixes for {count} sentences")
        if not config.allow_unk:
            each = [given] if isinstance(given, str) else given
            _check_known(each, tokenizers.target.encode)
        most = self._limit(config) - 1
        for number, prefix in enumerate(prefixes, start=1):
            if len(prefix) > most:
                raise UserError(
                    f"target_prefix of sentence {number}: {len(prefix)} pieces, at most {most} fit"
                )
        return prefixes

    def tokenizers_for(self, config: DecodeConfig) -> Any:
        """The tokenizers with the tags of the languages that the config names.

        Raises:
          UserError: the model has no tag for one of them.
        """
        languages = config.source_language, config.target_language
        return towards(self.tokenizers, *languages) if any(languages) else self.tokenizers

    def _target_ids(
        self, tokenizers: Any, target: str | Sequence[int], with_prefix: bool = True
    ) -> list[int]:
        """The ids of a text in the target language, or those given."""
        if isinstance(target, str):
            tokenizer = tokenizers.target
            return list(tokenizer.encode(target)[0 if with_prefix else len(tokenizer.prefix) :])
        size = self.model.target_vocab_size
        ids = [int(i) for i in target]
        for i in ids:
            if not EOS_ID < i < size:
                raise UserError(
                    f"target id {i} is not a piece: they are {EOS_ID + 1} to {size - 1}"
                )
        return ids

    def _translations(self, limit: int, *hypotheses_Z: list[Any]) -> list[Translation]:
        """The translations of one sentence, best first, from the leaves of `Hypotheses`."""
        found = []
        for ids_T, length, score, log_prob in zip(*hypotheses_Z, strict=True):
            if length:
                ids = tuple(ids_T[:length])
                is_cut = length >= limit
                found.append(Translation(self.text(ids), score, log_prob, ids, is_cut))
        return found

    def text(self, ids: Ids) -> str:
        """Target ids as text. Byte pieces can spell a line end, but a translation is one line."""
        text: str = self.tokenizers.target.decode(ids)
        return text.translate(_LINE_ENDS)

    def _source_text(self, source: str | Sequence[int]) -> str:
        return source if isinstance(source, str) else str(self.tokenizers.source.decode(source))

    def source_encoder(self, config: DecodeConfig | None = None) -> Callable[[str], list[int]]:
        """A function from a text to the ids that `decode` makes of it, without EOS."""
        config = config or self.decode_config
        tokenizer = self.tokenizers_for(config).source

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text)) if text.strip() else []

        return encode

    @property
    def max_source_length(self) -> int:
        """Longest source, in pieces and EOS, that is not cut."""
        return self._limit(self.decode_config)

    def _limit(self, config: DecodeConfig) -> int:
        return min(config.max_source_length, self.model.max_length)


def _numbers_asked(num_best: int | Sequence[int] | None, most: int, count: int) -> list[int]:
    """How many translations of each of `count` sentences are asked for, at most `most`."""
    if num_best is None:
        return [most] * count
    asked = [num_best] * count if isinstance(num_best, int) else list(num_best)
    if len(asked) != count:
        raise UserError(f"num_best: {len(asked)} numbers for {count} sentences")
    if asked and min(asked) < 1:
        raise UserError(f"num_best={min(asked)}: must be at least 1")
    return [min(number, most) for number in asked]


def _check_known(
    prefixes: Sequence[str | Sequence[int]], encode: Callable[[str], Sequence[int]]
) -> None:
    """Raises UserError where a prefix has what the vocabulary lacks."""
    for prefix in prefixes:
        if UNK_ID in (encode(prefix) if isinstance(prefix, str) else prefix):
            words = prefix.split() if isinstance(prefix, str) else ()
            lacking = " ".join(word for word in words if UNK_ID in encode(word)) or prefix
            raise UserError(
                f"target_prefix={prefix}: the model's vocabulary lacks {lacking}, so no "
                "translation can begin so"
            )


def _filled(numbers: list[int], num_rows: int, fill: int = 0) -> np.ndarray:
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
