"""Parallel text from TensorFlow Datasets, and the embedded corpus as one of them.

Any TFDS set with a text feature for each language will do: `wmt14_translate/de-en`,
`wmt17_translate`, `ted_hrlr_translate`, `opus`, ... The direction comes from the
language names alone, never from the name of the set. `TranslateFolder` reads a
folder of `LANGUAGE.SPLIT.txt` files, given as the data folder.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib.resources
import importlib.resources.abc
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.data import grammar
from transformer_jax.data.tensorflow import import_tensorflow
from transformer_jax.data.text_files import read_lines
from transformer_jax.errors import UserError

#: The embedded corpus; see `transformer_jax.data.grammar`.
GRAMMAR_NAME = "grammar_translate"
_FOLDER_NAMES = ("translatefolder", "translate_folder", "tfds.translatefolder")
_READ_BATCH = 1000


def read_tfds_pairs(
    name: str, split: str, source_language: str, target_language: str, data_dir: str = ""
) -> Iterator[tuple[str, str]]:
    """Yields (source, target) sentences of a TFDS split, always in the same order.

    Downloads and prepares the set where that has not been done.

    Args:
      name: `set`, `set/config` or `set/config:version`, or `TranslateFolder`.
      split: a TFDS split, slices and sums allowed: `train[:90%]`, `train+validation`
        (`TranslateFolder` knows neither).
      source_language: the feature to translate from.
      target_language: the feature to translate into.
      data_dir: where TFDS keeps its files, "" for its default; the folder itself
        for `TranslateFolder`.

    Raises:
      UserError: unknown set, configuration, language or split (each with those
        there are), or the set cannot be prepared.
    """
    tfds = _import_tfds()
    builder = _builder(name, data_dir)
    _check_languages(builder, name, source_language, target_language)
    _prepare(builder, name)
    _check_split(builder, name, split)
    try:
        if _is_folder(name):
            examples = builder.as_dataset(split=split)
        else:
            # One file after the other, in order: the position in the data must mean the same
            # thing in every run.
            order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
            examples = builder.as_dataset(split=split, shuffle_files=False, read_config=order)
    except (ValueError, AssertionError) as error:
        raise UserError(f'{name}: bad split "{split}" ({_first_line(error)})') from error
    for batch in examples.batch(_READ_BATCH).as_numpy_iterator():
        for source, target in zip(batch[source_language], batch[target_language], strict=True):
            yield source.decode("utf-8"), target.decode("utf-8")


def has_tfds_split(name: str, split: str, data_dir: str = "", *, required: bool = False) -> bool:
    """Whether every split named in `split` exists; prepares the set where needed.

    Raises:
      UserError: one is missing and `required`; says which there are.
    """
    builder = _builder(name, data_dir)
    _prepare(builder, name)
    if required:
        _check_split(builder, name, split)
    return set(_names_in_split(split)) <= set(_split_names(builder))


def tfds_fingerprint(
    name: str, split: str, source_language: str, target_language: str, data_dir: str = ""
) -> str:
    """A key that changes with the content: name, configuration, version, split, direction, and
    what the set was prepared to, since a version of one's own may be prepared again.

    That is the bytes of the split's files where they lie on a disk, and elsewhere their names,
    sizes and dates. For `TranslateFolder` its text files stand for all but split and direction.

    Raises:
      UserError: as `read_tfds_pairs`.
    """
    builder = _builder(name, data_dir)
    _check_languages(builder, name, source_language, target_language)
    digest = hashlib.sha256()
    if _is_folder(name):
        for path in sorted(Path(data_dir).expanduser().glob("*.txt")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.name}\0{content}\0".encode())
    else:
        _prepare(builder, name)
        _check_split(builder, name, split)
        digest.update(builder.info.full_name.encode())
        for part in _names_in_split(split):
            found = builder.info.splits[part]
            digest.update(f"\0{part}\0{found.num_bytes}\0{found.shard_lengths}".encode())
            for path in found.filepaths:
                digest.update(_file_key(path))
    digest.update(f"\0{split}\0{source_language}\0{target_language}".encode())
    return digest.hexdigest()


def _file_key(path: Any) -> bytes:
    """What tells a prepared file from another: `path` is TFDS's, perhaps of a bucket."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    about = path.stat()
    return f"\0{path.name}\0{about.length}\0{about.mtime}".encode()


@functools.cache
def register_grammar() -> type[Any]:
    """Registers the embedded corpus with TFDS: then `tfds.load("grammar_translate")` finds it.

    Returns:
      Its builder class. Nothing is downloaded for it.
    """
    tfds = _import_tfds()

    class GrammarTranslate(tfds.core.GeneratorBasedBuilder):  # type: ignore[name-defined]
        """German–English pairs from a small grammar."""

        VERSION = tfds.core.Version(grammar.VERSION)

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                description=grammar.__doc__,
                features=tfds.features.Translation(languages=("de", "en")),
                disable_shuffling=True,  # the grammar draws them in random order
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {split: self._generate_examples(split) for split in grammar.SPLIT_SIZES}

        def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
            for number, (english, german) in enumerate(grammar.split_pairs(split)):
                yield number, {"de": german, "en": english}

    return GrammarTranslate


def _import_tfds() -> Any:
    try:
        import_tensorflow()
        _provide_importlib_resources()
        import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            f"data.tfds_name needs TensorFlow and TensorFlow Datasets ({error}); install "
            "tensorflow-cpu and tensorflow-datasets, or give text files as data.train_source"
        ) from error
    return tensorflow_datasets


def _provide_importlib_resources() -> None:
    """Lets TFDS 4.9.10 prepare sets where a package that it forgot to require is missing.

    It imports `importlib_resources` but requires it for Python < 3.9 only; the standard
    library's module of the same content takes its place.
    """
    if "importlib_resources" in sys.modules:
        return
    if importlib.util.find_spec("importlib_resources") is None:
        sys.modules["importlib_resources"] = importlib.resources
        sys.modules["importlib_resources.abc"] = importlib.resources.abc


def _is_folder(name: str) -> bool:
    return name.lower() in _FOLDER_NAMES


def _builder(name: str, data_dir: str) -> Any:
    return _folder_builder(name, data_dir) if _is_folder(name) else _named_builder(name, data_dir)


def _folder_builder(name: str, data_dir: str) -> Any:
    if not data_dir:
        raise UserError(f"{name} needs data.tfds_data_dir: the folder of LANGUAGE.SPLIT.txt files")
    if not Path(data_dir).expanduser().is_dir():
        raise UserError(f"data.tfds_data_dir={data_dir}: no such folder")
    try:
        return _import_tfds().TranslateFolder(data_dir)
    except (ValueError, OSError, StopIteration) as error:
        for path in sorted(Path(data_dir).expanduser().glob("*.txt")):
            for _ in read_lines(path):  # names the file and the line that cannot be read
                pass
        raise UserError(
            f"{data_dir}: not a folder of LANGUAGE.SPLIT.txt files alone, with as many lines in "
            f"each language ({_first_line(error)})"
        ) from error


@functools.lru_cache(maxsize=8)
def _named_builder(name: str, data_dir: str) -> Any:
    if not re.fullmatch(r"[^:/=]+(/[^:/=]+)?(:[\d*.]+)?", name):
        raise UserError(
            f"data.tfds_name={name}: expected set, set/config or set/config:version; sets of a "
            "namespace (of the community, of Hugging Face) come with code of their own, and "
            "arguments are not taken"
        )
    tfds = _import_tfds()
    register_grammar()
    set_name, _, config = name.partition(":")[0].partition("/")
    try:
        with _only_code_of_tfds(tfds):
            return tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.DatasetNotFoundError:
        names = tfds.list_builders(with_community_datasets=False)
        translations = [known for known in names if "transl" in known or known == "opus"]
        near = difflib.get_close_matches(set_name, names, n=3) or sorted(translations)
        raise UserError(
            f"data.tfds_name={name}: TFDS has no set of this name; did you mean {', '.join(near)}?"
        ) from None
    except (ValueError, AssertionError, ImportError) as error:
        configs = _configs(set_name)
        if configs and config.split("/")[0] not in configs:
            near = difflib.get_close_matches(config, configs, n=5, cutoff=0.5)
            some = [*near, *(other for other in configs if other not in near)][:20]
            more = ", ..." if len(configs) > len(some) else ""
            raise UserError(
                f'data.tfds_name={name}: {set_name} has no configuration "{config}"; '
                f"it has {', '.join(some)}{more}"
            ) from None
        raise UserError(f"data.tfds_name={name}: {_first_line(error)}") from error


@contextlib.contextmanager
def _only_code_of_tfds(tfds: Any) -> Iterator[None]:
    """Keeps TFDS from importing what a name or a data folder's features.json asks for.

    A file may name a class of any module, which TFDS would import to read the set.
    """
    connector = tfds.features.FeatureConnector
    find = connector.__dict__["cls_from_name"]

    def find_own(cls: Any, name: str) -> Any:
        if not name.startswith("tensorflow_datasets."):
            raise ValueError(f"its features.json names {name[:80]}, a class that is not of TFDS")
        return find.__func__(cls, name)

    connector.cls_from_name = classmethod(find_own)
    try:
        public = tfds.core.visibility.DatasetType.TFDS_PUBLIC
        with tfds.core.visibility.set_availables_tmp([public]):
            yield
    finally:
        connector.cls_from_name = find


def _configs(set_name: str) -> list[str]:
    try:
        return sorted(_import_tfds().builder_cls(set_name).builder_configs)
    except (ValueError, AttributeError, ImportError):
        return []


def _check_languages(builder: Any, name: str, source_language: str, target_language: str) -> None:
    tfds = _import_tfds()
    features = builder.info.features
    languages = [key for key in sorted(features) if isinstance(features[key], tfds.features.Text)]
    if len(languages) < 2:
        raise UserError(
            f"data.tfds_name={name}: not a set of sentence pairs; its features are "
            f"{', '.join(sorted(features))}"
        )
    for key, language in (("source", source_language), ("target", target_language)):
        if language not in languages:
            raise UserError(
                f'data.{key}_language={language}: {name} does not have the language "{language}"; '
                f"it has {', '.join(languages)}{_fitting_configs(builder, language)}"
            )
    if source_language == target_language:
        raise UserError(
            f"data.source_language and data.target_language are both {source_language}; "
            f"{name} has {', '.join(languages)}"
        )


def _fitting_configs(builder: Any, language: str) -> str:
    configs = sorted(getattr(builder, "builder_configs", None) or {})
    fitting = [config for config in configs if language in re.split(r"[^a-z]+|_to_", config)]
    if not fitting:
        return ""
    return f" (other configurations: {', '.join(f'{builder.name}/{c}' for c in fitting[:8])})"


def _prepare(builder: Any, name: str) -> None:
    """Downloads and prepares a set once; whatever is printed goes to stderr."""
    if _is_folder(name) or Path(os.fspath(builder.data_path)).exists():
        return
    tfds = _import_tfds()
    embedded = builder.name == GRAMMAR_NAME
    if embedded:  # a second's work without any download: no bars
        tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO() if embedded else sys.stderr):
            builder.download_and_prepare()
    except Exception as error:  # network, checksums, disk, manual downloads: TFDS has no one type
        raise UserError(
            f"data.tfds_name={name}: could not be prepared in {builder.data_path} "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error
    finally:
        if embedded:
            tfds.enable_progress_bar()


def _check_split(builder: Any, name: str, split: str) -> None:
    known = _split_names(builder)
    for part in _names_in_split(split):
        if part not in known:
            raise UserError(f'{name} has no split "{part}"; it has {", ".join(known)}')


def _split_names(builder: Any) -> list[str]:
    return sorted(builder.info.splits)


def _names_in_split(split: str) -> list[str]:
    return [part.split("[")[0].strip() for part in split.split("+")]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
