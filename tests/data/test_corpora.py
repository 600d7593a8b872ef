"""The corpus of a config: files or TFDS, hold-out, fingerprints, and what contradicts."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.data import grammar
from transformer_jax.data.config import DataConfig
from transformer_jax.data.corpora import (
    Split,
    check_splits,
    corpus_fingerprint,
    has_split,
    read_pairs,
    with_languages,
)
from transformer_jax.errors import UserError


@pytest.fixture
def files(tmp_path: Path) -> DataConfig:
    for split, count in (("train", 10), ("test", 3)):
        for language in ("en", "de"):
            lines = "".join(f"{split} {language} {i}\n" for i in range(count))
            (tmp_path / f"{split}.{language}").write_text(lines)
    return DataConfig(
        train_source=(f"{tmp_path}/train.en",),
        train_target=(f"{tmp_path}/train.de",),
        test_source=(f"{tmp_path}/test.en",),
        test_target=(f"{tmp_path}/test.de",),
    )


def failure(config: DataConfig, split: Split = "train") -> str:
    with pytest.raises(UserError) as caught:
        list(read_pairs(config, split))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_files_by_split(files: DataConfig) -> None:
    assert len(list(read_pairs(files, "train"))) == 10
    assert list(read_pairs(files, "test"))[2] == ("test en 2", "test de 2")
    assert has_split(files, "train") and has_split(files, "test")
    assert not has_split(files, "validation")
    assert "data.validation_source" in failure(files, "validation")
    assert "data.validation_from_train" in failure(files, "validation")


def test_hold_out_takes_pairs_from_train(files: DataConfig) -> None:
    config = replace(files, validation_from_train=3)
    train, validation = (list(read_pairs(config, s)) for s in ("train", "validation"))
    assert train + validation == list(read_pairs(files, "train"))
    assert len(validation) == 3
    assert has_split(config, "validation")
    for split in ("train", "validation"):
        assert "only 10 pairs" in failure(replace(files, validation_from_train=10), split)


def test_a_given_validation_set_goes_before_holding_out(files: DataConfig) -> None:
    given = replace(files, validation_source=files.test_source, validation_target=files.test_target)
    both = replace(given, validation_from_train=3)
    for split in ("train", "validation"):
        assert list(read_pairs(both, split)) == list(read_pairs(given, split))
        assert corpus_fingerprint(both, split) == corpus_fingerprint(given, split)
    assert len(list(read_pairs(both, "train"))) == 10
    assert "expected 0 or more" in failure(replace(files, validation_from_train=-1))


def test_neither_or_both_training_texts(files: DataConfig) -> None:
    assert "data.tfds_name" in failure(DataConfig())
    both = failure(replace(files, tfds_name="wmt14_translate/de-en"))
    assert "data.tfds_name=wmt14_translate/de-en and data.train_source" in both


def test_missing_references_name_the_key(files: DataConfig) -> None:
    config = replace(files, test_target=())
    assert not has_split(config, "test")
    assert "give data.test_target" in failure(config, "test")
    with pytest.raises(UserError, match=r"data\.test_target"):
        corpus_fingerprint(config, "test")
    assert "data.test_source" in failure(replace(files, test_source=()), "test")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_splits_that_could_not_be_read_later(files: DataConfig, split: str) -> None:
    check_splits(files)
    source, target = f"{split}_source", f"{split}_target"
    both = {source: files.train_source, target: files.train_target}
    check_splits(replace(files, **both))  # type: ignore[arg-type]
    changes: list[tuple[dict[str, Any], str]] = [
        ({target: ()}, rf"has no references; give data\.{target}"),
        ({source: ()}, rf"data\.{target} is given without data\.{source}"),
        ({source: ("nope.en",)}, rf"nope\.en: no such file \(data\.{source}\)"),
        ({target: ("nope.de",)}, rf"nope\.de: no such file \(data\.{target}\)"),
    ]
    for change, words in changes:
        with pytest.raises(UserError, match=words):
            check_splits(replace(files, validation_from_train=2, **{**both, **change}))


def test_pair_file_needs_no_target(files: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("a\tb\n")
    config = replace(files, test_source=(f"{tmp_path}/test.tsv",), test_target=())
    assert has_split(config, "test")
    assert list(read_pairs(config, "test")) == [("a", "b")]


def test_fingerprint_follows_the_content(files: DataConfig, tmp_path: Path) -> None:
    first = corpus_fingerprint(files, "train")
    copy = tmp_path / "copy.en"
    copy.write_bytes((tmp_path / "train.en").read_bytes())
    assert corpus_fingerprint(replace(files, train_source=(str(copy),)), "train") == first
    held_out = replace(files, validation_from_train=2)
    swapped = replace(files, train_source=files.train_target, train_target=files.train_source)
    copy.write_text((tmp_path / "train.en").read_text().replace("9", "8"))
    changed = replace(files, train_source=(str(copy),))
    keys = [corpus_fingerprint(config, "train") for config in (files, held_out, swapped, changed)]
    keys += [corpus_fingerprint(held_out, "validation"), corpus_fingerprint(files, "test")]
    assert len(set(keys)) == len(keys)
    with pytest.raises(UserError, match=r"nope\.en: no such file"):
        corpus_fingerprint(replace(files, train_source=("nope.en",)), "train")


def test_fingerprint_of_jsonl_knows_the_direction(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "dog", "de": "Hund"}\n')
    config = DataConfig(train_source=(str(path),), source_language="en", target_language="de")
    back = replace(config, source_language="de", target_language="en")
    assert corpus_fingerprint(config, "train") != corpus_fingerprint(back, "train")


def test_files_do_not_import_tensorflow(files: DataConfig) -> None:
    code = (
        "import sys\n"
        "from transformer_jax.data import corpora, tfds_corpora, grammar, config\n"
        f"c = config.DataConfig(train_source={files.train_source}, "
        f"train_target={files.train_target})\n"
        "assert len(list(corpora.read_pairs(c, 'train'))) == 10\n"
        "assert not {'tensorflow', 'tensorflow_datasets', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Through TensorFlow Datasets


@pytest.fixture(scope="module")
def no_network() -> Any:
    """Fails whatever opens a connection."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"the embedded corpus opened a connection to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        yield


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, no_network: None) -> DataConfig:
    """The embedded corpus, small, prepared by TFDS without a network."""
    pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    config = DataConfig(
        source_language="en",
        target_language="de",
        tfds_name="grammar_translate",
        tfds_data_dir=str(folder),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "SPLIT_SIZES", {"train": 2500, "validation": 20, "test": 30})
        assert has_split(config, "test")
    return config


def test_embedded_corpus_through_tfds(embedded: DataConfig) -> None:
    expected = grammar.generate(0, 2550)
    # More than one read batch, in order.
    assert list(read_pairs(embedded, "train")) == expected[:2500]
    assert list(read_pairs(embedded, "validation")) == expected[2500:2520]
    assert list(read_pairs(embedded, "test")) == expected[2520:]
    assert has_split(embedded, "validation")
    with pytest.raises(UserError, match='no split "dev"; it has test, train, validation'):
        has_split(replace(embedded, validation_split="dev"), "validation")
    with pytest.raises(UserError, match='no split "tst"'):
        check_splits(replace(embedded, test_split="tst[:50%]"))
    check_splits(embedded)
    assert not has_split(replace(embedded, validation_split=""), "validation")


def test_direction_comes_from_the_languages(embedded: DataConfig) -> None:
    back = replace(embedded, source_language="de", target_language="en")
    english, german = grammar.generate(0, 1)[0]
    assert next(iter(read_pairs(back, "train"))) == (german, english)
    assert corpus_fingerprint(back, "train") != corpus_fingerprint(embedded, "train")


def test_tfds_slices_and_hold_out(embedded: DataConfig) -> None:
    config = replace(embedded, train_split="train[:10]+test[:5]", validation_from_train=4)
    assert len(list(read_pairs(config, "train"))) == 11
    assert len(list(read_pairs(config, "validation"))) == 4
    assert corpus_fingerprint(config, "train") != corpus_fingerprint(embedded, "train")


def test_grammar_is_registered_with_tfds(embedded: DataConfig) -> None:
    import tensorflow_datasets as tfds

    from transformer_jax.data.tfds_corpora import register_grammar

    builder = tfds.builder("grammar_translate", data_dir=embedded.tfds_data_dir)
    assert isinstance(builder, register_grammar())
    assert builder.info.features.languages == ["de", "en"]
    assert str(builder.version) == grammar.VERSION


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"target_language": "fr"}, 'does not have the language "fr"; it has de, en'),
        ({"target_language": "en"}, "are both en"),
        ({"train_split": "trian"}, 'no split "trian"; it has test, train, validation'),
        ({"train_split": "train[:x]"}, 'bad split "train[:x]"'),
        ({"tfds_name": "wmt14_trnslate/de-en"}, "did you mean wmt14_translate"),
        ({"tfds_name": "wmt14_translate/de-xx"}, 'no configuration "de-xx"; it has de-en'),
        ({"tfds_name": "wmt14_translate"}, "it has cs, en (other configurations: wmt14_translate/"),
        ({"tfds_name": "huggingface:wmt14"}, "data.tfds_name=huggingface:wmt14: expected set"),
        ({"tfds_name": "kaggle:pairs/de-en:1.0.0"}, "code of their own"),
        ({"tfds_name": "opus/data_dir=x"}, "arguments are not taken"),
        ({"tfds_name": "mnist"}, "not a set of sentence pairs; its features are image, label"),
    ],
)
def test_tfds_mistakes(embedded: DataConfig, change: dict[str, str], expected: str) -> None:
    assert expected in failure(replace(embedded, **change))  # type: ignore[arg-type]


def test_a_data_folder_names_no_class_to_import(
    embedded: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pairs" / "1.0.0"
    folder.mkdir(parents=True)
    info = {"name": "pairs", "version": "1.0.0", "fileFormat": "tfrecord"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "of_the_file.Features"}))
    (tmp_path / "of_the_file.py").write_text("raise SystemExit('this was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = replace(embedded, tfds_name="pairs", tfds_data_dir=str(tmp_path))
    assert "features.json names of_the_file.Features" in failure(config)
    # The embedded set is found as before, and so are the community's elsewhere.
    assert next(read_pairs(embedded, "train"))


def test_set_that_cannot_be_prepared(
    embedded: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(grammar, "split_pairs", full)
    message = failure(replace(embedded, tfds_data_dir=str(tmp_path)))
    assert "could not be prepared in" in message
    assert "No space left on device" in message


def test_fingerprint_follows_what_tfds_prepared(
    embedded: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same name and version, and as many sentences of as many bytes, but other ones."""
    monkeypatch.setattr(grammar, "SPLIT_SIZES", {"train": 3, "test": 2})
    found = {}
    for name, word in (("one", "aaa"), ("same", "aaa"), ("other", "aab")):
        sentences = [(f"{word} {i}", f"{word} {i}") for i in range(3)]
        monkeypatch.setattr(
            grammar,
            "split_pairs",
            lambda split, sentences=sentences: (
                sentences if split == "train" else [("x", "y"), ("z", "w")]
            ),
        )
        config = replace(embedded, tfds_data_dir=str(tmp_path / name))
        found[name] = [corpus_fingerprint(config, split) for split in ("train", "test")]
    assert found["one"] == found["same"]
    assert found["one"][0] != found["other"][0]
    assert found["one"][1] == found["other"][1]


def test_translate_folder(embedded: DataConfig, tmp_path: Path) -> None:
    for language, greeting in (("en", "hello"), ("de", "hallo")):
        (tmp_path / f"{language}.train.txt").write_text(f"{greeting}\n{greeting} 2\n")
    config = replace(embedded, tfds_name="TranslateFolder", tfds_data_dir=str(tmp_path))
    assert list(read_pairs(config, "train")) == [("hello", "hallo"), ("hello 2", "hallo 2")]
    assert not has_split(config, "test")  # named by nobody: it is the default
    before = corpus_fingerprint(config, "train")
    assert "it has de, en" in failure(replace(config, target_language="fr"))
    (tmp_path / "de.train.txt").write_text("hallo\nhallo 3\n")
    assert corpus_fingerprint(config, "train") != before
    (tmp_path / "de.train.txt").write_text("hallo\n")
    assert "do not match" in failure(config)
    (tmp_path / "de.train.txt").write_bytes(b"hallo\nf\xfcr\n")
    assert f"{tmp_path}/de.train.txt:2: not UTF-8 (byte 0xfc at column 2)" in failure(config)
    assert "no such folder" in failure(replace(config, tfds_data_dir=str(tmp_path / "nope")))


def test_languages_are_named_or_read_off_the_files() -> None:
    files = DataConfig(train_source=("a.en.gz", "b.en"), train_target=("a.de", "b.de.gz"))
    found = with_languages(files)
    assert (found.source_language, found.target_language) == ("en", "de")
    named = replace(files, source_language="eng", target_language="deu")
    assert with_languages(named) == named
    for vague in ("a.txt", "a.en,b.fr", "text", "a.tsv"):
        with pytest.raises(UserError, match=r"data\.source_language is not set .*=en"):
            with_languages(replace(files, train_source=tuple(vague.split(","))))
    with pytest.raises(UserError, match=r"data\.source_language is not set: name"):
        with_languages(DataConfig(tfds_name="wmt14_translate/de-en"))
