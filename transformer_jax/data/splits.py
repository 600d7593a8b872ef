"""What the text of a `DataConfig` consists of: directions, splits, and what is held out.

All functions are pure functions of the config; they read the text, and remember nothing of it.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice, repeat
from operator import itemgetter

from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.draws import Draws, seed_of
from transformer_jax.data.filters.registry import FILTERS
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.noise.registry import NOISES
from transformer_jax.data.sources.base import (
    BOUNDARY,
    SPLITS,
    Languages,
    Numbered,
    Pair,
    Split,
)
from transformer_jax.errors import UserError
from transformer_jax.settings.file_names import absolute_names
from transformer_jax.settings.variants import kind_of, to_text


def resolve(data: DataConfig) -> DataConfig:
    """`data` with all languages set and absolute file names.

    Raises:
        UserError: a language is neither set nor known to the source; or there are to be blocks,
            and a source does not tell where documents end.
    """
    data = absolute_names(data)
    source_language, target_language = data.languages
    if data.blocks:
        for corpus in data.parts:
            check_documents(corpus, "data.blocks")
    return replace(
        data,
        corpora=data.parts if data.corpora else (),
        source_language=source_language,
        target_language=target_language,
    )


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
        data: the text; the languages of one source need not be known.
        split: which part of it.
        direction: of which languages; default: `data.languages`.

    Raises:
        UserError: the config names the split, and it cannot be read.
    """
    if direction or data.corpora:
        return bool(_readable(data, split, direction or data.languages))
    held_out = split == "validation" and data.validation_from_train is not None
    return data.source.has(split) or held_out


def lacks_own_validation(data: DataConfig) -> bool:
    """Whether a trained direction has no validation set, so that one can be held out."""
    return any(_holding_corpus(data, direction) for direction in data.directions)


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
    corpora = _existing(data, split, direction or data.languages)
    rows = chain.from_iterable(_read(data, corpus, split) for corpus in corpora)
    return (pair for _, pair in rows)


def read_documents(
    data: DataConfig, split: Split, direction: Languages | None = None
) -> Iterator[list[Pair]]:
    """Yields the pairs of `read_pairs`, those of each document together; none is empty.

    What is held out by `validation_from_train` may begin within a document.

    Raises:
        UserError: as `read_pairs`, or a source does not tell where documents end.
    """
    for corpus in _existing(data, split, direction or data.languages):
        check_documents(corpus, f"the documents of the {split} set")
    yield from read_grouped(data, split, direction)


def read_grouped(
    data: DataConfig, split: Split, direction: Languages | None = None
) -> Iterator[list[Pair]]:
    """As `read_documents`; pairs of a source without documents are all together.

    Raises:
        UserError: as `read_pairs`.
    """
    for corpus in _existing(data, split, direction or data.languages):
        for _, document in groupby(_read(data, corpus, split), itemgetter(0)):
            yield [pair for _, pair in document]


def first_documents(
    data: DataConfig, split: Split, limit: int, direction: Languages | None = None
) -> list[list[Pair]]:
    """The first pairs of `read_grouped`, so many at most. All is read, to find mistakes.

    Raises:
        UserError: as `read_pairs`.
    """
    first: list[list[Pair]] = []
    for document in read_grouped(data, split, direction):
        if limit > 0:
            first.append(document[:limit])
        limit -= len(document)
    return first


def check_documents(corpus: Corpus, needed_for: str) -> None:
    """Checks that the source of a corpus tells where documents end.

    Raises:
        UserError: it doesn't; the message begins with `needed_for`.
    """
    if not corpus.source.has_documents:
        remedy = "set its option data.source.documents"
        if not hasattr(corpus.source, "documents"):
            remedy = "take another source, such as files with documents=true"
        raise UserError(
            f"{needed_for}: the source of {'-'.join(corpus.direction)} does not tell where "
            f"documents end: {remedy}"
        )


def _read(data: DataConfig, corpus: Corpus, split: Split) -> Iterator[Numbered]:
    """The pairs of one corpus."""
    if not _num_held_out(data, corpus, split):
        return in_direction(corpus, split)
    held_out: deque[Numbered] = deque()
    train = without_held_out(data, corpus, held_out)
    if split == "train":
        return train
    deque(train, maxlen=0)  # reads to the end
    return iter(held_out)


def without_held_out(
    data: DataConfig, corpus: Corpus, held_out: deque[Numbered]
) -> Iterator[Numbered]:
    """Yields the pairs of a corpus to train on; at their end, `held_out` has the others.

    Raises:
        UserError: as `read_pairs`; or no pair is left; or a file is there twice, so that its first
            time has what the last one holds out.
    """
    count, total = _num_held_out(data, corpus, "train"), 0
    for total, pair in enumerate(in_direction(corpus, "train"), start=1):
        held_out.append(pair)
        if total > count:
            yield held_out.popleft()
    if count and total <= count:
        raise UserError(
            f"data.validation_from_train={count}: the training text has only {total} pairs, "
            "so none would be left to train on"
        )
    # Not before: now the digests are known, and no file is read again.
    files = [key for key, _ in corpus.source.texts(corpus.sides)] if count else []
    if len(set(files)) < len(files):
        name = data.names[data.parts.index(corpus)]
        raise UserError(
            f"data.validation_from_train={count}: corpus {name} has a file twice, so it would "
            "train on held-out pairs: name each once, or give a validation set"
        )


def in_direction(corpus: Corpus, split: Split) -> Iterator[Numbered]:
    """The pairs of a corpus, and of which document each is. No boundary gets further than here.

    Raises:
        UserError: there is no such split, or the text is damaged.
    """
    pairs = corpus.source.pairs(split, corpus.sides)
    if corpus.reverse:
        pairs = ((target, source) for source, target in pairs)
    rows = _numbered(pairs) if corpus.source.has_documents else zip(repeat(0), pairs)
    for place, each in enumerate(corpus.noise):
        rows = _changed(rows, each, f"{place} {to_text(each, NOISES)}")
    return rows


def _changed(rows: Iterator[Numbered], noise: Noise, key: str) -> Iterator[Numbered]:
    """The pairs with one noise, which depends on the key and on the number of the pair."""
    for number, (document, pair) in enumerate(rows):
        yield document, noise(pair, Draws(seed_of(f"{key} {number}")))


def _numbered(pairs: Iterable[Pair]) -> Iterator[Numbered]:
    number = 0
    for pair in pairs:
        if pair == BOUNDARY:
            number += 1
        else:
            yield number, pair


def count_pairs(data: DataConfig, most: int) -> int:
    """The pairs of all training texts, with those that are held out or that filters leave out.

    Args:
        data: the text.
        most: reading ends there.

    Raises:
        UserError: the text is damaged.
    """
    pairs = chain.from_iterable(in_direction(corpus, "train") for corpus in data.parts)
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
    count = _num_held_out(data, corpus, split)
    key = corpus.source.fingerprint("train" if count else split, corpus.sides)
    if corpus.reverse:
        key = _hash(f"{key} reversed")
    if corpus.noise:
        key = _hash(f"{key} with {[to_text(each, NOISES) for each in corpus.noise]}")
    if count:
        key = _hash(f"{key} {split}: without or of the last {count}")
    if split == "train" and data.filters:
        filters = [{"kind": kind_of(each, FILTERS)} | each.key() for each in data.filters]
        key = _hash(f"{key} without {json.dumps(filters, sort_keys=True)}")
    return key


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _num_held_out(data: DataConfig, corpus: Corpus, split: Split) -> int:
    """How many pairs at the end of a corpus's training text the split is without, or is.

    Other corpora of the same text hold them out too, so that they are never trained on. Texts are
    the same by their content, whatever their names and however they are used.

    Raises:
        UserError: a corpus would train on held-out pairs: it has some of the text, or in another
            order.
    """
    count = data.validation_from_train
    if not count or split == "test":
        return 0
    if split == "validation" and _holding_corpus(data, corpus.direction) is None:
        return 0
    found = 0
    for holding in filter(None, (_holding_corpus(data, each) for each in data.directions)):
        if corpus.source == holding.source:  # nothing is to be read
            found = count
            continue
        texts, own = (each.source.texts(each.sides) for each in (holding, corpus))
        if own == texts:
            found = count
        elif shared := {key for key, _ in texts}.intersection(key for key, _ in own):
            one, other = (data.names[data.parts.index(each)] for each in (corpus, holding))
            raise UserError(
                f"data.validation_from_train={count}: the last pairs of corpus {other} are held "
                f"out, and corpus {one} would train on them: {len(shared)} of its files are the "
                "same, but it has others too, or reads them in another way. Give both the same "
                "files (others can be a corpus of their own) and options, or a validation set"
            )
    return found


def holding_out(data: DataConfig, direction: Languages) -> Corpus | None:
    """The corpus of a direction whose last pairs are its validation set; None: it has another."""
    return _holding_corpus(data, direction) if data.validation_from_train else None


def _holding_corpus(data: DataConfig, direction: Languages) -> Corpus | None:
    corpora = _scored(data, direction)
    has_own = any(each.source.has("validation") for each in corpora)
    return None if has_own else next(iter(corpora), None)


def _scored(data: DataConfig, direction: Languages) -> list[Corpus]:
    return [each for each in data.parts if each.direction == direction and each.is_scored]


def _readable(data: DataConfig, split: Split, direction: Languages) -> list[Corpus]:
    """The corpora whose pairs are the split of a direction."""
    if split == "train":
        return [each for each in data.parts if each.direction == direction]
    if split == "validation" and (holding := holding_out(data, direction)):
        return [holding]
    return [each for each in _scored(data, direction) if each.source.has(split)]


def _existing(data: DataConfig, split: Split, direction: Languages) -> list[Corpus]:
    """As `_readable`; where there are none, the one whose source says why.

    Raises:
        UserError: no corpus is meant.
    """
    corpora = _readable(data, split, direction) or _scored(data, direction)[:1]
    if not corpora:
        known = ", ".join("-".join(each) for each in data.directions)
        raise UserError(
            f"no {split} set of {'-'.join(direction)}: the directions of the text are {known}, and "
            "a corpus with a tag or noise is only trained on"
        )
    return corpora
