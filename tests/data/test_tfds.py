"""Text from TensorFlow Datasets: a set made here, its splits and languages, and mistakes."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.listed import change, failure
from tests.oracles import need
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.base import Pair, Split
from transformer_jax.data.sources.tfds import Tfds
from transformer_jax.data.splits import (
    check_splits,
    fingerprint,
    has_split,
    read_documents,
    read_pairs,
)
from transformer_jax.errors import UserError

tfds = need("tensorflow_datasets")

#: The text of the set below; a test may change it before it prepares the set in another folder.
TEXT: dict[str, list[Pair]] = {
    "train": [(f"a dog {i}", f"ein Hund {i}") for i in range(2500)],
    "validation": [(f"a cat {i}", f"eine Katze {i}") for i in range(20)],
    "test": [(f"a cow {i}", f"eine Kuh {i}") for i in range(30)],
}


class SentencePairs(tfds.core.GeneratorBasedBuilder):
    """A small TFDS set, built like the large ones."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in TEXT}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for number, (english, german) in enumerate(TEXT[split]):
            yield number, {"de": german, "en": english}


class Documents(SentencePairs):
    """The same with the title of each sentence's document: seven sentences have it in turn."""

    def _info(self) -> Any:
        text = {key: tfds.features.Text() for key in ("de", "en", "title")}
        places = tfds.features.Tensor(shape=(2,), dtype=np.int64)
        features = tfds.features.FeaturesDict({**text, "places": places})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, example in super()._generate_examples(split):
            title = f"page {number // 7 % 2}"
            yield number, {**example, "title": title, "places": [number, number]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataConfig]:
    """The set, prepared without a network."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"the set opened a connection to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        source = Tfds("sentence_pairs", str(tmp_path_factory.mktemp("tfds")))
        yield DataConfig(source, source_language="en", target_language="de")


def test_every_pair_in_order(data: DataConfig) -> None:
    splits: tuple[Split, ...] = ("train", "validation", "test")
    for split in splits:
        assert has_split(data, split)
        assert list(read_pairs(data, split)) == TEXT[split]
    check_splits(data)
    back = replace(data, source_language="de", target_language="en")
    assert fingerprint(back, "train") != fingerprint(data, "train")


def test_a_feature_tells_where_documents_end(data: DataConfig) -> None:
    plain = change(data, name="documents")
    told = change(plain, documents="title")
    assert list(read_pairs(told, "train")) == list(read_pairs(plain, "train")) == TEXT["train"]
    sevens = [TEXT["train"][i : i + 7] for i in range(0, 2500, 7)]
    assert list(read_documents(told, "train")) == sevens
    assert list(read_documents(change(told, train_split="test[:9]"), "train")) == [
        TEXT["test"][:7],
        TEXT["test"][7:9],
    ]
    assert fingerprint(told, "train") != fingerprint(plain, "train")
    for wrong in ("titel", "places"):
        message = f"data.source.documents={wrong}: documents has no such feature of one value; "
        assert message + "it has de, en, title" in failure(change(plain, documents=wrong))


def test_splits_that_are_named_must_exist(data: DataConfig) -> None:
    with pytest.raises(UserError, match='no split "dev"; it has test, train, validation'):
        has_split(change(data, validation_split="dev"), "validation")
    with pytest.raises(UserError, match='no split "tst"'):
        check_splits(change(data, test_split="tst[:50%]"))
    without = change(data, validation_split=None)
    assert not has_split(without, "validation")
    expected = "no validation set: give data.source.validation_split or data.validation_from_train"
    assert expected in failure(without, "validation")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target_language": "fr"}, 'does not have the language "fr"; it has de, en'),
        ({"target_language": "en"}, "are both en"),
        ({"train_split": "trian"}, 'no split "trian"; it has test, train, validation'),
        ({"train_split": "train[:x]"}, 'bad split "train[:x]"'),
        ({"name": "wmt14_trnslate/de-en"}, "did you mean wmt14_translate"),
        ({"name": "wmt14_translate/de-xx"}, 'no configuration "de-xx"; it has de-en'),
        ({"name": "wmt14_translate"}, "it has cs, en (other configurations: wmt14_translate/"),
        ({"name": "huggingface:wmt14"}, "data.source.name=huggingface:wmt14: expected set"),
        ({"name": "kaggle:pairs/de-en:1.0.0"}, "code of their own"),
        ({"name": "opus/data_dir=x"}, "arguments are not taken"),
        ({"name": "mnist"}, "not a set of sentence pairs; its features are image, label"),
    ],
)
def test_mistakes(data: DataConfig, options: dict[str, str], expected: str) -> None:
    changed = replace(data, **options) if "target_language" in options else change(data, **options)
    assert expected in failure(changed)


def test_a_data_folder_names_no_class_to_import(
    data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pairs" / "1.0.0"
    folder.mkdir(parents=True)
    info = {"name": "pairs", "version": "1.0.0", "fileFormat": "tfrecord"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "of_the_file.Features"}))
    (tmp_path / "of_the_file.py").write_text("raise SystemExit('this was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = change(data, name="pairs", data_dir=str(tmp_path))
    assert "features.json names of_the_file.Features" in failure(config)
    assert next(read_pairs(data, "train"))  # other sets can be read as before


def test_set_that_cannot_be_prepared(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SentencePairs, "_generate_examples", full)
    message = failure(change(data, data_dir=str(tmp_path)))
    assert "could not be prepared in" in message
    assert "No space left on device" in message


def test_fingerprint_follows_what_was_prepared(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same name and version, as many sentences and as many bytes, but another text."""
    keys = {}
    for name, word in (("one", "aaa"), ("same", "aaa"), ("other", "aab")):
        monkeypatch.setitem(TEXT, "train", [(f"{word} {i}", f"{word} {i}") for i in range(3)])
        config = change(data, data_dir=str(tmp_path / name))
        keys[name] = [fingerprint(config, split) for split in ("train", "test")]
    assert keys["one"] == keys["same"]
    assert keys["one"][0] != keys["other"][0]
    assert keys["one"][1] == keys["other"][1]


def test_translate_folder(data: DataConfig, tmp_path: Path) -> None:
    for language in ("en", "de"):
        (tmp_path / f"{language}.train.txt").write_text("hallo\nhallo 2\n")
    config = change(data, name="TranslateFolder", data_dir=str(tmp_path))
    assert not has_split(config, "test")  # the default, which a set need not have
    before = fingerprint(config, "train")
    assert "it has de, en" in failure(replace(config, target_language="fr"))
    (tmp_path / "de.train.txt").write_text("hallo\nhallo 3\n")
    assert fingerprint(config, "train") != before
    (tmp_path / "de.train.txt").write_text("hallo\n")
    assert "do not match" in failure(config)
    (tmp_path / "de.train.txt").write_bytes(b"hallo\nf\xfcr\n")
    assert f"{tmp_path}/de.train.txt:2: not UTF-8 (byte 0xfc at column 2)" in failure(config)
    assert "no such folder" in failure(change(config, data_dir=str(tmp_path / "nope")))
    assert "needs data.source.data_dir" in failure(change(config, data_dir=None))
