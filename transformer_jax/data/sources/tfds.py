"""Parallel text from TensorFlow Datasets (TFDS).

Any set with a text feature for each language works: `wmt14_translate/de-en`,
`wmt17_translate`, `ted_hrlr_translate`, `opus`, ... The direction depends on the config's
languages alone, never on the name of the set. `TranslateFolder` reads a folder of
`LANGUAGE.SPLIT.txt` files, which is given as `data_dir`.
"""

import contextlib
import difflib
import functools
import hashlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_jax.data.sources.base import (
    BOUNDARY,
    Languages,
    Pair,
    Source,
    Split,
    missing,
)
from transformer_jax.data.sources.files import file_digest, read_lines
from transformer_jax.data.tensorflow import import_tensorflow
from transformer_jax.errors import UserError, as_user_error, first_line
from transformer_jax.settings.types import FileName
from transformer_jax.settings.unsupported import only_code_of_tfds

_FOLDER_NAMES = ("translatefolder", "translate_folder", "tfds.translatefolder")
_READ_BATCH = 1000


@dataclass(frozen=True)
class Tfds(Source):
    """A set of TensorFlow Datasets, downloaded and prepared on first use."""

    name: str  #: set, set/config or set/config:version; or TranslateFolder
    data_dir: FileName | None = None  #: where TFDS keeps its files; none = the TFDS default
    train_split: str = "train"  #: TFDS split, slices and sums allowed: "train[:90%]+test"
    validation_split: str | None = "validation"  #: none = the set has none
    test_split: str | None = "test"  #: none = the set has none
    documents: str | None = None
    #: feature that names the document of a pair: one ends where it changes; none = not told

    @property
    def has_documents(self) -> bool:
        """Whether a feature tells where documents end."""
        return self.documents is not None

    def has(self, split: Split) -> bool:
        """Whether the set has it; UserError where a split that the recipe names is missing."""
        name = getattr(self, f"{split}_split")
        if not name:
            return False
        builder = self._prepared()
        if name != getattr(Tfds, f"{split}_split"):
            _check_split(builder, self.name, name)
        return set(_names_in_split(name)) <= set(builder.info.splits)

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs, one file of the set after the other."""
        builder, split_name = self._ready(split, languages)
        # One file after the other, in order: the position in the data must mean the same thing in
        # every run.
        order = _import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
        what = f'{self.name}: bad split "{split_name}"'
        with as_user_error(what, ValueError, AssertionError):
            examples = builder.as_dataset(split_name, shuffle_files=False, read_config=order)
        keys, last = [*languages, self.documents or languages[0]], None
        for batch in examples.batch(_READ_BATCH).as_numpy_iterator():
            for source, target, document in zip(*(batch[key] for key in keys), strict=True):
                if self.documents and document != last and last is not None:
                    yield BOUNDARY
                last = document
                yield source.decode("utf-8"), target.decode("utf-8")

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the set's name and version, the split, the languages and the prepared files.

        The name and version are not enough, since a set of one's own may be prepared again.
        A file counts with its bytes, or with its size and date where it is not on a disk.
        """
        builder, split_name = self._ready(split, languages)
        content = hashlib.sha256()
        if _is_folder(self.name):
            for path in _texts(self.data_dir or ""):
                content.update(f"{path.name}\0{file_digest(path)}\0".encode())
        else:
            content.update(builder.info.full_name.encode())
            for part in _names_in_split(split_name):
                info = builder.info.splits[part]
                content.update(f"\0{part}\0{info.num_bytes}\0{info.shard_lengths}".encode())
                for path in info.filepaths:
                    content.update(_file_key(path).encode())
        content.update(f"\0{split_name}\0{languages[0]}\0{languages[1]}".encode())
        if self.documents:
            content.update(f"\0{self.documents}".encode())
        return content.hexdigest()

    def texts(self, languages: Languages) -> list[tuple[str, str]]:
        """The prepared files with the languages, read by the split's name and the documents."""
        builder, split_name = self._ready("train", languages)
        keys = []
        for part in _names_in_split(split_name):
            if _is_folder(self.name):
                folder = Path(self.data_dir or "").expanduser()
                digests = [file_digest(folder / f"{each}.{part}.txt") for each in languages]
                keys.append(" ".join(sorted(digests)))
            else:
                files = map(_file_key, builder.info.splits[part].filepaths)
                keys += [f"{key} {sorted(languages)}" for key in files]
        return [(key, f"{split_name} {self.documents}") for key in keys]

    def _ready(self, split: Split, languages: Languages) -> tuple[Any, str]:
        """The builder of the prepared set, and the TFDS name of the split."""
        name = getattr(self, f"{split}_split")
        if not name:
            raise missing(split, f"data.source.{split}_split")
        builder = self._prepared(languages)
        _check_split(builder, self.name, name)
        if self.documents:
            _check_documents(builder, self.name, self.documents)
        return builder, name

    def _prepared(self, languages: Languages | None = None) -> Any:
        """The builder of the set, which is prepared once, if it has the languages."""
        make = _folder_builder if _is_folder(self.name) else _named_builder
        builder = make(self.name, self.data_dir)
        if languages:
            _check_languages(builder, self.name, languages)
        if Path(os.fspath(builder.data_path)).exists():
            return builder
        what = f"data.source.name={self.name}: could not be prepared in {builder.data_path}"
        # Network, checksums, disk and manual downloads have no common type of errors.
        with as_user_error(what, Exception, named=True), contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare()
        return builder


def _file_key(path: Any) -> str:
    if os.path.isfile(path):
        return file_digest(path)
    about = path.stat()  # in a bucket
    return f"\0{path.name}\0{about.length}\0{about.mtime}"


def _import_tfds() -> Any:
    what = "data.source=tfds needs TensorFlow and TensorFlow Datasets"
    advice = (
        "; install tensorflow-cpu and tensorflow-datasets, or give data.source=files text files"
    )
    with as_user_error(what, ImportError, then=advice):
        import_tensorflow()
        import tensorflow_datasets
    return tensorflow_datasets


def _is_folder(name: str) -> bool:
    return name.lower() in _FOLDER_NAMES


def _texts(folder: str) -> list[Path]:
    return sorted(Path(folder).expanduser().glob("*.txt"))


def _folder_builder(name: str, data_dir: str | None) -> Any:
    if not data_dir:
        raise UserError(
            f"{name} needs data.source.data_dir: the folder of LANGUAGE.SPLIT.txt files"
        )
    if not Path(data_dir).expanduser().is_dir():
        raise UserError(f"data.source.data_dir={data_dir}: no such folder")
    try:
        return _import_tfds().TranslateFolder(data_dir)
    except (ValueError, OSError, StopIteration) as error:
        for path in _texts(data_dir):
            deque(read_lines(path), maxlen=0)  # names the file and the line that cannot be read
        raise UserError(
            f"{data_dir}: expected only LANGUAGE.SPLIT.txt files, with as many lines in each "
            f"language ({first_line(error)})"
        ) from error


@functools.lru_cache(maxsize=8)
def _named_builder(name: str, data_dir: str | None) -> Any:
    if not re.fullmatch(r"[^:/=]+(/[^:/=]+)?(:[\d*.]+)?", name):
        raise UserError(
            f"data.source.name={name}: expected set, set/config or set/config:version; sets with "
            "a namespace (community, Hugging Face) run code of their own, and arguments are not "
            "taken"
        )
    tfds = _import_tfds()
    set_name, _, config = name.partition(":")[0].partition("/")
    try:
        with only_code_of_tfds(tfds):
            return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        names = tfds.list_builders(with_community_datasets=False)
        near = difflib.get_close_matches(set_name, names, n=3)
        near = near or [known for known in names if "transl" in known]
        raise UserError(
            f"data.source.name={name}: TFDS has no such set; did you mean {', '.join(near)}?"
        ) from None
    except (ValueError, AssertionError, ImportError) as error:
        configs = _configs(set_name)
        if configs and config not in configs:
            # The nearest first; opus alone has hundreds.
            near = difflib.get_close_matches(config, configs, n=20, cutoff=0.0)
            raise UserError(
                f'data.source.name={name}: {set_name} has no configuration "{config}"; '
                f"it has {', '.join(near)}{', ...' if len(configs) > len(near) else ''}"
            ) from None
        raise UserError(f"data.source.name={name}: {first_line(error)}") from error


def _configs(set_name: str) -> list[str]:
    try:
        return sorted(_import_tfds().builder_cls(set_name).builder_configs)
    except (ValueError, AttributeError, ImportError):
        return []


def _check_languages(builder: Any, name: str, languages: Languages) -> None:
    tfds = _import_tfds()
    features = builder.info.features
    known = [key for key in sorted(features) if isinstance(features[key], tfds.features.Text)]
    if len(known) < 2:
        raise UserError(
            f"data.source.name={name}: not a set of sentence pairs; its features are "
            f"{', '.join(sorted(features))}"
        )
    for side, language in zip(("source", "target"), languages, strict=True):
        if language not in known:
            raise UserError(
                f'data.{side}_language={language}: {name} does not have the language "{language}"; '
                f"it has {', '.join(known)}{_other_configs(builder, language)}"
            )
    if languages[0] == languages[1]:
        raise UserError(
            f"data.source_language and data.target_language are both {languages[0]}; "
            f"{name} has {', '.join(known)}"
        )


def _check_documents(builder: Any, name: str, feature: str) -> None:
    features = builder.info.features
    known = [key for key in sorted(features) if features[key].shape == ()]
    if feature not in known:
        raise UserError(
            f"data.source.documents={feature}: {name} has no such feature of one value; it has "
            f"{', '.join(known)}"
        )


def _other_configs(builder: Any, language: str) -> str:
    configs = sorted(getattr(builder, "builder_configs", None) or {})
    matching = [config for config in configs if language in re.split(r"[^a-z]+|_to_", config)]
    names = ", ".join(f"{builder.name}/{config}" for config in matching[:8])
    return f" (other configurations: {names})" if names else ""


def _check_split(builder: Any, name: str, split: str) -> None:
    known = sorted(builder.info.splits)
    for part in _names_in_split(split):
        if part not in known:
            raise UserError(f'{name} has no split "{part}"; it has {", ".join(known)}')


def _names_in_split(split: str) -> list[str]:
    return [part.split("[")[0].strip() for part in split.split("+")]
