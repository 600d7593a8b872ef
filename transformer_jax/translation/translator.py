"""Text in, translations out: tokenise, sort into few static shapes, search, restore the order.

Each sentence is padded to a length that depends on the sentence alone, and a batch holds
sentences of one padded length. So the order of the input changes no bit of a translation; another
batch size is another program, whose rounding may differ in the last bits.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from transformer_jax.config import override
from transformer_jax.data.alignments import Links
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.mbr import UTILITIES
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.settings.variants import to_text
from transformer_jax.translation.documents import (
    Asked as AskedBlock,
    Ids,
    Tally,
    translate_documents,
)
from transformer_jax.translation.given import Given, Scored
from transformer_jax.translation.model import Model
from transformer_jax.translation.pieces import Pieces, Prefixes, Sentences, pieces_of
from transformer_jax.translation.runner import Runner, row_choices
from transformer_jax.translation.search import (
    Asked,
    Decoded,
    Progress,
    Translation,
    numbers_asked,
    search,
)
from transformer_jax.vocabulary import UNK_ID

__all__ = ["Decoded", "Progress", "Scored", "Translation", "Translator"]


class Translator:
    """Translates and scores text with a trained model.

    Args:
      model: a config, or a `Model` of several; its `max_length` bounds both sides.
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
        self.model: Model = Model((model,)) if isinstance(model, ModelConfig) else model
        self.tokenizers = tokenizers
        self.decode_config = decode_config or DecodeConfig()
        self.mesh, self.unseen = mesh, unseen
        self._runner = Runner(self.model, self._held(params), mesh)

    @property
    def params(self) -> Any:
        """The parameters in the form that decoding holds, on the devices."""
        return self._runner.params

    @property
    def threads(self) -> int:
        """How many batches it runs at the same time."""
        return self._runner.threads

    def with_params(self, params: Any) -> "Translator":
        """The same translator with other parameters; nothing is compiled again."""
        other = copy.copy(self)
        other._runner = replace(self._runner, params=self._held(params))
        return other

    def _held(self, params: Any) -> Any:
        if params is None:
            return None
        return self.model.held(params, self.decode_config.weights, self.mesh)

    def pieces(self, config: DecodeConfig | None = None) -> Pieces:
        """What the model reads and writes in the languages of a config; None: of its own."""
        return pieces_of(self.tokenizers, config or self.decode_config, self.model)

    def unseen_words(self, text: str) -> list[str]:
        """The words of a text, between spaces, with a piece that the model was never trained on.

        So are characters that the vocabulary lacks: a translation leaves them out.
        """
        encode, unseen = self.tokenizers.source.encode, self.unseen | {UNK_ID}
        if unseen.isdisjoint(encode(text)):
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
        pieces = self.pieces(config)
        if (room := pieces.room(config)) is None:
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
        ids = [[pieces.source(text) for text in each if text.strip()] for each in documents]
        (begin,) = pieces.prefixes(config.target_prefix, 1)
        tally, progress = tally or Tally(), progress or _nobody

        # Of few documents few blocks are translated at once. It depends on all of them, not on
        # those that are not finished, so that rounding is always the same.
        rows = min(config.batch_size, 1 << max(0, len(documents) - 1).bit_length())

        def decode(blocks: Sequence[AskedBlock], numbers: Sequence[int]) -> list[Ids]:
            # A context begins with what the first sentence was forced to begin with.
            prefixes = [list(block.prefix) or begin for block in blocks]
            options = overrides | {"target_prefix": prefixes, "num_best": 1, "batch_size": rows}
            sources = [block.source for block in blocks]
            decoded = self.decode(sources, first_id=numbers, **options)
            tally.timing += decoded.timing
            tally.not_finite += decoded.num_not_finite
            return [best.own_tokens for best, *_ in decoded.translations]

        found = translate_documents(ids, decode, room, tally, progress, first_ids)
        progress(sum(map(len, documents)) - sum(map(len, ids)))
        texts = [iter([pieces.text(one) for one in each]) for each in found]
        return [
            [next(rest) if text.strip() else "" for text in each]
            for each, rest in zip(documents, texts, strict=True)
        ]

    def decode(
        self,
        sources: Sentences,
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
          **overrides: fields of `DecodeConfig`. With a `batch_size`, programs have so many rows;
            without, few sentences take one of fewer rows than the config's.

        Raises:
          UserError: an unknown field, or a value out of its range; or prefixes or `num_best` that
            are not as many as the sentences; or prefixes that are not ids of target pieces, or too
            long for the model; or more translations than the method can find.
        """
        config = self._config_of_call(overrides, num_best)
        count, pieces = len(sources), self.pieces(config)
        most = numbers_asked(num_best, config.method.num_hypotheses, count)
        prefix = config.target_prefix if target_prefix is None else target_prefix
        numbers = range(first_id, first_id + count) if isinstance(first_id, int) else first_id
        asked = Asked(sources, pieces.prefixes(prefix, count), most, numbers)
        if "batch_size" not in overrides:
            fits = [rows for rows in row_choices(config.batch_size) if rows >= count]
            config = replace(config, batch_size=min(fits, default=config.batch_size))
        return search(self._runner, pieces, config, asked, progress or _nobody)

    def row_choices(self) -> list[int]:
        """The numbers of rows of the programs for few sentences and for many, ascending."""
        config = self.decode_config
        most = self._runner.search_rows(config.batch_size, config.method.num_hypotheses)
        return row_choices(most)

    def score(self, sources: Sequence[str], targets: Sequence[Any], **options: Any) -> np.ndarray:
        """Log p(target | source) in nats, EOS included, of each pair: float32 [N].

        See `score_pairs`.
        """
        return self.score_pairs(sources, targets, **options).log_probs

    def score_pairs(
        self, sources: Sentences, targets: Sentences, *, target_prefix: Prefixes | None = None
    ) -> Scored:
        """The log-probabilities, lengths, and the number of pairs that had to be cut.

        Args:
          sources: one sentence each, as a text or as ids without EOS.
          targets: their translations, as texts or as ids without EOS.
          target_prefix: as in `decode`: what precedes each target, and is not scored.

        Raises:
          UserError: as `decode`; or not as many targets as sources.
        """
        given = self._given(sources, targets)
        prefix = self.decode_config.target_prefix if target_prefix is None else target_prefix
        return given.score(self.pieces().prefixes(prefix, len(sources)))

    def align(
        self, sources: Sentences, targets: Sentences, *, every_source: bool = False
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
        return self._given(sources, targets).align(every_source=every_source)

    def _given(self, sources: Sentences, targets: Sentences) -> Given:
        rows = self.decode_config.batch_size
        return Given(self._runner, self.pieces(), rows, sources, targets)

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
        if config.mbr and config.method.num_hypotheses == 1:
            raise UserError(
                f"decode.mbr={to_text(config.mbr, UTILITIES)} compares several translations of a "
                "sentence, and the method finds one: try "
                "method='sample(num_samples=64, epsilon=0.02)'"
            )
        return config

    def text(self, ids: Ids) -> str:
        """Target ids as text of one line."""
        return self.pieces().text(ids)

    def source_encoder(self, config: DecodeConfig | None = None) -> Callable[[str], list[int]]:
        """A function from a text to the ids that `decode` makes of it, without EOS."""
        return self.pieces(config).source

    @property
    def max_source_length(self) -> int:
        """Longest source, in pieces and EOS, that is not cut."""
        return self.pieces().limit


def _nobody(count: int) -> None:
    """Nobody is told of progress."""
