"""What is in the files for Bergamot's engine: sizes, settings, and int8 as it came in."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
import yaml

from tests.formats import exporter_suite as suite
from tests.formats.published import sentencepiece_model
from tests.formats.test_bergamot import INT8, STUDENT
from transformer_jax.errors import UserError
from transformer_jax.formats.export import export, write
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.family import make_tokenizers
from transformer_jax.formats.import_model import import_model
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.formats.run_folder import read_run
from transformer_jax.formats.vocabularies import vocabulary
from transformer_jax.models.quantization import Int8, NoQuantization
from transformer_jax.paths import as_path
from transformer_jax.weights.arrangement import arrange
from transformer_jax.weights.marian_items import read_items, stored
from transformer_jax.weights.sentencepiece_model import load_processor


def items_of(exporter, model, folder):
    """The items of the model's file."""
    write(exporter, model, as_path(folder))
    (file,) = folder.glob("model*.bin")
    return read_items(file)


def test_the_scale_of_logits_is_in_the_file_of_int8(tokenizers, tmp_path):
    """The matrix holds it, so the factor of what is multiplied with the matrix does not."""
    model = suite.random_model(suite.small(**STUDENT, **INT8, tie_embeddings="inputs"), tokenizers)
    scaled = replace(model.config.model, logit_scale=0.5)
    other = model._replace(config=replace(model.config, model=scaled))
    one, half = (items_of(Bergamot(), each, tmp_path / str(id(each))) for each in (model, other))
    name = "decoder_ff_logit_out_W"
    assert half[name].multiplier == 2 * one[name].multiplier
    for alpha in (f"{name}_QuantMultA", "none_QuantMultA"):
        assert half[alpha] == 0.5 * one[alpha] == 10


@pytest.fixture(scope="module")
def published_tokenizers():
    """As published: the SentencePiece model has neither `<pad>` nor `<s>`."""
    options = {"pad_id": -1, "bos_id": -1, "eos_id": 0, "unk_id": 1}
    content = sentencepiece_model("unigram", **options)
    ids = piece_ids(content)
    order = arrange(len(ids), pad=None, bos=None, eos=0, unk=1, origin="")
    side = content, vocabulary(order, ids)
    return make_tokenizers(side, side)


def piece_ids(content):
    processor = load_processor(content, "vocab.spm")
    return {processor.id_to_piece(i): i for i in range(processor.vocab_size())}


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize("quantize", [NoQuantization(), Int8()])
def test_sizes_in_the_options_are_those_of_the_tables(
    quantize, tie, published_tokenizers, tokenizers, tmp_path
):
    for number, side in enumerate((published_tokenizers, tokenizers)):
        options = STUDENT | INT8 | {"quantize": quantize, "tie_embeddings": tie}
        model = suite.random_model(suite.small(**options), side)
        found = items_of(Bergamot(), model, tmp_path / str(number))
        written = yaml.safe_load(found["special:model.yml"].tobytes().rstrip(b"\0"))
        sizes = [
            len(stored(found.get("Wemb", found.get(f"{name}_Wemb"))).read())
            for name in ("encoder", "decoder")
        ]
        assert written["dim-vocabs"] == sizes
        assert found["decoder_ff_logit_out_b"].shape == (1, sizes[1])
        pieces = len(piece_ids(side.target.sentencepiece_model))
        assert pieces <= sizes[1] < pieces + 16 and (quantize == Int8() or sizes[1] == pieces)


def test_settings_that_the_engine_reads(student_folder, tokenizers, tmp_path):
    settings = yaml.safe_load((student_folder / "config.intgemm8bitalpha.yml").read_text())
    assert settings["max-length-factor"] == 3 and settings["word-penalty"] == 0
    assert (settings["beam-size"], settings["normalize"], settings["skip-cost"]) == (4, 1, False)
    about = json.loads((student_folder / "model_info.json").read_text())
    assert about["type"] == "tiny"
    large = suite.random_model(suite.small(**STUDENT | {"d_model": 512}), tokenizers)
    write(Bergamot(), large, as_path(tmp_path / "large"))
    about = json.loads((tmp_path / "large" / "model_info.json").read_text())
    assert about["type"] == "base" and about["shortName"] == "und-und-base"


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_file_of_int8_comes_out_as_it_came_in(tie, published_tokenizers, tmp_path):
    options = suite.small(**STUDENT, **INT8, tie_embeddings=tie)
    model = suite.random_model(options, published_tokenizers)
    write(Bergamot(), model, as_path(tmp_path / "first"))
    run = import_model(tmp_path / "first", tmp_path / "run")
    again = export(run, "bergamot(quantization=int8)", tmp_path / "second")
    file = "model.intgemm.alphas.bin"
    assert (again / file).read_bytes() == (tmp_path / "first" / file).read_bytes()
    # As safetensors, too; and in float32 without the rows that int8 needs.
    weights = export(run, "safetensors", tmp_path / "weights")
    twice = import_model(weights, tmp_path / "twice")
    third = export(twice, "bergamot(quantization=int8)", tmp_path / "third")
    assert (third / file).read_bytes() == (again / file).read_bytes()
    floats = import_model(export(run, "bergamot", tmp_path / "floats"), tmp_path / "four")
    pieces = published_tokenizers.target.vocab_size
    assert floats.config.model.target_vocab_size == pieces
    # Not of a model that was trained since, nor of one that was never of int8.
    params = jax.tree.map(np.array, run.params("latest"))
    params["encoder"]["blocks_0"]["mixer"]["heads"]["query"]["kernel"][0, 0] += 1e-4
    trained = TrainedModel(run.config, params, run.tokenizers(), read_run(run, "latest").int8)
    for each, words in (
        (trained, "no longer that of the file that was imported: give sentences=FILE"),
        (read_run(floats, "latest"), "not imported from a file of int8: give sentences=FILE"),
    ):
        with pytest.raises(UserError, match=words):
            write(Bergamot(quantization="int8"), each, as_path(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()
