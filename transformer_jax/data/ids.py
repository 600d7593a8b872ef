"""A parallel corpus as ids: flat arrays, made once and memory-mapped from a cache on disk.

A cache entry is a folder of raw little-endian arrays and `meta.json`; nothing is pickled. It has
the ids of all sentences one after the other, without BOS or EOS, and the sentences' lengths. The
folder's name is a hash of the text's fingerprint and of both tokenizers. For blocks, each sentence
is followed by the separator, or by EOS at the end of a document: any range of sentences of a
document is then a slice of the ids, so that blocks copy nothing. An entry is written under
a temporary name and renamed, so readers see all of it or nothing, and two processes can make the
same entry at the same time. `meta.json` has the fingerprint of the content, which a training
computes at its start anyway, so an entry whose bytes changed is made again.
"""

import contextlib
import errno
import functools
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from transformer_jax.data.alignments import Links, parse, piece_links
from transformer_jax.data.batch_shapes import Shape
from transformer_jax.data.blocks import Blocks, cut
from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.language_tags import text_tags
from transformer_jax.data.sampling import NBEST, SubwordSampler
from transformer_jax.data.sources.base import BOUNDARY, Numbered, Pair
from transformer_jax.data.sources.files import file_digest
from transformer_jax.data.splits import fingerprint
from transformer_jax.data.tokenizer import SEPARATOR, SIDES, Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.data.training_text import TrainingText, cannot_write
from transformer_jax.errors import UserError
from transformer_jax.vocabulary import EOS_ID, PAD_ID

Arrays = dict[str, np.ndarray]

_FORMAT = 6
_PART = 1 << 26  # bytes of an array that are read at a time
_CHUNK = 10_000  # pairs encoded at a time; the text in memory is bounded by it
_PLANNING_SAMPLES = 2  # segmentations drawn per sentence to estimate the length of samples
_LEFT_AFTER = 24 * 60 * 60  # seconds without a write, after which no process is writing an entry


class Sentences:
    """The sentences of one language as ids, or blocks of them, in memory or memory-mapped.

    Args:
        arrays: "ids" [total] integers, no BOS or EOS; "offsets" [sentences + 1] int64, ascending,
            from 0. For subword sampling also "room" [sentences], the length that leaves room for
            the usual sample, and "text" [bytes] with "text_offsets" [sentences + 1]. For blocks
            also "first" and "last" [blocks]: block i is the sentences first[i] ... last[i] - 1,
            and each sentence has the separator, or at the end of a document EOS, as its last id.

    Attributes:
        ids, offsets: see above.
        starts, stops: [rows] int64, where the ids of each sentence, or block, begin and end.
    """

    def __init__(self, arrays: Arrays):
        self.arrays = arrays
        self.ids, self.offsets = arrays["ids"], arrays["offsets"]
        if "first" in arrays:
            first, last = arrays["first"], arrays["last"]
            self.starts, self.stops = self.offsets[first], self.offsets[last] - 1
        else:
            self.starts, self.stops = self.offsets[:-1], self.offsets[1:]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> np.ndarray:
        """Ids of sentence or block i, [length] int32, no EOS."""
        return self.ids[self.starts[i] : self.stops[i]].astype(np.int32)

    @property
    def lengths(self) -> np.ndarray:
        """[rows] int32: slots that each row needs, EOS included. It is computed anew each time."""
        slots = self.slots
        if "first" in self.arrays:
            first, last = self.arrays["first"], self.arrays["last"]
            return np.asarray((slots[last] - slots[first]).astype(np.int32))
        lengths = np.empty(len(self), np.int32)
        for begin in range(0, len(self), _PART):
            lengths[begin : begin + _PART] = np.diff(slots[begin : begin + _PART + 1]) + 1
        return lengths

    @property
    def slots(self) -> np.ndarray:
        """[sentences + 1] int64: the ids that the sentences before each have, or may have."""
        if "room" not in self.arrays:
            return self.offsets
        return np.append(0, np.cumsum(self.arrays["room"], dtype=np.int64))

    def members(self, i: int) -> range:
        """The sentences of which row i consists."""
        if "first" in self.arrays:
            return range(int(self.arrays["first"][i]), int(self.arrays["last"][i]))
        return range(i, i + 1)

    def joined(self, members: range, parts: Sequence[Sequence[int]]) -> list[int]:
        """The ids of a row, no EOS, whose sentences `members` have the ids `parts`."""
        if "first" not in self.arrays:
            return list(parts[0])
        ends = self.ids[self.offsets[members.start + 1 : members.stop + 1] - 1].tolist()
        separated = ((*part, end) for part, end in zip(parts, ends, strict=True))
        return list(chain.from_iterable(separated))[:-1]

    def counts(self, size: int) -> np.ndarray:
        """How often each of the ids 0 ... size - 1 occurs, [size] int64."""
        counts = np.zeros(size, np.int64)
        for start in range(0, len(self.ids), _PART):
            counts += np.bincount(self.ids[start : start + _PART], minlength=size)
        return counts

    def text(self, i: int) -> str:
        """Sentence i as text.

        Raises:
            ValueError: the corpus was made without a sampler.
        """
        if "text" not in self.arrays:
            raise ValueError("this corpus keeps no text: make it with a sampler")
        start, stop = self.arrays["text_offsets"][i : i + 2]
        return self.arrays["text"][start:stop].tobytes().decode("utf-8")

    def padded(self, rows: np.ndarray, size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows with EOS: ids [size, length] int32, and the mask of real tokens."""
        starts_B1, lengths_B1 = np.zeros((size, 1), np.int64), np.full((size, 1), -1)
        starts_B1[: len(rows), 0] = self.starts[rows]
        lengths_B1[: len(rows), 0] = self.stops[rows] - self.starts[rows]
        column_L = np.arange(length)
        is_token_BL = column_L < lengths_B1
        ids_BL = np.where(column_L == lengths_B1, EOS_ID, PAD_ID).astype(np.int32)
        ids_BL[is_token_BL] = self.ids[(starts_B1 + column_L)[is_token_BL]]
        return ids_BL, column_L <= lengths_B1


class PieceLinks:
    """Which pieces of each sentence pair are linked: its word alignments.

    Args:
        arrays: "source" and "target" [links] integers, places in the two sentences, and "offsets"
            [pairs + 1] int64, where the links of each pair begin.
    """

    def __init__(self, arrays: Arrays):
        self.arrays = arrays

    def padded(self, rows: np.ndarray, shape: Shape) -> np.ndarray:
        """The links of some pairs, as bool [B, T, S], for a batch of shape (B, S, T)."""
        size, source_length, target_length = shape
        linked_BTS = np.zeros((size, target_length, source_length), bool)
        for place, row in enumerate(rows.tolist()):
            own = slice(*self.arrays["offsets"][row : row + 2])
            linked_BTS[place, self.arrays["target"][own], self.arrays["source"][own]] = True
        return linked_BTS


@dataclass(frozen=True)
class IdCorpus:
    """Sentence pairs, or pairs of blocks, as ids."""

    source: Sentences
    target: Sentences
    sizes: tuple[int, ...] = ()  #: pairs of each corpus, in order; () = there is one
    links: PieceLinks | None = None  #: None = the text has no word alignments

    @classmethod
    def from_lists(cls, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> Self:
        """From lists of ids without BOS and EOS.

        Raises:
            ValueError: the lists differ in length.
        """
        if len(source) != len(target):
            raise ValueError(
                f"expected as many source as target sentences, got {len(source)} and {len(target)}"
            )
        sides = []
        for sentences in (source, target):
            ids, lengths = _flat(sentences, np.int32)
            sides.append(Sentences({"ids": ids, "offsets": np.append(0, np.cumsum(lengths))}))
        return cls(sides[0], sides[1], (len(source),))

    def __len__(self) -> int:
        return len(self.source)

    def num_with(self, piece: int) -> int:
        """How many pairs have this id, on either side."""
        has_piece = np.zeros(len(self), bool)
        for side in (self.source, self.target):
            for start in range(0, len(side.ids), _PART):
                places = start + np.flatnonzero(side.ids[start : start + _PART] == piece)
                has_piece[np.searchsorted(side.starts, places, "right") - 1] = True
        return int(has_piece.sum())

    def in_blocks(self, blocks: Sequence[Blocks]) -> "IdCorpus":
        """The same ids as pairs of blocks, which are ordered by corpus.

        Args:
            blocks: what is asked for; the corpus was made with `joined`.
        """
        sides = self.source, self.target
        # Of both sides: a document ends with the same pair.
        is_last = self.source.ids[self.source.offsets[1:] - 1] == EOS_ID
        ranges = cut(blocks, [side.slots for side in sides], is_last)
        corpus_of = np.searchsorted(np.cumsum(self.sizes), ranges[0], "right")
        first, last = ranges[:, np.argsort(corpus_of, kind="stable")]
        source, target = (Sentences(side.arrays | {"first": first, "last": last}) for side in sides)
        sizes = np.bincount(corpus_of, minlength=len(self.sizes)).tolist()
        return IdCorpus(source, target, tuple(sizes))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything that training reads from the corpus, in its order."""
        content = hashlib.sha256()
        for side in ("source", "target", *(["links"] if self.links else [])):
            for name, values in sorted(getattr(self, side).arrays.items()):
                content.update(f"{side}_{name} {values.dtype.str} {len(values)}\n".encode())
                for part in _in_pages(values):
                    content.update(np.ascontiguousarray(part).data)
        return content.hexdigest()[:32]


def _flat(sentences: Sequence[Sequence[int]], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all sentences, one after the other, and the length of each."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum())), lengths


def _in_pages(values: np.ndarray) -> Iterator[np.ndarray]:
    """The parts of an array; those of a mapped file leave memory once they are used."""
    step = _PART // values.itemsize
    for start in range(0, len(values), step):
        yield values[start : start + step]
        mapped = values.base
        if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
            begin = start * values.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
            end = min((start + step) * values.itemsize, len(mapped))
            mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def ids_of_text(
    text: TrainingText,
    tokenizers: Tokenizers,
    sampler: SubwordSampler | None = None,
    *,
    progress: bool = False,
) -> IdCorpus:
    """The training text as ids, which is read only for what the cache lacks; see `prepare_ids`.

    With `data.blocks` its pairs are blocks.

    Raises:
        UserError: the text is damaged, or the cache cannot be written.
    """
    if text.data.filters and text.is_new:
        text.read()  # so that a new run says what is left out
    tags = [text_tags(text.data, corpus, tokenizers) for corpus in text.data.parts]
    key = ids_key(text.data, tokenizers)
    tagged = _tagged(text, tags)
    corpora: Iterable[Iterable[Sequence[Any]]] = tagged
    files = [corpus.source.alignments for corpus in text.data.parts]
    if any(files):
        digests = [list(map(file_digest, each)) for each in files]
        key = hashlib.sha256(f"{key} words aligned by {digests}".encode()).hexdigest()
        corpora = _aligned(text, tagged, tags)
    corpus = prepare_ids(
        corpora,
        tokenizers,
        text.cache,
        key,
        sampler=sampler,
        joined=bool(text.data.blocks),
        aligned=any(files),
        progress=progress,
    )
    return corpus.in_blocks(text.data.blocks) if text.data.blocks else corpus


def ids_key(data: DataConfig, tokenizers: Tokenizers) -> str:
    """The `key` of `prepare_ids` for a training text: of its content and tags."""
    tags = [text_tags(data, corpus, tokenizers) for corpus in data.parts]
    key = fingerprint(data, "train")
    return hashlib.sha256(f"{key} {tags}".encode()).hexdigest() if any(map(any, tags)) else key


def _tagged(text: TrainingText, tags: Sequence[tuple[str, str]]) -> Iterator[Iterator[Pair]]:
    """The pairs of each corpus, with its tags before source and target; boundaries for blocks."""

    def pairs(numbered: Iterator[Numbered], source_tags: str, target_tags: str) -> Iterator[Pair]:
        for _, document in groupby(numbered, itemgetter(0)):
            for _, (source, target) in document:
                yield source_tags + source, target_tags + target
            if text.data.blocks:
                yield BOUNDARY

    for numbered, of_corpus in zip(text.corpora(), tags, strict=True):
        yield pairs(numbered, *of_corpus)


def _aligned(
    text: TrainingText, corpora: Iterable[Iterable[Pair]], tags: Sequence[tuple[str, str]]
) -> Iterator[Iterator[tuple[str, str, Links]]]:
    """The pairs of each corpus, with the links between their words, of which tags are the first."""

    def rows(
        corpus: Corpus, of_corpus: tuple[str, str], *columns: Iterable[Any]
    ) -> Iterator[tuple[str, str, Links]]:
        first = [len(each.split()) for each in of_corpus]
        shortened = any(each.shortens for each in corpus.noise)
        for pair, line in zip(*columns, strict=True):
            own = tuple(each.removeprefix(tag) for each, tag in zip(pair, of_corpus, strict=True))
            if corpus.reverse:
                links = [(s, t) for t, s in parse(line, own[::-1], shortened=shortened)]
            else:
                links = parse(line, own, shortened=shortened)
            yield *pair, [(first[0] + source, first[1] + target) for source, target in links]

    for corpus, of_corpus, *columns in zip(
        text.data.parts, tags, corpora, text.links(), strict=True
    ):
        yield rows(corpus, of_corpus, *columns)


def prepare_ids(
    corpora: Iterable[Iterable[Sequence[Any]]],
    tokenizers: Tokenizers,
    cache_dir: Path | str,
    key: str,
    *,
    sampler: SubwordSampler | None = None,
    joined: bool = False,
    aligned: bool = False,
    progress: bool = False,
) -> IdCorpus:
    """Corpora as ids, from the cache, or encoded now and cached.

    Args:
        corpora: the (source, target) texts of each, iterated only when the cache has no entry.
            With `joined`, `BOUNDARY` ends a document. With `aligned`, each also has the links
            between the words.
        tokenizers: their content is part of the name of the entry.
        cache_dir: folder of all entries; made if missing.
        key: fingerprint of the text, see `splits.fingerprint`.
        sampler: with it, also store the text, and lengths with room for samples.
        joined: also store what follows a sentence: the separator, or EOS where a document ends.
            The pairs are then to be read `in_blocks`.
        aligned: also store the links between the pieces; the key depends on them.
        progress: show a tqdm bar on stderr.

    Raises:
        UserError: the cache folder cannot be written, or the disk is full.
    """
    cache_dir = Path(cache_dir)
    name = cache_name(tokenizers, key, sampler.alpha if sampler else None, joined)
    bar = functools.partial(tqdm, desc="encoding", unit=" pairs", unit_scale=True, leave=False)
    rows = map(_with_ends, corpora) if joined else corpora
    shown = (bar(each, disable=not progress) for each in rows)
    return stored_ids(cache_dir / name, _encoded(shown, tokenizers, sampler, joined, aligned))


def stored_ids(folder: Path, chunks: Iterable[Arrays]) -> IdCorpus:
    """The corpus in a cache entry, which is made of chunks of its arrays if it is not there.

    Args:
        folder: of the entry.
        chunks: parts of the arrays, in their order; not read where there is an entry.

    Raises:
        UserError: the folder cannot be written, or the disk is full.
    """
    if (cached := load_ids(folder)) is not None:
        return cached
    cache_dir = folder.parent
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(cache_dir)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", dir=cache_dir, ignore_cleanup_errors=True
        ) as temporary:
            arrays = _with_offsets(Path(temporary), append_arrays(Path(temporary), chunks))
            fingerprint = _corpus(map_arrays(Path(temporary), arrays)).fingerprint
            meta = {"format": _FORMAT, "arrays": arrays, "fingerprint": fingerprint}
            (Path(temporary) / "meta.json").write_text(json.dumps(meta))  # last: it is complete
            _publish(Path(temporary), folder)
    except OSError as error:
        raise cannot_write(cache_dir, error) from None
    made = load_ids(folder)
    if made is None:
        raise UserError(f"the id cache {folder} was removed while it was written; run again")
    return made


def cache_name(
    tokenizers: Tokenizers, key: str, sampling_alpha: float | None = None, joined: bool = False
) -> str:
    """The folder name of a cache entry: a hash of everything that its content depends on."""
    parts = [str(_FORMAT), key, tokenizers.source.fingerprint, tokenizers.target.fingerprint]
    if sampling_alpha:
        parts.append(f"sampling {sampling_alpha!r} of {NBEST}")
    if joined:
        parts.append("joined")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _remove_leftovers(cache_dir: Path) -> None:
    """Removes the temporary folders of processes that were killed."""
    for folder in cache_dir.glob(f".{32 * '[0-9a-f]'}.*"):
        with contextlib.suppress(OSError):  # another process removes it too
            written = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if written < time.time() - _LEFT_AFTER:
                shutil.rmtree(folder)


def load_ids(folder: Path) -> IdCorpus | None:
    """Memory-maps a cache entry; None where it is missing, incomplete or changed."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != _FORMAT:
            return None
        corpus = _corpus(map_arrays(folder, meta["arrays"]))
        return corpus if corpus.fingerprint == meta["fingerprint"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def map_arrays(folder: Path, arrays: dict[str, tuple[str, int]]) -> Arrays:
    """The arrays in the files of a folder, by the dtype and size of each.

    Raises:
        OSError, ValueError: a file is missing or too short.
    """
    mapped: Arrays = {}
    for name, (dtype, size) in arrays.items():
        mapped[name] = np.zeros(0, dtype)  # an empty file cannot be mapped
        if size:
            mapped[name] = np.memmap(folder / f"{name}.bin", dtype, mode="r", shape=(size,))
    return mapped


def _corpus(arrays: Arrays) -> IdCorpus:
    """The corpus in the arrays of an entry."""
    sides: dict[str, Arrays] = {"source": {}, "target": {}, "corpus": {}, "links": {}}
    for name, values in arrays.items():
        side, _, array = name.partition("_")
        sides[side][array] = values
    sizes = tuple(sides["corpus"]["sizes"].tolist())
    links = PieceLinks(sides["links"]) if sides["links"] else None
    return IdCorpus(Sentences(sides["source"]), Sentences(sides["target"]), sizes, links)


def _with_ends(pairs: Iterable[Sequence[Any]]) -> Iterator[tuple[str, str, bool]]:
    """Each pair, and whether a document ends with it."""
    last: Sequence[Any] = BOUNDARY
    for pair in chain(pairs, [BOUNDARY]):
        if last != BOUNDARY:
            source, target = last
            yield source, target, pair == BOUNDARY
        last = pair


def _encoded(
    corpora: Iterable[Iterable[Sequence[Any]]],
    tokenizers: Tokenizers,
    sampler: SubwordSampler | None,
    joined: bool,
    aligned: bool,
) -> Iterator[Arrays]:
    """Chunks of the corpora in their order, and the size of each corpus."""

    def encoded(rows: Sequence[Sequence[Any]]) -> Arrays:
        arrays = encode_rows(rows, tokenizers, sampler, joined)
        return arrays | _encoded_links(rows, tokenizers) if aligned else arrays

    yield encoded(())  # an empty corpus has these arrays too
    for rows in corpora:
        iterator, size = iter(rows), 0
        while chunk := list(islice(iterator, _CHUNK)):
            yield encoded(chunk)
            size += len(chunk)
        yield {"corpus_sizes": np.array([size], "<i8")}


def encode_rows(
    rows: Sequence[Sequence[Any]],
    tokenizers: Tokenizers,
    sampler: SubwordSampler | None,
    joined: bool = False,
) -> Arrays:
    """The arrays of some rows: pairs, with `joined` also whether a document ends there.

    What a row adds to the arrays does not depend on the other rows.
    """
    arrays: Arrays = {}
    for place, side in enumerate(SIDES):
        texts = [row[place] for row in rows]
        tokenizer: Tokenizer = getattr(tokenizers, side)
        dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
        encoded = tokenizer.encode_batch(texts)
        if joined:
            if (separator := tokenizer.separator) is None:
                raise ValueError(f"{tokenizer.name} has no piece {SEPARATOR} to join sentences")
            ends = (EOS_ID if is_last else separator for _, _, is_last in rows)
            encoded = [[*ids, end] for ids, end in zip(encoded, ends, strict=True)]
        ids, lengths = _flat(encoded, dtype)
        arrays |= {f"{side}_lengths": lengths.astype("<i4"), f"{side}_ids": ids}
        if sampler:
            in_bytes = [text.encode() for text in texts]
            for uniform in _planning_draws(in_bytes):
                sampled = sampler.sample(side, texts, uniform)
                room = np.fromiter(map(len, sampled), np.int64) + joined
                lengths = np.maximum(lengths, room)
            text, text_lengths = _flat(in_bytes, np.uint8)
            arrays[f"{side}_room"] = lengths.astype("<i4")
            arrays |= {f"{side}_text_lengths": text_lengths.astype("<i4"), f"{side}_text": text}
    return arrays


def _encoded_links(rows: Sequence[Sequence[Any]], tokenizers: Tokenizers) -> Arrays:
    """The arrays of the links of some rows, which are pairs with links between their words."""
    found = [np.zeros((0, 2), np.int64)] + [
        piece_links(links, tokenizers, (source, target)) for source, target, links in rows
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


def append_arrays(folder: Path, chunks: Iterable[Arrays]) -> dict[str, tuple[str, int]]:
    """Appends the chunks to one file per array; the dtype and size of each."""
    arrays: dict[str, tuple[str, int]] = {}
    for chunk in chunks:
        for name, values in chunk.items():
            with open(folder / f"{name}.bin", "ab") as file:
                file.write(values.tobytes())
            _, size = arrays.get(name, ("", 0))
            arrays[name] = (values.dtype.str, size + len(values))
    return arrays


def _with_offsets(folder: Path, arrays: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Replaces the files of lengths by those of offsets, which need no memory as mapped files."""
    made: dict[str, tuple[str, int]] = {}
    for name, (dtype, size) in arrays.items():
        if not name.endswith("lengths"):
            made[name] = dtype, size
            continue
        new, end = name.replace("lengths", "offsets"), np.zeros(1, "<i8")
        with open(folder / f"{new}.bin", "wb") as file:
            file.write(end.tobytes())
            for part in _in_pages(map_arrays(folder, {name: (dtype, size)})[name]):
                offsets = end + np.cumsum(part, dtype="<i8")
                file.write(offsets.tobytes())
                end = offsets[-1:]
        (folder / f"{name}.bin").unlink(missing_ok=True)
        made[new] = "<i8", size + 1
    return made


def _publish(temporary: Path, folder: Path) -> None:
    """Renames the finished entry into place; an entry that another process made first stays."""
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if load_ids(folder) is None:  # a damaged entry
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(temporary, folder)
