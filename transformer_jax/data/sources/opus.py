"""Parallel text of OPUS, the open collection of translated text (Tiedemann 2012), by name.

A corpus is downloaded once, by OPUS's own program OpusTools, and kept as a packed file for each
language. What it is asked for is a version that does not change, so nothing is asked twice.
"""

import contextlib
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax.data.sources.base import Languages, Pair, Source, Split, missing
from transformer_jax.data.sources.files import Files
from transformer_jax.errors import UserError, as_user_error, hint, optional
from transformer_jax.paths import stage, user_cache
from transformer_jax.settings.file_names import absolute_name
from transformer_jax.settings.types import FileName, Strings


@dataclass(frozen=True)
class Opus(Source):
    """Corpora of OPUS; it needs `pip install 'transformer-jax[opus]'`.

    They are named with their versions, which OPUS's site lists: `Tatoeba-v2023-04-12`.
    """

    corpora: Strings  #: to train on, such as Tatoeba-v2023-04-12,Europarl-v8
    validation: Strings = ()  #: corpora of text that is translated during training
    test: Strings = ()  #: corpora for the final score
    data_dir: FileName | None = None
    #: folder of what was downloaded; none = <user cache>/transformer_jax/opus

    def has(self, split: Split) -> bool:
        """Whether corpora are named; UserError if one is without a version."""
        return bool(self._names(split))

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs of the corpora, one corpus after the other."""
        return self._files(split, languages).pairs("train", languages)

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the downloaded texts."""
        return self._files(split, languages).fingerprint("train", languages)

    def texts(self, languages: Languages) -> list[tuple[str, str]]:
        """The digests of the downloaded texts."""
        return self._files("train", languages).texts(languages)

    def _names(self, split: Split) -> Strings:
        names: Strings = self.corpora if split == "train" else getattr(self, split)
        for name in names:
            if "-v" not in name or Path(name).name != name:
                raise UserError(
                    f"data.source: {name} is no corpus of OPUS with its version, such as "
                    "Tatoeba-v2023-04-12"
                )
        return names

    def _files(self, split: Split, languages: Languages) -> Files:
        """The texts, which are downloaded if they are not there."""
        names = self._names(split)
        if not names:
            key = "corpora" if split == "train" else split
            raise missing(split, f"data.source.{key}")
        folder = self.data_dir
        root = user_cache() / "opus" if folder is None else Path(absolute_name(folder))
        folders = [_downloaded(root, name, languages) for name in names]
        source, target = (
            tuple(str(folder / _file_name(language)) for folder in folders)
            for language in languages
        )
        return Files(source, target)


def _file_name(language: str) -> str:
    return f"text.{language}.zst"


def _downloaded(root: Path, name: str, languages: Languages) -> Path:
    """The folder with the two texts of a corpus. It appears when both are complete."""
    first, second = sorted(languages)
    folder = root / name / f"{first}-{second}"

    def fill(place: epath.Path) -> None:
        with tempfile.TemporaryDirectory(dir=root) as download:
            _unpack(_fetch(name, first, second, download), (first, second), Path(place))

    what = f"data.source: {name} for {first} and {second} could not be downloaded from OPUS to"
    # Network, disk, archives and answers in other forms have no common type of errors.
    with as_user_error(f"{what} {folder}", Exception, then="; try again"):
        stage(epath.Path(folder), {}, fill, flag="data.source.data_dir")
    return folder


def _fetch(name: str, first: str, second: str, place: str) -> Path:
    """Downloads the archive of a corpus into the folder `place`."""
    OpusGet = optional("opustools", "data.source=opus", "opus").OpusGet
    corpus, _, version = name.rpartition("-v")
    about: dict[str, Any] = {"source": first, "target": second, "preprocess": "moses"}
    about |= {"download_dir": place, "suppress_prompts": True}
    opus = OpusGet(directory=corpus, release=f"v{version}", **about)
    found, size = opus.get_corpora_data()
    if not found:
        every, _ = OpusGet(release=None, **about).get_corpora_data()
        known = sorted(f"{each['corpus']}-{each['version']}" for each in every)
        raise UserError(
            f"data.source: OPUS has no {name} for {first} and {second}{hint(name, known)}"
        )
    with contextlib.redirect_stdout(_Progress()) as said:
        opus.download(found[:1], size)
    path = Path(opus.make_file_name(found[0]))
    if not zipfile.is_zipfile(path):  # OpusTools tells of a failure and goes on
        raise OSError(None, (said.getvalue().strip() or "no archive").splitlines()[-1])
    return path


class _Progress(io.StringIO):
    """Shows OpusTools' progress on a terminal, and remembers what else it tells."""

    def write(self, text: str) -> int:
        if text.startswith("\r"):
            return sys.stderr.write(text) if sys.stderr.isatty() else len(text)
        return super().write(text)


def _unpack(archive: Path, languages: tuple[str, str], folder: Path) -> None:
    """Writes the text of each language, packed, into a folder."""
    from backports import zstd

    pair = "-".join(languages)
    with zipfile.ZipFile(archive) as content:
        for language in languages:
            names = [each for each in content.namelist() if each.endswith(f".{pair}.{language}")]
            if len(names) != 1:
                raise ValueError(f"its archive has {len(names)} files of {pair} in {language}")
            with (
                content.open(names[0]) as text,
                zstd.open(folder / _file_name(language), "wb") as packed,
            ):
                shutil.copyfileobj(text, packed, 1 << 20)
