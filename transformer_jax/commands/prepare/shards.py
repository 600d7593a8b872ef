"""A training text made into ids before training, in parts that any machines may make.

Three steps, each a pure function of the text and of what the step before wrote:

1. `learn_tokenizers`: from a sample of the text.
2. `make_shard`: parts of the text with their ids, and what filters note about each pair. Shard i of
   n has every n-th part, so any number of shards, in any order, write the same files.
3. `merge`: which pairs filters leave out, for which all notes are needed, and the ids of the others
   as one entry of the cache of ids (`ids.py`), the same as a training makes of the text itself.

    FOLDER/settings.json              of what text and with which settings
           tokenizer/
           corpus_0/part_000000/      text.jsonl.gz, arrays of ids, notes
                    validation.jsonl.gz, test.jsonl.gz
                    kept.bin          of each pair of the training text, whether it is used
                    links             of a text with word alignments: those of the pairs used
           totals.json                pairs of each corpus, which a shard knows at its end
           ids/                       the cache of ids
           merged.json                last: see `sources/prepared.py`
"""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import logging
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from transformer_jax.data.alignments import pharaoh
from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.id_files import Part, write_entry
from transformer_jax.data.ids import Encoder, PartMaker, Row
from transformer_jax.data.language_tags import text_tags
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sources.base import Numbered, Split
from transformer_jax.data.sources.files import file_digest
from transformer_jax.data.sources.prepared import (
    FORMAT,
    LINKS,
    corpus_folder,
    read_lines,
)
from transformer_jax.data.splits import (
    directions_with,
    fingerprint,
    holding_out,
    in_direction,
)
from transformer_jax.data.tokenizer import SIDES
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers, open_tokenizer
from transformer_jax.data.tokenizer_training import tokenizers_of_text
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.paths import as_path, claim, damaged, stage, write_whole, writing
from transformer_jax.runs.prepared import corpora_settings, prepared_data
from transformer_jax.settings.keys import adapter

_LOGGER = logging.getLogger(__name__)

_FLAG = "--output"
_FORMAT = 3  # of a part


class Preparation(NamedTuple):
    """A text to prepare, and where."""

    folder: Path
    data: DataConfig  #: resolved
    tokenizer: TokenizerConfig
    part_pairs: int  #: pairs of a part
    max_length: int | None = None  #: pieces of the longest that is trained on; none = not known


def begin(preparation: Preparation) -> None:
    """Writes the settings, or checks that they are those in the folder.

    Raises:
        UserError: the folder was begun with others, or of another text; or it cannot be written.
    """
    settings = _settings(preparation)
    for key in ("source_model", "target_model"):  # by their content
        model = getattr(preparation.tokenizer, key)
        settings[key] = open_tokenizer(as_path(model)).fingerprint if model else None
    path = epath.Path(preparation.folder / "settings.json")
    with writing(path.parent, _FLAG):
        claim(path, settings, _FLAG)


def _settings(preparation: Preparation) -> dict[str, Any]:
    """What the parts depend on, as JSON. Files count by their content, not by their names."""
    data = preparation.data
    # Given models are in the folder, and parts know the tokenizers that they were made with.
    trained = dataclasses.replace(preparation.tokenizer, source_model=None, target_model=None)
    sets = {
        f"{split} set": [fingerprint(data, split, each) for each in directions_with(data, split)]
        for split in ("validation", "test")
    }
    return {
        "format": _FORMAT,
        "part_pairs": preparation.part_pairs,
        "text": fingerprint(dataclasses.replace(data, filters=()), "train"),
        "word alignments": [list(map(file_digest, each.source.alignments)) for each in data.parts],
        "validation_from_train": data.validation_from_train,
        **sets,
        **corpora_settings(data),
        "tokenizer": adapter(TokenizerConfig).dump_python(trained, mode="json"),
    }


def learn_tokenizers(preparation: Preparation) -> None:
    """Trains the tokenizers in the folder on a sample of the text, unless they are there.

    Raises:
        UserError: the text is damaged, or cannot support the vocabulary.
    """

    def fill(place: epath.Path) -> None:
        tokenizers_of_text(preparation.tokenizer, preparation.data).save(place)

    stage(epath.Path(preparation.folder / "tokenizer"), {}, fill, flag=_FLAG)


def make_shard(preparation: Preparation, number: int, shards: int) -> None:
    """Makes the parts number, number + shards, ... of the text, and the sets that are scored.

    Args:
        preparation: what and where; its tokenizers have been learned.
        number: of the shard, from 0.
        shards: how many there are.

    Raises:
        UserError: the text is damaged, the tokenizers are missing, or a part was made with others.
    """
    data, folder = preparation.data, preparation.folder
    held_out: list[deque[Numbered]] = [deque() for _ in data.parts]
    totals = _parts(preparation).make(number, shards, held_out)
    for of_corpus, pairs in enumerate(held_out):
        place = corpus_folder(folder, of_corpus)
        place.mkdir(parents=True, exist_ok=True)
        for split, rows in _sets(data, of_corpus, pairs):
            lines = ((number, *pair) for number, pair in rows)
            _write_lines(place / f"{split}.jsonl.gz", lines)
    write_whole(epath.Path(folder / "totals.json"), json.dumps({"pairs": totals}).encode())


def merge(preparation: Preparation) -> DataConfig:
    """Checks that all parts are there, applies the filters, and writes the ids.

    Returns:
        What to train on: the config of the prepared text.

    Raises:
        UserError: parts are missing or damaged, or were made with other tokenizers.
    """
    data, folder = preparation.data, preparation.folder
    maker = _parts(preparation)
    path = folder / "totals.json"
    if not path.exists():
        raise UserError(
            f"{folder}: no shard is finished: run `transformer-jax prepare --shard=i/n`"
        )
    kinds = ValueError, KeyError, TypeError
    with as_user_error(f"{path}: damaged", *kinds, then=": run any shard again"):
        totals = list(map(int, json.loads(path.read_text())["pairs"]))
    corpora, parts, kept = [], [], []
    for number, found in enumerate(maker.read(totals)):
        corpus, place = data.parts[number], corpus_folder(folder, number)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # each holds a text
            list(pool.map(_check, found))
        parts.append([part for part, _ in found])
        used, line = maker.encoder.review(number, parts[-1])
        kept.append(used)
        _LOGGER.info(line)
        _log_unusual(preparation, maker.encoder.tokenizers, number, parts[-1])
        place.mkdir(parents=True, exist_ok=True)  # of an empty text
        write_whole(epath.Path(place / "kept.bin"), used.tobytes())
        has_links = bool(corpus.source.alignments)
        if has_links:
            _write_links(place, [part.folder for part in parts[-1]], used)
        sets = {split: place / f"{split}.jsonl.gz" for split, _ in _sets(data, number, ())}
        for path in sets.values():
            if not path.exists():
                raise UserError(f"{path}: missing: run any shard again")
        digests = {split: _digest(path.read_bytes()) for split, path in sets.items()}
        digests["train"] = _digest("".join(text for _, text in found).encode() + used.tobytes())
        corpora.append(
            {
                "languages": corpus.direction,
                "has_documents": corpus.source.has_documents,
                "has_links": has_links,
                "sizes": [part.layout["source_lengths"][1] for part in parts[-1]],
                "digests": digests,
            }
        )
    merged = {
        "format": FORMAT,
        "is_one": not data.corpora,
        "settings": _settings(preparation),
        "corpora": corpora,
    }
    written = epath.Path(folder / "merged.json")
    write_whole(written, (json.dumps(merged, indent=1) + "\n").encode())
    prepared = dataclasses.replace(prepared_data(folder), blocks=data.blocks)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(written.unlink)
        entry = folder / "ids" / dataclasses.replace(maker.encoder, data=prepared).entry()
        write_entry(entry, lambda _: (maker.encoder.merged(parts, kept), ()))
        on_failure.pop_all()
    return prepared


def _parts(preparation: Preparation) -> PartMaker:
    """What makes parts with the tokenizers of the folder.

    Raises:
        UserError: there are none.
    """
    folder = preparation.folder / "tokenizer"
    if not folder.exists():
        raise UserError(
            f"{preparation.folder}: no tokenizer yet: run prepare with --tokenizer once, before "
            "the shards"
        )
    tokenizers = load_tokenizers(epath.Path(folder))
    alpha = preparation.tokenizer.sampling_alpha
    sampler = SubwordSampler(tokenizers, alpha, room=0) if alpha else None
    return PartMaker(
        Encoder(preparation.data, tokenizers, sampler),
        preparation.folder,
        preparation.part_pairs,
        _FLAG,
        inputs={
            "text": _digest(json.dumps(_settings(preparation)).encode()),
            "tokenizer": "".join(getattr(tokenizers, side).fingerprint for side in SIDES),
        },
        write_text=_write_text,
    )


def _sets(
    data: DataConfig, number: int, held_out: Iterable[Numbered]
) -> Iterator[tuple[Split, Iterable[Numbered]]]:
    """The validation and test sets that a corpus gives to its direction."""
    corpus = data.parts[number]
    if not corpus.is_scored:
        return
    holding = holding_out(data, corpus.direction)
    if holding is not None:
        if data.parts.index(holding) == number:
            yield "validation", held_out
    elif corpus.source.has("validation"):
        yield "validation", in_direction(corpus, "validation")
    if corpus.source.has("test"):
        yield "test", in_direction(corpus, "test")


def _write_text(place: Path, corpus: Corpus, rows: Sequence[Row]) -> str:
    """Writes the text of a part; returns a hash of it."""
    has_links = bool(corpus.source.alignments)
    lines = (
        (number, *pair, pharaoh(links)) if has_links else (number, *pair)
        for number, pair, links in rows
    )
    _LOGGER.info(f"{place.parent.name}/{place.stem}: {len(rows):,} pairs")
    return _write_lines(place / "text.jsonl.gz", lines)


def _write_lines(path: Path, rows: Iterable[Sequence[Any]]) -> str:
    """Writes lines of JSON; returns a hash of them."""
    # As `json.dumps(row, ensure_ascii=False)`, which takes three times as long for a number and
    # some texts.
    quoted = json.JSONEncoder(ensure_ascii=False).encode
    content = "".join(
        f"[{', '.join([str(number), *map(quoted, texts)])}]\n" for number, *texts in rows
    ).encode()
    write_whole(epath.Path(path), gzip.compress(content, compresslevel=1, mtime=0))
    return _digest(content)


def _write_links(place: Path, parts: Iterable[Path], kept: np.ndarray) -> None:
    """Writes the links between the words of the pairs of a corpus that are used."""
    rows = chain.from_iterable(read_lines(part / "text.jsonl.gz") for part in parts)
    lines = (f"{links}\n" for _, _, _, links in compress(rows, kept))
    write_whole(epath.Path(place / LINKS), "".join(lines).encode())


def _log_unusual(
    preparation: Preparation, tokenizers: Tokenizers, number: int, parts: Iterable[Part]
) -> None:
    """Logs how many pairs have an empty side, and how many are longer than is trained on."""
    data = preparation.data
    tags = text_tags(data, data.parts[number], tokenizers)
    joined = bool(data.blocks)
    least = [
        len(getattr(tokenizers, side).encode(tag)) + joined
        for side, tag in zip(SIDES, tags, strict=True)
    ]
    most = np.inf if joined else preparation.max_length or np.inf
    num_empty = num_long = 0
    for part in parts:
        lengths = [part.read()[f"{side}_lengths"] for side in SIDES]
        is_empty = [one <= few for one, few in zip(lengths, least, strict=True)]
        num_empty += int(np.logical_or(*is_empty).sum())
        num_long += int((np.maximum(*lengths) > most).sum())
    if num_empty or num_long:
        longer = f"{num_long:,} longer than batch.max_length={preparation.max_length}"
        _LOGGER.info(
            f"{data.names[number]}: {num_empty:,} pairs have an empty side"
            + (f", and {longer} are skipped by a training" if num_long else "")
        )


def _check(found: tuple[Part, str]) -> None:
    """Raises UserError where the hash of a part's text is not the one that it was made with."""
    part, text = found
    with contextlib.suppress(OSError, EOFError, zlib.error):
        if _digest(gzip.decompress((part.folder / "text.jsonl.gz").read_bytes())) == text:
            return
    raise damaged(part.folder)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
