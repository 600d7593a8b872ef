"""Texts as ids and back, by the tokenizers of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_jax.data.language_tags import towards
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.translation.documents import Room
from transformer_jax.translation.model import Model
from transformer_jax.vocabulary import EOS_ID, UNK_ID

#: A sentence: a text, or ids without EOS.
Sentence = str | Sequence[int]
Sentences = Sequence[Sentence]
#: The first pieces of a target: one text for all sentences, or for each a text or ids.
Prefixes = str | Sentences

_LINE_ENDS = str.maketrans("\r\n", "  ")


@dataclass(frozen=True)
class Pieces:
    """What a model reads and writes, in the languages of a config.

    Attributes:
        tokenizers: with the tags of these languages.
        limit: the length from which a sentence is cut, EOS included.
        num_targets: the size of the target vocabulary.
        allow_unk: prefixes may hold what the vocabulary lacks.
    """

    tokenizers: Any
    limit: int
    num_targets: int
    allow_unk: bool

    def source(self, given: Sentence) -> list[int]:
        """The ids of a source without EOS; none of a text without a letter."""
        if not isinstance(given, str):
            return list(given)
        return list(self.tokenizers.source.encode(given)) if given.strip() else []

    def source_text(self, given: Sentence) -> str:
        """The text of a source."""
        return given if isinstance(given, str) else str(self.tokenizers.source.decode(given))

    def target(self, given: Sentence, with_prefix: bool = True) -> list[int]:
        """The ids of a text in the target language, or those given.

        Raises:
            UserError: an id is not that of a piece.
        """
        if isinstance(given, str):
            tokenizer = self.tokenizers.target
            ids = tokenizer.encode(given) if given else tokenizer.prefix  # most calls have no text
            return list(ids[0 if with_prefix else len(tokenizer.prefix) :])
        ids = [int(i) for i in given]
        for i in ids:
            if not EOS_ID < i < self.num_targets:
                raise UserError(
                    f"target id {i} is not a piece: they are {EOS_ID + 1} to {self.num_targets - 1}"
                )
        return ids

    def prefixes(self, given: Prefixes, count: int) -> list[list[int]]:
        """The ids of the prefix of each of `count` sentences.

        Raises:
            UserError: there are not as many, or one is too long or has what the vocabulary lacks.
        """
        each, times = ([given], count) if isinstance(given, str) else (given, 1)
        prefixes = [self.target(prefix) for prefix in each] * times
        if len(prefixes) != count:
            raise UserError(f"target_prefix: {len(prefixes)} prefixes for {count} sentences")
        if not self.allow_unk:
            _check_known(each, self.tokenizers.target.encode)
        for number, prefix in enumerate(prefixes, start=1):
            if len(prefix) >= self.limit:
                raise UserError(
                    f"target_prefix of sentence {number}: {len(prefix)} pieces, at most "
                    f"{self.limit - 1} fit"
                )
        return prefixes

    def room(self, config: DecodeConfig) -> Room | None:
        """How long the blocks of documents are; None where the model knows no blocks."""
        separators = self.tokenizers.source.separator, self.tokenizers.target.separator
        if None in separators:
            return None
        block = min(config.block_tokens or self.limit, self.limit)
        share = block // 4 if config.context_tokens is None else config.context_tokens
        context = min(share, block - 2)
        return Room(block, context, separators, self.limit, config.block_sentences)

    def text(self, ids: Sequence[int]) -> str:
        """Target ids as text. Byte pieces can spell a line end, but a translation is one line."""
        text: str = self.tokenizers.target.decode(ids)
        return text.translate(_LINE_ENDS)


def pieces_of(tokenizers: Any, config: DecodeConfig, model: Model) -> Pieces:
    """The pieces of a model in the languages that a config names.

    Raises:
        UserError: the model has no tag for one of them.
    """
    languages = config.source_language, config.target_language
    tagged = towards(tokenizers, *languages) if any(languages) else tokenizers
    limit = min(config.max_source_length, model.max_length)
    return Pieces(tagged, limit, model.target_vocab_size, config.allow_unk)


def _check_known(prefixes: Sentences, encode: Callable[[str], Sequence[int]]) -> None:
    """Raises UserError where a prefix has what the vocabulary lacks."""
    for prefix in filter(len, prefixes):
        if UNK_ID in (encode(prefix) if isinstance(prefix, str) else prefix):
            words = prefix.split() if isinstance(prefix, str) else ()
            lacking = " ".join(word for word in words if UNK_ID in encode(word)) or prefix
            raise UserError(
                f"target_prefix={prefix}: the model's vocabulary lacks {lacking}, so no "
                "translation can begin so"
            )
