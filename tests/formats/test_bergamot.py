"""Files for Bergamot's engine: computed by its equations in NumPy, read again, refused by name.

`test_bergamot_engine.py` runs them in the engine itself.
"""

import json
import struct
from dataclasses import replace

import jax
import numpy as np
import pytest
import yaml

import transformer_jax as tj
from tests.formats import exporter_suite as suite
from tests.formats.published import sentencepiece_model
from tests.formats.runtimes import NaiveInNumPy
from tests.quick import quick
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.formats.export import write
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.family import make_tokenizers
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.formats.run_folder import read_run, write_run
from transformer_jax.formats.vocabularies import vocabulary
from transformer_jax.models import api
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import NoQuantization
from transformer_jax.ops.matrices import Int8Matrix
from transformer_jax.paths import as_path
from transformer_jax.weights.arrangement import arrange
from transformer_jax.weights.marian_items import Int8 as Int8Item, read_items, stored, to_bytes
from transformer_jax.weights.sentencepiece_model import load_processor

T2T = {"position": tj.Sinusoidal(form="tensor2tensor")}
FULL = {
    **{"norm_placement": "post", "start_id": None, "unused_ids": (0, 1), "output_bias": True},
    **{"encoder": T2T, "decoder": T2T},
}
STUDENT = FULL | {"decoder": T2T | {"mixers": (tj.SSRU(),)}}

MODELS = {
    "student": STUDENT,
    "full": FULL | {"tie_embeddings": "decoder"},
    "swish": STUDENT | {"feed_forward": tj.Mlp(activation="silu")},
    "decoder tied": STUDENT | {"tie_embeddings": "decoder"},
    "inputs tied": STUDENT | {"tie_embeddings": "inputs", "logit_scale": 0.5},
    "untied": FULL | {"tie_embeddings": "none", "embedding_scale": 3.0},
    "no biases": STUDENT
    | {
        "output_bias": False,
        "cross": tj.FullCross(use_bias=False, score_scale=0.7, alignment_head=0),
        "feed_forward": tj.Mlp(use_bias=False),
        "unused_ids": (0, 1, 3, 9),
    },
    "adapter": STUDENT | {"adapter": tj.Lora(rank=2)},
}


@pytest.mark.parametrize("name", quick(MODELS, "student", "untied", "no biases"))
def test_equal_outputs(name, tokenizers, tmp_path):
    model = suite.random_model(suite.small(**MODELS[name]), tokenizers)
    theirs = suite.exported(Bergamot(), model, tmp_path / "out", NaiveInNumPy)
    suite.check_log_probs(model, theirs)
    suite.check_greedy(model, theirs)


def test_the_folder_is_one_of_translatelocally(student_folder, tokenizers, tmp_path):
    names = sorted(path.name for path in student_folder.iterdir())
    assert names == ["config.intgemm8bitalpha.yml", "model.bin", "model_info.json", "vocab.spm"]
    assert (student_folder / "vocab.spm").read_bytes() == tokenizers.source.model
    settings = yaml.safe_load((student_folder / "config.intgemm8bitalpha.yml").read_text())
    assert settings["max-length-factor"] == 3 and settings["word-penalty"] == 0
    assert (settings["beam-size"], settings["normalize"], settings["skip-cost"]) == (4, 1, False)
    assert json.loads((student_folder / "model_info.json").read_text())["type"] == "tiny"
    large = suite.random_model(suite.small(**STUDENT | {"d_model": 512}), tokenizers)
    write(Bergamot(), large, as_path(tmp_path / "large"))
    about = json.loads((tmp_path / "large" / "model_info.json").read_text())
    assert about["type"] == "base" and about["shortName"] == "und-und-base"


@pytest.mark.parametrize(
    "name", quick(["student", "no biases", "adapter", "untied"], "no biases", "untied")
)
def test_import_export_import_is_the_same_to_the_bit(name, tokenizers, two, tmp_path):
    tokenizers = two if name == "untied" else tokenizers
    model = suite.random_model(suite.small(**MODELS[name]), tokenizers)
    first = tj.export(write_run(tmp_path / "a", model), "bergamot", tmp_path / "first")
    once = tj.import_model(first, tmp_path / "b")
    again = tj.export(once, "bergamot", tmp_path / "second")
    twice = tj.import_model(again, tmp_path / "c")
    for name in ("model.bin", *(path.name for path in first.glob("*.spm"))):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    jax.tree.map(np.testing.assert_array_equal, once.params(), twice.params())
    assert once.config.model == twice.config.model
    sources = suite.sentences(2, tokenizers.source.vocab_size)
    ours = model._replace(params=once.params("latest"), config=once.config)
    assert suite.Ours(ours).greedy(sources) == suite.Ours(model).greedy(sources)


def test_an_imported_folder_has_its_pieces_and_search(folder, tokenizers, tmp_path):
    config = folder / "config.intgemm8bitalpha.yml"
    config.write_text(config.read_text().replace("beam-size: 4", "beam-size: 1"))
    run = tj.import_model(folder, tmp_path / "b")
    assert run.config.decode.method == tj.Greedy()
    text = "The dog sleeps."
    assert run.tokenizers().source.encode(text) == tokenizers.source.encode(text)
    assert run.config.model.start_id is None and run.config.model.unused_ids == (0, 1)
    assert run.config.model.norm == tj.LayerNorm(epsilon=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["norm_placement=pre", "start_id=1", "position=sinusoidal", "form='tensor2tensor'"]),
        (STUDENT | {"norm": tj.LayerNorm(epsilon=1e-5)}, ["epsilon=1e-05"]),
        (
            STUDENT | {"feed_forward": tj.Mlp(activation="gelu")},
            ["feed_forward=mlp(activation='gelu"],
        ),
        (STUDENT | {"start_id": 1}, ["model.start_id=1", "model.start_id=None"]),
        (STUDENT | {"embedding_scale": 3.0}, ["model.embedding_scale=3.0"]),
        (STUDENT | {"embedding_norm": True}, ["model.embedding_norm=True"]),
        (
            FULL | {"decoder": T2T | {"mixers": (tj.SSRU(), tj.Full())}},
            ["decoder.mixers=ssru,full"],
        ),
        (FULL | {"encoder": T2T | {"mixers": (tj.Full(num_kv_heads=2),)}}, ["num_kv_heads=2"]),
        (STUDENT | {"head_dim": 6}, ["model.head_dim=6"]),
        (STUDENT | {"cross": tj.FullCross(alignment_head=1)}, ["cross.alignment_head=1", "head 0"]),
    ],
)
def test_what_the_engine_cannot_compute_is_refused_by_name(options, words):
    with pytest.raises(tj.UserError) as refusal:
        Bergamot().check(tj.Config(model=suite.small(**options)))
    message = str(refusal.value)
    assert message.startswith("model.") and "\n" not in message
    assert all(word in message for word in ["Bergamot cannot express it", *words]), message


INT8 = {"d_model": 64, "d_ff": 128, "quantize": tj.Int8()}


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_int8_of_a_model_that_was_trained_for_it(tie, tokenizers, tmp_path):
    """The file has the whole numbers and factors that training computes with, and so has a run."""
    model = suite.random_model(suite.small(**STUDENT, **INT8, tie_embeddings=tie), tokenizers)
    Bergamot().check(model.config)
    write(Bergamot(), model, as_path(tmp_path / "out"))
    items = read_items(tmp_path / "out" / "model.intgemm.alphas.bin")
    settings = (tmp_path / "out" / "config.intgemm8bitalpha.yml").read_text()
    assert "int8shiftAlphaAll" in settings and "model.intgemm.alphas.bin" in settings
    alphas = {name for name in items if name.endswith("_QuantMultA")}
    tied = {"all": "Wemb", "decoder": "decoder_Wemb", "none": "decoder_ff_logit_out_W"}[tie]
    assert {f"{tied}_QuantMultA", "none_QuantMultA"} <= alphas
    assert len(alphas) == 2 * (6 + 8) + 2
    assert items["none_QuantMultA"] == items[f"{tied}_QuantMultA"] == 20
    values = stored(items[tied]).read()
    assert max(values.shape) % 8 == 0 and max(values.shape) > tokenizers.target.vocab_size - 2
    want = api.for_decoding(model.config.model, model.params)
    if tie != "none":  # the engine quantises these once more, by the largest number
        table = want["target_embedding"]["table"]
        again = np.rint(values * np.float32(127 / np.abs(values).max()))
        piece = tokenizers.source.encode("The")[0]
        spm = load_processor(tokenizers.source.sentencepiece_model, "vocab.spm")
        row = spm.piece_to_id(tokenizers.source.pieces([piece])[0])
        np.testing.assert_array_equal(again[row], np.asarray(table.values)[piece])

    run = tj.import_model(tmp_path / "out", tmp_path / "run")
    assert run.config.decode.weights == "int8"
    assert run.config.model.quantize == NoQuantization()
    held = matrices(run.translator().params)
    assert matrices(want).keys() == held.keys()
    for path, w in matrices(want).items():
        found = held[path]
        np.testing.assert_array_equal(found.scale[0], w.scale[0], path)
        if w.shape == found.shape:  # tables have other rows
            np.testing.assert_array_equal(found.values, w.values, path)
        if w.static is not None:
            assert (found.static.alpha, found.static.unit) == (w.static.alpha, w.static.unit)
    up = "encoder/blocks_0/feed_forward/up/kernel"
    exact = matrices(want)[up].values * matrices(want)[up].scale
    floats = by_path(run.translator(weights="float").params)
    np.testing.assert_allclose(floats[up].T, exact, rtol=3e-7)


def matrices(params):
    """By path, those of int8."""

    def is_int8(x):
        return isinstance(x, Int8Matrix)

    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_int8)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in leaves
        if is_int8(leaf)
    }


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
@pytest.mark.parametrize("quantize", [NoQuantization(), tj.Int8()])
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
        assert pieces <= sizes[1] < pieces + 16 and (quantize == tj.Int8() or sizes[1] == pieces)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_file_of_int8_comes_out_as_it_came_in(tie, published_tokenizers, tmp_path):
    options = suite.small(**STUDENT, **INT8, tie_embeddings=tie)
    model = suite.random_model(options, published_tokenizers)
    write(Bergamot(), model, as_path(tmp_path / "first"))
    run = tj.import_model(tmp_path / "first", tmp_path / "run")
    again = tj.export(run, "bergamot(quantization=int8)", tmp_path / "second")
    file = "model.intgemm.alphas.bin"
    assert (again / file).read_bytes() == (tmp_path / "first" / file).read_bytes()
    # As safetensors, too; and in float32 without the rows that int8 needs.
    weights = tj.export(run, "safetensors", tmp_path / "weights")
    twice = tj.import_model(weights, tmp_path / "twice")
    third = tj.export(twice, "bergamot(quantization=int8)", tmp_path / "third")
    assert (third / file).read_bytes() == (again / file).read_bytes()
    floats = tj.import_model(tj.export(run, "bergamot", tmp_path / "floats"), tmp_path / "four")
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
        with pytest.raises(tj.UserError, match=words):
            write(Bergamot(quantization="int8"), each, as_path(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()


def test_int8_needs_sentences_or_a_model_that_was_trained_for_it(tmp_path):
    floats, trained = (
        tj.Config(model=suite.small(**STUDENT, **(INT8 | {"quantize": kind()})))
        for kind in (NoQuantization, tj.Int8)
    )
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n \n")
    for config, options, words in (
        (floats, {"sentences": str(empty)}, r"sentences=FILE is for int8: give quantization=int8"),
        (floats, {"quantization": "int8", "sentences": str(missing)}, rf"{missing}: cannot be"),
        (floats, {"quantization": "int8", "sentences": str(empty)}, rf"={empty}: holds no sent"),
        (trained, {"quantization": "float32"}, r"model\.quantize=int8.*leave out"),
        (trained, {"quantization": "int8", "sentences": str(empty)}, r"quantize=int8.*leave out"),
        (
            replace(trained, model=replace(trained.model, d_ff=96)),
            {},
            r"model\.d_ff=96: Bergamot's int8 needs a multiple of 64",
        ),
    ):
        with pytest.raises(tj.UserError, match=words) as refusal:
            Bergamot(**options).check(config)
        assert "\n" not in str(refusal.value)


def test_vocabularies_that_the_engine_cannot_read_are_refused(two, tmp_path):
    model = suite.random_model(suite.small(**STUDENT, tie_embeddings="decoder"), two)
    tied = model._replace(config=tj.Config(model=suite.small(**STUDENT)))
    with pytest.raises(tj.UserError, match="tie_embeddings=all: with two SentencePiece models"):
        suite.exported(Bergamot(), tied, tmp_path / "out", NaiveInNumPy)
    languages = suite.random_model(suite.small(**STUDENT), suite.language_tokenizers())
    languages = languages._replace(tokenizers=Tokenizers(*[languages.tokenizers.source] * 2))
    with pytest.raises(tj.UserError, match="the piece 'eng_Latn' begins every text"):
        suite.exported(Bergamot(), languages, tmp_path / "out", NaiveInNumPy)
    assert not list(tmp_path.iterdir())


def test_a_matrix_of_int8_is_read_as_its_floats(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(-127, 128, (16, 8)).astype(np.int8)
    items = {
        "a_Wq": Int8Item(values, 50.0),
        "Wemb": Int8Item(values, 25.0),
        "b": np.float32([[1, 2]]),
    }
    (tmp_path / "x.bin").write_bytes(to_bytes(items))
    found = {name: stored(item) for name, item in read_items(tmp_path / "x.bin").items()}
    np.testing.assert_array_equal(found["a_Wq"].read(), values / np.float32(50))
    np.testing.assert_array_equal(found["Wemb"].read(), values / np.float32(25))
    np.testing.assert_array_equal(found["b"].read(), items["b"])
    # Bytes of a matrix are transposed, those of a table are not.
    content = (tmp_path / "x.bin").read_bytes()
    assert values.T.tobytes() in content and values.tobytes() in content


def number_at(place, value, kind="Q"):
    def change(content):
        packed = struct.pack(f"<{kind}", value)
        return content[:place] + packed + content[place + len(packed) :]

    return change


def shape_of_16_by_24(*other):
    shapes = struct.pack("<2i", 16, 24), struct.pack("<2i", *other)
    return lambda content: content.replace(*shapes, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (number_at(0, 2), "does not begin with the version 1"),
        (lambda content: b"", "does not begin with the version 1"),
        (number_at(8, 2**63), "names 9223372036854775808 items, more than it has room for"),
        (number_at(16, 2**62), "within its parts"),
        (number_at(24, 0x10001), "is of the type 0x10001; known are"),
        (number_at(32, 2**61), "an item has 2305843009213693952 axes"),
        (lambda content: content[:-1], "within its parts"),
        (lambda content: content[:100], "more than it has room for"),
        (lambda content: content.replace(b"Wemb\0", b"W\xff\xffb\0"), "a name is not text"),
        (shape_of_16_by_24(2**31 - 1, 2**31 - 1), "which do not fit"),
        (shape_of_16_by_24(-16, 24), "which do not fit"),
        (lambda content: content.replace(b"model.yml", b"model.yMl"), "has no special:model.yml"),
    ],
)
def test_damaged_files_end_in_one_line(change, words, folder, refuses):
    content = (folder / "model.bin").read_bytes()
    assert change(content) != content
    (folder / "model.bin").write_bytes(change(content))
    assert "model.bin" in refuses(folder, words)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.spm", None, r"expected one \*\.spm, or one with \.src\."),
        ("vocab.spm", b"abc", "vocab.spm"),
        ("vocab.spm", "another", "embeddings of 350 pieces, but the vocabulary has 330"),
        ("config.intgemm8bitalpha.yml", b"beam-size: [", "not valid YAML"),
    ],
)
def test_folders_that_do_not_fit_end_in_one_line(name, content, words, folder, two, refuses):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(two.target.model if content == "another" else content)
    refuses(folder, words)
