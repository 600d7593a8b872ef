"""The way from a training text to ids, in parts.

A text is read from its sources a part at a time. Of each part there are the ids of its sentences
and what filters note about its pairs. Once all parts are there, it is known which pairs are used,
and the ids of these are an entry of the cache (`id_files.py`). A training makes the parts one after
the other; `transformer-jax prepare` makes them in as many processes as there are.
"""

import functools
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from tqdm import tqdm

from transformer_jax.data.alignments import Links, parse, piece_links, read_alignments
from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.filters.review import Review
from transformer_jax.data.id_files import (
    FLAG,
    Part,
    corpus_of,
    entry_name,
    read_entry,
    with_offsets,
    write_entry,
)
from transformer_jax.data.language_tags import text_tags
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import Arrays, IdCorpus, flat
from transformer_jax.data.sources.base import Numbered, Pair
from transformer_jax.data.sources.files import file_digest
from transformer_jax.data.sources.prepared import corpus_folder, part_folder
from transformer_jax.data.splits import fingerprint, without_held_out
from transformer_jax.data.tokenizer import SEPARATOR, SIDES, Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.paths import damaged, made, stage, user_cache
from transformer_jax.vocabulary import EOS_ID

#: The number of a pair's document, the pair without tags, and the links between its words.
Row = tuple[int, Pair, Sequence[tuple[int, int]]]

#: Pairs of a part that a training makes.
PART_PAIRS = 100_000

_LOGGER = logging.getLogger(__name__)
_CHUNK = 10_000  # pairs encoded at a time; the text in memory is bounded by it
_PLANNING_SAMPLES = 2  # segmentations drawn per sentence to estimate the length of samples

#: The arrays that have so many values for each pair as an array of lengths says.
_VALUES = {
    f"{side}_{lengths}": (f"{side}_{values}",)
    for side in SIDES
    for lengths, values in (("lengths", "ids"), ("text_lengths", "text"))
} | {"links_lengths": ("links_source", "links_target")}


@dataclass(frozen=True)
class Encoder:
    """Makes a text into ids.

    Attributes:
        data: what the text is, and how it is used.
        tokenizers: of both sides.
        sampler: with it, the text is stored as well, and lengths with room for samples.
    """

    data: DataConfig
    tokenizers: Tokenizers
    sampler: SubwordSampler | None = None

    @functools.cached_property
    def is_aligned(self) -> bool:
        """Whether links between pieces are stored, too."""
        return any(corpus.source.alignments for corpus in self.data.parts)

    @property
    def joined(self) -> bool:
        """Whether the ids of a sentence end with a separator, or with EOS: they are for blocks."""
        return bool(self.data.blocks)

    def entry(self) -> str:
        """The name of the text's entry in the cache."""
        tags = [text_tags(self.data, corpus, self.tokenizers) for corpus in self.data.parts]
        key = fingerprint(self.data, "train")
        if any(map(any, tags)):
            key = hashlib.sha256(f"{key} {tags}".encode()).hexdigest()
        if self.is_aligned:
            files = [corpus.source.alignments for corpus in self.data.parts]
            digests = [list(map(file_digest, each)) for each in files]
            key = hashlib.sha256(f"{key} words aligned by {digests}".encode()).hexdigest()
        alpha = self.sampler.alpha if self.sampler else None
        return entry_name(self.tokenizers, key, alpha, self.joined)

    def arrays(self, corpus: Corpus, review: Review, rows: Sequence[Row]) -> Arrays:
        """The arrays of some pairs of a corpus. What a pair adds does not depend on the others.

        Beside the ids, `documents` has the number of each pair's document, and `notes_I` what the
        filter I of the review notes.
        """
        tags = text_tags(self.data, corpus, self.tokenizers)
        tagged = [(tags[0] + source, tags[1] + target) for _, (source, target), _ in rows]
        arrays = self.encoded(tagged)
        if self.is_aligned:
            before = [len(tag.split()) for tag in tags]
            links = [[(before[0] + s, before[1] + t) for s, t in each] for _, _, each in rows]
            arrays |= _encoded_links(tagged, links, self.tokenizers)
        if self.joined:
            arrays["documents"] = np.array([number for number, _, _ in rows], "<i8")
        notes = review.marks([pair for _, pair, _ in rows])
        return arrays | {f"notes_{number}": each for number, each in enumerate(notes)}

    def encoded(self, pairs: Sequence[Pair]) -> Arrays:
        """The ids of some pairs, and for a sampler their text."""
        arrays: Arrays = {}
        for place, side in enumerate(SIDES):
            texts = [pair[place] for pair in pairs]
            tokenizer: Tokenizer = getattr(self.tokenizers, side)
            dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
            sentences = tokenizer.encode_batch(texts)
            if self.joined:
                if (separator := tokenizer.separator) is None:
                    raise ValueError(f"{tokenizer.name} has no piece {SEPARATOR} to join sentences")
                sentences = [[*ids, separator] for ids in sentences]
            ids, lengths = flat(sentences, dtype)
            arrays |= {f"{side}_lengths": lengths.astype("<i4"), f"{side}_ids": ids}
            if sampler := self.sampler:
                in_bytes = [text.encode() for text in texts]
                for uniform in _planning_draws(in_bytes):
                    sampled = sampler.sample(side, texts, uniform)
                    room = np.fromiter(map(len, sampled), np.int64) + self.joined
                    lengths = np.maximum(lengths, room)
                text, text_lengths = flat(in_bytes, np.uint8)
                arrays[f"{side}_room"] = lengths.astype("<i4")
                arrays |= {f"{side}_text_lengths": text_lengths.astype("<i4"), f"{side}_text": text}
        return arrays

    def review(self, number: int, parts: Iterable[Part]) -> tuple[np.ndarray, str]:
        """Which pairs of a corpus are used, [pairs] bool, and what filters found, for the log."""
        review = Review(self.data.filters, self.data.parts[number].direction)
        arrays = (part.read().items() for part in parts)
        # Those of the filters are in their order.
        marks = [[np.array(each) for name, each in part if "notes_" in name] for part in arrays]
        return review.kept(self.data.names[number], marks)

    def merged(
        self, corpora: Sequence[Sequence[Part]], kept: Sequence[np.ndarray]
    ) -> Iterator[Arrays]:
        """The arrays of an entry: of the parts of each corpus, those of the pairs that are used."""
        none = np.zeros(0, bool)
        empty = self.encoded(())
        if self.is_aligned:
            empty |= _encoded_links((), (), self.tokenizers)
        yield _chosen(empty, none, none)
        for parts, used in zip(corpora, kept, strict=True):
            is_last = np.zeros(len(used), bool)
            if self.joined and used.any():
                documents = np.concatenate([part.read()["documents"] for part in parts])[used]
                is_last[used] = np.append(np.diff(documents) != 0, True)
            begin = 0
            for part in parts:
                arrays = part.read()
                rows = slice(begin, begin + len(arrays["source_lengths"]))
                yield _chosen(arrays, used[rows], is_last[rows])
                begin = rows.stop
            yield {"corpus_sizes": np.array([used.sum()], "<i8")}


@dataclass(frozen=True)
class PartMaker:
    """Makes the parts of a text, each once.

    Attributes:
        encoder: of the text.
        folder: for `corpus_0/part_000000` and so on.
        size: pairs of a part.
        flag: names the folder, for messages.
        inputs: what the parts are made of, where the folder is not named after it.
        write_text: writes the text of the rows into a part as well, and returns a hash of it.
    """

    encoder: Encoder
    folder: Path
    size: int
    flag: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    write_text: Callable[[Path, Corpus, Sequence[Row]], str] | None = None

    def make(
        self,
        shard: int = 0,
        shards: int = 1,
        held_out: Sequence[deque[Numbered]] | None = None,
        show: Callable[[Iterator[Row]], Iterable[Row]] = iter,
    ) -> list[int]:
        """Makes the parts shard, shard + shards, ... that are not there.

        All of the text is read, as only its reader knows where a part begins; a part takes much
        longer than reading one.

        Args:
            shard: from 0.
            shards: how many there are.
            held_out: for each corpus, gets its pairs that are not trained on.
            show: wraps the rows, for a progress bar.

        Returns:
            The number of pairs of each corpus.

        Raises:
            UserError: the text is damaged, or a part is, or was made of other inputs.
        """
        data, totals, places = self.encoder.data, [], count()
        for number, corpus in enumerate(data.parts):
            rows = iter(show(read_rows(data, corpus, held_out[number] if held_out else None)))
            review = Review(data.filters, corpus.direction)  # one, as it may read a model
            totals.append(0)
            for part in count():
                of_part = islice(rows, self.size)
                own = list(of_part) if next(places) % shards == shard else []
                if own:
                    self._make_part(number, part, review, own)
                found = len(own) + sum(1 for _ in of_part)
                totals[-1] += found
                if found < self.size:
                    break
        return totals

    def _make_part(self, number: int, part: int, review: Review, rows: list[Row]) -> None:
        def fill(folder: epath.Path) -> dict[str, Any]:
            place, corpus = Path(folder), self.encoder.data.parts[number]
            chunks = in_chunks(iter(rows), _CHUNK)
            part = Part.write(place, (self.encoder.arrays(corpus, review, each) for each in chunks))
            text = self.write_text(place, corpus, rows) if self.write_text else ""
            return {"text": text, "arrays": part.layout}

        stage(self._place(number, part), self.inputs, fill, flag=self.flag)

    def read(self, totals: Sequence[int]) -> list[list[tuple[Part, str]]]:
        """The parts of each corpus of so many pairs, and the hashes of their texts.

        Raises:
            UserError: a part is missing or damaged, or was made of other inputs.
        """
        found = []
        for number, total in enumerate(totals):
            places = [self._place(number, part) for part in range(-(-total // self.size))]
            known = {each: made(each, self.inputs, flag=self.flag) for each in places}
            if missing := [place for place, each in known.items() if not each]:
                if missing[0].exists():  # without its record
                    raise damaged(missing[0])
                more = f" and {len(missing) - 1} more" if missing[1:] else ""
                raise UserError(f"{missing[0]}{more} missing: run that shard again")
            whole = [(Path(place), each) for place, each in known.items() if each]
            found.append([(Part(place, each["arrays"]), each["text"]) for place, each in whole])
        return found

    def _place(self, number: int, part: int) -> epath.Path:
        return epath.Path(part_folder(corpus_folder(self.folder, number), part))


def ids_of_text(
    data: DataConfig,
    tokenizers: Tokenizers,
    sampler: SubwordSampler | None = None,
    *,
    progress: bool = False,
) -> IdCorpus:
    """A training text as ids, from the cache, or encoded now and cached.

    With `data.blocks` its pairs are blocks. The log tells what filters found.

    Args:
        data: the text, and the folder of the cache.
        tokenizers: their content is part of the name of the entry.
        sampler: with it, the text is stored as well, and lengths with room for samples.
        progress: show a bar on stderr.

    Raises:
        UserError: the text is damaged, or the cache cannot be written.
    """
    encoder = Encoder(data, tokenizers, sampler)
    cache = Path(data.cache_dir) if data.cache_dir else user_cache() / "ids"
    folder = cache / encoder.entry()
    if (entry := read_entry(folder)) is None:
        bar = functools.partial(tqdm, desc="encoding", unit=" pairs", unit_scale=True, leave=False)

        def make(place: Path) -> tuple[Iterator[Arrays], Sequence[str]]:
            maker = PartMaker(encoder, place / "parts", PART_PAIRS, FLAG)
            totals = maker.make(show=lambda rows: bar(rows, disable=not progress))
            parts = [[part for part, _ in each] for each in maker.read(totals)]
            kept, found = zip(*(encoder.review(*each) for each in enumerate(parts)), strict=True)
            return encoder.merged(parts, kept), found

        write_entry(folder, make)
        entry = read_entry(folder)
    if entry is None:
        raise UserError(f"the id cache {folder} was removed while it was written; run again")
    corpus, found = entry
    for line in found:
        _LOGGER.info(line)
    return corpus.in_blocks(data.blocks) if data.blocks else corpus


def ids_of_pairs(
    pairs: Sequence[Pair], tokenizers: Tokenizers, sampler: SubwordSampler | None = None
) -> IdCorpus:
    """Sentence pairs as ids in memory; the arguments are those of `ids_of_text`."""
    arrays = Encoder(DataConfig(), tokenizers, sampler).encoded(pairs)
    return corpus_of(next(with_offsets([arrays | {"corpus_sizes": np.array([len(pairs)])}])))


def read_rows(
    data: DataConfig, corpus: Corpus, held_out: deque[Numbered] | None = None
) -> Iterator[Row]:
    """The pairs of a corpus to train on; at their end, `held_out` has the others.

    Raises:
        UserError: the text or its word alignments are damaged, or these have another number of
            lines.
    """
    held_out = deque() if held_out is None else held_out
    rows, files = without_held_out(data, corpus, held_out), corpus.source.alignments
    if not files:
        yield from ((number, pair, ()) for number, pair in rows)
        return
    num_lines = num_pairs = 0
    shortened = any(each.shortens for each in corpus.noise)
    for row, line in zip_longest(rows, read_alignments(files)):
        num_pairs += row is not None
        num_lines += line is not None
        if row is not None and line is not None:
            number, pair = row
            links = parse(line, pair[::-1] if corpus.reverse else pair, shortened=shortened)
            yield number, pair, [link[::-1] for link in links] if corpus.reverse else links
    num_pairs += len(held_out)
    if num_lines != num_pairs:
        raise UserError(
            f"{', '.join(files)}: {num_lines:,} lines of word alignments for {num_pairs:,} pairs: "
            "give a line for each pair of the training text, an empty one where no words are linked"
        )


def in_chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """The rows, so many at a time."""
    while chunk := list(islice(rows, size)):
        yield chunk


def _chosen(arrays: Arrays, kept: np.ndarray, is_last: np.ndarray) -> Arrays:
    """The arrays of the rows that are kept; EOS in place of the separator where `is_last`."""
    chosen: Arrays = {}
    for name, values in _VALUES.items():
        if name in arrays:
            lengths = np.asarray(arrays[name])
            chosen[name] = lengths[kept]
            is_kept = np.repeat(kept, lengths)
            chosen |= {each: arrays[each][is_kept] for each in values}
    for side in SIDES:
        if f"{side}_room" in arrays:
            chosen[f"{side}_room"] = arrays[f"{side}_room"][kept]
        ends = np.cumsum(chosen[f"{side}_lengths"], dtype=np.int64) - 1
        chosen[f"{side}_ids"][ends[is_last[kept]]] = EOS_ID
    return chosen


def _encoded_links(pairs: Sequence[Pair], links: Sequence[Links], tokenizers: Tokenizers) -> Arrays:
    """The arrays of the links between the pieces of some pairs."""
    found = [np.zeros((0, 2), np.int64)] + [
        piece_links(each, tokenizers, pair) for pair, each in zip(pairs, links, strict=True)
    ]
    # A sentence with more pieces than two bytes can count is longer than any model reads.
    found = [each[(each < 1 << 16).all(axis=1)] for each in found]
    sides = {f"links_{side}": np.concatenate(found)[:, i] for i, side in enumerate(SIDES)}
    lengths = np.fromiter(map(len, found[1:]), "<i4")
    return {name: each.astype("<u2") for name, each in sides.items()} | {"links_lengths": lengths}


def _planning_draws(texts: Sequence[bytes]) -> np.ndarray:
    """[samples, texts] numbers in [0, 1), which depend on each text alone."""
    size = 8 * _PLANNING_SAMPLES
    hashes = b"".join(hashlib.blake2b(text, digest_size=size).digest() for text in texts)
    return (np.frombuffer(hashes, "<u8").reshape(-1, _PLANNING_SAMPLES).T >> 11) / 2.0**53
