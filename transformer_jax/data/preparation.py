"""A training text made into ids before training, in parts that any machines may make.

Three steps, each a pure function of the text and of what the step before wrote:

1. `learn_tokenizers`: from a sample of the text.
2. `make_shard`: parts of the text with their ids, and what filters note about each pair. Shard i of
   n has every n-th part, so any number of shards, in any order, write the same files.
3. `merge`: which pairs filters leave out, for which all notes are needed, and the ids of the others
   as one entry of the cache of ids (`ids.py`), the same as a training makes of the text itself.

    FOLDER/settings.json              of what text and with which settings
           tokenizer/
           corpus_0/part_000000/      text.jsonl.gz, arrays of ids, notes; record.json, last
                    validation.jsonl.gz, test.jsonl.gz
                    kept.bin          of each pair of the training text, whether it is used
           totals.json                pairs of each corpus, which a shard knows at its end
           ids/                       the cache of ids
           merged.json                last: see `sources/prepared.py`
"""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.filters.review import Review
from transformer_jax.data.ids import (
    Arrays,
    append_arrays,
    cache_name,
    encode_rows,
    ids_key,
    map_arrays,
    stored_ids,
)
from transformer_jax.data.language_tags import text_tags
from transformer_jax.data.noise.registry import NOISES
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sources.base import SPLITS, Numbered, Pair, Split
from transformer_jax.data.sources.prepared import (
    FORMAT,
    Prepared,
    corpus_folder,
    part_folder,
    read_kept,
    read_merged,
    row_bytes,
)
from transformer_jax.data.splits import (
    directions_with,
    fingerprint,
    holding_out,
    in_direction,
    without_held_out,
)
from transformer_jax.data.tokenizer import SIDES
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers, open_tokenizer
from transformer_jax.data.tokenizer_training import draw_sample, tokenizers_of_text
from transformer_jax.data.training_text import Repeatable, pairs_to_learn_from, without_bad
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, write_whole
from transformer_jax.settings.keys import adapter
from transformer_jax.settings.variants import to_text
from transformer_jax.vocabulary import EOS_ID

_LOGGER = logging.getLogger(__name__)


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
    folder = preparation.folder
    path = folder / "settings.json"
    settings = _settings(preparation) | _given_models(preparation.tokenizer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_whole(epath.Path(path), (json.dumps(settings, indent=1) + "\n").encode())
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged; name another --output") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    differing = [key for key, value in settings.items() if found.get(key) != value]
    if differing:
        raise UserError(
            f"{folder} was begun with another {', another '.join(differing)}: give the same "
            "config and text, or name another --output"
        )


def _settings(preparation: Preparation) -> dict[str, Any]:
    """What the parts depend on, as JSON. Files count by their content, not by their names."""
    data = preparation.data
    # Given models are in the folder, and parts know the tokenizers that they were made with.
    trained = dataclasses.replace(preparation.tokenizer, source_model=None, target_model=None)
    return {
        "format": FORMAT,
        "part_pairs": preparation.part_pairs,
        "text": fingerprint(dataclasses.replace(data, filters=()), "train"),
        "validation_from_train": data.validation_from_train,
        **{
            f"{split} set": [
                fingerprint(data, split, each) for each in directions_with(data, split)
            ]
            for split in SPLITS
            if split != "train"
        },
        **corpora_settings(data),
        "tokenizer": adapter(TokenizerConfig).dump_python(trained, mode="json"),
    }


def _given_models(config: TokenizerConfig) -> dict[str, str | None]:
    """A hash of each tokenizer that is given, by its key."""
    given = {"source_model": config.source_model, "target_model": config.target_model}
    return {
        key: open_tokenizer(as_path(path)).fingerprint if path else None
        for key, path in given.items()
    }


def corpora_settings(data: DataConfig) -> dict[str, Any]:
    """What of the settings a config tells without its text: what is trained on and how."""
    return {
        "corpora": [
            [*each.direction, each.tag, each.weight, [to_text(one, NOISES) for one in each.noise]]
            for each in data.parts
        ],
        "languages": list(data.languages),
        "temperature": data.temperature,
        **use_settings(data),
    }


def use_settings(data: DataConfig) -> dict[str, Any]:
    """What of `corpora_settings` does not depend on the corpora."""
    return {
        "filters": adapter(DataConfig).dump_python(data, mode="json")["filters"],
        "blocks": bool(data.blocks),
    }


def learn_tokenizers(preparation: Preparation) -> Tokenizers:
    """The tokenizers in the folder, which are trained on a sample of the text if there are none.

    Raises:
        UserError: the text is damaged, or cannot support the vocabulary.
    """
    folder = preparation.folder / "tokenizer"
    if folder.exists():
        return load_tokenizers(epath.Path(folder))
    data, config = preparation.data, preparation.tokenizer

    def sample() -> Iterator[Pair]:
        texts = (without_held_out(data, corpus, deque()) for corpus in data.parts)
        pairs = ((number, pair) for number, text in enumerate(texts) for _, pair in text)
        return without_bad(draw_sample(pairs, pairs_to_learn_from(config)), data)

    tokenizers = tokenizers_of_text(config, data, Repeatable(sample))
    with _new_folder(folder) as temporary:
        tokenizers.save(epath.Path(temporary))
    return tokenizers


def make_shard(preparation: Preparation, number: int, shards: int) -> None:
    """Makes the parts number, number + shards, ... of the text that are not there.

    All of the text is read, as only its reader knows where a part begins; a part takes much longer
    than reading one.

    Args:
        preparation: what and where; its tokenizers have been learned.
        number: of the shard, from 0.
        shards: how many there are.

    Raises:
        UserError: the text is damaged, the tokenizers are missing, or a part was made with others.
    """
    data, size = preparation.data, preparation.part_pairs
    make = _PartMaker.of(preparation)
    totals, places = [], count()
    for of_corpus, corpus in enumerate(data.parts):
        held_out: deque[Numbered] = deque()
        rows = without_held_out(data, corpus, held_out)
        folder, total = corpus_folder(preparation.folder, of_corpus), 0
        for part in count():
            place = part_folder(folder, part)
            is_mine = next(places) % shards == number and not make.has(place)
            if is_mine:
                chunk = list(islice(rows, size))
                found = len(chunk)
                if chunk:
                    make(place, of_corpus, chunk)
            else:
                found = sum(1 for _ in islice(rows, size))
            total += found
            if found < size:
                break
        totals.append(total)
        for split, pairs in _sets(data, of_corpus, held_out):
            folder.mkdir(parents=True, exist_ok=True)
            _write_rows(folder / f"{split}.jsonl.gz", list(pairs))
    text = json.dumps({"pairs": totals})
    write_whole(epath.Path(preparation.folder / "totals.json"), text.encode())


def merge(preparation: Preparation) -> DataConfig:
    """Checks that all parts are there, applies the filters, and writes the ids.

    Returns:
        What to train on: the config of the prepared text.

    Raises:
        UserError: parts are missing or damaged, or were made with other tokenizers.
    """
    data, folder = preparation.data, preparation.folder
    make = _PartMaker.of(preparation)
    if not (folder / "totals.json").exists():
        raise UserError(
            f"{folder}: no shard is finished: run `transformer-jax prepare --shard=i/n`"
        )
    totals = json.loads((folder / "totals.json").read_text())["pairs"]
    corpora = []
    for number, (corpus, total) in enumerate(zip(data.parts, totals, strict=True)):
        place = corpus_folder(folder, number)
        parts = [part_folder(place, i) for i in range(-(-total // preparation.part_pairs))]
        if missing := [each.name for each in parts if not make.has(each)]:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise UserError(f"{place}: {missing[0]}{more} missing: run that shard again")
        records = [_read_record(each) for each in parts]
        review, unusual = Review(data.filters, corpus.direction), np.zeros(2, np.int64)
        for each, record in zip(parts, records, strict=True):
            _check_text(each, record)
            arrays = _arrays(each, record)
            review.add(_notes(arrays))
            unusual += _unusual(preparation, make.tokenizers, corpus, arrays)
        kept = review.kept(data.names[number])
        if unusual.any():
            longer = f"{unusual[1]:,} longer than batch.max_length={preparation.max_length}"
            _LOGGER.info(
                f"{data.names[number]}: {unusual[0]:,} pairs have an empty side"
                + (f", and {longer} are skipped by a training" if unusual[1] else "")
            )
        place.mkdir(parents=True, exist_ok=True)  # of an empty text
        write_whole(epath.Path(place / "kept.bin"), kept.tobytes())
        sets = {split: place / f"{split}.jsonl.gz" for split, _ in _sets(data, number, ())}
        for path in sets.values():
            if not path.exists():
                raise UserError(f"{path}: missing: run any shard again")
        digests = {split: _digest(path.read_bytes()) for split, path in sets.items()}
        texts = "".join(record["text"] for record in records)
        digests["train"] = _digest(texts.encode() + kept.tobytes())
        corpora.append(
            {
                "languages": corpus.direction,
                "has_documents": corpus.source.has_documents,
                "sizes": [record["pairs"] for record in records],
                "digests": digests,
            }
        )
    merged = {
        "format": FORMAT,
        "is_one": not data.corpora,
        "settings": _settings(preparation),
        "corpora": corpora,
    }
    path = epath.Path(folder / "merged.json")
    write_whole(path, (json.dumps(merged, indent=1) + "\n").encode())
    prepared = prepared_data(folder)
    key = ids_key(prepared, make.tokenizers)
    alpha = preparation.tokenizer.sampling_alpha
    name = cache_name(make.tokenizers, key, alpha, bool(data.blocks))
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(path.unlink)
        stored_ids(folder / "ids" / name, _merged(preparation, make, corpora))
        on_failure.pop_all()
    return prepared


def prepared_data(folder: Path) -> DataConfig:
    """What a training reads of a prepared text, in place of the text itself.

    Raises:
        UserError: the folder has no prepared text.
    """
    merged = read_merged(folder)
    sources = [Prepared(str(folder), number) for number in range(len(merged["corpora"]))]
    if merged["is_one"]:
        texts: dict[str, Any] = {"source": sources[0]}
    else:
        texts = {
            "temperature": merged["settings"]["temperature"],
            "corpora": tuple(
                Corpus(source, (one, other), tag=tag, weight=weight)
                for source, (one, other, tag, weight, _) in zip(  # the noise is in the text
                    sources, merged["settings"]["corpora"], strict=True
                )
            ),
        }
    source, target = merged["settings"]["languages"]
    return DataConfig(
        **texts, source_language=source, target_language=target, cache_dir=str(folder / "ids")
    )


@dataclasses.dataclass(frozen=True)
class _PartMaker:
    """Makes parts with the tokenizers of the folder."""

    tokenizers: Tokenizers
    sampler: SubwordSampler | None
    key: str  #: of what parts depend on
    data: DataConfig

    @classmethod
    def of(cls, preparation: Preparation) -> "_PartMaker":
        folder = preparation.folder / "tokenizer"
        if not folder.exists():
            raise UserError(
                f"{preparation.folder}: no tokenizer yet: run prepare with --tokenizer once, "
                "before the shards"
            )
        tokenizers = load_tokenizers(epath.Path(folder))
        alpha = preparation.tokenizer.sampling_alpha
        sampler = SubwordSampler(tokenizers, alpha, room=0) if alpha else None
        key = json.dumps(_settings(preparation)) + "".join(
            getattr(tokenizers, side).fingerprint for side in SIDES
        )
        return cls(tokenizers, sampler, _digest(key.encode()), preparation.data)

    def has(self, place: Path) -> bool:
        """Whether a part is there.

        Raises:
            UserError: it is, and was made of another text, with other settings or tokenizers.
        """
        if not place.exists():
            return False
        if _read_record(place)["key"] != self.key:
            raise UserError(
                f"{place}: made of another text, or with other settings or another tokenizer: "
                "remove it, and make it again"
            )
        return True

    def __call__(self, place: Path, of_corpus: int, rows: list[Numbered]) -> None:
        """Writes a part."""
        corpus = self.data.parts[of_corpus]
        before = text_tags(self.data, corpus, self.tokenizers)
        tagged = [(before[0] + pair[0], before[1] + pair[1], False) for _, pair in rows]
        joined = bool(self.data.blocks)
        arrays = encode_rows(tagged, self.tokenizers, self.sampler, joined)
        if joined:
            arrays["documents"] = np.array([number for number, _ in rows], "<i8")
        notes = Review(self.data.filters, corpus.direction).marks([pair for _, pair in rows])
        arrays |= {f"notes_{number}": each for number, each in enumerate(notes)}
        with _new_folder(place) as temporary:
            text = _write_rows(temporary / "text.jsonl.gz", rows)
            record = {
                "key": self.key,
                "pairs": len(rows),
                "text": text,
                "arrays": append_arrays(temporary, [arrays]),
            }
            (temporary / "record.json").write_text(json.dumps(record))
        _LOGGER.info(f"{place.parent.name}/{place.name}: {len(rows):,} pairs")


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


def _notes(arrays: Arrays) -> list[np.ndarray]:
    """The marks of each filter."""
    names = [name for name in arrays if name.startswith("notes_")]
    return [arrays[name] for name in sorted(names, key=lambda name: int(name[6:]))]


def _merged(
    preparation: Preparation, make: _PartMaker, corpora: list[dict[str, Any]]
) -> Iterator[Arrays]:
    """The arrays of the cache entry: of each part those of the pairs that are used."""
    yield encode_rows((), make.tokenizers, make.sampler)
    for number, corpus in enumerate(corpora):
        place = corpus_folder(preparation.folder, number)
        kept = read_kept(place, corpus["sizes"])
        parts = [part_folder(place, part) for part in range(len(corpus["sizes"]))]
        arrays = [_arrays(part, _read_record(part)) for part in parts]
        is_last = np.zeros(len(kept), bool)
        if preparation.data.blocks and len(kept):
            documents = np.concatenate([each["documents"] for each in arrays])[kept]
            is_last[kept] = np.append(np.diff(documents) != 0, True)[: len(documents)]
        begin = 0
        for part, size in zip(arrays, corpus["sizes"], strict=True):
            rows = slice(begin, begin + size)
            yield _chosen(part, kept[rows], is_last[rows])
            begin += size
        yield {"corpus_sizes": np.array([kept.sum()], "<i8")}


def _chosen(arrays: Arrays, kept: np.ndarray, is_last: np.ndarray) -> Arrays:
    """The arrays of the rows that are kept; EOS in place of the separator where `is_last`."""
    chosen: Arrays = {}
    for side in SIDES:
        for name, lengths_name in (("ids", "lengths"), ("text", "text_lengths")):
            if f"{side}_{name}" in arrays:
                lengths = np.asarray(arrays[f"{side}_{lengths_name}"])
                chosen[f"{side}_{lengths_name}"] = lengths[kept]
                values = arrays[f"{side}_{name}"][np.repeat(kept, lengths)]
                chosen[f"{side}_{name}"] = values
        if f"{side}_room" in arrays:
            chosen[f"{side}_room"] = arrays[f"{side}_room"][kept]
        ends = np.cumsum(chosen[f"{side}_lengths"], dtype=np.int64) - 1
        chosen[f"{side}_ids"][ends[is_last[kept]]] = EOS_ID
    return chosen


def _write_rows(path: Path, rows: list[Numbered]) -> str:
    """Writes lines of JSON; returns a hash of them."""
    content = row_bytes(rows)
    write_whole(epath.Path(path), gzip.compress(content, compresslevel=1, mtime=0))
    return _digest(content)


def _read_record(place: Path) -> dict[str, Any]:
    try:
        record = json.loads((place / "record.json").read_text())
        if record.keys() >= {"key", "pairs", "text", "arrays"}:
            return dict(record)
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    raise _damaged(place)


def _unusual(
    preparation: Preparation, tokenizers: Tokenizers, corpus: Corpus, arrays: Arrays
) -> np.ndarray:
    """How many pairs have an empty side, and how many are longer than is trained on."""
    tags = text_tags(preparation.data, corpus, tokenizers)
    lengths = [np.asarray(arrays[f"{side}_lengths"]) for side in SIDES]
    joined = bool(preparation.data.blocks)
    least = [
        len(getattr(tokenizers, side).encode(tag)) + joined
        for side, tag in zip(SIDES, tags, strict=True)
    ]
    is_empty = np.logical_or(*(one <= few for one, few in zip(lengths, least, strict=True)))
    most = np.inf if joined else preparation.max_length or np.inf
    return np.array([is_empty.sum(), (np.maximum(*lengths) > most).sum()])


def _check_text(place: Path, record: dict[str, Any]) -> None:
    """Checks that a part has the text that its ids were made of."""
    with contextlib.suppress(OSError, EOFError, zlib.error):
        if _digest(gzip.decompress((place / "text.jsonl.gz").read_bytes())) == record["text"]:
            return
    raise _damaged(place)


def _arrays(place: Path, record: dict[str, Any]) -> Arrays:
    """The arrays of a part."""
    try:
        return map_arrays(place, record["arrays"])
    except (FileNotFoundError, ValueError):
        raise _damaged(place) from None


def _damaged(place: Path) -> UserError:
    return UserError(f"{place}: damaged: remove it, and make its shard again")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that gets its name at the end; one that another process made stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        inner = Path(temporary) / folder.name
        inner.mkdir()
        yield inner
        try:
            os.rename(inner, folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
