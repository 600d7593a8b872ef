"""The training text of a run, which is read from its sources once."""

import contextlib
import errno
import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice, repeat
from pathlib import Path
from typing import IO, Self

import numpy as np

from transformer_jax.data.alignments import Line, read_alignments
from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.filters.review import Review
from transformer_jax.data.sources.base import Languages, Numbered, Pair
from transformer_jax.data.splits import by_document, holding_out, read_grouped, without_held_out
from transformer_jax.data.tokenizer_training import draw_sample
from transformer_jax.errors import UserError
from transformer_jax.paths import user_cache

_IN_MEMORY = 1 << 26  # bytes of text; more is spooled to a file
_NO_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)


class TrainingText:
    """The training text of a run without the validation pairs, read from its sources once.

    The first iteration holds out the validation pairs and keeps the others: in memory while the
    text is short, then in a temporary file in the cache folder, which the end of the `with` block
    removes. Later iterations read the copy.

    Args:
        data: where the text is.
        is_new: the text of a new run, which is read in any case: for the tokenizers, and to say
            what filters leave out. Else it is read for what the cache of ids lacks.

    Attributes:
        data: see above.
        cache: the folder of the ids.
    """

    def __init__(self, data: DataConfig, *, is_new: bool = False) -> None:
        self.data, self.is_new = data, is_new
        self.cache = Path(data.cache_dir) if data.cache_dir else user_cache() / "ids"
        self._copy: IO[str] | None = None
        self._kept: list[np.ndarray] = []  # of each corpus: which pairs of the copy are used
        self._held_out: dict[Corpus, list[Numbered]] = {}

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
        return (pair for _, pair in chain.from_iterable(self.corpora()))

    def corpora(self) -> Iterator[Iterator[Numbered]]:
        """The pairs of each corpus, without tags, and of which document each is.

        Each corpus is to be read before the next.

        Raises:
            UserError: as `__iter__`.
        """
        copy = self.read()
        copy.seek(0)
        for kept in self._kept:
            lines = compress(islice(copy, len(kept)), kept)
            yield ((number, (source, target)) for number, source, target in map(json.loads, lines))

    def sample(self, config: TokenizerConfig) -> Iterable[Pair]:
        """The pairs that tokenizers are trained on; each iteration may raise as `__iter__`."""

        def draw() -> Iterator[Pair]:
            copy = self.read()
            copy.seek(0)
            corpora = (repeat(n, len(kept)) for n, kept in enumerate(self._kept))
            lines = zip(chain.from_iterable(corpora), copy, strict=True)
            drawn = draw_sample(lines, pairs_to_learn_from(config))
            return without_bad([(n, _pair(line)) for n, line in drawn], self.data)

        return Repeatable(draw)

    def links(self) -> Iterator[Iterator[Line]]:
        """The word alignments of the pairs of `corpora`, from the sources' files.

        An empty line for each pair of a corpus that has none.

        Raises:
            UserError: as `__iter__`, or the files have not a line for each pair.
        """
        self.read()
        for kept, corpus in zip(self._kept, self.data.parts, strict=True):
            files = corpus.source.alignments
            if not files:
                yield repeat(("", ""), int(kept.sum()))
                continue
            pairs = len(kept) + len(self._held_out[corpus])
            count = sum(1 for _ in read_alignments(files))
            if count != pairs:
                raise UserError(
                    f"{', '.join(files)}: {count:,} lines of word alignments for {pairs:,} pairs: "
                    "give a line for each pair of the training text, an empty one where no words "
                    "are linked"
                )
            yield compress(islice(read_alignments(files), pairs), kept)

    def validation(self, limit: int, direction: Languages | None = None) -> list[list[Pair]]:
        """The first pairs of a direction's validation set, which is read to find mistakes.

        Those of each document are together; all are, if sources do not tell where documents end.

        Args:
            limit: how many pairs.
            direction: default: `data.languages`.

        Raises:
            UserError: there is no validation set, or its text is damaged.
        """
        holding = holding_out(self.data, direction or self.data.languages)
        if self.is_new and holding:
            self.read()
            documents = by_document(self._held_out[holding])
        else:
            documents = read_grouped(self.data, "validation", direction)
        first: list[list[Pair]] = []
        for document in documents:  # reads to the end
            if limit > 0:
                first.append(document[:limit])
            limit -= len(document)
        return first

    def read(self) -> IO[str]:
        """The copy of the text, which is made on the first call.

        Raises:
            UserError: as `__iter__`.
        """
        if self._copy:
            return self._copy
        kept: list[np.ndarray] = []
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as on_failure:
                copy = on_failure.enter_context(
                    tempfile.SpooledTemporaryFile(
                        _IN_MEMORY, mode="w+", encoding="utf-8", newline="\n", dir=str(self.cache)
                    )
                )
                for name, corpus in zip(self.data.names, self.data.parts, strict=True):
                    held_out: deque[Numbered] = deque()
                    review = Review(self.data.filters, corpus.direction)
                    for number, pair in review.seen(without_held_out(self.data, corpus, held_out)):
                        copy.write(json.dumps((number, *pair), ensure_ascii=False) + "\n")
                    kept.append(review.kept(name))
                    self._held_out[corpus] = list(held_out)
                on_failure.pop_all()
        except OSError as error:
            raise cannot_write(self.cache, error) from None
        self._copy, self._kept = copy, kept
        return copy


@dataclass(frozen=True)
class Repeatable:
    """Pairs that are made anew by each iteration."""

    make: Callable[[], Iterator[Pair]]

    def __iter__(self) -> Iterator[Pair]:
        """The pairs."""
        return self.make()


def _pair(line: str) -> Pair:
    _, source, target = json.loads(line)
    return source, target


def pairs_to_learn_from(config: TokenizerConfig) -> int:
    """How many pairs a tokenizer is trained on at most."""
    return max(1, config.max_training_sentences // (2 if config.joint else 1))


def without_bad(rows: Sequence[tuple[int, Pair]], data: DataConfig) -> Iterator[Pair]:
    """The pairs of a sample without those that filters leave out, which see the sample alone.

    Args:
        rows: the number of each pair's corpus, and the pair.
        data: the corpora.
    """
    for number, corpus in enumerate(data.parts):
        pairs = [pair for of_corpus, pair in rows if of_corpus == number]
        kept = np.ones(len(pairs), bool)
        for judge in data.filters:
            kept &= ~judge.bad(judge.marks(pairs, corpus.direction))
        yield from compress(pairs, kept)


def cannot_write(cache_dir: Path, error: OSError) -> Exception:
    """What to raise for an error in writing the cache: a UserError where the user can help."""
    if error.errno not in _NO_WRITE:
        return error
    return UserError(
        f"cannot write the id cache in {cache_dir}: {error.strerror}; "
        "free some space or set data.cache_dir to another folder"
    )
