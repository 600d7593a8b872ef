"""The text that a `DataConfig` describes: what is the same for all sources."""

import contextlib
import hashlib
import json
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from pathlib import Path
from typing import IO, Self

import numpy as np

from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.corpus import IdCorpus, cannot_write, prepare_ids
from transformer_jax.data.filters.review import Review
from transformer_jax.data.language_tags import Tags, towards
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sources.base import (
    SPLITS,
    Languages,
    Pair,
    Split,
    absolute_name,
)
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.data.tokenizer_training import train_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.paths import user_cache

_IN_MEMORY = 1 << 26  # bytes of text; more is spooled to a file


def resolve(data: DataConfig) -> DataConfig:
    """`data` with all languages set and absolute file names.

    Raises:
        UserError: a language is neither set nor known to the source.
    """
    source_language, target_language = data.languages
    corpora = data.parts if data.corpora else ()
    return replace(
        data,
        source=data.source.absolute(),
        corpora=tuple(replace(corpus, source=corpus.source.absolute()) for corpus in corpora),
        source_language=source_language,
        target_language=target_language,
        cache_dir=absolute_name(data.cache_dir) if data.cache_dir else None,
    )


def tags_of(data: DataConfig) -> Tags:
    """The tags that the source vocabulary needs: of several target languages, and of corpora."""
    targets = dict.fromkeys(target for _, target in data.directions)
    others = dict.fromkeys(corpus.tag for corpus in data.parts if corpus.tag)
    return Tags(tuple(targets) if len(targets) > 1 else (), tuple(others))


def visit_rates(data: DataConfig, sizes: Sequence[int]) -> list[float]:
    """How often a pair of each corpus is seen in an epoch, on average.

    It is weight * (pairs / most pairs of a corpus) ^ (1 / temperature - 1), so that the share of
    a corpus is proportional to weight * pairs ^ (1 / temperature) (Arivazhagan et al. 2019,
    arXiv:1907.05019).

    Args:
        data: the weights and the temperature.
        sizes: pairs of each corpus.
    """
    largest = max(*sizes, 1)
    exponent = 1 / data.temperature - 1
    return [
        corpus.weight * (max(size, 1) / largest) ** exponent
        for corpus, size in zip(data.parts, sizes, strict=True)
    ]


def has_split(data: DataConfig, split: Split, direction: Languages | None = None) -> bool:
    """Whether `read_pairs` can read the split; a TFDS set may have to be prepared first.

    Args:
        data: the text, whose languages need not be known.
        split: which part of it.
        direction: of which languages; default: of any.

    Raises:
        UserError: the config names the split, and it cannot be read.
    """
    if direction:
        return bool(_readable(data, split, direction))
    sources = [corpus.source for corpus in data.corpora if not corpus.tag] or [data.source]
    held_out = split == "validation" and data.validation_from_train is not None
    return any([source.has(split) for source in sources]) or held_out


def directions_with(data: DataConfig, split: Split) -> list[Languages]:
    """The trained directions that have the split.

    Raises:
        UserError: as `has_split`.
    """
    return [each for each in data.directions if has_split(data, split, each)]


def check_splits(data: DataConfig) -> None:
    """Checks before training that the splits that the config names can be read.

    Raises:
        UserError: it can't.
    """
    for corpus in data.parts:
        for split in SPLITS:
            corpus.source.has(split)


def read_pairs(
    data: DataConfig, split: Split, direction: Languages | None = None
) -> Iterator[Pair]:
    """Yields the (source, target) sentences of a split, always in the same order.

    With `validation_from_train`, and where no corpus of the direction has a validation set, the
    last pairs of its first corpus are the validation set, and "train" is without them. It has
    the pairs that filters leave out.

    Args:
        data: the text.
        split: which part of it.
        direction: the languages to translate from and into; default: `data.languages`.

    Raises:
        UserError: there is no such split, or the text is damaged.
    """
    direction = direction or data.languages
    corpora = _existing(data, split, direction)
    return chain.from_iterable(_read(data, corpus, split) for corpus in corpora)


def _read(data: DataConfig, corpus: Corpus, split: Split) -> Iterator[Pair]:
    """The pairs of one corpus."""
    count = _num_held_out(data, corpus)
    if split == "train":
        return _without_held_out(data, corpus, deque())
    if split == "test" or not count:
        return _in_direction(corpus, split)
    known = _HELD_OUT.get(_held_out_key(data, corpus)) if _HELD_OUT else None  # it takes time
    if known is None:
        last: deque[Pair] = deque()
        deque(_all_but_last(_in_direction(corpus, "train"), count, last), maxlen=0)
        known = list(last)
    return iter(known)


def _without_held_out(data: DataConfig, corpus: Corpus, held_out: deque[Pair]) -> Iterator[Pair]:
    """The pairs to train on; those held out are then in `held_out`."""
    return _all_but_last(_in_direction(corpus, "train"), _num_held_out(data, corpus), held_out)


def _in_direction(corpus: Corpus, split: Split) -> Iterator[Pair]:
    pairs = corpus.source.pairs(
        split, corpus.direction[::-1] if corpus.reverse else corpus.direction
    )
    return ((target, source) for source, target in pairs) if corpus.reverse else pairs


def count_pairs(data: DataConfig, most: int) -> int:
    """The pairs of all training texts, with those that are held out or that filters leave out.

    Args:
        data: the text.
        most: reading ends there.

    Raises:
        UserError: the text is damaged.
    """
    pairs = chain.from_iterable(_in_direction(corpus, "train") for corpus in data.parts)
    return sum(1 for _ in islice(pairs, most))


def fingerprint(data: DataConfig, split: Split, direction: Languages | None = None) -> str:
    """A key of the content of a split, for caches: 64 hexadecimal digits.

    Args:
        data: the text.
        split: which part of it.
        direction: of which languages; default: all of "train", else `data.languages`.
    """
    corpora = list(data.parts)
    if split != "train" or direction:
        corpora = _existing(data, split, direction or data.languages)
    keys = [_corpus_fingerprint(data, corpus, split) for corpus in corpora]
    return keys[0] if len(keys) == 1 else _hash("\n".join(keys))


def _corpus_fingerprint(data: DataConfig, corpus: Corpus, split: Split) -> str:
    count = 0 if split == "test" else _num_held_out(data, corpus)
    languages = corpus.direction[::-1] if corpus.reverse else corpus.direction
    key = corpus.source.fingerprint("train" if count else split, languages)
    if corpus.reverse:
        key = _hash(f"{key} reversed")
    if count:
        key = _hash(f"{key} {split}: without or of the last {count}")
    if split == "train" and data.filters:
        key = _hash(f"{key} without {data.filters!r}")
    return key


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class TrainingText:
    """The training text of a run without the validation pairs, read from its sources once.

    The first iteration holds out the validation pairs and keeps the others: in memory while the
    text is short, then in a temporary file in the cache folder, which the end of the `with` block
    removes. Later iterations read the copy.

    Args:
        data: where the text is.
        tokenizer: how to train the tokenizers; None: they exist already.
    """

    def __init__(self, data: DataConfig, tokenizer: TokenizerConfig | None = None) -> None:
        self._data, self._tokenizer = data, tokenizer
        self._cache = Path(data.cache_dir) if data.cache_dir else user_cache() / "ids"
        self._copy: IO[str] | None = None
        self._kept: list[np.ndarray] = []  # of each corpus: which pairs of the copy are used

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._copy:
            self._copy.close()

    def __iter__(self) -> Iterator[Pair]:
        """The pairs of all corpora, without tags.

        Raises:
            UserError: the text is damaged, or the cache folder cannot be written.
        """
        copy = self._read()
        copy.seek(0)
        for kept in self._kept:
            for line in compress(islice(copy, len(kept)), kept):
                source, target = json.loads(line)
                yield source, target

    def validation(self, limit: int, direction: Languages | None = None) -> list[Pair]:
        """The first pairs of a direction's validation set, which is read to find mistakes.

        Args:
            limit: how many pairs.
            direction: default: `data.languages`.

        Raises:
            UserError: there is no validation set, or its text is damaged.
        """
        direction = direction or self._data.languages
        if self._tokenizer and _holding_out(self._data, direction):
            self._read()
        pairs = read_pairs(self._data, "validation", direction)
        first = list(islice(pairs, limit))
        deque(pairs, maxlen=0)  # reads to the end
        return first

    def tokenizers(self) -> Tokenizers:
        """The tokenizers that the config gives, or trained ones.

        Their prefixes are the tags of `data.languages`, where the run has several directions.

        Raises:
            UserError: the text is damaged, or cannot support the vocabulary.
        """
        if self._tokenizer is None:
            raise ValueError("this text was opened without a tokenizer config")
        made = train_tokenizers(self._tokenizer, self, tags_of(self._data))
        return in_languages(self._data, made, self._data.languages)

    def ids(
        self, tokenizers: Tokenizers, sampler: SubwordSampler | None, *, progress: bool = False
    ) -> IdCorpus:
        """The text as ids, which is read only for what the cache lacks; see `prepare_ids`.

        Raises:
            UserError: the text is damaged, or the cache cannot be written.
        """
        if self._data.filters and self._tokenizer:
            self._read()  # so that a new run says what is left out
        tags = [_text_tags(self._data, corpus, tokenizers) for corpus in self._data.parts]
        key = fingerprint(self._data, "train")
        if any(map(any, tags)):
            key = _hash(f"{key} {tags}")
        return prepare_ids(
            self._tagged(tags),
            tokenizers,
            self._cache,
            key,
            sampler=sampler,
            progress=progress,
        )

    def _tagged(self, tags: Sequence[tuple[str, str]]) -> Iterator[Iterator[Pair]]:
        """The pairs of each corpus, with its tags before source and target."""
        pairs = iter(self)
        self._read()
        for kept, (source_tags, target_tags) in zip(self._kept, tags, strict=True):
            yield (
                (source_tags + source, target_tags + target)
                for source, target in islice(pairs, int(kept.sum()))
            )

    def _read(self) -> IO[str]:
        """The copy of the text, which is made on the first call."""
        if self._copy:
            return self._copy
        held_out: dict[str, list[Pair]] = {}
        kept: list[np.ndarray] = []
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as on_failure:
                copy = on_failure.enter_context(
                    tempfile.SpooledTemporaryFile(
                        _IN_MEMORY, mode="w+", encoding="utf-8", newline="\n", dir=str(self._cache)
                    )
                )
                for name, corpus in zip(self._data.names, self._data.parts, strict=True):
                    last: deque[Pair] = deque()
                    review = Review(self._data.filters, corpus.direction)
                    for pair in review.seen(_without_held_out(self._data, corpus, last)):
                        copy.write(json.dumps(pair, ensure_ascii=False) + "\n")
                    kept.append(review.kept(name))
                    if last:
                        held_out[_held_out_key(self._data, corpus)] = list(last)
                on_failure.pop_all()
        except OSError as error:
            raise cannot_write(self._cache, error) from None
        self._copy, self._kept = copy, kept
        _HELD_OUT.clear()
        _HELD_OUT.update(held_out)
        return copy


#: Held-out pairs of the last text that was read, by their fingerprint. A run shows translations
#: of some of them after training, without reading the text again.
_HELD_OUT: dict[str, list[Pair]] = {}


def _held_out_key(data: DataConfig, corpus: Corpus) -> str:
    return _corpus_fingerprint(data, corpus, "validation")


def _num_held_out(data: DataConfig, corpus: Corpus) -> int:
    """How many pairs at the end of a corpus's training text are a validation set.

    Other corpora of the same text hold them out too, so that they are never trained on.
    """
    if not data.validation_from_train:
        return 0
    holding = (_holding_out(data, direction) for direction in data.directions)
    same = any(each is not None and each.source == corpus.source for each in holding)
    return data.validation_from_train if same else 0


def _holding_out(data: DataConfig, direction: Languages) -> Corpus | None:
    """The corpus of a direction whose last pairs are its validation set; None: it has another."""
    corpora = _untagged(data, direction)
    if not data.validation_from_train or any(each.source.has("validation") for each in corpora):
        return None
    return next(iter(corpora), None)


def _untagged(data: DataConfig, direction: Languages) -> list[Corpus]:
    return [each for each in data.parts if each.direction == direction and not each.tag]


def _readable(data: DataConfig, split: Split, direction: Languages) -> list[Corpus]:
    """The corpora whose pairs are the split of a direction."""
    if split == "train":
        return [each for each in data.parts if each.direction == direction]
    if split == "validation" and (holding := _holding_out(data, direction)):
        return [holding]
    return [each for each in _untagged(data, direction) if each.source.has(split)]


def _existing(data: DataConfig, split: Split, direction: Languages) -> list[Corpus]:
    """As `_readable`; where there are none, the one whose source says why.

    Raises:
        UserError: no corpus is meant.
    """
    corpora = _readable(data, split, direction) or _untagged(data, direction)[:1]
    if not corpora:
        known = ", ".join("-".join(each) for each in data.directions)
        raise UserError(
            f"no {split} set of {'-'.join(direction)}: the directions of the text are {known}, and "
            "a corpus with a tag is only trained on"
        )
    return corpora


def in_languages(data: DataConfig, tokenizers: Tokenizers, direction: Languages) -> Tokenizers:
    """The tokenizers whose prefixes are the tags of a direction, where the run has several."""
    has_tags = tokenizers.target.prefix or tags_of(data).languages
    return towards(tokenizers, *direction) if has_tags and len(data.directions) > 1 else tokenizers


def _text_tags(data: DataConfig, corpus: Corpus, tokenizers: Tokenizers) -> tuple[str, str]:
    """What to put before each source and target of a corpus; "" where that is the prefix."""
    needed = in_languages(data, tokenizers, corpus.direction)
    found = []
    for side, own in (("source", corpus.tag), ("target", "")):
        new, old = (getattr(each, side) for each in (needed, tokenizers))
        explicit = own or new.prefix != old.prefix
        found.append(own + "".join(new.pieces(new.prefix)) + " " if explicit else "")
    return found[0], found[1]


def _all_but_last(pairs: Iterator[Pair], count: int, last: deque[Pair]) -> Iterator[Pair]:
    """Yields all pairs but the last `count`, which are then in `last`."""
    total = 0
    for total, pair in enumerate(pairs, start=1):
        last.append(pair)
        if total > count:
            yield last.popleft()
    if count and total <= count:
        raise UserError(
            f"data.validation_from_train={count}: the training text has only {total} pairs, "
            "so none would be left to train on"
        )
