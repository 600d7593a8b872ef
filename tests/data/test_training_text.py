"""The text of a config: splits, hold-out, languages, one reading, and what is refused."""

import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.data.listed import Listed, change, failure, write
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.id_files import entry_name
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.sources import files as files_module
from transformer_jax.data.sources.base import BOUNDARY, Pair
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.tfds import Tfds
from transformer_jax.data.splits import (
    check_splits,
    fingerprint,
    first_documents,
    has_split,
    read_pairs,
    resolve,
)
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.data.tokenizer_training import tokenizers_of_text, train_tokenizers
from transformer_jax.errors import UserError


@pytest.fixture
def files(tmp_path: Path) -> DataConfig:
    train = write(tmp_path, [(f"train en {i}", f"train de {i}") for i in range(10)])
    test = write(tmp_path, [(f"test en {i}", f"test de {i}") for i in range(3)], name="test")
    names = {"test_source": test.train_source, "test_target": test.train_target}
    return DataConfig(replace(train, **names))


def test_hold_out_takes_pairs_from_train(files: DataConfig) -> None:
    config = replace(files, validation_from_train=3)
    train, validation = (list(read_pairs(config, s)) for s in ("train", "validation"))
    everything = list(read_pairs(files, "train"))
    assert train + validation == everything
    assert len(validation) == 3
    assert has_split(config, "validation")
    too_many = replace(files, validation_from_train=len(everything))
    for split in ("train", "validation"):
        assert f"only {len(everything)} pairs" in failure(too_many, split)


def test_no_training_text(files: DataConfig) -> None:
    named = DataConfig(source_language="en", target_language="de")
    for data in (DataConfig(), named, change(files, train_source=(), train_target=())):
        for use in (resolve, lambda data: list(read_pairs(data, "train"))):
            with pytest.raises(UserError, match="no training text: give data.source.train_source"):
                use(data)
    with pytest.raises(UserError, match=r"no train set: give data\.source\.train_source"):
        list(Files().pairs("train", ("en", "de")))


def test_a_missing_set_names_the_key(files: DataConfig) -> None:
    for key in ("data.source.validation_source", "data.validation_from_train"):
        assert key in failure(files, "validation")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_splits_that_could_not_be_read_later(files: DataConfig, split: str) -> None:
    check_splits(files)
    source, target = f"{split}_source", f"{split}_target"
    both = {source: files.source.train_source, target: files.source.train_target}
    check_splits(change(files, **both))
    changes: list[tuple[dict[str, Any], str]] = [
        ({target: ()}, rf"data\.source\.{source} names 1 plain .*{target} 0; give one"),
        ({source: ()}, rf"data\.source\.{source} names 0 plain .*{target} 1; give one"),
        ({source: ("nope.en",)}, rf"nope\.en: no such file \(data\.source\.{source}\)"),
        ({target: ("nope.de",)}, rf"nope\.de: no such file \(data\.source\.{target}\)"),
        ({target: ("a.tsv",)}, rf"data\.source\.{target}=a\.tsv: .* holds both languages"),
    ]
    for options, words in changes:
        config = replace(change(files, **both | options), validation_from_train=2)
        for use in (lambda data, _: check_splits(data), fingerprint, has_split):
            with pytest.raises(UserError, match=words):
                use(config, split)


def test_fingerprint_knows_sides_and_what_is_held_out(files: DataConfig, tmp_path: Path) -> None:
    held_out = replace(files, validation_from_train=2)
    names = files.source.train_source, files.source.train_target
    swapped = change(files, train_source=names[1], train_target=names[0])
    swapped = replace(swapped, source_language="en", target_language="de")
    keys = [fingerprint(config, "train") for config in (files, held_out, swapped)]
    keys += [fingerprint(held_out, "validation"), fingerprint(files, "test")]
    (tmp_path / "a.jsonl").write_text('{"en": "dog", "de": "Hund"}\n')
    records = Files(train_source=(f"{tmp_path}/a.jsonl",))
    for sides in (("en", "de"), ("de", "en")):
        keys.append(fingerprint(DataConfig(records, *sides), "train"))
    assert len(set(keys)) == len(keys)


def test_languages_are_set_or_taken_from_the_file_names() -> None:
    files = DataConfig(Files(train_source=("a.en.gz", "b.en"), train_target=("a.de", "b.de.zst")))
    found = resolve(files)
    assert (found.source_language, found.target_language) == ("en", "de")
    named = replace(files, source_language="eng", target_language="deu")
    assert resolve(named).source_language == "eng"
    for vague in ("a.txt", "a.en,b.fr", "text", "a.tsv", "text.xz"):
        with pytest.raises(UserError, match=r"data\.source_language is not set.* =en|=en"):
            resolve(change(files, train_source=tuple(vague.split(","))))
    with pytest.raises(UserError, match=r"data\.source_language is not set"):
        resolve(DataConfig(Tfds("wmt14_translate/de-en")))


SMALL = TokenizerConfig(vocab_size=285)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """60 pairs, of which 5 are held out. The files are old enough for their digests to be kept."""
    monkeypatch.setattr(files_module, "_DIGESTS", {})
    for language in ("en", "de"):
        path = tmp_path / f"train.{language}.gz"
        lines = "".join(f"{language} word{i} x\u2028y {'z' * (i % 7)}\n" for i in range(60))
        path.write_bytes(gzip.compress(lines.encode()))
        os.utime(path, (1, 1))
    source = Files(
        train_source=(f"{tmp_path}/train.en.gz",), train_target=(f"{tmp_path}/train.de.gz",)
    )
    return DataConfig(source, validation_from_train=5, cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened."""
    names: list[str] = []

    class Watched(files_module._HashedFile):
        def __init__(self, path: str) -> None:
            names.append(Path(path).name)
            super().__init__(path)

    monkeypatch.setattr(files_module, "_HashedFile", Watched)
    return names


def first_run(
    data: DataConfig, limit: int = 3
) -> tuple[list[list[Pair]], Tokenizers, list[list[int]]]:
    """What training needs of the text of a new run."""
    validation = first_documents(data, "validation", limit)
    tokenizers = tokenizers_of_text(SMALL, data)
    corpus = ids_of_text(data, tokenizers)
    return validation, tokenizers, [corpus.source[i].tolist() for i in range(len(corpus))]


def test_a_first_run_learns_from_its_text_and_keeps_its_ids_alone(
    corpus: DataConfig, opened: list[str]
) -> None:
    validation, tokenizers, ids = first_run(corpus)
    # For the validation set, the tokenizer and the ids; the digests of the files are known by then.
    assert sorted(opened) == 3 * ["train.de.gz"] + 3 * ["train.en.gz"]
    assert validation == [list(read_pairs(corpus, "validation"))[:3]]
    pairs = list(read_pairs(corpus, "train"))
    assert tokenizers.source.model == train_tokenizers(SMALL, pairs).source.model
    assert ids == [tokenizers.source.encode(source) for source, _ in pairs]
    assert [path.name for path in Path(corpus.cache_dir or "").iterdir()] == [
        entry_name(tokenizers, fingerprint(corpus, "train"))
    ]


def test_a_continued_run_reads_the_text_once_and_encodes_nothing(
    corpus: DataConfig, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    validation, tokenizers, _ = first_run(corpus)
    monkeypatch.setattr(files_module, "_DIGESTS", {})  # as in another process
    monkeypatch.setattr(Tokenizer, "encode_batch", None)
    opened.clear()
    assert first_documents(corpus, "validation", 3) == validation
    ids_of_text(corpus, tokenizers)
    assert sorted(opened) == ["train.de.gz", "train.en.gz"]


def test_a_changed_file_is_read_again(corpus: DataConfig, opened: list[str]) -> None:
    first_run(corpus)
    before = fingerprint(corpus, "train")
    path = Path(corpus.source.train_source[0])  # type: ignore[attr-defined]
    text = gzip.decompress(path.read_bytes()).replace(b"word1 ", b"wort1 ")
    path.write_bytes(gzip.compress(text))
    assert fingerprint(corpus, "train") != before
    os.utime(path, (1, 1))
    assert fingerprint(corpus, "train") != before


def test_validation_pairs_that_are_held_out_stand_by_document() -> None:
    a, b, c, d, e = ((f"{word}-en", f"{word}-de") for word in "abcde")
    source = Listed((a, b, BOUNDARY, c, d, BOUNDARY, e, BOUNDARY), has_documents=True)
    data = DataConfig(source, "en", "de", validation_from_train=4)
    assert first_documents(data, "validation", 9) == [[b], [c, d], [e]]
    assert first_documents(data, "validation", 2) == [[b], [c]]
