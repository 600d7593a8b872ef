"""A corpus as ids: flat arrays on disk, memory-mapped, made once.

A cache entry is a folder of raw little-endian arrays and `meta.json`; nothing is
pickled. Sentence `i` is `ids[offsets[i]:offsets[i + 1]]`, without BOS or EOS. Its
name is a hash of the corpus key and of both tokenizers. It is written beside its
final place and renamed, so that a reader sees all of it or nothing, and two
processes that make the same entry at once do not disturb each other.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.id_corpus import Arrays, IdCorpus
from transformer_jax.data.parallel_encoding import encoded_chunks
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError

_FORMAT = 1


def prepare_ids(
    pairs: Callable[[], Iterable[tuple[str, str]]] | Iterable[tuple[str, str]],
    tokenizers: Tokenizers,
    cache_dir: Path | str,
    key: str,
    *,
    sampling_alpha: float = 0.0,
    num_workers: int | None = None,
    progress: bool = True,
    total: int | None = None,
) -> IdCorpus:
    """The corpus as ids, from the cache or made now and cached.

    Args:
        pairs: (source, target) texts, or a function returning them; read only when needed.
        tokenizers: their content is part of the cache key.
        cache_dir: folder of all caches; made if missing.
        key: says what the text is, e.g. `corpus_fingerprint(config, split)`.
        sampling_alpha: > 0 also stores the text, and lengths with room for samples.
        num_workers: processes; None: one per core; 0 or 1: this process. Corpora under
            200,000 pairs are always done in this process.
        progress: show a tqdm bar on stderr.
        total: number of pairs if known, for the bar.

    Raises:
        UserError: the cache folder cannot be written, or the disk is full.
    """
    cache_dir = Path(cache_dir)
    folder = cache_dir / cache_name(tokenizers, key, sampling_alpha)
    cached = load_ids(folder)
    if cached is not None:
        return cached
    workers = num_workers if num_workers is not None else (os.cpu_count() or 1)
    temporary = None
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=cache_dir))
        texts = pairs() if callable(pairs) else pairs
        chunks = encoded_chunks(texts, tokenizers, sampling_alpha, workers)
        if progress:
            chunks = _with_bar(chunks, total)
        _write(temporary, chunks)
        _publish(temporary, folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        raise UserError(
            f"cannot write the id cache in {cache_dir}: {error.strerror}; "
            "free some space or set data.cache_dir to another folder"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    made = load_ids(folder)
    if made is None:
        raise UserError(f"the id cache {folder} vanished while it was written; run again")
    return made


def cache_name(tokenizers: Tokenizers, key: str, sampling_alpha: float = 0.0) -> str:
    """The folder name of a cache entry: a hash of all that its content depends on."""
    parts = [str(_FORMAT), key, tokenizers.source.fingerprint, tokenizers.target.fingerprint]
    if sampling_alpha > 0:
        parts.append(f"sampling {sampling_alpha!r}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load_ids(folder: Path) -> IdCorpus | None:
    """Memory-maps a cache entry; None when it is missing or not whole."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != _FORMAT:
            return None
        arrays = {}
        for name, (dtype, size) in meta["arrays"].items():
            path = folder / f"{name}.bin"
            if path.stat().st_size != size * np.dtype(dtype).itemsize:
                return None
            arrays[name] = (
                np.memmap(path, dtype=dtype, mode="r", shape=(size,))
                if size
                else np.zeros(0, dtype)  # an empty file cannot be mapped
            )
        return IdCorpus(arrays)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, chunks: Iterable[Arrays]) -> None:
    """Appends the chunks to one file per array; per-chunk lengths become running offsets."""
    files: dict[str, Any] = {}
    sizes: dict[str, tuple[str, int]] = {}
    ends: dict[str, int] = {}

    def append(name: str, values: np.ndarray) -> None:
        if name not in files:
            files[name] = open(folder / f"{name}.bin", "wb")  # noqa: SIM115 (closed below)
            sizes[name] = (values.dtype.str, 0)
        files[name].write(values.tobytes())
        sizes[name] = (values.dtype.str, sizes[name][1] + len(values))

    try:
        for side in ("source", "target"):  # so that an empty corpus has its arrays too
            append(f"{side}_ids", np.zeros(0, "<u2"))
            append(f"{side}_offsets", np.zeros(1, "<i8"))
        for chunk in chunks:
            for name, values in chunk.items():
                if name.endswith("_offsets"):
                    if name not in ends:
                        ends[name] = 0
                        if name not in files:
                            append(name, np.zeros(1, "<i8"))
                    values = ends[name] + np.cumsum(values, dtype="<i8")
                    ends[name] = int(values[-1]) if len(values) else ends[name]
                append(name, values)
    finally:
        for file in files.values():
            file.close()
    meta = {"format": _FORMAT, "arrays": sizes}
    (folder / "meta.json").write_text(json.dumps(meta))  # last: its presence means "whole"


def _publish(temporary: Path, folder: Path) -> None:
    """Renames the finished entry into place; if another process was first, its entry stays."""
    for _ in range(2):
        try:
            os.rename(temporary, folder)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if load_ids(folder) is not None:
                return
            shutil.rmtree(folder, ignore_errors=True)  # a damaged entry: make room


def _with_bar(chunks: Iterator[Arrays], total: int | None) -> Iterator[Arrays]:
    from tqdm import tqdm

    with tqdm(total=total, desc="encoding", unit=" pairs", unit_scale=True, leave=False) as bar:
        for chunk in chunks:
            bar.update(len(chunk["source_offsets"]))
            yield chunk
