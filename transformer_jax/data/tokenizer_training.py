"""Trains SentencePiece tokenizers, reproducibly, with errors a user can act on.

Unigram: Kudo 2018 (arXiv:1804.10959). BPE: Sennrich et al. 2016 (arXiv:1508.07909).
"""

import contextlib
import io
import logging
import re
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.language_tags import in_languages, tags_of
from transformer_jax.data.mapped_tokenizer import NO_TAGS, Tags, with_tags
from transformer_jax.data.normalization import CLEAN
from transformer_jax.data.sampling import check_can_sample
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.splits import without_held_out
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers, open_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

# Unigram training sums expected counts per thread, so the pieces depend on the number of
# threads (not on timing). A fixed number gives the same model on every machine.
_TRAINING_THREADS = 4
_USUAL_BYTES = 4192  # SentencePiece leaves out longer lines without a word, unless it is told


def tokenizers_of_text(config: TokenizerConfig, data: DataConfig) -> Tokenizers:
    """The tokenizers of a new run; its default direction decides on their prefixes.

    The text is read where one is trained, and learned from as `sample_of` gives it.

    Args:
        config: see `train_tokenizers`.
        data: the text.

    Raises:
        UserError: as `train_tokenizers`, or the text is damaged.
    """
    sample = sample_of(data, config) if None in given_tokenizers(config) else []
    tokenizers = train_tokenizers(config, sample, tags_of(data))
    return in_languages(data, tokenizers, data.languages)


def sample_of(data: DataConfig, config: TokenizerConfig) -> list[Pair]:
    """The pairs that tokenizers learn from, without tags.

    Filters see the sample alone, not the text that it is drawn from.

    Args:
        data: the text.
        config: how many pairs.

    Raises:
        UserError: the text is damaged.
    """
    texts = (without_held_out(data, corpus, deque()) for corpus in data.parts)
    rows = ((number, pair) for number, text in enumerate(texts) for _, pair in text)
    drawn = draw_sample(rows, max(1, config.max_training_sentences // (2 if config.joint else 1)))
    found: list[Pair] = []
    for number, corpus in enumerate(data.parts):
        pairs = [pair for of_corpus, pair in drawn if of_corpus == number]
        kept = np.ones(len(pairs), bool)
        for judge in data.filters:
            kept &= ~judge.bad(judge.marks(pairs, corpus.direction))
        found += compress(pairs, kept)
    return found


def train_tokenizers(
    config: TokenizerConfig, pairs: Iterable[tuple[str, str]], tags: Tags = NO_TAGS
) -> Tokenizers:
    """The tokenizers that the config gives, or that are trained on the pairs.

    Args:
        config: kind, size, or the paths of given models.
        pairs: (source, target) sentences, iterated once for each tokenizer that is trained.
        tags: pieces of the source vocabulary, the separator also of the target's. They are among
            the `vocab_size` pieces of a tokenizer that is trained, and added to a given one.

    Raises:
        UserError: a given model cannot be used, or the text cannot support the vocabulary.
    """
    source, target = given_tokenizers(config)
    if source is None:
        side = "joint" if config.joint else "source"
        text = chain.from_iterable(pairs) if config.joint else (pair[0] for pair in pairs)
        source = train_tokenizer(config, text, side, len(tags))
    if target is None and not config.joint:
        added = len(tags.of_target)
        target = train_tokenizer(config, (pair[1] for pair in pairs), "target", added)
    source = with_tags(source, tags)
    if config.joint or target is None:
        return Tokenizers(source, source)
    return Tokenizers(source, with_tags(target, tags.of_target))


class Vocabularies(NamedTuple):
    """The vocabularies of a run, before a tokenizer is trained."""

    source: int  #: pieces
    target: int  #: pieces
    trained: int | None  #: the run's `tokenizer.vocab_size`; None if two given models differ in it
    added: tuple[str, ...]  #: the tags and separators that given models lack, or all


def vocabularies(config: TokenizerConfig, tags: Tags = NO_TAGS) -> Vocabularies:
    """Of the tokenizers that this config gives or will train.

    Args:
        config: see `train_tokenizers`.
        tags: the same.

    Raises:
        UserError: a given model cannot be used or is not what the config says, a vocabulary has
            no room for characters, or samples are asked of a kind that gives none.
    """
    given, size = given_tokenizers(config), config.trained_vocab_size
    if config.sampling_alpha and None in given:
        check_can_sample(config.kind)
    missing = tags.missing_in(given[0])
    of_target = tags.of_target.missing_in(given[1])
    added = max(len(missing), len(of_target))
    reserved = 4 + 256 * config.byte_fallback
    if None in given and size <= reserved + added:
        raise UserError(
            f"tokenizer.vocab_size={size} has no room for characters: the 4 special ids "
            f"{'and 256 bytes ' if config.byte_fallback else ''}"
            f"{f'and {added} tags ' if added else ''}take {reserved + added}; raise it"
        )
    source, target = (model.vocab_size if model else size for model in given)
    trained = size if None in given else source if source == target else None
    if given[0]:
        source += len(missing)
        target += len(missing) if config.joint else 0
    if given[1] and not config.joint:
        target += len(of_target)
    return Vocabularies(source, target, trained, tuple(dict.fromkeys((*missing, *of_target))))


def given_tokenizers(config: TokenizerConfig) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The given models of source and target; None of one that is to be trained."""
    paths = config.source_model, config.target_model
    if config.joint:
        if all(paths) and paths[0] != paths[1]:
            raise UserError(
                "tokenizer.joint=True takes one model, but source_model and target_model differ; "
                "give one of them or set tokenizer.joint=False"
            )
        paths = (paths[0] or paths[1],) * 2
    source, target = (open_tokenizer(as_path(path)) if path else None for path in paths)
    if source and target:  # the settings of training have no effect
        _check_settings(config, source)
        _check_settings(config, target)
    return source, target


def _check_settings(config: TokenizerConfig, given: Tokenizer) -> None:
    training = "vocab_size kind byte_fallback character_coverage normalization"
    training += " max_training_sentences"
    for key in training.split():
        value, default = getattr(config, key), getattr(TokenizerConfig, key)
        if value not in (default, getattr(given, key, default)):
            has = f" has {getattr(given, key)}" if hasattr(given, key) else " is trained already"
            raise UserError(
                f"tokenizer.{key}={value} has no effect on a given model, and {given.name}{has}: "
                f"set it to {'none' if default is None else default}"
            )


def train_tokenizer(
    config: TokenizerConfig, sentences: Iterable[str], side: str = "joint", tags: int = 0
) -> Tokenizer:
    """Trains one tokenizer; the same sentences give the same bytes on any machine.

    Args:
        config: kind, vocab_size, byte_fallback, character_coverage, max_training_sentences.
        sentences: the text; at most `max_training_sentences` of it are held in memory.
        side: "joint", "source" or "target", for error messages.
        tags: how many of the `vocab_size` pieces are added later.

    Raises:
        UserError: no text, or a vocabulary the text cannot support (names the limit).
    """
    _LOGGER.info("tokenizer: learning the vocabulary from the training text (%s)", side)
    import sentencepiece

    sample = draw_sample(sentences, config.max_training_sentences)
    if not any(line.strip() for line in sample):
        raise UserError(f"no text to train the {side} tokenizer on: the corpus is empty")
    longest = max(len(line.encode()) for line in sample)
    # An option that is given is in the model, even if its value is the usual one.
    more: dict[str, Any] = {"max_sentence_length": longest} if longest > _USUAL_BYTES else {}
    model = io.BytesIO()
    with _rule(config.normalization) as rule:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sample),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.trained_vocab_size - tags,
                byte_fallback=config.byte_fallback,
                character_coverage=config.character_coverage,
                pad_id=PAD_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                unk_id=UNK_ID,
                num_threads=_TRAINING_THREADS,
                **rule,
                **more,
                minloglevel=2,  # errors come as exceptions; the log would flood the terminal
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(_explain(error, config, side, tags)) from error
    return Tokenizer(_without_rule_file(model.getvalue()), f"the {side} tokenizer")


@contextlib.contextmanager
def _rule(normalization: str) -> Iterator[dict[str, Any]]:
    """The option of SentencePiece's trainer; of `clean` a file, for the time of the block."""
    if normalization != "clean":
        yield {"normalization_rule_name": normalization}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="ascii") as file:
        file.write(CLEAN)
        file.flush()
        yield {"normalization_rule_tsv": file.name}


def _without_rule_file(model: bytes) -> bytes:
    """A SentencePiece model without the name of that file: equal texts give equal bytes."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    if not proto.normalizer_spec.normalization_rule_tsv:
        return model
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    proto.normalizer_spec.name = "clean"
    return bytes(proto.SerializeToString(deterministic=True))


def draw_sample(items: Iterable[T], limit: int) -> list[T]:
    """At most `limit` of the items, uniformly at random, and always the same ones.

    Algorithm R of Vitter 1985. SentencePiece can sample too, but with random numbers that depend
    on the C++ library that it was built with.
    """
    sample: list[T] = []
    random = np.random.Generator(np.random.PCG64(0))
    draws: list[float] = []
    for count, item in enumerate(items):
        if count < limit:
            sample.append(item)
            continue
        draws = draws or random.random(65536).tolist()
        place = int(draws.pop() * (count + 1))
        if place < limit:
            sample[place] = item
    return sample


def _explain(error: Exception, config: TokenizerConfig, side: str, tags: int) -> str:
    message = " ".join(str(error).split())
    key = f"tokenizer.vocab_size={config.trained_vocab_size}"
    if match := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return (
            f"{key} is larger than the {side} text supports; "
            f"the maximum for this corpus is {int(match[1]) + tags}"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        least = int(match[1]) + tags
        return (
            f"{key} is too small for the {side} text: its characters, the 4 special ids "
            f"{'and 256 bytes ' if config.byte_fallback else ''}need at least {least}; "
            "raise it or lower tokenizer.character_coverage"
        )
    return f"cannot train the {side} tokenizer: {message}"
